"""The one gate to the driver: every NVML call goes through it and none of them raises.

Errors are interpreted here only:

- not supported, no such function, no permission: this value is switched off for this GPU, with its
  reason, and not queried again;
- not found, no data: there is no new value now;
- GPU lost, reset required: the GPU is gone until it answers again;
- anything else (unknown, timeout, out of memory): this value backs off and is retried later.
"""

import ctypes
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from gpu_util_callback.gpus import _library, _words

__all__ = ["Gate", "Memory", "Retired"]

UNINITIALIZED = 1
NO_NEW_VALUE = frozenset({0, 6, 21, 27})  # 0: a success without records, raised by the binding
OFF = frozenset({2, 3, 4, 13, 22, 25, 26})
GONE = frozenset({15, 16, 28})
TIMEOUT, WAITS = 10, frozenset({"nvmlEventSetWait_v2"})  # no event came: nothing is wrong
BACK_OFF_S = (1.0, 2.0, 5.0, 15.0, 60.0)
SLOW_CALL_S = 0.05  # a call slower than this gets a tenth of the time at most
_NEVER = math.inf


class Retired(Exception):
    """Raised in a thread whose call hung and whose work was given to another thread."""


class Memory:
    """State of each value of each GPU: off and why, or when to retry.

    Shared by the threads of one sampler. `key` is (symbol, GPU key).
    """

    def __init__(self) -> None:
        self.blocked: dict[tuple[str, str], float] = {}  # key -> perf seconds of the next try
        self._failures: dict[tuple[str, str], int] = {}
        self._reasons: dict[tuple[str, str], dict[str, str]] = {}
        self.gone: dict[str, float] = {}  # GPU key -> perf seconds of the next try
        self._gone_failures: dict[str, int] = {}
        self.modes: dict[str, str] = {}  # GPU key -> "MIG", "vGPU", "WSL": why calls are missing
        self.skipped: set[str] = set()  # GPU keys whose call hangs, while GPUs are listed

    def off(self, symbol: str, gpu: str, reason: str, cure: str = "") -> None:
        """Switch this value off for good; remember why."""
        self.blocked[symbol, gpu] = _NEVER
        self.note(symbol, gpu, reason, cure)

    def note(self, symbol: str, gpu: str, reason: str, cure: str = "") -> None:
        """Remember why something is missing, in words for people."""
        source = _words.SOURCES.get(symbol.partition("/")[0], symbol)
        self._reasons[symbol, gpu] = {
            "source": f"{gpu} {source}".strip(),
            "reason": reason,
            "cure": cure,
        }

    def back_off(self, symbol: str, gpu: str, reason: str) -> None:
        """Try again later; report a value that fails repeatedly as unavailable."""
        key = (symbol, gpu)
        count = self._failures[key] = self._failures.get(key, 0) + 1
        pause = BACK_OFF_S[min(count, len(BACK_OFF_S)) - 1]
        self.blocked[key] = time.perf_counter() + pause
        if count >= 2:
            self.note(symbol, gpu, f"{reason}, {count} times; tried again every {pause:g} s")

    def slow(self, key: tuple[str, str], took_s: float) -> None:
        """Query a call that worked, but took long, less often."""
        pause_s = min(10 * took_s, BACK_OFF_S[-1])
        self.blocked[key] = max(self.blocked.get(key, 0.0), time.perf_counter() + pause_s)
        if took_s > 0.5:
            self.note(
                *key, f"the driver took {took_s:.1f} s to answer; asked every {pause_s:.0f} s"
            )

    def lost(self, gpu: str, reason: str) -> None:
        """Mark the GPU as gone and try it again later."""
        count = self._gone_failures[gpu] = self._gone_failures.get(gpu, 0) + 1
        self.gone[gpu] = time.perf_counter() + BACK_OFF_S[min(count, 3) - 1]
        self._reasons["GPU", gpu] = {
            "source": gpu,
            "reason": f"{reason}: no values from it since then",
            "cure": _words.LOST_CURE,
        }

    def still_lost(self, gpu: str) -> None:
        """Wait longer before the next try of a GPU that is still lost."""
        pause = BACK_OFF_S[min(self._gone_failures.get(gpu, 1), 3) - 1]
        self.gone[gpu] = time.perf_counter() + pause

    def found(self, gpu: str) -> None:
        """Mark a lost GPU as back."""
        self.gone.pop(gpu, None)
        self._gone_failures.pop(gpu, None)
        self._reasons.pop(("GPU", gpu), None)
        for key in [key for key, at in self.blocked.items() if key[1] == gpu and at != _NEVER]:
            self.answered(key)

    def answered(self, key: tuple[str, str]) -> None:
        """Mark a value that had failed as back."""
        self.blocked.pop(key, None)
        self._failures.pop(key, None)
        self._reasons.pop(key, None)

    def reason(self, symbol: str, gpu: str) -> dict[str, str] | None:
        """Return why a value is missing; None if it is not, or was forgotten."""
        return self._reasons.get((symbol, gpu))

    def forget(self, symbol: str, gpu: str) -> None:
        """Drop a reason (the value came from another source)."""
        self._reasons.pop((symbol, gpu), None)

    @property
    def unavailable(self) -> list[dict[str, str]]:
        """Everything that is missing: [{"source", "reason", "cure"}]."""
        return list(
            {reason["source"]: dict(reason) for reason in list(self._reasons.values())}.values()
        )


class Gate:
    """Queries the driver; returns a value or None. One per thread, over a shared `Memory`.

    `calling` is (symbol, GPU key, perf seconds) during a call, so that a watcher in another thread
    can see which call hangs.
    """

    def __init__(self, binding: Any, memory: Memory) -> None:
        self.binding = binding
        self.memory = memory
        self.calling: tuple[str, str, float] | None = None
        self.retired = threading.Event()
        self.slow_s = 0.0
        self.probing = False  # asking a lost GPU whether it is back
        self._pid = os.getpid()
        self._functions: dict[str, Callable[..., Any] | None] = {}

    def knows(self, symbol: str) -> bool:
        """Return whether the binding has this function."""
        if symbol not in self._functions:
            self._functions[symbol] = getattr(self.binding, symbol, None)
        return self._functions[symbol] is not None

    def ask(self, symbol: str, *args: Any, gpu: str = "", name: str = "") -> Any:
        """Return the driver's answer, or None when there is none.

        Args:
            gpu: the GPU that a failure is attributed to.
            name: the key under which the query is remembered, where one symbol answers several.
        """
        key = (name or symbol, gpu)
        memory = self.memory
        blocked = memory.blocked.get(key)
        started = time.perf_counter()
        if blocked is not None and blocked > started:
            return None
        if gpu in memory.gone and not self.probing:
            return None
        function = self._functions.get(symbol)
        if function is None:
            if not self.knows(symbol):
                memory.off(key[0], gpu, _words.OLD_BINDING, _words.OLD_BINDING_CURE)
                return None
            function = self._functions[symbol]
        if self._pid != os.getpid():
            return None  # a forked child: the driver's state is not ours
        self.calling = (key[0], gpu, started)
        try:
            answer = function(*args)  # type: ignore[misc]
        except Exception as error:  # the binding raises errors other than NVMLError
            answer = None
            self._failed(key[0], gpu, error)
        else:
            if blocked is not None:
                memory.answered(key)
        self.calling = None
        took_s = time.perf_counter() - started
        if took_s > SLOW_CALL_S:
            self.slow_s += took_s
            memory.slow(key, took_s)
        if self.retired.is_set():
            self.retired.clear()
            raise Retired
        return answer

    def first_of(self, *questions: tuple[Any, ...], gpu: str = "") -> Any:
        """Return the answer of the first of several calls for one value that this driver has.

        An older call is used only where the newer one is missing for good: a passing failure must
        not change the meaning of a value.

        Args:
            questions: (symbol, arguments...), the preferred one first.
        """
        first = questions[0][0]
        for place, (symbol, *args) in enumerate(questions):
            name = f"{first}/{place}" if place else first
            last = place == len(questions) - 1
            if not last and self.lacks(name, gpu):
                continue
            answer = self.ask(symbol, *args, gpu=gpu, name=name)
            if answer is not None or last or not self.lacks(name, gpu):
                return answer
            self.memory.forget(name, gpu)
        return None

    def lacks(self, symbol: str, gpu: str) -> bool:
        """Return whether this value was switched off for good (and an older call may be used)."""
        return self.memory.blocked.get((symbol, gpu)) == _NEVER

    def _failed(self, symbol: str, gpu: str, error: Exception) -> None:
        code = _library.code_of(self.binding, error)
        memory = self.memory
        if code in NO_NEW_VALUE or (code == TIMEOUT and symbol in WAITS):
            return
        reason, cure = _words.explain(code, error)
        if code == 3:
            reason = _words.not_supported(memory.modes.get(gpu, ""))
        elif code == UNINITIALIZED:
            _library.restart(self.binding)
        if code in GONE and gpu:
            memory.lost(gpu, reason)
        elif code in OFF or isinstance(error, (AttributeError, TypeError, ctypes.ArgumentError)):
            memory.off(symbol, gpu, reason, cure)
        else:
            memory.back_off(symbol, gpu, reason)
