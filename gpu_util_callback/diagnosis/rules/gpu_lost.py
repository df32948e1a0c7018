"""GPU lost: the driver stopped answering for a GPU in mid-run."""

from gpu_util_callback.diagnosis.evidence.gauges import HOLD_NS
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.spans import bounded
from gpu_util_callback.diagnosis.rule import Advice, Finding, Findings, Rule
from gpu_util_callback.diagnosis.thresholds import Limits

OFF_THE_BUS = 79  # NVIDIA's number of the error "GPU has fallen off the bus"
_WORDS = ("is lost", "no longer there", "fell off the bus", "reset required", "needs a reset")


class GpuLost(Rule):
    """The driver reported a GPU of this run as lost; a silent driver alone is no evidence."""

    cause = "gpu_lost"
    title = "GPU lost"
    look = "✕", "red"
    sources = ("return codes of the driver",)
    unknown = "no GPU was sampled"

    def missing(self, run: Run) -> bool:
        return not run.gpus

    def find(self, run: Run, limits: Limits) -> Findings:
        """Yield a finding for each stretch in which a GPU was lost."""
        for gpu in run.gpus:
            index = gpu["index"]
            driver_reason = _driver_message(run, index)
            spans = _lost_by_marks(run, index) or _lost_by_driver(run, index)
            if not spans and driver_reason is not None:  # only the driver's message: lost since the last sample
                bins = run.samples.get(f"gpu{index}")
                last = bins.last_ns if bins is not None else None
                start = run.start_ns if last is None else min(last, run.end_ns - 1)
                spans = [(start, run.end_ns, False)]
            # A GPU that comes and goes all day is reported in a few stretches.
            for start, end in bounded([(start, end) for start, end, _ in spans]):
                times = [back for first, _, back in spans if start <= first < end or first == start]
                yield self._finding(run, index, start, max(end, start + 1), times, driver_reason)

    def _finding(
        self, run: Run, index: int, start: int, end: int, times: list[bool], driver_reason: str | None
    ) -> Finding:
        """Return the finding about a stretch in which a GPU was lost.

        Args:
            start, end: ns since the epoch.
            times: for each loss in it, True if the GPU came back.
        """
        back = times[-1]
        return self.finding(
            title=f"gpu{index} was lost" + (" and came back" if back else ""),
            where=run.range_of(start, end),
            evidence={
                "gpu": index,
                "lost_at_s": round((start - run.start_ns) / 1e9, 1),
                "back_at_s": round((end - run.start_ns) / 1e9, 1) if back else None,
                "times": len(times) if len(times) > 1 else None,
                "driver_says": driver_reason,
            },
            advice=Advice(
                f"The driver no longer reached gpu{index}: a hardware or driver fault, not your "
                "program. Look for an Xid message; the GPU needs a reset or a reboot.",
                "sudo dmesg | grep -i xid",
            ),
            gpus=[index],
            detail=f"gpu{index}",
        )


def _driver_message(run: Run, index: int) -> str | None:
    """Return the driver's message about a GPU that is gone by now; None without one."""
    for entry in run.manifest.get("unavailable", []):
        source, reason = str(entry.get("source", "")), str(entry.get("reason", ""))
        if source.split(" ")[0] == f"gpu{index}" and any(word in reason for word in _WORDS):
            return reason
    return None


def _lost_by_driver(run: Run, index: int) -> list[tuple[int, int, bool]]:
    """Return [(start, end, False)] of a GPU that fell off the bus, by the driver's own error.

    [] if it was read since.
    """
    bins = run.samples.get(f"gpu{index}")
    at = run.errors.get(f"gpu{index}", {}).get(OFF_THE_BUS)
    if at is None or (bins is not None and bins.last_ns and bins.last_ns > at + HOLD_NS):
        return []
    return [(at, run.end_ns, False)]


def _lost_by_marks(run: Run, index: int) -> list[tuple[int, int, bool]]:
    """Return (start, end, came back) of each loss that the sampler marked, ns since the epoch."""
    bins = run.samples.get(f"gpu{index}/lost")
    if bins is None or "lost" not in bins:
        return []
    places, values = bins.means("lost")
    spans: list[tuple[int, int, bool]] = []
    lost_at_ns: int | None = None
    for start, value in zip(bins.starts(places).tolist(), values.tolist(), strict=True):
        if value >= 0.5 and lost_at_ns is None:
            lost_at_ns = start
        elif value < 0.5 and lost_at_ns is not None:
            spans.append((lost_at_ns, start, True))
            lost_at_ns = None
    if lost_at_ns is not None:
        spans.append((lost_at_ns, run.end_ns, False))
    return spans
