"""The input of a training: its kind, and the workers that prefetch its batches."""

from __future__ import annotations

import dis
import functools
import gc
import inspect
import itertools
import math
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType, GeneratorType
from typing import Any

import numpy as np

from gpu_util_callback.steps.dispatch import is_library, path_of
from gpu_util_callback.steps.rows import leaves

# Kinds of input by the module that its class, or one it descends from, lives in.
_MODULES = (
    ("torch.utils.data.dataloader", "torch DataLoader"),
    ("torchdata.nodes.loader", "torchdata nodes"),
    ("tensorflow.python.distribute", "tf.data"),
    ("tensorflow.python.data", "tf.data"),
    ("keras.src.trainers.data_adapters.py_dataset_adapter", "PyDataset"),
    ("tf_keras.src.utils.data_utils", "PyDataset"),  # Sequence
    ("grain.", "grain"),
    ("numpy", "numpy"),
)

# Keras' own view of it: the class of its data adapter -> (kind, attribute of the user's object).
_ADAPTERS = {
    "TFDatasetAdapter": ("tf.data", "_dataset"),
    "GeneratorDataAdapter": ("generator", ""),
    "PyDatasetAdapter": ("PyDataset", "py_dataset"),
    "TorchDataLoaderAdapter": ("torch DataLoader", "_dataloader"),
    "GrainDatasetAdapter": ("grain", "_dataset"),
    # `tf_keras` (Keras 2)
    "DatasetAdapter": ("tf.data", "_dataset"),
    "KerasSequenceAdapter": ("PyDataset", "_keras_sequence"),
}

_OF_ARRAYS = "Array", "TensorLike", "GenericArrayLike", "CompositeTensor", "ListsOfScalars"  # the last four: Keras 2

# Libraries whose iterable datasets give each worker process parts of its own, and how many there are: whole shards.
# Where webdataset resamples, each worker draws from all of them.
_PARTS: dict[str, Callable[[Any], Any]] = {
    "datasets": lambda data: data.num_shards,
    "streaming": len,
    "webdataset": lambda data: None if "Resampled" in type(data.pipeline[0]).__name__ else len(data.pipeline[0].urls),
}

# Python's own wrappers of iterators, and the attributes in which libraries keep what they wrap: progress bars,
# trainers, webdataset, TensorFlow Datasets.
_WRAPPERS = (enumerate, zip, map, filter, itertools.islice, itertools.chain)
_WRAPPED = ("iterable", "loader", "_loader", "dataloader", "_dataloader", "base_dataloader", "pipeline", "_ds")
_DEEPEST = 4  # wrappers round wrappers

# Grain: what a user makes, and the part of a pipeline that stands for one worker process.
_GRAIN_CLASSES = ("DataLoader", "MapDataset", "IterDataset")
_GRAIN_PROCESS = "ProcessPrefetchIterDataset"
_GRAIN_DEEPEST = 64  # stages
_MOST_FUNCTIONS = 32  # of a dataset
_OF_WORKERS = frozenset({"get_worker_info", "num_workers"})
_REMAINDER = dis.opmap["BINARY_OP"], 6  # `%`, as Python 3.11 to 3.14 write it
_MANY = 1000  # a longer list holds data

# Attributes of a PyDataset, and arguments of the `fit` of `tf_keras`.
_WORKERS = ("workers", "use_multiprocessing")


def describe_input(dataset: Any) -> dict[str, object]:
    """Return the manifest's `fit` facts of a dataset that a loop iterates over itself.

    Returns: `input_kind`, `steps_per_epoch`, `batch_size`, and the facts of `_workers_of`.
    """
    source = seen_through(dataset)
    kind = _kind(source)
    try:
        steps = len(dataset)
    except Exception:  # unknown, endless, or without a length
        steps = None
    facts = {"input_kind": kind, "steps_per_epoch": steps, "batch_size": _size_of(source), **_workers_of(kind, source)}
    if kind == "PyDataset":  # its workers are started by Keras in `fit` alone
        facts.update(input_workers=0, input_processes=None)
    return facts


KERAS_BATCH = 32  # of arrays, where `fit` is given no size


def describe_fit(frame: FrameType | None, backend: str) -> dict[str, object]:
    """Return the manifest's `fit` facts of the input of the call of `fit` in `frame`.

    Args:
        frame: None = not found.
        backend: "tensorflow", "jax" or "torch".

    Returns: `input_kind`, `batch_size`, `input_batches` or `input_one_iterator`, and the facts of `_workers_of`; None
        for the first two where Keras' own view of the input cannot be found.
    """
    facts: dict[str, Any] = {"input_kind": None, "batch_size": None}
    names = frame.f_locals if frame is not None else {}
    handler = names.get("data_handler")  # `tf_keras`
    adapter = getattr(names.get("epoch_iterator"), "data_adapter", getattr(handler, "_adapter", None))
    if adapter is None:
        return facts
    name = type(adapter).__name__
    kind, home = _ADAPTERS.get(name, ("numpy" if name.removesuffix("DataAdapter") in _OF_ARRAYS else name, ""))
    source = getattr(adapter, home, None) if home else names.get("x")
    facts = {"input_kind": kind, "batch_size": _size_of(source if kind == "torch DataLoader" else adapter)}
    facts |= _workers_of(kind, source)
    # As Keras has asked for it: asking again would run the user's `__len__`.
    iterator = names.get("epoch_iterator")
    batches = getattr(iterator, "_num_batches", None)
    if isinstance(batches, int) and batches > 0:
        facts["input_batches"] = batches
    elif getattr(iterator, "steps_per_epoch", None):  # Keras goes on with one iterator then
        facts["input_one_iterator"] = True
    dims = _dims(getattr(adapter, "_output_signature", None))
    if dims is not None:
        facts["input_dims"] = dims
    facts.update(describe_validation(names.get("validation_data")))
    if facts.get("validation_kind") == "numpy":
        sizes = names.get("validation_batch_size"), names.get("batch_size"), KERAS_BATCH
        facts["validation_batch_size"] = next(filter(None, sizes))
    if kind == "numpy":
        facts["input_beside"] = [name for name in ("y", "sample_weight") if names.get(name) is not None]
    if names.get("validation_split"):
        facts["validation_split"] = float(names["validation_split"])
    if handler is not None and kind in ("PyDataset", "generator"):  # passed to `fit` there
        facts.update(_prefetching(*(names.get(argument) for argument in _WORKERS)))
    prefetched = backend == "tensorflow" and kind in ("PyDataset", "generator")
    if prefetched and facts.get("input_workers") == 0:  # by a thread of tf.data
        facts.update(input_workers=1, input_processes=False)
    return facts


def describe_validation(dataset: object) -> dict[str, object]:
    """Return `validation_kind` of a validation's input and, if known, its `_batch_size` and `_workers`; {} for None."""
    if dataset is None:
        return {}
    source = seen_through(dataset)
    kind = "numpy" if isinstance(source, (tuple, list)) else _kind(source)
    known = {"batch_size": _size_of(source), "workers": _workers_of(kind, source).get("input_workers")}
    facts = {f"validation_{name}": value for name, value in known.items() if value is not None}
    return {"validation_kind": kind, **facts}


def seen_through(dataset: object) -> object:
    """Return what a progress bar, `enumerate`, a trainer's loader and the like iterate over, where that makes batches.

    Of `zip` the one with the fewest workers. Nothing is iterated over and no user code runs: the
    garbage collector shows what Python's own wrappers hold.
    """
    kinds = {kind for _, kind in _MODULES}
    inputs = [value for value in inside(dataset) if _kind(value) in kinds]
    return min(inputs, key=lambda given: _workers_of(_kind(given), given).get("input_workers") or 0, default=dataset)


def inside(dataset: object, depth: int = _DEEPEST) -> Iterator[object]:
    """Yield an input or an iterator, then what it wraps, at most `depth` levels deep; not into a library's input."""
    yield dataset
    if depth <= 0 or any(_known_kind(base) for base in type(dataset).__mro__):
        return
    held: list[Any] = []
    of_library = isinstance(dataset, GeneratorType) and is_library(path_of(dataset.gi_code))
    if of_library or type(dataset) in _WRAPPERS:
        held = gc.get_referents(dataset)
    elif not isinstance(dataset, type) and hasattr(type(dataset), "__iter__"):
        attributes = getattr(dataset, "__dict__", {})
        held = [attributes[name] for name in _WRAPPED if name in attributes]
    for value in held:
        for member in value if type(value) in (tuple, list) and len(value) < _MANY else (value,):
            yield from inside(member, depth - 1)


def _known_kind(base: type) -> str | None:
    """Return the kind of input that a class of a library is; None for others."""
    name = f"{base.__module__}."
    return next((kind for home, kind in _MODULES if name.startswith(home)), None)


def _kind(dataset: object) -> str:
    """Return the kind of an input: a library's, "generator", or its class's name."""
    if isinstance(dataset, GeneratorType):
        return "generator"
    return next(filter(None, map(_known_kind, type(dataset).__mro__)), type(dataset).__name__)


def _size_of(owner: Any) -> int | None:
    """Return the batch size that a loader or dataset states; None if it has no fixed one."""
    try:
        return int(owner.batch_size or owner.batch_sampler.batch_size)  # the latter: of a torch DataLoader
    except Exception:  # a dataset whose batches have no fixed size
        return None


def _workers_of(kind: str, dataset: object) -> dict[str, Any]:
    """Return facts of the workers that make an input's batches, as far as known.

    Returns:
        `input_class`: the user's own class or function;
        `input_collate`: their function that joins samples to a batch; "" = the library's;
        `input_workers`: how many prefetch batches for the loop; 0 = the loop makes each one itself;
        `input_processes`: True for processes, False for threads, None without workers;
        `input_persistent_workers`, `input_pin_memory`, `input_iterable`, `input_shards`,
        `input_sharing`: a DataLoader's;
        `input_autotune`: whether tf.data tunes the dataset: False = its stages run one by one;
        `input_dims`: as of `_dims`, declared by tf.data for its batches.
        Unknown facts are left out.
    """
    if kind == "tf.data":
        return _tf_data(dataset)
    if kind == "PyDataset":
        workers, processes = (getattr(dataset, setting, None) for setting in _WORKERS)
        hook = getattr(type(dataset), "on_epoch_end", None)
        is_own = hook is not None and not str(getattr(hook, "__module__", "")).startswith(("keras.", "tf_"))
        facts = {"input_class": type(dataset).__name__, **_prefetching(workers, processes)} | _files(dataset)
        return facts | ({"input_reorders": True} if is_own and _known_kind(type(dataset)) is None else {})
    if kind == "generator":
        function = getattr(getattr(dataset, "gi_code", None), "co_name", None)
        name = function if function and not function.startswith("<") else None
        return {"input_class": name, **_prefetching(0, None)}
    if kind == "torch DataLoader":
        setting = _loaders(dataset)
        workers = setting("num_workers")
        source, joins = setting("dataset"), setting("collate_fn")
        while type(source).__name__ == "Subset" and hasattr(source, "dataset"):
            source = source.dataset  # of `random_split`: what the program wrote is within
        library = str(getattr(joins, "__module__", "")).startswith("torch.")
        return {
            "input_class": type(source).__name__,
            "input_collate": "" if joins is None or library else called(joins)[0],
            "input_workers": workers,
            "input_processes": True if workers else None,
            "input_persistent_workers": bool(setting("persistent_workers")),
            "input_pin_memory": bool(setting("pin_memory")),
            "input_iterable": "IterableDataset" in {c.__name__ for c in type(source).__mro__},
            "input_shards": _shards(source),
            "input_sharing": _sharing(source, setting("worker_init_fn")) if workers else None,
            **_files(source),
        }
    if kind == "torchdata nodes":
        nodes: list[Any] = [getattr(dataset, "root", None)]
        while nodes[-1] is not None:
            nodes.append(getattr(nodes[-1], "source", None))
        return {"input_workers": max(getattr(node, "num_workers", 0) for node in nodes)}
    return _grain(dataset) if kind == "grain" else {}


def _shards(source: object) -> int | None:
    """Return how many parts a library shares out among worker processes; None where no library does so."""
    count = next(filter(None, (_PARTS.get(c.__module__.partition(".")[0]) for c in type(source).__mro__)), None)
    try:
        return int(count(source)) if count is not None else None
    except Exception:  # no iterable dataset, or another version
        return None


_RANDOM = frozenset({"random", "rand", "randn", "randint", "normal", "uniform", "integers", "default_rng", "choice"})


def _sharing(source: object, worker_init: object) -> str | None:
    """Return how the program's iterable dataset shares its items out among worker processes, by what its code names.

    Returns: "none": nothing asks for the worker; "strided": it takes each n-th item (islice, %); None = not known.
    """
    begin = getattr(type(source), "__iter__", None)
    if not isinstance(begin, FunctionType) or is_library(path_of(begin.__code__)) or worker_init is not None:
        return None
    functions, names, strides = [begin], set[str](), False
    for function in functions:
        codes = [function.__code__]
        for code in codes:
            codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
            names.update(code.co_names)
            divides = _REMAINDER in zip(code.co_code[::2], code.co_code[1::2], strict=True)
            strides |= bool(_OF_WORKERS & {*code.co_names}) and (divides or "islice" in code.co_names)
        value_of_name = {**function.__globals__, **vars(type(source))}
        reached = [value_of_name.get(name) for code in codes for name in code.co_names]
        reached += [cell.cell_contents for cell in function.__closure__ or ()]
        more = [value for value in reached if isinstance(value, FunctionType) and value not in functions]
        functions += more[: max(0, _MOST_FUNCTIONS - len(functions))]
    if strides and "get_worker_info" in names:
        return "strided"
    return None if names & {"get_worker_info", *_RANDOM} else "none"


def _files(owner: object) -> dict[str, object]:
    """Return the manifest's `input_files`: those attributes of the dataset that are arrays of an HDF5 file.

    {} for none.
    """
    files = []
    for name, value in list(getattr(owner, "__dict__", {}).items()):
        if not type(value).__module__.startswith("h5py.") or not hasattr(value, "chunks"):
            continue
        try:
            entry: dict[str, object] = {"name": f"self.{name}", "bytes": int(value.nbytes)}
            if value.chunks:
                entry |= {"chunk_rows": int(value.chunks[0]), "compression": value.compression or ""}
        except Exception:  # a file that was closed
            continue
        files.append(entry)
    return {"input_files": files} if files else {}


def _grain(source: object) -> dict[str, object]:
    """Return the facts of a Grain pipeline: its class, and the workers that make its items, where known."""
    parts = list(_grain_parts(source))
    names = {name for part in parts[:1] for name in (c.__name__ for c in type(part).__mro__)}
    names |= {type(part).__name__ for part in parts}
    facts: dict[str, Any] = {
        "input_class": next((name for name in _GRAIN_CLASSES if name in names), type(source).__name__)
    }
    options = [getattr(part, "multiprocessing_options", None) for part in parts]
    workers = [option.num_workers for option in options if option is not None]
    workers += [sum(type(part).__name__ == _GRAIN_PROCESS for part in parts)]
    if max(workers) or len(workers) > 1:  # else nothing says that there are none
        facts |= {"input_workers": max(workers), "input_processes": max(workers) > 0 or None}
    return facts


def _grain_parts(source: Any) -> Iterator[Any]:
    """Yield the nodes of a Grain pipeline, the last stage first.

    Nodes name their parents differently, so the search follows what the garbage collector says a
    node refers to, breadth first.
    """
    visited, level = set(), [source]
    for _ in range(_GRAIN_DEEPEST):
        if not level:
            return
        nodes = [value for value in level if type(value).__module__.startswith("grain.")]
        yield from nodes
        visited |= {id(value) for value in level}
        inside = [value for value in level if type(value) in (list, tuple, dict) and len(value) < _MANY]
        level = [referent for referent in gc.get_referents(*nodes, *inside) if id(referent) not in visited]
        level = list({id(value): value for value in level}.values())


def _loaders(loader: object) -> Callable[[str], object]:
    """Return a reader of a DataLoader's settings; its iterators keep them under private names."""
    return lambda name: getattr(loader, name, getattr(loader, f"_{name}", None))


def source_of(dataset: object) -> object:
    """Return the object a DataLoader takes its samples from; None for other inputs."""
    return _loaders(dataset)("dataset") if _kind(dataset) == "torch DataLoader" else None


def _tf_data(dataset: Any) -> dict[str, Any]:
    """Return the facts of a `tf.data` dataset: whether it is tuned, and the shapes of its batches; {} if unknown."""
    try:
        enabled = dataset.options().autotune.enabled
    except Exception:  # a distributed dataset has none
        return {}
    facts = {"input_autotune": enabled is not False}
    dims = _dims(getattr(dataset, "element_spec", None))
    return facts if dims is None else facts | {"input_dims": dims}


def _dims(spec: object) -> list[list[int | None]] | None:
    """Return the shape of each tensor of a batch, None for a size that may vary.

    For `x`, `(x, y)` and `(x, y, weights)`, where all are plain tensors; None for other batches.
    """
    specs = spec if type(spec) is tuple else (spec,)
    if any(type(tensor).__name__ != "TensorSpec" or tensor.shape.rank is None for tensor in specs):
        return None
    return [tensor.shape.as_list() for tensor in specs]


def batch_shape(adapter: Any) -> tuple[int | None, int | None]:
    """Return (the fixed size of a batch, elements of a sample in the tensor that shows the size).

    The latter is of the first tensor whose size is that of the batch alone, as stamped with each
    batch in TensorFlow's graph. None where the specification of the batches does not say.
    """
    spec = getattr(adapter, "_output_signature", None)
    if spec is None:
        spec = getattr(getattr(adapter, "_dataset", None), "element_spec", None)
    parts = list(leaves(spec, sorted))
    if any(type(part).__name__ != "TensorSpec" for part in parts):
        return None, None  # a ragged or sparse tensor is stamped with the sizes of its own parts
    try:
        shapes = [part.shape.as_list() for part in parts]
    except ValueError:  # of unknown rank
        return None, None
    if not shapes or not all(shapes):
        return None, None
    if all(shape[0] is not None for shape in shapes):  # every batch has the same size
        return shapes[0][0], None
    varying = [shape for shape in shapes if None in shape]
    if any(shape[0] is not None or None in shape[1:] for shape in varying):  # sizes other than the batch's vary
        return None, None
    return None, math.prod(varying[0][1:])


_NUMBERS = 64  # of an array


def digest(nest: object) -> bytes | None:
    """Return bytes that are equal for equal batches: some 64 numbers of each of the first 64 arrays of a nest.

    None where something else is among these: pictures, datasets, tensors on a device; or there is no array.
    """
    try:
        return b"".join(map(_spread_numbers, itertools.islice(leaves(nest), _NUMBERS))) or None
    except Exception:
        return None


def _spread_numbers(leaf: Any) -> bytes:
    """Return some 64 numbers of an array, evenly spread, as bytes. Raises: TypeError if it is none, or on a device."""
    if isinstance(leaf, (int, float, str)):
        return repr(leaf)[:_NUMBERS].encode()
    own = isinstance(leaf, (np.ndarray, np.generic))
    of_torch = leaf.numpy() if type(leaf).__module__ == "torch" else None
    array = np.asarray(leaf if own else of_torch)
    if array.dtype.kind not in "buif":
        raise TypeError
    return array.flat[:: max(1, array.size // _NUMBERS)].tobytes()


def called(function: Any) -> tuple[str, object]:
    """Return a function's name, and an object (its code or class) that distinguishes it from others of that name."""
    function = inspect.unwrap(function)
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", type(function))
    name = getattr(function, "__name__", f"{type(function).__name__}.__call__")
    if inspect.ismethod(function) and not inspect.isclass(function.__self__):
        name = f"{type(function.__self__).__name__}.{name}"
    return name.replace("<lambda>", "lambda"), code


def _prefetching(workers: Any, processes: Any) -> dict[str, object]:
    """Return the facts of Keras' prefetching for these settings; {} where they are not set.

    A single thread never prefetches.
    """
    try:
        count, separate = int(workers), bool(processes)
    except (TypeError, ValueError):  # not set, or not a number
        return {}
    if count > 1 or (count > 0 and separate):
        return {"input_workers": count, "input_processes": separate}
    return {"input_workers": 0, "input_processes": None}
