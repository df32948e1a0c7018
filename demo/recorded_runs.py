"""Shows runs that were recorded on a GPU earlier beside fresh ones, named as what they are."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RECORDED = "recorded"  # the folder in the demo's logs that holds the copies


def recorded_runs(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """(run, its label) of each run that `gpu_evidence.py --record` has kept below `folder`."""
    for file in sorted(folder.glob("*/*/truth.json")):
        yield file.parent, json.loads(file.read_text())


def show_recorded(folder: Path, target: Path) -> list[str]:
    """Copy the recorded runs to where TensorBoard serves them.

    Args:
        folder: with `<set>/<scenario>/truth.json` beside each run.
        target: gets `<date>, <GPU>, driver <version>, <backend>/<scenario>`; emptied first.

    Returns: lines for people; none where nothing was recorded. Runs of the stand-in are left out:
    they were not measured.
    """
    from gpu_util_callback import read_recordings
    from gpu_util_callback.diagnosis import run_report

    shutil.rmtree(target, ignore_errors=True)
    lines: list[str] = []
    said = ""
    for run, truth in recorded_runs(folder):
        if truth["stand_in"]:
            continue
        title = (
            f"{truth['date']}, {truth['gpu']}, driver {truth['driver']}, Keras {truth['keras']} on {truth['backend']}"
        )
        if title != said:
            lines.append(f"\nRecorded earlier, not on this machine now: {title}")
            said = title
        name = re.sub(r"[^\w .,()+-]", "-", title)
        shutil.copytree(run, target / name / run.name)
        verdicts = [
            run_report(recording)["verdict"] for recording in read_recordings(run) if not recording.facts.get("source")
        ]
        lines.append(f"  {run.name}: {truth['wrong']}")
        lines += [f"    {verdict}" for verdict in verdicts]
    return lines
