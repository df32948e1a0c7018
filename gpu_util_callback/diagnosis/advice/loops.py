"""Advice on the input of loops of the user's own, whatever they iterate over."""

from collections.abc import Callable

from gpu_util_callback.diagnosis.advice.input_wait import InputWait
from gpu_util_callback.diagnosis.advice.loaders import CORE_FREE, GUARD, more_workers, room_unknown, workers_save
from gpu_util_callback.diagnosis.advice.table import Entry

AHEAD = """\
import collections, concurrent.futures

class Ahead:
    def __init__(self, batches):
        self.batches = batches
    def __iter__(self):
        pool, batches = concurrent.futures.ThreadPoolExecutor(1), iter({batches})
        coming = collections.deque(pool.submit(next, batches, self) for _ in range({ready}))
        try:
            while (batch := coming.popleft().result()) is not self:
                coming.append(pool.submit(next, batches, self))
                yield batch
        finally:
            pool.shutdown(cancel_futures=True)"""

POOLED = """\
import collections, concurrent.futures{more}

class Pooled:
    def __init__(self, make_batch, count):
        self.make_batch, self.count = make_batch, count
        self.pool = concurrent.futures.{kind}PoolExecutor({workers}{spawn})
    def __iter__(self):
        coming = collections.deque()
        for i in range(self.count):
            coming.append(self.pool.submit(self.make_batch, i))
            if len(coming) > 2 * {workers}:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()"""
THREADS = {"more": "", "kind": "Thread", "spawn": ""}
PROCESSES = {"more": ", multiprocessing", "kind": "Process", "spawn": ', multiprocessing.get_context("spawn")'}


def ahead_code(generator: bool, function: str, ready: int = 1, *, fit: bool = False) -> str:
    """Return code for a thread that makes the next batches, in every pass over the data.

    Args:
        generator: whether `function` makes a new generator for each pass.
        ready: how many are kept ready.
        fit: whether Keras' `fit` takes it, which needs one generator for all epochs.
    """
    generator = generator and not fit
    code = AHEAD.format(batches="self.batches()" if generator else "self.batches", ready=ready)
    if generator:
        return f"{code}\ndataset = Ahead(lambda: {function}(...))  # instead of {function}(...)"
    return f"{code}\ndataset = {'iter(Ahead(dataset))' if fit else 'Ahead(dataset)'}"


def _ahead_already(wait: InputWait) -> bool:
    """Return whether batches are made on a thread: they cost what they are slower than the step."""
    return wait.kind in ("ahead", "pooled")


def _batch_ms(wait: InputWait) -> float:
    return wait.arrives_ms if _ahead_already(wait) else wait.lost_ms


def _beside_the_step(wait: InputWait) -> bool:
    """Return whether a thread can make a batch during the step: it waits, or has a core."""
    if wait.waits is True or wait.run.device == "gpu":
        return True
    return wait.own_cpus is None or wait.has_room


def _ahead(wait: InputWait) -> str:
    return ahead_code(wait.kind == "generator", wait.input_class or "generate")


def _count(wait: InputWait) -> int:
    return more_workers(wait, _batch_ms(wait), wait.waits is True)


def _pooled(wait: InputWait) -> str:
    waits, workers = wait.waits is True, _count(wait)
    dataset = "pydataset" in wait.kind
    function, number = ("dataset.__getitem__", "len(dataset)") if dataset else ("make_batch", wait.batches)
    return (
        POOLED.format(**(THREADS if waits else PROCESSES), workers=workers)
        + f"\ndataset = Pooled({function}, {number})"
        + ("  # once, before the epochs" if waits else GUARD)
    )


def _loader(wait: InputWait) -> str:
    return f"loader = torch.utils.data.DataLoader(dataset, ..., num_workers={_count(wait)}, persistent_workers=True)"


def _saves(wait: InputWait) -> float:
    waits = wait.waits is True
    return workers_save(wait, _batch_ms(wait), _count(wait), waits=waits, processes=not waits)


def _on_torch(wait: InputWait) -> bool:
    return wait.run.framework == "torch" and wait.kind != "pooled"


def _thread_entry(name: str, holds: Callable[[InputWait], bool], asks: str = "") -> Entry:
    return Entry(
        name,
        when=lambda wait: (
            holds(wait)
            and not _ahead_already(wait)
            and _beside_the_step(wait)
            and wait.lost_ms <= wait.needed_ms
            and not _on_torch(wait)
        ),
        says="{loop_input} while the loop waits: {pace}.",
        asks=asks,
        remedy="Let a thread make the next one during the step; each batch must be arrays of its own",
        code=_ahead,
        saves=lambda wait: wait.saves(max(wait.lost_ms, wait.needed_ms)),
        wrong_if="a thread makes them already, or batch and step compete for Python's lock",
    )


LOOP = (
    Entry(
        "DataLoader",
        when=lambda wait: _on_torch(wait) and (wait.waits is True or wait.has_room or room_unknown(wait)),
        says="{loop_input} while the loop waits: {pace}.",
        asks="Is there a torch Dataset behind them, not read by worker processes yet?",
        remedy="Let worker processes of a DataLoader make them, and give it to monitor.batches() "
        "itself: enumerate(monitor.batches(loader))",
        code=_loader,
        saves=_saves,
        wrong_if="a DataLoader with workers makes them already, or no core is free",
    ),
    _thread_entry("a thread", lambda wait: bool(wait.kind)),
    _thread_entry("a thread, asked", lambda wait: not wait.kind, "Does the loop itself make them?"),
    Entry(
        "threads or processes",
        when=lambda wait: (
            not _on_torch(wait)
            and wait.kind != "pooled"
            and (wait.waits is True or wait.has_room or room_unknown(wait))
        ),
        says="{loop_input} while the loop waits: {pace}.",
        asks=lambda wait: (
            "Can you write make_batch(i), which makes batch number i alone?"
            if "pydataset" not in wait.kind
            else CORE_FREE
            if wait.waits is not True
            else "May several threads call __getitem__ at the same time?"
        ),
        remedy="Let several be made at a time",
        code=_pooled,
        saves=_saves,
        wrong_if="batches depend on those before, or compute where no core is free",
    ),
)

# What holds the loop up where no remedy gains enough; no code, no promise.
LIMITS = (
    Entry(
        "pooled",
        when=lambda wait: wait.kind == "pooled",
        says="Batches are made in parallel already, and still {pace}. Use more workers where cores "
        "are free, or make each batch cheaper.",
    ),
    Entry(
        "cores", when=lambda wait: wait.cores_full, says="{loop_input} while the loop waits: {pace}. {cores_sentence}."
    ),
    Entry(
        "loop",
        when=lambda wait: True,
        says="{loop_input} while the loop waits: {pace}. Make a batch cheaper, or make what does not change once.",
    ),
)
