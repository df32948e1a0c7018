"""Advice on a slow input: the table for its kind, for loops of the user's own, and for its set-up in each epoch."""

import math
from dataclasses import dataclass, replace

from gpu_util_callback.diagnosis.advice import loaders, tf_data
from gpu_util_callback.diagnosis.advice.host import LEFT
from gpu_util_callback.diagnosis.advice.input_wait import NO_STAGE, InputWait
from gpu_util_callback.diagnosis.advice.input_work import ONCE, work_of
from gpu_util_callback.diagnosis.advice.loaders import BATCH_I, CORE_FREE, GUARD, ITEM_WAITS, Workers
from gpu_util_callback.diagnosis.advice.snippets import batches_an_epoch, steps_an_epoch
from gpu_util_callback.diagnosis.advice.table import Entry, choose, first_holding
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.rule import Advice
from gpu_util_callback.diagnosis.thresholds import A_FEW, A_TENTH, AGAIN, MOSTLY
from gpu_util_callback.words import capitalized, percent

# Words in the kind of an input of `fit`, and the table for it.
_OF_FIT = (
    ("dataloader", loaders.DATA_LOADER),
    ("pydataset", loaders.PY_DATASET),
    ("sequence", loaders.PY_DATASET),
    ("generator", loaders.GENERATOR),
    ("numpy", ()),
    ("grain", loaders.GRAIN),
)
# Nothing shows whether the loop wants the first batch of each pass.
ITERATOR_EACH_STEP = Entry(
    "an iterator a step",
    when=lambda wait: wait.run.custom_loop and steps_an_epoch(wait.run) == 1,
    says="Each step makes an iterator of its own, so that the input starts again for each batch: "
    "{pace}. An iterator that is made once goes on with the next batch.",
)
_ANYWHERE = ("dataloader", "grain")  # made by the library's workers, in loops as in `fit`


def advise(wait: InputWait) -> Advice:
    """Return the advice on a wait for input: the best remedy, or the limit where none helps."""
    if ITERATOR_EACH_STEP.when(wait):  # the input starts again for each batch
        return ITERATOR_EACH_STEP.advice(wait)
    of_kind = advise_kind(wait)
    if of_kind is not None:  # decided by the kind of the input
        return of_kind
    if tf_data.IN_ORDER.when(wait):
        return tf_data.IN_ORDER.advice(wait)
    in_python = tf_data.is_python(wait)
    # tf.data: remedies for a Python function, for work in vain, for the stage; else what limits it.
    of_stage = (in_python and choose(loaders.OF_CALLS, wait)) or (
        choose(tf_data.IN_VAIN, wait) or choose(tf_data.REMEDIES, wait) or first_holding(tf_data.LIMITS, wait)
    )
    return at_line(wait, of_stage) if in_python else of_stage


def advise_kind(wait: InputWait) -> Advice | None:
    """Return the advice if the kind of the input decides it; None if a tf.data stage decides.

    Keras makes a tf.data pipeline of a generator or a PyDataset: its stage is not the user's.
    """
    tables = [table for word, table in _OF_FIT if word in wait.kind and (not wait.run.custom_loop or word in _ANYWHERE)]
    is_loop = wait.kind or wait.run.custom_loop or wait.run.framework == "jax"
    # Nothing of its kind: a tf.data stage, or a trace.
    if not tables and (wait.stage is not NO_STAGE or wait.kind == "tf.data" or not is_loop):
        if wait.run.framework == "torch" and not is_loop:  # nothing more is known of an imported trace
            return choose(loaders.DATA_LOADER, wait) or first_holding(loaders.LIMITS, wait)
        return None
    of_calls = choose(loaders.OF_CALLS, wait) or next(  # what the Python function spends its time in comes first
        (entry.advice(wait) for entry in loaders.OF_CALLS_LIMITS if tables and entry.when(wait)), None
    )
    table, limits = (tables[0], loaders.LIMITS) if tables else (LOOP, LOOP_LIMITS)
    remedies = () if tables and wait.made_at_once else table
    return of_calls or at_line(wait, choose(remedies, wait) or first_holding(limits, wait))


def at_line(wait: InputWait, advice: Advice) -> Advice:
    """Return the advice with the program's line that the input's function mostly is in, and what it does there."""
    work = work_of(wait)
    # No line is known, or the advice says so already.
    if wait.made_at_once or not (wait.call_line or work) or (work is not None and work.does in advice.text):
        return advice
    place = f"{wait.call_name} is mostly at {wait.call_line}" if wait.call_line else f"Most of {wait.call_name} is"
    if work is not None:
        place += f"{', where' if wait.call_line else ' that'} {work.does}: {work.instead[:1].lower()}{work.instead[1:]}"
        place += f"; this changes {work.changes}" * bool(work.changes)
    # What to do stands at the end, where a short report begins.
    observed = advice.text.removesuffix(advice.remedy).rstrip() if advice.remedy else advice.text
    advice = replace(advice, text=f"{observed} {place}. {advice.remedy}".strip())
    if work is None or not work.code or advice.saves:  # the advice has a remedy of its own
        return advice
    return replace(advice, code=work.code, changes=work.changes)


def made_once(wait: InputWait) -> Advice | None:
    """Return the advice to make once what does not change between passes; None if that gains little."""
    table = next((table for word, table in _OF_FIT if word in wait.kind), tf_data.REMEDIES)
    return choose([entry for entry in table if entry.frees_cores], wait)


def advise_cores(wait: InputWait) -> Advice:
    """Return advice for an input that takes the cores from the steps.

    Make once what does not change between passes; without such a remedy, make samples cheaper.
    """
    keeping = made_once(wait)
    says = (
        f"The input computes on {wait.input_cpus or 0:.1f} of {wait.cores.allowed} cores, and threads wait for a core "
        f"for {percent(100 * (wait.cores.queued or 0))} of the time: more workers would slow the steps further."
    )
    if keeping is None:
        return at_line(wait, Advice(f"{says}{loaders.cheaper(wait, 'sample')}", name="cores"))
    return replace(keeping, text=f"{says} {keeping.remedy}")


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
        generator: True if `function` makes a new generator for each pass.
        function: its name in the program.
        ready: number of batches kept ready.
        fit: True if Keras' `fit` takes it, which needs one generator for all epochs.
    """
    generator = generator and not fit
    code = AHEAD.format(batches="self.batches()" if generator else "self.batches", ready=ready)
    if generator:
        return f"{code}\ndataset = Ahead(lambda: {function}(...))  # instead of {function}(...)"
    return f"{code}\ndataset = {'iter(Ahead(dataset))' if fit else 'Ahead(dataset)'}"


def _workers(wait: InputWait) -> Workers:
    """Return threads if making a batch waits, else processes."""
    # Where a thread makes them already, only its time beyond the step is lost.
    batch_ms = wait.arrives_ms if wait.kind in ("ahead", "pooled") else wait.lost_ms
    return Workers(wait, batch_ms, wait.waits is True, processes=wait.waits is not True)


def _pool_question(wait: InputWait) -> str:
    """Return what is to be asked before several threads or processes make batches."""
    if "pydataset" not in wait.kind:
        return BATCH_I
    return "May several threads call __getitem__ at the same time?" if wait.waits is True else CORE_FREE


def _pooled(wait: InputWait) -> str:
    """Return code for a pool of threads or processes, each of which makes whole batches."""
    workers = _workers(wait)
    dataset = "pydataset" in wait.kind
    function, number = (
        ("dataset.__getitem__", "len(dataset)") if dataset else ("make_batch", batches_an_epoch(wait.run))
    )
    return (
        POOLED.format(**(PROCESSES if workers.processes else THREADS), workers=workers.count)
        + f"\ndataset = Pooled({function}, {number})"
        + (GUARD if workers.processes else "  # once, before the epochs")
    )


def _loader(wait: InputWait) -> str:
    """Return the line of a DataLoader, or of a node of torchdata, with enough workers."""
    count = _workers(wait).count
    if wait.kind == NODES:
        method = "process" if _workers(wait).processes else "thread"
        return f'node = torchdata.nodes.ParallelMapper(node, map_fn, num_workers={count}, method="{method}")'
    return f"loader = torch.utils.data.DataLoader(dataset, ..., num_workers={count}, persistent_workers=True)"


NODES = "torchdata nodes"  # kind of torchdata's own loader
# Of other batches, and of a pipeline of such nodes.
_BEHIND = ("a torch Dataset behind them, not read by worker processes yet", "a node that maps each sample for itself")
_BY = ("of a DataLoader make them, and give it to monitor.batches() itself: enumerate(monitor.batches(loader))", "map")


def _on_torch(wait: InputWait) -> bool:
    return wait.run.framework == "torch" and wait.kind != "pooled"


LOOP = (
    Entry(
        "DataLoader",
        untried="it replaces the loop's own batches",
        when=lambda wait: _on_torch(wait) and wait.workers_may_help,
        says="{loop_paces}.",
        asks=lambda wait: f"Is there {_BEHIND[wait.kind == NODES]}?",
        remedy=lambda wait: f"Let workers {_BY[wait.kind == NODES]}",
        code=_loader,
        saves=lambda wait: _workers(wait).saves,
        proof="loop_loader",
    ),
    Entry(
        "a thread",
        when=lambda wait: (
            wait.kind not in ("ahead", "pooled")
            # A thread can make a batch during the step: it waits, or has a core.
            and (wait.waits is True or wait.run.device == "gpu" or wait.cores.own is None or wait.cores.has_room)
            and wait.lost_ms <= wait.needed_ms
            and not _on_torch(wait)
        ),
        says="{loop_paces}.",
        asks=lambda wait: "" if wait.kind else "Does the loop itself make them?",
        remedy="Let a thread make the next one during the step; each batch must be arrays of its own",
        code=lambda wait: ahead_code(wait.kind == "generator", wait.input_class or "generate"),
        saves=lambda wait: wait.saves(max(wait.lost_ms, wait.needed_ms)),
        proof="loop_thread",
    ),
    Entry(
        "threads or processes",
        when=lambda wait: not _on_torch(wait) and wait.kind != "pooled" and wait.workers_may_help,
        says="{loop_paces}.",
        asks=_pool_question,
        remedy="Let several be made at a time",
        code=_pooled,
        saves=lambda wait: _workers(wait).saves,
        proof="loop_pool",
    ),
)

# What holds the loop up where no remedy gains enough; no code, no promise.
LOOP_LIMITS = (
    Entry(
        "pooled",
        when=lambda wait: wait.kind == "pooled",
        says="Batches are made in parallel already, and still {pace}. Use more workers where cores "
        "are free, or make each batch cheaper.",
    ),
    Entry(
        "loop",
        says=lambda wait: (
            f"{wait.loop_paces}.{f' {capitalized(wait.cores.busy)}.' if wait.cores.full else ''}"
            f"{loaders.cheaper(wait, 'batch')}"
        ),
    ),
)


_TRAIN_ON_BATCH = """with GpuUtilMonitor("logs") as monitor:
    for x, y in batches:
        with monitor.step():
            model.train_on_batch(x, y)"""


_GATHERED = """features, labels = tf.constant(x), tf.constant(y)
rows = tf.data.Dataset.range(len(x)).shuffle(len(x)).batch({batch_size})
data = rows.map(lambda i: (tf.gather(features, i), tf.gather(labels, i)), num_parallel_calls=2)
options = tf.data.Options()
options.autotune.enabled = False
data = data.prefetch(2).with_options(options)  # model.fit(data, ...)"""


@dataclass(frozen=True)
class SetUp:
    """Set-up of the input for each epoch.

    Attributes:
        fact: the observation, as a sentence.
        share: of the time that it takes, 0-1.
        saves: share of the loss that is saved where it is done once.
        fills: the work with which a shuffle fills its buffer takes half of that time or more.
        is_cut: epochs end before the loader does; workers that stay make what is ahead of them first.
    """

    run: Run
    fact: str
    share: float
    saves: float
    fills: bool = False
    is_cut: bool = False

    @property
    def busy_function(self) -> str:
        """The function of the program that most of it passes in, with its line, as a clause; "" = not known."""
        time_s, calls = self.run.account["time_s"], self.run.fit.get("input_calls") or []
        of_wait = min(1.0, self.share * sum(time_s.values()) / max(1e-9, time_s["input_wait"]))
        # The line may be that of the other waits too.
        # Samples that a line must have.
        least = (1 - of_wait + MOSTLY * of_wait) * max(A_FEW / MOSTLY, sum(call.get("samples") or 0 for call in calls))
        at_begin = (call for call in calls if call["name"].endswith(("__iter__", "on_epoch_end")))
        busy = (call for call in at_begin if call.get("in_line", 0) >= least)
        return next((f"{call['name']} takes most of that, mostly at {call['line']}" for call in busy), "")

    @property
    def cheaper(self) -> str:
        """The way to make it cheaper or rarer, without a full stop."""
        if self.busy_function:
            return f"{self.busy_function}. Make {ONCE}, what is the same each time, and the rest of whole arrays"
        if "pydataset" in self.run.input_kind:
            return "Its on_epoch_end runs, and its first batches are made, while training waits: make both cheaper"
        return "Longer epochs need it less often"

    @property
    def each_fit(self) -> bool:
        """True if most epochs are a fit of their own, of a series."""
        epochs = self.run.phases.of("epoch").get("")
        return epochs is not None and 2 * int(self.run.manifest.get("fits", 1)) > epochs.count

    @property
    def starts_workers(self) -> bool | None:
        """True if a DataLoader starts its workers in every epoch; None = not known."""
        fit = self.run.fit
        if "dataloader" in self.run.input_kind:
            workers, are_persistent = fit.get("input_workers"), fit.get("input_persistent_workers")
            return None if workers is None else workers > 0 and not are_persistent
        return None if self.run.framework == "torch" and not self.run.input_kind else False

    @property
    def passes(self) -> int:
        """Passes over the data an epoch with which it takes a tenth of the time; fewer where few epochs remained."""
        needed = math.ceil((1 / A_TENTH - 1) * self.share / max(1e-9, 1 - self.share))
        return min(needed, int(self.run.fit.get("epochs") or 0) // LEFT)

    @property
    def arrays(self) -> list[str]:
        """Names of the arrays that `fit` gets, if they may be repeated in memory `passes` times; [] = they may not.

        They are too large, or not known, or `fit` splits others than x and y, and would validate on copies.
        """
        names, limit = ["x", *self.run.fit.get("input_beside", ())], self.run.host_limit
        sizes = [array.get("bytes") or math.inf for array in self.run.fit.get("input_first", ())]
        is_cut = bool(self.run.fit.get("validation_split")) and names != ["x", "y"]
        if limit is None or len(sizes) != len(names) or "sample_weight" in names or is_cut:
            return []
        return names if self.passes * sum(sizes) <= A_TENTH * limit[0] else []

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch; None = not known."""
        return self.run.fit.get("batch_size")

    @property
    def shuffles_two_arrays(self) -> bool:
        """True if `fit` gets two arrays, x and y of equal length that its own tf.data pipeline shuffles."""
        fit, arrays = self.run.fit, self.run.fit.get("input_first", ())
        if (self.run.input_kind, self.run.framework) != ("numpy", "tensorflow") or self.batch_size is None:
            return False
        are_x_and_y = fit.get("input_beside") == ["y"] and len(arrays) == 2
        alike_long = len({array.get("rows") for array in arrays}) == 1
        splits = bool(fit.get("validation_split"))  # `fit` splits arrays only
        few_fits = int(self.run.manifest.get("fits", 1)) < A_FEW  # each fit would set up its own
        shuffles = any(stage.get("random") for stage in fit.get("input_maps", ()))
        return are_x_and_y and alike_long and few_fits and shuffles and not splits


def _several_passes(epoch: SetUp) -> str:
    """Return lines of `fit` whose epochs make several passes over the data each, as many passes in all as now."""
    epochs = round(epoch.run.fit["epochs"] / epoch.passes)
    if epoch.run.input_kind == "tf.data":  # a dataset repeats itself
        return f"ds = ds.repeat({epoch.passes})\nmodel.fit(ds, ..., epochs={epochs})"
    names, split = ", ".join(epoch.arrays) + "," * (len(epoch.arrays) == 1), epoch.run.fit.get("validation_split")
    if not split:  # arrays are repeated in memory; of a validation split only its training part
        repeated = f"arrays = [np.concatenate([array] * {epoch.passes}) for array in ({names})]"
        return f"{repeated}\nmodel.fit(*arrays, ..., epochs={epochs})"
    return (
        f"n = int(len(x) * (1 - {split}))\n"
        f"arrays = [np.concatenate([array[:n]] * {epoch.passes}) for array in (x, y)]\n"
        f"model.fit(*arrays, ..., validation_data=(x[n:], y[n:]), epochs={epochs})  # without validation_split"
    )


def _keeping_workers(epoch: SetUp) -> str:
    if epoch.run.trainer == "transformers":
        return "TrainingArguments(..., dataloader_persistent_workers=True)"
    # Ray Train's prepare_data_loader makes a loader anew, without them, unless it has a sampler for its part.
    of_ray = epoch.run.manifest.get("trial_of") == "Ray Train" and epoch.run.manifest.get("world_size", 1) > 1
    sampler = "sampler=DistributedSampler(dataset), " if of_ray else ""
    return f"loader = DataLoader(dataset, ..., {sampler}persistent_workers=True)"


SEVERAL_PASSES = "several passes an epoch"
CHEAPER = "Elements that cost less shorten that, as does a smaller buffer, which shuffles less well."

PERSISTENT_WORKERS = Entry(
    "persistent workers",
    when=lambda epoch: epoch.starts_workers is not False,
    says=lambda epoch: (
        f"{epoch.fact} The DataLoader starts its workers for every epoch." if epoch.starts_workers else epoch.fact
    ),
    asks=lambda epoch: (
        "Does the dataset stay as it is between the epochs?"
        if epoch.starts_workers
        else "Does a DataLoader start worker processes for every epoch, and its dataset stay as it is?"
    ),
    remedy="Keep them",
    code=_keeping_workers,
    saves=lambda epoch: 0.0 if epoch.is_cut else epoch.saves,
    proof="blind/second/kfold_workers",
)
SET_UP = (
    Entry(
        "one fit",
        when=lambda epoch: epoch.each_fit,
        says="{fact} Every call of fit begins with that.",
        asks="Can one call train on more batches, or a loop of your own train on each?",
        remedy="Do that",
        code=_TRAIN_ON_BATCH,
        saves=lambda epoch: epoch.saves,
        proof="fits_of_parts",
    ),
    PERSISTENT_WORKERS,
    Entry(
        "shuffle",
        when=lambda epoch: epoch.fills,
        says=f"{{fact}} A shuffle fills its buffer then, before the first batch. {CHEAPER}",
    ),
    Entry(
        SEVERAL_PASSES,
        when=lambda epoch: (
            epoch.share >= MOSTLY
            and epoch.passes >= AGAIN
            and not epoch.run.custom_loop
            and (epoch.run.input_kind == "tf.data" or (epoch.run.input_kind == "numpy" and bool(epoch.arrays)))
        ),
        says="{fact} An epoch is too short for that.",
        asks="May logs, validation and callbacks come after every {passes} passes over the data?",
        remedy="Let each epoch make that many",
        changes=lambda epoch: (
            "which samples share a batch"
            if epoch.run.input_kind == "numpy"
            else "the order of the samples, where it is shuffled"
        ),
        code=_several_passes,
        # 400 epochs of two steps took 48 to 56 s, 20 of as many passes each 3 to 6 s, measured.
        saves=lambda epoch: epoch.saves * (1 - 1 / epoch.passes),
        proof="tiny_epochs",
    ),
    Entry(
        "no autotuning",
        # With it an iterator took 0 to 640 ms to end, 0 to 40 ms without it; of one program's five pairs one gained
        # 1.24 times, the others 1.01 to 1.13, and none used less CPU: no gain is promised.
        when=lambda epoch: epoch.run.input_kind == "tf.data" and epoch.run.fit.get("input_autotune") is not False,
        says="{fact} That is also the end of the last epoch's iterator, which tf.data's autotuning holds up at times.",
        asks="Is an epoch shorter without autotuning?",
        remedy="Switch it off",
        code="options = tf.data.Options()\noptions.autotune.enabled = False\nds = ds.with_options(options)",
    ),
    Entry(
        "processes of a PyDataset",
        when=lambda epoch: "pydataset" in epoch.run.input_kind and epoch.run.fit.get("input_processes"),
        says="{fact} Keras starts the worker processes for every epoch.",
        asks=ITEM_WAITS,
        remedy="Use threads, which start at once",
        code="dataset.use_multiprocessing = False  # your PyDataset, before model.fit(dataset)",
        saves=lambda epoch: epoch.saves,
        proof="pydataset_processes_again",
    ),
    Entry(
        "arrays without autotuning",
        # 30 epochs of 32 steps took 6.9 to 7.7 s, so 4.7 to 7.2 s; the first batch of each 64 and 4 ms, measured.
        when=lambda epoch: epoch.shuffles_two_arrays,
        says="{fact} Keras makes a tf.data pipeline of the arrays, whose autotuning holds up the end of an epoch's "
        "iterator at times.",
        asks="Is an epoch shorter with a pipeline without autotuning?",
        remedy="Give it to fit in place of x, y and batch_size",
        code=_GATHERED,
        changes="the order of the samples, and so the weights",
        saves=lambda epoch: epoch.saves / 2,  # the set-up also makes the first batch
        proof="digits",
    ),
    Entry("anything", says="{fact} {cheaper}."),
)
