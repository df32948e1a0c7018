"""Imbalance: GPUs of one training do unequal work, and the others wait for the slowest."""

from collections.abc import Mapping, Sequence

import numpy as np

from gpu_util_callback.diagnosis.advice.snippets import batch_code
from gpu_util_callback.diagnosis.evidence.gauges import SampleBins
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.samples import Sampled, sampled
from gpu_util_callback.diagnosis.evidence.spans import Range
from gpu_util_callback.diagnosis.evidence.windows import traced_gpus
from gpu_util_callback.diagnosis.rule import ESTIMATED, Advice, Findings, Rule, significant
from gpu_util_callback.diagnosis.thresholds import (
    A_FIFTH_PCT,
    MATTERS_PCT,
    MIN_S,
    MOSTLY,
    NO_WORK_PCT,
    SIGNIFICANT,
    Constant,
    Limits,
    Threshold,
    chosen,
)
from gpu_util_callback.words import capitalized

SURELY = Constant(
    3.5,
    "standard errors apart: of many GPUs that idle in turns, sampled at other moments, two "
    "are three apart somewhere in a run",
)
UTILIZATION = "utilization_pct"


class Imbalance(Rule):
    """The most and the least busy GPU of one process are far apart for a while.

    In a trace the least busy GPU computes much less than the busiest one in its steps, collectives
    left out; of several processes the ranks are compared, each by the mean of its GPUs.

    GPUs without any work are `gpus_unused`; workers of a job are compared in the session.
    """

    cause = "imbalance"
    title = "Unequal work"
    look = "≠", "teal"
    comparing = True
    sources = ("GPU utilization of each GPU",)
    thresholds = {
        "gap_pct": Threshold(25, "utilization scatters by 5-10 points between equal GPUs; 25 are a quarter idle"),
        "least_active_pct": NO_WORK_PCT,
        "min_s": MIN_S,
        "worker_wait_pct": Threshold(
            MATTERS_PCT.default, "of the step: waits of ranks of one job differ by less without a cause"
        ),
        **SIGNIFICANT,
        "work_gap_pct": Threshold(
            A_FIFTH_PCT.default, "in a trace: of the busiest one's time; the work of equal GPUs differs by less"
        ),
        "gap_of_step_pct": Threshold(
            MATTERS_PCT.default, "in a trace: of the steps; between GPUs that hardly work there is no difference"
        ),
    }
    unknown = "fewer than two GPUs of this process were sampled"
    unknown_in_trace = "the trace has kernels of one GPU at most"

    def missing(self, run: Run) -> bool:
        if run.source is not None:
            return len(run.source["gpus"]) < 2 or not len(run.steps)
        sampled_gpus = [gpu for gpu in run.used_gpus if run.column(gpu, UTILIZATION)]
        return len(sampled_gpus) < 2

    def find(self, run: Run, limits: Limits) -> Findings:
        if run.source is not None:
            return self._at_work(run, limits)
        return significant(self._spans(run, limits), run.present_ns, limits)

    # -- of traces -------------------------------------------------------------------------------

    def _at_work(self, run: Run, limits: Limits) -> Findings:
        """Yield the finding about GPUs whose kernels take unequally long."""
        busy = {gpu: run.traced.gpus[gpu].ns["kernel"] for gpu in traced_gpus(run)}
        gpus = sorted(busy, key=lambda gpu: busy[gpu])
        yield from self._unequal(
            "GPU", {_with_replica(run, gpu): busy[gpu] for gpu in gpus}, run.steps.total("duration_ns"), limits, gpus
        )

    def between(self, runs: Sequence[Run], limits: Limits) -> Findings:
        """Yield the finding about processes whose GPUs' kernels take unequally long, each by its GPUs' mean."""
        busy = {}
        for number, run in enumerate(runs):
            kernels = {gpu for gpu, _ in run.traced.kernels}
            work = [run.traced.gpus[gpu].ns["kernel"] for gpu in traced_gpus(run) if gpu in kernels]
            if work and len(run.steps):
                busy[number] = sum(work) / len(work)
        if len(busy) < 2:
            return
        order = sorted(busy, key=lambda number: busy[number])
        yield from self._unequal(
            "rank",
            {_process_name(runs, number): busy[number] for number in order},
            max(runs[number].steps.total("duration_ns") for number in order),
            limits,
            [gpu for number in order for gpu in traced_gpus(runs[number])],
            [int(rank) for number in order if (rank := runs[number].manifest.get("rank")) is not None],
        )

    def _unequal(
        self,
        who: str,
        busy_ns: Mapping[str, float],
        total_ns: int,
        limits: Limits,
        gpus: list[int],
        ranks: list[int] | None = None,
    ) -> Findings:
        """Yield the finding about unequal work, if it is large enough.

        Args:
            who: "GPU" or "rank".
            busy_ns: name of each -> ns of its kernels.
            total_ns: of the steps.
        """
        ends = (choose(busy_ns.items(), key=lambda item: item[1]) for choose in (min, max))
        (least_busy, least), (busiest, most) = ends
        if not most:
            return
        gap, of_step = 100 * (most - least) / most, 100 * (most - least) / max(total_ns, 1)
        if gap < limits["work_gap_pct"] or of_step < limits["gap_of_step_pct"]:
            return
        yield self.finding(
            title=f"{capitalized(who)}s do unequal work: {100 - gap:.0f} % between the least and the most busy",
            lost_ns=round(most - least),
            evidence={
                "work_gap_pct": gap,
                "gap_of_step_pct": of_step,
                "busiest": busiest,
                "busiest_kernel_ms": most / 1e6,
                "least_busy": least_busy,
                "least_busy_kernel_ms": least / 1e6,
            },
            advice=Advice(f"Give every {who} the same share of the batch."),
            gpus=gpus,
            severity=of_step / 100,
            ranks=ranks,
        )

    # -- of recordings ---------------------------------------------------------------------------

    def _spans(self, run: Run, limits: Limits) -> Findings:
        """Yield a finding for each stretch in which one GPU works clearly more than another."""
        series = {
            gpu: samples
            for gpu, bins in _samples_by_gpu(run).items()
            if (samples := sampled(run, gpu, UTILIZATION, bins)) is not None
        }
        if len(series) < 2:
            return
        first = next(iter(series.values()))  # its samples' times are those of all
        use_at = {gpu: _at_times(first.start_ns, samples) for gpu, samples in series.items()}
        gpus = [gpu for gpu in series if use_at[gpu].mean() >= limits["least_active_pct"]]
        if len(gpus) < 2:
            return
        use = np.stack([use_at[gpu] for gpu in gpus])  # percent, float[gpus, samples]
        # A mean over two seconds, and at least five samples: single samples scatter, and those of
        # GPUs that work in turns differ.
        count = max(5, round(2e9 / max(1.0, float(np.median(first.length_ns)))))
        smooth = np.stack([_moving_average(row, count) for row in use])
        busiest_pct = smooth.max(axis=0)
        uneven = busiest_pct - smooth.min(axis=0) >= limits["gap_pct"]
        # The others idle while the busiest one works.
        lost = np.where(uneven, first.length_ns * (busiest_pct - smooth.mean(axis=0)) / 100, 0)
        uneven_ns = np.where(uneven, first.length_ns, 0)
        # GPUs that work in turns are apart now and then.
        for where, mask in first.spans(uneven_ns, enter=MOSTLY, min_s=limits["min_s"]):
            lost_ns = int(lost[mask].sum())
            spread = use[:, mask].mean(axis=1)
            if float(spread.max() - spread.min()) < limits["gap_pct"]:
                continue
            least, busiest = int(spread.argmin()), int(spread.argmax())
            if not _differ_beyond_scatter(use[busiest, mask] - use[least, mask], where, limits["gap_pct"]):
                continue
            low, high = gpus[least], gpus[busiest]
            text = (
                f"{_with_replica(run, high)} is active {spread.max():.0f} % of the time, {_with_replica(run, low)} "
                f"{spread.min():.0f} %, and every step waits for the busiest. Give each the same share of the batch, "
                "and keep other work off the busiest."
            )
            code = _equal_shares(run, len(gpus))
            yield self.finding(
                where=where,
                lost_ns=lost_ns,
                confidence=ESTIMATED,
                evidence={
                    "gap_pct": round(float(spread.max() - spread.min()), 1),
                    "busiest": _with_replica(run, high),
                    "busiest_active_pct": round(float(spread.max()), 1),
                    "least_busy": _with_replica(run, low),
                    "least_active_pct": round(float(spread.min()), 1),
                },
                threshold=chosen(limits, "gap_pct"),
                advice=Advice(text, code, alters_training=bool(code), otherwise=Advice(text)),
                gpus=sorted(gpus, key=lambda gpu: gpu != high),
            )


def _process_name(runs: Sequence[Run], number: int) -> str:
    """Return the name of a process: its rank, else its host, with a number where several run on it."""
    run = runs[number]
    rank, host = run.manifest.get("rank"), str(run.manifest.get("host", ""))
    if rank is not None:
        return f"rank {rank}"
    alone = sum(str(other_run.manifest.get("host", "")) == host for other_run in runs) == 1
    return host if alone and host else f"{host} {number}".strip()


def _equal_shares(run: Run, gpus: int) -> str:
    """Return the line for a batch size that the GPUs divide; "" if they do, or the framework divides otherwise."""
    size = run.fit.get("batch_size")
    if run.framework != "tensorflow":
        return ""
    if size is None:
        return f"batch_size += -batch_size % {gpus}  # to the next multiple of {gpus}"
    return batch_code(run, -(-size // gpus) * gpus) if size % gpus else ""


def _differ_beyond_scatter(apart: np.ndarray, where: Range, gap_pct: float) -> bool:
    """Return True if two GPUs' samples, taken together, differ by more than their scatter explains.

    Samples of one second are one value: the driver's utilization is a mean over up to that.

    Args:
        apart: float64 (n,), difference of the utilizations in percentage points.
    """
    seconds = where.length_ns / 1e9
    count = max(1.0, min(float(len(apart)), seconds))
    mean, scatter = float(apart.mean()), float(apart.std())
    return mean >= gap_pct and mean >= SURELY * scatter / np.sqrt(count)


def _with_replica(run: Run, gpu: int) -> str:
    """Return a GPU's name, with its model replica if the framework reports it."""
    replica_numbers = [replica.get("replica") for replica in run.fit.get("replicas", []) if replica.get("gpu") == gpu]
    return f"gpu{gpu} (replica {replica_numbers[0]})" if replica_numbers else f"gpu{gpu}"


def _samples_by_gpu(run: Run) -> dict[int, SampleBins]:
    """Return GPU -> its samples of utilization, all from one source: others lag, or are coarser."""
    for part in ("/utilization", ""):
        bins_by_gpu = {
            gpu: bins
            for gpu in run.working_gpus
            if (bins := run.samples.get(f"gpu{gpu}{part}")) is not None and UTILIZATION in bins
        }
        if part and len(bins_by_gpu) == len(run.working_gpus):
            return bins_by_gpu
    return bins_by_gpu


def _at_times(times: np.ndarray, samples: Sampled) -> np.ndarray:
    """Return a GPU's utilization at other times: that of the sample before."""
    at = np.searchsorted(samples.start_ns, times, side="right") - 1
    return samples.bins.means(UTILIZATION)[1][np.maximum(at, 0)]


def _moving_average(values: np.ndarray, count: int) -> np.ndarray:
    """Return moving averages over `count` values, of fewer at both ends."""
    kernel = np.ones(min(len(values), count))
    sums, counts = (np.convolve(row, kernel, mode="same") for row in (values, np.ones(len(values))))
    return sums / counts
