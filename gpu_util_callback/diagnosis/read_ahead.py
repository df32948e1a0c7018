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
        """Return the share (0-1) of the waits for long fetches that is left with batches made ahead.

        Args:
            usual_ms: the time of one worker for any other batch.
            step_ms: of the loop for each batch.
            workers, ahead: as in the function `waits_ms`.
        """
        ahead_of_first = min(ahead, int(self.steps[0]))  # by the first one the queue has been filled
        # Number of each long fetch in the simulation, which begins just before the first.
        numbers = ahead_of_first + self.steps - self.steps[0]
        is_simulated = numbers < SIMULATED
        fetch_ms = np.full(  # usual batches are no slower than what the loop takes
            max(min(SIMULATED, self.rows), int(numbers[is_simulated][-1]) + 1), min(usual_ms, workers * step_ms)
        )
        fetch_ms[numbers[is_simulated]] = self.waits_ms[is_simulated]
        simulated_ms = waits_ms(fetch_ms, step_ms, workers=workers, ahead=ahead)
        return min(1.0, float(simulated_ms.sum() / self.waits_ms[is_simulated].sum()))

    @property
    def largest(self) -> "LongFetches":
        """The fetches of about the length of the longest, if they hold nearly all of the wait; else all."""
        large = self.waits_ms >= A_FIFTH * self.waits_ms.max()
        held_share = float(self.waits_ms[large].sum() / self.waits_ms.sum())
        if large.all() or held_share < FOUR_FIFTHS:
            return self
        return replace(
            self,
            count=int(large.sum()),
            each_ms=float(self.waits_ms[large].mean()),
            share=held_share * self.share,
            steps=self.steps[large],
            waits_ms=self.waits_ms[large],
            starts_ns=self.starts_ns[large],
        )

    def later(self, first_step: int) -> float:
        """Return the share (0-1) of these waits from a step on."""
        return float(self.waits_ms[self.steps >= first_step].sum() / self.waits_ms.sum())


def long_fetches(steps: StepBlocks, where: Range, blocks: slice) -> LongFetches | None:
    """Return the few fetches of a span that took as long as ten of its other steps; None if they hold little.

    Args:
        where: the span; blocks: of `steps` that it touches.
    """
    wait_ns, rows = steps.total("wait_ns", blocks), max(1, where.steps)
    if wait_ns <= 0:
        return None
    waits_ns, step_numbers, starts_ns = steps.longest_waits(where.start_step, where.end_step)
    running_ns = steps.total("duration_ns", blocks) - steps.total("compile_ns", blocks)
    # A queue ahead of the loop evens out what is shorter.
    # Mean step without the n longest waits, for each n.
    others_ns = np.maximum(0, running_ns - np.cumsum(waits_ns)) / rows
    long_places = np.flatnonzero(A_TENTH * waits_ns >= others_ns)
    if not len(long_places):
        return None
    count_kept = int(long_places[-1]) + 1
    if count_kept >= max(A_FEW, A_TENTH * rows):
        return None  # of that rate the longest are not apart
    count_kept = min(count_kept, max(1, int(A_TWENTIETH * rows)))
    count, held_ns = count_kept, int(waits_ns[:count_kept].sum())
    if count_kept == MAX_LONG_WAITS:  # there are more
        count, held_ns = steps.total("wait_events", blocks), steps.total("event_wait_ns", blocks)
        if count > A_TWENTIETH * rows:
            return None
    if held_ns < A_TENTH * wait_ns:
        return None
    order = np.argsort(step_numbers[:count_kept])
    return LongFetches(
        count,
        held_ns / count / 1e6,
        min(1.0, held_ns / wait_ns),
        step_numbers[:count_kept][order],
        waits_ns[:count_kept][order] / 1e6,
        starts_ns[:count_kept][order],
        rows,
    )


def waits_ms(fetch_ms: np.ndarray, step_ms: float, *, workers: int, ahead: int) -> np.ndarray:
    """Return how long a loop waits for each of n batches that workers make ahead of it, in turns and in order.

    Float[n].

    Of a long fetch they hide at most the steps that the batches made before it last.

    Args:
        fetch_ms: float[n], the time of one worker for each batch.
        step_ms: of the loop for each batch.
        workers: batch i is made by worker i modulo `workers`.
        ahead: batches made or under way that the loop has not taken, at least 1.
    """
    worker_free_ms, taken_ms, waits = [0.0] * workers, [0.0] * ahead, []  # when: by worker, and by batch modulo `ahead`
    now_ms = 0.0  # the loop asks for batch i
    for i, took_ms in enumerate(fetch_ms.tolist()):
        # The worker begins once it is free and a place in the queue is.
        ready_ms = worker_free_ms[i % workers] = max(worker_free_ms[i % workers], taken_ms[i % ahead]) + took_ms
        waits.append(max(0.0, ready_ms - now_ms))
        taken_ms[i % ahead] = now_ms = max(now_ms, ready_ms)
        now_ms += step_ms
    return np.array(waits)
