"""Lanes of a recording: their order, titles, units and scales."""

import math
from typing import Any

from gpu_util_callback.recording.facts import Gpu
from gpu_util_callback.recording.reader import Recording
from tensorboard_plugin.pipeline import stage_lane

__all__ = ["lanes_of"]

Lane = dict[str, Any]

# Series of the step breakdown, from the bottom of the stack to its top: (name, column, title).
STACK = (
    ("step", "body_ns", "train function"),
    ("gpu_wait", "gpu_wait_ns", "GPU wait"),
    ("compile", "compile_ns", "compile"),
    ("callbacks", "callbacks_ns", "callbacks"),
    ("input_wait", "input_wait_ns", "input wait"),
)

# Titles of the sampled columns, in the order in which lanes are offered.
TITLES = {
    "utilization_pct": ("Kernel active", "share of time in which any kernel ran (NVML)"),
    "utilization_process_pct": ("… of this process", "kernel active, by this process's kernels"),
    "utilization_other_pct": ("… of others", "kernel active, by other processes' kernels"),
    "sm_active_pct": ("SM active", "share of multiprocessors with work (GPM)"),
    "sm_occupancy_pct": ("SM occupancy", "share of the warps that could be resident (GPM)"),
    "tensor_active_pct": ("Tensor cores active", "share of time (GPM)"),
    "dram_active_pct": ("DRAM active", "share of its bandwidth that was used (GPM)"),
    "fp64_active_pct": ("FP64 active", "share of time (GPM)"),
    "fp32_active_pct": ("FP32 active", "share of time (GPM)"),
    "fp16_active_pct": ("FP16 active", "share of time (GPM)"),
    "memory_used_bytes": ("VRAM", None),
    "memory_process_bytes": ("VRAM of this process", None),
    "memory_other_bytes": ("VRAM of other processes", None),
    "memory_reserved_bytes": ("VRAM reserved", None),
    "allocator_used_bytes": ("Allocator in use", "handed out by the framework's allocator"),
    "allocator_peak_bytes": ("Allocator peak", "since the last sample"),
    "allocator_reserved_bytes": ("Allocator reserved", "reserved from the driver"),
    "allocator_limit_bytes": ("Allocator limit", None),
    "allocator_retries": ("Retried allocations", "after freeing the cache"),
    "kernel_busy_pct": ("Kernels", "share of time in which a kernel ran, by the trace"),
    "any_busy_pct": ("Any GPU activity", "kernels or copies, by the trace"),
    "exposed_copy_pct": (
        "Exposed copies",
        "copies not overlapped with compute, by the trace",
    ),
    "memory_utilization_pct": ("Memory active", "share of time in which VRAM was read or written"),
    "power_mw": ("Power", None),
    "power_energy_mw": ("Power, by energy", "mean since the last sample, by the energy counter"),
    "temperature_c": ("Temperature", None),
    "memory_temperature_c": ("Memory temperature", None),
    "sm_clock_mhz": ("SM clock", None),
    "throttle_thermal_pct": ("Throttled, thermal", None),
    "throttle_power_pct": ("Throttled, power", None),
    "throttle_other_pct": ("Throttled, other", None),
    "pcie_rx_bytes_per_s": ("PCIe to the GPU", None),
    "pcie_tx_bytes_per_s": ("PCIe from the GPU", None),
    "nvlink_rx_bytes_per_s": ("NVLink in", None),
    "nvlink_tx_bytes_per_s": ("NVLink out", None),
    "pcie_generation": ("PCIe generation", "of the link now; lower at idle to save power"),
    "pcie_width": ("PCIe lanes", None),
    "processes_other": ("Other processes", "on this GPU"),
    "ecc_corrected": ("ECC errors corrected", "since the last reboot"),
    "ecc_uncorrected": ("ECC errors uncorrected", "since the last reboot"),
    "cpu_pct": ("CPU", "all cores together"),
    "cpu_max_pct": ("CPU, busiest core", None),
    "process_cpu_pct": ("Process CPU", "100 % is one core"),
    "iowait_pct": ("Waiting for disks", "share of time in which cores idled for I/O"),
    "process_memory_bytes": ("Process memory", None),
    "memory_available_bytes": ("Memory available", None),
    "disk_read_bytes_per_s": ("Disk read", None),
    "disk_write_bytes_per_s": ("Disk written", None),
    "process_read_bytes_per_s": ("Process disk read", None),
    "process_write_bytes_per_s": ("Process disk written", None),
    "network_rx_bytes_per_s": ("Network in", None),
    "network_tx_bytes_per_s": ("Network out", None),
}
# Drawn into one lane where there are several: (lane's title, its columns and their labels).
TOGETHER = (
    ("VRAM", {"memory_used_bytes": "device", "memory_process_bytes": "this process",
              "allocator_used_bytes": "allocator"}),
    ("Throttled", {"throttle_thermal_pct": "thermal", "throttle_power_pct": "power",
                   "throttle_other_pct": "other"}),
    ("PCIe", {"pcie_rx_bytes_per_s": "to the GPU", "pcie_tx_bytes_per_s": "from the GPU"}),
    ("NVLink", {"nvlink_rx_bytes_per_s": "in", "nvlink_tx_bytes_per_s": "out"}),
    ("CPU", {"cpu_pct": "all cores", "cpu_max_pct": "busiest core"}),
    ("Disk", {"disk_read_bytes_per_s": "read", "disk_write_bytes_per_s": "written"}),
    ("Process disk", {"process_read_bytes_per_s": "read", "process_write_bytes_per_s": "written"}),
    ("Network", {"network_rx_bytes_per_s": "in", "network_tx_bytes_per_s": "out"}),
)  # fmt: skip
# Drawn into another lane or into none: limits are the top of their lane; masks and events are no
# quantities.
HIDDEN = {"power_limit_mw", "sm_clock_max_mhz", "event_reasons", "xid", "lost"}
UNITS = (
    ("_bytes_per_s", "bytes/s"), ("_per_s", "/s"), ("_bytes", "bytes"), ("_pct", "%"),
    ("_mw", "mW"), ("_mhz", "MHz"), ("_c", "°C"), ("_ns", "ns"),
)  # fmt: skip


def lanes_of(recording: Recording) -> list[Lane]:
    """Return the recording's lanes in drawing order; of a long run without reading its segments."""
    lanes: list[Lane] = [
        {
            "id": "steps", "group": "training", "title": "Step time", "unit": "ms",
            "kind": "stack", "max": None, "note": "what the training thread did in each step",
            "series": [{"name": name, "title": title} for name, _, title in STACK],
        },
        {
            "id": "input_wait", "group": "training", "title": "Input wait", "unit": "ms",
            "kind": "band", "max": None, "note": "how much fetching the batch delayed the step",
            "series": [{"name": "input_wait", "title": "input wait"}],
        },
    ]  # fmt: skip
    stages = stage_lane(recording)
    if stages is not None:
        lanes.append(stages)
    summary = recording.summary
    order = list(TITLES)
    for group in sorted((g for g in summary if g != "steps"), key=_group_order):
        columns = [c for c in summary[group] if c not in HIDDEN and summary[group][c].get("count")]
        columns.sort(key=lambda c: (order.index(c) if c in order else len(order), c))
        lanes += [_sampled(recording, group, column, summary) for column in columns]
    return _together(_finest_first(lanes))


def _together(lanes: list[Lane]) -> list[Lane]:
    """Merge lanes of one quantity into one lane with a series each, in place of the first."""
    by_id = {lane["id"]: lane for lane in lanes}
    gone: set[int] = set()
    for title, columns in TOGETHER:
        for group in dict.fromkeys(lane["id"].rpartition(":")[0] for lane in lanes):
            parts = [by_id[f"{group}:{c}"] for c in columns if f"{group}:{c}" in by_id]
            if len(parts) < 2:
                continue
            first = parts[0]
            names = [part["id"].rpartition(":")[2] for part in parts]
            for part, name in zip(parts, names, strict=True):
                part["series"][0]["title"] = columns[name]
            tops = [part["max"] for part in parts if part["max"] is not None]
            first.update(
                id=f"{group}:{'+'.join(names)}", title=title,
                series=[part["series"][0] for part in parts],
                max=max(tops, default=None),
            )  # fmt: skip
            gone |= {id(part) for part in parts[1:]}
    return [lane for lane in lanes if id(lane) not in gone]


def _finest_first(lanes: list[Lane]) -> list[Lane]:
    """Replace polled utilization by the driver's own at full resolution, where there is both."""
    by_id = {lane["id"]: at for at, lane in enumerate(lanes)}
    for lane in list(lanes):
        group, _, column = lane["id"].partition(":")
        fine = by_id.get(f"{group}/utilization:{column}")
        if fine is None:
            continue
        polled = by_id[lane["id"]]
        lane["title"] += " (polled)"
        lane["note"] = "; ".join(filter(None, [lane["note"], "as one query each tick reads it"]))
        lane["minor"] = True
        lanes[polled], lanes[fine] = lanes[fine], lanes[polled]
    return lanes


def _group_order(group: str) -> tuple:
    head = group.split("/")[0]
    number = head[3:] if head.startswith("gpu") else ""
    if number.isdigit():
        return (0, int(number), group)
    return (1, 0, group)


def _sampled(recording: Recording, group: str, column: str, summary: dict) -> Lane:
    ending, unit = next(((end, unit) for end, unit in UNITS if column.endswith(end)), ("", ""))
    bare = column.removesuffix(ending).replace("_", " ")
    title, note = TITLES.get(column, (bare[:1].upper() + bare[1:], None))
    if not group.startswith("gpu"):
        title = title.replace("VRAM", "Memory")
    head, _, source = group.partition("/")
    if source:
        note = f"{note}; {source}" if note else source
    series: dict[str, Any] = {"name": column, "title": title.lower()}
    top = 100.0 if unit == "%" else None
    gpu = _gpu(recording, head)
    highest = summary[group][column]["max"]
    if column.startswith("memory_") and unit == "bytes" and gpu:
        total = gpu.get("memory_total_bytes")
        if total:
            series["total_bytes"] = top = total
    limit = {"power_mw": "power_limit_mw", "sm_clock_mhz": "sm_clock_max_mhz"}.get(column)
    if limit in summary[group] and summary[group][limit].get("count"):
        top = summary[group][limit]["max"]
    if top is not None and highest > top:
        # A process on several cores, a limit that was raised: never cut off (100.2 % is noise).
        top = 100.0 * math.ceil(min(highest, 1e9) / 100 - 0.01) if unit == "%" else highest
    return {
        "id": f"{group}:{column}", "group": head, "title": title, "unit": unit, "kind": "band",
        "series": [series], "max": top, "note": note,
    }  # fmt: skip


def _gpu(recording: Recording, head: str) -> Gpu | None:
    gpus = recording.facts.get("gpus") or ()
    return next((gpu for gpu in gpus if head == f"gpu{gpu.get('index')}"), None)
