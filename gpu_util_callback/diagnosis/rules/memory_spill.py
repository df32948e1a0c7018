"""Memory spill: the GPU's memory is full, and the driver keeps the rest in system memory."""

import numpy as np

from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.samples import Sampled, mean_of, sampled, shared_spans
from gpu_util_callback.diagnosis.evidence.spans import Range
from gpu_util_callback.diagnosis.rule import Advice, Findings, Rule
from gpu_util_callback.diagnosis.thresholds import BUSY_PCT, FULL_PCT, MOSTLY, MOSTLY_PCT, Limits, Threshold

SYSTEMS = ("Windows", "WSL")  # elsewhere the driver refuses instead
USED = "memory_used_bytes"


class MemorySpill(Rule):
    """A GPU's memory reaches its limit, and steps become several times slower while it seems busy.

    On Windows and WSL 2 the driver then moves allocations to system memory, and kernels fetch them
    over PCIe: the utilization stays high, while power and memory activity collapse. Both are
    compared with the same run before, when the memory was not full. A run that was full from its
    first step on shows nothing to compare with, and is not judged.
    """

    cause = "memory_spill"
    title = "GPU memory spilled into system memory"
    look = "⤓", "red"
    sources = ("the operating system", "GPU memory", "GPU utilization", "power", "memory activity")
    thresholds = {
        "memory_used_pct": FULL_PCT,
        "gpu_active_pct": Threshold(BUSY_PCT.default, "a kernel that waits for PCIe counts as busy"),
        "power_pct": Threshold(60, "of the power before: cores that wait for PCIe draw half; regulation moves a tenth"),
        "memory_active_pct": Threshold(
            MOSTLY_PCT.default, "of the memory's activity before: what waits for PCIe reads and writes less"
        ),
        "slowdown": Threshold(3, "times slower than before: 3 to 10 times was reported"),
        "min_s": Threshold(5, "memory and power are read at times of their own"),
    }
    unknown = (
        "the system is neither Windows nor WSL, or memory, utilization, power and memory activity were not all sampled"
    )

    def missing(self, run: Run) -> bool:
        columns = (USED, "utilization_pct", "power_mw", "memory_utilization_pct")
        return run.machine.get("system") not in SYSTEMS or not any(
            run.gpu(gpu).get("memory_total_bytes") and all(run.column(gpu, column) for column in columns)
            for gpu in run.used_gpus
        )

    def find(self, run: Run, limits: Limits) -> Findings:
        """Yield a finding for each stretch in which a GPU's memory is full and steps got much slower."""
        full_by_gpu = {gpu: full for gpu in run.used_gpus if (full := _full_samples(run, gpu, limits))}
        for stretch in shared_spans(full_by_gpu, enter=MOSTLY, min_s=limits["min_s"]):
            gpu = stretch.gpus[0]  # the GPU that lost most
            slowdown = _slowdown(run, stretch.where)
            if slowdown is None or slowdown < limits["slowdown"]:
                continue
            samples, mask = full_by_gpu[gpu][0], stretch.inside
            used_share = float(np.nanmax(samples.at(USED)[mask])) / run.gpu(gpu)["memory_total_bytes"]
            yield self.of_stretch(
                stretch,
                lost_ns=round(stretch.where.length_ns * (1 - 1 / slowdown)),
                evidence={
                    "memory_used_pct": round(100 * used_share, 1),
                    "gpu_active_pct": mean_of(samples.at("utilization_pct")[mask]),
                    "power_pct": round(_pct_of_before(samples, "power_mw", mask), 1),
                    "memory_active_pct": round(_pct_of_before(samples, "memory_utilization_pct", mask), 1),
                    "slowdown": round(slowdown, 1),
                },
                advice=Advice(
                    f"The memory of gpu{gpu} is full. The driver moved the rest to system memory, "
                    f"and steps are {slowdown:.1f} times as slow since. Use less memory: take smaller "
                    "batches, accumulate gradients, or close other programs. In NVIDIA's control "
                    'panel, "Prefer No Sysmem Fallback" as the "CUDA - Sysmem Fallback Policy" makes '
                    "the driver refuse with an error instead.",
                    alters_training=True,
                ),
            )


def _full_samples(run: Run, gpu: int, limits: Limits) -> tuple[Sampled, np.ndarray] | None:
    """Return a GPU's samples, and of each the ns in which its memory was full and it did little work, float64 (n,).

    None if that cannot be compared with samples before.
    """
    total = run.gpu(gpu).get("memory_total_bytes")
    samples = sampled(run, gpu, USED)
    if samples is None or not total:
        return None
    full = samples.at(USED) >= limits["memory_used_pct"] / 100 * total
    busy = samples.at("utilization_pct") >= limits["gpu_active_pct"]
    starved = full & busy
    for column, most in (("power_mw", "power_pct"), ("memory_utilization_pct", "memory_active_pct")):
        values = samples.at(column)
        before = values[~full & busy & np.isfinite(values)]
        if not len(before):
            return None
        starved &= values <= limits[most] / 100 * float(np.median(before))
    return samples, np.where(starved, samples.length_ns, 0)


def _pct_of_before(samples: Sampled, column: str, inside: np.ndarray) -> float:
    """Return the mean of a column inside, in percent of the median before."""
    values = samples.at(column)
    before = values[: int(np.argmax(inside))]
    return 100 * float(np.nanmean(values[inside])) / max(1e-9, float(np.nanmedian(before)))


def _slowdown(run: Run, where: Range) -> float | None:
    """Return how many times as long a step takes in a range as before it, without its waits.

    None without steps in both.
    """
    steps = run.steps
    inside = (steps["start_ns"] >= where.start_ns) & (steps["end_ns"] <= where.end_ns)
    before = steps["end_ns"] <= where.start_ns
    if not inside.any() or not before.any():
        return None
    paces = [steps.own_ns[of].sum() / max(1, steps["rows"][of].sum()) for of in (inside, before)]
    return float(paces[0] / paces[1]) if paces[1] > 0 else None
