"""Trials against whole runs: `python -m gauntlet.trials --json FILE [--only NAME…]`.

Each program is recorded, the first remedy that can be tried is tried as `gpu-util try` does, and then the whole
program runs as it is and with it in turns. Also `gauntlet/new_trials/*.py`, with the change in their first line.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gauntlet.registry import load
from gpu_util_callback.cli.try_ import recorded
from gpu_util_callback.diagnosis.rule import all_findings
from gpu_util_callback.diagnosis.verdict import gain_of, saves_range
from gpu_util_callback.report.screen import grouped
from gpu_util_callback.trying.changes import Change, change_of, parse
from gpu_util_callback.trying.children import ChildFailed, Children, python
from gpu_util_callback.trying.estimate import estimate
from gpu_util_callback.trying.trial import Trial, measure, sides_of

HERE = Path(__file__).parent
WHOLE = 10**9  # steps and seconds that no program has
STEPS, SECONDS, RECORDED_S = 100, 8.0, 20.0


def main() -> int:
    """Measure the selected programs; print the sums."""
    parser = argparse.ArgumentParser(prog="python -m gauntlet.trials", description=__doc__)
    parser.add_argument("--json", required=True, metavar="FILE", help="add the rows here; programs in it are left out")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these (regular expressions)")
    parser.add_argument("--pairs", type=int, default=2, help="of whole runs")
    parser.add_argument("--most", type=int, default=8, help="pairs of a trial")
    options = parser.parse_args()
    path = Path(options.json)
    rows = json.loads(path.read_text()) if path.exists() else []
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    for name in names():
        if any(row["program"] == name for row in rows):
            continue
        if not options.only or any(re.fullmatch(pattern, name) for pattern in options.only):
            row = {"program": name, **one(name, options)}
            rows.append(row)
            print(json.dumps(row), flush=True)
            path.write_text(json.dumps(rows, indent=1))
    print("\n".join(sums(rows)))
    return 0


def names() -> list[str]:
    """Return the programs of the gauntlet for a CPU, and the new ones."""
    return [
        *(name for name, one in load().items() if not one.gpu),
        *sorted(p.stem for p in HERE.glob("new_trials/*.py")),
    ]


def one(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the row of a program: promise, trial, whole runs."""
    began = time.monotonic()
    own = HERE / "new_trials" / f"{name}.py"
    command = [str(own)] if own.exists() else [str(HERE / "as_script.py"), name]
    os.environ["KERAS_BACKEND"] = "tensorflow" if own.exists() else load()[name].backend
    try:
        promise = None
        if own.exists():
            change: Change | str = parse(own.read_text().partition("\n")[0].removeprefix("# try: "))
            os.environ["KERAS_BACKEND"] = re.search(r"KERAS_BACKEND\D+(\w+)", own.read_text() + " KERAS_BACKEND=torch")[
                1
            ]
        else:
            change, promise = printed(command)
        if isinstance(change, str):
            return {"change": None, "why": change}
        trial, whole = Trial(change.words, change.line), Trial(change.words)
        sides = sides_of(change, python(command))
        with Children(STEPS, SECONDS, change.epochs) as children:
            measure(trial, sides, children, (4, options.most))
        row = {"promise": promise, **trial.to_json(), "try_s": round(time.monotonic() - began)}
        with Children(WHOLE, WHOLE, WHOLE if change.epochs else 0) as children:
            measure(whole, sides, children, (options.pairs, options.pairs))
        whole_ratio = estimate([s.ms for s in whole.first], [s.ms for s in whole.second])
        return row | {"whole": round(whole_ratio.ratio, 3), "whole_s": round(whole.took_s)}
    except (ChildFailed, OSError, ValueError, TypeError) as error:
        return {"change": None, "failed": f"{error} {getattr(error, 'output', '')}"[-600:]}


def printed(command: list[str]) -> tuple[Change | str, Any]:
    """Record a program; return the change of its first finding that can be tried, and the gain that was promised."""
    with tempfile.TemporaryDirectory(prefix="gauntlet-trial-") as folder:
        with Children(STEPS, SECONDS) as children:
            children.record(command, Path(folder), RECORDED_S)
        found = recorded(folder, None)
        why = "no recording"
        if found is not None:
            why = "no finding"
            for group in grouped(all_findings(found[1])):
                change = change_of(group.first["advice"]["code"])
                if isinstance(change, Change):
                    wall_s = found[1]["wall_s"]
                    return change, [gain_of(wall_s, bound) for bound in saves_range(group.members)]
                why = f"{group.first['title']}: {change}"
        return why, None


def sums(rows: list[dict[str, Any]]) -> list[str]:
    """Return how often trial and whole run agree."""
    tried = [row for row in rows if row.get("whole")]
    told = [row for row in tried if row["resolved"]]
    sign = [row for row in told if (row["ratio"] > 1) == (row["whole"] > 1)]
    inside = [row for row in tried if row["low"] <= row["whole"] <= row["high"]]
    return [
        f"{len(rows)} programs, {len(tried)} with a change that can be tried, {len(told)} resolved",
        f"sign of the trial that of the whole run: {len(sign)} of {len(told)}",
        f"the whole run's ratio inside the interval: {len(inside)} of {len(tried)}",
    ]


if __name__ == "__main__":
    sys.exit(main())
