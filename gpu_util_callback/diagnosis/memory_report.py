"""The memory of a run, for the report: peaks, limits and the room for a batch."""

from collections.abc import Mapping

from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.samples import allocator, batch_memory
from gpu_util_callback.recording.manifest_facts import GpuMemory, HostMemory, MemoryUse


def memory_use(run: Run) -> MemoryUse | None:
    """Return the report's `memory`, None where no memory was sampled."""
    host = _host_memory(run)
    gpus = [gpu_memory for gpu in run.used_gpus if (gpu_memory := _gpu_memory(run, gpu)) is not None]
    if host is None and not gpus:
        return None
    return {"host": host, "gpus": gpus}


def _host_memory(run: Run) -> HostMemory | None:
    """Return the peak of host memory and its limit, bytes; None if it was not measured.

    What the process holds, without memory it can give back at once, if that was sampled; else its resident memory.
    """
    held = run.highest_of("host:process_held_bytes")
    peak = run.highest_of("host:process_memory_bytes") if held is None else held
    if peak is None:
        return None
    limit, by = run.host_limit or (None, None)
    return {"peak_bytes": int(peak), "limit_bytes": limit, "limited_by": by}


def _gpu_memory(run: Run, gpu: int) -> GpuMemory | None:
    """Return a GPU's allocator and the room for larger batches, bytes; None if it reports nothing."""
    memory = allocator(run, gpu)
    if memory is None:
        return None
    batch = batch_memory(run, gpu)
    return {
        "index": gpu,
        "live_peak_bytes": int(memory.peak),
        "limit_bytes": int(memory.limit),
        "bytes_per_sample": None if batch is None else round(batch.per_sample),
        "room_for_batch": None if batch is None else batch.room,
    }


def memory_sentence(run: Mapping) -> str:
    """Return a line on the memory of a run of the report: peaks, limits, room for a batch.

    "" where nothing is known.
    """
    memory = run.get("memory")
    if not memory:
        return ""
    parts = []
    for gpu in memory["gpus"]:
        text = f"gpu{gpu['index']} {_gib_text(gpu['live_peak_bytes'], gpu['limit_bytes'])} GiB live"
        if gpu["room_for_batch"] is not None:
            text += f", room for a batch of {gpu['room_for_batch']:,}"
            text += f" ({gpu['bytes_per_sample'] / 2**20:.3g} MiB a sample)"
        parts.append(text)
    host = memory["host"]
    if host is not None:
        parts.append(f"host {_gib_text(host['peak_bytes'], host['limit_bytes'])} GiB")
    return f"Peak memory: {'; '.join(parts)}."


def _gib_text(peak: float, limit: float | None) -> str:
    """Return a peak in GiB, with its limit if there is one: "3.4 of 24".

    Args:
        peak, limit: bytes.
    """
    shown = f"{peak / 2**30:.1f}"
    if not limit:
        return shown
    is_large = limit >= 10 * 2**30
    return f"{shown} of {limit / 2**30:.{0 if is_large else 1}f}"
