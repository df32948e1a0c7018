"""What to do about a slow input pipeline: by how the slowest stage is written."""

import re

from gpu_util_callback.diagnosis._pipeline import Stage
from gpu_util_callback.diagnosis._rule import Advice
from gpu_util_callback.diagnosis._run import Run

__all__ = ["advise"]

PYTHON_FLAGS = {"py_function"}
READERS = ("TFRecord", "TextLine", "FixedLengthRecord", "Interleave")


def advise(
    run: Run,
    stage: Stage | None,
    *,
    needed_ms: float,
    overlaps: bool = False,
    innocent: bool = False,
) -> Advice:
    """The advice for this run; it names the stage and changes what TensorFlow does not do itself.

    Args:
        stage: the slowest stage, None = not known.
        needed_ms: what a step takes without the wait: so fast batches must come.
        overlaps: the stage's time for a batch is longer than a step: a sum over its threads.
        innocent: no stage works long enough to explain the wait.
    """
    if innocent:
        return Advice(
            "Batches come late although no stage of the input pipeline works long: something else "
            "keeps the processor busy (other programs, too few cores for the threads).",
            "top -H  # what runs beside the training; or give it more cores",
        )
    if run.framework == "torch" or run.fact("fit", "input_kind") in ("DataLoader", "dataloader"):
        return _data_loader()
    kind = str(run.fact("fit", "input_kind", default="")).lower()
    generator = stage is not None and stage.name.startswith("generator")
    if "pydataset" in kind or "sequence" in kind:
        return Advice(
            "The PyDataset makes its batches in Python, slower than the model takes them. Let "
            "several worker processes make them ahead of time; __getitem__ must then be picklable "
            "and must not share state.",
            "super().__init__(workers=4, use_multiprocessing=True, max_queue_size=16)"
            "  # in your PyDataset's __init__",
        )
    if "generator" in kind or generator:
        return Advice(
            "Batches come from one Python generator, one after the other, in the training process. "
            "Turn it into a keras.utils.PyDataset: its workers make several batches at a time.",
            "train = MyPyDataset(workers=4, use_multiprocessing=True)"
            "  # __len__, and __getitem__(i) returning batch i",
        )
    if stage is None:
        return Advice(
            "Batches come slower than the model takes them. Which stage is slow was not measured "
            f"in this run; a batch must be ready every {_ms(needed_ms)}. If the data fits into "
            "memory, keep it there after the costly part.",
            "ds = ds.cache()  # behind the costly map, before shuffle and random augmentation",
        )
    takes = f"{stage.name} takes {_ms(stage.work_ms_per_batch)} a batch"
    if overlaps:
        takes += " (summed over its threads)"
    needs = f"a step here without its wait {_ms(needed_ms)}"
    named = re.search(r"\((\w+)\)", stage.name)
    function = named[1] if named and named[1] != "lambda" else "fn"
    parallel = f"ds = ds.map({function}, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)"
    if stage.flags & PYTHON_FLAGS:
        if stage.flags & {"sequential", "fixed_parallelism"} and stage.parallelism < 1.5:
            return Advice(
                f"{takes}, {needs}. It calls Python, one element at a time: TensorFlow does not "
                "run such a stage in parallel by itself. Parallel calls help if the function waits "
                "(for files, for a network). If it computes, it holds Python's lock: write it with "
                "TensorFlow operations instead, or cache its result.",
                parallel,
            )
        return Advice(
            f"{takes}, {needs}. It calls Python, which holds the interpreter's lock: more threads "
            "do not help. Write it with TensorFlow operations (tf.image, tf.io, tf.strings), or "
            "compute it once and cache it.",
            f"ds = ds.map(your_tf_ops_version_of_{function}, num_parallel_calls=tf.data.AUTOTUNE)"
            "  # no py_function, no numpy_function",
        )
    if any(reader in stage.op for reader in READERS):
        return Advice(
            f"{takes}, {needs}. Reading is the slow part: read several files at a time, and keep "
            "them on a local disk if they come over a network.",
            "ds = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE, "
            "deterministic=False)",
        )
    capped = "fixed_parallelism" in stage.flags or (
        "sequential" in stage.flags and stage.parallelism < 1.5
    )
    if stage.name.startswith("map") and capped:
        on = " on one thread" if stage.parallelism < 1.5 else f" on {stage.parallelism:.0f} threads"
        return Advice(
            f"{takes}{'' if overlaps else on}, {needs}. Let TensorFlow choose how many.", parallel
        )
    if "Shuffle" in stage.op:
        return Advice(
            f"{takes}, {needs}. Filling the shuffle buffer takes the time: shuffle file names or "
            "indices instead of decoded elements.",
            "ds = files.shuffle(len(files)).map(load, num_parallel_calls=tf.data.AUTOTUNE)",
        )
    threads = "" if overlaps else f" ({stage.parallelism:.0f})"
    return Advice(
        f"{takes}, {needs}. TensorFlow already runs it on as many threads as pay off here"
        f"{threads}. If the result is the same in every epoch, compute it once; "
        "else make it cheaper (smaller images, work on whole batches behind ds.batch) or do it on "
        "the GPU, inside the model.",
        "ds = ds.cache()  # behind this stage, before shuffle and random augmentation",
    )


def _data_loader() -> Advice:
    return Advice(
        "The DataLoader delivers batches slower than the model takes them. Let worker processes "
        "load them ahead of time and keep these alive between epochs.",
        "DataLoader(dataset, batch_size=..., num_workers=4, persistent_workers=True, "
        "prefetch_factor=4, pin_memory=True)",
    )


def _ms(value: float) -> str:
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms" if value >= 1 else "under 1 ms"
