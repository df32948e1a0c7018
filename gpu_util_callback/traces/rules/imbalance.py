"""Imbalance: GPUs, or ranks, that share one training do unequal work."""

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from gpu_util_callback.diagnosis.finding import Advice
from gpu_util_callback.diagnosis.rules.imbalance import Imbalance as OfRuns
from gpu_util_callback.diagnosis.thresholds import Limits, Threshold
from gpu_util_callback.traces.analysis import DeviceAnalysis
from gpu_util_callback.traces.model import PS_PER_MS
from gpu_util_callback.traces.rules._rule import Finding, Scene, TraceRule

__all__ = ["Imbalance"]


class Imbalance(TraceRule):
    """The least busy GPU computes much less than the busiest one, and has to wait for it.

    Of several processes the ranks are compared, each by the mean of its GPUs.
    """

    cause = "imbalance"
    title = OfRuns.title
    sources = ("kernels of two GPUs or more",)
    thresholds: ClassVar = {
        "work_gap_pct": Threshold(20, "of the busiest one's time: equal GPUs differ by less"),
        "gap_of_step_pct": Threshold(
            5, "of the steps: a difference between GPUs that hardly work is none"
        ),
    }
    unknown = "the trace has kernels of one GPU at most"

    def missing(self, scene: Scene) -> bool:
        return len(scene.p.active) < 2 or not len(scene.p.steps)

    def find(self, scene: Scene, limits: Limits) -> Iterable[Finding]:
        busy = {d.index: _at_work(scene, d) for d in scene.p.active}
        gpus = sorted(busy, key=lambda gpu: busy[gpu])
        yield from self._unequal(
            "GPUs",
            "Give every GPU the same share of the batch.",
            {str(gpu): busy[gpu] for gpu in gpus},
            scene.total_ps,
            limits,
            gpus=gpus,
        )

    def between(self, scenes: Sequence[Scene], limits: Limits) -> Iterable[Finding]:
        busy = {}
        for number, scene in enumerate(scenes):
            work = [_at_work(scene, d) for d in scene.p.active if d.launches.kernels]
            if work and len(scene.p.steps):
                busy[number] = sum(work) / len(work)
        if len(busy) < 2:
            return
        order = sorted(busy, key=lambda number: busy[number])
        ranks = [scenes[number].p.process.rank for number in order]
        yield from self._unequal(
            "Ranks",
            "Give every rank the same share of the work.",
            {_named(scenes, number): busy[number] for number in order},
            max(scenes[number].total_ps for number in order),
            limits,
            gpus=[gpu for number in order for gpu in scenes[number].gpus],
            ranks=[rank for rank in ranks if rank is not None],
        )

    def _unequal(
        self,
        who: str,
        do: str,
        busy_ps: Mapping[str, float],
        total_ps: int,
        limits: Limits,
        *,
        gpus: Sequence[int],
        ranks: Sequence[int] = (),
    ) -> Iterable[Finding]:
        """Yield the finding, if any; `busy_ps` of each by its name, `total_ps` of steps."""
        least, most = min(busy_ps.values()), max(busy_ps.values())
        if not most:
            return
        gap, of_step = 100 * (most - least) / most, 100 * (most - least) / max(total_ps, 1)
        if gap < limits["work_gap_pct"] or of_step < limits["gap_of_step_pct"]:
            return
        yield self.finding(
            f"{who} do unequal work: {100 - gap:.0f} % between the least and the most busy",
            Advice(do),
            lost_ps=float(most - least),
            severity=of_step / 100,
            gpus=gpus,
            threshold={name: limits[name] for name in self.thresholds},
            evidence={
                "work_gap_pct": gap,
                "gap_of_step_pct": of_step,
                "kernel_ms": {name: ps / PS_PER_MS for name, ps in busy_ps.items()},
            },
            ranks=ranks,
        )


def _at_work(scene: Scene, d: DeviceAnalysis) -> int:
    """Return kernel time within the steps, ps, without collectives: waiting in one is not work."""
    return d.account.sets["kernel"].clip(*scene.window).total


def _named(scenes: Sequence[Scene], number: int) -> str:
    """Return a process by its rank, its host, or both its host and its number."""
    process = scenes[number].p.process
    if process.rank is not None:
        return f"rank {process.rank}"
    alone = sum(scene.p.process.host == process.host for scene in scenes) == 1
    return process.host if alone and process.host else f"{process.host} {number}".strip()
