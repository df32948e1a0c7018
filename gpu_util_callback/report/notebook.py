"""Results in a notebook: a fit's summary, a card for a run, and the timeline in a frame."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from pathlib import Path

import numpy as np

from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.diagnosis.compare import active_pct
from gpu_util_callback.diagnosis.report_types import RunReport
from gpu_util_callback.diagnosis.rule import all_findings
from gpu_util_callback.diagnosis.run_reports import Recorded
from gpu_util_callback.recording.discovery import read_recordings
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.redaction import printable
from gpu_util_callback.report.screen import UNFINISHED, Group, grouped, strip_control, where
from gpu_util_callback.words import HOST_TIME, counted, duration, percent

log = logging.getLogger("gpu_util_callback")

NOTHING = "Nothing was recorded: fit a model with this callback first."
MOST_FINDINGS = 3  # on a card
POINTS = 160  # of a sparkline


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
        super().__init__(_flat(run, recorded))
        self._run, self._path = run, recorded.path if recorded is not None else None

    def _repr_html_(self) -> str:
        if self._run is None:
            return f"<p>{escape(str(self['verdict']))}</p>"
        return card(self._run, _opened(self._path))


def _opened(path: str | None) -> Recording | None:
    """Return the recording at `path`; None where it cannot be opened."""
    try:
        return next(iter(read_recordings(path)), None) if path is not None else None
    except Exception as error:
        log.debug("gpu_util_callback: no curves: %s", error, exc_info=True)
        return None


def _flat(run: RunReport | None, recorded: Recorded | None) -> dict[str, str | float | None]:
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
        **_to_fix_first(findings or ()),
    }


def _to_fix_first(findings: Iterable[Mapping]) -> dict[str, str | float | None]:
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


def recording_card(recording: Recording) -> str:
    """Return the card of a recording, judged by today's rules."""
    return card(run_report(recording), recording)


# ---- the card -------------------------------------------------------------------------------

# Styles are inline, and colours hold on light and dark pages: notebooks strip style sheets.
_COLOURS = {
    "step": "#3b7dc4",
    "input_wait": "#e69f00",
    "compile": "#8a5fd0",
    "validation": "#b07aa1",
    "callbacks": "#8a8b1c",
    "other": "#9aa3ad",
}
_CARD = (
    "max-width:760px;border:1px solid rgba(128,128,128,.4);border-radius:8px;padding:14px 18px;"
    "margin:4px 0;font:14px/1.45 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif"
)
_DIM = "opacity:.72;font-size:12.5px"
_CODE = (
    "margin:6px 0 0;padding:8px 10px;border-radius:6px;background:rgba(128,128,128,.16);"
    "color:inherit;white-space:pre-wrap;font:12.5px/1.4 ui-monospace,Menlo,Consolas,monospace"
)


def card(run: RunReport, recording: Recording | None = None) -> str:
    """Return HTML of one run: verdict, where the time went, findings with what to do.

    Args:
        run: of the report.
        recording: its recording, for the curve of step times.
    """
    parts = [
        f'<div style="font-weight:600;font-size:16px">{_text(run["verdict"])}</div>',
        f'<div style="{_DIM}">{_text(_subtitle(run))}</div>',
        _account(run),
        *(_curves(recording) if recording is not None else ()),
        *_findings(run),
    ]
    if recording is not None:
        path = _text(repr(printable(_from_here(recording.path))))
        parts.append(
            f'<div style="{_DIM};margin-top:10px">The timeline: <code>read_recordings({path})[0].show()</code></div>'
        )
    return f'<div class="gpu-util-card" style="{_CARD}">{"".join(parts)}</div>'


def _from_here(path: str) -> str:
    """Return a path below the working directory relative to it; others as they are."""
    working_folder = str(Path.cwd())
    return path[len(working_folder) + 1 :] if path.startswith(working_folder + os.sep) else path


def _text(text: object) -> str:
    """Return text for HTML; names in a recording may hold any character."""
    return escape(strip_control(str(text)))


def _subtitle(run: RunReport) -> str:
    parts = [run["run"] if run["run"] != "." else "this log directory"]
    parts.append(counted(run["steps"], "step"))
    if run["wall_s"]:
        parts.append(duration(run["wall_s"]))
    median = run["step_ms"]["p50"]
    if median is not None:
        parts.append(f"median {median:.3g} ms a step")
    for gpu in run["gpus"]:
        name = f"gpu{gpu['index']} {gpu.get('name') or ''}".strip()
        mean = gpu["utilization_pct"]["mean"]
        if not gpu["used_by_framework"]:
            parts.append(f"{name} not used by the framework")
        elif mean is not None:
            parts.append(f"{name} GPU active {percent(mean)}")
    if run["status"] != "ended":
        parts.append(UNFINISHED.get(run["status"], run["status"]))
    return " · ".join(parts)


def _account(run: RunReport) -> str:
    """Return the bar of the training thread's time, with its legend."""
    spent, wall = run["time_s"], run["wall_s"]
    shares = {name: max(0.0, 100 * spent.get(name, 0) / wall) for name in HOST_TIME} if wall else {}
    shares = {name: share for name, share in shares.items() if share >= 0.05}
    if not shares:
        return ""
    bar = "".join(
        f'<span title="{_text(HOST_TIME[name].title)}" style="display:inline-block;height:14px;'
        f'width:{share:.2f}%;background:{_COLOURS[name]}"></span>'
        for name, share in shares.items()
    )
    legend = "".join(
        f'<span style="margin-right:14px;white-space:nowrap"><span style="display:inline-block;'
        f'width:9px;height:9px;background:{_COLOURS[name]}"></span> '
        f"{_text(HOST_TIME[name].title)} {percent(share)}</span>"
        for name, share in shares.items()
    )
    return (
        '<div style="margin-top:12px;white-space:nowrap;overflow:hidden;border-radius:3px;'
        f'line-height:0;font-size:0">{bar}</div><div style="font-size:12.5px">{legend}</div>'
    )


def _curves(recording: Recording) -> Iterator[str]:
    """Yield the curves of step time and of each GPU's use over the run."""
    try:
        yield from _step_curve(recording)
        for gpu in recording.facts.get("gpus") or ():
            if gpu.get("used_by_framework"):
                yield from _gpu_curve(recording, f"gpu{gpu['index']}")
    except Exception as error:  # a damaged top; the card has the rest
        log.debug("gpu_util_callback: no curve: %s", error, exc_info=True)


def _means(recording: Recording, group: str, column: str) -> np.ndarray | None:
    """Return a column's means over the run's time in `POINTS` buckets; None if it was not recorded.

    NaN in a bucket without a value.
    """
    top = recording.top
    length = recording.end_ns - top.origin_ns
    fold = top.steps if group == "steps" else top.samples(group)
    if fold is None or column not in fold.columns("count") or length <= 0:
        return None
    count, total = fold.of("count", column).astype(float), fold.of("total", column)
    middle = fold.of("first", "start" if group == "steps" else "time")
    bucket = np.clip(middle / length * POINTS, 0, POINTS - 1).astype(int)
    counts = np.bincount(bucket, count, POINTS)
    totals = np.bincount(bucket, total, POINTS)
    means = np.divide(totals, counts, out=np.full(POINTS, np.nan), where=counts > 0)
    return means if counts.any() else None


def _filled(means: np.ndarray, took: np.ndarray, length_ns: int) -> np.ndarray:
    """Return means with those of long steps in all buckets that the steps take."""
    filled = means.copy()
    for place in np.flatnonzero(np.isfinite(took)):
        until = place + max(1, round(took[place] / length_ns * POINTS))
        following = slice(place + 1, min(until, POINTS))
        filled[following] = np.where(np.isnan(took[following]), means[place], filled[following])
    return filled


def _step_curve(recording: Recording) -> Iterator[str]:
    took = _means(recording, "steps", "duration_ns")
    if took is None:
        return
    length = recording.end_ns - recording.top.origin_ns
    # A compilation, as long as thousands of steps, would flatten them; the account has it.
    compiled = _means(recording, "steps", "compile_ns")
    ran = took if compiled is None else np.maximum(took - np.nan_to_num(compiled), 0)
    top = 1.25 * float(np.nanquantile(ran, 0.98))
    waited = _means(recording, "steps", "input_wait_ns")
    layers = [(_filled(ran, took, length), _COLOURS["step"])]
    caption = "step time without compiling"
    if waited is not None:
        layers.append((_filled(waited, took, length), _COLOURS["input_wait"]))
        caption += ", of it waiting for input"
    yield _curve(layers, top, f"{caption}; the top is {duration(top / 1e9)}")


def _gpu_curve(recording: Recording, gpu: str) -> Iterator[str]:
    for group in (gpu, f"{gpu}/utilization"):
        used = _means(recording, group, "utilization_pct")
        if used is not None:
            yield _curve([(used, "#1b9e8a")], 100, f"{gpu}: GPU active, 0 to 100 %")
            return


def _curve(layers: Iterable[tuple[np.ndarray, str]], top: float, caption: str) -> str:
    """Return areas over the run's time as an image of 40 pixels' height, with a caption."""
    areas = "".join(f'<path fill="{colour}" d="{_area(values, top)}"></path>' for values, colour in layers)
    return (
        f'<svg viewBox="0 0 {POINTS} 40" preserveAspectRatio="none" role="img" '
        f'aria-label="{_text(caption)}" style="display:block;width:100%;height:40px;margin-top:12px">'
        f'{areas}</svg><div style="{_DIM}">{_text(caption)}</div>'
    )


def _area(values: np.ndarray, top: float) -> str:
    width = POINTS / len(values)
    heights = 40 * np.clip(np.nan_to_num(values) / max(top, 1e-9), 0, 1)
    steps_ = "".join(f"V{40 - height:.1f}H{(place + 1) * width:.1f}" for place, height in enumerate(heights))
    return f"M0 40{steps_}V40Z"


def _findings(run: RunReport) -> Iterator[str]:
    groups = grouped(all_findings(run))
    for group in groups[:MOST_FINDINGS]:
        finding, advice = group.first, group.first["advice"]
        code = f'<pre style="{_CODE}">{_lines(advice["code"])}</pre>' if advice["code"] else ""
        yield (
            '<div style="margin-top:12px;padding-left:10px;border-left:3px solid #e69f00">'
            f'<b>{_text(finding["title"])}</b> <span style="{_DIM}">{_text(_about(group, run))}'
            f"</span><div>{_text(advice['text'])}</div>{code}</div>"
        )
    more = len(groups) - MOST_FINDINGS
    if more > 0:
        yield f'<div style="{_DIM};margin-top:10px">… and {more} more in the timeline</div>'


def _about(group: Group, run: RunReport) -> str:
    """Return where the findings of a group lie, and what they cost together."""
    parts = list(filter(None, [where(group, run)]))
    lost = group.total("lost_s")
    parts.append("cost unknown" if lost is None else f"lost {duration(lost)}")
    if group.first["confidence"] == "estimated":
        parts.append("estimate")
    return ", ".join(parts)


def _lines(code: str) -> str:
    return "\n".join(_text(line) for line in code.splitlines())


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
            f'<iframe title="{_text(self._title)}" sandbox="allow-scripts allow-downloads" '
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

    Raises: ValueError for a height that is none.
    """
    from tensorboard_plugin.downloads import html_report

    if isinstance(height, bool) or not isinstance(height, int) or height < 1:
        raise ValueError(f"height must be a number of pixels, got {height!r}")
    page = html_report([recording], recording.path)
    page = page.replace("<head>", f"<head>{_NO_ADDRESS}", 1)
    return Frame(page, height, f"Timeline of {recording.id}")


# A recording stands on a lower floor, which knows nothing of notebooks.
Recording._repr_html_ = recording_card  # type: ignore[attr-defined]
Recording.show = timeline_frame
