"""The table of changes: calls that a child makes with other arguments, read from the line to paste.

`--change` takes the lines that advice prints, in which `...` stands for what is there already, and for short
their arguments alone: `workers=8`.
"""

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.trying.hooks import EPOCH_HOOKS, ONCE, READERS
from gpu_util_callback.words import ordinal

REWRITTEN = "it changes the program's own Python code"
EPOCHS = 3  # that are timed where a change works at their ends: with the rare work, and without it
VALIDATION = "validation_data"  # of fit: what a change is about, in place of a function or a stage


@dataclass(frozen=True)
class Target:
    """A kind of call that can be made otherwise.

    Attributes:
        arguments: that it takes; () = any.
        epochs: whole epochs are timed: it works at their ends, or over whole passes.
    """

    arguments: tuple[str, ...] = ()
    epochs: bool = False


TARGETS: Mapping[str, Target] = {
    "PyDataset": Target(("workers", "use_multiprocessing", "max_queue_size")),  # attributes of the one given to fit
    # Of every one.
    "DataLoader": Target(
        ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "multiprocessing_context")
    ),
    "compile": Target(("run_eagerly", "jit_compile", "steps_per_execution")),
    "fit": Target(("validation_freq", "validation_steps", "validation_batch_size", "verbose"), epochs=True),
    "class": Target(epochs=True),  # of callbacks or settings
    "without": Target(epochs=True),  # callbacks of a class
    "every": Target(("every",)),  # nth call of a callback's hook
    "map": Target(("num_parallel_calls", "options")),  # of a named function
    "interleave": Target(("cycle_length", "num_parallel_calls", "options")),
    "cache": Target(("shuffle",), epochs=True),  # behind a stage, or as the last; of validation too
    "prefetch": Target(("buffer_size",)),  # as the last stage of what fit gets
    "repeat": Target(("count", "epochs"), epochs=True),  # several passes an epoch of what fit gets
    "options": Target(("options",)),  # of the dataset that fit gets
    "reader": Target(("num_parallel_reads",)),  # of a TFRecordDataset or another
    "policy": Target(("name",)),  # Keras' dtype policy
    "torch.compile": Target(("mode", "dynamic")),  # of the first module called
    "eager": Target(("on",)),  # functions are not run eagerly
    "environment": Target(),
}
# An argument alone -> the target it belongs to.
_TARGET_OF_ARGUMENT = {
    name: target for target in ("PyDataset", "DataLoader", "compile", "fit") for name in TARGETS[target].arguments
}
_LINE = "a line like `ds = ds.map(augment, num_parallel_calls=8)`"


@dataclass(frozen=True)
class Change:
    """One change of a program's calls.

    Attributes:
        target: of `TARGETS`.
        args: the arguments to set.
        of: the function, class or stage that it is about; "" = all.
        line: the line to paste, or the words it was given in.
        environment: variables to set instead.
    """

    target: str
    args: dict[str, Any] = field(default_factory=dict)
    of: str = ""
    line: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def epochs(self) -> int:
        """Whole epochs to time; 0 = steps."""
        at_ends = TARGETS[self.target].epochs or self.of.endswith((*EPOCH_HOOKS, VALIDATION))
        return EPOCHS if at_ends else 0

    @property
    def words(self) -> str:
        """Return a short name of the change.

        "workers=8", "augment(num_parallel_calls=8)" or "without Checkpoint".
        """
        if self.environment:
            return " ".join(f"{name}={value}" for name, value in self.environment.items())
        flat = {**self.args, **self.args.get("options", {})}  # options of a dataset count as arguments
        text = ", ".join(f"{name}={value!r}" for name, value in flat.items() if name not in ("options", "on"))
        if self.target == "without":
            return f"without {self.of}"
        if self.target == "every":
            every = self.args["every"]
            return f"{self.of} {'once' if every == ONCE else f'at every {ordinal(every)} call'}"
        if self.target in ("cache", "prefetch"):
            place = "of" if self.of == VALIDATION else "behind"
            return f"{self.target}{f' {place} {self.of}' if self.of else ''}"
        return f"{self.of}({text})" if self.of and text else self.of or text or self.target

    def for_child(self) -> dict[str, Any]:
        """Return the change as a child's plan has it."""
        return {"target": self.target, "args": self.args, "of": self.of}


def change_of(code: str) -> Change | str:
    """Return the change that lines of code ask for, or the reason why it cannot be tried."""
    code = code.strip()
    if not code:
        return "there is no line to try"
    for read in (_read_environment, _read_rare_hook, _read_saving_once, _read_statements):
        change = read(code)
        if change is not None:
            return change
    return REWRITTEN


def change_for(advice: Mapping[str, Any]) -> Change | str:
    """Return the change that a finding's advice asks for, or the reason why it cannot be tried."""
    return advice.get("untried") or change_of(advice["code"])


def parse(words: str) -> Change:
    """Return the change that `--change` asks for: a line to paste, arguments alone, or a callback by name.

    Raises:
        UnusableInput: the words name no change that can be tried.
    """
    words = words.strip()
    match = re.fullmatch(r"without (\w+)", words)  # "without TensorBoard"
    if match:
        return Change("without", of=match[1], line=f"callbacks=[...]  # without {match[1]}")
    match = re.fullmatch(r"(\w+\.\w+) every (\d+)", words)  # "Samples.on_epoch_end every 5"
    if match:
        return Change("every", {"every": int(match[2])}, match[1], f"if ... % {match[2]} == 0: ...  # in {match[1]}")
    try:
        given = _keywords(ast.parse(f"f({words})", mode="eval").body)
    except (SyntaxError, ValueError):
        given = {}
    if given:  # arguments alone: "workers=8, max_queue_size=20"
        targets = {_TARGET_OF_ARGUMENT.get(name) for name in given}
        if len(targets) == 1 and None not in targets:
            return Change(str(targets.pop()), given, line=words)
        unknown = next((name for name in given if name not in _TARGET_OF_ARGUMENT), "")
        why = f"{unknown} alone names no call" if unknown else "they belong to different calls"
        alone = ", ".join(sorted(_TARGET_OF_ARGUMENT))
        raise UnusableInput(f"--change {words}: {why}; give {_LINE}, or some of {alone}")
    change = change_of(words)
    if isinstance(change, str):  # the reason why it cannot be tried
        try:
            ast.parse(words)
        except SyntaxError:
            change = "it is no line of Python"
        raise UnusableInput(f"--change {words}: {change}; give {_LINE}; gpu-util ab compares two versions")
    return change


# -- lines of code ---------------------------------------------------------------------------------


def _read_environment(code: str) -> Change | None:
    """Read variables set for a command: `TF_XLA_FLAGS=… python …`."""
    match = re.fullmatch(r"((?:[A-Z_0-9]+=\S+ )+)python .*", code)
    if not match:
        return None
    return Change("environment", line=code, environment=dict(word.split("=", 1) for word in match[1].split()))


def _read_rare_hook(code: str) -> Change | None:
    """Read work of a callback at every nth call, or once: in its hook, or in a subclass."""
    every = re.search(r"if \w[\w.]* % (\d+) == 0:", code)
    where = re.search(r"# (?:in|what) (\w+)\.(\w+)(?: does)?$", code, re.MULTILINE)
    where = where or re.search(r"class Rare(\w+)\([\s\S]*super\(\)\.(on_(?!train_end)\w+)\(", code)
    if where is None or not (every or "self.last = " in code):
        return None
    return Change("every", {"every": int(every[1]) if every else ONCE}, f"{where[1]}.{where[2]}", code)


def _read_saving_once(code: str) -> Change | None:
    """Read a model that is saved after `fit`, in place of a callback, or TensorBoard's log once an epoch."""
    match = re.search(r"^model\.save\(.*# after fit, instead of (\w+)", code, re.MULTILINE)
    if match is None:
        match = re.search(r"^class OncePerEpoch\(keras\.callbacks\.(TensorBoard)\)", code)
        return Change("every", {"every": ONCE}, "TensorBoard.on_train_batch_end", code) if match else None
    return Change("without", of=match[1], line=code)


def _read_statements(code: str) -> Change | None:
    """Return the change that statements make: a call with other arguments, or attributes set; None for others."""
    try:
        tree = ast.parse(code)
        attributes = {
            ast.unparse(assigned.targets[0]): ast.literal_eval(assigned.value)
            for assigned in tree.body
            if isinstance(assigned, ast.Assign) and isinstance(assigned.targets[0], ast.Attribute)
        }
    except (SyntaxError, ValueError):
        return None
    if not all(isinstance(statement, (ast.Assign, ast.Expr, ast.Import, ast.ImportFrom)) for statement in tree.body):
        return None
    calls = [
        statement.value
        for statement in tree.body
        if isinstance(statement, (ast.Assign, ast.Expr)) and isinstance(statement.value, ast.Call)
    ]
    calls = [call for call in calls if not _called_name(call).endswith((".with_options", "data.Options", ".save"))]
    options = {name[8:]: value for name, value in attributes.items() if name.startswith("options.")}
    if calls:
        is_one_call = len(calls) == 1 and len(attributes) == len(options)
        change = _read_call(calls[0], code) if is_one_call else _read_repeat(code)
        if change is not None and options:
            change.args["options"] = options
        return change
    if options:
        return Change("options", {"options": options}, line=code)
    of_dataset = {name.rpartition(".")[2]: value for name, value in attributes.items()}
    arguments = set(of_dataset) & set(TARGETS["PyDataset"].arguments)
    return Change("PyDataset", of_dataset, _fit_data_of(code), code) if arguments else None


def _fit_data_of(code: str) -> str:
    """Return which data of `fit` a line's comment or attribute is of: `VALIDATION`, or "" for the training data."""
    return VALIDATION if re.search(r"# (your )?validation |^val\w*\.\w+ = ", code) else ""


def _called_name(call: ast.Call) -> str:
    """Return the dotted name of what is called: `ds.cache`, of `ds.cache().shuffle(…)` too."""
    return re.sub(r"\.cache\(\)\.shuffle$", ".cache", ast.unparse(call.func))


def _read_repeat(code: str) -> Change | None:
    """Read several passes an epoch: `ds = ds.repeat(N)`, then `fit` with fewer epochs."""
    match = re.fullmatch(r"\w+ = \w+\.repeat\((\d+)\)\nmodel\.fit\(.*epochs=(\d+)\)", code)
    return Change("repeat", {"count": int(match[1]), "epochs": int(match[2])}, line=code) if match else None


def _read_call(call: ast.Call, code: str) -> Change | None:
    """Return the change of one call, by the last name of what is called."""
    name = _called_name(call)
    last = name.rpartition(".")[2]
    given = [argument for argument in call.args if not (isinstance(argument, ast.Constant) and argument.value is ...)]
    first = ast.unparse(given[0]) if given else ""
    # The child does not know which one validates.
    if "(" in name or (name.startswith("val") and not _fit_data_of(code)):
        return None
    if last in _FIXED_CALLS:
        return _FIXED_CALLS[last](code, first)
    if last == "DataLoader" and "batch_sampler" in ast.unparse(call):
        return Change("DataLoader", {"whole_batches": True}, line=code)
    try:
        args = _keywords(call)
    except ValueError:
        return None
    if name == "torch.compile":
        return Change("torch.compile", args, line=code)
    return _read_arguments(last, args, first, code) if args else None


def _read_arguments(last: str, args: dict[str, Any], first: str, code: str) -> Change | None:
    """Return the change of a call that takes these arguments; None if it takes others."""
    if last in ("map", "interleave") and not (re.fullmatch(r"[\w.]+", first) and first != "your_function"):
        return None
    target = "reader" if last in READERS else last
    if target not in TARGETS or target == "class":
        return Change("class", args, last, code) if last[:1].isupper() else None
    of = {"reader": last, "map": first, "interleave": first}.get(target, "").rpartition(".")[2]
    return Change(target, args, of, code) if set(args) <= set(TARGETS[target].arguments) else None


_FIXED_CALLS: Mapping[str, Callable[[str, str], Change | None]] = {
    "cache": lambda code, first: _read_cache(code),
    "prefetch": lambda code, first: Change("prefetch", {"buffer_size": -1}, line=code),
    "set_global_policy": lambda code, first: Change("policy", {"name": ast.literal_eval(first)}, line=code),
    "run_functions_eagerly": lambda code, first: Change("eager", {"on": True}, line=code),
    "update": lambda code, first: Change("eager", {"on": True}, line=code) if "jax_disable_jit" in first else None,
}


def _read_cache(code: str) -> Change | None:
    """Read a cache: of validation data, behind a stage that a comment names, or as the last step.

    None = another comment.
    """
    if _fit_data_of(code):
        return Change("cache", {}, VALIDATION, code)
    behind = re.search(r"# behind (\w+(?:\(\w+\))?(?: \+ batch)?)(?=, |$)", code)
    if not behind and re.search(r"#(?! as (its|the) last step)", code):
        return None
    return Change("cache", {"shuffle": True} if ".shuffle(" in code else {}, behind[1] if behind else "", code)


def _keywords(call: ast.AST) -> dict[str, Any]:
    """Return the keywords of a call as values. Raises: ValueError where one is no plain value."""
    if not isinstance(call, ast.Call):
        raise ValueError("no call")
    values = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ValueError("unpacked")
        text = ast.unparse(keyword.value)
        values[keyword.arg] = "AUTOTUNE" if text.endswith("AUTOTUNE") else _number(keyword.value)
    return values


def _number(value: ast.expr) -> Any:
    """Return a literal, or a product of numbers: `save_freq=5 * 200`."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        return _number(value.left) * _number(value.right)
    return ast.literal_eval(value)
