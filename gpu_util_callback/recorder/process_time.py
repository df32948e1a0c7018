"""Time of this process: its fits, what passes between them, and times in which it was stopped."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from types import CodeType
from typing import NamedTuple

from gpu_util_callback.steps.dispatch import is_library, path_of, place_of, sets_up
from gpu_util_callback.steps.frames import stack_of
from gpu_util_callback.steps.timeline import CALL, Phase

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

# Between two samples of the training thread: dense at first, and rare in a long pause.
_DENSE, _DENSE_S, _USUAL_S = 300, 0.05, 0.25
_GIVE_UP_S = 600.0  # a program that has not fitted for so long is past its last fit, mostly
_FEWEST = 20  # samples: of fewer one more or less is 5 %
_DEEPEST = 200  # frames

# Keras' functions, as a program calls them -> what they do between fits.
_CALLS = {
    "predict": "predict",
    "predict_on_batch": "predict",
    "evaluate": "evaluate",
    "test_on_batch": "evaluate",
    "fit": "fit outside its callbacks",
    "train_on_batch": "fit outside its callbacks",
    "__call__": "calls of the model",
    "__init__": "building",
    "build": "building",
    "compile": "building",
    "clone_model": "building",
    "from_config": "building",
    "load_model": "loading and saving",
    "load_weights": "loading and saving",
    "save": "loading and saving",
    "save_weights": "loading and saving",
    "save_model": "loading and saving",
}
_KERAS = ("/keras/src/", "/tf_keras/src/")
OTHER = "other code"
WAITING = "waiting for the user"  # a notebook between two cells, a prompt; or for what we show and try in a notebook
LEAVING = "leaving a call"
SET_UP = "set-up of predict"  # part of it


class ProcessTime:
    """Account of a process that fits more than once.

    The fits are timed by their recorders. Between them a thread samples the stack of the thread
    that trains: nothing is wrapped, and no function of the program or of Keras is called.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        """Forget all fits; at first, and in a forked child."""
        self._pid = os.getpid()
        self._fits = self._running_fits = 0
        self._fits_ns = self._between_ns = 0
        self._compilations = self._compile_ns = 0
        self._since_ns = 0  # when the running fit began, or the last one ended
        self._thread: threading.Thread | None = None
        self._training_thread = 0  # identifier of the training thread
        self._paused = threading.Event()
        # Nanoseconds that samples stand for, by name: of all pauses, and of the current pause.
        self._earlier_ns: Counter[str] = Counter()
        self._pause_ns: Counter[str] = Counter()
        self._line_ns: Counter[str] = Counter()  # likewise of other code, by the line of the program
        self._pause_line_ns: Counter[str] = Counter()
        self._inputs: set[object] = set()  # digests of what the fits were given; with None, where one is not known
        self._last_call = OTHER  # the last call of Keras that was sampled
        self._samples = 0
        self._random = random.Random(0x6A09E667)  # the program's own generator is left alone

    def begin(self, now_ns: int, given: object = None) -> None:
        """Begin a fit: the pause before it, if any, is over and is added to the earlier ones.

        Args:
            now_ns: reading of `time.perf_counter_ns`.
            given: digest of its data; None = not known.
        """
        with self._lock:
            if self._pid != os.getpid():  # a forked child
                self._reset()
            self._paused.clear()
            if not self._running_fits:  # no other fit runs at the same time
                if self._fits:  # what came before the first fit is no pause
                    self._between_ns += max(0, now_ns - self._since_ns)
                    self._earlier_ns += self._pause_ns
                    self._line_ns += self._pause_line_ns
                self._pause_ns, self._pause_line_ns = Counter(), Counter()
                self._since_ns = now_ns
            self._fits += 1
            self._running_fits += 1
            self._inputs.add(given)

    def end(self, now_ns: int, thread: int | None) -> None:
        """End a fit that ran on this thread; where no other fit runs, begin to sample what the thread does next.

        Args:
            now_ns: reading of `time.perf_counter_ns`.
            thread: identifier of the training thread; None = not known, nothing is sampled.
        """
        with self._lock:
            if self._pid != os.getpid() or not self._running_fits:
                return
            self._running_fits -= 1
            if self._running_fits:
                return
            self._fits_ns += max(0, now_ns - self._since_ns)
            self._since_ns = now_ns
            self._training_thread = thread or 0
            self._paused.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._sample, name="between-fits", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # no more threads: the time has no names
                    self._thread = None

    def compiled(self, times: int, ns: int) -> None:
        """Add compilations of a fit's train function."""
        with self._lock:
            self._compilations += times
            self._compile_ns += ns

    def facts(self, now_ns: int) -> dict[str, object]:
        """Return the account up to now, for the manifest; {} while there was one fit.

        Returns: `fits`, `fits_s`, `compilations` in them and `compile_s`; `between_s` by name,
            whose sum is exact and whose parts are estimates, and `predict_set_up_s`, the part of
            `predict` that prepares each call; `other_at`, the function of the program in which most of "other
            code" passes and its longest line, and the function's seconds; `inputs`, how many different data the fits
            were given.
        """
        with self._lock:
            if self._fits < 2:
                return {}
            fits_ns = self._fits_ns + (max(0, now_ns - self._since_ns) if self._running_fits else 0)
            between_s = self._between_ns / 1e9
            ns_by_name = dict(self._earlier_ns)
            set_up_ns = ns_by_name.pop(SET_UP, 0)
            total_ns = sum(ns_by_name.values())
            shares = {name: weight / total_ns for name, weight in ns_by_name.items()}
            if self._samples < _FEWEST or not total_ns:  # too few samples to name parts
                shares, set_up_ns = {OTHER: 1.0}, 0
            shares.pop(WAITING, None)
            facts: dict[str, object] = {} if None in self._inputs else {"inputs": len(self._inputs)}
            # the program's own code: its costliest function and line
            if OTHER in ns_by_name and self._line_ns and total_ns:
                functions: Counter[str] = Counter()
                for line, ns in self._line_ns.items():
                    functions[line.rpartition(", line ")[0]] += ns
                [(function, weight)] = functions.most_common(1)
                place = next(line for line, _ in self._line_ns.most_common() if line.startswith(f"{function}, line "))
                facts |= {"other_at": place, "other_at_s": round(weight / total_ns * between_s, 6)}
            return facts | {
                "fits": self._fits,
                "fits_s": round(fits_ns / 1e9, 6),
                "compilations": self._compilations,
                "compile_s": round(self._compile_ns / 1e9, 6),
                "between_s": {name: round(share * between_s, 6) for name, share in sorted(shares.items())},
                "predict_set_up_s": round(set_up_ns / max(total_ns, 1e-9) * between_s, 6),
            }

    def _sample(self) -> None:
        """Sample the training thread between fits, at irregular moments; on a thread of its own.

        A sample stands for the time since the one before. Ends where no fit has followed for `_GIVE_UP_S`.
        """
        before_ns = time.perf_counter_ns()
        while self._paused.wait(_GIVE_UP_S):
            pause_s = _DENSE_S if self._samples < _DENSE else _USUAL_S
            time.sleep(pause_s * self._random.uniform(0.5, 1.5))
            if not self._paused.is_set():
                continue
            lines = [(code, line) for _, code, line in stack_of(self._training_thread, None, _DEEPEST)]
            name, set_up = activity([code for code, _ in lines])
            program_line = next((place_of(*line) for line in lines if not is_library(path_of(line[0]))), "")
            with self._lock:
                if not self._paused.is_set():
                    continue
                # A thread that waits for a CPU or for Python's lock samples late.
                now_ns = time.perf_counter_ns()
                stands_for_ns = now_ns - max(before_ns, self._since_ns)
                before_ns = now_ns
                self._samples += 1
                if name == LEAVING:  # a call's objects are freed after its frame is gone
                    name = self._last_call
                elif name not in (OTHER, WAITING):
                    self._last_call = name
                self._pause_ns[name] += stands_for_ns
                if name == OTHER and program_line:
                    self._pause_line_ns[program_line] += stands_for_ns
                if set_up:
                    self._pause_ns[SET_UP] += stands_for_ns
                if now_ns - self._since_ns > _GIVE_UP_S * 1e9:
                    break
        with self._lock:
            self._thread = None


def activity(stack: list[CodeType]) -> tuple[str, bool]:
    """Return what a thread does between fits, and whether that is the set-up of `predict`.

    Args:
        stack: the functions that it is in, the innermost first.

    Returns: a value of `_CALLS`, `OTHER`, `WAITING`, or `LEAVING`: the name is that of the call before.
    """
    if not stack or (stack[0].co_name == "select" and stack[0].co_filename.endswith("selectors.py")):
        return WAITING, False
    name = OTHER
    for depth in range(len(stack) - 1, -1, -1):  # from the outermost function on: the call that the program made
        code = stack[depth]
        path = code.co_filename.replace("\\", "/")
        if path.endswith("gpu_util_callback/report/notebook.py"):
            return WAITING, False
        if any(part in path for part in _KERAS):
            if not path.endswith("traceback_utils.py"):  # a function of Keras that the program called
                return _CALLS.get(code.co_name, OTHER), code.co_name == "predict" and any(map(sets_up, stack[:depth]))
            name = LEAVING  # it is around most of Keras' functions
    return name, False


# ---- SIGSTOP, `docker pause`, a scheduler's suspend ---------------------------------------------

LEAST_NS = 1_000_000_000  # a busy machine delays a thread by tenths of a second
MOST_CPU = 0.02  # of the time: a process that only waits uses a thousandth, a stopped one nothing
_CORES = os.cpu_count() or 1  # that it may have used before it was stopped
WAITS_PER_ASK = 0.1  # a stopped thread asks for nothing; one that waits for the lock waits at nearly each interval
LOOKED_AT = 1000  # of the newest entries of the timeline's queue


class Reading(NamedTuple):
    """The clock, the CPU time of the process, and how often the calling thread has waited."""

    perf_ns: int
    cpu_ns: int
    waits: int


def reading() -> Reading | None:
    """Return a reading of the calling thread; None where the system counts no waits of a thread."""
    who = getattr(resource, "RUSAGE_THREAD", None)
    if who is None:
        return None
    waits = resource.getrusage(who).ru_nvcsw
    return Reading(time.perf_counter_ns(), time.process_time_ns(), waits)


def stop_between(
    before: Reading | None, after: Reading | None, pause_s: float, queue: Sequence[object]
) -> tuple[int, int] | None:
    """Return when the process was stopped while this thread meant to wait for `pause_s`.

    A stopped process uses no CPU, and none of its threads runs. A thread that is only kept from running
    by Python's lock wakes up at every switch interval to ask for the lock.

    Args:
        before, after: readings around the wait; None where the system has none.
        queue: of the timeline: the training thread did what it holds, so it was not stopped yet.

    Returns: from and until when, in `time.perf_counter_ns`; None = it was not stopped.
    """
    if before is None or after is None:
        return None
    took_ns = after.perf_ns - before.perf_ns
    late_ns = took_ns - round(1e9 * pause_s)
    if late_ns < LEAST_NS:
        return None
    computed = after.cpu_ns - before.cpu_ns > MOST_CPU * took_ns + 1e9 * pause_s * _CORES
    asked_for_the_lock = after.waits - before.waits > WAITS_PER_ASK * asks_within(late_ns)
    if computed or asked_for_the_lock:  # it ran
        return None
    # It was not stopped yet when the training thread last did something, if that was before the pause was due.
    due_ns = after.perf_ns - late_ns
    ends = (end_of(queue[-back]) for back in range(1, min(len(queue), LOOKED_AT) + 1))
    start_ns = next((end for end in ends if before.perf_ns < end <= due_ns), before.perf_ns)
    return start_ns, after.perf_ns


def asks_within(late_ns: int) -> float:
    """Return how often a thread that waits for Python's lock asks for it meanwhile: once a switch interval."""
    return late_ns / (1e9 * sys.getswitchinterval())


def end_of(entry: object) -> int:
    """Return when a phase or call of the timeline's queue ended (`perf_counter_ns`); 0 for other entries."""
    if isinstance(entry, Phase):
        return entry.end
    return entry[CALL["end"]] if isinstance(entry, tuple) else 0
