"""Results in a notebook: a fit's summary, the report of a run, and the timeline in a frame."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.diagnosis.compare import active_pct
from gpu_util_callback.diagnosis.report_types import RunReport
from gpu_util_callback.diagnosis.rule import all_findings
from gpu_util_callback.diagnosis.run_reports import Recorded
from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.recording.discovery import read_recordings as read_recordings
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.redaction import error_text, printable
from gpu_util_callback.report.screen import grouped, strip_control
from gpu_util_callback.report.terminal import render
from gpu_util_callback.trying.changes import Change, change_for
from gpu_util_callback.trying.outcomes import store
from gpu_util_callback.trying.trial import Trial, measure, sides_of
from gpu_util_callback.words import HOST_TIME, between

NOTHING = "Nothing was recorded: fit a model with this callback first."
_WIDTH = 100  # columns of the report
_STYLE = "white-space:pre;overflow-x:auto;font:12.5px/1.4 ui-monospace,Menlo,Consolas,monospace"


class Summary(dict[str, str | float | None]):
    """The results of a run as a flat dictionary, for trackers, tables and asserts.

    Every key is always there; what is unknown is None. Shares are percentages of `wall_s`.

    Keys:
        run, status, framework: name, "ended" (or "live", "interrupted", "lost"), e.g. "tensorflow".
        recording: path of the recording; with `redact`, without the names of home and user.
        verdict: the run in one sentence.
        wall_s, steps: seconds of training; number of steps.
        step_ms_mean, step_ms_p50, step_ms_p95: step time, input wait included.
        step_pct, input_wait_pct, compile_pct, validation_pct, callbacks_pct, other_pct: where the
            time of the training thread went; together 100.
        samples_per_s: samples trained per second of training, without validation and compiling.
        mfu_pct, mfu_peak_tflops: model FLOPs utilization over the GPUs at work, and the sum of
            their peaks: dense TFLOP/s in the precision that the model computes in.
        flops_per_sample: the model's work, forward and backward, two FLOPs a multiply-add.
        gpu_utilization_pct: mean time in which NVML saw a kernel or a copy running, over the GPUs that
            the framework uses.
        gpu_memory_used_bytes: the highest use of memory on any of these.
        findings: number of findings.
        cause, title, lost_s: id and title of the one to fix first, and what it cost in all.
        advice, advice_code: what to do about it, in words and as code.
    """

    def __init__(self, run: RunReport | None, recorded: Recorded | None = None):
        super().__init__(_flat_results(run, recorded))
        self._run, self._path = run, recorded.path if recorded is not None else None

    def _repr_html_(self) -> str:
        if self._run is None:
            return f"<p>{escape(str(self['verdict']))}</p>"
        return report_cell(self._run, self._path)


def _flat_results(run: RunReport | None, recorded: Recorded | None) -> dict[str, str | float | None]:
    """Return a run's results in one level, for a table of runs; None = not known. `Summary` has the keys.

    Args:
        run: None = nothing was recorded.
        recorded: its manifest; None = it has none.
    """
    results: Mapping = run or {"verdict": NOTHING}
    step_ms, spent = results.get("step_ms") or {}, results.get("time_s") or {}
    wall = results.get("wall_s")
    mfu = results.get("mfu") or {}
    findings = all_findings(results) if "findings" in results else None
    gpus = [gpu for gpu in results.get("gpus", ()) if gpu["used_by_framework"]]
    memory = [gpu["memory_used_bytes"]["max"] for gpu in gpus]
    return {
        "run": results.get("run"),
        "status": results.get("status"),
        "framework": (results.get("framework") or {}).get("name"),
        "recording": printable(recorded.path) if recorded is not None and recorded.path else None,
        "verdict": results["verdict"],
        "wall_s": wall,
        "steps": results.get("steps"),
        **{f"step_ms_{name}": step_ms.get(name) for name in ("mean", "p50", "p95")},
        **{f"{name}_pct": round(100 * spent[name] / wall, 3) if wall and name in spent else None for name in HOST_TIME},
        "samples_per_s": results.get("samples_per_s"),
        "mfu_pct": mfu.get("pct"),
        "mfu_peak_tflops": mfu.get("peak_tflops"),
        "flops_per_sample": (results.get("work") or {}).get("flops_per_sample"),
        "gpu_utilization_pct": active_pct(results) if gpus else None,
        "gpu_memory_used_bytes": max((used_bytes for used_bytes in memory if used_bytes is not None), default=None),
        "findings": None if findings is None else len(findings),
        **_fix_first_fields(findings or ()),
    }


def _fix_first_fields(findings: Iterable[Mapping]) -> dict[str, str | float | None]:
    """Return the first finding's fields of `_flat_results`; None of each without findings."""
    groups = grouped(findings)
    if not groups:
        return dict.fromkeys(("cause", "title", "lost_s", "advice", "advice_code"))
    first = groups[0].first
    return {
        "cause": first["cause"],
        "title": first["title"],
        "lost_s": groups[0].total("lost_s"),
        "advice": first["advice"]["text"],
        "advice_code": first["advice"]["code"],
    }


def report_cell(run: RunReport, path: str | None) -> str:
    """Return as HTML what the terminal shows of a run, and how to see its timeline."""
    text = render({"runs": [run]}, _WIDTH)
    if path is not None:
        from_here = path.removeprefix(f"{Path.cwd()}{os.sep}")
        text += f"\nThe timeline: read_recordings({printable(from_here)!r})[0].show()\n"
    return f'<pre class="gpu-util-report" style="{_STYLE}">{escape(text)}</pre>'


def _recording_html(recording: Recording) -> str:
    return report_cell(run_report(recording), recording.path)


# ---- trials ---------------------------------------------------------------------------------


def try_fix(
    summary: Summary,
    program: str | None,
    model: Any,
    x: object,
    fit: dict[str, Any],
    plan: dict[str, Any],
    pairs: tuple,
) -> None:
    """Try the first change of a run's findings that can be made on copies of its model; print what came out.

    Args:
        program: as `gpu-util try` takes it, behind its options; None = it is no script.
        x: the input of `fit`.
        fit: its other arguments.
        plan: `steps` and `seconds` to time in each turn.
        pairs: the fewest and the most pairs of turns.
    """
    from gpu_util_callback.trying.copies import Copies, obstacle, same_random_numbers

    findings = [group.first for group in grouped(all_findings(summary._run or {"findings": (), "spans": ()}))]
    for place, finding in enumerate(findings):  # the first change that is not barred
        change = change_for(finding["advice"])
        obstacle_text = change if isinstance(change, str) else obstacle(change, callable(x))
        if isinstance(change, Change) and not obstacle_text:
            break
        other = _elsewhere(place, program) if isinstance(change, Change) else ""
        _say(f"{finding['title']}: cannot be tried here: {obstacle_text}{other}")
    else:  # no finding has one
        _say(f"nothing to try: {summary['verdict']}")
        return
    turns = between(*(str(2 * count) for count in pairs))
    _say(f"{finding['title']}: {finding['advice']['text']} Tries it on copies of model and input, {turns} turns.")
    trial = Trial(change.words, change.line, bool(change.epochs))
    try:
        with same_random_numbers():
            copies = Copies(model, x, fit, change, plan | {"epochs": change.epochs})
            measure(trial, sides_of(change, ()), copies.run, pairs, _say)
    except Exception as error:
        why = str(error.args[0]) if isinstance(error, UnusableInput) else error_text(error)
        _say(f"{change.words} cannot be tried here: {why}{_elsewhere(place, program)}")
        return
    _say(trial.sentence())
    if trial.estimate.resolved and trial.estimate.ratio > 1:  # it is faster: print the lines
        print("\n".join(f"  + {line}" for line in change.line.splitlines()))
    with contextlib.suppress(OSError, TypeError):  # storage that is no folder here, or none
        store(summary._path, finding["id"], trial.to_json())  # type: ignore[arg-type]


def _elsewhere(place: int, program: str | None) -> str:
    """Return how the change of a finding is tried in processes of its own."""
    script = "make a script of it (jupyter nbconvert --to script NOTEBOOK.ipynb), then " if program is None else ""
    return f". {script}gpu-util try --fix {place + 1} {program or 'NOTEBOOK.py'}"


def _say(text: str) -> None:
    print(f"gpu-util: {printable(text)}", flush=True)


# ---- the timeline ---------------------------------------------------------------------------


class Frame:
    """A page in a notebook's cell.

    Args:
        page: HTML of the page.
        height: of the frame, in pixels.
        title: for screen readers.
    """

    def __init__(self, page: str, height: int, title: str):
        self._page, self._height, self._title = page, height, title

    def _repr_html_(self) -> str:
        # Sandboxed: a recording may come from somebody else, and the page can do without the
        # notebook's origin.
        return (
            f'<iframe title="{escape(strip_control(self._title))}" sandbox="allow-scripts allow-downloads" '
            f'style="width:100%;height:{self._height}px;border:0" '
            f'srcdoc="{escape(self._page)}"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<{self._title}: shown in a notebook; elsewhere, gpu-util report --html FILE>"


# The tab keeps its view in the address; a page inside another page has no address.
_NO_ADDRESS = "<script>history.replaceState = () => {}</script>"


def timeline_frame(recording: Recording, height: int = 800) -> Frame:
    """Return the timeline of this recording, offline, as a frame for a notebook's cell.

    Args:
        height: in pixels.

    Raises:
        ValueError: the height is not a whole number of at least 1.
    """
    from tensorboard_plugin.downloads import html_report

    if isinstance(height, bool) or not isinstance(height, int) or height < 1:
        raise ValueError(f"height must be a number of pixels, got {height!r}")
    page = "".join(html_report([recording], recording.path))
    page = page.replace("<head>", f"<head>{_NO_ADDRESS}", 1)
    return Frame(page, height, f"Timeline of {recording.id}")


# A recording stands on a lower floor, which knows nothing of notebooks.
Recording._repr_html_ = _recording_html  # type: ignore[attr-defined]
Recording.show = timeline_frame
