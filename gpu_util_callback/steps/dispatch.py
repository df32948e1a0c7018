"""Dispatch of a loop's steps: as one compiled function, or operation by operation.

Observed from outside: the recorder's thread samples the training thread's Python stack. That
costs the training thread nothing but Python's lock for some 30 microseconds a sample.
"""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import inspect
import itertools
import linecache
import os
import random
import re
import sys
import textwrap
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from gpu_util_callback.processes import core_s
from gpu_util_callback.steps.frames import MOST_KNOWN, Stack, all_stacks, per_code, stack_of

OWN_PYTHON = "The program's own Python"  # in place of a call where none is under way
# Samples are dense at first, so that short runs have enough, and rare once there are enough: after some four minutes in
# steps, or as long between them, which are counted apart, as what comes between is short. Those of compiling do not
# count, up to as many: a loop that compiles in every step is not sampled densely for ever. A rare sample weighs what
# the usual ones in its place would, so that shares of the weight stay shares of the time.
_DENSE, _ENOUGH = 60, 1200
_DENSE_S, _USUAL_S, _RARE_S = 0.05, 0.2, 2.0
_DEEPEST = 200  # frames

COMPILED, EAGER, COMPILING, LOGGING = "compiled", "eager", "compiling", "logging"
INDEXING = "indexing"  # `x[i]` of an array of JAX: a value that the host reads, or a batch, and no operation to compile
# Frames of `model.predict`, and of what it makes for each call: adapters, a pipeline, an iterator.
PREDICT, SET_UP = "predict", "set-up"
# The meaning of a frame, and parts of its file's path; the first match decides. Files not listed mean nothing: waiting
# for a result, fetching, the user's own Python.
_PYTHON, _SRC = "tensorflow/python/", "jax/_src/"
_MEANING: dict[str, tuple[tuple[str, ...], ...]] = {
    "tensorflow": (
        (COMPILING, f"{_PYTHON}framework/func_graph"),
        (COMPILED, f"{_PYTHON}eager/polymorphic_function/atomic_function"),
        ("", f"{_PYTHON}ops/gen_dataset_ops", f"{_PYTHON}data/"),
        (EAGER, f"{_PYTHON}ops/gen_", f"{_PYTHON}eager/execute", f"{_PYTHON}eager/imperative_grad"),
    ),
    "jax": (
        (COMPILING, f"{_SRC}compiler", f"{_SRC}interpreters/mlir"),
        (EAGER, f"{_SRC}interpreters/ad", f"{_SRC}interpreters/batching", f"{_SRC}dispatch"),
        (EAGER, f"{_SRC}lax/", f"{_SRC}numpy/", f"{_SRC}nn/"),
    ),
    "torch": (
        (COMPILING, "torch/_dynamo/convert_frame"),
        (COMPILED, "torch/_inductor/", "torchinductor", "torch/_functorch/_aot_autograd/"),
        ("", "torch/utils/data/"),
        (EAGER, "torch/autograd/graph", "torch/nn/", "torch/optim/", "torch/_tensor"),
    ),
}
_READS = "jax/_src/array.py"  # `float(x)`, `np.asarray(x)`: waits until x is computed, and all calls before it
_COPIES = "jax/_src/ops/scatter.py"  # `x.at[i].set(...)`: outside of compiled code each call copies all of x
# Files of libraries that write a training's log, or text for it, and what the user calls for that.
_LOGS = (
    ("tensorflow/python/ops/summary_ops_v2", "tf.summary"),
    ("tensorboard/plugins/", "tf.summary"),
    ("torch/utils/tensorboard/", "SummaryWriter"),
    ("tensorboardX/", "SummaryWriter"),
    ("site-packages/wandb/", "wandb"),
    ("site-packages/mlflow/", "mlflow"),
    ("lightning/pytorch/trainer/connectors/logger_connector/", "self.log"),
    ("torch/_tensor_str.", "str(tensor)"),
    ("/arrayprint.", "str(array)"),  # NumPy's, which TensorFlow and JAX use
)
# Files of libraries that write or read a checkpoint.
_SAVES = (
    "keras/src/saving/",
    "keras/src/callbacks/model_checkpoint",
    "keras/src/callbacks/backup_and_restore",
    "tensorflow/python/saved_model/",
    "tensorflow/python/checkpoint/",
    "torch/serialization",
    "torch/distributed/checkpoint/",
    "orbax/",
    "safetensors/",
)
# Functions in which JAX traces what it will compile, whatever they call.
TRACING = frozenset({"trace_to_jaxpr_dynamic", "trace_to_jaxpr", "_create_pjit_jaxpr"})
_SETS_UP = ("keras/src/trainers/", "keras/src/backend/", "tensorflow/python/data/")
# Files of libraries whose iterators deliver batches, and what these are of.
_ITERATORS = {
    "tensorflow/python/data/ops/": "a tf.data.Dataset",
    "torch/utils/data/dataloader": "a DataLoader",
    "/grain/_src/": "Grain",
}
# Of all frames the last of these decides: compiling calls what it compiles, compiled code and logs call operations.
_DECIDES = ("", EAGER, INDEXING, COMPILED, COMPILING, LOGGING)
_LIBRARIES = ("site-packages/", "dist-packages/", "/lib/python", "<frozen ", "gpu_util_callback/")


# Packages whose calls are the training itself, and parts of paths in which batches are made, or callbacks called.
_FRAMEWORKS = frozenset({"keras", "tf_keras", "tensorflow", "torch", "jax", "jaxlib", "flax", "optax", "lightning"})
_NO_STEP = ("keras/src/trainers/data_adapters/", "keras/src/callbacks/", "torch/utils/data/", "/grain/_src/")
# Functions of frameworks that train: a function of the program below or above one is part of the step.
_LEARNS = frozenset({"backward", "gradient", "apply_gradients", "step", "train_on_batch"})
_UPDATES = _LEARNS | {"clip_grad_norm_", "clip_grad_value_"}
# Calls whose arguments the step learns from, and methods that put an argument into a container.
_LEARNS_FROM = _LEARNS | {"minimize", "train_step", "grad", "value_and_grad"}
_COLLECTS = frozenset({"append", "extend", "add", "insert", "update"})
_HANDS_ON = {"append", "appendleft", "put", "put_nowait", "send"}  # what a thread that makes batches does with them
_OUT, _LEARNED = "out", "learned"  # where the value of a line goes
_TRAINS = frozenset({"_call_impl", "backward", "step", "apply_gradients", "error_handler"})
BUFFERS = "exchange of buffers"  # between ranks, before a forward
_FIRST = re.compile(r"(return |.* = )next\((iter\(|.*\.as_numpy_iterator\(\))")
_ONE = re.compile(r"\.take\(1\)|islice\(.*, 1\)")
WEIGHTS = "parametrized weights"  # computed each time that they are used; `_CACHED`: once within `cached()`
_CACHED = "cached weights"
PASS = "begin of a pass"  # over a DataLoader: its iterator, and the order of all samples
# Files and functions that run a part of PyTorch's step -> the part. `wrapper` is around every optimizer's `step`.
_PARTS = {
    ("torch/nn/modules/module.py", "_call_impl"): "forward",
    ("torch/autograd/__init__.py", "backward"): "backward",
    ("torch/autograd/__init__.py", "grad"): "backward",
    ("torch/optim/optimizer.py", "wrapper"): "optimizer.step",
    ("torch/optim/optimizer.py", "zero_grad"): "zero_grad",
    ("torch/nn/modules/module.py", "zero_grad"): "zero_grad",
    ("keras/src/optimizers/base_optimizer.py", "apply"): "optimizer.apply",
    ("torch/nn/utils/parametrize.py", "get_parametrized"): WEIGHTS,
    ("torch/nn/utils/parametrize.py", "get_cached_parametrization"): _CACHED,
    ("torch/nn/parallel/distributed.py", "_sync_buffers"): BUFFERS,
    ("torch/utils/data/dataloader.py", "__iter__"): PASS,
    ("torch/utils/data/sampler.py", "__iter__"): PASS,  # which yields a batch's numbers in microseconds
}
# Files of exchanges between ranks -> module as a program names it; files above them in which a framework exchanges
# gradients and weights; names in a function of the program that does so itself.
EXCHANGES = {
    "torch/distributed/distributed_c10d.py": "torch.distributed",
    "jax/experimental/multihost_utils.py": "multihost_utils",
}
_EXCHANGES_WEIGHTS = ("torch/nn/", "torch/autograd/", "torch/optim/", "torch/distributed/")
_GRADIENTS = frozenset({"grad", "grads", "gradients"})
# Where the interpreter gives up Python's lock by itself: what kept it until there was no operation of a framework.
_INTERPRETS = ("JUMP_BACKWARD", "POP_JUMP_BACKWARD", "RESUME")
# Functions of TensorFlow and JAX that a compiled step calls, mostly on a thread of the runtime's, to call Python.
_CALLS_BACK = ("FuncRegistry.__call__", "_wrapped_callback")
# Files of trainers that call hooks of the program, such as `on_before_optimizer_step`, within a step.
_CALLS_HOOKS = ("lightning/pytorch/trainer/call.py", "pytorch_lightning/trainer/call.py", "/trainer_callback.py")
ELEMENTS = "float(x[i])"  # and the like
# Functions of transformers that join what the model returned for a validation's batches so far to that of the next.
_JOINS = frozenset({"EvalLoopContainer.add", "nested_concat"})
_TAKES = frozenset({"tensor", "as_tensor", "from_numpy"})  # PyTorch's functions that take over Python's objects
# Methods that make Python objects of a tensor's elements. On a GPU, and on JAX, they wait for the step's own work.
_CONVERTS = frozenset({"tolist", "item", "cpu", "numpy"})
_A_FIFTH, _HALF, _FOUR_FIFTHS = 0.2, 0.5, 0.8
_FEW = 20  # samples


class CalledBack(NamedTuple):
    """Name of what a compiled step calls Python through; whether it gives it the batch alone, None = unknown."""

    through: str
    of_batch: bool | None = None


@dataclass
class FunctionSamples:
    """Samples in one function of the program, weighted.

    Attributes:
        not_training: (place, call) of a line that does not train -> weight.
        unclear: number of a line that may -> weight.
        trains: whether a sample met it above or below a part of the step.
        learned: places whose value the step learns from, such as a part of the loss.
    """

    not_training: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    unclear: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    trains: bool = False
    learned: set[str] = field(default_factory=set)

    @property
    def trains_nothing(self) -> bool:
        """True if the whole function does not train."""
        weight = sum(self.not_training.values())
        return not self.trains and weight > _A_FIFTH * (weight + sum(self.unclear.values()))

    def named(self, function: str) -> tuple[str, str, bool]:
        """Return the place and the name of what does not train, and whether the step learns from it.

        The name is that of the call that is most of it, or the function's.
        """
        (place, call), weight = max(self.not_training.items(), key=lambda item: item[1])
        of_tensor = call.endswith("_") or call in (OWN_PYTHON, *_CONVERTS)
        is_all = not of_tensor and weight > _FOUR_FIFTHS * sum(self.not_training.values())
        return place, call if is_all else function, bool(self.learned)


@functools.lru_cache(MOST_KNOWN)
def call_on(path: str, line: int, reads: bool = False) -> str:
    """Return the call on a line of a program that is not the framework's: "gc.collect", "mul_"; "" where it may be.

    A function in C leaves no frame: from the source, at which of them a step does not train. Where it cannot be told
    whose it is, the line counts as training; so do reads of a tensor's elements, unless `reads` says otherwise.
    """
    names = next((vars(owner) for owner in list(sys.modules.values()) if getattr(owner, "__file__", "") == path), {})
    functions = [node.func for node in _nodes_at(path, line) if isinstance(node, ast.Call)]
    calls = [_whose(function, names, reads) for function in functions if not _is_neutral(function)]
    return calls[0] if calls and all(calls) else ""


@functools.lru_cache(MOST_KNOWN)
def reads_elements(path: str, line: int) -> bool:
    """Return whether a line of a program makes a number of one element of an array, such as `float(x[i])`."""
    calls = [node for node in _nodes_at(path, line) if isinstance(node, ast.Call)]
    read = [arg for call in calls if ast.unparse(call.func) in ("float", "int", "bool") for arg in call.args]
    read += [call.func.value for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "item"]
    return any(isinstance(of, ast.Subscript) and not isinstance(of.slice, ast.Constant) for of in read)


def _nodes_at(path: str, line: int) -> list[ast.AST]:
    """Return the nodes of the statement that begins on a line of a file; [] where it cannot be read.

    A line that heads a block (`for …:`) is given a body.
    """
    text = linecache.getline(path, line).strip()
    for whole in (text, f"{text} pass"):
        try:
            return list(ast.walk(ast.parse(whole)))
        except SyntaxError:
            continue
    return []


def tree_of(code: CodeType) -> tuple[list[ast.stmt], int]:
    """Return the statement that defines a function, and the number of lines above it.

    Of a module, a comprehension or a lambda all statements of its file, and 0; no statements where the file cannot be
    read or parsed, as after a change.
    """
    lines, above = linecache.getlines(code.co_filename), code.co_firstlineno - 1
    if code.co_name.startswith("<"):
        above = 0
    try:
        return ast.parse(textwrap.dedent("".join(inspect.getblock(lines[above:]) if above else lines))).body, above
    except Exception:
        return [], above


@per_code
def goes_to(code: CodeType, line: int) -> str:
    """Return where the value of a line of a function goes: into what a step learns from, out of the function, or "".

    From the source: names assigned from it, and from these names, up to a call such as `backward` or a `return`.
    """
    if code.co_name.startswith("<") and code.co_name != "<module>":
        return _OUT
    body, above = tree_of(code)
    if code.co_name != "<module>":
        body = [inner for function in body for inner in getattr(function, "body", [])]
    # Names that hold the line's value, or one made of it: until no statement adds any.
    statements, names, known = list(_statements(body)), set[str](), -1
    while known < len(names):
        known = len(names)
        # What each statement that has the value calls.
        fed = [calls for lines, reads, writes, calls in statements if line - above in lines or reads & names]
        names.update(*(writes for lines, reads, writes, _ in statements if line - above in lines or reads & names))
    if any(calls & _LEARNS_FROM for calls in fed):
        return _LEARNED
    return _OUT if any(_OUT in calls for calls in fed) else ""


def _statements(body: Iterable[ast.AST]) -> Iterator[tuple[range, set[str], set[str], set[str]]]:
    """Yield of each statement its lines, the names it reads and writes, and what it calls (`_OUT`: it returns a value).

    Those inside another one are apart; those of inner functions are left out.
    """
    for node in body:
        inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, (ast.stmt, ast.excepthandler))]
        parts = [part for child in ast.iter_child_nodes(node) if child not in inner for part in ast.walk(child)]
        functions = [part.func for part in parts if isinstance(part, ast.Call)]
        names = [part for part in parts if isinstance(part, ast.Name)]
        filled = [part.value for part in functions if isinstance(part, ast.Attribute) and part.attr in _COLLECTS]
        first, last = node.lineno, node.lineno if inner else node.end_lineno  # type: ignore[attr-defined]
        leaves = any(isinstance(part, (ast.Return, ast.Yield, ast.YieldFrom)) for part in [node, *parts])
        yield (
            range(first, last + 1),
            {name.id for name in names if isinstance(name.ctx, ast.Load)},
            {name.id for name in names if isinstance(name.ctx, ast.Store) or name in filled},
            {getattr(function, "attr", getattr(function, "id", "")) for function in functions}
            | ({_OUT} if leaves else set()),
        )
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from _statements(inner)


@per_code
def keeps_graph(code: CodeType, line: int) -> bool:
    """Return whether a line of a function calls something with `retain_graph=True`, or a comparison, by its source."""
    body, above = tree_of(code)
    nodes = (node for statement in body for node in ast.walk(statement) if isinstance(node, ast.Call))
    calls = [call for call in nodes if call.lineno <= line - above <= (call.end_lineno or 0)]
    given = [keyword.value for call in calls for keyword in call.keywords if keyword.arg == "retain_graph"]
    return any(isinstance(value, ast.Compare) or getattr(value, "value", None) is True for value in given)


@per_code
def changes_gradients(code: CodeType) -> bool:
    """Return whether a function of the program may change gradients or weights, by its source; True where unread."""
    nodes = [node for statement in tree_of(code)[0] for node in ast.walk(statement)]
    calls = [ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)]
    targets = [node for node in nodes if isinstance(getattr(node, "ctx", None), ast.Store)]
    sets = any(getattr(of, "attr", "") in ("grad", "data") for node in targets for of in ast.walk(node))
    return not nodes or sets or any(call.endswith("_") or "clip" in call or "reduce" in call for call in calls)


@per_code
def begins_pass(code: CodeType, line: int) -> bool:
    """Return whether a line does nothing but take the first batch of a new iterator, by its source.

    Such as `x = next(iter(...))`, or the head of a loop of one round.
    """
    body, above = tree_of(code)
    nodes = [node for statement in body for node in ast.walk(statement) if getattr(node, "lineno", 0) == line - above]
    loops = [node for node in nodes if isinstance(node, ast.For)]
    values = [ast.unparse(node) for node in nodes if isinstance(node, (ast.Assign, ast.Return))]
    left = any(isinstance(statement, ast.Break) for loop in loops for statement in loop.body)
    return left or any(map(_FIRST.match, values)) or any(_ONE.search(ast.unparse(loop.iter)) for loop in loops)


def _is_neutral(function: ast.expr) -> bool:
    """Return whether a call says nothing of its line: of a type, what a loop calls, or what takes its value."""
    if isinstance(function, ast.Attribute) and function.attr in _TAKES:
        return True
    name = function.id if isinstance(function, ast.Name) else ""
    return isinstance(getattr(builtins, name, None), type) or name in ("len", "iter", "next", "isinstance", "getattr")


def _whose(function: ast.expr, names: Mapping[str, object], reads: bool) -> str:
    """Return the name of a called function that is not the framework's; "" where it may be.

    Args:
        function: the expression that is called.
        names: the module's globals.
        reads: reads of a tensor's elements count as not the framework's.
    """
    method = function.attr if isinstance(function, ast.Attribute) else ""
    if method.endswith("_") and not method.startswith("_"):
        return method  # of a tensor, in place: no part of what a model computes
    if method in _CONVERTS and reads:
        return method
    root = function
    while isinstance(root, (ast.Attribute, ast.Call)):
        root = root.value if isinstance(root, ast.Attribute) else root.func
    if isinstance(root, ast.Name) and root.id in _FRAMEWORKS:  # whatever imports it, lazily perhaps
        return ""
    if not isinstance(root, ast.Name) or root.id not in names:  # a local's method, or a builtin
        return ast.unparse(function) if isinstance(root, ast.Name) and hasattr(builtins, root.id) else ""
    owner = names[root.id]
    package = owner.__name__ if isinstance(owner, type(sys)) else getattr(owner, "__module__", None)
    package = str(package or type(owner).__module__).partition(".")[0]
    return "" if package in _FRAMEWORKS | {"builtins", "__main__", "gpu_util_callback"} else ast.unparse(function)


class DispatchWatch:
    """Counts of the kinds of calls in which the training thread is found during its steps.

    Args:
        framework: whose calls are recognised; nothing is known of others.
        thread: the training thread's identifier.
        working: whether a training step is under way.
        loop: the loop's code object, to identify the function it calls for a step.
        operations: counts those of each step.
        called_back: returns how a compiled step calls a Python function; None = the function is no step's.
            Without it other threads are not looked at.
    """

    def __init__(
        self,
        framework: str,
        thread: int,
        working: Callable[[], bool],
        loop: CodeType | None = None,
        operations: OperationCount | None = None,
        called_back: Callable[[CodeType], CalledBack | None] | None = None,
    ):
        self._meaning = _MEANING.get(framework, ())  # () = nothing is sampled
        self._calls_back = called_back is not None
        self._how_called_back = per_code(called_back or (lambda code: None))
        # (line of the program, function that the step calls) -> weight of its samples
        self._called_back = defaultdict[tuple[str, CodeType], float](float)
        self._hands_over = framework == "jax"  # steps, before they are done
        self._reads = framework == "torch" and not getattr(sys.modules.get("torch.cuda"), "_initialized", False)
        self._thread = thread
        self._working = working
        self._loop = loop
        self._operations = operations
        self._samples = 0  # in steps, those of compiling among them
        # Samples between steps, by what they were in; "" = all.
        self._between = Counter(dict.fromkeys(("", "_predict", "_predict_set_up", "_input", "_joining", "_reads"), 0))
        self._kinds: Counter[str] = Counter()  # samples in steps by what they were in, such as `EAGER`; "" = none
        self._functions: Counter[str] = Counter()  # by the name of what the loop had called, as operations were started
        self._copies: Counter[str] = Counter()  # samples by the line that changes an array of JAX outside of `jit`
        self._own: Counter[str] = Counter()  # samples by the program's line that was in no call of the framework's
        self._weight = 0.0  # of all samples but those of compiling
        # (function that the loop has called, part of PyTorch's step) -> weight
        self._parts = defaultdict[tuple[CodeType | None, str], float](float)
        self._kept = defaultdict[str, float](float)  # place of a backward that keeps its graph -> weight
        self._fetches = defaultdict[tuple[str, str], float](float)  # (line that fetches, what delivers) -> weight
        # Function of another thread that computed while somebody kept Python's lock -> samples, in fetches as well.
        self._beside: Counter[CodeType] = Counter()
        self._looks = 0  # samples in steps, and in the fetches of batches between them
        # Seconds in these in which the thread had a core, and in which it did not wait for one; readings before.
        self._ran_s = self._ready_s = 0.0
        # Thread -> the time, seconds that it had a core, and that it waited for one, as they were read last.
        self._before: dict[int, tuple[float, float, float]] = {}
        self._waited_s = 0.0  # for a core, by the sampling thread
        # Path and name of the innermost function of the program -> its samples; a comprehension's are those around it.
        self._of_functions: dict[tuple[str, str], FunctionSamples] = {}
        self._between_functions: Counter[CodeType] = Counter()  # samples between steps, by the program's function
        self._called: Counter[CodeType] = Counter()  # functions of the program that the loop calls in steps
        self._training: set[CodeType] = set()  # those that train
        self._in_steps: set[CodeType] = set()  # functions of the program that were met in steps
        self._meaning_of = per_code(self._find_meaning)
        # Not the module's own generator: its seed and state belong to the program.
        self._random = random.Random(0x6A09E667)
        self._since_s = time.monotonic()  # a mean pause after that the next sample is due

    def wait(
        self, stopped: Callable[[float], bool], pause_s: float, at_sample: Callable[[], None] = lambda: None
    ) -> bool:
        """Wait as `stopped(pause_s)` does, and sample the stack during the wait; call `at_sample` before each sample.

        Args:
            stopped: waits for so many seconds; True = the recorder stops.
            pause_s: how long to wait in all.

        Returns: the result of `stopped`.
        """
        until = time.monotonic() + pause_s if self._meaning else 0.0
        while (now_s := time.monotonic()) < until:
            mean_s = self._pause_s()
            # Not at once after other work of this thread: who waits for Python's lock would be met too often.
            due = max(self._since_s + mean_s, now_s + min(mean_s, _DENSE_S) / 2)
            if stopped(min(due, until) - now_s):  # the recorder stops
                return True
            if not self._working():
                self._before.pop(self._thread, None)  # time between steps is not read as time in them
            if due > until:  # in a later wait
                break
            late_s = max(0.0, time.monotonic() - due)
            at_sample()
            # A call that keeps Python's lock (a garbage collection) is looked at only as it returns.
            self.look(max(1.0, mean_s / _USUAL_S) + late_s / min(mean_s, _USUAL_S), late_s)
            # Aperiodic, to avoid aliasing with the loop.
            self._since_s = time.monotonic() + mean_s * self._random.uniform(-0.5, 0.5)
        return stopped(0.0 if self._meaning else pause_s)

    def _pause_s(self) -> float:
        """Return the mean seconds between samples: few while there are few of what the thread is in (steps or not)."""
        steps, between = self._looks - min(self._kinds[COMPILING], _ENOUGH), self._between[""]
        if steps + between < _DENSE:
            return _DENSE_S
        return _USUAL_S if (steps if self._working() else between) < _ENOUGH else _RARE_S

    def look(self, weight: float = 1.0, late_s: float = 0.0) -> None:
        """Sample the training thread's stack, and count the sample for what it is in.

        Args:
            weight: of how many usual samples it takes the place.
            late_s: seconds after it was due, in which Python's lock may have been kept.
        """
        if not self._working():
            self._look_between()
            return
        # All stacks at once, before anything else: whatever gives up Python's lock lets short calls end meanwhile.
        instructions: dict[int, int] = {}
        stacks = all_stacks(_DEEPEST, until=self._loop, instructions=instructions)
        is_working = self._working()
        stack = stacks.pop(self._thread, [])
        in_loop = bool(stack) and stack[-1][1] is self._loop  # the stack, innermost first, was read up to the loop
        inside = stack[:-1] if in_loop else stack
        all_meanings = [self._meaning_of(code) for _, code, _ in stack]
        meanings = all_meanings[: len(inside)]
        kind = self._kind_of(meanings)
        self._read_core_time(late_s, stacks, kind != COMPILING)
        own = [frame for frame, meaning in zip(inside, meanings, strict=True) if meaning == "user"]
        self._looks += 1
        if not is_working or any(fetches(code) for _, code, _ in inside):
            return  # it went on meanwhile; a loop's step lasts until its batches' iterator is asked for the next
        if in_loop and own:
            self._note_called(own[-1][1], stack, kind, meanings)
        self._samples += 1
        self._kinds[kind] += 1
        if len(self._in_steps) < MOST_KNOWN:
            self._in_steps.update(code for _, code, _ in own)
        if kind != COMPILING:
            self._weight += weight
            self._note_part(weight, stack, own[-1:] * in_loop)
            fetch = fetch_in(stack, all_meanings)  # in the midst of a step, by the program's own iterator
            if fetch is not None:
                self._fetches[fetch] += weight
            if fetch is not None or self._note_called_back(weight, [stack, *stacks.values()]):
                return
        if kind in ("", EAGER, INDEXING, COMPILED, LOGGING):
            self._note_function(weight, stack, all_meanings, instructions.get(self._thread, 0))
        self._note_kind(kind, inside, own, stack[-1:] * in_loop)

    def _note_kind(self, kind: str, inside: Stack, own: Stack, loop: Stack) -> None:
        """Count a sample for the line and the function of the program that it is in, by what it is in.

        Args:
            inside: the frames within the loop's.
            own: of these, those of the program.
            loop: the loop's frame; [] where the sample is not below it.
        """
        place = next((place_of(*frame[1:]) for frame in [*own, *loop]), "")
        if not kind and place:  # in no call of the framework's
            self._own[place] += 1
        if kind == EAGER and place and any(path_of(code).endswith(_COPIES) for _, code, _ in inside):
            self._copies[place] += 1
        if kind == EAGER and loop and inside:
            self._functions[name_of(own[-1][1]) if own else ""] += 1

    def _note_part(self, weight: float, stack: Stack, called: Stack) -> None:
        """Count a sample for the innermost part of a step; a forward that the backward repeats is the backward's.

        Args:
            called: the frame of the program's function that the loop has called, if there is one.
        """
        parts = [part for _, code, _ in stack if (part := part_of(code))] if self._reads else []  # the innermost first
        if parts[:1] == ["optimizer.step"] and self._leaves_optimizer(stack):
            parts = []
        own = [(code, line) for _, code, line in stack if self._meaning_of(code) == "user"]
        # What begins a pass there delays its first batch: a buffer is filled, threads are started.
        if not self._reads:
            parts += [PASS for frame in own if begins_pass(*frame)]
        if parts:
            part = "backward" if parts[0] in ("forward", WEIGHTS, _CACHED) and "backward" in parts else parts[0]
            # What runs to compute parametrized weights is theirs, but for weights that are computed once.
            if part != "backward" and WEIGHTS in parts:
                part = "forward" if _CACHED in parts else WEIGHTS
            self._parts[next((code for _, code, _ in called), None), part] += weight
            kept = next((frame for frame in own if part == "backward" and keeps_graph(*frame)), None)
            if kept is not None:
                self._kept[place_of(*kept)] += weight

    def _leaves_optimizer(self, stack: Stack) -> bool:
        """Return whether an optimizer's step calls what is not PyTorch's, as a closure or a hook.

        The `step` of an optimizer that is not PyTorch's, with what it calls, does not count as leaving it.
        """
        inner = [code for _, code, _ in itertools.takewhile(lambda frame: not part_of(frame[1]), stack)]
        out = [code for code in inner if self._meaning_of(code) == "user" or library_of(code) not in ("", "torch")]
        return bool(out) and out[-1].co_name != "step"

    def _note_called_back(self, weight: float, stacks: Iterable[Stack]) -> bool:
        """Count a sample for Python that the compiled step waits for; return whether there is any.

        Args:
            stacks: of all threads, as the runtime may call Python on one of its own.
        """
        for called in stacks if self._calls_back else ():
            names = [code.co_qualname for _, code, _ in called]
            # Place of the function that called back; the frames before it, further in, are what it called.
            depth = next((at for at, name in enumerate(names) if name.endswith(_CALLS_BACK)), 0)
            own = [(code, line) for _, code, line in called[:depth] if self._meaning_of(code) == "user"]
            if own and self._how_called_back(own[-1][0]) is not None:
                self._called_back[place_of(*own[0]), own[-1][0]] += weight
                return True
        return False

    def _read_core_time(self, late_s: float, stacks: Mapping[int, Stack], counts: bool) -> None:
        """Add the time since the last look, if it `counts`, and how much of it the training thread had a core.

        While Python's lock was kept, count the sample for the program's threads that computed, if they hand nothing on.

        Args:
            late_s: seconds for which this thread waited for Python's lock or for a core.
            stacks: of the other threads, by their identifiers.
        """
        pid, main = os.getpid(), threading.main_thread()  # whose native_id is the parent's in a forked child
        native = {thread.ident: thread.native_id for thread in threading.enumerate()} | {main.ident: pid}
        ran_s, ready_s = self._core_time(self._thread, pid, native)
        self._ran_s, self._ready_s = self._ran_s + counts * ran_s, self._ready_s + counts * ready_s
        waited_s, self._waited_s = self._waited_s, core_s(pid, [threading.get_native_id()])[1]
        locked = self._reads and late_s - (self._waited_s - waited_s) > _HALF * sys.getswitchinterval()
        for thread, stack in stacks.items() if locked else ():
            outer = [code for _, code, _ in stack if not path_of(code).endswith("/threading.py")]
            if thread == self._thread or not outer or self._meaning_of(outer[-1]) != "user":
                continue
            ran_s, ready_s = self._core_time(thread, pid, native)
            # Names that the thread's functions of the program use: one that hands on what it makes, makes batches.
            names = (set(code.co_names) for code in outer if self._meaning_of(code) == "user")
            self._beside[outer[-1]] += ran_s > _A_FIFTH * ready_s and not any(_HANDS_ON & of for of in names)

    def _core_time(self, thread: int, pid: int, native: Mapping[int | None, int | None]) -> tuple[float, float]:
        """Return since the last call: seconds in which a thread had a core, and in which it did not wait for one.

        0 and 0 at the first call, and where the system does not say.

        Args:
            native: identifier of a thread -> its number at the system.
        """
        had_s, waited_s = core_s(pid, [native.get(thread)])
        now_s, before = time.monotonic(), self._before.get(thread)
        self._before[thread] = now_s, had_s, waited_s
        if before is None or not had_s:
            return 0.0, 0.0
        return had_s - before[1], max(0.0, now_s - before[0] - (waited_s - before[2]))

    def _note_called(self, function: CodeType, stack: Stack, kind: str, meanings: Sequence[str]) -> None:
        """Count a sample for the function that the loop has called, and note whether that, or its value, trains.

        Args:
            kind: what the stack is in.
            meanings: of the frames within the loop's.
        """
        self._called[function] += kind != COMPILING
        learns = any(code.co_name in _LEARNS and package_of(code) in _FRAMEWORKS for _, code, _ in stack)
        learns = learns or goes_to(*stack[-1][1:]) == _LEARNED
        if learns or (kind == COMPILED and PREDICT not in meanings):
            self._training.add(function)

    def _note_function(self, weight: float, stack: Stack, meanings: Sequence[str], instruction: int) -> None:
        """Count a sample for the innermost function of the program: whether its line trains, and what it calls.

        Args:
            meanings: of each frame.
            instruction: offset of the current one in the innermost frame's code.
        """
        place = next((at for at, meaning in enumerate(meanings) if meaning == "user"), len(stack))
        paths = "\n".join(path_of(code) for _, code, _ in stack[place:])
        if not paths or any(part in paths for part in _NO_STEP):  # in no function of the program, or in no step
            return
        _, code, line = stack[place]
        function = code.co_filename, name_of(code)
        if function not in self._of_functions and len(self._of_functions) >= MOST_KNOWN:
            return
        samples = self._of_functions.setdefault(function, FunctionSamples())
        hook = self._hook_in(stack[place:])
        samples.trains |= code is self._loop or any(
            code.co_name in _TRAINS and package_of(code) in _FRAMEWORKS for _, code, _ in stack if not hook
        )
        call = hook or self._call_in(stack, meanings, place, instruction)
        own = (frame for frame, meaning in zip(stack[place:], meanings[place:], strict=True) if meaning == "user")
        # Where the line's value goes: through functions that only return it, to the first that does not.
        goes = next((to for to in (goes_to(*frame[1:]) for frame in own) if to != _OUT), "")
        if goes == _LEARNED or exchanges_gradients(code, call):
            samples.learned.add(place_of(code, line))
        if call:
            samples.not_training[place_of(code, line), call] += weight
        else:
            samples.unclear[line] += weight

    def _call_in(self, stack: Stack, meanings: Sequence[str], place: int, instruction: int) -> str:
        """Return the call that does not train in which the program's frame at a place of a stack is; "" without one.

        Args:
            meanings, instruction: as of `_note_function`.
        """
        _, code, line = stack[place]
        log = logs_to(stack[meanings.index(LOGGING)][1]) if LOGGING in meanings else ""
        trains = any(inner.co_name in _UPDATES and package_of(inner) in _FRAMEWORKS for _, inner, _ in stack[:place])
        if trains and not log:
            return ""  # through a library around the framework, such as accelerate
        # Whatever runs in it: JAX has a callback in each collection.
        call = log or call_on(code.co_filename, line, self._reads)
        if not call and self._hands_over and INDEXING in meanings[:place] and reads_elements(code.co_filename, line):
            return ELEMENTS
        return call or called_in(stack[: place + 1], instruction)

    def _hook_in(self, stack: Stack) -> str:
        """Return the program's hook that a trainer calls within a step, beside what it trains; "" for others.

        One that changes gradients, as to clip them, trains.
        """
        for (_, code, _), (_, caller, _) in itertools.pairwise(stack):
            is_hook = code.co_name.startswith("on_") and path_of(caller).endswith(_CALLS_HOOKS)
            if is_hook and self._meaning_of(code) == "user":
                return "" if changes_gradients(code) else name_of(code)
        return ""

    @staticmethod
    def _kind_of(meanings: list[str]) -> str:
        """Return what a stack is in, from the meanings of its frames, the innermost first; "" = none that counts."""
        if PREDICT in meanings and SET_UP in meanings[: len(meanings) - meanings[::-1].index(PREDICT)]:
            return PREDICT
        return max((meaning for meaning in meanings if meaning in _DECIDES), key=_DECIDES.index, default="")

    def _look_between(self) -> None:
        """Sample the stack between two steps: in `model.predict`, its set-up, an iterator, or another function."""
        parts: set[str] = {""}
        sets_up_call = False  # what is further in makes what `predict` needs for a call
        function: CodeType | None = None  # the outermost one that no step is in
        for _, code, _ in stack_of(self._thread, self._loop, _DEEPEST):
            own = code is not self._loop and code not in self._in_steps and self._meaning_of(code) == "user"
            if own or path_of(code).endswith(tuple(EXCHANGES)):
                function = code if code.co_name != "<module>" else function
            if delivers(code):
                parts.add("_input")
            elif path_of(code).endswith(_READS):
                parts.add("_reads")
            elif code.co_qualname in _JOINS:
                parts.add("_joining")
            if code.co_name == "predict" and "keras/src/" in path_of(code):
                parts |= {"_predict", "_predict_set_up"} if sets_up_call else {"_predict"}
            sets_up_call |= sets_up(code)
        if self._working():
            return  # it went on meanwhile
        self._between.update(parts - {"_input"} if "_predict" in parts else parts)
        if function is not None:
            self._between_functions[function] += 1

    def _find_meaning(self, code: CodeType) -> str:
        """Return what it means that a stack holds this code: "user" for the program's own, "" for a library's."""
        name = path_of(code)
        # The first that holds decides, then the first of the framework's files that its path has a part of.
        kinds = (
            (code.co_name in TRACING, COMPILING),
            (code.co_name == "predict" and "keras/src/" in name, PREDICT),
            (sets_up(code), SET_UP),
            (code.co_qualname == "ArrayImpl.__getitem__", INDEXING),
            (logs_to(code), LOGGING),
        )
        unlisted = "" if is_library(name) else "user"
        kind = next((kind for is_so, kind in kinds if is_so), None)
        return kind or next(
            (meaning for meaning, *parts in self._meaning if any(part in name for part in parts)), unlisted
        )

    def _weights_not_training(self) -> dict[tuple[str, str, bool], float]:
        """Return (line, what it calls, whether a step learns from it) -> weight of samples in what does not train."""
        weights: defaultdict[tuple[str, str, bool], float] = defaultdict(float)
        for (_, name), samples in self._of_functions.items():
            if samples.trains_nothing:
                weights[samples.named(name)] += sum(samples.not_training.values()) + sum(samples.unclear.values())
                continue
            for (place, call), weight in samples.not_training.items():
                weights[place, call, place in samples.learned] += weight
        return weights

    def python_in_steps(self) -> dict[str, str | float | bool | dict[str, float] | None]:
        """Return what does not train within the steps, for the manifest; {} before samples.

        Returns: `samples`; the share of the time `aside`, in calls that are neither the framework's nor the input's;
            the line `at` which most of that passes, what it `calls`, whether a step learns from it
            (`learned`), and its share `at_line`; the share of each of the `parts` of PyTorch's step without CUDA, and
            that `kept` in a backward that keeps its graph, on the line `keeps_at`; of a function that a compiled step
            calls, `through` what, and whether it is given the batch alone (`of_batch`); the share in `fetches` of
            batches, most of them on the line `fetches_at` from `fetches_from`. Where another thread of the
            program computed in many samples that had to wait for Python's lock (`beside`, their share), all of this is
            of its function, and `aside` the time in which the training thread had no core and waited for none.
        """
        samples = self._samples - self._kinds[COMPILING]
        # The thread waits for most of the time, as for a device.
        sleeps = self._hands_over and self._ran_s < _HALF * self._ready_s
        if samples <= 0 or (sleeps and not any((self._called_back, self._parts, self._fetches))):
            return {}  # a thread that mostly sleeps may wait for the step before, on whatever line it is
        # Share of the time in which it had no core and waited for none: for Python's lock, or for results.
        idle = 1 - self._ran_s / self._ready_s if self._reads and self._ran_s else 0.0
        # Samples that another thread must be met in to be what it waits for; none is where it idles less.
        explains = _HALF * idle * max(self._looks, _FEW) if idle > _HALF else float("inf")
        holders = [code for code, looks in self._beside.most_common(1) if looks > explains]
        other = {(place_of(code, code.co_firstlineno), name_of(code), False): idle * self._weight for code in holders}
        weights = other or ({} if sleeps else self._weights_not_training())
        weights |= {(at, name_of(code), True): weight for (at, code), weight in self._called_back.items()}
        (place, call, learned), most = max(weights.items(), key=lambda item: item[1], default=(("", "", False), 0.0))
        not_training = sum(weights.values())
        how = (self._how_called_back(code) for at, code in self._called_back if (at, name_of(code)) == (place, call))
        # A forward within a function that does not train is a validation's.
        parts = defaultdict[str, float](float)
        for (function, part), weight in self._parts.items():
            if function is None or function in self._training or part == PASS:
                parts[part] += weight
        keeps_at, kept = max(self._kept.items(), key=lambda item: item[1], default=("", 0.0))
        beside = [round(min(1.0, self._beside[code] / self._looks), 4) for code in holders]
        return next((called._asdict() for called in how if called is not None), {}) | {
            **({"beside": beside[0]} if beside else {}),
            **self._fetched(),
            "samples": samples,
            "on_core": round(min(1.0, self._ran_s / self._ready_s), 4) if self._ran_s else None,
            "aside": round(not_training / self._weight, 4),
            "at": place,
            "calls": call,
            "learned": learned,
            "at_line": round(most / not_training, 4) if not_training else 0.0,
            "parts": {part: round(weight / self._weight, 4) for part, weight in parts.items()},
            "keeps_at": keeps_at,
            "kept": round(kept / self._weight, 4),
        }

    def _fetched(self) -> dict[str, str | float]:
        """Return the share of the time in `fetches` of batches, and where most of that passes; {} without any."""
        if not self._fetches:
            return {}
        place, source = max(self._fetches, key=lambda fetch: self._fetches[fetch])
        share = round(sum(self._fetches.values()) / self._weight, 4)
        return {"fetches": share, "fetches_at": place, "fetches_from": source}

    def facts(self) -> dict[str, str | float | None]:
        """Return what was seen so far, for the manifest; {} before samples.

        Returns: `samples`, of them `eager`, `compiled`, the share of the time that the thread was `on_core` (of that
            in which it did not wait for one; None = not known), `predict_set_up` (what `model.predict`
            makes for each call), and `own`, in Python of
            the program's own and what that calls but for the framework, `at_place` of them
            `own_at`; `function`, what the loop calls for a step in which operations were seen;
            `operations` of a usual step, and its `exchanges` between ranks, None where unknown; `between`, samples
            between the steps, of them in `model.predict`, in what that makes for each call, in the iterator of a
            dataset, in reads of JAX's values, and `between_in_function`, in the program's function
            `between_function`; `in_copied`, in changes of JAX's arrays outside of `jit`, most on the line `copied_at`.
        """
        if not self._samples and not self._between[""]:
            return {}
        place = self._own.most_common(1)
        name, count = (self._functions.most_common(1) or [("", 0)])[0]
        between = [function for function in self._between_functions.most_common() if function[0] not in self._in_steps]
        called = [function for function in self._called.most_common() if function[0] not in self._training]
        usual = 2 * count > sum(self._functions.values()) and name.isidentifier()  # most of the samples in operations
        return {
            "samples": self._samples - self._kinds[COMPILING],
            "eager": self._kinds[EAGER],
            "compiled": self._kinds[COMPILED],
            "on_core": round(min(1.0, self._ran_s / self._ready_s), 3) if self._ran_s else None,
            "predict_set_up": self._kinds[PREDICT],
            "own": self._own.total(),
            "own_at": place[0][0] if place else None,
            "at_place": place[0][1] if place else 0,
            "function": name if usual else None,
            **(self._operations.facts() if self._operations is not None else {}),
            **{f"between{part}": count for part, count in self._between.items()},
            "between_function": name_of(between[0][0]) if between else None,
            "between_in_function": between[0][1] if between else 0,
            "copied_at": next((place for place, _ in self._copies.most_common(1)), None),
            "in_copied": self._copies.total(),
            "called": name_of(called[0][0]) if called else None,
            "in_called": called[0][1] if called else 0,
        }


def exchange_in(stack: Stack) -> str:
    """Return the exchange between ranks that the outermost frame calls; "" without one, and for a framework's own.

    Such as "torch.distributed.all_reduce": the module as a program names it, and its outermost function.
    """
    paths = [path_of(code) for _, code, _ in stack]
    calls = [at for at, path in enumerate(paths) if path.endswith(tuple(EXCHANGES))]
    above = paths[calls[-1] + 1 : -1] if calls else []
    if not calls or any(part in path and "c10d_logger" not in path for path in above for part in _EXCHANGES_WEIGHTS):
        return ""
    module = next(name for path, name in EXCHANGES.items() if paths[calls[-1]].endswith(path))
    return f"{module}.{stack[calls[-1]][1].co_name}"


def exchanges_gradients(code: CodeType, call: str) -> bool:
    """Return whether an exchange that a function of the program calls is probably of gradients."""
    exchanges = call.startswith(tuple(EXCHANGES.values())) and "object" not in call
    return exchanges and bool(_GRADIENTS & {*code.co_names, *code.co_varnames})


# Functions around the one that the program calls, in libraries.
_AROUND = re.compile(
    r"(.*\.)?(error_handler|_?wrap.*|_?inner(_func)?|decorate_context|reraise.*|.*_call_impl|_fn|<lambda>)"
)


def callee(codes: Iterable[CodeType]) -> str:
    """Return the function that a program calls, of the libraries' that its line is in, outermost first; "" = none."""
    names = [name_of(code) for code in codes]
    return next((name for name in names if not _AROUND.fullmatch(name)), "".join(names[:1]))


def called_in(stack: Stack, instruction: int) -> str:
    """Return what the function of the outermost frame calls that is Python as well, and not the framework's; else "".

    Args:
        instruction: offset of that in the innermost frame's code.
    """
    code = stack[-2 if len(stack) > 1 else -1][1]
    if len(stack) == 1:  # it calls nothing: its own Python, where the interpreter has just given up the lock
        return OWN_PYTHON if dis.opname[code.co_code[instruction]].startswith(_INTERPRETS) else ""
    trains = package_of(code) in _FRAMEWORKS and not any(saves(inner) for _, inner, _ in stack)
    is_own = "gpu_util_callback/" in path_of(code) or trains
    return exchange_in(stack) or (
        "" if is_own else f"{package_of(code)}.{callee(inner for _, inner, _ in stack[-2::-1])}"
    )


def saves(code: CodeType) -> bool:
    """Return whether a library's function writes or reads a checkpoint; calling a model that was read does neither."""
    return code.co_name != "_call_attribute" and any(part in path_of(code) for part in _SAVES)


def fetches(code: CodeType) -> bool:
    """Return whether a function is that of ours which fetches a loop's batches and times that."""
    return code.co_name == "__next__" and "gpu_util_callback/backends/functions.py" in path_of(code)


def sets_up(code: CodeType) -> bool:
    """Return whether a function below `model.predict` makes what it needs for each call."""
    return code.co_name in ("__init__", "__iter__") and any(part in path_of(code) for part in _SETS_UP)


def path_of(code: CodeType) -> str:
    """Return the path of a function's file, with slashes on any system."""
    return code.co_filename.replace("\\", "/")


@per_code
def part_of(code: CodeType) -> str:
    """Return the part of PyTorch's step that a function runs; "" for others."""
    return _PARTS.get((path_of(code).rpartition("-packages/")[2], code.co_name), "")


def name_of(code: CodeType) -> str:
    """Return a function's name; of a comprehension or a lambda that of the function around it, if there is one."""
    names = code.co_qualname.split(".<locals>.")
    return next((name for name in reversed(names) if not name.startswith("<")), names[-1])


def package_of(code: CodeType) -> str:
    """Return the top package of a library's function, or its module in the standard library; else its file's name."""
    path = path_of(code).removesuffix(".py")
    # A folder into which packages were installed, beside the usual ones.
    target = next(filter(path.startswith, _targets(tuple(sys.path))), "")
    if target:
        return path.removeprefix(target).partition("/")[0]
    parts = path.split("/")
    is_root = [part in ("site-packages", "dist-packages") or part.startswith("python3.") for part in parts[:-1]]
    return parts[max((at + 1 for at, root in enumerate(is_root) if root), default=len(parts) - 1)]


def place_of(code: CodeType, line: int) -> str:
    """Return a line of the program, by its function and file; of what AutoGraph has rewritten the function alone."""
    if "__autograph_generated_file" in path_of(code):
        return name_of(code).removeprefix("tf__")
    return f"{name_of(code)} ({path_of(code).rpartition('/')[2]}, line {line})"


@functools.lru_cache(MOST_KNOWN)
def is_library(file: str) -> bool:
    """Return whether a file, its path written with slashes, is a library's and not the program's."""
    return any(part in file for part in _LIBRARIES) or file.startswith(_targets(tuple(sys.path)))


@functools.lru_cache(1)
def _targets(folders: tuple[str, ...]) -> tuple[str, ...]:
    """Return the folders that modules are looked for in, and packages installed into, beside the usual ones.

    The first one is the program's.
    """
    others = [folder for folder in folders[1:] if folder and not any(part in f"{folder}/" for part in _LIBRARIES)]
    return tuple(f"{folder.replace(os.sep, '/')}/" for folder in others if any(Path(folder).glob("*.dist-info")))


def library_of(code: CodeType) -> str:
    """Return the installed package that a function is of; "" for the program's own, and for Python's."""
    path = path_of(code)
    return package_of(code) if "-packages/" in path or path.startswith(_targets(tuple(sys.path))) else ""


def logs_to(code: CodeType) -> str:
    """Return what the user calls to write to the log that a library's function writes; "" for others."""
    return next((log for part, log in _LOGS if part in path_of(code)), "")


def delivers(code: CodeType) -> str:
    """Return what a library's function delivers batches of, or begins to; "" for other functions."""
    is_iterator = code.co_name in ("__next__", "__iter__")
    return next((of for part, of in _ITERATORS.items() if is_iterator and part in path_of(code)), "")


def fetch_in(stack: Stack, meanings: Sequence[str]) -> tuple[str, str] | None:
    """Return the line of the program that fetches a batch, and what delivers it; None where a stack is in no fetch.

    That is an iterator of a library, or what the program's line takes the next of: a generator or an iterator of its
    own, in which the framework computes nothing. What begins a pass over data is no such fetch.

    Args:
        meanings: of each frame, as of `DispatchWatch`.
    """
    for at in range(len(stack) - 1, 0, -1):  # from the outermost frame inwards
        code, line = stack[at][1:]
        if meanings[at] != "user" or not _is_iterator(stack[at - 1][1]) or begins_pass(code, line):
            continue
        inner = list(itertools.takewhile(_is_iterator, (code for _, code, _ in stack[at - 1 :: -1])))
        if any(part_of(code) == PASS for _, code, _ in stack[:at]):  # it begins a pass
            return None
        if source := next(filter(None, map(delivers, inner)), ""):  # an iterator of a library
            workers = any("_MultiProcessing" in code.co_qualname for _, code, _ in stack[:at])
            return place_of(code, line), "worker processes" if workers else source
        computes = any(package_of(code) in _FRAMEWORKS for _, code, _ in stack[:at])
        if meanings[at - 1] == "user" and takes_next(code.co_filename, line) and not computes:
            return place_of(code, line), name_of(inner[0])
    return None


def _is_iterator(code: CodeType) -> bool:
    """Return whether a function is a generator, or gives an iterator's next value."""
    return code.co_name == "__next__" or bool(code.co_flags & inspect.CO_GENERATOR)


@functools.lru_cache(MOST_KNOWN)
def takes_next(path: str, line: int) -> bool:
    """Return whether a line of a program calls `next`."""
    return any(isinstance(node, ast.Call) and ast.unparse(node.func) == "next" for node in _nodes_at(path, line))


# ---- operations per step ---------------------------------------------------------------


class OperationCount:
    """Number of operations, and of exchanges between ranks, that a step starts from Python.

    Read from counters of the framework: TensorFlow numbers its eager tensors, the batch's among them; PyTorch the
    operations it will differentiate, and the exchanges of its ranks. They are only read; nothing that advances them
    is called.
    """

    _MOST = 200  # steps

    def __init__(self, framework: str):
        self._readers: Sequence[tuple[str, Callable]] = _NUMBERS.get(framework, ())
        self._before: dict[str, int | None] = {}  # counts as a step began; None = not known
        # Name of what is counted -> how many, in each step.
        self._counted: dict[str, list[int]] = {name: [] for name, _ in self._readers}

    def begin(self) -> None:
        """Begin a new pass over a dataset: operations since the last step belong to no step."""
        self._before = {}

    def step(self, batch: object) -> bool:
        """Begin a step with this batch, and return whether more are to be counted; on the training thread.

        A step's operations are what a counter has advanced by since the step before.
        """
        for name, read in self._readers:
            before = self._before.get(name)
            try:
                now = read(batch)
            except Exception:  # a version that counts elsewhere, or a process without ranks
                now = None
            if now is not None and before is not None and now >= before:
                self._counted[name].append(now - before)
                if len(self._counted[name]) >= self._MOST:  # enough
                    self._readers = ()
            self._before[name] = now
        return bool(self._readers)

    def facts(self) -> dict[str, int | None]:
        """Return the `operations` and `exchanges` of a usual step; None where unknown."""
        counts = {name: sorted(counted) for name, counted in self._counted.items() if len(counted) > 2}
        return {"operations": None} | {name: counted[len(counted) // 2] for name, counted in counts.items()}


def _eager_tensor(batch: object) -> int | None:
    """Return the number of the first tensor that a batch holds: TensorFlow counts them; None for others."""
    while isinstance(batch, (tuple, list, dict)) and batch:
        batch = next(iter(batch.values() if isinstance(batch, dict) else batch))
    number = getattr(batch, "_id", None) if type(batch).__name__ == "EagerTensor" else None
    return number if isinstance(number, int) else None


def _autograd_sequence(batch: object) -> int:
    return int(sys.modules["torch"]._C._autograd._get_sequence_nr())


def _collectives(batch: object) -> int:
    return int(sys.modules["torch.distributed"].distributed_c10d.GroupMember.WORLD._get_sequence_number_for_group())


# Name of what is counted, and what reads its count so far.
_NUMBERS: dict[str, Sequence[tuple[str, Callable[[object], int | None]]]] = {
    "tensorflow": [("operations", _eager_tensor)],
    "torch": [("operations", _autograd_sequence), ("exchanges", _collectives)],
}
