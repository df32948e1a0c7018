"""What to do about a slow input: by what the user gave to `fit`, or iterates over."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_util_callback.diagnosis._circumstances import (
    behind_first_epoch,
    cpu_pct,
    cpus,
    process_cpu,
)
from gpu_util_callback.diagnosis._fixes import batches_an_epoch, larger_batch
from gpu_util_callback.diagnosis._pipeline import Stage
from gpu_util_callback.diagnosis._rule import Advice, Range
from gpu_util_callback.diagnosis._run import Run

__all__ = ["InputWait", "advise_kind", "brief", "keep_it"]

# More workers than this are seldom of use, and each takes memory.
MOST_WORKERS = 16
HANDING_OVER_MS = 5.0  # see `_data_loader`
# Of the wait: from this share on, the handing over is what it is about.
MOSTLY = 0.5


@dataclass(frozen=True, slots=True)
class InputWait:
    """A wait for input, as far as the advice needs to know it. Times are ms a step.

    Attributes:
        lost_ms: how long a step waits that could go without.
        needed_ms: what a step takes without it: so fast batches must come.
        stage: the slowest stage, None = not known.
        overlaps: the stage's time for a batch is longer than a step: a sum over its threads.
        innocent: stages are known, and none works long enough to explain the wait.
        opener: a stage that opens files, or their like, one for each of its elements.
        stages: all of them, slowest first.
    """

    run: Run
    where: Range
    lost_ms: float
    needed_ms: float
    stage: Stage | None = None
    overlaps: bool = False
    innocent: bool = False
    opener: Stage | None = None
    stages: Sequence[Stage] = ()

    @property
    def arrives_ms(self) -> float:
        """How far apart batches come now."""
        return self.needed_ms + self.lost_ms

    def saves(self, arrives_ms: float) -> float:
        """Share of the wait that is gone when batches come so far apart."""
        if self.lost_ms <= 0:
            return 1.0
        left = max(0.0, arrives_ms - self.needed_ms)
        return max(0.0, min(1.0, 1 - left / self.lost_ms))

    @property
    def pace(self) -> str:
        return (
            f"a batch comes every {brief(self.arrives_ms)}, and the model could take one every "
            f"{brief(self.needed_ms)}"
        )


def advise_kind(wait: InputWait) -> Advice | None:
    """The advice where it goes by the kind of the input; None where a tf.data stage decides."""
    run = wait.run
    kind = str(run.fact("fit", "input_kind", default="")).lower()
    if "dataloader" in kind:
        return _data_loader(wait)
    if "pydataset" in kind or "sequence" in kind:
        return _py_dataset(wait)
    generated = wait.stage is not None and wait.stage.op.startswith("Generator")
    if "generator" in kind or generated:
        return _generator(wait)
    if kind == "numpy":
        return _arrays(wait)
    if kind == "grain":
        return _grain(wait)
    if kind == "" and wait.stage is None:
        # A loop that fetches by itself, in `monitor.fetch()`: from what is not known.
        if run.fact("fit", "loop") == "custom" or run.framework == "jax":
            return _ahead(wait, f"{wait.pace[:1].upper()}{wait.pace[1:]}.")
        if run.framework == "torch":
            return _data_loader(wait)  # of an imported trace nothing more is known
    if kind in ("", "tf.data") or wait.stage is not None:
        return None
    return _ahead(wait, f"Batches are made while the loop waits: {wait.pace}.")


def _workers_for(wait: InputWait, one_ms: float, *, waiting: bool = False) -> int:
    """Workers that keep up when one of them needs `one_ms` a batch, with a fifth to spare.

    Args:
        waiting: whether they mostly wait: then more of them than cores pay off.
    """
    wanted = math.ceil(1.2 * one_ms / max(0.1, wait.needed_ms))
    most = min(MOST_WORKERS, max(2, cpus(wait.run) or MOST_WORKERS))
    return max(2, min(MOST_WORKERS if waiting else most, wanted))


def _workers_wait(wait: InputWait, workers: int) -> bool:
    """Whether processes that make batches mostly wait (for files, a network): all of the machine
    computes less than half as much as they could."""
    busy, cores = cpu_pct(wait.run, wait.where), wait.run.fact("machine", "cpus")
    if busy is None or not cores:
        return False
    return busy / 100 * cores < 0.5 * min(workers, cpus(wait.run) or cores)


def keep_it(wait: InputWait, where: str = "") -> Advice | None:
    """`ds.cache()`, where a later epoch could use what was kept, and none is kept yet."""
    saves = behind_first_epoch(wait.run, wait.where)
    if saves <= 0 or any(stage.cached for stage in wait.stages):
        return None
    return Advice(
        f"{where}If the result is the same in every epoch and fits into memory, keep it: the first "
        "epoch stays as slow, the others need not wait.",
        "ds = ds.cache()  # before shuffle, repeat and random augmentation",
        saves,
    )


def _data_loader(wait: InputWait) -> Advice:
    run = wait.run
    workers = run.fact("fit", "input_workers")
    pinned = run.fact("fit", "input_pin_memory") or not run.used_gpus
    pin = "" if pinned else ", pin_memory=True"
    twice = (
        " Its IterableDataset must give each worker its own part (torch.utils.data."
        "get_worker_info)." if run.fact("fit", "input_iterable") else ""
    )  # fmt: skip
    # What taking a finished batch from a worker took; None = nobody could look, or too few were.
    handing_ms = run.fact("fit", "input_handover_ms") if workers else None
    if handing_ms is not None and handing_ms >= MOSTLY * wait.lost_ms:
        return _handing_over(wait, handing_ms, workers, not pinned)
    if not workers:
        count = _workers_for(wait, wait.lost_ms)
        return Advice(
            "The DataLoader makes every batch in the training process, while the model waits "
            f"({wait.pace}). Let worker processes make them ahead of time.{twice}",
            f"loader = DataLoader(dataset, ..., num_workers={count}, persistent_workers=True{pin})",
            wait.saves(wait.lost_ms / count),
        )
    waiting = _workers_wait(wait, workers)
    count = _workers_for(wait, workers * wait.arrives_ms, waiting=waiting)
    if count > workers:
        return Advice(
            f"{workers} worker process{'es' if workers > 1 else ''} of the DataLoader "
            f"{'are' if workers > 1 else 'is'} too few: {wait.pace}.{twice}",
            f"loader = DataLoader(dataset, ..., num_workers={count}, persistent_workers=True{pin})",
            wait.saves(max(workers * wait.arrives_ms / count, wait.needed_ms + (handing_ms or 0))),
        )
    own = str(run.fact("fit", "input_class") or "dataset")
    iterable = run.fact("fit", "input_iterable")
    method = "__iter__" if iterable else "__getitem__"
    samples = "list(dataset)" if iterable else "[dataset[i] for i in range(len(dataset))]"
    cost = "" if iterable else " (%timeit dataset[0] tells what one sample costs)"
    # Taking a finished batch from a worker process takes 2-3 ms; more of them or quicker ones do
    # not change that. Loaders that somebody wraps do not tell whether it was finished.
    unknown = run.fact("fit", "input_ready_pct") is None
    handing = (
        " Where samples are cheap already, it is the handing over of each batch between "
        "processes: larger batches need less of it."
        if unknown and wait.lost_ms < HANDING_OVER_MS else ""
    )  # fmt: skip
    return Advice(
        f"The DataLoader has {workers} worker{'s' if workers > 1 else ''}, as many as pay off on "
        f"this machine, and still {wait.pace}. Make {own}.{method} cheaper{cost}: what comes "
        "before random augmentation can be done once, and kept where it fits into memory."
        + handing,
        f'torch.save({samples}, "data.pt")  # once\n'
        'dataset = torch.load("data.pt", weights_only=False)',
    )


def _handing_over(wait: InputWait, handing_ms: float, workers: int, pin: bool) -> Advice:
    """Workers keep up; taking what they have finished is what the loop waits for."""
    ready = wait.run.fact("fit", "input_ready_pct")
    says = (
        f"{ready:.0f} % of the batches were finished when the loop asked for them: more workers do "
        f"not help. Taking one over from its worker process takes {brief(handing_ms)}."
    )
    part = min(1.0, handing_ms / wait.lost_ms)
    if pin:
        return Advice(
            f"{says} With pinned memory, a thread takes the next ones over during the step.",
            f"loader = DataLoader(dataset, ..., num_workers={workers}, pin_memory=True)",
            part * wait.saves(handing_ms),
        )
    return Advice(
        f"{says} It costs about the same for a larger batch, and less for one of few tensors than "
        "of many; making cheap batches in the loop (num_workers=0) may take less than that.",
        larger_batch(wait.run, 2),
        part / 2,
    )


def _py_dataset(wait: InputWait) -> Advice:
    run = wait.run
    own = str(run.fact("fit", "input_class") or "PyDataset")
    if run.fact("fit", "loop") == "custom":
        return _ahead(wait, f"{own} makes each batch while the loop waits: {wait.pace}.")
    legacy = "tf_keras" in str(run.fact("framework", "keras", default=""))
    workers = run.fact("fit", "input_workers")
    processes = bool(run.fact("fit", "input_processes"))
    one_ms = wait.arrives_ms if run.framework == "tensorflow" else wait.lost_ms
    if not workers or workers == 1:
        waits = _waits(wait)
        count = _workers_for(wait, one_ms, waiting=waits)
        kind, care = (
            ("threads", "__getitem__ must not change anything that they share")
            if waits
            else ("processes", "what __getitem__ changes stays in its own process")
        )
        return Advice(
            f"{own} makes one batch after the other: {wait.pace}. Let several {kind} make them "
            f"ahead of time; {care}.",
            _with_workers(count, not waits, legacy),
            wait.saves(one_ms / count),
        )
    if not processes and not _waits(wait):
        return Advice(
            f"{own} makes its batches in {workers} threads, which share Python's one lock: "
            f"{wait.pace}. Use processes; {own} must then be picklable.",
            _with_workers(workers, True, legacy),
            wait.saves(wait.arrives_ms / workers),
        )
    if processes and workers >= (cpus(run) or MOST_WORKERS) and not _workers_wait(wait, workers):
        return Advice(
            f"{own} has {workers} worker processes, as many as pay off on this machine, and still "
            f"{wait.pace}. Make __getitem__ cheaper (%timeit dataset[0] tells what one batch "
            "costs): what comes before random augmentation can be done once, and kept where it "
            "fits into memory.",
            "made = [dataset[i] for i in range(len(dataset))]  # once\n"
            "class Made(keras.utils.PyDataset):\n"
            "    def __len__(self):\n"
            "        return len(made)\n"
            "    def __getitem__(self, i):\n"
            "        return made[i]\n"
            "dataset = Made()",
        )
    needed = _workers_for(wait, workers * wait.arrives_ms, waiting=_waits(wait))
    count = min(MOST_WORKERS, max(needed, 2 * workers))
    return Advice(
        f"{workers} workers of {own} are too few: {wait.pace}. Use more of them, or make "
        "__getitem__ cheaper.",
        _with_workers(count, processes, legacy),
        wait.saves(workers * wait.arrives_ms / count),
    )


def _with_workers(count: int, processes: bool, legacy: bool) -> str:
    if legacy:
        return f"model.fit(..., workers={count}, use_multiprocessing={processes})"
    line = f"dataset.workers = {count}  # your PyDataset, before model.fit(dataset)"
    return line + ("\ndataset.use_multiprocessing = True" if processes else "")


def _generator(wait: InputWait) -> Advice:
    run = wait.run
    own = run.fact("fit", "input_class")
    name = f"The generator {own}" if own else "The generator"
    if run.fact("fit", "loop") == "custom":
        return _ahead(wait, f"{name} makes each batch while the loop waits: {wait.pace}.")
    # On TensorFlow a thread asks it for the next batch during the step, elsewhere it cannot.
    one_ms = wait.arrives_ms if run.framework == "tensorflow" else wait.lost_ms
    count = _workers_for(wait, one_ms, waiting=_waits(wait))
    return Advice(
        f"{name} makes one batch after the other: {wait.pace}. A keras.utils.PyDataset makes "
        "several at a time, if you can say how to make batch number i.",
        _batches_class(run, count, "make_batch(i)", processes=not _waits(wait)),
        wait.saves(one_ms / count),
    )


def _batches_class(run: Run, workers: int, batch: str, *, processes: bool) -> str:
    more = ", use_multiprocessing=True" if processes else ""
    return (
        "class Batches(keras.utils.PyDataset):\n"
        "    def __len__(self):\n"
        f"        return {batches_an_epoch(run)}\n"
        "    def __getitem__(self, i):\n"
        f"        return {batch}\n"
        f"dataset = Batches(workers={workers}{more})  # for model.fit(dataset)"
    )


def _arrays(wait: InputWait) -> Advice:
    run = wait.run
    size = run.fact("fit", "batch_size", default=32)
    if run.fact("fit", "loop") == "custom":
        return _ahead(wait, f"Batches are made while the loop waits: {wait.pace}.")
    if run.framework == "tensorflow":
        return Advice(
            # Keras turns other types of floats into its own before it begins.
            f"Keras copies every batch out of the arrays: {wait.pace}. Keep images as uint8, a "
            "quarter of the bytes, and scale them in the model.",
            'x = x.astype("uint8")  # 0 to 255; first layer: keras.layers.Rescaling(1 / 255)',
            wait.saves(wait.arrives_ms / 2),  # of the time: not all of it goes by bytes
        )
    return Advice(
        f"Keras cuts every batch out of the arrays while the model waits: {wait.pace}. Let threads "
        "do it ahead of time. Only whole batches are shuffled then: shuffle the arrays before.",
        _batches_class(
            run, 2, f"x[i * {size} : (i + 1) * {size}], y[i * {size} : (i + 1) * {size}]",
            processes=False,
        ),
        wait.saves(wait.lost_ms / 2),
    )  # fmt: skip


def _grain(wait: InputWait) -> Advice:
    count = _workers_for(wait, wait.arrives_ms)
    return Advice(
        f"The grain pipeline is too slow: {wait.pace}. Let worker processes run it.",
        f"dataset = dataset.mp_prefetch("
        f"grain.multiprocessing.MultiprocessingOptions(num_workers={count}))"
        f"  # an IterDataset; a DataLoader takes worker_count={count}",
        wait.saves(wait.arrives_ms / count),
    )


def _ahead(wait: InputWait, why: str) -> Advice:
    """For loops of somebody's own, whatever they iterate over."""
    if wait.run.framework == "torch":
        count = _workers_for(wait, wait.lost_ms)
        return Advice(
            f"{why} Let worker processes of a DataLoader do that. If they come from one already, "
            "give it to monitor.batches() itself: enumerate(monitor.batches(loader)).",
            f"loader = torch.utils.data.DataLoader(dataset, ..., num_workers={count}, "
            "persistent_workers=True)",
            wait.saves(wait.lost_ms / count),
        )
    return Advice(
        f"{why} Let a thread make the next one during the step.",
        "import concurrent.futures\n\n"
        "def ahead(batches):\n"
        "    with concurrent.futures.ThreadPoolExecutor(1) as pool:\n"
        "        batches = iter(batches)\n"
        "        coming = pool.submit(next, batches, None)\n"
        "        while (batch := coming.result()) is not None:\n"
        "            coming = pool.submit(next, batches, None)\n"
        "            yield batch\n"
        "dataset = ahead(dataset)  # for each pass over the data",
        wait.saves(wait.lost_ms),
    )


def _waits(wait: InputWait) -> bool:
    """Whether making batches mostly waits (for files, a network): the process hardly computes."""
    busy = process_cpu(wait.run, wait.where)
    return busy is not None and busy < 0.5


def brief(ms: float) -> str:
    """`12 ms`, `3.4 ms`, `0.8 ms`, `under 0.1 ms`."""
    return f"{ms:.0f} ms" if ms >= 9.95 else f"{ms:.1f} ms" if ms >= 0.05 else "under 0.1 ms"
