"""What feeds a training: the kind of its input, and who makes batches ahead of the loop."""

from __future__ import annotations

from types import FrameType, GeneratorType
from typing import Any

__all__ = ["describe_fit", "describe_input"]

# What an input is called, by the module that its class, or one it descends from, lives in.
_HOMES = (
    ("torch.utils.data.dataloader", "torch DataLoader"),
    ("tensorflow.python.distribute", "tf.data"),
    ("tensorflow.python.data", "tf.data"),
    ("keras.src.trainers.data_adapters.py_dataset_adapter", "PyDataset"),
    ("tf_keras.src.utils.data_utils", "PyDataset"),  # Sequence
    ("grain.", "grain"),
    ("numpy", "numpy"),
)

# Keras' own view of it: the class of its data adapter -> (kind, where the user's object is kept).
_ADAPTERS = {
    "ArrayDataAdapter": ("numpy", ""),
    "TFDatasetAdapter": ("tf.data", "_dataset"),
    "GeneratorDataAdapter": ("generator", ""),
    "PyDatasetAdapter": ("PyDataset", "py_dataset"),
    "TorchDataLoaderAdapter": ("torch DataLoader", "_dataloader"),
    "GrainDatasetAdapter": ("grain", "_dataset"),
    # `tf_keras` (Keras 2)
    "TensorLikeDataAdapter": ("numpy", ""),
    "GenericArrayLikeDataAdapter": ("numpy", ""),
    "CompositeTensorDataAdapter": ("numpy", ""),
    "ListsOfScalarsDataAdapter": ("numpy", ""),
    "DatasetAdapter": ("tf.data", "_dataset"),
    "KerasSequenceAdapter": ("PyDataset", "_keras_sequence"),
}

# What a PyDataset has, and the `fit` of `tf_keras` is told.
_WORKERS = ("workers", "use_multiprocessing", "max_queue_size")


def describe_input(dataset: Any) -> dict[str, Any]:
    """What the manifest's `fit` says of a dataset that a loop iterates over itself.

    Returns: `input_kind`, `steps_per_epoch`, `batch_size`, and what `_makers` knows.
    """
    kind = _kind(dataset)
    try:
        steps = len(dataset)
    except Exception:  # unknown, endless, or no such thing
        steps = None
    facts = {
        "input_kind": kind,
        "steps_per_epoch": steps,
        "batch_size": _size(dataset),
        **_makers(kind, dataset),
    }
    if kind == "PyDataset":  # its workers are Keras' to start, in `fit` alone
        facts.update(input_workers=0, input_processes=None, input_queue=None)
    return facts


def describe_fit(frame: FrameType | None, backend: str) -> dict[str, Any]:
    """What the manifest's `fit` says of the input of the call of `fit` in `frame`.

    Returns: `input_kind`, `batch_size`, and what `_makers` knows; None for the first two where
        Keras' own view of the input cannot be found.
    """
    facts: dict[str, Any] = {"input_kind": None, "batch_size": None}
    if frame is None:
        return facts
    handler = frame.f_locals.get("data_handler")  # `tf_keras`
    adapter = getattr(frame.f_locals.get("epoch_iterator"), "data_adapter", None)
    adapter = adapter if adapter is not None else getattr(handler, "_adapter", None)
    if adapter is None:
        return facts
    name = type(adapter).__name__
    kind, home = _ADAPTERS.get(name, (name, ""))
    given = getattr(adapter, home, None) if home else frame.f_locals.get("x")
    facts.update(input_kind=kind, batch_size=_size(adapter), **_makers(kind, given))
    if handler is not None and kind in ("PyDataset", "generator"):  # told to `fit` there
        facts.update(_ahead(*(frame.f_locals.get(one) for one in _WORKERS)))
    prefetched = backend == "tensorflow" and kind in ("PyDataset", "generator")
    if prefetched and facts.get("input_workers") == 0:  # by a thread of tf.data's
        facts.update(input_workers=1, input_processes=False)
    return facts


def _kind(dataset: Any) -> str:
    if isinstance(dataset, GeneratorType):
        return "generator"
    for one in type(dataset).__mro__:
        name = f"{one.__module__}."
        found = next((kind for home, kind in _HOMES if name.startswith(home)), None)
        if found is not None:
            return found
    return type(dataset).__name__


def _size(owner: Any) -> int | None:
    try:
        size = owner.batch_size
        return int(size) if size is not None else None
    except Exception:  # a dataset whose batches have no fixed size
        return None


def _makers(kind: str, given: Any) -> dict[str, Any]:
    """Who makes the batches of an input, as far as it tells.

    Returns:
        `input_class`: the user's own class or function;
        `input_workers`: how many make batches ahead of the loop; 0 = it makes each one itself;
        `input_processes`: whether they are processes (else threads), None without workers;
        `input_queue`: batches kept ready (a DataLoader's: by each worker), None without workers;
        `input_persistent_workers`, `input_pin_memory`, `input_iterable`: a DataLoader's;
        `input_autotune`: whether tf.data tunes the dataset: False = its stages run one by one.
        What is not known is left out.
    """
    if kind == "tf.data":
        return _tf_data(given)
    if kind == "PyDataset":
        workers, processes, queue = (getattr(given, one, None) for one in _WORKERS)
        return {"input_class": type(given).__name__, **_ahead(workers, processes, queue)}
    if kind == "generator":
        function = getattr(getattr(given, "gi_code", None), "co_name", None)
        own = function if function and not function.startswith("<") else None
        return {"input_class": own, **_ahead(0, None, None)}
    if kind == "torch DataLoader":
        workers = getattr(given, "num_workers", None)
        source = getattr(given, "dataset", None)
        return {
            "input_class": type(source).__name__,
            "input_workers": workers,
            "input_processes": True if workers else None,
            "input_queue": getattr(given, "prefetch_factor", None) if workers else None,
            "input_persistent_workers": bool(getattr(given, "persistent_workers", False)),
            "input_pin_memory": bool(getattr(given, "pin_memory", False)),
            "input_iterable": "IterableDataset" in {c.__name__ for c in type(source).__mro__},
        }
    return {}


def _tf_data(dataset: Any) -> dict[str, Any]:
    try:
        enabled = dataset.options().autotune.enabled
    except Exception:  # a distributed dataset has none
        return {}
    return {"input_autotune": enabled is not False}


def _ahead(workers: Any, processes: Any, queue: Any) -> dict[str, Any]:
    """What Keras makes of a PyDataset's (or `fit`'s) wishes: one thread alone works not ahead."""
    try:
        wanted, separate = int(workers), bool(processes)
    except (TypeError, ValueError):  # not told, or not a number
        return {}
    if wanted > 1 or (wanted > 0 and separate):
        return {"input_workers": wanted, "input_processes": separate, "input_queue": queue}
    return {"input_workers": 0, "input_processes": None, "input_queue": None}
