"""Advice on the slowest stage of a tf.data pipeline: changes TensorFlow does not make itself."""

import math
import re

from gpu_util_callback.diagnosis.advice.circumstances import cpu_pct, cpus, process_cpu
from gpu_util_callback.diagnosis.advice.input import (
    WAITS,
    WAITS_WHEN_FULL,
    InputWait,
    brief,
    cores_full,
    keep_it,
    mostly_waits,
)
from gpu_util_callback.diagnosis.evidence.pipeline import Stage, chain_ms
from gpu_util_callback.diagnosis.finding import Advice
from gpu_util_callback.diagnosis.thresholds import Constant, Count

__all__ = ["advise_stage", "advise_traced_stage"]

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
    if wait.keeps_up:
        return _irregular(wait)
    seen, own = cpu_pct(wait.run, wait.where), process_cpu(wait.run, wait.where)
    opened = _opened(wait, wait.opener) if wait.opener else None
    if opened is not None and own is not None and own < WAITS:
        return opened
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
