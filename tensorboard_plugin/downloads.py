"""Exports of the tab: rows as CSV and JSON, and recordings in one HTML file.

Rows are streamed segment by segment. The file shows recordings as the tab does: no TensorBoard, no
network.
"""

import base64
import csv
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from gpu_util_callback.diagnosis.report_types import LogdirReport, RunReport, TotalSums
from gpu_util_callback.diagnosis.run_reports import logdir_report
from gpu_util_callback.diagnosis.survey import Row, Stored, Survey, row_of_open
from gpu_util_callback.diagnosis.total_time import total
from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.recording.discovery import Recordings
from gpu_util_callback.recording.manifest import plain
from gpu_util_callback.recording.problems import reported, unexpected
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.schema import ABSENT_INT, TABLES
from gpu_util_callback.redaction import without_secrets
from tensorboard_plugin.jobs import SessionClocks, job_reply
from tensorboard_plugin.replies import (
    listed,
    listed_row,
    recording_reply,
    runs_head,
    static_file,
    total_reply,
    window_reply,
)
from tensorboard_plugin.reply_types import TotalReply
from tensorboard_plugin.tiles.server import MAX_COUNT, MAX_LANES, TileServer

logger = logging.getLogger("gpu_util_callback")


def csv_lines(
    recording: Recording,
    table: str,
    first: int | None = None,
    last: int | None = None,
    run: str | None = None,
    header: bool = True,
) -> Iterator[str]:
    """Yield a table of a recording as CSV, a piece for each segment.

    Args:
        first, last: step numbers, both included, that select rows; None = no bound.
        run: is repeated in a first column, so that tables of several runs can follow each other; None = no such column.
        header: begin with the names of the columns.
    """
    # A name may be any text, and must not be taken for a formula.
    run_cell = [] if run is None else ["'" + run if run[:1] in "=+-@" else run]
    row_text = csv.writer(_Unkept(), lineterminator="\n").writerow
    if header:
        yield row_text(["run"] * len(run_cell) + list(TABLES[table]))
    for rows in recording.rows_of(table, first, last):
        columns = [_cells(TABLES[table][name], values) for name, values in rows.items()]
        yield "".join(row_text([*run_cell, *row]) for row in zip(*columns, strict=True))


class _Unkept:
    """A file that keeps nothing: a writer of rows into it returns each as text."""

    def write(self, text: str) -> str:
        return text


def _cells(kind: str, values: np.ndarray) -> list[object]:
    """Return the cells of a column for CSV: "" where there is no value.

    Args:
        kind: "int", "float" or "text".
    """
    if kind == "int":
        return ["" if value == ABSENT_INT else value for value in values.tolist()]
    if kind == "float":
        return ["" if value != value else value for value in values.tolist()]
    return [_harmless(value) for value in values.tolist()]


def _harmless(text: str) -> str:
    """Escape names from untrusted sources: a spreadsheet must not take one for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


# Resolution of the whole run in a file: as fine as these bytes allow, before compression.
RECORDING_BYTES = 16 << 20
ALL_BYTES = 64 << 20
FEWEST_BUCKETS = 512
MOST_BUCKETS = 65_536
# A file holds this many of a run's profiler windows, evenly chosen, with their longest kernels.
MOST_WINDOWS = 24
MOST_KERNELS = 100

# Nothing may be fetched, whatever the data; scripts and styles are those in the file itself.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)
HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>GPU Utilization</title>
<style>{style}</style>
</head>
<body>
<noscript>This report draws its charts with JavaScript, from data inside this file.</noscript>
<script type="application/json" id="gpu-utilization-data">"""
TAIL = """</script>
<script type="module">{script}</script>
</body>
</html>
"""


def html_report(
    recordings: Iterable[Recording], logdir: str = "", report: LogdirReport | None = None, shown: Sequence[str] = ()
) -> Iterator[str]:
    """Return a self-contained page in pieces: reports, spans, and lanes at a resolution that fits a file.

    Args:
        recordings: at least one; the page opens the newest.
        logdir: where they are from, as shown on the page.
        report: of these recordings, where it was made before; its problems are shown, too.
        shown: ids of those that are open at first: one, and what it is compared with.

    Raises:
        UnusableInput: there is no recording, or the tab was not built.
    """
    recordings = recordings if isinstance(recordings, Recordings) else Recordings(recordings)
    if not recordings:
        raise UnusableInput("no recording to report on: train with GpuUtilCallback first")
    clocks = SessionClocks()
    report = report or logdir_report(recordings)
    reports = {run["id"]: run for run in report["runs"]}
    problems = [*reported(recordings.problems), *report.get("problems", ())]
    judged = [recording for recording in recordings if recording.id in reports]
    room = min(RECORDING_BYTES, ALL_BYTES // len(recordings))  # bytes for each recording's lanes
    replies, included = Stored(), set()  # not all in memory
    for recording in judged:
        try:
            job, run = job_reply(recording, judged, lambda of: reports[of.id], clocks), reports[recording.id]
            replies.append(f"{_text(recording.id)}:{_text({**_recording(recording, run, room), 'job': job})}")
            included.add(recording.id)
        except Exception as error:
            problems += reported([unexpected(recording.path, error)])
        recording.release()
    names = sorted({recording.run for recording in recordings})
    rows = [listed(recording, report=reports[recording.id]) for recording in recordings if recording.id in included]
    data = {
        "runs": {**runs_head({"logdir": without_secrets(logdir)}, names, problems), "recordings": rows},
        "total": _sums(judged, reports),
        "shown": [id for id in shown if id in included],
    }
    return _page(data, replies)


def total_page(rows: Sequence[Row], report: TotalSums, logdirs: Sequence[str]) -> Iterator[str]:
    """Return a self-contained page in pieces: the tab's table of all runs and their sums, without the runs themselves.

    Args:
        rows: of the survey.
        report: their `total`.
        logdirs: where they are from, as shown.

    Raises:
        UnusableInput: the tab was not built.
    """
    several = len({row["logdir"] for row in rows}) > 1
    shown = [listed_row(row, several) for row in rows if not row["imported"]]
    runs = {**runs_head({"logdir": ", ".join(logdirs)}, [], []), "recordings": shown}
    return _page({"runs": runs, "total": total_reply(report)}, ())


def _page(data: Mapping[str, object], replies: Iterable[str]) -> Iterator[str]:
    """Return a page in pieces: the tab's script and style, with data.

    Args:
        replies: JSON of each recording, `"id":{…}`.
    """
    script, style = (static_file(name) for name in ("index.js", "style.css"))
    if script is None or style is None:
        raise UnusableInput("the tab is not built in this checkout: run `make frontend`")
    head = HEAD.format(policy=POLICY, style=style.decode().replace("</", "<\\/"))
    tail = TAIL.format(script=script.decode().replace("</script", "<\\/script").replace("<!--", "<\\!--"))
    pieces = ("," * (number > 0) + reply for number, reply in enumerate(replies))
    return chain([head, _text(data)[:-1], ',"recordings":{'], pieces, ["}}", tail])


def _text(data: object) -> str:
    """Return JSON that no page takes for a tag."""
    return json.dumps(plain(data), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _sums(recordings: Sequence[Recording], reports: Mapping[str, RunReport]) -> TotalReply | None:
    """Return the sums of several runs, as shown above their table; None for fewer than two."""
    rows = []
    for recording in recordings:
        report = reports[recording.id]
        active_pct = {str(gpu["index"]): gpu["utilization_pct"]["mean"] for gpu in report["gpus"]}
        try:
            rows.append(row_of_open(recording, {**report, "gpu_active_pct": active_pct}))
        except Exception:  # its own problems are listed; the table has its row without sums
            logger.exception("summing up %s failed", recording.path)
    return total_reply(total(Survey(Stored(rows)))) if len(rows) > 1 else None


def _recording(recording: Recording, report: RunReport, room: int) -> dict[str, object]:
    """Return a recording's replies for a page: its report, tiles of both axes, and profiler windows.

    Args:
        room: bytes that its lanes may take.
    """
    server = TileServer(patient=True)  # what it has read goes with it
    reply = recording_reply(recording, recording.revision, report)
    extent, lanes = reply["extent"], reply["lanes"]
    series_count = sum(len(lane["series"]) for lane in lanes) or 1
    # Three float32 for each bucket, series and axis.
    buckets = max(FEWEST_BUCKETS, min(MOST_BUCKETS, room // (2 * 12 * series_count)))
    lane_parts = [[lane["id"] for lane in lanes[at : at + MAX_LANES]] for at in range(0, len(lanes), MAX_LANES)]
    tiles: dict[str, dict[str, Any]] = {}
    lengths = {"step": extent["last_step"] + 1, "time": extent["end_ns"] - extent["start_ns"]}
    for axis, length in lengths.items():
        level = (max(0, length - 1) // buckets).bit_length()  # buckets of 2**level steps or ns
        count = max(1, -(-length >> level))
        blocks = (
            server.tile(recording, axis, level, first, min(MAX_COUNT, count - first), part)
            for part in lane_parts
            for first in range(0, count, MAX_COUNT)
        )
        tiles[axis] = {"level": level, "blocks": [base64.b64encode(block).decode() for block in blocks]}
    windows = reply["windows"][:: -(-len(reply["windows"]) // MOST_WINDOWS) or 1]
    traced = {str(each["window"]): window_reply(recording, each["window"], MOST_KERNELS) for each in windows}
    reply["finest"] = {"step": tiles["step"]["level"], "time": tiles["time"]["level"]}
    reply["windows"] = windows
    reply["problems"] = reported(recording.problems)  # some are found when tiles are made
    return {"reply": reply, "tiles": tiles, "windows": traced}
