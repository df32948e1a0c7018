"""Trials against whole runs: `python -m gauntlet.trials --json FILE [--only NAME…]`.

Each program is recorded, the first remedy that can be tried is tried as `gpu-util try` does, and then the whole
program runs as it is and with it in turns. Also `gauntlet/new_trials/*.py`, with the change in their first line, and
programs of the blind sets by their set and name (`first/text_cleaning`), where `--only` has them.
A program without a finding is tried with a change that does nothing: no change may be resolved.
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
from statistics import median
from typing import Any

from gauntlet.blind.__main__ import facts
from gauntlet.registry import load
from gpu_util_callback.cli.try_ import recorded
from gpu_util_callback.diagnosis.rule import all_findings
from gpu_util_callback.diagnosis.verdict import gain_of, saves_range
from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.report.screen import grouped
from gpu_util_callback.trying.changes import Change, change_for, parse
from gpu_util_callback.trying.children import Children, python
from gpu_util_callback.trying.trial import Trial, measure, sides_of

HERE = Path(__file__).parent
NEW = {path.stem: path for path in HERE.glob("new_trials/*.py")}
APART = 1.5  # times, by which promise and trial may differ
WHOLE = 10**9  # steps and seconds that no program has
STEPS, SECONDS, RECORDED_S = 100, 8.0, 20.0
PREFETCH = "ds = ds.prefetch(tf.data.AUTOTUNE)"  # behind a `prefetch`
# Changes that do nothing, of programs without a finding; of the others a variable that nobody reads.
INERT = {
    **dict.fromkeys(("augmentation_layers", "text_ready", "series_lstm", "convolutions"), PREFETCH),
    **dict.fromkeys(("tabular_arrays_jax", "tabular_arrays_torch", "digits", "digits_torch"), "verbose=0"),
    "loader_ready": "pin_memory=False",
}


def main() -> int:
    """Measure the selected programs; print the sums."""
    parser = argparse.ArgumentParser(prog="python -m gauntlet.trials", description=__doc__)
    parser.add_argument("--json", required=True, metavar="FILE", help="add the rows here; programs in it are left out")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these (regular expressions)")
    parser.add_argument("--promises", action="store_true", help="record again for what is promised; measure nothing")
    parser.add_argument("--pairs", type=int, default=2, help="of whole runs")
    parser.add_argument("--most", type=int, default=8, help="pairs of a trial")
    options = parser.parse_args()
    path = Path(options.json)
    rows = json.loads(path.read_text()) if path.exists() else []
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    known = [*names(), *(blind_names() if options.only else [])]
    selected = [name for name in known if not options.only or any(re.fullmatch(one, name) for one in options.only)]
    for row in rows if options.promises else ():
        command = command_of(row["program"])
        if row["program"] not in NEW and row.get("whole") and row["program"] in selected:
            change, promised = planned(row["program"], command)
            print(f"{row['program']}: {change if isinstance(change, str) else change.words}", promised, flush=True)
            if not isinstance(change, str) and unnumbered(change.words) == unnumbered(row["change"]):
                row.update(promised)
                path.write_text(json.dumps(rows, indent=1))
    for name in () if options.promises else selected:
        if not any(row["program"] == name for row in rows):
            row = {"program": name, **one(name, options)}
            rows.append(row)
            print(json.dumps(row), flush=True)
            path.write_text(json.dumps(rows, indent=1))
    print("\n".join(sums(rows)))
    return 0


def unnumbered(words: str) -> str:
    """Return a change without its numbers, which differ with how busy the machine was."""
    return re.sub(r"\d+", "N", words)


def names() -> list[str]:
    """Return the programs of the gauntlet for a CPU, and the new ones."""
    return [*(name for name, one in load().items() if not one.gpu), *sorted(NEW)]


def blind_names() -> list[str]:
    """Return the programs of the blind sets that run in one process, beside no others of theirs."""
    paths = {path: facts(path) for path in HERE.glob("blind/*/*.py") if path.stem != "__init__"}
    alone = [path for path, known in paths.items() if known["USES"] != "torchrun" and not known["BUSY"]]
    return sorted(f"{path.parent.name}/{path.stem}" for path in alone)


def one(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the row of a program: promise, trial, whole runs."""
    began = time.monotonic()
    command = command_of(name)
    try:
        change, promised = planned(name, command)
        if isinstance(change, str):
            return {"change": None, "why": change}
        trial, whole = (Trial(change.words, change.line, between) for between in (bool(change.epochs), True))
        sides = sides_of(change, python(command))
        with Children(STEPS, SECONDS, change.epochs) as children:
            measure(trial, sides, children.run, (4, options.most))
        row = {**promised, **trial.to_json(), "try_s": round(time.monotonic() - began)}
        with Children(WHOLE, WHOLE, WHOLE) as children:
            measure(whole, sides, children.run, (options.pairs, options.pairs))
        return row | {"whole": round(whole.estimate.ratio, 3), "whole_s": round(whole.took_s)}
    except (UnusableInput, OSError, ValueError, TypeError) as error:
        return {"change": None, "failed": f"{error} {getattr(error, 'output', '')}"[-600:]}


def command_of(name: str) -> list[str]:
    """Return a program as a script with its arguments; sets the environment's backend to its own."""
    if "/" in name:
        script = HERE / "blind" / f"{name}.py"
        os.environ["KERAS_BACKEND"] = facts(script)["BACKEND"]
        os.environ["PYTHONPATH"] = str(HERE.parent)
        return [str(script)]
    if name not in NEW:
        os.environ["KERAS_BACKEND"] = load()[name].backend
        return [str(HERE / "as_script.py"), name]
    backend = re.search(r'KERAS_BACKEND[^=]*= "(\w+)"', NEW[name].read_text())
    os.environ["KERAS_BACKEND"] = backend[1] if backend else "torch"
    return [str(NEW[name])]


def planned(name: str, command: list[str]) -> tuple[Change | str, dict[str, Any]]:
    """Return the change to try, and what the report of a recording promises for it.

    The change is that of the first finding that can be tried, or why there is none.
    """
    if name in NEW:
        first = Path(command[0]).read_text().partition("\n")[0]
        return parse(first.removeprefix("# try: ")), {"is_healthy": name.startswith("healthy")}
    with tempfile.TemporaryDirectory(prefix="gauntlet-trial-") as folder:
        with Children(STEPS, SECONDS) as children:
            children.record(command, Path(folder), RECORDED_S)
        found = recorded(folder, None)
    if found is None:
        return "no recording", {}
    run, why = found[1], ""
    for group in grouped(all_findings(run)):
        advice = group.first["advice"]
        change = change_for(advice)
        if isinstance(change, Change):
            return change, {
                "is_healthy": False,
                "finding": group.first["title"],
                "question": advice["question"],
                "promise": [gain_of(run["wall_s"], bound) for bound in saves_range(group.members)],
                "steps_share": round(1 - run["time_s"]["compile"] / run["wall_s"], 3),
            }
        why = f"{group.first['title']}: {change}"
    if not why and "/" in name and "/quiet" not in name:
        return "no finding, though it has a cause", {}
    return why or parse(INERT.get(name, "NOBODY_READS=1 python train.py")), {"is_healthy": not why}


def of_run(row: dict[str, Any]) -> float | None:
    """Return what a trial's ratio of step times means for the recorded run, whose compiling stays; None = not known."""
    share = row.get("steps_share")
    return None if share is None else 1 / (1 - share * (1 - 1 / row["ratio"]))


def is_kept(row: dict[str, Any]) -> bool:
    """Return whether a promise has the sign of its trial, and is within 1.5 times of it."""
    least, most = row["promise"]
    gain = of_run(row) or row["ratio"]
    return gain >= 1 and least / APART <= gain and (most is None or gain <= APART * most)


def sums(rows: list[dict[str, Any]]) -> list[str]:
    """Return how often trial, whole run and promise agree, and the promises that do not."""
    tried = [row for row in rows if row.get("whole")]
    told = [row for row in tried if row["resolved"]]
    sign = [row for row in told if (row["ratio"] > 1) == (row["whole"] > 1)]
    inside = [row for row in tried if row["low"] <= row["whole"] <= row["high"]]
    healthy = [row for row in tried if row.get("is_healthy")]
    promised = [row for row in told if row.get("promise")]
    apart = [row for row in promised if not is_kept(row)]
    return [
        f"{len(rows)} programs, {len(tried)} with a change that can be tried, {len(told)} resolved",
        f"sign of the trial that of the whole run: {len(sign)} of {len(told)}",
        f"the whole run's ratio inside the interval: {len(inside)} of {len(tried)}",
        f"healthy programs without a resolved change: {sum(not row['resolved'] for row in healthy)} of {len(healthy)}",
        f"time of a trial, its recording included: {median([row['try_s'] for row in tried]):.0f} s",
        f"promises within 1.5 times of a resolved trial: {len(promised) - len(apart)} of {len(promised)}",
        *(
            f"  {row['program']}: {'asks' if row.get('question') else 'fix'} {row['change']}, "
            f"promised {row['promise']}, tried {of_run(row) or row['ratio']:.2f} of the run"
            for row in apart
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
