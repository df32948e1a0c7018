"""Memory during a fit: what the framework keeps more and more of, and the error when there is none left."""

from __future__ import annotations

import math
import re
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from gpu_util_callback.backends.input_watch import Adapter
from gpu_util_callback.cgroup import KillCount, kill_count
from gpu_util_callback.recording.manifest_facts import Retraced
from gpu_util_callback.redaction import shortened
from gpu_util_callback.steps.rows import seen_batch_size

_fitted: set[weakref.ref[object]] = set()  # the models of this process' fits, also those that are gone
MOST_MODELS = 10_000
SHARE = 0.001  # of a core, that counting may take
MOST_SHAPES = 256  # whose batch sizes are noted
LEAST = 8  # steps: the first ones trace what the others use
# Errors of memory by name; others are recognised by their message.
_ERRORS = {"ResourceExhaustedError", "OutOfMemoryError", "MemoryError"}
_LATE = {"JaxRuntimeError", "XlaRuntimeError"}  # raised where a step's result is read
_SAID = re.compile(
    r"RESOURCE_EXHAUSTED|out of memory|can't allocate memory|not enough memory|bad_alloc|"
    r"Unable to allocate|CUDA_ERROR_OUT_OF_MEMORY",
    re.IGNORECASE,
)
_MOST_TEXT = 2000
_SIZE = r"([\d.]+)\s?([KMGT]?i?B|bytes)"
_ASKED = re.compile(rf"(?:allocate|allocating|allocation of)\s+{_SIZE}", re.IGNORECASE)
_FREE = re.compile(rf"of which {_SIZE} is free", re.IGNORECASE)
_UNUSED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated", re.IGNORECASE)
_SHAPE = re.compile(r"with shape\s?[\[(]([\d, ]+)[\])](?: and (?:data )?type (\w+))?")
_WIDTHS = {"half": 2, "double": 8}  # of types whose names do not say their bits
_HOOK = re.compile(r"\.on_(?:train|epoch|batch|test|predict)_\w+$")
_GPU = re.compile(r"device:GPU:(\d+)|GPU (\d+) has|GPU_(\d+)_bfc")


def note_fit(model: object) -> None:
    """Note a model that is about to be fitted, without keeping it alive; on the training thread."""
    if len(_fitted) < MOST_MODELS:
        _fitted.add(weakref.ref(model))


def _models() -> dict[str, int]:
    """Return how many models were fitted, and how many of these are still in memory; {} of a single one."""
    references = list(_fitted)
    if len(references) < 2:
        return {}
    return {"models_fitted": len(references), "models_alive": sum(model() is not None for model in references)}


class MemoryWatch:
    """Facts about a fit's memory that only its own process knows: the manifest's `memory`.

    Args:
        adapter: the framework's.
        steps: returns the number of training steps so far.
        keep: takes name and content of a file that goes with the post-mortem; None = none is wanted.
    """

    COUNTED_S = 5.0

    def __init__(self, adapter: Adapter, steps: Callable[[], int], keep: Callable[[str, bytes], None] | None = None):
        self._keep = keep
        self._adapter = adapter
        self._steps = steps
        self._began = time.perf_counter()
        self._due = 0.0  # `time.perf_counter` of the next count
        self._first_counts: dict[str, tuple[int, int]] = {}  # what is counted -> (step, count) of the first reading
        self._counted: dict[str, float | int] = {}  # the manifest's facts of the counts, as of the last reading
        self._retraced: Retraced | None = None  # the function with most traces so far; None = none
        self._oom_kills = KillCount("", 0, {})  # of the control group, so far
        self._batch_size_by_shape: dict[str, int | None] = {}  # by shape id
        self._error: dict[str, object] | None = None  # the error of memory that ended the training; None = none
        self._printed_before = id(_printed_last())

    def failed(self, error: BaseException | None, where: str) -> None:
        """Note an error that leaves the training, if memory was the reason; on the training thread.

        The first one stays.

        Args:
            error: None = no error is known.
            where: it happened, in words: "validation", or a callback's hook.
        """
        try:
            if self._error is None and error is not None:
                self._error = describe_error(error, self._adapter.name)
                if self._error is not None:
                    self._error |= {"where": where, **self._stacks()}
        except Exception:  # an error whose text cannot be read
            self._error = None

    def _stacks(self) -> dict[str, str]:
        """Keep the file of who holds the memory, while the error still holds it; return {"stacks": its name}, or {}."""
        try:
            stacks = self._adapter.runtime.memory_stacks() if self._keep is not None else None
            if stacks is None or self._keep is None:
                return {}
            self._keep(*stacks)
            return {"stacks": stacks[0]}
        except Exception:  # there may be no memory for it
            return {}

    def failed_unseen(self, where: str) -> None:
        """Note the error that the interpreter, or a notebook, has printed last, if it is newer than this watch.

        Args:
            where: it happened, if not in a callback of the program.
        """
        error = _printed_last()
        if error is not None and id(error) != self._printed_before:
            self.failed(error, _hook_of(error) or where)

    def facts(self, shapes: Mapping[float, int], last: bool = False) -> dict[str, Any]:
        """Return the manifest's `memory`, with the keys of which something is known; {} where nothing is.

        Returns: counts of traced functions and the like with their growth a step (`…_per_step`), `models_fitted` and
            `models_alive`, `retraced`, `batch_sizes` (samples by shape id), `oom_kills`, `control_group`,
            `group_inode`,
            `out_of_memory`.

        Args:
            shapes: the signatures of the batches' shapes so far, with their ids.
            last: no more steps will come: count once more.
        """
        result: dict[str, object] = {**self._counted_facts(last), **_models()}
        if self._retraced is not None:
            result["retraced"] = self._retraced
        if len(shapes) != len(self._batch_size_by_shape):  # a new shape has come, or there are more than are noted
            # Copied first: rows may be made on the training thread at the same time.
            first = list(shapes.copy().items())[:MOST_SHAPES]  # type: ignore[attr-defined]
            self._batch_size_by_shape = {str(shape_id): seen_batch_size(signature) for signature, shape_id in first}
        sizes = {shape_id: size for shape_id, size in self._batch_size_by_shape.items() if size is not None}
        if sizes:
            result["batch_sizes"] = sizes
        if self._oom_kills.kills:
            result["oom_kills"] = self._oom_kills.kills
        if self._oom_kills.folder:
            result |= {"control_group": self._oom_kills.folder, "group_inode": self._oom_kills.inode}
        if self._error is not None:
            result["out_of_memory"] = {"step": self._steps(), **self._error}
        return result

    def _counted_facts(self, last: bool) -> dict[str, float | int]:
        """Return what the framework keeps more of, and its growth a step; counted at most every `COUNTED_S`, and last.

        Of two functions that were traced again the one with more traces stays.
        """
        began = time.perf_counter()
        if began < self._due and not last:
            return self._counted
        self._oom_kills = kill_count()
        step = self._steps()
        counts = self._adapter.runtime.counters() | self._adapter.compile_clock.counters()
        for name, value in counts.items():
            if step < LEAST:
                continue
            first_step, first_count = self._first_counts.setdefault(name, (step, value))
            if value < first_count:  # the program let go of some: count from here
                first_step, first_count = self._first_counts[name] = step, value
                self._counted.pop(f"{name}_per_step", None)
            if name == "functions":
                self._counted[name] = value
            if step > first_step:
                self._counted[f"{name}_per_step"] = round((value - first_count) / (step - first_step), 4)
        functions = [fact for fact in (self._adapter.runtime.retraced(), self._retraced) if fact is not None]
        self._retraced = max(functions, key=lambda fact: fact["traces"], default=None)
        pause_s = min(self.COUNTED_S, began - self._began)  # a short run ends soon
        self._due = began + max(pause_s, (time.perf_counter() - began) / SHARE)
        return self._counted


def _hook_of(error: BaseException) -> str | None:
    """Return which callback's hook an error came from, such as "Mine.on_epoch_end"; None = none."""
    if type(error).__name__ in _LATE:  # raised where a result is read, not where it was computed
        return None
    hook, entry = None, error.__traceback__
    while entry is not None:  # Keras' list of callbacks calls those of the program
        name = entry.tb_frame.f_code.co_qualname.rpartition("<locals>.")[2]
        hook = name if _HOOK.search(name) else hook
        entry = entry.tb_next
    return hook if hook and not hook.startswith("CallbackList.") else None


def _printed_last() -> BaseException | None:
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def describe_error(error: BaseException, framework: str = "") -> dict[str, object] | None:
    """Return the manifest's `out_of_memory` for an error, None where memory was not the reason.

    The errors that caused it are looked at, too. Keeps no reference to the error: that would keep all that its
    frames hold.
    """
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain and len(chain) < 8:
        chain.append(current)
        current = current.__cause__ or current.__context__
    for current in chain:
        names = {kind.__name__ for kind in type(current).__mro__}
        text = str(current)[: 4 * _MOST_TEXT]
        if names & _ERRORS or (isinstance(current, Exception) and _SAID.search(text)):
            return _described(type(current).__name__, text, framework)
    return None


def _described(name: str, text: str, framework: str) -> dict[str, object]:
    """Return what an out-of-memory error says, as far as it is in its text.

    Returns: `error` (its name), `message`, `gpu` (index), `shapes`, and `asked_bytes`, `free_bytes`, `reserved_bytes`.
    """
    facts: dict[str, Any] = {"error": name, "message": shortened(text, _MOST_TEXT)}
    gpu = _GPU.search(text)
    if gpu is not None:
        facts["gpu"] = int(next(part for part in gpu.groups() if part))
    # the text names no GPU: the first one, or the CPU
    elif name == "OutOfMemoryError" or (framework == "jax" and "RESOURCE_EXHAUSTED" in text):
        facts["gpu"] = 0 if not re.search(r"\bCPU\b|cpu", text) else None
    requested_bytes = _size(_ASKED, text)
    shape = _SHAPE.search(text)
    if shape is not None:
        dims = [int(dim) for dim in re.findall(r"\d+", shape[1])]
        facts["shapes"] = [str(dims)]
        if requested_bytes is None:  # from the shape and its type
            bits = re.search(r"(?:int|float)(\d+)", shape[2] or "")
            width = max(1, int(bits[1]) // 8) if bits is not None else _WIDTHS.get(shape[2], 4)
            requested_bytes = width * math.prod(dims)
    facts["asked_bytes"] = requested_bytes
    facts["free_bytes"] = _size(_FREE, text)
    facts["reserved_bytes"] = _size(_UNUSED, text)
    return {key: value for key, value in facts.items() if value is not None}


def _size(pattern: re.Pattern[str], text: str) -> int | None:
    """Return the bytes that a text says where `pattern` matches: "7.50 GiB", "512 MB", "100 bytes".

    None without a match.
    """
    match = pattern.search(text)
    if match is None:
        return None
    unit = match[2].upper()
    return round(float(match[1]) * (1024 if "I" in unit else 1000) ** "BKMGT".index(unit[0]))
