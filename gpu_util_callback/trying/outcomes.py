"""Outcomes of trials, stored beside the recording whose findings they are about."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from gpu_util_callback.recording.manifest_facts import TriedFacts
from gpu_util_callback.words import counted

FILE = "trials.json"
_SHOWN = {"code": str, "ratio": float, "low": float, "high": float, "resolved": bool, "pairs": int}


def factor_text(ratio: float, low: float, high: float) -> str:
    """Return a ratio with its interval: `×5.0 [4.5 … 5.7]`.

    With as many decimals as tell the interval's ends apart, four at most; one at least from a ratio of 2 on, else two.
    """
    least = 1 if ratio >= 2 else 2
    digits = next((digits for digits in range(least, 4) if f"{low:.{digits}f}" != f"{high:.{digits}f}"), 4)
    return f"×{ratio:.{digits}f} [{low:.{digits}f} … {format(high, f'.{digits}f' if high < 1000 else '.2g')}]"


def store(folder: str | Path, finding: str, trial: Mapping[str, Any]) -> None:
    """Write a trial of a finding beside its recording; a later one takes its place."""
    path = Path(folder) / FILE
    trials = {**stored(folder), finding: dict(trial)}
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(trials))
    unfinished.replace(path)


def stored(folder: str | Path) -> dict[str, Any]:
    """Return the trials beside a recording, by the id of their finding; {} where there is none that can be read."""
    try:
        trials = json.loads((Path(folder) / FILE).read_text())
    except (OSError, ValueError):
        return {}
    return trials if isinstance(trials, dict) else {}


def outcomes(folder: str | Path) -> dict[str, TriedFacts]:
    """Return the trials beside a recording as a report shows them, by the id of their finding.

    One that is incomplete, or whose interval does not hold its ratio, is left out: the file may come from elsewhere.
    """
    shown: dict[str, TriedFacts] = {}
    for finding, trial in stored(folder).items():
        try:
            facts = {name: kind(trial[name]) for name, kind in _SHOWN.items()}
        except (KeyError, TypeError, ValueError):
            continue
        if 0 < facts["low"] <= facts["ratio"] <= facts["high"] < math.inf:
            doubt = "" if facts["resolved"] else ", no change resolved"
            factor = factor_text(facts["ratio"], facts["low"], facts["high"])
            text = f"Tried: {factor}{doubt}, {counted(facts['pairs'], 'pair')}."
            shown[finding] = cast(TriedFacts, {"text": text, **facts})
    return shown
