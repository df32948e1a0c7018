"""Advice on a slow input: by the kind of data, and on the slowest stage of a tf.data pipeline."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_util_callback.diagnosis.advice.snippets import (
    batches_an_epoch,
    behind_first_epoch,
    cpu_pct,
    cpus,
    larger_batch,
    process_cpu,
)
from gpu_util_callback.diagnosis.evidence.pipeline import Stage, chain_ms
from gpu_util_callback.diagnosis.evidence.run import Run
from gpu_util_callback.diagnosis.finding import FORK_SAFE, Advice, Range
from gpu_util_callback.diagnosis.thresholds import MOSTLY, Constant, Count

__all__ = [
    "InputWait",
    "advise_kind",
    "advise_stage",
    "advise_traced_stage",
    "ahead_code",
    "brief",
    "loader_workers",
    "py_dataset_workers",
]

# More workers than this rarely help, and each takes memory.
MOST_WORKERS = 16
WAITS = Constant(
    0.5,
    "of its time: a stage, or a process that makes batches, which takes less CPU time waits",
)
WAITS_WHEN_FULL = Constant(
    0.15, "the same with all cores busy, when one that computes may get as little as a quarter"
)
FULL_CPU_PCT = Constant(
    75,
    "with all cores this busy, computing and waiting look alike: programs take turns",
)
HANDING_OVER_MS = Constant(5.0, "shorter hand-overs of a batch by a worker process are usual")
LITTLE = Constant(0.25, "stages that explain less of the wait are not its cause")


@dataclass(frozen=True, slots=True)
class InputWait:
    """Wait for input, with all facts that the advice needs. Times are ms per step.

    Attributes:
        lost_ms: the avoidable part of a step's wait.
        needed_ms: duration of a step without it: batches must come this fast.
        stage: the slowest stage, None = not known.
        overlaps: the stage's time for a batch is longer than a step: a sum over its threads.
        not_the_bottleneck: stages are known, and none works long enough to explain the wait.
        opener: a stage that opens files, or similar, one for each of its elements.
        stages: all of them, slowest first.
        read_elsewhere: what is known of the stages was in part read of other batches than these.
    """

    run: Run
    where: Range
    lost_ms: float
    needed_ms: float
    stage: Stage | None = None
    overlaps: bool = False
    not_the_bottleneck: bool = False
    opener: Stage | None = None
    stages: Sequence[Stage] = ()
    read_elsewhere: bool = False

    @property
    def arrives_ms(self) -> float:
        """Time between batches now."""
        return self.needed_ms + self.lost_ms

    def saves(self, arrives_ms: float) -> float:
        """Return the share of the wait that is gone when batches are `arrives_ms` apart."""
        if self.lost_ms <= 0:
            return 1.0
        left = max(0.0, arrives_ms - self.needed_ms)
        return max(0.0, min(1.0, 1 - left / self.lost_ms))

    def after(self, stage: Stage, stage_ms: float, spared_ms: float = 0.0) -> float:
        """Return the time between batches if a stage works ahead and takes `stage_ms` per batch.

        The other stages limit it, and no part of these takes longer than batches do now.

        Args:
            spared_ms: the CPU time per batch that is then not needed at all.
        """
        first, slowest = chain_ms(self.stages, stage, stage_ms)
        others = max(min(slowest, self.arrives_ms), min(first, self.arrives_ms) + self.needed_ms)
        return max(stage_ms, others, self._spread_ms(self.cpu_ms - spared_ms))

    @property
    def works_ahead(self) -> bool:
        """True if stages are known, and one of them makes batches while steps run."""
        return any(stage.threaded for stage in self.stages)

    @property
    def keeps_up(self) -> bool:
        """True if the stages are fast enough by their own numbers, so that none is to blame.

        They work ahead, no part of the pipeline takes a batch as long as a step, nor do the cores
        need as long for all of its work, and what the loop itself makes of a batch is little of
        the wait.
        """
        if not self.works_ahead or self.read_elsewhere:
            return False
        first, slowest = chain_ms(self.stages)
        late_ms = max(0.0, max(slowest, self.cores_ms) - self.needed_ms)
        return late_ms + first < LITTLE * self.lost_ms

    @property
    def cpu_ms(self) -> float:
        """CPU time of this process for a batch and its step together; 0.0 = not sampled."""
        return (process_cpu(self.run, self.where) or 0.0) * self.arrives_ms

    @property
    def cores_ms(self) -> float:
        """Least time between batches with the same work on all cores, less what others take."""
        return self._spread_ms(self.cpu_ms)

    def _spread_ms(self, cpu_ms: float) -> float:
        return max(0.0, cpu_ms) / max(1e-3, self._cores())

    def _cores(self) -> float:
        most, own = cpus(self.run), process_cpu(self.run, self.where)
        busy, machine = cpu_pct(self.run, self.where), self.run.machine.get("cpus")
        if most is None or own is None:
            return math.inf
        if busy is None or not machine or self.run.fit.get("input_processes"):
            return float(most)  # its own workers are processes, too
        others = max(0.0, busy / 100 * machine - own)
        return max(own, min(most, machine - others))

    @property
    def python_ms(self) -> float:
        """Upper bound of the Python computation for a batch, which threads cannot share.

        The step's own CPU time is not the input's; it is not known, and rarely exceeds one core's.
        """
        return max(0.0, self.cpu_ms - self.needed_ms)

    @property
    def pace(self) -> str:
        return (
            f"a batch arrives every {brief(self.arrives_ms)}, but the model could take one every "
            f"{brief(self.needed_ms)}"
        )


def advise_kind(wait: InputWait) -> Advice | None:
    """Return the advice if it depends on the kind of the input; None if a tf.data stage decides."""
    advice = _by_kind(wait)
    return None if advice is None else advice.safe_on(wait.run.framework, wait.run.device)


def _by_kind(wait: InputWait) -> Advice | None:
    run = wait.run
    kind = str(run.fit.get("input_kind", "")).lower()
    if "dataloader" in kind:
        return _data_loader(wait)
    if "pydataset" in kind or "sequence" in kind:
        return _py_dataset(wait)
    if "generator" in kind:
        return _generator(wait)
    if kind == "numpy":
        return _arrays(wait)
    if kind == "grain":
        return _grain(wait)
    if kind == "" and wait.stage is None:
        # A custom loop that fetches in `monitor.fetch()`, from an unknown source.
        if run.fit.get("loop") == "custom" or run.framework == "jax":
            return _in_loop(wait, f"{wait.pace[:1].upper()}{wait.pace[1:]}.")
        if run.framework == "torch":
            return _data_loader(wait)  # nothing more is known of an imported trace
    if kind in ("", "tf.data") or wait.stage is not None:
        return None
    return _in_loop(wait, f"Batches are made while the loop waits: {wait.pace}.")


def _workers_for(wait: InputWait, one_ms: float, *, waiting: bool = False) -> int:
    """Return the workers that keep up when one needs `one_ms` per batch, with a fifth to spare.

    Args:
        waiting: whether they mostly wait: then more of them than cores pay off.
    """
    wanted = math.ceil(1.2 * one_ms / max(0.1, wait.needed_ms))
    most = min(MOST_WORKERS, max(2, cpus(wait.run) or MOST_WORKERS))
    return max(2, min(MOST_WORKERS if waiting else most, wanted))


def _workers_wait(wait: InputWait, workers: int) -> bool:
    """Return whether processes that make batches mostly wait (for files, a network).

    That is the case if the whole machine computes less than half as much as they could.
    """
    busy, cores = cpu_pct(wait.run, wait.where), wait.run.machine.get("cpus")
    if busy is None or not cores:
        return False
    return busy / 100 * cores < 0.5 * min(workers, cpus(wait.run) or cores)


def keep_it(wait: InputWait, where: str = "") -> Advice | None:
    """Return `ds.cache()` if a later epoch could use the kept data and none is kept yet."""
    saves = behind_first_epoch(wait.run, wait.where)
    if saves <= 0 or any(stage.cached for stage in wait.stages):
        return None
    return Advice(
        f"{where}If the result is the same in every epoch and fits into memory, keep it: the first "
        "epoch stays slow, the others do not wait.",
        "ds = ds.cache()  # before shuffle, repeat and random augmentation",
        saves,
    )


def _data_loader(wait: InputWait) -> Advice:
    run = wait.run
    workers = run.fit.get("input_workers")
    pinned = run.fit.get("input_pin_memory") or not run.used_gpus
    pin = "" if pinned else ", pin_memory=True"
    twice = (
        " Its IterableDataset must give each worker its own part (torch.utils.data."
        "get_worker_info)." if run.fit.get("input_iterable") else ""
    )  # fmt: skip
    # Time to take a finished batch from a worker; None = not observable, or too few were.
    handing_ms = run.fit.get("input_handover_ms") if workers else None
    if workers and handing_ms is not None and handing_ms >= MOSTLY * wait.lost_ms:
        return _handing_over(wait, handing_ms, workers, not pinned)
    if not workers:
        count = _workers_for(wait, wait.lost_ms, waiting=mostly_waits(wait))
        return loader_workers(
            "The DataLoader makes every batch in the training process, while the model waits "
            f"({wait.pace}). Let worker processes make them ahead of time.{twice}",
            f"loader = DataLoader(dataset, ..., num_workers={count}, persistent_workers=True{pin})",
            wait.saves(max(wait.lost_ms / count, wait.cores_ms)),
        )
    waiting = _workers_wait(wait, workers)
    count = _workers_for(wait, workers * wait.arrives_ms, waiting=waiting)
    if count > workers:
        return loader_workers(
            f"{workers} worker process{'es' if workers > 1 else ''} of the DataLoader "
            f"{'are' if workers > 1 else 'is'} too few: {wait.pace}.{twice}",
            f"loader = DataLoader(dataset, ..., num_workers={count}, persistent_workers=True{pin})",
            wait.saves(max(workers * wait.arrives_ms / count, wait.needed_ms + (handing_ms or 0))),
        )
    own = str(run.fit.get("input_class") or "dataset")
    iterable = run.fit.get("input_iterable")
    method = "__iter__" if iterable else "__getitem__"
    samples = "list(dataset)" if iterable else "[dataset[i] for i in range(len(dataset))]"
    cost = "" if iterable else " (%timeit dataset[0] shows the cost of one sample)"
    # Taking a finished batch from a worker process takes 2-3 ms, which more or quicker workers do
    # not change. Wrapped loaders do not show whether it was finished.
    unknown = run.fit.get("input_ready_pct") is None
    handing = (
        " Where samples are cheap already, it is the handing over of each batch between "
        "processes: larger batches need less of it."
        if unknown and wait.lost_ms < HANDING_OVER_MS else ""
    )  # fmt: skip
    return Advice(
        f"The DataLoader has {workers} worker{'s' if workers > 1 else ''}, as many as this "
        f"machine can use, and still {wait.pace}. Make {own}.{method} cheaper{cost}: what comes "
        "before random augmentation can be done once, and kept where it fits into memory."
        + handing,
        f'torch.save({samples}, "data.pt")  # once\n'
        'dataset = torch.load("data.pt", weights_only=False)',
    )


_NO_FORK = "JAX cannot be forked while it holds a GPU: these start fresh and import the script"
_GUARD = '  # under if __name__ == "__main__":'


def loader_workers(text: str, code: str, saves: float) -> Advice:
    """Return advice for worker processes of a DataLoader.

    They are forked unless `code` says otherwise.

    Args:
        code: a call of DataLoader that ends in `)`.
    """
    spawned = Advice(
        f"{text} {_NO_FORK}.",
        f'{code[:-1]}, multiprocessing_context="spawn"){_GUARD}',
        saves,
    )
    return Advice(text, code, saves, safe=FORK_SAFE, otherwise=spawned)


def _handing_over(wait: InputWait, handing_ms: float, workers: int, pin: bool) -> Advice:
    """Return advice for workers that keep up, if the loop waits for batches to be handed over."""
    ready = wait.run.fit.get("input_ready_pct")
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
        alters_training=True,
        otherwise=Advice(
            f"{says} Fewer tensors a batch need less of it, and cheap batches none: "
            "num_workers=0 makes them in the loop.", "", 0.0,
        ),
    )  # fmt: skip


def _py_dataset(wait: InputWait) -> Advice:
    run = wait.run
    own = str(run.fit.get("input_class") or "PyDataset")
    if run.fit.get("loop") == "custom":
        made = ("dataset.__getitem__", "len(dataset)")
        return _in_loop(wait, f"{own} makes each batch while the loop waits: {wait.pace}.", made)
    workers = run.fit.get("input_workers")
    processes = bool(run.fit.get("input_processes"))
    one_ms = _one_ms(wait)
    if not workers or workers == 1:
        waits = mostly_waits(wait)
        count = _workers_for(wait, one_ms, waiting=waits)
        return py_dataset_workers(
            run, f"{own} makes one batch at a time: {wait.pace}.", "dataset", count,
            processes=not waits, saves=_side_by_side(wait, one_ms, count, not waits),
        )  # fmt: skip
    if not processes and not mostly_waits(wait):
        return py_dataset_workers(
            run,
            f"{own} makes its batches in {workers} threads, which share the GIL: "
            f"{wait.pace}.",
            "dataset", workers, processes=True,
            saves=_side_by_side(wait, wait.arrives_ms, workers, True),
        )  # fmt: skip
    if processes and workers >= (cpus(run) or MOST_WORKERS) and not _workers_wait(wait, workers):
        return Advice(
            f"{own} has {workers} worker processes, as many as this machine can use, and still "
            f"{wait.pace}. Make __getitem__ cheaper (%timeit dataset[0] shows the cost of one "
            "batch): what comes before random augmentation can be done once, and kept where it "
            "fits into memory.",
            "made = [dataset[i] for i in range(len(dataset))]  # once\n"
            "class Made(keras.utils.PyDataset):\n"
            "    def __len__(self):\n"
            "        return len(made)\n"
            "    def __getitem__(self, i):\n"
            "        return made[i]\n"
            "dataset = Made()",
        )
    needed = _workers_for(wait, workers * wait.arrives_ms, waiting=mostly_waits(wait))
    count = min(MOST_WORKERS, max(needed, 2 * workers))
    return py_dataset_workers(
        run, f"{workers} workers of {own} are too few, or __getitem__ too slow: {wait.pace}.",
        "dataset", count, processes=processes, saves=wait.saves(workers * wait.arrives_ms / count),
    )  # fmt: skip


def _one_ms(wait: InputWait) -> float:
    """Return the time of a batch that Keras' `fit` makes on one thread or none.

    On TensorFlow a thread makes the next one during the step; elsewhere the loop waits for it.
    """
    return wait.arrives_ms if wait.run.framework == "tensorflow" else wait.lost_ms


def _side_by_side(wait: InputWait, one_ms: float, workers: int, processes: bool) -> float:
    """Return the share of the wait that is gone with `workers` that take `one_ms` per batch each.

    Threads are limited by their Python part, processes by the cores.
    """
    least = wait.cores_ms if processes else wait.python_ms
    return wait.saves(max(one_ms / workers, least))


def py_dataset_workers(
    run: Run, says: str, name: str, count: int, *, processes: bool, saves: float
) -> Advice:
    """Return advice to make a PyDataset's batches on workers.

    Args:
        says: the observation, as a sentence.
        name: the PyDataset's in the code.
        processes: whether the work computes in Python, so that threads do not help.
    """
    threads = Advice(
        f"{says} Let {count} threads make them ahead of time; __getitem__ must not change anything "
        "that they share.",
        _with_workers(run, name, count, processes=False),
        saves,
    )
    if not processes:
        return threads
    spawned = Advice(
        f"{says} Let {count} processes make them ahead of time. {_NO_FORK} (Grain's mp_prefetch "
        "does so, too).",
        _spawned(name, count),
        saves,
    )
    return Advice(
        f"{says} Let {count} processes make them ahead of time; what __getitem__ changes stays in "
        "its own process.",
        _with_workers(run, name, count, processes=True),
        saves,
        safe=FORK_SAFE,
        otherwise=spawned,
    )


def _with_workers(run: Run, name: str, count: int, *, processes: bool) -> str:
    if "tf_keras" in str(run.framework_facts.get("keras", "")):
        return f"model.fit(..., workers={count}, use_multiprocessing={processes})"
    line = f"{name}.workers = {count}  # your PyDataset, before model.fit"
    return line + (f"\n{name}.use_multiprocessing = True" if processes else "")


def _spawned(name: str, count: int) -> str:
    """Return code for a PyDataset whose threads wait for processes, each with a copy of `name`."""
    return f"""\
import concurrent.futures, multiprocessing

def hold(dataset):
    global held
    held = dataset

def held_batch(i):
    return held[i]

class Spawned(keras.utils.PyDataset):
    def __init__(self, dataset, workers):
        super().__init__(workers=workers)
        self.count = len(dataset)
        self.pool = concurrent.futures.ProcessPoolExecutor(
            workers, multiprocessing.get_context("spawn"), hold, (dataset,))
    def __len__(self):
        return self.count
    def __getitem__(self, i):
        return self.pool.submit(held_batch, i).result()
{name} = Spawned({name}, workers={count}){_GUARD}"""


def _generator(wait: InputWait) -> Advice:
    run = wait.run
    own = run.fit.get("input_class")
    name = f"The generator {own}" if own else "The generator"
    if run.fit.get("loop") == "custom":
        return _in_loop(wait, f"{name} makes each batch while the loop waits: {wait.pace}.")
    one_ms, waits = _one_ms(wait), mostly_waits(wait)
    count = _workers_for(wait, one_ms, waiting=waits)
    says = (
        f"{name} makes one batch at a time: {wait.pace}. A keras.utils.PyDataset makes "
        "several at a time, if you can say how to make batch number i."
    )
    saves = _side_by_side(wait, one_ms, count, not waits)
    threads = Advice(says, _batches_class(run, count, "make_batch(i)", processes=False), saves)
    if waits:
        return threads
    several = _batches_class(run, count, "make_batch(i)", processes=True)
    spawned = Advice(
        f"{says} {_NO_FORK}.",
        f"{_batches_class(run, 0, 'make_batch(i)', processes=False)}\n{_spawned('dataset', count)}",
        saves,
    )
    return Advice(says, several, saves, safe=FORK_SAFE, otherwise=spawned)


def _batches_class(run: Run, workers: int, batch: str, *, processes: bool) -> str:
    given = f"workers={workers}" if workers else ""
    more = ", use_multiprocessing=True" if processes else ""
    return (
        "class Batches(keras.utils.PyDataset):\n"
        "    def __len__(self):\n"
        f"        return {batches_an_epoch(run)}\n"
        "    def __getitem__(self, i):\n"
        f"        return {batch}\n"
        f"dataset = Batches({given}{more})  # for model.fit"
    )


def _arrays(wait: InputWait) -> Advice:
    run = wait.run
    size = run.fit.get("batch_size", 32)
    if run.fit.get("loop") == "custom":
        return _in_loop(wait, f"Batches are made while the loop waits: {wait.pace}.")
    if run.framework == "tensorflow":
        return Advice(
            # Keras converts other float types before it begins.
            f"Keras copies every batch out of the arrays: {wait.pace}. Keep images as uint8, a "
            "quarter of the bytes, and scale them in the model.",
            'x = x.astype("uint8")  # 0 to 255\n'
            "model = keras.Sequential([keras.layers.Rescaling(1 / 255), model])",
            wait.saves(wait.arrives_ms / 2),  # not all of it depends on bytes
        )
    return Advice(
        f"Keras cuts every batch out of the arrays while the model waits: {wait.pace}. Let threads "
        "do it ahead of time, and give fit the dataset alone, without y and batch_size. Only whole "
        "batches are shuffled then: shuffle the arrays before.",
        _batches_class(
            run, 2, f"x[i * {size} : (i + 1) * {size}], y[i * {size} : (i + 1) * {size}]",
            processes=False,
        ).replace("  # for model.fit", "\nmodel.fit(dataset, ...)"),
        wait.saves(wait.lost_ms / 2),
        before=f"model.fit(x, y, ..., batch_size={size})",
    )  # fmt: skip


def _grain(wait: InputWait) -> Advice:
    run = wait.run
    kind, workers = str(run.fit.get("input_class")), int(run.fit.get("input_workers") or 0)
    if workers:
        one_ms, waiting = workers * wait.arrives_ms, _workers_wait(wait, workers)
        some = f"{workers} worker process{'es' if workers > 1 else ''} of Grain"
        says = f"{some} {'are' if workers > 1 else 'is'} too few: {wait.pace}."
    else:
        # A DataLoader's operations run while the loop waits; a dataset's on threads, ahead of it.
        loader = kind == "DataLoader"
        one_ms, waiting = wait.lost_ms if loader else wait.arrives_ms, mostly_waits(wait)
        where = "in the training process, while the model waits" if loader else "in one process"
        says = f"Grain makes the batches {where}: {wait.pace}. Let worker processes make them."
    count = _workers_for(wait, one_ms, waiting=waiting)
    if count <= workers:
        return Advice(
            f"Grain has {workers} worker process{'es' if workers > 1 else ''}, as many as this "
            f"machine can use, and still {wait.pace}. Make the transformations cheaper: what comes "
            "before random augmentation can be done once, and stored."
        )
    return Advice(
        f"{says} They start fresh and import the script.",
        f"{_grain_workers(kind, count)}{_GUARD}\n"
        "import absl.flags\n"
        "absl.flags.FLAGS.mark_as_parsed()  # before the first batch, unless absl.app.run does so",
        wait.saves(max(one_ms / count, wait.needed_ms if workers else wait.cores_ms)),
        before=_grain_workers(kind, workers) if workers or kind == "DataLoader" else "",
    )


def _grain_workers(kind: str, workers: int) -> str:
    if kind == "DataLoader":
        return f"dataset = grain.DataLoader(..., worker_count={workers})"
    iterable = "dataset.to_iter_dataset()" if kind == "MapDataset" else "dataset"
    options = f"grain.multiprocessing.MultiprocessingOptions(num_workers={workers})"
    return f"dataset = {iterable}.mp_prefetch({options})"


def _in_loop(wait: InputWait, why: str, made: tuple[str, str] | None = None) -> Advice:
    """Return advice for custom loops, whatever they iterate over.

    Args:
        made: code for a function that makes batch number i, and for the number of batches.
    """
    run = wait.run
    kind = str(run.fit.get("input_kind", ""))
    pooled = kind == "Pooled"
    if run.framework == "torch" and not pooled:
        count = _workers_for(wait, wait.lost_ms, waiting=mostly_waits(wait))
        return loader_workers(
            f"{why} Let worker processes of a DataLoader do that. If they come from one already, "
            "give it to monitor.batches() itself: enumerate(monitor.batches(loader)).",
            f"loader = torch.utils.data.DataLoader(dataset, ..., num_workers={count}, "
            "persistent_workers=True)",
            wait.saves(max(wait.lost_ms / count, wait.cores_ms)),
        )
    if pooled:
        return Advice(
            f"{why} They are made in parallel already: use more workers, or make each cheaper."
        )
    # Batches made on a thread already cost only the time by which they are slower than the step.
    ahead = kind == "Ahead"
    if not ahead and wait.lost_ms <= wait.needed_ms:
        unless = " (unless a thread makes them already)" if not kind else ""
        return Advice(
            f"{why} Let a thread make the next one during the step{unless}.",
            ahead_code(kind == "generator", str(run.fit.get("input_class") or "generate")),
            wait.saves(wait.lost_ms),
        )
    one_ms = wait.arrives_ms if ahead else wait.lost_ms
    waits = mostly_waits(wait)
    count = _workers_for(wait, one_ms, waiting=waits)
    how = "threads" if waits else "processes (the GIL lets one thread compute at a time)"
    if_known = "" if made else ", if you can say how to make batch number i"
    guard = "" if waits else _GUARD
    function, number = made or ("make_batch", batches_an_epoch(run))
    return Advice(
        f"{why} That is slower than the step: let {count} {how} make several at a time{if_known}.",
        _POOLED.format(**(_THREADS if waits else _PROCESSES), workers=count)
        + f"\ndataset = Pooled({function}, {number}){guard or '  # once, before the epochs'}",
        _side_by_side(wait, one_ms, count, not waits),
    )


def ahead_code(generator: bool, function: str, ready: int = 1, *, fit: bool = False) -> str:
    """Return code for a thread that makes the next batches, in every pass over the data.

    Args:
        generator: whether `function` makes a new generator for each pass.
        ready: how many are kept ready.
        fit: whether Keras' `fit` takes it, which needs one generator for all epochs.
    """
    generator = generator and not fit
    code = _AHEAD.format(batches="self.batches()" if generator else "self.batches", ready=ready)
    if generator:
        return f"{code}\ndataset = Ahead(lambda: {function}(...))  # instead of {function}(...)"
    return f"{code}\ndataset = {'iter(Ahead(dataset))' if fit else 'Ahead(dataset)'}"


_AHEAD = """\
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

_THREADS = {"more": "", "kind": "Thread", "spawn": ""}
_PROCESSES = {
    "more": ", multiprocessing", "kind": "Process",
    "spawn": ', multiprocessing.get_context("spawn")',
}  # fmt: skip
_POOLED = """\
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


def mostly_waits(wait: InputWait) -> bool:
    """Return whether making batches mostly waits (for files, a network), hardly computing."""
    busy = process_cpu(wait.run, wait.where)
    return busy is not None and busy < (WAITS_WHEN_FULL if cores_full(wait) else WAITS)


def cores_full(wait: InputWait) -> bool:
    """Return whether all cores of the machine are busy."""
    return (cpu_pct(wait.run, wait.where) or 0) >= FULL_CPU_PCT


def brief(ms: float) -> str:
    """Format milliseconds: `12 ms`, `3.4 ms`, `0.8 ms`, `under 0.1 ms`."""
    return f"{ms:.0f} ms" if ms >= 9.95 else f"{ms:.1f} ms" if ms >= 0.05 else "under 0.1 ms"


STORED = 'ds.save("prepared")  # once\nds = tf.data.Dataset.load("prepared")'
READERS = ("TFRecord", "TextLine", "FixedLengthRecord")
CALL_US = Constant(
    60.0, "a call of a mapped function costs 10-30 µs by itself: below, the calls are the work"
)
MANY_ELEMENTS = Count(16, "elements a batch from which working on whole batches pays off")
# Several files or calls at a time: more rarely help, and each takes memory.
LEAST_AT_ONCE, MOST_AT_ONCE = 4, 32
COMPUTES = Constant(
    0.65, "CPU share from which a stage computes: with a free core it would use all of it"
)
# Batches to keep ready where some come late.
READY = 16
WORTH_IT = Constant(
    0.25, "advice that leaves more of the wait is not worth giving if there is an alternative"
)


def advise_stage(wait: InputWait) -> Advice:
    """Return the advice for a pipeline whose stages may be known."""
    run, stage = wait.run, wait.stage
    if run.fit.get("input_autotune") is False:
        return Advice(
            f"{_sentence(wait.pace)}. tf.data's autotuning is switched off for this dataset: "
            "TensorFlow adds no threads to its stages, and makes no batch ahead of time.",
            "options = tf.data.Options()\n"
            "options.autotune.enabled = True\n"
            "ds = ds.with_options(options)",
            wait.saves(wait.lost_ms),  # at least the next batch is made during the step
        )
    if wait.not_the_bottleneck:
        return _nobody(wait)
    if stage is None:
        return keep_it(wait, f"{_sentence(wait.pace)}. ") or Advice(
            f"{_sentence(wait.pace)}; which stage of the pipeline is slow was not measured. Make "
            "it cheaper, or store what it makes once and read that.",
            STORED,
        )
    if not wait.works_ahead and wait.lost_ms <= wait.needed_ms:
        return Advice(
            f"{_sentence(wait.pace)}. The pipeline makes each batch while the loop waits: let it "
            "make the next one during the step.",
            "ds = ds.prefetch(tf.data.AUTOTUNE)  # as its last step",
            wait.saves(wait.lost_ms),
        )
    for variant in (
        _generated, _several_files, _whole_batches, _python, _parallel, _batching, _more_threads,
    ):  # fmt: skip
        advice = variant(wait, stage)
        if advice is not None and advice.saves >= WORTH_IT:
            return advice
    return keep_it(wait, f"{_takes(wait, stage)}. ") or _cheaper(wait, stage)


def _generated(wait: InputWait, stage: Stage) -> Advice | None:
    """Return advice on a Python generator.

    It makes one element at a time, and only its author can split it. Several generators can
    wait at the same time; those that compute share one lock.
    """
    if not stage.op.startswith("Generator"):
        return None
    says = f"The generator makes one element at a time: {wait.pace}."
    if not mostly_waits(wait):
        return Advice(
            f"{says} Threads do not help where it computes in Python: let it yield what is cheap "
            "(a path, an index), and make the rest in a map of TensorFlow operations.",
            "ds = ds.map(your_function, num_parallel_calls=tf.data.AUTOTUNE)",
            wait.saves(wait.after(stage, 0.0)),
        )
    at_once = _enough(wait, wait.after(stage, 0.0), 1.5 * wait.arrives_ms)
    saves = wait.saves(wait.after(stage, max(wait.arrives_ms / at_once, wait.python_ms)))
    # By default TensorFlow lets no more of them wait at a time than there are cores.
    options = (
        f"options = tf.data.Options()\noptions.threading.private_threadpool_size = {at_once + 1}\n"
    )
    several = f"cycle_length={at_once}, num_parallel_calls={at_once}, deterministic=False"
    opener = next((one for one in wait.stages if "Interleave" in one.op), None)
    if opener is not None:
        return Advice(
            f"{_sentence(wait.pace)}. Its generators mostly wait, for files or a network: let "
            f"{at_once} of those that {opener.name} opens wait at the same time.",
            f"{options}ds = files.interleave({_function(opener)}, {several})\n"
            "ds = ds.with_options(options)",
            saves,
        )
    return Advice(
        f"{says} It mostly waits, for files or a network: split what it reads into {at_once} "
        "parts, each with a generator of its own.",
        f"{options}def part(k):\n"
        "    return tf.data.Dataset.from_generator(your_generator, ..., args=(k,))"
        f"  # element k, k + {at_once}, ...\n"
        f"ds = tf.data.Dataset.range({at_once}).interleave(part, {several})\n"
        "ds = ds.with_options(options)",
        saves,
    )


def _enough(wait: InputWait, least_ms: float, work_ms: float) -> int:
    """Return the threads on which this work takes no longer than the step or `least_ms`."""
    wanted = math.ceil(work_ms / max(0.1, wait.needed_ms, least_ms))
    return max(2, min(MOST_AT_ONCE, wanted))


def _several_files(wait: InputWait, stage: Stage) -> Advice | None:
    """Return advice on reading: by default TensorFlow reads one file at a time."""
    reader = next((name for name in READERS if stage.op.startswith(name)), None)
    opener = stage.inside or stage
    if opener.opens_files:
        return _opened(wait, opener, reader)
    return None if reader is None else _read(wait, f"{_takes(wait, stage)}", reader)


def _at_once(wait: InputWait) -> int:
    enough = math.ceil(2 * wait.arrives_ms / max(0.1, wait.needed_ms))
    return max(LEAST_AT_ONCE, min(MOST_AT_ONCE, enough))


def _opened(wait: InputWait, opener: Stage, reader: str | None = None) -> Advice | None:
    """Return advice on an interleave or flat_map; without a function name part of a reader."""
    if "fixed_parallelism" in opener.flags or opener.op.startswith("LegacyParallel"):
        return None
    several = "autotuned" in opener.flags
    at_once = _at_once(wait)
    saves = wait.saves(max(wait.arrives_ms * (2 if several else 1) / at_once, wait.cores_ms))
    if "(" not in opener.name:
        return _read(wait, _sentence(wait.pace), reader or "TFRecord", saves)
    reads = "reads few files at a time" if several else "reads one file at a time"
    return Advice(
        f"{opener.name} {reads}: {wait.pace}. Read {at_once} at a time.",
        f"ds = files.interleave({_function(opener)}, cycle_length={at_once}, "
        f"num_parallel_calls={at_once}, deterministic=False)",
        saves,
        before=f"ds = files.{opener.name.partition('(')[0]}({_function(opener)})",
    )


def _read(wait: InputWait, why: str, reader: str, saves: float | None = None) -> Advice:
    at_once = _at_once(wait)
    who = "it" if why.startswith(f"{reader}Dataset") else f"{reader}Dataset"
    size = "record_bytes, " if reader == "FixedLengthRecord" else ""
    return Advice(
        f"{why}: {who} reads one file at a time. Read {at_once} at a time (split a "
        "single large file), from a local disk if you can.",
        f"ds = tf.data.{reader}Dataset(filenames, {size}num_parallel_reads={at_once})",
        wait.saves(max(wait.arrives_ms / at_once, wait.cores_ms)) if saves is None else saves,
        before=f"ds = tf.data.{reader}Dataset(filenames{size and ', record_bytes'})",
    )


def _whole_batches(wait: InputWait, stage: Stage) -> Advice | None:
    """Return advice on a cheap function called per element: most of the time is call overhead."""
    if not stage.name.startswith("map") or stage.flags & {"py_function"}:
        return None
    each_us = 1e3 * stage.work_ms_per_batch / max(1e-9, stage.elements_per_batch)
    if stage.elements_per_batch < MANY_ELEMENTS or each_us > CALL_US:
        return None
    size = wait.run.fit.get("batch_size") or "batch_size"
    function = _function(stage)
    return Advice(
        f"{_takes(wait, stage)}: {stage.elements_per_batch:,.0f} calls of {each_us:.0f} µs, most "
        "of it the call itself. Batch first, and let the function work on whole batches.",
        f"ds = ds.batch({size}).map({function}, num_parallel_calls=tf.data.AUTOTUNE)",
        wait.saves(wait.after(stage, 0.0, stage.work_ms_per_batch)) if wait.stages else 1.0,
        before=f"{_written(stage)}.batch({size})",
    )


def _python(wait: InputWait, stage: Stage) -> Advice | None:
    """Return advice on a function that calls Python: one lock for all threads, unless it waits."""
    if "py_function" not in stage.flags or not stage.name.startswith("map"):
        return None
    threads = _threads(wait, stage)
    if threads is not None:  # known to wait
        return threads
    own = _function(stage)
    share = _cpu_share(wait, stage)
    unclear = share is None or (share < COMPUTES and not cores_full(wait))
    if unclear and _one_at_a_time(wait, stage):
        at_once = cpus(wait.run)
        return Advice(
            f"{_takes(wait, stage)}. It calls Python, one element at a time. Parallel calls help "
            "if it waits, for files or a network; if it computes, write it with TensorFlow "
            "operations instead.",
            _mapped(stage),
            wait.saves(wait.after(stage, stage.work_ms_per_batch / at_once)) if at_once else 1.0,
            before=_written(stage),
        )
    return Advice(
        f"{_takes(wait, stage)}. It computes in Python, which runs one thread at a time: write "
        f"{own} as {own}_tf, with TensorFlow operations (tf.image, tf.io, tf.strings) and no "
        "py_function or numpy_function; they run in parallel.",
        f"ds = ds.map({own}_tf, num_parallel_calls=tf.data.AUTOTUNE)",
        wait.saves(_rewritten(wait, stage)),
        before=_written(stage),
    )


def _rewritten(wait: InputWait, stage: Stage) -> float:
    """Return the time between batches without a stage's Python; the remainder is not known."""
    _, others = chain_ms(wait.stages, stage, 0.0)
    return min(others, wait.arrives_ms)


def _parallel(wait: InputWait, stage: Stage) -> Advice | None:
    """Return advice on TensorFlow operations limited to fewer threads than there are."""
    if not stage.name.startswith("map") or "autotuned" in stage.flags:
        return None
    if not (_one_at_a_time(wait, stage) or "fixed_parallelism" in stage.flags):
        return None
    threads = _threads(wait, stage)
    if threads is not None:
        return threads
    most = cpus(wait.run)
    if most is not None and stage.parallelism >= most:
        return None
    on = (
        ""
        if wait.overlaps
        else " on one thread"
        if stage.parallelism < 1.5
        else f" on {stage.parallelism:.0f} threads"
    )
    return Advice(
        f"{_takes(wait, stage, on)}. Let TensorFlow choose the number of threads.",
        _mapped(stage),
        wait.saves(wait.after(stage, stage.work_ms_per_batch / most)) if most else 1.0,
        before=_written(stage),
    )


def _batching(wait: InputWait, stage: Stage) -> Advice | None:
    """Return advice on copying elements into batches, which TensorFlow does on one thread."""
    if stage.name != "batch" or stage.op.startswith("Parallel"):
        return None
    most = cpus(wait.run)
    size = wait.run.fit.get("batch_size") or "batch_size"
    return Advice(
        f"{_takes(wait, stage)}: one thread copies its elements together. Let several do it.",
        f"ds = ds.batch({size}, num_parallel_calls=tf.data.AUTOTUNE)",
        wait.saves(wait.after(stage, stage.work_ms_per_batch / most)) if most else 1.0,
        before=f"ds = ds.batch({size})",
    )


def _more_threads(wait: InputWait, stage: Stage) -> Advice | None:
    """Return advice on a parallel stage whose calls wait: more of them than cores can wait."""
    return _threads(wait, stage) if stage.name.startswith("map") else None


def _threads(wait: InputWait, stage: Stage) -> Advice | None:
    """Return parallel calls for a stage that is known to wait, not compute; None for any other."""
    share, most = _cpu_share(wait, stage), cpus(wait.run)
    if share is None or most is None:
        return None
    if share > (WAITS_WHEN_FULL if cores_full(wait) else WAITS):
        return None
    python_ms = wait.python_ms if "py_function" in stage.flags else 0.0
    wanted = _enough(wait, wait.after(stage, python_ms), 1.5 * stage.work_ms_per_batch)
    if wanted <= stage.parallelism:
        return None  # this many run already
    says = f"{_takes(wait, stage)}. It mostly waits (for files, a network) while the CPU idles: let"
    if wanted <= most:
        return Advice(
            f"{says} several of its calls wait at the same time.",
            _mapped(stage),
            wait.saves(wait.after(stage, max(stage.work_ms_per_batch / most, python_ms))),
            before=_written(stage),
        )
    return Advice(
        f"{says} {wanted} of its calls wait at the same time. By itself TensorFlow runs no more of "
        f"them than there are cores, {most}.",
        "options = tf.data.Options()\n"
        f"options.threading.private_threadpool_size = {wanted}\n"
        f"{_mapped(stage, wanted)}\n"
        "ds = ds.with_options(options)",
        wait.saves(wait.after(stage, max(stage.work_ms_per_batch / wanted, python_ms))),
        before=_written(stage),
    )


def _cpu_share(wait: InputWait, stage: Stage) -> float | None:
    """Return the CPU time of the whole process per batch, as a share of the stage's time for it.

    The stage cannot have used more. None = not sampled.
    """
    busy = process_cpu(wait.run, wait.where)
    if busy is None:
        return None
    work_ms = stage.work_ms_per_batch
    if "py_function" in stage.flags:
        # Python computes in one thread at a time: threads queueing for it wait, too.
        work_ms = min(work_ms, wait.arrives_ms)
    return busy * wait.arrives_ms / max(1e-9, work_ms)


def _irregular(wait: InputWait) -> Advice:
    """Return advice for stages that are fast enough: their mean hides what delays some batches."""
    slowest = max(wait.stages, key=lambda one: 0.0 if one.passing else one.ms_per_batch)
    return Advice(
        f"{_sentence(wait.pace)}, although the pipeline is fast enough on average (its slowest "
        f"stage, {slowest.name}, takes {brief(slowest.ms_per_batch)} a batch). Some batches come "
        "late, or something outside the pipeline delays them: which one is not known. If they come "
        "late, a larger buffer evens that out.",
        f"ds = ds.prefetch({READY})  # as its last step",
        0.0,  # nobody knows whether it helps
    )


def _nobody(wait: InputWait) -> Advice:
    seen, own = cpu_pct(wait.run, wait.where), process_cpu(wait.run, wait.where)
    opened = _opened(wait, wait.opener) if wait.opener else None
    idles = own is not None and own < WAITS
    timed_ms = sum(stage.ms_per_batch for stage in wait.stages if not stage.passing)
    # Where nothing is computed and no stage was seen at work, it is the files that are waited for.
    if opened is not None and idles and (timed_ms < LITTLE * wait.lost_ms or not wait.keeps_up):
        return opened
    if wait.keeps_up:
        return _irregular(wait)
    if seen is not None and not cores_full(wait):
        return Advice(
            f"{_sentence(wait.pace)}, although no stage of the pipeline takes long and the CPU is "
            f"{seen:.0f} % busy: a stage waits for something outside, a file system or a "
            "network. Move the data closer, or read more of it at a time.",
        )
    return Advice(
        f"{_sentence(wait.pace)}, although no stage of the pipeline takes long: other programs, or "
        "too few cores for the threads, keep the CPU busy. Stop whatever else runs during "
        "training (top -H shows it).",
    )


def _cheaper(wait: InputWait, stage: Stage) -> Advice:
    """Return the last resort: less work."""
    several = stage.parallelism >= 1.5 and not wait.overlaps
    shared = f" on {stage.parallelism:.0f} threads already" if several else ""
    after_cache = not stage.cached and any(one.cached for one in wait.stages)
    if after_cache and stage.name.startswith("map"):
        again = f"{_takes(wait, stage, shared)}. It comes after the cache, so that every epoch"
        if "stateful" in stage.flags:
            return Advice(
                f"{again} does it again. Random augmentation can be layers of the model, on the "
                "GPU; do the rest before the cache."
            )
        return Advice(
            f"{again} does it again: do before the cache what is not random.",
            f"ds = ds.map({_function(stage)}, num_parallel_calls=tf.data.AUTOTUNE).cache()",
            before=f"ds = ds.cache(){_written(stage).removeprefix('ds = ds')}",
        )
    if not stage.name.startswith("map"):
        return Advice(
            f"{_takes(wait, stage, shared)}. Do less in it, or "
            "store its result once and read that.",
            STORED,
        )
    return Advice(
        f"{_takes(wait, stage, shared)}. Make it cheaper (smaller images, whole batches at a time) "
        "or store its result once and read that; random augmentation can be layers of the model, "
        "on the GPU.",
        STORED,
    )


def _takes(wait: InputWait, stage: Stage, on: str = "") -> str:
    """Return the stage's time in words; `on`: with its number of threads, if that matters."""
    summed = ", summed over its threads" if wait.overlaps else on
    took, needed = brief(stage.work_ms_per_batch), brief(wait.needed_ms)
    if stage.name in ("batch", "padded_batch"):
        each = f"Putting a batch together takes {took}{summed}"
    else:
        each = f"{stage.name} takes {took} a batch{summed}"
    alone_ms = stage.work_ms_per_batch if wait.overlaps else stage.ms_per_batch
    if alone_ms >= wait.needed_ms or not wait.stages:
        return f"{each}, but the model could take one every {needed}"
    if not wait.works_ahead:
        return f"{each}, while the model waits"
    if wait.read_elsewhere:
        return f"{stage.name} is the slowest stage of the pipeline, and {wait.pace}"
    _, slowest_ms = chain_ms(wait.stages)
    if slowest_ms >= wait.needed_ms:
        return (
            f"{each}. With the other stages on its thread that is {brief(slowest_ms)}, but the "
            f"model could take one every {needed}"
        )
    return f"{each}; {wait.pace}"


def _one_at_a_time(wait: InputWait, stage: Stage) -> bool:
    if wait.overlaps:
        return False
    return bool(stage.flags & {"sequential", "fixed_parallelism"}) and stage.parallelism < 1.5


def _function(stage: Stage) -> str:
    """Return the user's name of a stage's function; a lambda has none."""
    named = re.search(r"\((\w+)\)", stage.name)
    return named[1] if named and named[1] != "lambda" else "your_function"


def _written(stage: Stage) -> str:
    """Return the line of a map as it is written now."""
    calls = ""
    if "autotuned" in stage.flags:
        calls = ", num_parallel_calls=tf.data.AUTOTUNE"
    elif "fixed_parallelism" in stage.flags:
        calls = f", num_parallel_calls={stage.parallelism:.0f}"
    return f"ds = ds.map({_function(stage)}{calls})"


def _mapped(stage: Stage, calls: int | None = None) -> str:
    several = calls or "tf.data.AUTOTUNE"
    return (
        f"ds = ds.map({_function(stage)}, num_parallel_calls={several}, deterministic=False)"
        "  # in any order"
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def advise_traced_stage(name: str) -> Advice:
    """Return advice by the kind of a trace's slowest tf.data stage: its function is not known."""
    says = f"The input pipeline is too slow; most of its own work is in the stage {name}. "
    if re.fullmatch(r"Map(V\d+)?", name):
        return Advice(
            f"{says}Let several of its calls run at a time, unless its function is Python "
            "(py_function), which runs one at a time: write that with TensorFlow operations.",
            "ds = ds.map(your_function, num_parallel_calls=tf.data.AUTOTUNE)",
        )
    if name.startswith("Generator"):
        return Advice(
            f"{says}A Python generator makes one element at a time: read and prepare them "
            "with tf.data stages instead, which run in parallel.",
        )
    if re.fullmatch(r"(Padded)?Batch(V\d+)?", name):
        return Advice(
            f"{says}One thread copies its elements together. Let several do it.",
            "ds = ds.batch(batch_size, num_parallel_calls=tf.data.AUTOTUNE)"
            if name.startswith("Batch")
            else "",
        )
    if name.startswith(READERS):
        return Advice(
            f"{says}Read several files at a time.",
            "ds = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)"
            if name.startswith("TFRecord") else "",
        )  # fmt: skip
    return Advice(f"{says}Do less in it, or store its result once and read that.", STORED)
