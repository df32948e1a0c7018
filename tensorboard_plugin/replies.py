"""The tab's replies about recordings, as plain objects for JSON."""

import math
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from gpu_util_callback.diagnosis import RULES
from gpu_util_callback.recording.problems import Problem
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.storage import is_remote, storage_for
from gpu_util_callback.words import GPU_TIME, HOST_STEP, HOST_TIME, worded
from tensorboard_plugin.lanes import lanes_of
from tensorboard_plugin.windows import windows_of

__all__ = [
    "listed", "looked_in", "problems_of", "recording_reply", "static_file", "strict",
    "vocabulary",
]  # fmt: skip

MAX_PHASES = 2000
# Titles of findings per line of the list: people search them.
MAX_TITLES = 12


def recording_reply(recording: Recording, revision: str, report: dict[str, Any]) -> dict[str, Any]:
    """Return one recording: report, extent, lanes, windows, and the phases between its steps."""
    first, last = _steps_extent(recording)
    return {
        "id": recording.id,
        "revision": revision,
        "report": {
            **report,
            "spans": [worded(one) for one in report["spans"]],
            "findings": [worded(one) for one in report["findings"]],
        },
        "extent": {
            "start_ns": recording.start_ns, "end_ns": recording.end_ns,
            "first_step": first, "last_step": last,
        },
        "lanes": lanes_of(recording),
        "phases": _phases(recording),
        "windows": windows_of(recording),
        "problems": problems_of(recording.problems),
    }  # fmt: skip


def vocabulary() -> dict[str, Any]:
    """Return the words of the tab: titles of causes; title and explanation of each category."""
    return {
        "causes": {rule.cause: rule.title for rule in RULES},
        "host": HOST_TIME,
        "gpu": GPU_TIME,
        "host_step": HOST_STEP,
    }


def listed(recording: Recording, of_run: int) -> dict[str, Any]:
    """Return one line of `./runs`. `of_run`: how many recordings the run has."""
    facts = recording.facts
    stored = recording.stored
    label = recording.run.removesuffix("/.")  # as --logdir_spec names a directory itself
    fit, rank, world = facts.get("fit_index"), facts.get("rank"), facts.get("world_size")
    trial, config = facts.get("trial"), facts.get("trial_config")
    label += "".join(f" · {one}" for one in (trial, config) if one and one not in label)
    if of_run > 1 and fit is not None:
        label += f" · fit {fit + 1}"
    if world is not None and world > 1:
        label += f" · rank {rank}"
    return {
        "id": recording.id, "run": recording.run, "session": recording.session,
        "job": facts.get("job"), "fit_index": fit, "fits": facts.get("fits"),
        "host": facts.get("host"), "rank": rank,
        "status": recording.status, "start_ns": recording.start_ns, "end_ns": recording.end_ns,
        "trial": trial, "trial_config": config,
        "steps": recording.step_count, "framework": facts.get("framework"), "label": label,
        "verdict": stored and stored.get("verdict"), **_found(stored),
        "revision": recording.revision,
    }  # fmt: skip


def _found(stored: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return causes and titles of a diagnosis, the costliest first, and the seconds lost in all."""
    findings = [*(stored or {}).get("spans", ()), *(stored or {}).get("findings", ())]
    findings.sort(key=lambda one: -(one.get("lost_s") or 0.0))
    known = [one["lost_s"] for one in findings if one.get("lost_s") is not None]
    return {
        "causes": list(dict.fromkeys(one["cause"] for one in findings)),
        "titles": list(dict.fromkeys(one["title"] for one in findings))[:MAX_TITLES],
        "lost_s": round(sum(known), 3) if known or stored else None,
    }


def looked_in(logdir: str, whole: bool) -> dict[str, Any]:
    """Return the log directory as shown to people: its full path, and whether it exists.

    Args:
        logdir: TensorBoard's argument.
        whole: True for one directory; False for a list (`--logdir_spec`), kept as it is.
    """
    if not whole or is_remote(logdir):
        return {"logdir": logdir, "logdir_exists": None}
    _, path = storage_for(logdir)
    return {"logdir": path, "logdir_exists": Path(path).is_dir()}


def problems_of(problems: Iterable[Problem]) -> list[dict[str, str]]:
    """Return problems as the tab shows them."""
    return [{"path": one.path, "message": one.message} for one in problems]


def strict(value: Any) -> Any:
    """Return `value` with plain numbers; None for what is not finite: unknown, never a string."""
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def static_file(name: str) -> bytes | None:
    """Return a file of the built frontend, None for anything else."""
    folder = resources.files("tensorboard_plugin") / "static"
    if (
        not name
        or name.startswith(".")
        or not name.replace(".", "").replace("-", "").replace("_", "").isalnum()
    ):
        return None
    try:
        return (folder / name).read_bytes()
    except (OSError, FileNotFoundError):
        return None


def _steps_extent(recording: Recording) -> tuple[int, int]:
    """Return the first and the last step's number; (0, -1) before the first step."""
    overview = recording.overview
    marks = overview.marks["step"]
    present = np.flatnonzero(marks.values >= 0)
    if not len(present) or overview.last_step < 0:
        return 0, -1
    return int(present[0]) << marks.shift, overview.last_step


def _phases(recording: Recording) -> list[dict[str, Any]]:
    phases = recording.longest_phases(MAX_PHASES)
    columns = {name: values.tolist() for name, values in phases.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
