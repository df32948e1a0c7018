"""Remedies for growing memory, and for a training that ran out of memory."""

from collections.abc import Callable

import numpy as np

from gpu_util_callback.diagnosis.advice.snippets import accumulation, batch_code, has_keras_fit, idioms, mixed_precision
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.samples import batch_of
from gpu_util_callback.diagnosis.rule import Advice
from gpu_util_callback.diagnosis.thresholds import A_TWENTIETH
from gpu_util_callback.words import capitalized

_UNFRAGMENTED = {
    "tensorflow": "TF_GPU_ALLOCATOR=cuda_malloc_async",
    "torch": "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
}


_ONE_MODEL = (
    "first = model.get_weights()  # once, before the first fit\nmodel.set_weights(first)  # in place of a new model"
)
_RETRACING = {
    "tensorflow": "@tf.function(reduce_retracing=True)",
    "torch": "model = torch.compile(model, dynamic=True)",
}
_SNAPSHOTS = (
    "Two snapshots of Python's allocations, some hundred steps apart, show the line that keeps them, such as losses, "
    "logits or batches appended to a list; if they show nothing, the memory is a library's: leave out callbacks, "
    "metrics and stages of the input one by one."
)
_TRACEMALLOC = 'tracemalloc.start()\n...\nprint(*tracemalloc.take_snapshot().statistics("lineno")[:10], sep="\\n")'
# Kind of growth -> what follows the observation, {seen}, and the line to paste.
_GROWING: dict[str, tuple[str, str | Callable[[Run], str]]] = {
    "models": (
        "{seen}: each keeps its weights, its optimizer's variables and its compiled functions. Something refers to "
        "them, such as a list, a dictionary or a callback. Let one model serve all fits, with its weights set back "
        "before each; of a model that has done its part keep the weights (model.get_weights()).",
        _ONE_MODEL,
    ),
    "programs": (
        "{seen}: what was compiled for a model stays longer than the model. Let one model serve all fits, with its "
        "weights set back before each.",
        _ONE_MODEL,
    ),
    "traces": (
        "{seen}: each keeps its program. Give inputs one shape, or a few (drop the smaller last batch, pad what "
        "varies in length), and pass numbers that change as tensors.",
        lambda run: "" if has_keras_fit(run) else _RETRACING.get(run.framework, ""),
    ),
    "graph": (
        "{seen}: build the graph once, before the loop, and only run it there. A finished graph says where it is "
        "still added to.",
        "tf.compat.v1.get_default_graph().finalize()  # before the loop",
    ),
    "cache": (
        "{seen} keeps the whole dataset in memory. Keep it in a file (delete that after a change of the "
        "preprocessing), or cache what is smaller: before decoding and augmentation.",
        'ds = ds.cache("cache_file")',
    ),
    "shuffle": (
        "{seen} holds whole elements: shuffle what is small (paths, keys) before it is read, or make the buffer "
        "smaller, which shuffles less well.",
        "ds = ds.shuffle(1000)",
    ),
    "workers": (
        "{seen} each have a copy of what the dataset holds, and Python copies more of it with every object they "
        "touch. Keep the samples in one array instead of lists of Python objects, or use fewer workers.",
        lambda run: "loader = DataLoader(dataset, ..., num_workers=2)" if run.framework == "torch" else "",
    ),
    "tensors": (
        "There are {seen}: something keeps results of past steps. Look for losses, logits or batches in lists and "
        "dictionaries, and keep Python numbers instead.",
        lambda run: f"losses.append({idioms(run).read})",
    ),
    "objects": (f"There are {{seen}}: something in Python may keep results of past steps. {_SNAPSHOTS}", _TRACEMALLOC),
    "unknown": (f"The cause is not known. {_SNAPSHOTS}", _TRACEMALLOC),
}


def growing(run: Run, kind: str, observed: str | None) -> Advice:
    """Return advice on memory that grows: its kind, and what was observed of it."""
    text, code = _GROWING[kind]
    begins = text.startswith("{seen}")
    seen = capitalized(observed or "") if begins else observed
    return Advice(text.format(seen=seen), code if isinstance(code, str) else code(run))


def smaller(run: Run, gpu: int | None, fits: int | None, fragmented: bool = False) -> Advice:
    """Return advice that lowers the memory of a training that ran out of memory.

    Args:
        gpu: whose memory was full; None = the host's.
        fits: the batch size that would have fitted, None = unknown.
        fragmented: the allocator held more than was asked for, in pieces.
    """
    batch = batch_of(run) or 0
    size = fits or (batch // 2 if batch >= 2 else 0)  # of a batch; 0 = it is one sample, or not known
    if gpu is None:
        return Advice(
            "The host's memory was full. Keep less of the dataset in memory: smaller shuffle and "
            "prefetch buffers, no cache() in memory, fewer worker processes, smaller batches.",
            batch_code(run, size) if size else "",
        )
    if 0 < size < batch:  # a smaller batch is possible
        parts = -(-batch // size)
        text = f"A batch of {size:,} would have fitted" if fits else f"Try a batch of {size:,}"
        code, lines = batch_code(run, size), accumulation(run, parts)
        if lines:
            text += f"; adding up the gradients of {parts} of them trains nearly as before (not batch normalization)"
            code += f"\n{lines}"
        return Advice(f"{text}. {_more(run, gpu, fragmented)}", code, alters_training=True)
    line, more = mixed_precision(run, gpu), _more(run, gpu, fragmented)
    if line is None:
        return Advice(more)
    return Advice(f"Mixed precision nearly halves what activations take. {more}", line, alters_training=True)


def _more(run: Run, gpu: int, fragmented: bool) -> str:
    """Return the other remedies as one sentence: the allocator's pool, other processes, precision, recomputation.

    Args:
        fragmented: the allocator held more than was asked for, in pieces.
    """
    remedies = []
    pool = _UNFRAGMENTED.get(run.framework)
    if fragmented and pool is not None:
        remedies.append(f"the environment variable {pool} keeps the free memory in one piece")
    other_bytes = run.highest(gpu, "memory_other_bytes") or 0.0
    if other_bytes >= A_TWENTIETH * float(run.gpu(gpu).get("memory_total_bytes") or np.inf):
        remedies.append(
            f"other processes hold {other_bytes / 2**30:.1f} GiB of this GPU, TensorFlow all that it "
            "can get unless TF_FORCE_GPU_ALLOW_GROWTH=true is set for it"
        )
    if mixed_precision(run, gpu) is not None:
        remedies.append("mixed precision nearly halves what activations take")
    remedies.append(
        {
            "torch": "torch.utils.checkpoint recomputes activations instead of keeping them",
            "jax": "jax.checkpoint recomputes activations instead of keeping them",
            "tensorflow": "tf.recompute_grad recomputes activations instead of keeping them",
        }.get(run.framework, "recomputing activations instead of keeping them helps, too")
    )
    text = "; ".join(remedies)
    return f"Else: {text}."
