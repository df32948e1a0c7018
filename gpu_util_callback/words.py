"""The vocabulary: names of causes' evidence and of the categories of time, units, numbers.

The one place for words that the terminal, the report and the tab share; the server sends them to
the tab. A cause's own name is its rule's `title`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypedDict, TypeGuard


class Category(NamedTuple):
    """A part of an account of time: its name, and what is counted in it."""

    title: str
    explanation: str


# The training thread's account.
HOST_TIME = {
    "step": Category("training steps", "in the train function, and waiting for the GPU to finish"),
    "input_wait": Category("waiting for input", "the next batch was not ready when the step asked for it"),
    "compile": Category("compiling", "tracing the model and compiling it"),
    "validation": Category("validation", "evaluation during fit, with its own input waits and callbacks"),
    "callbacks": Category("callbacks", "all callbacks except this recorder, checkpoints included"),
    "other": Category("other", "wall time in none of the other categories"),
}
# A GPU's account: the first ten are the categories of a traced step.
GPU_TIME = {
    "kernel": Category("kernels", "at least one compute kernel is running"),
    "copy_h2d": Category(
        "copies to the GPU", "exposed copies: not overlapped with compute, host to device; idle while one is made ready"
    ),
    "copy_d2h": Category("copies to the host", "exposed copies: not overlapped with compute, device to host"),
    "copy_d2d": Category("copies on the GPU", "exposed copies: not overlapped with compute, device to device"),
    "collective": Category("collectives", "communication between GPUs that is not overlapped with compute"),
    "idle_input": Category("idle: input", "idle while the host waits for the next batch"),
    "idle_launch": Category("idle: launch", "idle until the host launches the next kernel"),
    "idle_sync": Category("idle: sync", "idle around device synchronizations"),
    "idle_host": Category("idle: host", "idle with nothing launched: callbacks, Python, other work"),
    "other": Category("other", "in none of the other categories"),
    # Without a profiler window only NVML's samples tell running from idle: its utilization counts copies, too.
    "gpu_active": Category(
        "GPU active", "NVML saw a kernel or a copy running; how much of the GPU it used is not known"
    ),
    "idle": Category("idle", "neither a kernel nor a copy was running; the reason is not known"),
    "outside_steps": Category("outside steps", "validation, callbacks, compilation: outside all profiler windows"),
}
# A traced step without a GPU in the trace.
HOST_STEP = {
    "idle_host": Category("rest of the step", "ops, Python and all other work of the host"),
    "idle_input": Category("waiting for input", "the host fetches the next batch"),
}

# Name of a piece of evidence, or of the threshold it crossed: its label and its unit. "share" is a
# fraction shown as a percentage; "" a count or a text.
EVIDENCE: dict[str, tuple[str, str]] = {
    "all_stages_ms_per_batch": ("all stages, per batch", "ms"),
    "allocator_limit_gib": ("allocator limit", "GiB"),
    "allocator_peak_gib": ("peak allocator use", "GiB"),
    "allocator_peak_mib": ("peak allocator use", "MiB"),
    "allocator_used_pct": ("peak allocator use, share of its limit", "%"),
    "asked_for_mib": ("asked for", "MiB"),
    "asked_for_shape": ("asked for a tensor of shape", ""),
    "back_at_s": ("back after", "s"),
    "batches_first": ("batches in the longest", ""),
    "batches_then": ("batches in these, at most", ""),
    "busiest": ("the busiest", ""),
    "busiest_active_pct": ("busiest GPU active", "%"),
    "busiest_kernel_ms": ("kernel time of the busiest", "ms"),
    "busy_active_pct": ("GPUs in use active", "%"),
    "bytes": ("copied", "B"),
    "callback_pct": ("callbacks, share of these steps' time", "%"),
    "clock_deficit_pct": ("SM clock below normal by", "%"),
    "clock_mhz": ("SM clock here", "MHz"),
    "cpu": ("CPU", ""),
    "exchanges_per_update": ("exchanges of gradients for one update, at least", ""),
    "collective_ms_per_step": ("waiting for other GPUs, per step", "ms"),
    "between_function": ("mostly in", ""),
    "between_function_pct": ("stack samples outside steps in it", "%"),
    "between_reads_pct": ("stack samples between steps that wait for a value of JAX", "%"),
    "between_input_pct": ("stack samples between steps inside a dataset's iterator", "%"),
    "between_pct": ("between the fits, share of the script's time", "%"),
    "compile_pct": ("compiling, share of these steps' time", "%"),
    "device_gib": ("device memory", "GiB"),
    "device_memory_used_mib": ("peak memory in use on it, all processes", "MiB"),
    "driver_says": ("driver message", ""),
    "dropped_pct": ("making samples that are dropped, share of the time", "%"),
    "dropped_samples": ("samples made and dropped", ""),
    "eager_by": ("eager because of", ""),
    "longest_part": ("mostly in", ""),
    "longest_part_pct": ("of it", "%"),
    "predict_set_up_s": ("set-up of calls of predict", "s"),
    "own_python_at": ("most of it at", ""),
    "own_python_at_pct": ("of it", "%"),
    "own_python_pct": ("in Python of the program's own, or waiting for it", "%"),
    "predict_set_up_pct": ("stack samples inside the set-up of a call of predict", "%"),
    "eager_looks_pct": ("stack samples inside an eager operation", "%"),
    "eager_op_us": ("step time per eager operation", "µs"),
    "exposed_collective_pct": ("exposed communication (not overlapped with compute), share of a step", "%"),
    "exposed_copy_pct": ("exposed copies (not overlapped with compute), share of a step", "%"),
    "exposed_d2h_pct": ("exposed copies to the host, share of a step", "%"),
    "exposed_h2d_pct": ("exposed copies to the GPU, share of a step", "%"),
    "faster_at_most": ("possible speedup, at most", "×"),
    "faster_up_to": ("possible speedup here, up to", "×"),
    "framework_built_for_cuda": ("built for CUDA", ""),
    "free_mib": ("free then", "MiB"),
    "from_gpu_ms_per_step": ("copies to the host, per step", "ms"),
    "full_at_step": ("full at step, about", ""),
    "full_clock_mhz": ("normal SM clock", "MHz"),
    "full_in_s": ("full in, about", "s"),
    "gap_of_step_pct": ("that gap, share of a step", "%"),
    "gap_pct": ("gap between the busiest and the least busy GPU", "%"),
    "gb_per_s": ("transfer rate", "GB/s"),
    "gpu": ("GPU", ""),
    "gpu_active_meanwhile_pct": ("GPU active meanwhile (avg)", "%"),
    "gpu_active_pct": ("GPU active meanwhile (avg)", "%"),
    "gpu_wait_pct": ("waiting for the GPU, share of a step", "%"),
    "gpus": ("GPUs of this process", ""),
    "gpus_unused": ("unused GPUs", ""),
    "gpus_used_by_framework": ("GPUs that the framework lists", ""),
    "gpus_visible": ("GPUs on this machine", ""),
    "grown_mib": ("grown by", "MiB"),
    "held_gib": ("held now", "GiB"),
    "host_callback_pct": ("calls to the host inside the step, share of a step", "%"),
    "host_activity": ("host activity meanwhile", ""),
    "host_input_pct": ("fetching input on the host, share of a step", "%"),
    "host_used_pct": ("host memory in use at the end, share of its limit", "%"),
    "idle_host_pct": ("GPU idle with nothing launched, share of a step", "%"),
    "idle_launch_ms_per_step": ("GPU idle until the next launch, per step", "ms"),
    "idle_launch_pct": ("GPU idle until the next launch, share of a step", "%"),
    "idle_ms_per_step": ("GPU idle for no other known reason, per step", "ms"),
    "idle_sync_ms_per_step": ("GPU idle around synchronizations, per step", "ms"),
    "idle_sync_pct": ("GPU idle around synchronizations, share of a step", "%"),
    "input_cpus": ("cores that the input keeps busy", ""),
    "kernel_pct": ("kernels, share of a step", "%"),
    "largest_kernel": ("longest of those kernels", ""),
    "late_rank": ("the rank that comes last", ""),
    "least_active_pct": ("least busy GPU active", "%"),
    "least_busy": ("the least busy", ""),
    "least_busy_kernel_ms": ("kernel time of the least busy", "ms"),
    "limit_gib": ("memory limit", "GiB"),
    "limit_pct": ("memory limit, share of the device", "%"),
    "link_gb_per_s": ("link bandwidth", "GB/s"),
    "link_used_pct": ("link use, share of its bandwidth", "%"),
    "linked_kernels_pct": ("kernels with a recorded launch, share of all", "%"),
    "long_fetches_at": ("which of them were long", ""),
    "long_fetches_hold_pct": ("long fetches, share of the wait", "%"),
    "long_steps_pct": ("long steps, share of the time", "%"),
    "longest_s": ("longest", "s"),
    "looks": ("stack samples of the training thread within steps", ""),
    "lost_at_s": ("lost after", "s"),
    "lost_pct": ("lost, share of these steps' time", "%"),
    "core_wait_pct": ("threads waiting for a core, share of the time they could run", "%"),
    "mean_kernel_us": ("mean kernel duration", "µs"),
    "memory_active_pct": ("memory activity, share of that before", "%"),
    "memory_stacks": ("who held the memory, in the recording's folder", ""),
    "memory_used_pct": ("memory in use, at most", "%"),
    "ms_per_step": ("per step", "ms"),
    "once_pct": ("waiting for input, share of the run", "%"),
    "operations_per_step": ("eager operations per step, about", ""),
    "other_cpus": ("cores that the rest of the machine keeps busy", ""),
    "share_of_step_pct": ("in it, share of a step", "%"),
    "begin_pct": ("to begin a pass, share of a step", "%"),
    "kept_pct": ("backward, share of a step", "%"),
    "others_active_at_least_pct": ("other workers' GPUs active, at least", "%"),
    "others_active_pct": ("GPU active for other processes", "%"),
    "others_collective_ms_per_step": ("other workers: waiting in collectives, per step", "ms"),
    "others_memory_gib": ("memory held by other processes", "GiB"),
    "others_ms_per_step": ("other workers, per step", "ms"),
    "others_sm_active_at_most_pct": ("SM active on the other workers' GPUs, at most", "%"),
    "out_of_memory": ("out-of-memory errors", ""),
    "pageable_pct": ("copies from pageable memory, share of the copy time", "%"),
    "parameters": ("model parameters", ""),
    "pcie_link": ("PCIe link", ""),
    "peak_by_phase": ("peaks", ""),
    "peak_in": ("most was held in", ""),
    "per_sample_mib": ("each sample of a batch takes", "MiB"),
    "per_step_mib": ("growth per step", "MiB"),
    "place_in_loop": ("place in the loop", ""),
    "plain_matrix_pct": ("matrix kernels without tensor cores, share of kernel time", "%"),
    "power_pct": ("power, share of that before", "%"),
    "process_memory_mib": ("peak memory of this process on it", "MiB"),
    "process_peak_mib": ("peak memory of the process", "MiB"),
    "promise_rests_on": ("speedup estimated from", ""),
    "reserved_unused_mib": ("reserved by the allocator, but in fragments or unused", "MiB"),
    "retries": ("retried allocations", ""),
    "room_for_batch": ("room for a batch of", ""),
    "run_eagerly": ("runs eagerly", ""),
    "seconds_each": ("each took", "s"),
    "seen": ("observed", ""),
    "seen_by": ("observed by", ""),
    "set_batches": ("batches of one pass", ""),
    "set_read_times": ("passes in an epoch", ""),
    "set_samples": ("samples of one pass", ""),
    "share_of_callback_time_pct": ("share of all callbacks' time", "%"),
    "short_kernels_pct": ("short kernels, share of all", "%"),
    "short_epochs": ("epochs with hardly any data", ""),
    "slowest_stage_self_ms": ("its own time", "ms"),
    "slowdown": ("times as slow as before", ""),
    "sm_active_pct": ("SM active", "%"),
    "no_step_s": ("without a step", "s"),
    "standstill_at": ("where", ""),
    "standstill_stacks": ("stacks of all threads, in the recording's folder", ""),
    "still_no_step": ("no step since then", ""),
    "waits_for_ranks": ("waits for other workers", ""),
    "stage_ms_per_batch": ("slowest stage, per batch", "ms"),
    "stage_summed_over_threads_ms_per_batch": ("slowest stage per batch, summed over threads", "ms"),
    "step_here_without_its_wait_ms": ("step time here without its wait", "ms"),
    "step_ms": ("step time here", "ms"),
    "steps_per_epoch": ("steps per epoch, as given", ""),
    "temperature_c": ("temperature", "°C"),
    "tensor_core_pct": ("kernels on tensor cores, share of kernel time", "%"),
    "throttled_pct": ("reduced clocks, share of the time", "%"),
    "times": ("occurrences", ""),
    "to_gpu_ms_per_step": ("copies to the GPU, per step", "ms"),
    "uncorrected_errors": ("uncorrected errors during the run", ""),
    "unexplained_idle_s": ("GPU idle for no other known reason", "s"),
    "unknown_kernels_pct": ("kernels that could be either, share of kernel time", "%"),
    "unmarked_pct": ("outside steps and phases, share of the time", "%"),
    "unmarked_s": ("outside steps and phases", "s"),
    "unused_active_pct": ("unused GPUs active, at most", "%"),
    "validation_idle_pct": ("GPU idle in validation, share of these steps' time", "%"),
    "validation_pct": ("validation, share of these steps' time", "%"),
    "usual_step_ms": ("the usual step", "ms"),
    "validation_wait_pct": ("waiting for input, share of validation", "%"),
    "vram_used_pct": ("memory in use, share of the device", "%"),
    "wait_ms_per_step": ("waiting for input, per step", "ms"),
    "wait_pct": ("waiting for input, share of these steps' time", "%"),
    "waited_pct": ("waiting for it, share of the time in collectives", "%"),
    "work_gap_pct": ("gap between the busiest and the least busy, share of the busiest's time", "%"),
    "worker_active_pct": ("its GPU active", "%"),
    "worker_gap_pct": ("difference to the other workers", "%"),
    "worker_sm_active_pct": ("SM active on its GPU", "%"),
    "worker_wait_pct": ("its extra time, share of the run", "%"),
    "workers_memory_mib": ("peak memory of the worker processes", "MiB"),
    "world_size": ("processes in the job", ""),
}
_AS_NAMED = (
    "at_step batch_size callback compared_thresholds compilations compute_capability counted error fits framework "
    "grows_with held_up_by host kernels_per_step limited_by long_fetches memory planned_steps precision reason "
    "since_step slowest_stage steps steps_per_execution traced_steps where worker worker_processes workers"
)
EVIDENCE |= {name: (name.replace("_", " "), "") for name in _AS_NAMED.split()}
_SECONDS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
_BYTES = {"B": 1, "MiB": 1 << 20, "GiB": 1 << 30}
# A few lines of code are shown as one if they are no longer than this together.
_ONE_LINE = 120
# Commands that only inspect, or are one of several options: the advice's text says what to do.
_INSPECTS = re.compile(r"%timeit |top |sudo dmesg|nvidia-smi (pmon|--query|.*-q )|.* & wait$")


def ordinal(number: int) -> str:
    """Format an ordinal number: `1st`, `12th`, `1,022nd`."""
    ends = {} if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}
    return f"{number:,}{ends.get(number % 10, 'th')}"


def capitalized(text: str) -> str:
    """Return a text with its first letter as a sentence's; the rest stays ("GPU-hours")."""
    return f"{text[:1].upper()}{text[1:]}"


def duration(seconds: float) -> str:
    """Format a duration: `5 m 40 s`, `2 h 05 m`, `3.2 s`, `48 ms`."""
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms" if seconds >= 0.00995 else f"{seconds * 1e3:.2g} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes, seconds_left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {seconds_left:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} m"


def energy(joules: float) -> str:
    """Format an energy: `2.1 kWh`, `340 Wh`, `820 J`; three digits."""
    for size, unit in ((3.6e6, "kWh"), (3.6e3, "Wh")):
        if joules >= 0.1 * size:
            return f"{rate(joules / size)} {unit}"
    return f"{rate(joules)} J"


def rate(per_s: float) -> str:
    """Format a number, such as one per second, with three digits: `1,240`, `98.5`, `0.25`."""
    return f"{per_s:,.0f}" if per_s >= 99.95 else f"{per_s:.3g}"


def percent(value: float) -> str:
    """Format a percentage: `47 %`, `3.2 %` below ten, `3 %` without a fraction."""
    shown = f"{value:.1f}" if 0 < value < 9.95 else f"{value:.0f}"
    return f"{shown.removesuffix('.0')} %"


def listed(names: Sequence[str]) -> str:
    """Format names in a sentence: `a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if names[1:] else names[0]


def gpu_names(gpus: Sequence[int]) -> str:
    """List GPUs: `gpu0`, `gpu0 and gpu2`, `gpu0, gpu1, gpu2 and gpu5`; `6 GPUs` if more."""
    names = [f"gpu{gpu}" for gpu in sorted(gpus)]
    return f"{len(names)} GPUs" if len(names) > 4 else listed(names)


def workers(ranks: Iterable[int]) -> str:
    """List workers by rank: `Worker 3`, `Workers 0–3 and 7`; `12 workers` if too scattered."""
    ordered = sorted(ranks)
    ends: list[list[int]] = []
    for rank in ordered:
        if ends and rank == ends[-1][1] + 1:
            ends[-1][1] = rank
        else:
            ends.append([rank, rank])
    if len(ends) > 4:
        return f"{len(ordered):,} workers"
    names = [f"{first}–{last}" if last > first else f"{first}" for first, last in ends]
    return f"Worker{'s' if len(ordered) > 1 else ''} {listed(names)}"


def steps(start: int, end: int, of: int | None = None, noun: str = "step") -> str:
    """Format the steps from `start` up to, not including, `end`: `steps 20–59`; `all 240 steps`."""
    if of is not None and start == 0 and end >= of > 1:
        return f"all {of:,} {noun}s"
    return f"{noun}s {start:,}–{end - 1:,}" if end - start > 1 else f"{noun} {start:,}"


def times(factor: float) -> str:
    """Format a factor: `1.9×`, `4×`, `12×`; two digits, since a promise is an upper bound."""
    return f"{float(f'{factor:.2g}'):g}×"


def times_between(least: float, most: float) -> str:
    """Format a range of factors: `1.5 to 2.7×`; one factor where both print alike."""
    return between(times(least), times(most), "×")


def between(low: str, high: str, unit: str = "") -> str:
    """Format a range of printed numbers, both with their unit: `4 to 8 steps`; one number where both print alike."""
    return high if low == high else f"{low.removesuffix(unit)} to {high}"


def counted(number: int, singular: str) -> str:
    """Format a count with its noun: `1 step`, `1,200 steps`."""
    return f"{number:,} {singular}{'' if number == 1 else 's'}"


def what_to_do(advice: Mapping[str, str]) -> str:
    """Return the advice in one line: its code if that is one line with an effect, else its text."""
    lines = advice["code"].splitlines()
    if advice.get("question"):
        return advice["text"]
    if _INSPECTS.match(advice["code"]):
        return advice["text"]
    if len(lines) == 1:
        return lines[0].strip()
    bare = [line.partition("  # ")[0] for line in lines]
    in_one_line = "; ".join(bare)
    nested = any(line.startswith(" ") or line.endswith(":") for line in bare)
    return advice["text"] if nested or not lines or len(in_one_line) > _ONE_LINE else in_one_line


def stood_still(standstill: Mapping) -> str:
    """Return what is known of a time without a step: "no step for 40 s (a step takes 6 ms): …"."""
    goes_on = "end_ns" in standstill and standstill["thread"] != "lock"
    what = "validation step" if standstill.get("validation") else "step"
    usual_ms = standstill.get("step_ms")
    usual = "" if usual_ms is None else f" (a {what} takes {duration(usual_ms / 1e3)})"
    stood = duration(standstill["seconds"])
    opening = f"steps go on, after {stood} without a {what}" if goes_on else f"no {what} for {stood}"
    return f"{opening}{usual}: {waits_at(standstill)}{_seen_meanwhile(standstill)}."


def waits_at(standstill: Mapping) -> str:
    """Return where a training without a step waits: "the training thread is in `f` at a.py:3 (`get`)"."""
    ended, calls = "end_ns" in standstill, standstill.get("calls")
    if standstill["thread"] == "lock":
        after = (
            f"; right after that the training thread was in {standstill['place']}" if standstill.get("place") else ""
        )
        return f"C code held Python's lock{after or (f', in `{calls}`' if calls else '')}"
    place = standstill.get("place") or "code of a library"
    place += f" (`{calls}`)" if calls else ""
    if standstill["thread"] == "input":
        return f"training {'waited' if ended else 'waits'} for its input, in {place}"
    return f"the training thread {'was' if ended else 'is'} in {place}"


def _seen_meanwhile(standstill: Mapping) -> str:
    """Return what the GPU, workers and ranks did during a standstill, as a sentence; "" if unknown."""
    gpu_pct, states = standstill.get("gpu_active_pct"), standstill.get("workers") or {}
    parts = [] if gpu_pct is None else [f"GPU {percent(gpu_pct)} active"]
    if states:
        parts.append(f"worker processes: {', '.join(f'{count} {state}' for state, count in states.items())}")
    if standstill.get("first_rank") is not None:
        parts.append(f"worker {standstill['first_rank']} stopped first")
    return f". Meanwhile: {'; '.join(parts)}" if parts else ""


def label(name: str) -> str:
    """Return the label of a piece of evidence; its own name, in words, if it is not known."""
    return EVIDENCE[name][0] if name in EVIDENCE else name.replace("_", " ")


def unit_of(name: str) -> str:
    """Return the unit in which the values of a piece of evidence are stored."""
    return EVIDENCE[name][1] if name in EVIDENCE else ""


def quantity(name: str, value: object) -> str:
    """Format the value of a piece of evidence with its unit."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (int, float)):
        return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    unit = unit_of(name)
    if unit == "%":
        return percent(value)
    if unit == "×":
        return times(value)
    if unit in _SECONDS:
        return precise(value * _SECONDS[unit])
    if unit in _BYTES:
        return size(value * _BYTES[unit])
    return f"{_number_text(value)} {unit}".rstrip()


def precise(seconds: float) -> str:
    """Format a measured time with three digits: `23.4 ms`, `1.24 s`, `48 µs`."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= 0.9995 * size:
            shown = seconds / size
            return duration(seconds) if shown >= 99.5 and unit == "s" else f"{shown:.3g} {unit}"
    return "0 ms" if seconds == 0 else f"{seconds * 1e6:.2g} µs"


def size(count: float) -> str:
    """Format an amount of memory with three digits: `1.25 GiB`, `512 MiB`, `100 bytes`."""
    for unit_bytes, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit_bytes:
            return f"{_number_text(count / unit_bytes)} {unit}"
    return f"{_number_text(count)} bytes"


def _number_text(value: float) -> str:
    """Return a number with thousands separated, of fractions three digits."""
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


class EvidenceRow(TypedDict):
    """A piece of evidence, ready to show."""

    name: str
    label: str
    value: str
    rule: str  # the limit that it crossed, such as "≥ 5 %"; "" where nothing was compared
    bar: tuple[float, float] | None  # value and limit as numbers, for a small chart


def evidence_rows(finding: Mapping) -> list[EvidenceRow]:
    """Return what a finding rests on, ready to show, each number next to the limit it crossed."""
    rows: list[EvidenceRow] = []
    for name, value in (finding.get("evidence") or {}).items():
        if value is None:
            continue
        limit = (finding.get("threshold") or {}).get(name)
        bar = (value, limit) if _is_number(value) and _is_number(limit) else None
        rows.append(
            {
                "name": name,
                "label": label(name),
                "value": quantity(name, value),
                "rule": f"{'≥' if bar[0] >= bar[1] else '<'} {quantity(name, limit)}" if bar else "",
                "bar": bar,
            }
        )
    return rows


def same_fix(finding: Mapping) -> str:
    """Return a key that findings of one cause share if one change fixes them all.

    Their numbers vary: the GPU, the milliseconds in a text, the workers in a line of code.
    """
    advice = finding["advice"]
    wording = "|".join([finding["cause"], finding["title"], advice["code"] or advice["text"]])
    return f"{re.sub(r'[0-9][0-9.,]*', '#', wording)}|{finding.get('ranks')}"


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def culprit(finding: Mapping) -> str:
    """Return what the evidence names: the slowest stage, the callback, the layer; "" if nothing."""
    evidence = finding.get("evidence") or {}
    stage, ms = evidence.get("slowest_stage"), evidence.get("stage_ms_per_batch")
    if isinstance(stage, str) and _is_number(ms):
        return f"{stage} takes {quantity('stage_ms_per_batch', ms)} a batch"
    named = (evidence.get(name) for name in ("slowest_stage", "callback", "layer", "op"))
    return next((value for value in named if isinstance(value, str) and value != "not known which"), "")
