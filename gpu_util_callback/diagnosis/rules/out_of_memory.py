"""Out of memory: the error, or the kill, that ended the training."""

from typing import Any

import numpy as np

from gpu_util_callback.diagnosis.advice import memory as memory_advice
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.samples import allocator, batch_memory, batch_of
from gpu_util_callback.diagnosis.rule import ESTIMATED, Evidence, Finding, Findings, Rule
from gpu_util_callback.diagnosis.rules.memory_growth import MemoryGrowth, forecasts, why
from gpu_util_callback.diagnosis.thresholds import FULL_PCT, THREE_QUARTERS, Limits, Threshold
from gpu_util_callback.recording.manifest_facts import OutOfMemoryFacts
from gpu_util_callback.words import size

MIB = 1 << 20
PHASES_SHOWN = 4  # with their peaks: those that held most


class OutOfMemory(Rule):
    """The training ended by an error of memory, or its process was killed when there was none left.

    A killed process says nothing: its recording ends without an end, its last samples show a full
    memory, or the kernel has counted a kill since.
    """

    cause = "out_of_memory"
    title = "The training ran out of memory"
    look = "☒", "red"
    blocking = True
    sources = ("the error that ended the training", "or the last samples of a killed process")
    thresholds = {
        "host_used_pct": Threshold(
            FULL_PCT.default, "of the limit in use when a process ended without a word: it was killed for memory"
        )
    }
    unknown = "training did not run out of memory"

    def missing(self, run: Run) -> bool:
        return "out_of_memory" not in run.memory_facts and not run.facts.get("lost")

    def find(self, run: Run, limits: Limits) -> Findings:
        error = run.memory_facts.get("out_of_memory")
        if error is not None:  # the framework said that memory was short
            yield _post_mortem(run, error)
        else:  # the process ended without a word
            yield from _killed(run, limits)


def _post_mortem(run: Run, error: OutOfMemoryFacts) -> Finding:
    """Return the finding about the error that ended the training for lack of memory.

    `gpu`: whose memory was short; None = the host's. Evidence of None is not known, and is left out.
    """
    gpu = error.get("gpu") if run.device == "gpu" else None  # JAX's error names no device
    where = str(error.get("where") or "the training")
    step, batch = error.get("step"), batch_of(run)
    at_step = "" if step is None else f", at step {step:,}"
    with_batch = f" with a batch of {batch:,}" if batch else ""
    title = f"Out of {'host' if gpu is None else 'GPU'} memory in {where}{at_step}{with_batch}"
    evidence: dict[str, Any] = {
        "error": error.get("error"),
        "asked_for_mib": _mib(error.get("asked_bytes")),
        "free_mib": _mib(error.get("free_bytes")),
        "where": where,
        "at_step": step,
        "batch_size": batch,
        "memory_stacks": error.get("stacks"),
        "asked_for_shape": ", ".join(error.get("shapes") or ()) or None,
    }
    fits, fragmented = None, False  # fits: the largest batch; None = the one in use does, or it is not known
    if gpu is not None:
        gpu_memory = _of_gpu(run, gpu, error, where)
        evidence |= gpu_memory
        asked_mib, unused = evidence["asked_for_mib"], gpu_memory["reserved_unused_mib"]
        # As much was reserved and not in use, but in pieces that were too small.
        fragmented = asked_mib is not None and unused is not None and unused >= asked_mib
        room = batch_memory(run, gpu)
        if room is not None:
            evidence["per_sample_mib"] = _mib(room.per_sample, 3)
            evidence["room_for_batch"] = room.room  # samples
            fits = room.room if batch and room.room < batch else None
    else:
        evidence |= _of_host(run, where)
    kind, evidence["grows_with"] = _growth(run, gpu)
    return OutOfMemory.finding(
        title=title,
        evidence=evidence,
        advice=memory_advice.growing(run, kind, evidence["grows_with"])
        if kind
        else memory_advice.smaller(run, gpu, fits, fragmented),
        gpus=[] if gpu is None else [gpu],
    )


def _growth(run: Run, gpu: int | None) -> tuple[str | None, str | None]:
    """Return the kind of what grew until memory was full, and what it grew with, as `why` does; None = nothing grew.

    Of a GPU by its number, of the host for None. A smaller batch would only fill the memory later.
    """
    group = "host" if gpu is None else f"gpu{gpu}/allocator"
    limits = {name: threshold.default for name, threshold in MemoryGrowth.thresholds.items()}
    growing = forecasts(run, limits) if len(run.steps) else []
    forecast = next((forecast for forecast in growing if forecast.group == group), None)
    return (None, None) if forecast is None else why(run, forecast)


def _mib(count: float | None, digits: int = 1) -> float | None:
    return None if count is None else round(count / MIB, digits)


def _of_gpu(run: Run, gpu: int, error: OutOfMemoryFacts, where: str) -> dict[str, Any]:
    """Return the evidence on what held the GPU's memory; None = not known.

    Args:
        where: the error happened, as "validation": names the last of the phases.
    """
    memory = allocator(run, gpu)
    other_bytes = run.highest(gpu, "memory_other_bytes")
    reserved = run.highest(gpu, "allocator_reserved_bytes")
    # Bytes that the allocator holds and no tensor uses: as the error states them, else by the peaks.
    unused: float | None = error.get("reserved_bytes")
    if unused is None and reserved is not None and memory is not None:
        unused = max(0.0, reserved - memory.peak)
    return {
        "allocator_peak_mib": None if memory is None else _mib(memory.peak),
        "allocator_limit_gib": None if memory is None else round(memory.limit / 2**30, 2),
        **_peaks(run, f"gpu{gpu}/allocator:allocator_used_bytes", where),
        "reserved_unused_mib": _mib(unused),
        "others_memory_gib": None if not other_bytes else round(other_bytes / 2**30, 2),
    }


def _of_host(run: Run, where: str) -> Evidence:
    """Return the evidence on what held the host's memory; None = not known, or of `workers_memory_mib` no workers.

    Args:
        where: the error happened, as "validation": names the last of the phases.
    """
    peak = run.highest_of("host:process_held_bytes") or run.highest_of("host:process_memory_bytes")
    limit, workers = run.host_limit, run.highest_of("host:workers_memory_bytes")
    return {
        "process_peak_mib": _mib(peak),
        "workers_memory_mib": _mib(workers) if workers else None,
        "limit_gib": None if limit is None else round(limit[0] / 2**30, 2),
        **_peaks(run, "host:process_held_bytes", where),
    }


def _peaks(run: Run, key: str, where: str) -> dict[str, str]:
    """Return the phase in which most memory was held, and the peak of each phase, as evidence; {} without samples.

    Args:
        key: "group:column" of the memory's samples, in bytes.
        where: the error happened; a validation that it ended is no phase of the recording.
    """
    track = run.memory.get(key)
    if track is None or not len(track):
        return {}
    at = track.time_ns
    phases = np.full(len(at), "training steps", object)
    # One phase a sample: later assignments are of shorter phases, within those before.
    if not len(run.steps):  # it ended before the first step
        phases[:] = "set-up"
    else:
        phases[at < int(run.steps["start_ns"][0])] = "set-up"
        ended_ns = int(run.steps["end_ns"].max())
        if where == "validation" or (len(run.validation) and int(run.validation["start_ns"][-1]) >= ended_ns):
            phases[at >= ended_ns] = "validation"
    for kind in ("callback", "checkpoint", "validation"):
        for name, group in run.phases.of(kind).items():
            if len(group) and not group.joined:  # steps lie between those that are kept joined
                last = np.searchsorted(group["start_ns"], at, side="right") - 1
                inside = (last >= 0) & (at < group["end_ns"][np.maximum(last, 0)])
                phases[inside] = kind if kind == "validation" else name
    peaks = {str(phase): float(track.high[phases == phase].max()) for phase in set(phases)}
    highest = sorted(peaks, key=lambda phase: (-peaks[phase], phase))
    peaks_shown = {"peak_in": highest[0]}
    if len(highest) > 1:
        peaks_shown["peak_by_phase"] = ", ".join(f"{size(peaks[phase])} in {phase}" for phase in highest[:PHASES_SHOWN])
    return peaks_shown


def _killed(run: Run, limits: Limits) -> Findings:
    """Yield the finding on a process that ended without a word when memory was full.

    Evidence for it: the kernel's counts of kills since ("container" or "machine" -> how many), or the last samples
    of the memory in use, %.
    """
    counted = (run.facts.get("lost") or {}).get("oom_kills") or {}
    used = _last_used_pct(run)
    share = max(used.values(), default=None)
    full = share is not None and share >= limits["host_used_pct"]
    if not counted and not full:
        return
    title = f"The process was killed at step {run.end_step:,}"
    limit = run.container_limit
    fuller = used.get("container", 100.0) >= used.get("machine", 0.0)  # than the machine
    is_near = share is not None and share >= (100 * THREE_QUARTERS if counted else limits["host_used_pct"])
    # The container's limit ended it if it was nearer than the machine's memory, and reached or nearly so.
    if limit is not None and fuller and (is_near or "container" in counted):
        title += "" if "container" in counted else ", most likely"
        title += f" by its container's limit of {size(limit)}"
    else:
        title += ", most likely for lack of host memory"
    observed = "memory was full"
    if counted:
        where = " in its container" if "container" in counted else ""
        observed = f"the kernel has counted a kill for memory{where} since"
    kind, grows_with = _growth(run, None)
    evidence: Evidence = {
        "seen": observed,
        "grows_with": grows_with,
        **_of_host(run, ""),
        "host_used_pct": None if share is None else round(share, 1),
        "batch_size": batch_of(run),
        "at_step": run.end_step,
    }
    yield OutOfMemory.finding(
        title=title,
        confidence=ESTIMATED,
        gpus=(),
        evidence=evidence,
        threshold={"host_used_pct": limits["host_used_pct"]} if full else {},
        advice=memory_advice.growing(run, kind, grows_with) if kind else memory_advice.smaller(run, None, None),
    )


def _last_used_pct(run: Run) -> dict[str, float]:
    """Return how full memory was in the last samples, %: of "container" and "machine"; one not known is absent."""
    shares = {}
    machine = run.machine
    limit, total = machine.get("memory_limit_bytes"), machine.get("memory_total_bytes")
    container = run.last_of("host:container_memory_bytes")
    available = run.last_of("host:memory_available_bytes")
    if limit and container is not None:
        shares["container"] = 100 * container / limit
    if total and available is not None:
        shares["machine"] = 100 * (1 - available / total)
    return shares
