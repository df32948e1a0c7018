"""Memory growth: memory is taken and never given back, until there is none left."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gpu_util_callback.diagnosis.advice import memory as memory_advice
from gpu_util_callback.diagnosis.advice.snippets import sizes_vary, steps_an_epoch
from gpu_util_callback.diagnosis.evidence.memory_tracks import Growth, MemoryTrack, by_step, grows, least_of_later
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.rule import ESTIMATED, Evidence, Finding, Findings, Rule
from gpu_util_callback.diagnosis.thresholds import FOUR_FIFTHS, MOSTLY, NOTICEABLY, Constant, Count, Limits, Threshold
from gpu_util_callback.recording.schema import FIT_GAP
from gpu_util_callback.words import duration, gpu_names

MIB = 1 << 20
HOST = ("process_held_bytes", "process_memory_bytes", "workers_memory_bytes", "container_memory_bytes")
_BUFFERS = re.compile("Cache|Shuffle")
# How the memory of a column is called in a sentence.
CALLED = {
    "process_held_bytes": "Host memory",
    "process_memory_bytes": "Host memory",
    "workers_memory_bytes": "Host memory of the worker processes",
    "container_memory_bytes": "Host memory of the container",
    "allocator_used_bytes": "GPU memory",
}
AFTER = Constant(0.15, "of the growth before an epoch's end, in steps, show whether it goes on")
MANY_COMPILATIONS = Count(4, "compilations while memory grew, and no fewer, may be why")
EXPLAINS = Constant(0.3, "more objects, tensors or operations a step, and no fewer, are kept by steps")
A_TRACE = Constant(32, "MiB, and hardly more, stay of a trace: fewer traces are not the cause")


class Forecast(NamedTuple):
    """Growth of one column, and when it meets its limit.

    Attributes:
        group, column: the track's, "host" or "gpu0/allocator", and "process_held_bytes".
        limit: in bytes, of what grows; None = unknown.
        limited_by: "the container's limit", "the machine's memory", ...
        full_step: at which it is full, None = unknown.
        full_s: seconds from the last reading until then.
        since_ns: when it began.
        ends_step: the planned end of the training, if it comes clearly before; else None.
    """

    group: str
    column: str
    growth: Growth
    limit: float | None
    limited_by: str
    full_step: int | None
    full_s: float | None
    since_ns: int
    ends_step: int | None = None


class _Room(NamedTuple):
    left: float
    by: str


class MemoryGrowth(Rule):
    """Memory grows from step to step and is not given back: neither a warm-up nor a saw-tooth.

    Growth that the planned end of the training forestalls is reported once the training is over: a
    cache that fills may have stopped until then.
    Growth within a first epoch may be a buffer that fills up, or a tooth of an epoch's saw-tooth:
    it counts once it goes on after the epoch's end, or when it has taken much of what was left.
    """

    cause = "memory_growth"
    title = "Memory grows"
    look = "◢", "red"
    forecast = True
    sources = ("the memory of the process", "of its container", "or of the framework's allocator")
    thresholds = {
        "grown_mib": Threshold(32, "allocators and caches of Python vary by some MiB for ever"),
        "taken_pct": Threshold(20, "of what was free: an epoch's growth is worth a word before the epoch's end"),
        "full_within_h": Threshold(72, "growth that takes longer ends no training"),
    }
    unknown = "no memory was sampled while steps were done"

    def missing(self, run: Run) -> bool:
        return not len(run.steps) or not any(len(track) for track in run.memory.values())

    def find(self, run: Run, limits: Limits) -> Findings:
        """Yield a finding about the host's memory that grows, and one about the GPU whose memory is full first."""
        predicted = forecasts(run, limits)
        host = next((forecast for forecast in predicted if forecast.group == "host"), None)
        if host is not None:
            yield _finding(run, host, [])
        of_gpus = [forecast for forecast in predicted if forecast is not host]
        if of_gpus:
            first = min(of_gpus, key=lambda forecast: forecast.full_s if forecast.full_s is not None else np.inf)
            gpus = sorted(_gpu_of(forecast.group) for forecast in of_gpus)
            yield _finding(run, first, gpus)


def forecasts(run: Run, limits: Limits) -> list[Forecast]:
    """Return the columns that grow, with the time at which each is full; one of the host at most."""
    return run.once(("memory growth", *limits.values()), lambda: _forecasts(run, limits))


def _forecasts(run: Run, limits: Limits) -> list[Forecast]:
    """Return the forecasts for the host's memory, by its first column that grows, and for each GPU's allocator."""
    # What the process holds counts no pages of files, which its memory does.
    without = "process_memory_bytes" if "host:process_held_bytes" in run.memory else ""
    of_host = (_forecast(run, "host", column, limits) for column in HOST if column != without)
    host = next((forecast for forecast in of_host if forecast is not None), None)
    of_gpus = (_forecast(run, f"gpu{gpu}/allocator", "allocator_used_bytes", limits) for gpu in run.used_gpus)
    return [forecast for forecast in (host, *of_gpus) if forecast is not None]


def _forecast(run: Run, group: str, column: str, limits: Limits) -> Forecast | None:
    """Return the growth of a column and when its memory is full; None if it does not grow, or fills nothing in time."""
    track = run.memory.get(f"{group}:{column}")
    if track is None:
        return None
    times = track.time_ns
    first_reading = int(np.searchsorted(times, int(run.steps["start_ns"][0])))
    times, low, high = times[first_reading:], track.low[first_reading:], track.high[first_reading:]
    if not len(times):
        return None
    steps_done = _steps_at(run, times)
    steps, low, high = by_step(steps_done, low, high)
    growth = grows(steps, low, high, limits["grown_mib"] * MIB)
    if growth is None:
        return None
    since_ns = int(np.interp(growth.onset, steps_done, times))
    room = _room(run, group, column, growth)
    room_bytes = None if room is None else max(0.0, room.left)
    taken_pct = 0.0 if room_bytes is None else 100 * growth.grown / (room_bytes + growth.grown)
    if not _grows_past_an_epoch(run, growth, steps, low) and (  # it may be a buffer of the first epoch that fills
        taken_pct < limits["taken_pct"] or _fills_a_cache(run, growth, room_bytes)
    ):
        return None
    full_step = full_s = ends_step = None
    if room_bytes is not None:
        steps_to_go = room_bytes / growth.peak_per_step
        ns_per_step = (times[-1] - since_ns) / max(1.0, steps[-1] - growth.onset)
        full_step, full_s = round(steps[-1] + steps_to_go), float(steps_to_go * ns_per_step / 1e9)
        planned = _planned(run)
        if full_s > 3600 * limits["full_within_h"] and not (planned and full_step <= planned):  # too far away
            return None
        fastest = max(growth.peak_per_step, growth.high_per_step)
        # What is full clearly later does not end this training.
        if planned is not None and steps[-1] + room_bytes / fastest > NOTICEABLY * planned:
            if not run.over:
                return None
            ends_step = planned
    limit = None if room_bytes is None else growth.level + room_bytes
    by = "" if room is None else room.by
    return Forecast(group, column, growth, limit, by, full_step, full_s, since_ns, ends_step)


def _steps_at(run: Run, times: np.ndarray) -> np.ndarray:
    """Return how many steps were done at these times."""
    blocks = run.steps
    edges = np.stack([blocks["start_ns"], blocks["end_ns"]], axis=1).ravel()
    steps_done = np.stack([blocks["first_step"], blocks["end_step"]], axis=1).ravel()
    origin = int(edges[0])
    edges = np.maximum.accumulate(edges - origin)
    return np.interp(times - origin, edges, steps_done.astype(float))


def _planned(run: Run) -> int | None:
    """Return the steps of the whole training; None if unknown, or for a series of fits."""
    if run.phases.of(FIT_GAP):
        return None
    epochs, per_epoch = run.fit.get("epochs"), steps_an_epoch(run)
    return epochs * per_epoch if epochs and per_epoch else None


def _grows_past_an_epoch(run: Run, growth: Growth, steps: np.ndarray, low: np.ndarray) -> bool:
    """Return True if memory stayed allocated at the end of an epoch, and grew on as fast after it.

    Args:
        steps, low: readings by step: float64 (n,), steps done and bytes.
    """
    never_below = least_of_later(low)
    for epochs in run.phases.of("epoch").values():
        for end in _steps_at(run, epochs["end_ns"].astype(np.int64)).tolist():
            steps_after = steps[-1] - end
            if end <= growth.onset or steps_after < AFTER * (end - growth.onset) or steps_after < 1:
                continue
            at_end, now = np.interp([end, steps[-1]], steps, never_below)
            if now - at_end >= MOSTLY * growth.per_step * steps_after:
                return True
    return False


def _fills_a_cache(run: Run, growth: Growth, room_bytes: float | None) -> bool:
    """Return True if a `cache()` of tf.data is filling up in its first epoch, and has room for the rest.

    Args:
        room_bytes: that are still free; None = unknown.
    """
    per_epoch = run.fit.get("steps_per_epoch")
    cached = any("Cache" in stage.op for stage in run.pipeline.stages(run.start_ns, run.end_ns))
    if not cached or run.phases.of("epoch") or room_bytes is None:
        return False
    return per_epoch is None or room_bytes > growth.per_step * max(0, per_epoch - run.end_step)


def _room(run: Run, group: str, column: str, growth: Growth) -> _Room | None:
    """Return how many bytes more the memory can grow, and what limits it; None = unknown."""
    if group != "host":
        return _room_on_gpu(run, group, growth)
    rooms = []

    def reached(name: str) -> float | None:
        track = run.memory.get(f"host:{name}")
        return None if track is None or not len(track) else track.of_late[1]

    limit, container_bytes = run.container_limit, reached("container_memory_bytes")
    if limit is not None:
        if container_bytes is None:  # without the container's own account: this training is most of it
            process_bytes = reached("process_held_bytes") or reached("process_memory_bytes") or 0.0
            container_bytes = process_bytes + (reached("workers_memory_bytes") or 0.0)
        rooms.append(_Room(limit - container_bytes, "the container's limit"))
    available = run.memory.get("host:memory_available_bytes")
    if available is not None and len(available):
        rooms.append(_Room(available.of_late[0], "the machine's memory"))
    space, used_space = run.machine.get("address_space_limit_bytes"), reached("process_address_space_bytes")
    if space is not None and used_space is not None and column.startswith("process"):
        rooms.append(_Room(space - used_space, "the limit of `ulimit -v`"))
    return min(rooms, default=None)


def _gpu_of(group: str) -> int:
    """Return the index of the GPU of "gpu0/allocator"."""
    return int(group.partition("/")[0][3:])


def _room_on_gpu(run: Run, group: str, growth: Growth) -> _Room | None:
    """Return how many bytes a GPU's memory can still grow, and what limits it; None = unknown."""
    index = _gpu_of(group)
    total = run.gpu(index).get("memory_total_bytes")
    limit = run.last_of(f"{group}:allocator_limit_bytes")
    peak = max(growth.level, run.last_of(f"{group}:allocator_peak_bytes") or 0.0)
    if limit:
        return _Room(limit - peak, "the allocator's limit")
    if not total:
        return None
    other_bytes = run.highest(index, "memory_other_bytes") or 0.0
    return _Room(total - other_bytes - peak, "the GPU's memory")


# ---- what grows ------------------------------------------------------------------------


def _finding(run: Run, forecast: Forecast, gpus: list[int]) -> Finding:
    """Return the finding about memory that grows, on the host or on some GPUs.

    Args:
        gpus: whose allocators grow; [] = the host's memory.
    """
    growth = forecast.growth
    mib = growth.per_step / MIB
    title = CALLED[forecast.column]
    if gpus:
        title += f" ({gpu_names(gpus)})"
    title += f" grows by {_rate_text(mib)} a step"
    if forecast.full_step is not None and forecast.full_s is not None:
        title += f": full at step {forecast.full_step:,}"
        if forecast.ends_step is not None:
            title += f", after the end of this training ({forecast.ends_step:,} steps)"
        elif not run.over:
            title += f", in about {duration(forecast.full_s)}"
    kind, observed = why(run, forecast)
    evidence: Evidence = {
        "memory": CALLED[forecast.column].lower(),
        "grown_mib": round(growth.grown / MIB, 1),
        "per_step_mib": float(f"{mib:.3g}"),
        "since_step": round(growth.onset),
        "grows_with": observed,
        "held_gib": round(growth.level / 2**30, 3),
        "limit_gib": None if forecast.limit is None else round(forecast.limit / 2**30, 3),
        "limited_by": forecast.limited_by or None,
        "full_at_step": forecast.full_step,
        "full_in_s": None if forecast.full_s is None else round(forecast.full_s, 1),
        "planned_steps": forecast.ends_step,
    }
    return MemoryGrowth.finding(
        title=title,
        confidence=ESTIMATED,
        evidence=evidence,
        advice=memory_advice.growing(run, kind, observed),
        gpus=gpus,
        detail="gpu" if gpus else "host",
    )


def _rate_text(mib: float) -> str:
    value, unit = (mib, "MiB") if mib >= 0.1 else (1024 * mib, "KiB")
    return f"{float(f'{value:.2g}'):,g} {unit}"


_Why = tuple[str, str | None]  # the kind of growth, as `advice.memory` tells it, and the observation that shows it


def why(run: Run, forecast: Forecast) -> _Why:
    """Return what grows: as `advice.memory` tells it, and the observation that shows it."""
    return next(_explanations(run, forecast), ("unknown", None))


def _explanations(run: Run, forecast: Forecast) -> Iterator[_Why]:
    """Yield what explains the growth, the surest first: its kind, as `advice.memory` has it, and what was observed."""
    if forecast.column == "workers_memory_bytes":
        workers = run.memory.get("host:workers")
        number = f"{workers.last:.0f} " if workers is not None and workers.last else ""
        yield "workers", f"{number}worker processes"
    operations = run.memory_facts.get("graph_operations_per_step") or 0.0
    if operations >= EXPLAINS:
        yield "graph", f"{operations:.3g} operations added to the graph in each step"
    yield from _compiled(run, forecast)
    buffers = _buffers(run, forecast) if forecast.column != "allocator_used_bytes" else []
    if buffers:
        yield buffers[0], f"the buffer of {buffers[0]}()"
    live = _count_per_step(run, run.memory.get(f"{forecast.group}:allocator_live_allocations"), forecast)
    if live >= EXPLAINS:
        yield "tensors", f"{live:.3g} more live tensors after each step"
    more = _count_per_step(run, run.memory.get("host:python_blocks"), forecast)
    if more >= EXPLAINS:
        yield "objects", f"{more:.3g} more Python objects after each step"


def _compiled(run: Run, forecast: Forecast) -> Iterator[_Why]:
    """Yield explanations by compiled functions: models of earlier fits, each with its own, or ever new traces."""
    facts, compilation_count = run.memory_facts, _compilations(run, forecast.since_ns)
    models_fitted, models_alive = facts.get("models_fitted", 0), facts.get("models_alive", 0)
    if models_fitted > MANY_COMPILATIONS and forecast.column != "workers_memory_bytes":
        if models_alive >= FOUR_FIFTHS * models_fitted:
            yield "models", f"{models_alive:,} of the {models_fitted:,} models that were fitted are still in memory"
        if MANY_COMPILATIONS <= compilation_count <= 2 * models_fitted:  # the last, smaller batch compiles as well
            fits = f"{models_fitted:,} models, each fitted with the same shapes"
            yield "programs", f"{compilation_count:,} compilations since then, of {fits}"
    if compilation_count >= MANY_COMPILATIONS:
        yield "traces", f"{compilation_count:,} compilations since then"
    least = max(forecast.growth.per_step / MIB / A_TRACE, MANY_COMPILATIONS / max(1, run.end_step))
    if (traces := facts.get("functions_per_step", 0.0)) >= least:
        yield "traces", f"{traces:.2g} new traces of functions in each step"
    if (compilations := facts.get("compilations_per_step", 0.0)) >= least:
        yield "traces", f"{compilations:.2g} compilations in each step"


def _buffers(run: Run, forecast: Forecast) -> list[str]:
    """Return the stages of the pipeline, "cache" or "shuffle", whose buffers may be what grows."""
    stages = run.pipeline.stages(run.start_ns, run.end_ns)
    buffers = [kind[0].lower() for stage in stages if (kind := _BUFFERS.search(stage.op))]
    shuffle_bytes = run.fit.get("input_shuffle_bytes")
    # A shuffle fills its buffer before it gives its first element, and then replaces one by another:
    # from the first step on it takes more memory only if they become larger.
    if sizes_vary(run) is False or (shuffle_bytes is not None and forecast.growth.grown > shuffle_bytes):
        buffers = [kind for kind in buffers if kind != "shuffle"]
    return buffers


def _compilations(run: Run, since_ns: int) -> int:
    """Return the number of compilations in steps since a time (ns since the epoch); 0 if hardly any came of late."""
    blocks = run.steps
    later = blocks["start_ns"] >= since_ns
    events = blocks["compile_events"][later]
    middle = len(events) // 2
    total = int(events.sum())
    return total if 4 * int(events[middle:].sum()) >= total else 0


def _count_per_step(run: Run, track: MemoryTrack | None, forecast: Forecast) -> float:
    """Return by how much a count of things rises in each step since memory began to grow; 0.0 if it was not read."""
    if track is None:
        return 0.0
    steps = _steps_at(run, track.time_ns)
    is_growing = steps >= forecast.growth.onset
    if is_growing.sum() < 2:
        return 0.0
    never_below = least_of_later(track.low)[is_growing]
    return float((never_below[-1] - never_below[0]) / max(1.0, steps[-1] - forecast.growth.onset))
