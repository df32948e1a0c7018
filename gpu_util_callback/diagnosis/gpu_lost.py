"""GPU lost: the driver stopped answering for a GPU in mid-run."""

from collections.abc import Iterable
from typing import ClassVar

from gpu_util_callback.diagnosis._rule import MEASURED, Advice, Loss, Rule
from gpu_util_callback.diagnosis._run import Run
from gpu_util_callback.diagnosis._thresholds import Limits

__all__ = ["GpuLost"]

_WORDS = ("is lost", "no longer there", "fell off the bus", "reset required", "needs a reset")


class GpuLost(Rule):
    """The driver reported a GPU of this run as lost; a silent driver alone is no evidence."""

    cause = "gpu_lost"
    title = "A GPU was lost"
    sources = ("return codes of the driver",)
    thresholds: ClassVar = {}
    unknown = "no GPU was sampled"

    def missing(self, run: Run) -> bool:
        return not run.gpus

    def find(self, run: Run, limits: Limits) -> Iterable[Loss]:
        for place, gpu in enumerate(run.gpus):
            index = int(gpu.get("index", place))
            gone = next((entry for entry in run.fact("unavailable", default=[])
                         if str(entry.get("source", "")).split(" ")[0] == f"gpu{index}"
                         and any(word in str(entry.get("reason", "")) for word in _WORDS)),
                        None)  # fmt: skip
            if gone is None:
                continue
            bins = run.samples.get(f"gpu{index}")
            last = bins.last_ns if bins is not None else None
            start = last if last is not None else run.start_ns
            yield Loss(
                cause=self.cause,
                title=f"gpu{index} was lost",
                where=run.range_of(min(start, run.end_ns), max(run.end_ns, start + 1)),
                lost_ns=None,
                confidence=MEASURED,
                evidence={
                    "gpu": index,
                    "driver_says": str(gone.get("reason")),
                    "last_sample_at_s": None if last is None
                    else round((last - run.start_ns) / 1e9, 1),
                },
                threshold={},
                advice=Advice(
                    f"The driver no longer reaches gpu{index}: a hardware or driver fault, not "
                    "your program. Look for an Xid message; the GPU needs a reset or a reboot.",
                    "sudo dmesg | grep -i xid",
                ),
                gpus=[index],
                detail=f"gpu{index}",
            )  # fmt: skip
