"""Advice on what makes batches in Python: DataLoader, PyDataset, generator, Grain."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpu_util_callback.diagnosis.advice.input_wait import MOST_WORKERS, ROWS_IN_MEMORY, InputWait, brief, first_types
from gpu_util_callback.diagnosis.advice.input_work import ONCE, work_of
from gpu_util_callback.diagnosis.advice.snippets import batches_an_epoch
from gpu_util_callback.diagnosis.advice.table import Entry
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.thresholds import A_QUARTER, AGAIN, MOSTLY, THREE_QUARTERS, Constant
from gpu_util_callback.recording.manifest_facts import InputFile
from gpu_util_callback.words import percent

HANDING_OVER_MS = Constant(2.5, "a worker process hands over a batch in 2 to 3 ms, measured")
COPYING_MS = Constant(1.3, "copying a MB for another process took a core 0.84 to 0.98 ms; more is other work")
INDEXING_MS = Constant(0.02, "indexing two tensors computes for 3 µs, converting one of a few values for 10, measured")
KEPT_MS = Constant(0.15, "a batch that was made before takes this long to pick up, measured")

NO_FORK = "JAX cannot be forked while it holds a GPU: these start fresh and import the script"
IN_WORKERS = "the dataset's random numbers, and hides its later changes"
GUARD = '  # under if __name__ == "__main__":'
CORE_FREE = "Is a CPU core free for each worker process?"
BATCH_I = "Can you write make_batch(i), which makes batch number i alone?"
ITEM_WAITS = "Does __getitem__ mostly wait, for files or a network?"


# -- what workers gain -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Workers:
    """Workers that make batches ahead of time.

    Attributes:
        batch_ms: the time for which one of them is busy with a batch.
        waits: they mostly wait, and may be more than the cores.
        processes: False = threads, which share the interpreter.
    """

    wait: InputWait
    batch_ms: float
    waits: bool
    processes: bool = True

    @property
    def count(self) -> int:
        """Number of workers that keep up with the model, a fifth to spare; at least 2.

        Computing ones need a free core each; more than the shards of the data would have nothing to read.
        """
        wait = self.wait
        needed_workers = math.ceil(1.2 * self.batch_ms / max(0.1, wait.needed_ms))
        most_workers = wait.run.fit.get("input_shards") or MOST_WORKERS
        if self.waits:
            return max(2, min(most_workers, MOST_WORKERS, needed_workers))
        cores = wait.cores.allowed or MOST_WORKERS
        free_workers = cores if wait.room_unknown else min(cores, int(wait.workers + wait.cores.spare))
        return max(2, min(most_workers, MOST_WORKERS, needed_workers, free_workers))

    @property
    def saves(self) -> float:
        """Share (0-1) of the wait that is gone with them.

        Threads are limited by the interpreter, processes that compute by the free cores, a DataLoader's by handing
        batches over.
        """
        wait, count = self.wait, self.count
        if not self.waits and self.processes and not wait.room_unknown:  # no more than have a core
            count = min(count, max(1, int(wait.workers + wait.cores.spare)))
        least_ms = 0.0
        if not self.processes:
            # A function may wait for threads that a library or a pool of its own computes on.
            # In a step all of PyTorch's threads but the training's own may spin, which is no computation.
            spun = ((wait.run.fit.get("step_threads") or wait.cores.allowed) - 1) * (wait.run.framework == "torch")
            least_ms = max(wait.interpreter_ms(wait.python_ms), wait.cores_ms(spun * wait.needed_ms) / THREE_QUARTERS)
        elif not wait.workers and wait.cores.own is not None:
            least_ms = wait.cores_ms()
        handing_ms = 0.0
        if self.processes and "dataloader" in wait.kind:
            measured = _handing_ms(wait)
            handing_ms = HANDING_OVER_MS if measured is None else measured
        handling_ms = max(handing_ms, wait.calls.handled * wait.lost_ms)
        arrives_ms = max(self.batch_ms / count, least_ms, wait.needed_ms + handling_ms)
        # Nobody makes a pass's first batch ahead of it.
        return wait.saves(arrives_ms + self.batch_ms / wait.batches_a_pass)


# -- code ------------------------------------------------------------------------------------------


def fork_safe(run: Run) -> bool:
    """Return False where JAX holds a GPU: a forked child would hang or abort."""
    return (run.framework, run.device) != ("jax", "gpu")


def starts_fresh(run: Run) -> bool:
    """Return whether Python starts worker processes by importing the script, which needs a guard then."""
    version = re.match(r"3\.(\d+)", str(run.framework_facts.get("python", "")))
    newer = version is not None and int(version[1]) >= 14
    return newer or run.machine.get("system") in ("Windows", "Darwin")


def loader_line(wait: InputWait, workers: int, more: str = "") -> str:
    """Return the line of a DataLoader with worker processes; they spawn where they cannot be forked.

    Args:
        more: further arguments, with a comma in front.
    """
    if wait.run.trainer == "transformers":
        line = f"TrainingArguments(..., dataloader_num_workers={workers}, dataloader_persistent_workers=True)"
        return line + (GUARD if starts_fresh(wait.run) else "")
    pinned = wait.run.fit.get("input_pin_memory") or not wait.run.used_gpus
    pinning = "" if pinned else ", pin_memory=True"
    arguments = f"num_workers={workers}, persistent_workers=True{pinning}{more}"
    line = f"loader = DataLoader(dataset, ..., {arguments}"
    if not fork_safe(wait.run):
        return f'{line}, multiprocessing_context="spawn"){GUARD}'
    return f"{line}){GUARD if starts_fresh(wait.run) else ''}"


def spawned_text(wait: InputWait) -> str:
    """Return the note on processes that cannot be forked, with a space in front; "" elsewhere."""
    return "" if fork_safe(wait.run) else f" {NO_FORK}."


def with_workers(run: Run, name: str, count: int, *, processes: bool) -> str:
    """Return the lines that give a PyDataset of this name workers."""
    if "tf_keras" in str(run.framework_facts.get("keras", "")):
        return f"model.fit(..., workers={count}, use_multiprocessing={processes})"
    line = f"{name}.workers = {count}  # your PyDataset, before model.fit"
    guard = GUARD if starts_fresh(run) else ""
    return line + (f"\n{name}.use_multiprocessing = True{guard}" if processes else "")


def spawned(count: int) -> str:
    """Return code for a PyDataset whose threads wait for processes, each with a copy of `dataset`."""
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
dataset = Spawned(dataset, workers={count}){GUARD}"""


def batches_code(wait: InputWait, workers: Workers) -> str:
    """Return a PyDataset around the user's `make_batch(i)`, with these workers.

    Its processes start fresh where none can be forked.
    """
    fresh = workers.processes and not fork_safe(wait.run)
    arguments = f"workers={workers.count}{', use_multiprocessing=True' * workers.processes}"
    code = (
        "class Batches(keras.utils.PyDataset):\n"
        "    def __len__(self):\n"
        f"        return {batches_an_epoch(wait.run)}\n"
        "    def __getitem__(self, i):\n"
        "        return make_batch(i)\n"
        f"dataset = Batches({'' if fresh else arguments})  # for model.fit"
    )
    return f"{code}\n{spawned(workers.count)}" if fresh else code


# -- DataLoader ------------------------------------------------------------------------------------


def _handing_ms(wait: InputWait) -> float | None:
    """Return the time to take a finished batch from a worker; None = too few were finished."""
    return wait.run.fit.get("input_handover_ms") if wait.workers else None


def _hands_over(wait: InputWait) -> bool:
    """Return True if a DataLoader's workers keep up, and the loop waits for finished batches to be handed over."""
    handing_ms, facts, cpus = _handing_ms(wait), wait.run.fit, wait.cores.of_workers or 0.0
    batch_mb = sum(array.get("bytes") or 0 for array in facts.get("input_first") or []) / 1e6
    copies = 0 < cpus * wait.arrives_ms <= COPYING_MS * batch_mb  # and does nothing else
    # Most batches are finished in time, and only copying is left.
    copies_in_time = copies and (facts.get("input_ready_pct") or 0.0) >= 100 * MOSTLY
    handover_dominates = handing_ms is not None and (copies_in_time or handing_ms >= MOSTLY * wait.lost_ms)
    return handover_dominates and not wait.calls.beside_workers


def _handing_over(wait: InputWait) -> str:
    """Return how many batches were finished in time, and how long handing one over takes, as sentences."""
    return (
        f"{wait.run.fit.get('input_ready_pct') or 0:.0f} % of the batches were finished when the loop asked for them: "
        f"more workers do not help. Taking one over from its worker process takes {brief(_handing_ms(wait) or 0)}."
    )


def _slow_loader(wait: InputWait) -> str:
    """Return who makes the batches of a DataLoader, and their pace against the model's, as sentences."""
    who = "The DataLoader makes every batch in the training process, while the model waits"
    if wait.workers:
        who = _too_few_workers(wait, "the DataLoader")
    own_parts = ""
    if wait.run.fit.get("input_iterable") and not wait.run.fit.get("input_shards"):
        own_parts = " Its IterableDataset must give each worker its own part: torch.utils.data.get_worker_info()."
    return f"{who}: {wait.pace}.{own_parts}{spawned_text(wait)}"


def _too_few_workers(wait: InputWait, of: str) -> str:
    """Return that a loader's worker processes are too few, as a sentence without its full stop."""
    several = wait.workers > 1
    return f"{wait.workers} worker process{'es' * several} of {of} {'are' if several else 'is'} too few"


def _worker_ms(wait: InputWait) -> float:
    """Return the time for which one worker is busy with a batch, or would be where there is none yet."""
    return wait.workers * wait.arrives_ms if wait.workers else wait.lost_ms


def _few_shards(wait: InputWait) -> bool:
    """Return whether more workers would have no shard to read."""
    return 0 < (wait.run.fit.get("input_shards") or 0) <= max(1, wait.workers)


def _making_waits(wait: InputWait) -> bool:
    """Return whether what makes the batches mostly waits: workers may be more than the cores."""
    return (wait.workers_wait if wait.workers else wait.waits) is True


def _loader_workers(wait: InputWait) -> Workers:
    return Workers(wait, _worker_ms(wait), _making_waits(wait))


def _more_help(wait: InputWait) -> bool:
    """Return True if a DataLoader's worker processes, or more of them, may shorten the wait."""
    # Handing over, the training process or the shards limit it.
    if _hands_over(wait) or wait.calls.beside_workers or _few_shards(wait):
        return False
    if _making_waits(wait):
        return wait.workers < MOST_WORKERS
    is_sampled = wait.workers and (wait.workers_wait is not None or wait.worker_cpus is not None)
    # Computing ones need a free core.
    return wait.cores.has_room or (not is_sampled and wait.room_unknown and _loader_workers(wait).count > wait.workers)


def _made_before(wait: InputWait) -> float:
    """Return the share of the wait that is gone where what is kept was made before the run."""
    return wait.saves(wait.needed_ms + KEPT_MS + wait.calls.joined * wait.lost_ms)


def _made_once(wait: InputWait) -> float:
    return wait.kept(_made_before(wait))


def _whole_batches(wait: InputWait) -> bool:
    """Return True if a DataLoader indexes its dataset sample by sample where whole batches could be indexed at once.

    The dataset holds tensors, or getting a sample computes so little that it may be an index into memory.
    """
    call, fit = wait.calls.slowest, wait.run.fit
    if call is None or fit.get("input_iterable") or wait.workers or "input_collate" not in fit or wait.collate:
        return False
    # Getting one computes so little that it may be an index into memory.
    indexes = call["cpu_ms"] <= INDEXING_MS and wait.input_class not in ROWS_IN_MEMORY
    a_sample = call["name"] == "Subset.__getitems__" or call["calls"] >= AGAIN * wait.run.steps.total_rows
    return a_sample and (wait.input_class == "TensorDataset" or indexes)


def _items_class(wait: InputWait) -> str:
    """Return the method that makes an item by its name; the class alone where a library's `__iter__` calls it."""
    method = ".__iter__" if wait.run.fit.get("input_iterable") else ".__getitem__"
    return f"{wait.input_class or 'dataset'}{'' if wait.run.fit.get('input_shards') else method}"


def _indexed_at_once(wait: InputWait) -> str:
    pinned = ", pin_memory=True" if wait.run.used_gpus or wait.run.fit.get("input_pin_memory") else ""
    return f"loader = DataLoader(loader.dataset, sampler=loader.batch_sampler, batch_size=None{pinned})"


def _beside_steps(wait: InputWait) -> bool:
    """Return whether batches are made while steps run, and not in turns with them."""
    return wait.workers > ("pydataset" in wait.kind) or (
        "pydataset" in wait.kind and wait.run.framework == "tensorflow"
    )


def _prepared(wait: InputWait) -> str:
    """Return lines that do once, before training, what `collate_fn` does to each sample alone."""
    prepared = f"prepared = [prepare(sample) for sample in dataset]  # once: what {wait.collate} does to each alone\n"
    if wait.run.trainer == "transformers":
        return f"{prepared}trainer = Trainer(..., train_dataset=prepared, data_collator={wait.collate})"
    return f"{prepared}loader = DataLoader(prepared, ..., collate_fn={wait.collate})  # which then only joins them"


def _store_items(wait: InputWait) -> str:
    items = "list(dataset)" if wait.run.fit.get("input_iterable") else "[dataset[i] for i in range(len(dataset))]"
    return f'torch.save({items}, "data.pt")  # once\ndataset = torch.load("data.pt", weights_only=False)'


# -- what a function of the input spends its time in -----------------------------------------------

_ARRAY_FILES = ("h5py", "zarr", "netCDF4", "tables")


def _array_file(wait: InputWait) -> InputFile | None:
    """Return the one array of a file that the input reads: of several, that stored in chunks; None = not known."""
    files = wait.run.fit.get("input_files") or []
    chunked = [file for file in files if file.get("chunk_rows", 0) > 1]
    return next(iter(chunked or files), None)


def _reads_rows(wait: InputWait) -> str:
    """Return how the input reads an array of a file row by row, and its pace, as sentences.

    A chunk of rows is unpacked for each of them.
    """
    file = _array_file(wait)
    rows, packed = (file.get("chunk_rows", 0), file.get("compression", "")) if file is not None else (0, "")
    does = "is a read of its own"
    if rows > 1:
        does = f"{'decompresses' if packed else 'copies'} a chunk of {rows} rows{f' ({packed})' if packed else ''}"
    share = 100 * wait.in_library(*_ARRAY_FILES)
    return f"{wait.call_name} spends {share:.0f} % of its time at {wait.call_line}: each access {does}. {wait.paces}."


def _fits(wait: InputWait) -> bool | None:
    """Return whether the array of the file fits into a quarter of the memory; None = its size is not known."""
    file, limit = _array_file(wait), wait.run.host_limit
    return None if limit is None or file is None or "bytes" not in file else file["bytes"] <= A_QUARTER * limit[0]


def _read_whole(wait: InputWait) -> str:
    """Return the line that reads an array of a file into memory, by its name in the program."""
    file = _array_file(wait)
    if file is None:
        return 'x = file["x"][:]  # once, in place of the file\'s own array'
    return f"{file['name']} = {file['name']}[:]  # once, in __init__: {file.get('bytes', 0) / 1e6:,.0f} MB"


def _of_line(word: str) -> Callable[[InputWait], Any]:
    """Return a reader of an attribute of the kind of work at the line."""
    return lambda wait: getattr(work_of(wait), word)


def _at_line(wait: InputWait) -> float:
    """Return the share (0-1) of the input's function that the remedy of its line is about."""
    call = wait.calls.named or {}
    return (call.get("in_line") or 0) / call["samples"] if _of_line("rewritten")(wait) else wait.line_share


def _says_work(wait: InputWait) -> str:
    at, share = f" at {wait.call_line}, where" if wait.call_line else ":", percent(100 * _at_line(wait))
    return f"{wait.paces}. {wait.call_name} spends {share} of its time{at} {_of_line('does')(wait)}."


def _has_remedy_for_line(wait: InputWait) -> bool:
    """Return True if the kind of work of the input's busiest line is known, and its remedy holds in this run."""
    work = work_of(wait)
    if work is None or (work.rewritten and wait.cores.has_room):  # where cores are free, more workers come first
        return False
    if work.once:  # worth it only where the same items come again
        return wait.passes.later > 0 and wait.repeats is not False
    return work.rewritten or not work.asks or (wait.run.device == "cpu" and wait.kind != "tf.data")


OF_CALLS = (
    Entry(
        "work of the line",
        when=_has_remedy_for_line,
        says=_says_work,
        asks=lambda wait: "" if _of_line("once")(wait) and wait.repeats else _of_line("asks")(wait),
        remedy=_of_line("instead"),
        code=_of_line("code"),
        saves=lambda wait: (
            _made_once(wait) * wait.line_share if _of_line("once")(wait) else _of_line("share")(wait) * _at_line(wait)
        ),
        proof=_of_line("proof"),
    ),
    Entry(
        "file read once",
        when=lambda wait: wait.in_library(*_ARRAY_FILES) > 0 and _fits(wait) is not False,
        says=_reads_rows,
        asks=lambda wait: "" if _fits(wait) else "Does what is read fit into memory?",
        remedy="Read the array into memory once: its values stay the same",
        code=_read_whole,
        saves=lambda wait: wait.in_library(*_ARRAY_FILES),
        proof="blind/first/hdf5_gzip_rows",
    ),
)
# Where neither helps: a file too large for the memory.
OF_CALLS_LIMITS = (
    Entry(
        "shards",
        when=_few_shards,
        says="{loader_limit}: {pace}. A worker process reads whole shards: more workers need more of them.",
    ),
    Entry(
        "file in order",
        when=lambda wait: wait.in_library(*_ARRAY_FILES) > 0 and _fits(wait) is False,
        says=lambda wait: (
            f"{_reads_rows(wait)} It does not fit into memory: read ranges of neighbouring rows, and shuffle within "
            "these; or store it with chunks of one row."
        ),
    ),
)


def cheaper(wait: InputWait, what: str) -> str:
    """Return that less is to be done, with a space in front; "" where the kind of work says what."""
    if work_of(wait) is not None:
        return ""
    once = "" if wait.passes.later <= 0 else f", or make {ONCE}, what is the same in every pass"
    return f" Make a {what} cheaper{once}."


def _may_be_kept(wait: InputWait) -> bool:
    """Return whether what a dataset makes may be kept: nothing says that it differs, or is too large."""
    return wait.passes.later > 0 and wait.repeats is not False and wait.fits_memory is not False


def _seen_again(wait: InputWait, what: str) -> str:
    """Return that items were the same and have room, with a space in front; "" where either is to be asked."""
    kept = wait.repeats and wait.fits_memory
    return f" {what} were the same when they were asked for again, and fit into memory." if kept else ""


def _asked_again(wait: InputWait, returns_the_same: str) -> str:
    """Return what is to be asked of items before they are kept; "" where it was seen."""
    if wait.repeats and wait.fits_memory:
        return ""
    return f"{returns_the_same} in every epoch, without random numbers{wait.asked_room}?"


DATA_LOADER = (
    Entry(
        "skipped first",
        when=lambda wait: wait.run.fit.get("input_sharing") == "strided" and wait.workers > 1,
        says="{loader_limit}: {pace}. Each of the {workers} workers goes through all of {input_class} for its part.",
        asks="Are items made (read, decoded) before those of the other workers are left out?",
        remedy="Leave these out first, or give each worker files of its own; more workers gain nothing",
        code="mine = itertools.islice(records, info.id, None, info.num_workers)  # then decode what is in it",
        saves=lambda wait: wait.saves(wait.arrives_ms / wait.workers),
        proof="blind/fifth/everyone_decodes",
    ),
    Entry(
        "whole batches",
        when=_whole_batches,
        says="The DataLoader gets and joins samples one by one: {pace}.",
        asks=lambda wait: (
            ""
            if wait.input_class == "TensorDataset"
            else f"Does {_items_class(wait)} only index tensors or arrays, so that it may get a list of numbers?"
        ),
        remedy="Index whole batches; the order of the samples stays the same",
        code=_indexed_at_once,
        saves=lambda wait: wait.saves(wait.needed_ms + KEPT_MS),
        proof="loader_whole_batches",
    ),
    Entry(
        "workers",
        when=_more_help,
        says=_slow_loader,
        asks=lambda wait: "" if _making_waits(wait) or wait.cores.has_room else CORE_FREE,
        remedy=lambda wait: "Use more" if wait.workers else "Let worker processes make batches ahead of time",
        changes=IN_WORKERS,
        code=lambda wait: loader_line(wait, _loader_workers(wait).count),
        saves=lambda wait: _loader_workers(wait).saves,
        proof="loader_sleeping",
    ),
    Entry(
        "samples prepared once",
        when=lambda wait: wait.passes.later > 0 and wait.calls.collates and not _hands_over(wait),
        says="{part_takes}: {pace}.",
        asks="Does {collate} do to each sample the same in every epoch (tokenizing, decoding), without random numbers?",
        remedy="Do that part of {collate} once, before training",
        code=_prepared,
        saves=lambda wait: wait.kept((wait.part_share or 1.0) * wait.saves(wait.needed_ms + KEPT_MS)),
        most=lambda wait: wait.part_share or 1.0,
        frees_cores=_beside_steps,
        proof="loader_prepared",
    ),
    Entry(
        "in the workers",
        when=lambda wait: wait.calls.beside_workers and wait.calls.part["part"] == "wrapper" and wait.workers_may_help,
        says="{part_takes}, in the training process: {pace}.",
        asks="Can the loader's collate_fn do that?",
        remedy="Let it, in worker processes",
        code=lambda wait: loader_line(wait, Workers(wait, wait.lost_ms, wait.waits is True).count, ", collate_fn=..."),
        saves=lambda wait: wait.part_share * Workers(wait, wait.lost_ms, wait.waits is True).saves,
        proof="loader_wrapper",
    ),
    Entry(
        "items made once",
        when=lambda wait: (
            _may_be_kept(wait)
            and not (_hands_over(wait) or wait.calls.collates or wait.calls.beside_workers)
            and wait.input_class not in ROWS_IN_MEMORY
        ),
        says=lambda wait: f"{wait.loader_limit}: {wait.pace}.{_seen_again(wait, f'Items of {wait.input_class}')}",
        asks=lambda wait: _asked_again(wait, f"Does {_items_class(wait)} return the same item"),
        remedy="Make them once",
        code=_store_items,
        saves=_made_once,
        most=_made_before,
        frees_cores=_beside_steps,
        proof="loader_full",
    ),
)


# -- PyDataset -------------------------------------------------------------------------------------


def _on_threads(wait: InputWait) -> bool:
    return not wait.run.fit.get("input_processes")


def _made_by(wait: InputWait, *, processes: bool) -> Workers:
    """Return workers of a PyDataset: threads for what mostly waits, processes for what computes."""
    # On TensorFlow a thread makes the next batch during the step.
    item_ms = wait.arrives_ms if wait.run.framework == "tensorflow" else wait.lost_ms
    return Workers(wait, item_ms, not processes, processes=processes)


def _more(wait: InputWait) -> Workers:
    """Return more workers of the kind that the PyDataset has."""
    threads = _on_threads(wait)
    return Workers(wait, _worker_ms(wait), threads or wait.workers_wait is True, processes=not threads)


def _one_at_a_time(wait: InputWait) -> str:
    """Return the time that a single maker of batches takes for one, as a sentence without its full stop."""
    takes = brief(wait.arrives_ms) + ", mostly waiting" * (wait.waits is True)
    return f"{wait.maker} builds one batch at a time ({takes}); the model needs one every {brief(wait.needed_ms)}"


def _first_batch(wait: InputWait) -> str:
    """Return the change that workers make: Keras builds the model with a batch of theirs."""
    return "" if wait.run.framework == "tensorflow" else "which batch comes first"


def _dataset_line(workers: Workers) -> str:
    """Return lines that give a PyDataset these workers; processes start fresh where none can be forked."""
    run = workers.wait.run
    if fork_safe(run) or not workers.processes:
        return with_workers(run, "dataset", workers.count, processes=workers.processes)
    return spawned(workers.count)


PY_DATASET = (
    Entry(
        "threads",
        when=lambda wait: wait.workers <= 1 and wait.waits is not False,
        says=lambda wait: f"{_one_at_a_time(wait)}.",
        asks=lambda wait: "" if wait.waits else ITEM_WAITS,
        remedy="Build them in parallel threads. Check first: __getitem__ is thread-safe",
        code=lambda wait: _dataset_line(_made_by(wait, processes=False)),
        saves=lambda wait: _made_by(wait, processes=False).saves,
        changes=_first_batch,
        proof="pydataset_sleeping",
    ),
    Entry(
        "processes",
        when=lambda wait: wait.waits is False and wait.cores.has_room and (wait.workers <= 1 or _on_threads(wait)),
        says=lambda wait: (
            f"{wait.maker} computes in Python, which runs one thread at a time: {wait.pace}.{spawned_text(wait)}"
        ),
        asks="May processes make its batches, where what __getitem__ changes stays in each?",
        remedy="Let them",
        code=lambda wait: _dataset_line(_made_by(wait, processes=True)),
        saves=lambda wait: _made_by(wait, processes=True).saves,
        changes=_first_batch,
    ),
    Entry(
        "more workers",
        when=lambda wait: (
            1 < wait.workers < MOST_WORKERS
            and (wait.waits is True if _on_threads(wait) else wait.workers_wait is True or wait.cores.has_room)
        ),
        says="{workers} workers of {maker} are too few: {pace}.",
        asks=lambda wait: (
            "Can its calls wait at the same time? (Those that read one HDF5 file wait for each other.)"
            if _on_threads(wait)
            else ""
        ),
        remedy="Use more",
        code=lambda wait: _dataset_line(_more(wait)),
        saves=lambda wait: _more(wait).saves,
        proof="pydataset_more",
    ),
    Entry(
        "samples made once",
        when=lambda wait: (
            wait.passes.later > 0 and wait.fits_memory is not False and wait.run.fit.get("input_reorders") is True
        ),
        says="{loader_limit}: {pace}.",
        asks="{maker} has an on_epoch_end, so that its batches may differ. Is each sample the same in every "
        "epoch, without random numbers{asked_room}?",
        remedy="Make each sample once",
        code="made = dict()  # outside the class; in __getitem__, for each sample i:\n"
        "if i not in made:\n"
        "    made[i] = make_sample(i)  # what makes sample i now\n"
        "sample = made[i]",
        saves=_made_once,
        most=_made_before,
        frees_cores=_beside_steps,
        proof="pydataset_samples_once",
    ),
    Entry(
        "batches made once",
        when=lambda wait: _may_be_kept(wait) and not wait.run.fit.get("input_reorders"),
        says=lambda wait: f"{wait.loader_limit}: {wait.pace}.{_seen_again(wait, f'Batches of {wait.maker}')}",
        asks=lambda wait: _asked_again(wait, f"Does {wait.maker} return the same batches"),
        remedy="Make them once",
        code="made = [dataset[i] for i in range(len(dataset))]  # once\n"
        "class Made(keras.utils.PyDataset):\n"
        "    def __len__(self):\n"
        "        return len(made)\n"
        "    def __getitem__(self, i):\n"
        "        return made[i]\n"
        "dataset = Made()",
        saves=_made_once,
        most=_made_before,
        frees_cores=_beside_steps,
        proof="blind/third/sqlite_scans",
    ),
)


# -- generators, arrays, Grain ---------------------------------------------------------------------


GENERATOR = (
    Entry(
        "several batches at a time",
        when=lambda wait: wait.workers_may_help,
        says=lambda wait: f"{_one_at_a_time(wait)}.{'' if wait.waits else spawned_text(wait)}",
        asks=BATCH_I,
        remedy=lambda wait: (
            f"Let {'' if wait.waits else 'processes of '}a keras.utils.PyDataset make several at a time"
        ),
        code=lambda wait: batches_code(wait, _made_by(wait, processes=not wait.waits)),
        saves=lambda wait: _made_by(wait, processes=not wait.waits).saves,
        changes="who makes the batches: state that the generator keeps is gone",
        proof="generator_sleeping_jax",
    ),
)


def _grain(wait: InputWait) -> Workers:
    """Return workers; a DataLoader's operations run while the loop waits, a dataset's on threads ahead of it."""
    in_turn = wait.workers or wait.input_class == "DataLoader"
    return Workers(wait, _worker_ms(wait) if in_turn else wait.arrives_ms, _making_waits(wait))


def _grain_maker(wait: InputWait) -> str:
    """Return the maker of Grain's batches, as a sentence without its full stop."""
    if wait.workers:
        return _too_few_workers(wait, "Grain")
    in_turn = wait.input_class == "DataLoader"
    return f"Grain makes the batches in {'the training process, while the model waits' if in_turn else 'one process'}"


def _grain_line(wait: InputWait, workers: int) -> str:
    """Return the line that gives a Grain pipeline this number of worker processes."""
    if wait.input_class == "DataLoader":
        return f"dataset = grain.DataLoader(..., worker_count={workers})"
    iterable = "dataset.to_iter_dataset()" if wait.input_class == "MapDataset" else "dataset"
    options = f"grain.multiprocessing.MultiprocessingOptions(num_workers={workers})"
    return f"dataset = {iterable}.mp_prefetch({options})"


GRAIN = (
    Entry(
        "workers",
        when=lambda wait: (
            (_making_waits(wait) or wait.cores.has_room or wait.room_unknown) and _grain(wait).count > wait.workers
        ),
        says=lambda wait: f"{_grain_maker(wait)}: {wait.pace}. Worker processes import the script.",
        asks=lambda wait: (
            "They start again with each pass over the data: does a pass take a minute or more?"
            if _making_waits(wait) or wait.cores.has_room
            else CORE_FREE
        ),
        remedy="Let more of them make the batches",
        code=lambda wait: (
            f"{_grain_line(wait, _grain(wait).count)}{GUARD}\n"
            "import absl.flags\n"
            "absl.flags.FLAGS.mark_as_parsed()  # before the first batch, unless absl.app.run does so"
        ),
        before=lambda wait: _grain_line(wait, wait.workers) if wait.workers or wait.input_class == "DataLoader" else "",
        saves=lambda wait: _grain(wait).saves,
    ),
)


def _handling(wait: InputWait) -> str:
    """Return that handling finished batches takes most of the wait, and what makes it shorter, as sentences.

    Handling: Keras converts or copies each batch, with or without workers.
    """
    make_ms = wait.calls.slowest["wall_ms"] if wait.calls.slowest else 0.0
    took = brief(make_ms) if make_ms >= 0.1 else f"{max(1, round(1e3 * make_ms))} µs"
    says = f"{wait.call_name} takes {took} a batch; then {wait.handling}, with or without workers: {wait.pace}."
    if "memmap" in first_types(wait.run):  # read from disk when they are converted
        return f"{says} The arrays are np.memmap: that is when they are read from disk."
    # 64 MB a batch took 9 ms on a CPU with arrays, 0.05 ms with tensors, measured.
    are_numpy = wait.run.framework == "torch" and first_types(wait.run) == {"numpy"}
    tensors = "tensors (torch.from_numpy), which Keras copies once less, and " if are_numpy else ""
    return f"{says} Send {tensors}fewer bytes: smaller types, converted in the model."


# What holds these inputs up where no remedy gains enough; no code, no promise.
LIMITS = (
    Entry(
        "handing over",
        when=lambda wait: "dataloader" in wait.kind and _hands_over(wait),
        says=lambda wait: (
            f"{_handing_over(wait)} Fewer tensors a batch need less of it, and cheap "
            "batches none: num_workers=0 makes them in the loop. For a GPU pin_memory=True does it during the step."
        ),
    ),
    Entry("made at once", when=lambda wait: wait.made_at_once, says=_handling),
    Entry(
        "collate",
        when=lambda wait: wait.calls.collates,
        says="{part_takes}: {pace}. What it does to each sample alone (tokenizing, decoding) can be done once, before "
        "training.",
    ),
    Entry(
        "training process",
        when=lambda wait: wait.calls.beside_workers,
        says="{part_takes}, in the training process with or without workers: {pace}. Do less there, or draw what it "
        "needs for a pass at once.",
    ),
    Entry(
        "arrays",
        when=lambda wait: wait.kind == "numpy",
        says="Keras cuts every batch out of the arrays in the training process: {pace}. Larger "
        "batches need fewer cuts.",
    ),
    Entry("one at a time", says=lambda wait: f"{wait.loader_limit}: {wait.pace}.{cheaper(wait, 'sample')}"),
)
