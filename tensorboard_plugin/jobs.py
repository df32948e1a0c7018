"""A recording compared with the other workers of its job and with the fit before it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np

from gpu_util_callback.diagnosis.compare import add_promises
from gpu_util_callback.diagnosis.report_types import RunReport, Since
from gpu_util_callback.diagnosis.sessions import session_findings, session_verdict, traced_workers
from gpu_util_callback.recording.alignment import Clocks, session_clocks
from gpu_util_callback.recording.manifest_facts import Claim
from gpu_util_callback.recording.problems import unexpected
from gpu_util_callback.recording.reader import Recording
from tensorboard_plugin.replies import rows_of, worded
from tensorboard_plugin.reply_types import JobReply, WaitRow, Waits, WorkerClock
from tensorboard_plugin.tiles.recording_tiles import Recent, TopTiles, View

# Beyond this many workers the reports of all would take too long: they are judged by what each
# stored about itself, without a comparison. Their list is complete anyway.
MAX_WORKERS = 256
# How many earlier fits of the same model are searched for one that trained.
MAX_EARLIER = 8
# Sessions whose clocks are kept.
MAX_SESSIONS = 64
# Cells of a worker's row of waits, and of all rows together.
CELLS = 128
ALL_CELLS = 4096


class SessionClocks:
    """Clocks of sessions, estimated again only when their recordings have grown considerably."""

    def __init__(self) -> None:
        self._clocks_by_workers: Recent[tuple[int, Clocks]] = Recent(MAX_SESSIONS)

    def __call__(self, workers: Sequence[Recording]) -> Clocks:
        """Return the clocks of the recordings of one session, kept until they have a quarter more steps."""
        key = tuple(worker.id for worker in workers)
        steps = sum(worker.step_count for worker in workers)
        before, clocks = self._clocks_by_workers.get(key) or (-1, None)
        if clocks is None or not before <= steps <= 1.25 * before:
            clocks = session_clocks(workers)
            self._clocks_by_workers.put(key, (steps, clocks))
        return clocks


def job_reply(
    recording: Recording,
    recordings: Sequence[Recording],
    report_of: Callable[[Recording], RunReport],
    clocks_of: Callable[[Sequence[Recording]], Clocks] = session_clocks,
) -> JobReply:
    """Return what only a comparison with other recordings shows.

    Args:
        recordings: all of the log directory, oldest first.
        report_of: the report of one of them, as `run_report` makes it.
        clocks_of: the clocks of the recordings of one session.
    """
    workers = [worker for worker in recordings if worker.session == recording.session]
    workers.sort(key=lambda worker: (worker.facts.get("rank") or 0, worker.id))
    findings: list[Claim] = []
    reports: list[RunReport] = []
    verdict = None
    clocks = Clocks(None, (), ())
    if 2 <= len(workers) <= MAX_WORKERS:  # compared by their reports
        reports = _reports(workers, report_of)
        findings = session_findings(reports)
        verdict = session_verdict(reports, findings)
        clocks = clocks_of(workers)
    elif len(workers) > MAX_WORKERS:  # too many: by what each stored
        verdict = session_verdict([run for worker in workers if (run := _as_stored(worker))], [])
    return {
        "workers": [
            {
                "id": worker.id,
                "rank": worker.facts.get("rank"),
                "host": worker.facts.get("host"),
                "status": worker.status,
                "steps": worker.step_count,
                "end_ns": worker.end_ns,
                "clock": _clock(worker, clocks),
            }
            for worker in workers
        ],
        "verdict": verdict,
        "findings": [worded(finding) for finding in findings],
        "rows": rows_of(findings),
        "waits": _waits(findings[0], workers, recording, reports) if findings else None,
        "since": _since(recording, recordings, report_of),
    }


def _waits(
    finding: Claim, workers: Sequence[Recording], shown: Recording, reports: Sequence[RunReport]
) -> Waits | None:
    """Return the share of the steps in which each worker waits for the one that holds the others back.

    Where the cause was measured in each step (its input, its callbacks), the others wait as much longer as it takes
    there; where profiler windows showed it, they give one share for all steps.

    Args:
        finding: its id ends with the part of the step that is slow, its `ranks` are that worker.
        shown: the recording on whose clock the steps' times are given, ns from its start.
        reports: of the workers.

    Returns:
        The edges of cells of steps with their times, and a row of shares (0-1) for each worker; None where only the
        GPUs' counters show who is late.
    """
    part, (rank,) = finding["id"].rpartition(".")[2], finding["ranks"]
    tops = [TopTiles(worker.top, live=False) for worker in workers]
    end_step = max(tiles.top.step_range[1] + 1 for tiles in tops)
    if part in ("input_wait", "callbacks"):
        edges, rows = _measured_waits(f"{part}_ns", rank, workers, tops, end_step)
    elif "traced_steps" in finding["evidence"]:
        edges = np.unique(np.linspace(0, end_step, CELLS + 1, dtype=np.int64))
        rows = _traced_waits(finding["evidence"], rank, reports, len(edges) - 1)
    else:
        return None
    times = np.nan_to_num(shown.top.start_of(edges), nan=shown.end_ns - shown.start_ns)
    return {
        "rank": rank,
        "part": part,
        "confidence": finding["confidence"],
        "steps": edges.tolist(),
        "ns": times.tolist(),
        "rows": rows,
    }


def _measured_waits(
    column: str, rank: int, workers: Sequence[Recording], tops: Sequence[TopTiles], end: int
) -> tuple[np.ndarray, list[WaitRow]]:
    """Return the edges of cells of steps, and each worker's row of shares (0-1) of them.

    The late worker's are its own time in `column`, the others' what it takes longer than theirs.

    Args:
        column: of the steps, ns of the slow part.
        rank: of the late worker.
        end: the first step that no worker has reached.
    """
    cells = min(CELLS, ALL_CELLS // len(workers))
    # Steps in a cell, as a power of two.
    level = max((end // cells).bit_length(), *(tiles.level_of("steps", "step") for tiles in tops))
    view = View("step", level, 0, -(-end >> level))
    means = [tiles.range("steps", ("duration_ns", column), view)[2] for tiles in tops]
    late_ns = next(own for (_, own), worker in zip(means, workers, strict=True) if worker.facts.get("rank") == rank)
    rows: list[WaitRow] = []
    for (duration, own), worker in zip(means, workers, strict=True):
        of = worker.facts.get("rank")
        shares = np.clip((late_ns if of == rank else late_ns - own) / duration, 0, 1)
        rows.append({"rank": of, "shares": [None if np.isnan(share) else round(float(share), 3) for share in shares]})
    return np.minimum(view.edges, end), rows


def _traced_waits(evidence: Mapping[str, Any], rank: int, reports: Sequence[RunReport], cells: int) -> list[WaitRow]:
    """Return each worker's row of shares (0-1) of its traced steps, the same in all cells.

    A worker waits in collectives longer than the late one; the late one's row is the work that makes it late.
    """
    late_ms = evidence["collective_ms_per_step"]
    longer_ms = evidence["ms_per_step"] - evidence["others_ms_per_step"]
    rows: list[WaitRow] = []
    for worker_rank, gpu in traced_workers(reports).items():
        waited_ms = longer_ms if worker_rank == rank else max(0.0, gpu["collective_ms"] - late_ms)
        rows.append({"rank": worker_rank, "shares": [round(waited_ms / gpu["step_ms"], 3)] * cells})
    return rows


def _as_stored(recording: Recording) -> Mapping[str, object] | None:
    """Return what a verdict on the job needs of a worker, as its recorder stored it; None without a diagnosis."""
    stored = recording.stored
    if not stored or "verdict" not in stored:
        return None
    facts = {"id": recording.id, "rank": recording.facts.get("rank"), "wall_s": recording.account.get("wall_s")}
    return facts | {name: stored[name] for name in ("verdict", "findings", "spans")}


def _reports(recordings: Iterable[Recording], report_of: Callable[[Recording], RunReport]) -> list[RunReport]:
    """Return the recordings' reports; recordings without one are left out."""
    reports = []
    for recording in recordings:
        try:
            reports.append(report_of(recording))
        except Exception as error:
            unexpected(recording.path, error)  # it is reported where it is shown itself
    return reports


def _clock(recording: Recording, clocks: Clocks) -> WorkerClock | None:
    """Return how a worker's clock differs from the reference worker's; None if that is not known."""
    offset = clocks.of(recording.id)
    if offset is None:
        return None
    text = clocks.sentence(offset)
    return {"offset_ns": offset.offset_ns, "drift": offset.drift, "at_ns": offset.at_ns, "text": text}


def _since(
    recording: Recording, recordings: Sequence[Recording], report_of: Callable[[Recording], RunReport]
) -> Since | None:
    """Return the promise of the newest comparable run before this one, and its outcome; None without one."""
    key = _model(recording)
    if key is None:
        return None
    earlier = [other for other in recordings if other.start_ns < recording.start_ns and _model(other) == key]
    earlier = [other for other in earlier if other.session != recording.session]
    # Copies: reports are kept for other requests.
    runs = [copy(report) for report in [*_reports(earlier[-MAX_EARLIER:], report_of), report_of(recording)]]
    add_promises(runs)
    return runs[-1]["since"]


def _model(recording: Recording) -> tuple | None:
    """Return what is cheap to compare before reports: the model's size and the worker's rank."""
    parameters = (recording.facts.get("model") or {}).get("parameters")
    return None if parameters is None else (parameters, recording.facts.get("rank"))
