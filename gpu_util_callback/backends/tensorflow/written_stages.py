"""Stages of a tf.data pipeline: as written, their cost in the running iterator, their Python functions."""

from __future__ import annotations

import contextlib
import inspect
import math
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, Literal

import tensorflow as tf
from tensorflow.core.framework import model_pb2
from tensorflow.python.ops import script_ops

from gpu_util_callback.backends.input_calls import InputCalls
from gpu_util_callback.backends.inputs import called
from gpu_util_callback.recording.manifest_facts import InputDrop, InputMap
from gpu_util_callback.steps.dispatch import CalledBack

# TensorFlow's name of a dataset -> the name in the user's program, where that is another one.
_WORDS = {
    "FromTensor": "from_tensors",
    "Tensor": "from_tensors",
    "TensorSlice": "from_tensor_slices",
    "TFRecord": "TFRecordDataset",
    "TextLine": "TextLineDataset",
    "FixedLengthRecord": "FixedLengthRecordDataset",
    "DirectedInterleave": "sample_from_datasets",
    "MaxIntraOpParallelism": "options",
    "PrivateThreadPool": "options",
    "Root": "iterator",
}
_READERS = {name for name in _WORDS.values() if name.endswith("Dataset")}
_VARIANT = re.compile(r"^(Legacy|Parallel|Finite|Forever|Memory|File)+")
_PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
# Operations that draw other numbers each time they run.
_RANDOM_OPS = re.compile(
    r"Random(Uniform|UniformInt|StandardNormal|Gamma|Poisson|PoissonV2|Shuffle|Crop)$"
    r"|(Parameterized)?TruncatedNormal$|Multinomial$|SampleDistortedBoundingBox(V2)?$"
    r"|Stateful(Uniform|StandardNormal|TruncatedNormal|RandomBinomial)|Rng(Skip|ReadAndSkip)$"
    r"|NonDeterministicInts$|\w+CandidateSampler$"
)
# Operations whose numbers follow from a seed, and the input that is the seed. The others of this
# kind take a key that `StatelessRandomGetKeyCounter` made.
_SEEDED_OPS = {
    "StatelessRandomGetKeyCounter": 0,
    "StatelessRandomUniform": 1,
    "StatelessRandomUniformInt": 1,
    "StatelessRandomUniformFullInt": 1,
    "StatelessRandomNormal": 1,
    "StatelessTruncatedNormal": 1,
    "StatelessRandomBinomial": 1,
    "StatelessRandomPoisson": 1,
    "StatelessRandomGammaV2": 1,
    "StatelessParameterizedTruncatedNormal": 1,
    "StatelessMultinomial": 2,
    "RandomIndexShuffle": 1,
    "StatelessSampleDistortedBoundingBox": 3,
}
_OPENS = re.compile(r"^Placeholder$|Dataset(V\d+)?$")
_AUTOTUNE = -1
# Whose functions are not the user's: stages of datasets like `image_dataset_from_directory`'s.
_LIBRARIES = ("keras.", "tf_keras.", "tensorflow.")

_MOST_STAGES = 1000
_COUNTS = ("_count", "_num_shards", "_batch_size")  # attributes of datasets
_SAME = "same"  # the word of a map whose function returns its arguments: TensorFlow runs a pipeline without it
_ONE_FOR_ONE = ("map", _SAME, "prefetch", "options", "cache", "shuffle", "repeat", "take", "skip", "assert_cardinality")
_BATCHES = ("batch", "padded_batch")


@dataclass(frozen=True)
class WrittenStage:
    """One stage as it was written: `word` "map", `title` "map(decode)", its inputs in order.

    Attributes:
        flags: as in the `pipeline` table: "py_function", "sequential", "fixed_buffer", …
        random: whether its function draws random numbers; None: it has no function.
        py_functions: TensorFlow's tokens of the Python functions that its function calls.
        buffer_bytes: of a full shuffle buffer; None: it has none, or elements of unknown size.
        count: elements that it skips, takes or puts into a batch, passes of a repeat (-1 = endless), parts of a shard;
            None: it has no such number, or not a constant.
    """

    word: str
    title: str
    flags: frozenset[str]
    inputs: list[WrittenStage] = field(default_factory=list, compare=False)
    random: bool | None = None
    py_functions: tuple[str, ...] = ()
    buffer_bytes: int | None = None
    count: int | None = None

    def all(self) -> Iterator[WrittenStage]:
        """Yield this stage and those before it, from the sources on."""
        for stage in self.inputs:
            yield from stage.all()
        yield self

    def shuffled(self, taken_in: bool = False) -> Iterator[WrittenStage]:
        """Yield the stages whose results a shuffle takes in, and no cache keeps."""
        if taken_in:
            yield self
        if self.word != "cache":
            for stage in self.inputs:
                yield from stage.shuffled(taken_in or self.word.startswith("shuffle"))


def word(op: str) -> str:
    """Return the user's name for a tf.data op: "ParallelMapV2" -> "map"."""
    name = re.sub(r"(Dataset|Impl)?(V\d+)?$", "", op.split("[")[0])
    snake_case = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", _VARIANT.sub("", name)).lower()
    return _WORDS.get(name, snake_case.replace("_and_", " + "))


def written(dataset: object) -> WrittenStage | None:
    """Return the tree of stages behind a dataset, as it was written, of at most `_MOST_STAGES`.

    None without a dataset.
    """
    if dataset is None:
        return None
    stages_left = _MOST_STAGES
    root = _stage(dataset)
    open_ends = [(root, dataset)]
    while open_ends and stages_left > 0:
        stage, current = open_ends.pop()
        for below in current._inputs() if hasattr(current, "_inputs") else []:
            stages_left -= 1
            stage.inputs.append(_stage(below))
            open_ends.append((stage.inputs[-1], below))
    return root


def _stage(dataset: tf.data.Dataset) -> WrittenStage:
    """Return a dataset as a stage as the program wrote it, with its flags."""
    kind = re.sub(r"^_|Dataset(V\d+)?$", "", type(dataset).__name__)
    name = word(kind)
    title = name
    wrapper = getattr(dataset, "_map_func", None) or getattr(dataset, "_predicate", None)
    function = getattr(wrapper, "function", None)
    bodies = _bodies(function)
    operations = {node.op for body in bodies for node in body}
    if name == "map" and operations == {"Placeholder", "Identity"} and _returns_its_arguments(function):
        return WrittenStage(_SAME, _SAME, frozenset())
    if function is not None:
        inner_name = function_name(getattr(function, "name", b""))
        title = f"{name}({inner_name})" if inner_name else name
    calls, parallel = name in ("map", "interleave", "map + batch"), kind.startswith("Parallel")
    flags = {
        "py_function": bool(operations & _PYTHON_OPS),
        "stateful": getattr(function, "graph", None) is not None and _stateful(function),
        "library": str(getattr(getattr(wrapper, "_func", None), "__module__", "")).startswith(_LIBRARIES),
        "sequential": calls and not parallel,
        "fixed_parallelism": calls and parallel and _is_fixed(dataset, "_num_parallel_calls"),
        "fixed_buffer": kind == "Prefetch" and _is_fixed(dataset, "_buffer_size"),
    }
    if kind == "FlatMap" and function is not None and "GeneratorDataset" in operations:
        title = "from_generator"  # the generator itself is a node of its own below
    return WrittenStage(
        name,
        title,
        frozenset(flag for flag, is_set in flags.items() if is_set),
        # `sample_from_datasets` chooses by a dataset of that kind.
        random=any(map(_draws, bodies)) if bodies else kind == "Random" or None,
        py_functions=tuple(node.attr["token"].s.decode() for body in bodies for node in body if node.op in _PYTHON_OPS),
        buffer_bytes=_buffer_bytes(dataset) if name == "shuffle" else None,
        count=next((count for key in _COUNTS if (count := _constant(getattr(dataset, key, None))) is not None), None),
    )


def _returns_its_arguments(function: tf.types.experimental.ConcreteFunction) -> bool:
    returned = [id(output.op.inputs[0]) for output in function.graph.outputs]
    return returned == [id(argument) for argument in function.graph.inputs]


def _is_fixed(dataset: tf.data.Dataset, attribute: str) -> bool:
    """Return whether a number is known and is not left to autotuning."""
    return _constant(getattr(dataset, attribute, None)) not in (None, _AUTOTUNE)


def _buffer_bytes(dataset: tf.data.Dataset) -> int | None:
    """Return the bytes of a full shuffle buffer; None where its size, or that of its elements, is not known."""
    size = _constant(getattr(dataset, "_buffer_size", None))
    total = 0
    for spec in tf.nest.flatten(dataset.element_spec):
        has_size = isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined()
        if not has_size or spec.dtype in (tf.string, tf.variant, tf.resource):
            return None
        total += spec.shape.num_elements() * spec.dtype.size
    return None if size is None or size < 0 else size * total


def function_name(name: bytes | str) -> str:
    """Return a traced function's own name: "__inference_Dataset_map_decode_11" -> "decode"."""
    text = name.decode() if isinstance(name, bytes) else str(name)
    name_match = re.match(r"__inference_Dataset_(?:[a-z]+_)??(?:map|filter|interleave|flat_map|scan)_(.+)_\d+$", text)
    plain_name = name_match.group(1) if name_match else ""
    return "lambda" if plain_name in ("<lambda>", "lambda") or plain_name.startswith("lambda") else plain_name


def _bodies(function: object) -> list[Sequence[tf.compat.v1.NodeDef]]:
    """Return the nodes of a traced function, and of each function that it calls."""
    graph = getattr(function, "graph", None)
    definition = None if graph is None else graph.as_graph_def()
    return [definition.node, *(inner.node_def for inner in definition.library.function)] if definition else []


def _draws(body: Sequence[tf.compat.v1.NodeDef]) -> bool:
    """Return whether these operations draw random numbers, others in each call.

    A seed that is no constant counts as one that changes.
    """
    nodes = {node.name: node for node in body}
    return any(
        _RANDOM_OPS.match(node.op) or (node.op in _SEEDED_OPS and _varies(node.input[_SEEDED_OPS[node.op]], nodes))
        for node in body
    )


def _varies(tensor: str, nodes: dict[str, tf.compat.v1.NodeDef]) -> bool:
    """Return whether a tensor follows from anything but constants."""
    return any(
        name not in nodes or (not nodes[name].input and nodes[name].op != "Const") for name in _reached(tensor, nodes)
    )


def _reached(tensor: str, nodes: dict[str, tf.compat.v1.NodeDef]) -> set[str]:
    """Return the names of the nodes and arguments that a tensor follows from."""
    open_ends, reached = [tensor], set[str]()
    while open_ends:
        name = open_ends.pop().partition(":")[0]
        if name not in reached:
            reached.add(name)
            inputs = nodes[name].input if name in nodes else ()
            open_ends += [tensor_name for tensor_name in inputs if not tensor_name.startswith("^")]
    return reached


def _stateful(function: tf.types.experimental.ConcreteFunction) -> bool:
    """Return whether a function does more than compute from its arguments; opening a dataset does not count."""
    return any(
        op.op_def is not None and op.op_def.is_stateful and not _OPENS.search(op.type)
        for op in function.graph.get_operations()
    )


def _constant(value: tf.Tensor | None) -> int | None:
    with contextlib.suppress(Exception):
        return int(value) if value is not None else None
    return None


def match(model: model_pb2.ModelProto, stage: WrittenStage | None) -> dict[int, WrittenStage]:
    """Return the written stage of each node of the running pipeline.

    Args:
        model: the iterator's ModelProto.
        stage: the result of `written`.

    Returns: node id -> stage. The optimizer adds, drops and fuses stages, so a node takes the next
        stage of its own branch that fits its name. The inputs of a node are in the order of the
        dataset's inputs, and finished ones keep their place (seen with `concatenate`).
    """
    stages_by_node: dict[int, WrittenStage] = {}
    nodes = {node.id: node for node in model.nodes.values()}
    open_ends = [(nodes.get(model.output), stage)]
    while open_ends:
        node, at = open_ends.pop()
        if node is None or at is None:
            continue
        below = [at]  # inputs of a node that is not in the user's program
        fitting = _find_stage(at, word(node.name))
        if fitting is not None:
            stages_by_node[node.id], below = fitting
        inputs = [nodes.get(i) for i in node.inputs]
        if len(below) == 1 and len(inputs) > 1:
            below = below[0].inputs if len(below[0].inputs) == len(inputs) else below * len(inputs)
        open_ends += list(zip(inputs, below, strict=False))
    return stages_by_node


def _find_stage(stage: WrittenStage, name: str) -> tuple[WrittenStage, list[WrittenStage]] | None:
    """Return the first stage called `name` at or below `stage`, and its inputs.

    A branching stage ends the search: stages behind it are not this branch's alone.
    """
    fused = name == "map + batch"
    at: WrittenStage | None = stage
    while at is not None:
        if at.word == name:
            return at, at.inputs
        if fused and at.word in ("map", "batch"):
            mapped = _find_stage(at, "map")
            if mapped is None:
                return at, at.inputs
            return replace(mapped[0], title=f"{mapped[0].title} + batch"), mapped[1]
        at = at.inputs[0] if len(at.inputs) == 1 else None
    return None


def _behind_work(stage: WrittenStage | None) -> bool:
    """Return whether a stage before this one calls a function or reads files, as written.

    Behind a cache none does once that is full.
    """
    if stage is None or stage.word == "cache":
        return False
    return any(before.random is not None or before.word in _READERS for below in stage.inputs for before in below.all())


# ---- what is read in vain, or again --------------------------------------------------------------


def _stages_to_branch(dataset: Any, stage: WrittenStage) -> list[tuple[WrittenStage, Any]]:
    """Return the stages from the end to the source or the first branch, each with its dataset."""
    chain = [(stage, dataset)]
    while len(chain[-1][0].inputs) == 1:
        stage, dataset = chain[-1]
        chain.append((stage.inputs[0], dataset._inputs()[0]))
    return chain


def _pass_facts(chain: Sequence[tuple[WrittenStage, Any]]) -> tuple[int, int] | None:
    """Return (batches, samples) of one pass over what a pipeline repeats; None if it repeats nothing, or not known.

    Args:
        chain: as `_stages_to_branch` returns it: stages from the end on, each with its dataset.
    """
    repeats = [at for at, (stage, _) in enumerate(chain) if stage.word == "repeat" and stage.count not in (0, 1)]
    if not repeats or repeats[-1] + 1 >= len(chain):
        return None
    elements = int(chain[repeats[-1] + 1][1].cardinality())
    batched = next((at for at, (stage, _) in enumerate(chain) if stage.word in _BATCHES), -1)
    if elements <= 0 or batched < 0:
        return None
    samples = int(chain[batched + 1][1].cardinality()) if batched > repeats[-1] else elements
    for stage, _ in chain[: repeats[-1]]:
        if stage.word in _BATCHES and stage.count:
            elements = math.ceil(elements / stage.count)
        elif stage.word not in _ONE_FOR_ONE:
            return None
    return (elements, samples) if samples > 0 else None


def _drops(chain: Sequence[tuple[WrittenStage, Any]], phase: Literal["train", "validation"]) -> Iterator[InputDrop]:
    """Yield an entry of the manifest for each stage that drops elements which stages before it have made.

    Args:
        chain: stages from the end on, each with its dataset.
        phase: of the pipeline.
    """
    for at, (stage, _) in enumerate(chain):
        # this stage drops nothing
        if stage.word not in ("skip", "shard", "take") or not stage.count or stage.count < 0:
            continue
        cache = next((place for place in range(at + 1, len(chain)) if chain[place][0].word == "cache"), len(chain))
        before = [each for each, _ in (chain[cache + 1 :] if stage.word == "take" else chain[at + 1 : cache])]
        if stage.word == "take" and (cache == len(chain) or 0 <= int(chain[cache][1].cardinality()) <= stage.count):
            continue
        makers = [each for each in before if each.random is not None]
        if not makers:  # nothing was computed for what it drops
            continue
        between = before[: before.index(makers[-1]) + 1]
        size = math.prod(each.count or 1 for each in between if each.word in _BATCHES)
        one_for_one = {"map", _SAME, "prefetch", "options", *(() if stage.word == "shard" else (*_BATCHES, "repeat"))}
        yield {
            "stage": stage.word,  # type: ignore[typeddict-item]  # one of these three
            "which": phase,
            "count": stage.count,
            "samples": size,
            "behind": makers[-1].title,
            "exact": stage.word != "take" and all(each.word in one_for_one and not each.random for each in between),
        }


class Reader:
    """Reader of an iterator's stages, with what each did since that iterator's last reading."""

    def __init__(self, phase: Literal["train", "validation"]):
        self._phase = phase
        self._resource: object = None
        self._last_counts: dict[int, tuple[int, int]] = {}
        self._dataset: weakref.ref | None = None
        self.written: WrittenStage | None = None
        self.use: dict[str, Any] = {}  # as in the manifest: its drops, and the size of a pass

    def look(self, dataset: object) -> None:
        """Read how a dataset was written, unless it is the last one again."""
        if self._dataset is None or self._dataset() is not dataset:
            self.written = None
            self._dataset = weakref.ref(dataset)
            self.written = written(dataset)
            self.use = self._manifest_facts(dataset, self.written) if self.written is not None else {}

    def _manifest_facts(self, dataset: Any, stage: WrittenStage) -> dict[str, Any]:
        """Return what a pass drops, its batches and samples, and those of a batch, as the manifest has them."""
        chain = _stages_to_branch(dataset, stage)
        role = "input" if self._phase == "train" else self._phase
        a_pass = _pass_facts(chain)
        sizes = {} if a_pass is None else dict(zip((f"{role}_set_batches", f"{role}_set_samples"), a_pass, strict=True))
        # the last stage that changes the number of elements
        last = next((each for each, _ in chain if each.word not in _ONE_FOR_ONE), stage)
        specs = tf.nest.flatten(dataset.element_spec)
        of_one_shape = all(isinstance(spec, tf.TensorSpec) and spec.shape[1:].is_fully_defined() for spec in specs)
        if last.word in _BATCHES and last.count and of_one_shape:
            sizes[f"{role}_batch_size"] = last.count
        return {"input_drops": list(_drops(chain, self._phase)), **sizes}

    def functions(self) -> list[InputMap]:
        """Return the stages that call a function: entries of the manifest's `input_maps`."""
        assert self.written is not None
        shuffled = {id(stage) for stage in self.written.shuffled()}
        entries: list[InputMap] = []
        for stage in self.written.all():
            if stage.random is not None:
                python = bool(stage.py_functions)
                entries.append({"name": stage.title, "which": self._phase, "random": stage.random, "python": python})
                if id(stage) in shuffled:
                    entries[-1]["shuffled"] = True
        return entries

    def shuffle_bytes(self) -> int | None:
        """Return the bytes of all shuffle buffers when full; None without one, or if not known."""
        stages = self.written.all() if self.written is not None else ()
        sizes = [stage.buffer_bytes for stage in stages if stage.word.startswith("shuffle")]
        known_sizes = [size for size in sizes if size is not None]
        return sum(known_sizes) if known_sizes and len(known_sizes) == len(sizes) else None

    def shuffles(self) -> bool | None:
        """Return whether it shuffles what stages have made, more than names of files; None without a dataset."""
        if self.written is None:
            return None
        return any(stage.word.startswith("shuffle") and _behind_work(stage) for stage in self.written.all())

    def read(self, iterator: tf.data.Iterator) -> list[dict[str, object]]:
        """Return rows of the `pipeline` table, without `time_ns` and `step`: counts since the last reading.

        [] once an iterator has given up its first stages: what they did is gone with them.

        Raises: tf.errors.NotFoundError (among others) where the pipeline keeps no model, as with
            autotuning switched off.
        """
        data = tf.raw_ops.IteratorGetModelProto(iterator=iterator._iterator_resource).numpy()
        model = model_pb2.ModelProto.FromString(data)
        if id(iterator) != self._resource:
            self._resource = id(iterator)
            self._last_counts = {}
            dataset = getattr(iterator, "_dataset", None)
            # Names are optional; the numbers are valid without them.
            with contextlib.suppress(Exception):
                self.look(dataset)
        rows = []
        names = match(model, self.written)
        if all(_behind_work(names.get(node.id)) for node in model.nodes.values() if not node.inputs):
            return []
        parents = {child: node.id for node in model.nodes.values() for child in node.inputs}
        for node in model.nodes.values():
            stage = names.get(node.id)
            parameters = {p.name: p for p in node.parameters}
            parallelism = parameters.get("parallelism")
            buffer = parameters.get("buffer_size")
            elements, processing = self._last_counts.get(node.id, (0, 0))
            self._last_counts[node.id] = (node.num_elements, node.processing_time)
            flags = set(stage.flags) if stage else set()
            if stage is not None and stage.random:
                flags.add("random")
            if node.name.startswith("Generator"):
                flags.add("py_function")
            if parallelism is not None and parallelism.tunable:
                flags.add("autotuned")
            rows.append(
                {
                    "which": self._phase,
                    "node": node.id,
                    "parent": parents.get(node.id, -1),
                    "stage": stage.title if stage else word(node.name),
                    "op": node.name,
                    "elements": max(node.num_elements - elements, 0),
                    "processing_ns": max(node.processing_time - processing, 0),
                    "parallelism": float(parallelism.value) if parallelism else float("nan"),
                    "buffered": float(node.buffered_elements),
                    "buffer_limit": float(buffer.value) if buffer else float("nan"),
                    "flags": ",".join(sorted(flags)),
                }
            )
        return rows


# ---- Python functions, timed in TensorFlow's registry of them ------------------------------------

_OURS = "_gpu_util_timed"  # on what we put in place
_AUTOGRAPH = "tensorflow.python.autograph.impl.api"
_NEXT = "generator_py_func"  # of `from_generator`: makes an element


def time_functions(tokens: Iterable[str], calls: InputCalls) -> None:
    """Time the program's functions of these entries of TensorFlow's registry during the fit. Callable on any thread.

    The registry is private to TensorFlow: where it is not as expected, nothing is timed.

    Args:
        tokens: TensorFlow's names of the entries.
    """
    entries: Any = getattr(getattr(script_ops, "_py_funcs", None), "_funcs", None)
    eager = getattr(script_ops, "EagerFunc", None)
    if not hasattr(entries, "get") or eager is None:
        return
    for token in tokens:
        entry = entries.get(token)
        function = entry._func if isinstance(entry, eager) else entry
        own = _users_own(function)
        if own is None or hasattr(function, _OURS):  # a framework's function, or one that is timed already
            continue
        timed = calls.timer(*called(own)).around(function)
        setattr(timed, _OURS, True)
        if isinstance(entry, eager):
            calls.replace_attribute(entry, "_func", timed)
        else:
            _replace_entry(entries, token, function, timed, calls)


def python_call(code: CodeType, traces: Iterable[Any]) -> CalledBack | None:
    """Return how the first of these traces that calls this Python code does it; None where none does.

    Args:
        code: of the Python function.
        traces: definitions (`FunctionDef`) of compiled functions.
    """
    entries: Any = getattr(getattr(script_ops, "_py_funcs", None), "_funcs", {})
    functions = {token: _users_own(getattr(entry, "_func", entry)) for token, entry in list(entries.items())}
    tokens = {token.encode() for token, own in functions.items() if own is not None and _calls(own, code)}
    for trace in traces if tokens else ():
        call = next((node for node in trace.node_def if node.attr["token"].s in tokens), None)
        if call is not None:
            nodes = {node.name: node for node in trace.node_def}
            reached = _reached(call.name, nodes)
            resources = {
                argument.name for argument in trace.signature.input_arg if argument.type == tf.resource.as_datatype_enum
            }
            of_batch = not reached & resources and not _draws([nodes[name] for name in reached & nodes.keys()])
            return CalledBack("tf.py_function" if call.op == "EagerPyFunc" else "tf.numpy_function", of_batch)
    return None


def _calls(function: Callable, code: CodeType) -> bool:
    identity = called(function)[1]
    return code in (identity, getattr(getattr(identity, "__call__", None), "__code__", None))  # noqa: B004


def _replace_entry(entries: Any, token: str, function: Callable, timed: Callable, calls: InputCalls) -> None:
    """Put a timed function in the place of one that TensorFlow calls by its token, until the calls are restored."""

    def put() -> None:
        entries[token] = timed  # a weak reference: `back` keeps it alive

    def back() -> None:
        if entries.get(token) is timed:
            entries[token] = function

    calls.replace(put, back)


def _users_own(function: object) -> Callable | None:
    """Return the user's function behind an entry; None for those of the frameworks themselves.

    For an element of `from_generator` it is the generator's function.
    """
    inner: object = inspect.unwrap(function) if callable(function) else None
    if getattr(inner, "__module__", None) == _AUTOGRAPH:  # around what is no function
        inner = _closure_variable(inner, "func")
    if getattr(inner, "__name__", "") == _NEXT:
        inner = getattr(_closure_variable(inner, "generator_state"), "_generator", None)
    module = getattr(inner, "__module__", None) or ""
    return None if not callable(inner) or module.startswith(_LIBRARIES) else inner


def _closure_variable(function: Any, name: str) -> object:
    """Return the variable of that name that a nested function refers to; None without it."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    return function.__closure__[names.index(name)].cell_contents if name in names else None
