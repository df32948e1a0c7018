"""Advice on a tf.data pipeline, by its slowest stage."""

import functools
import itertools
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpu_util_callback.diagnosis.advice.input_wait import MOST_CALLS, NO_STAGE, InputWait, function_of
from gpu_util_callback.diagnosis.advice.snippets import batches_an_epoch, drops_of
from gpu_util_callback.diagnosis.advice.table import Entry
from gpu_util_callback.diagnosis.evidence.pipeline import LITTLE, Stage, chain_ms
from gpu_util_callback.diagnosis.rule import Advice
from gpu_util_callback.diagnosis.thresholds import MOSTLY, Constant

READERS = ("TFRecord", "TextLine", "FixedLengthRecord")
CALL_US = Constant(60.0, "a call of a mapped function costs 10-30 µs by itself: below, the calls are the work")
_OPAQUE = {"py_function", "stateful"}  # flags of stages of which nothing tells whether they draw random numbers
_IN_MEMORY = re.compile(
    r"Tensor|Range|Repeat|Forever|Batch|PaddedBatch|Shuffle|Zip|Shard|Take|Skip|Window|DirectedInterleave"
)


def advise_source(wait: InputWait, calls_save: Callable[[int], float]) -> Advice | None:
    """Return advice on parallel calls of the slowest map, for a pipeline that keeps up with its steps.

    None if they may not.

    Args:
        calls_save: returns the share (0-1) that is saved with a number of calls at a time.
    """
    maps = (stage for stage in wait.stages if stage.name.startswith("map"))
    slowest = replace(wait, stage=next(maps, NO_STAGE))
    return _WAITING_CALLS.advice(slowest, calls_save(_calls(slowest))) if _WAITING_CALLS.when(slowest) else None


# -- conditions ------------------------------------------------------------------------------------


def _is_map(wait: InputWait) -> bool:
    return wait.stage.name.startswith("map")


def _calls_python(wait: InputWait) -> bool:
    return "py_function" in wait.stage.flags


def is_python(wait: InputWait) -> bool:
    """Return whether the slowest stage is a function or a generator of the program's in Python."""
    return _calls_python(wait) or wait.stage.op.startswith("Generator")


def _calls_wait(wait: InputWait) -> bool:
    """Return True if the slow stage's calls mostly wait, for files or a network."""
    stage = wait.stage
    if is_python(wait):  # timed by itself
        return wait.waits is True
    # The stage cannot have computed more than the whole process did, nor worked longer than its threads
    # were there: a reading of a few batches may say so.
    work_ms = min(stage.work_ms_per_batch, stage.parallelism * wait.arrives_ms)
    own_cpus = wait.cores.own
    return own_cpus is not None and not wait.cores.full and own_cpus * wait.arrives_ms < MOSTLY * work_ms


def _may_run_at_once(wait: InputWait) -> bool:
    """Return whether the code lets fewer calls of a map run at a time than there are cores, on which they compute."""
    stage = wait.stage
    limited = bool(stage.flags & {"sequential", "fixed_parallelism"}) and stage.parallelism < wait.cores.allowed
    if not limited or "autotuned" in stage.flags or stage.inside is not None or not _is_map(wait):
        return False
    return not (_calls_python(wait) or _calls_wait(wait) or _short_calls(wait))


def _calls_can_wait_together(wait: InputWait) -> bool:
    """Return whether the slow stage is a map whose calls wait, and more could wait at a time."""
    stage = wait.stage
    waits = _is_map(wait) and _calls_wait(wait) and stage.inside is None and wait.cores.allowed > 0
    return waits and _calls(wait) > stage.parallelism


def _calls_wait_in_order(wait: InputWait) -> bool:
    """Return True if op determinism lets a map's waiting Python function run in one call at a time.

    It does so whatever `num_parallel_calls` says.
    """
    return (
        str(wait.run.fit.get("timing")).endswith("(determinism)")
        and _is_map(wait)
        and _calls_python(wait)
        and _calls_wait(wait)
    )


def _call_us(wait: InputWait) -> float:
    return 1e3 * wait.stage.work_ms_per_batch / max(1e-9, wait.stage.elements_per_batch)


def _short_calls(wait: InputWait) -> bool:
    return wait.stage.elements_per_batch > 1 and _call_us(wait) <= CALL_US


def _samples(wait: InputWait) -> bool:
    """Return whether the slow stage is `sample_from_datasets`, or draws its choices."""
    stage = wait.stage
    sampler = next((other for other in wait.stages if other.op.startswith("DirectedInterleave")), None)
    return sampler is not None and (stage is sampler or (stage.place > sampler.place and "library" in stage.flags))


def _waiting_python_ms(wait: InputWait) -> float:
    """Return the computation for a batch that calls which wait cannot share."""
    return wait.python_ms if is_python(wait) else 0.0


def _calls(wait: InputWait) -> int:
    """Return how many calls of the slow stage must wait at a time to keep up with the model; 2 to `MOST_CALLS`."""
    stage = wait.stage
    # The step, or what else limits the batches.
    least_ms = max(0.1, wait.needed_ms, wait.after(0.0, python_ms=_waiting_python_ms(wait)))
    work_ms = max(stage.work_ms_per_batch, wait.arrives_ms if wait.overlaps else 0.0)
    return max(2, min(MOST_CALLS, math.ceil(1.5 * work_ms / least_ms)))


def _with_calls(wait: InputWait, calls: int) -> float:
    """Return the share of the wait that is saved with so many calls of the slow stage at a time, 0-1."""
    return wait.saves_by(wait.stage.work_ms_per_batch / calls, python_ms=_waiting_python_ms(wait))


def _opener(wait: InputWait) -> Stage:
    """Return the interleave or flat_map that opens files one or a few at a time.

    `NO_STAGE` if there is none to widen.
    """
    stage = wait.stage
    openers = wait.stages if stage is NO_STAGE else [stage.inside or stage]
    opener = next((stage for stage in openers if stage.opens_files), NO_STAGE)
    # It opens several at a time already.
    if "fixed_parallelism" in opener.flags or opener.op.startswith("LegacyParallel"):
        return NO_STAGE
    if wait.not_the_bottleneck:
        # Where nothing is computed and no stage was seen at work, it is the files that are waited
        # for.
        idles = wait.cores.own is not None and wait.cores.own < MOSTLY
        if not idles or (wait.keeps_up and wait.work_ms >= LITTLE * wait.lost_ms):
            return NO_STAGE
    return opener


def _opens_files(wait: InputWait) -> bool:
    """Return True if a function of the user's opens inputs one or a few at a time.

    Windows of a dataset are no inputs.
    """
    opener = _opener(wait)
    windows = any(other.op.startswith("Window") and other.place > opener.place for other in wait.stages)
    return "(" in opener.name and not windows


def _reads_inside(wait: InputWait) -> bool:
    """Return whether the datasets that the opener opens read files."""
    place = _opener(wait).place
    inside = [other.op for other in wait.stages if other.inside is not None and other.inside.place == place]
    return any(op.startswith(READERS) for op in inside)


def _reader(wait: InputWait) -> str:
    return next((name for name in READERS if wait.stage.op.startswith(name)), "")


def _files(wait: InputWait) -> int:
    return min(MOST_CALLS, math.ceil(2 * wait.arrives_ms / max(0.1, wait.needed_ms)))


def _reading_files(wait: InputWait) -> float:
    """Return the share of the wait that is saved by reading several files at a time, 0-1."""
    arrives_ms = wait.arrives_ms * (2 if "autotuned" in _opener(wait).flags else 1) / _files(wait)
    return wait.saves(max(arrives_ms, wait.cores_ms()))


def _stage_to_cache(wait: InputWait) -> Stage:
    """Return the stage behind which a cache keeps most: the slow one, or a later one before anything shuffles.

    Where it is not known that nothing up to the slow stage is random, it is the slow one: the question is about that
    alone.
    """
    stage = wait.stage
    if _random(wait, stage) is not False:
        return stage
    inside = stage.inside and (stage.inside.name, stage.inside.op)
    # A stage within an interleave: behind the interleave.
    stage = next((other for other in wait.stages if (other.name, other.op) == inside), stage)
    later = sorted((other for other in wait.stages if other.place < stage.place), key=lambda other: -other.place)
    unshuffled = list(itertools.takewhile(lambda other: not other.shuffles, later))
    not_random = [other for other in unshuffled if _random(wait, other) is False]
    stage = next((other for other in reversed(not_random) if other.op.startswith("Zip")), stage)  # all branches
    for other in not_random:  # further behind: maps and filters alone
        if other.place < stage.place:
            if not other.name.startswith(("map", "filter")) or "+" in other.name:
                break
            stage = other
    return stage


def _as_large_as_batches(wait: InputWait) -> bool:
    """Return whether what a cache keeps is as large as the batches, whose size is known."""
    kept = _stage_to_cache(wait)
    behind = [other for other in wait.stages if other.place < kept.place]
    return all(other.passing or _IN_MEMORY.match(other.op) for other in behind)


def _pass_fits(wait: InputWait) -> bool | None:
    """Return whether a pass of the slow stage's results fits into memory; None = not known."""
    return wait.fits_memory if _as_large_as_batches(wait) else None


def _can_be_kept(wait: InputWait) -> bool:
    """Return True if a cache behind the slow stage would save work, fill up, and leave the shuffling as it is."""
    stage = wait.stage
    is_kept = any(other.cached or "Cache" in other.op for other in wait.stages)
    # One pass, a cache already, or nothing worth keeping.
    if wait.passes.later <= 0 or is_kept or stage is NO_STAGE or _IN_MEMORY.match(stage.op):
        return False
    up_to_stage = [other for other in wait.stages if other.place >= stage.place]
    zip_place = min((other.place for other in up_to_stage if other.op.startswith("Zip")), default=math.inf)
    # Zipped with what ends, a dataset that is repeated ends, too.
    if any(other.repeats and other.place < zip_place for other in up_to_stage):
        return False
    # A shuffle before it would be frozen.
    if any(other.shuffles and not _shuffles_files(wait, other) for other in up_to_stage) and not _shuffles_names(wait):
        return False
    return _random(wait, stage) is not True and _pass_fits(wait) is not False


def _keepable(wait: InputWait) -> InputWait | None:
    """Return the wait with the stage that a cache may follow: the slow one or, if that is random, the slowest other.

    None if no stage can be cached.
    """
    if _can_be_kept(wait):
        return wait
    if wait.stage is NO_STAGE or _random(wait, wait.stage) is not True:
        return None
    for stage in wait.stages:
        other = replace(wait, stage=stage, overlaps=stage.work_ms_per_batch > wait.arrives_ms)
        if stage.work_ms_per_batch > 0 and not stage.passing and _can_be_kept(other):
            return other
    return None


def _cache_that_helps(wait: InputWait) -> str:
    """Return the name of the entry that caches a stage's results; "" if none can be kept."""
    kept = _keepable(wait)
    if kept is None:
        return ""
    if not _helper_shuffles(kept):  # the program itself can put a cache there
        return "cache before what is random" if _random(wait) else "cache"
    # Between two stages of a library no program can put a cache.
    return "" if _random(wait) and "library" in _first_random(kept).flags else "cache behind a helper's shuffle"


def _shuffles_files(wait: InputWait, shuffle: Stage) -> bool:
    """Return whether a shuffle before the slow stage is of files to open, and their elements are shuffled again."""
    opened = any(other.opens_files and other.place < shuffle.place for other in wait.stages)
    return opened and any(other.shuffles and other.place < wait.stage.place for other in wait.stages)


def _shuffles_names(wait: InputWait) -> bool:
    """Return whether all that is shuffled are rows in memory, such as names of files, and no result of a stage."""
    return wait.run.fit.get("input_shuffles") is False and any(other.shuffles for other in wait.stages)


def _order_change(wait: InputWait) -> str:
    """Return how a cache changes the order of the samples, as the end of a sentence; "" if it does not."""
    if _shuffles_names(wait):
        return "the order of the samples, and so the weights"
    kept = any(other.shuffles and _shuffles_files(wait, other) for other in wait.stages)
    return "the order of the files: it stays that of the first pass" if kept else ""


def _helper_shuffles(wait: InputWait) -> bool:
    """Return whether a library made the dataset and its shuffle, so that no cache can come before the shuffle."""
    stage = wait.stage
    return "library" in stage.flags and any(
        other.shuffles and (other.place < stage.place or _shuffles_names(wait)) for other in wait.stages
    )


def _keeping(wait: InputWait) -> float:
    """Return the share saved by a cache behind the slow stage: later passes only hand it on."""
    kept = _stage_to_cache(wait)
    ahead, slowest = chain_ms([stage for stage in wait.stages if stage.place < kept.place])
    return wait.kept(wait.saves(max(slowest, ahead + wait.needed_ms)))


def _keeping_before_random(wait: InputWait) -> float:
    """Return the share saved by a cache, where what is random behind it goes on computing."""
    spared_ms = sum(stage.work_ms_per_batch for stage in wait.stages if stage.place >= _stage_to_cache(wait).place)
    return min(_keeping(wait), wait.kept(wait.saves(wait.cores_ms(spared_ms))))


def _first_random(wait: InputWait) -> Stage:
    """Return the first random stage behind the one whose result a cache keeps; `NO_STAGE` if none is random."""
    behind = [stage for stage in wait.stages if stage.random and stage.place < _stage_to_cache(wait).place]
    return max(behind, key=lambda stage: stage.place, default=NO_STAGE)


def _random_behind(wait: InputWait) -> str:
    name = _first_random(wait).name
    return f" before {name}, which stays random" if name else ""


def _after_cache(wait: InputWait) -> bool:
    """Return whether the slow stage is a map that comes after a cache."""
    return _is_map(wait) and not wait.stage.cached and any(other.cached for other in wait.stages)


def _random(wait: InputWait, upto: Stage = NO_STAGE) -> bool | None:
    """Return True if a stage, or one before it, draws random numbers, also within functions; None = not known.

    Where it is not known which stage draws them, each may.

    Args:
        upto: the last stage to look at; `NO_STAGE` = all of the pipeline.
    """
    maps = [function for function in wait.run.fit.get("input_maps") or [] if function.get("which") != "validation"]
    if not any(function.get("random") for function in maps):  # no function of the pipeline was seen to draw
        unknown = not maps and any(stage.name.startswith("map") for stage in wait.stages)
        unknown = unknown or any(function.get("python") for function in maps)
        return None if unknown or any(stage.flags & _OPAQUE for stage in wait.stages) else False
    flags = [flag for stage in wait.stages for flag in stage.flags]
    stages_known = all(  # each function's flag is found at a stage
        flags.count(flag) >= sum(bool(function.get(fact)) for function in maps)
        for fact, flag in (("random", "random"), ("python", "py_function"))
    )
    up_to_stage = [stage for stage in wait.stages if stage.place >= upto.place]
    # All stages, or one before it draws, or any may.
    if upto is NO_STAGE or not stages_known or any(stage.random for stage in up_to_stage):
        return True
    return None if any(stage.flags & _OPAQUE for stage in up_to_stage) else False


def _dropping(wait: InputWait, kind: str) -> Any:
    """Return the `InputDrop` of this kind that drops what the slow stage, or one before it, made; None without one."""
    drops = [drop for drop in drops_of(wait.run, "train") if drop["stage"] == kind]
    place = {stage.name.partition(" + ")[0]: stage.place for stage in wait.stages}
    return next((d for d in drops if place.get(d["behind"], -1) >= wait.stage.place), None)


def _after_dropping(wait: InputWait, share: float) -> float:
    """Return the share of the wait that is saved where this share of results is dropped before they are made, 0-1."""
    stage = wait.stage
    if stage is NO_STAGE:
        return share
    return wait.saves_by((1 - share) * stage.ms_per_batch, spared_ms=share * stage.work_ms_per_batch)


# -- code ------------------------------------------------------------------------------------------


def _written(wait: InputWait) -> str:
    """Return the line of the slow map as the program has it now."""
    stage = wait.stage
    calls = ""
    if "autotuned" in stage.flags:
        calls = ", num_parallel_calls=tf.data.AUTOTUNE"
    elif "fixed_parallelism" in stage.flags:
        calls = f", num_parallel_calls={stage.parallelism:.0f}"
    return f"ds = ds.map({function_of(stage)}{calls})"


def _calls_now(wait: InputWait) -> str:
    return "one call" if wait.stage.parallelism < 1.5 else f"{wait.stage.parallelism:.0f} calls"


def _batch_size(wait: InputWait) -> str:
    """Return the batch size as an expression in code."""
    return str(wait.run.fit.get("batch_size") or "batch_size")


def _waiting_calls(wait: InputWait) -> str:
    """Return the line of a map with enough calls at a time to keep up.

    More calls than cores need threads of their own.
    """
    calls = _calls(wait)
    line = f"ds = ds.map({function_of(wait.stage)}, num_parallel_calls={calls})"
    if calls <= wait.cores.allowed:
        return line
    private_threads = f"options = tf.data.Options()\noptions.threading.private_threadpool_size = {calls}"
    return f"{private_threads}\n{line}\nds = ds.with_options(options)"


def _interleaved(wait: InputWait) -> str:
    files = _files(wait)
    return f"ds = files.interleave({function_of(_opener(wait))}, cycle_length={files}, num_parallel_calls={files})"


def _reading(wait: InputWait, more: str = "") -> str:
    """Return the line that reads the files, with more arguments."""
    reader = _reader(wait) or "TFRecord"
    size = ", record_bytes" if reader == "FixedLengthRecord" else ""
    return f"ds = tf.data.{reader}Dataset(filenames{size}{more})"


_RANDOM_NUMBERS = "which random numbers each element gets"


def _random_numbers(wait: InputWait) -> str:
    # Calls that run at the same time draw from one sequence in the order in which they come.
    return _RANDOM_NUMBERS if _random(wait) else ""


def _cache(wait: InputWait) -> str:
    """Return the line of a cache behind the stage whose results it keeps, in the right place."""
    kept = _stage_to_cache(wait).name
    if not _shuffles_names(wait):  # later shuffles stay behind it
        return f"ds = ds.cache()  # behind {kept}, before shuffle and repeat"
    # A cache keeps one order: what comes out of it is shuffled again, sample by sample.
    return f"ds = ds.cache().shuffle(buffer_size)  # behind {kept.removesuffix(' + batch')}, before batch and repeat"


def _cache_question(wait: InputWait) -> str:
    """Return the question whether a cache would keep the same elements in every epoch, and fit."""
    python = f"Does {wait.function} return the same in every epoch, without random numbers"
    question = python if _is_map(wait) else "Are the elements the same in every epoch"
    size = _size(wait) if _as_large_as_batches(wait) else ""
    return f"{question}{_asked_room(_pass_fits(wait), size)}?"


def _seen_to_keep(wait: InputWait) -> str:
    """Return that a cache keeps what it should, with a space in front; "" where that is to be asked."""
    seen = _random(wait) is False and _pass_fits(wait) is True
    return f" No stage is random, and all of it fits into memory{_size(wait)}." if seen else ""


def _size(wait: InputWait) -> str:
    """Return the bytes of a pass's batches in words, with a leading space; "" if unknown."""
    size = wait.pass_bytes
    if size is None:
        return ""
    return f" ({size / 1e9:,.1f} GB)" if size >= 1e9 else f" ({size / 1e6:,.0f} MB)"


def _asked_room(fits: bool | None, size: str) -> str:
    return "" if fits else f", and does all of it{size} fit into memory"


_SAMPLED = """parts = [one.batch(size) for one, size in zip(datasets, sizes)]
ds = tf.data.Dataset.zip(tuple(parts)).map(
    lambda *parts: tf.nest.map_structure(lambda *rows: tf.concat(rows, 0), *parts))"""


# -- remedies --------------------------------------------------------------------------------------

_CACHE = Entry(
    "cache",
    when=lambda wait: _cache_that_helps(wait) == "cache",
    of=lambda wait: _keepable(wait) or wait,
    says=lambda kept: f"{kept.takes}, again in every pass.{_seen_to_keep(kept)}",
    asks=lambda kept: "" if _seen_to_keep(kept) else _cache_question(kept),
    remedy="Keep its result: the first pass stays slow, the others do not wait",
    code=_cache,
    saves=_keeping,
    most=lambda kept: min(1.0, kept.kept(1.0)),
    changes=_order_change,
    frees_cores=True,
    proof="image_files",
)
_BEFORE_RANDOM = replace(
    _CACHE,
    name="cache before what is random",
    when=lambda wait: _cache_that_helps(wait) == "cache before what is random",
    asks=_cache_question,
    remedy=lambda kept: f"Keep its result{_random_behind(kept)}",
    saves=_keeping_before_random,
    most=None,
    frees_cores=False,
    proof="",
)

KEPT = (_CACHE, _BEFORE_RANDOM)
_OF_A_HELPER = replace(
    _CACHE,
    name="cache behind a helper's shuffle",
    when=lambda wait: _cache_that_helps(wait) == "cache behind a helper's shuffle",
    saves=lambda kept: _keeping_before_random(kept) if _random(kept) else _keeping(kept),
    frees_cores=lambda wait: _random(wait) is not True,
    says="{takes}, again in every pass. The library that made this dataset also shuffles it.",
    asks=lambda kept: f"May each batch keep its samples in all epochs{_asked_room(kept.fits_memory, _size(kept))}?",
    remedy=lambda kept: f"Keep the batches{_size(kept)}{_random_behind(kept)}, and shuffle whole ones",
    code=lambda kept: (
        f"ds = ds.cache().shuffle({batches_an_epoch(kept.run)})"
        f"  # {f'before {_first_random(kept).name}' if _first_random(kept).name else 'as the last step'}"
    ),
    changes="which samples share a batch",
    proof="image_directory",
)

_WAITING_CALLS = Entry(
    "waiting calls",
    when=_calls_can_wait_together,
    says="{takes}. It mostly waits, for files or a network.",
    asks=lambda wait: f"May several threads call {wait.function} at the same time?" if _calls_python(wait) else "",
    remedy="Let several of its calls wait at the same time",
    code=_waiting_calls,
    before=_written,
    saves=lambda wait: _with_calls(wait, _calls(wait)),
    changes=lambda wait: f"{_RANDOM_NUMBERS}, if it draws any" if _calls_python(wait) else _random_numbers(wait),
    proof="numpy_sleeping",
)


_AT_ONCE = ", and let several of its calls wait at the same time"
_SEED = "keras.utils.set_random_seed(0)  # alone"
IN_ORDER = Entry(
    "determinism",
    when=_calls_wait_in_order,
    says="{takes}. It mostly waits, and op determinism lets its Python run in one call at a time, whatever "
    "num_parallel_calls says.",
    asks="May two runs differ in their last digits?",
    remedy=lambda wait: f"Leave it out{_AT_ONCE * ('sequential' in wait.stage.flags)}: a seed alone keeps the order",
    code=lambda wait: f"{_SEED}\n{_waiting_calls(wait)}" if "sequential" in wait.stage.flags else _SEED,
    before="tf.config.experimental.enable_op_determinism()",
    proof="blind/ninth/reproducible_reads",
)


_SHARD, _TAKE = functools.partial(_dropping, kind="shard"), functools.partial(_dropping, kind="take")
# What is made for nothing comes before what would make it quicker.
IN_VAIN = (
    Entry(
        "shard first",
        # It could as well drop them before they are made.
        when=lambda wait: (drop := _SHARD(wait)) is not None and drop["exact"] and drop["count"] > 1,
        says=lambda wait: f"{wait.takes}, and shard drops all but one in {_SHARD(wait)['count']} of its results.",
        asks=lambda wait: (
            "" if wait.stage is not NO_STAGE else f"Does {_SHARD(wait)['behind']} take most of the time of a batch?"
        ),
        remedy="Let it drop them before they are made: the same samples follow",
        code=lambda wait: f"ds = ds.shard({_SHARD(wait)['count']}, ...)  # before {_SHARD(wait)['behind']}",
        saves=lambda wait: _after_dropping(wait, 1 - 1 / _SHARD(wait)["count"]),
        frees_cores=True,
        proof="shard_first",
    ),
    Entry(
        "take before the cache",
        when=lambda wait: wait.stage is not NO_STAGE and _TAKE(wait) is not None and wait.passes.later > 0,
        says=lambda wait: (
            f"{wait.takes}, again in every pass: take({_TAKE(wait)['count']}) ends each pass before the cache is full, "
            "and what is not full keeps nothing."
        ),
        remedy="Take before the cache",
        code=lambda wait: f"ds = ds.take({_TAKE(wait)['count']}).cache()  # in place of cache() and take()",
        saves=_keeping,
        frees_cores=True,
        proof="take_before_cache",
    ),
)
REMEDIES = (
    Entry(
        "filter first",
        when=lambda wait: wait.filtered is not None and "library" not in wait.filtered[0].flags,
        says="{takes}.",
        asks=lambda wait: f"Can {wait.filtered[0].name} do without {wait.stage.name}, as by a label or a file's name?",
        remedy="Filter first, or split the files by it once",
        code=lambda wait: f"ds = ds.filter({function_of(wait.filtered[0])})  # before {wait.stage.name}",
        changes=_random_numbers,
        saves=lambda wait: _after_dropping(wait, wait.filtered[1]),
        proof="blind/seventh/balanced_classes",
    ),
    Entry(
        "autotune",
        when=lambda wait: wait.run.fit.get("input_autotune") is False,
        says="{paces}. tf.data's autotuning is switched off for this dataset: TensorFlow adds no "
        "threads to its stages and puts no prefetch behind them.",
        asks="Is an epoch shorter with it?",
        remedy="Switch it on",
        code="options = tf.data.Options()\noptions.autotune.enabled = True\nds = ds.with_options(options)",
        # At least the next batch is made ahead.
        saves=lambda wait: wait.saves(max(wait.lost_ms, wait.cores_ms())),
        proof="tests/cures/test_advice.py::test_autotuning_is_switched_on_again",
    ),
    Entry(
        "prefetch",
        when=lambda wait: (
            wait.stage is not NO_STAGE
            and not wait.works_ahead
            and wait.lost_ms <= wait.needed_ms
            and not (_calls_python(wait) and wait.waits is False and wait.run.device == "cpu")
        ),
        says="{paces}. The pipeline makes each batch while the loop waits.",
        remedy="Let it make the next one during the step",
        code="ds = ds.prefetch(tf.data.AUTOTUNE)  # as its last step",
        saves=lambda wait: wait.saves(max(wait.lost_ms, wait.cores_ms())),
        proof="prefetch",
    ),
    _WAITING_CALLS,
    Entry(
        "parallel calls",
        when=_may_run_at_once,
        says=lambda wait: f"{wait.takes}. It runs {_calls_now(wait)} at a time.",
        remedy="Let TensorFlow choose the number of calls",
        code=lambda wait: f"ds = ds.map({function_of(wait.stage)}, num_parallel_calls=tf.data.AUTOTUNE)",
        before=_written,
        saves=lambda wait: _with_calls(wait, wait.cores.allowed),
        changes=_random_numbers,
        proof="text_rows",
    ),
    Entry(
        "several files",
        when=_opens_files,
        says=lambda wait: (
            f"{wait.paces}. {_opener(wait).name} reads "
            f"{'few files' if 'autotuned' in _opener(wait).flags else 'one file'} at a time."
        ),
        asks=lambda wait: "" if _reads_inside(wait) else "Does each element name a file, and are there several?",
        remedy="Read several at a time",
        code=_interleaved,
        before=lambda wait: f"ds = files.{_opener(wait).name.partition('(')[0]}({function_of(_opener(wait))})",
        saves=_reading_files,
        changes="the order of samples",
        proof="tests/cures/test_advice.py::test_files_are_read_several_at_a_time",
    ),
    *KEPT,
    _OF_A_HELPER,
    Entry(
        "before the cache",
        when=lambda wait: _after_cache(wait) and _random(wait) is not True and wait.passes.later > 0,
        says="{takes}. It comes after the cache, so that every pass does it again.",
        asks="Does {function} return the same in every epoch, without random numbers, and do its "
        "results fit into memory?",
        remedy="Do it before the cache",
        code=lambda wait: f"{_written(wait)}.cache()",
        before=lambda wait: f"ds = ds.cache(){_written(wait).removeprefix('ds = ds')}",
        saves=_keeping,
        frees_cores=True,
        proof="map_before_cache",
    ),
    Entry(
        "sampled batches",
        when=lambda wait: _samples(wait) and _short_calls(wait),
        says=lambda wait: (
            f"{wait.paces}. sample_from_datasets picks {wait.stage.elements_per_batch:,.0f} elements "
            "a batch, one by one."
        ),
        asks="May each batch have a fixed number of samples of each dataset?",
        remedy="Batch each of them, and put these together",
        code=_SAMPLED,
        saves=lambda wait: wait.saves_by(0.0, spared_ms=wait.stage.work_ms_per_batch),
        changes="how many samples of each dataset a batch has, and ends with the shortest dataset",
        proof="sampled_batches",
    ),
    Entry(
        "whole batches",
        when=lambda wait: _is_map(wait) and not _calls_python(wait) and _short_calls(wait) and not _samples(wait),
        says=lambda wait: (
            f"{wait.takes}: {wait.stage.elements_per_batch:,.0f} calls of "
            f"{_call_us(wait):.0f} µs, most of it the call itself."
        ),
        asks="Can {function} work on whole batches?",
        remedy="Batch first",
        code=lambda wait: (
            f"ds = ds.batch({_batch_size(wait)}).map({function_of(wait.stage)}, num_parallel_calls=tf.data.AUTOTUNE)"
        ),
        before=lambda wait: f"{_written(wait)}.batch({_batch_size(wait)})",
        saves=lambda wait: wait.saves_by(0.0, spared_ms=wait.stage.work_ms_per_batch) if wait.stages else 0.0,
        proof="map_whole_batches",
    ),
    Entry(
        "parallel reads",
        when=lambda wait: (
            wait.stage is not NO_STAGE
            and bool(_reader(wait) or ((opener := _opener(wait)) is not NO_STAGE and "(" not in opener.name))
        ),
        says=lambda wait: f"{wait.paces}. {_reader(wait) or 'TFRecord'}Dataset reads one file at a time.",
        asks="Are there several files?",
        remedy="Read several at a time",
        code=lambda wait: _reading(wait, f", num_parallel_reads={_files(wait)}"),
        before=_reading,
        saves=_reading_files,
        changes="the order of samples",
    ),
)

# What holds the pipeline up where nothing above gains enough; no code, no promise.
LIMITS = (
    Entry(
        "irregular",
        when=lambda wait: wait.keeps_up,
        says="{paces}, although every stage of the pipeline is fast enough on average. Some "
        "batches come late, or something outside the pipeline delays them; which one is not known.",
    ),
    Entry(
        "outside",
        when=lambda wait: wait.not_the_bottleneck and not wait.cores.full,
        says="{paces}, although no stage of the pipeline takes long and cores are free: a stage "
        "waits for something outside, a file system or a network. Move the data closer, or read more of it at a time.",
    ),
    Entry(
        "busy",
        when=lambda wait: wait.not_the_bottleneck,
        says="{paces}, although no stage of the pipeline takes long: {cores.busy}.",
    ),
    Entry(
        "unknown stage",
        when=lambda wait: wait.stage is NO_STAGE,
        says="{paces}. The slow stage of the pipeline was not measured.",
    ),
    Entry(
        "Python",
        when=lambda wait: is_python(wait) and wait.waits is False,
        says="{takes}. {call_name} computes in Python, and Python runs one thread at a time. "
        "Write it with TensorFlow operations (tf.image, tf.io, tf.strings): they run in parallel.",
    ),
    Entry(
        "Python, unclear",
        when=is_python,
        says="{takes}. It calls Python. Time one call: if it waits, several at a time help (num_parallel_calls, an "
        "interleave of generators); if it computes, only TensorFlow operations run in parallel.",
    ),
    Entry(
        "random after the cache",
        when=_after_cache,
        says="{takes}. It comes after the cache, so that every pass does it again. Random "
        "augmentation can be layers of the model, on the GPU; do the rest before the cache.",
    ),
    Entry(
        "stage",
        says=lambda wait: (
            f"{wait.takes}{f', and {wait.cores.busy}' if wait.cores.full else ''}. Do less in {wait.stage.name} "
            "(smaller images, fewer bytes), or do it once and store the result."
        ),
    ),
)


def advise_traced_stage(name: str) -> Advice:
    """Return advice by the kind of a trace's slowest tf.data stage, whose function is not known.

    Args:
        name: of the operation, such as "MapV2".
    """
    says = f"The input pipeline is too slow; most of its own work is in the stage {name}. "
    if re.fullmatch(r"Map(V\d+)?", name):  # a map
        return Advice(
            f"{says}Is its function made of TensorFlow operations? If so, let several of its calls "
            "run at a time. Python (py_function) runs one at a time.",
            "ds = ds.map(your_function, num_parallel_calls=tf.data.AUTOTUNE)",
            question=True,
        )
    if name.startswith("Generator"):
        return Advice(f"{says}A Python generator or a PyDataset makes one element at a time.")
    if name.startswith(READERS):  # a reader of files
        return Advice(
            f"{says}Are there several files? If so, read several at a time.",
            "ds = files.interleave(tf.data.TFRecordDataset, cycle_length=8, num_parallel_calls=8)"
            if name.startswith("TFRecord")
            else "",
            question=True,
            proof="tests/cures/test_advice.py::test_files_are_read_several_at_a_time",
        )
    return Advice(f"{says}Do less in it, or do it once and store the result.")
