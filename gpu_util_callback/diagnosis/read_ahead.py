"""The few long fetches of a run, and how much of a wait batches hide that are made ahead. Times are ms."""

from dataclasses import dataclass, replace

import numpy as np

from gpu_util_callback.diagnosis.evidence.blocks import MAX_LONG_WAITS, StepBlocks
from gpu_util_callback.diagnosis.evidence.spans import Range
from gpu_util_callback.diagnosis.thresholds import A_FEW, A_FIFTH, A_TENTH, A_TWENTIETH, FOUR_FIFTHS, Count

SIMULATED = Count(4096, "fetches are simulated: two milliseconds")


@dataclass(frozen=True, slots=True)
class LongFetches:
    """The few long fetches of a span.

    Attributes:
        count: their number; `each_ms`: the mean wait for one; `share` of the span's wait that they hold, 0-1.
        steps: int64[n], rising: the steps that waited for them; of more than `n` only the longest.
        waits_ms: float[n], the wait of each of these.
        starts_ns: int64[n], when these steps began, ns since the epoch.
        rows: steps of the span.
        stage: of the pipeline that made them; "" = not known.
    """

    count: int
    each_ms: float
    share: float
    steps: np.ndarray
    waits_ms: np.ndarray
    starts_ns: np.ndarray
    rows: int
    stage: str = ""

    def left(self, usual_ms: float, step_ms: float, *, workers: int, ahead: int) -> float:
        """Return the share (0-1) of these waits that is left with batches made ahead; see `waits_ms`.

        Args:
            usual_ms: the time of one worker for any other batch.
        """
        before = min(ahead, int(self.steps[0]))  # by the first one the queue has been filled
        places = before + self.steps - self.steps[0]
        inside = places < SIMULATED
        fetch_ms = np.full(
            max(min(SIMULATED, self.rows), int(places[inside][-1]) + 1), min(usual_ms, workers * step_ms)
        )
        fetch_ms[places[inside]] = self.waits_ms[inside]
        waits = waits_ms(fetch_ms, step_ms, workers=workers, ahead=ahead)
        return min(1.0, float(waits.sum() / self.waits_ms[inside].sum()))

    @property
    def largest(self) -> "LongFetches":
        """Those of about the length of the longest, if they hold nearly all: what is worth a word."""
        large = self.waits_ms >= A_FIFTH * self.waits_ms.max()
        held = float(self.waits_ms[large].sum() / self.waits_ms.sum())
        if large.all() or held < FOUR_FIFTHS:
            return self
        return replace(
            self,
            count=int(large.sum()),
            each_ms=float(self.waits_ms[large].mean()),
            share=held * self.share,
            steps=self.steps[large],
            waits_ms=self.waits_ms[large],
            starts_ns=self.starts_ns[large],
        )

    def later(self, first_step: int) -> float:
        """Return the share (0-1) of these waits from a step on."""
        return float(self.waits_ms[self.steps >= first_step].sum() / self.waits_ms.sum())


def long_fetches(steps: StepBlocks, where: Range, blocks: slice) -> LongFetches | None:
    """Return the few fetches of a span that took as long as ten of its other steps; None if they hold little."""
    wait_ns, rows = steps.total("wait_ns", blocks), max(1, where.steps)
    if wait_ns <= 0:
        return None
    waits_ns, numbers, starts_ns = steps.longest_waits(where.start_step, where.end_step)
    running_ns = steps.total("duration_ns", blocks) - steps.total("compile_ns", blocks)
    # A queue ahead of the loop evens out what is shorter.
    others_ns = np.maximum(0, running_ns - np.cumsum(waits_ns)) / rows
    long = np.flatnonzero(A_TENTH * waits_ns >= others_ns)
    if not len(long):
        return None
    known = int(long[-1]) + 1
    if known >= max(A_FEW, A_TENTH * rows):
        return None  # of that rate the longest are not apart
    known = min(known, max(1, int(A_TWENTIETH * rows)))
    count, held_ns = known, int(waits_ns[:known].sum())
    if known == MAX_LONG_WAITS:  # there are more
        count, held_ns = steps.total("wait_events", blocks), steps.total("event_wait_ns", blocks)
        if count > A_TWENTIETH * rows:
            return None
    if held_ns < A_TENTH * wait_ns:
        return None
    order = np.argsort(numbers[:known])
    return LongFetches(
        count,
        held_ns / count / 1e6,
        min(1.0, held_ns / wait_ns),
        numbers[:known][order],
        waits_ns[:known][order] / 1e6,
        starts_ns[:known][order],
        rows,
    )


def waits_ms(fetch_ms: np.ndarray, step_ms: float, *, workers: int, ahead: int) -> np.ndarray:
    """Return how long a loop waits for each of its batches, which workers make ahead of it, in turns and in order.

    Of a long fetch they hide at most the steps that the batches made before it last.

    Args:
        fetch_ms: float[n], the time of one worker for each batch.
        step_ms: of the loop for each batch.
        workers: batch i is made by worker i modulo `workers`.
        ahead: batches made or under way that the loop has not taken, at least 1.
    """
    worker_free_ms, taken_ms, waits = [0.0] * workers, [0.0] * ahead, []  # when: by worker, and by batch modulo `ahead`
    now = 0.0  # the loop asks for batch i
    for i, took in enumerate(fetch_ms.tolist()):
        ready = worker_free_ms[i % workers] = max(worker_free_ms[i % workers], taken_ms[i % ahead]) + took
        waits.append(max(0.0, ready - now))
        taken_ms[i % ahead] = now = max(now, ready)
        now += step_ms
    return np.array(waits)
