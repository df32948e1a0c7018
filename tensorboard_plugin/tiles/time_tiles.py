"""The lanes of a GPU's time at any zoom, and their sums."""

import numpy as np

from gpu_util_callback.recording.reader import Recording
from tensorboard_plugin import gpu_time
from tensorboard_plugin.gpu_time import LANE, Split, Totals
from tensorboard_plugin.reply_types import TimeBudget
from tensorboard_plugin.tiles.recording_tiles import Cells, RecordingTiles, TopTiles, View

UTILIZATION = ("utilization_pct",)


def _rows(cells: Cells) -> Totals:
    return Totals(cells.since_ns, cells.parts["total"], cells.parts["count"])


def _samples(tiles: TopTiles, recording: Recording, whose: str) -> list[Totals]:
    return [_rows(tiles.cells(group, UTILIZATION)) for group in gpu_time.groups_of(recording, whose)]


def whole_splits(recording: Recording) -> dict[str, Split]:
    """Return "gpu0", … (see `gpu_time.which`) -> its time by part over the whole recording; kept until that grows."""

    def make() -> dict[str, Split]:
        tiles = TopTiles(recording.top, False)
        end_ns = float(max(recording.end_ns - recording.top.origin_ns, 1))
        samples = {whose: _samples(tiles, recording, whose) for whose in gpu_time.which(recording)}
        steps = _rows(tiles.cells("steps", gpu_time.STEP_COLUMNS))
        return gpu_time.splits_of(recording, steps, samples, np.linspace(0.0, end_ns, gpu_time.CELLS + 1))

    return recording.cached("time of its lanes", make)


def time_shares(
    tiles: RecordingTiles, lane: str, view: View, other: np.ndarray
) -> tuple[list[tuple[str, np.ndarray]], bool]:
    """Return the parts of a lane of time in percent, and True if finer ones are still being read.

    Args:
        other: when the buckets of a view of steps begin, float64[count] ns.
    """
    recording, whose = tiles.recording, lane.partition(":")[2]
    whole = whole_splits(recording).get(whose)
    if whole is None:
        return [], False
    edges = view.edges.astype(np.float64)
    last = float(whole.edges[-1])
    if view.axis == "step":
        edges = np.append(other, recording.top.start_of(view.edges[-1:]))
        edges = np.fmax.accumulate(np.nan_to_num(edges, nan=last))
    cell_ns, bucket_ns, step_ns = last / gpu_time.CELLS, np.median(np.diff(edges)), last / max(1, recording.step_count)
    # About as long as steps, buckets of the thread's exact time would alias with them.
    least_ns = gpu_time.FEW * step_ns if whose == gpu_time.THREAD and gpu_time.FEW * bucket_ns > step_ns else 0.0
    if cell_ns <= gpu_time.WINDOW_NS or bucket_ns >= cell_ns / 2:  # the cells of the whole recording are fine enough
        return list(zip(gpu_time.PARTS, whole.shares(edges, least_ns), strict=True)), False
    requested: dict[str, tuple[str, ...]] = {"steps": gpu_time.STEP_COLUMNS}
    requested |= dict.fromkeys(gpu_time.groups_of(recording, whose), UTILIZATION)

    def make(cells: dict[str, Cells]) -> Split:
        inside = np.unique(np.clip(edges, 0, last))
        samples = [_rows(rows) for group, rows in cells.items() if group != "steps"]
        return gpu_time.splits_of(recording, _rows(cells["steps"]), {whose: samples}, inside)[whose]

    fine = tiles.rows(recording.revision, lane, requested, view, make)
    return list(zip(gpu_time.PARTS, (fine or whole).shares(edges, least_ns), strict=True)), fine is None


def budgets(recording: Recording) -> list[TimeBudget]:
    """Return the sums of each lane of time: the bar above it."""
    tiles = TopTiles(recording.top, False)
    framework = (recording.facts.get("framework") or {}).get("name")
    reply: list[TimeBudget] = []
    for whose, split in whole_splits(recording).items():
        seconds = split.ns.sum(axis=1) / 1e9
        reply.append(
            {
                "lane": f"{LANE}:{whose}",
                "known_s": round(float(split.known_ns.sum()) / 1e9, 6),
                "sampled_ns": gpu_time.sampled_range(_samples(tiles, recording, whose)),
                # JAX hands steps over in advance: the thread is ahead of the GPU.
                "is_estimate": framework == "jax" and whose != gpu_time.THREAD and not gpu_time.is_traced(recording),
                "parts": [
                    {"name": name, "title": title, "seconds": round(float(part), 6)}
                    for (name, title), part in zip(gpu_time.titles(whose).items(), seconds, strict=True)
                    if part > 0
                ],
            }
        )
    return reply
