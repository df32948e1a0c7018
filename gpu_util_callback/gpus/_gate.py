"""The one gate to the driver: every NVML call goes through it and none of them raises.

Errors are interpreted here only:

- not supported, no such function, no permission: this value is switched off for this GPU, with its
  reason, and not queried again;
- not found, no data: there is no new value now;
- GPU lost, reset required: the GPU is gone until it answers again;
- anything else (unknown, timeout, out of memory): this value backs off and is retried later.

NVML is loaded and started once per process, never shut down, and started again after a fork:
repeated cycles of initialising and shutting down are slow and have upset drivers; starting may even
hang. So it is only started in a sampler's thread or in the doctor's own process.
"""

import ctypes
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from gpu_util_callback.recording.manifest_facts import Unavailable

UNINITIALIZED = 1
NO_NEW_VALUE = frozenset({0, 6, 21, 27})  # 0: a success without records, raised by the binding
NOT_SUPPORTED = 3
OFF = frozenset({2, NOT_SUPPORTED, 4, 13, 22, 25, 26})
GONE = frozenset({15, 16, 28})
TIMEOUT, WAITS = 10, frozenset({"nvmlEventSetWait_v2"})  # no event came: nothing is wrong
BACK_OFF_S = (1.0, 2.0, 5.0, 15.0, 60.0)
SLOW_CALL_S = 0.05  # a call slower than this gets a tenth of the time at most
_NEVER = math.inf

# The binding's answer to a query: a number, bytes, a list or a structure, by the query's name.
Answer = Any


class Retired(Exception):
    """Raised in a thread whose call hung and whose work was given to another thread."""


class Memory:
    """State of each value of each GPU: off and why, or when to retry.

    Shared by the threads of one sampler. A value's `key` is (symbol of the call, GPU key such as "gpu0").
    """

    def __init__(self) -> None:
        self.blocked: dict[tuple[str, str], float] = {}  # key -> perf seconds of the next try
        self._failures: dict[tuple[str, str], int] = {}
        self._reasons: dict[tuple[str, str], Unavailable] = {}
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
        source = SOURCES.get(symbol.partition("/")[0], symbol)
        self._reasons[symbol, gpu] = {"source": f"{gpu} {source}".strip(), "reason": reason, "cure": cure}

    def back_off(self, symbol: str, gpu: str, reason: str) -> None:
        """Try again later, after longer and longer pauses; report a value that fails twice or more as unavailable."""
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
            self.note(*key, f"the driver took {took_s:.1f} s to answer; asked every {pause_s:.0f} s")

    def lost(self, gpu: str, reason: str) -> None:
        """Mark the GPU as gone, with the reason, and try it again later."""
        self._gone_failures[gpu] = self._gone_failures.get(gpu, 0) + 1
        self.still_lost(gpu)
        why = f"{reason}: no values from it since then"
        self._reasons["GPU", gpu] = {"source": gpu, "reason": why, "cure": LOST_CURE}

    def still_lost(self, gpu: str) -> None:
        """Wait longer before the next try of a GPU that is still lost."""
        pause = BACK_OFF_S[min(self._gone_failures.get(gpu, 1), 3) - 1]
        self.gone[gpu] = time.perf_counter() + pause

    def recovered(self, gpu: str) -> None:
        """Mark a lost GPU as back: its values are asked for again, but for those that are off for good."""
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

    def reason(self, symbol: str, gpu: str) -> Unavailable | None:
        """Return why a value is missing; None if it is not, or was forgotten."""
        return self._reasons.get((symbol, gpu))

    def forget(self, symbol: str, gpu: str) -> None:
        """Drop a reason (the value came from another source)."""
        self._reasons.pop((symbol, gpu), None)

    @property
    def unavailable(self) -> list[Unavailable]:
        """All that is missing."""
        return list({reason["source"]: reason.copy() for reason in list(self._reasons.values())}.values())


class Gate:
    """Queries the driver; returns a value or None. One per thread, over a shared `Memory`.

    Attributes:
        calling: (symbol, GPU key, perf seconds) during a call, so that a watcher in another thread
            can see which call hangs; else None.
        retired: set by the watcher: the thread has to leave its work after its call, by `Retired`.
        slow_s: time spent in calls that took long.
        probing: a lost GPU is asked whether it is back.
    """

    def __init__(self, binding: ModuleType, memory: Memory) -> None:
        self.binding = binding
        self.memory = memory
        self.calling: tuple[str, str, float] | None = None
        self.retired = threading.Event()
        self.slow_s = 0.0
        self.probing = False  # asking a lost GPU whether it is back
        self._pid = os.getpid()
        self._functions: dict[str, Callable[..., Answer] | None] = {}

    def knows(self, symbol: str) -> bool:
        """Return whether the binding has this function."""
        if symbol not in self._functions:
            self._functions[symbol] = getattr(self.binding, symbol, None)
        return self._functions[symbol] is not None

    def ask(self, symbol: str, *args: object, gpu: str = "", name: str = "") -> Answer:
        """Return the driver's answer; None where there is none, or the value is off or not due again.

        Args:
            symbol: the binding's function.
            args: its arguments.
            gpu: key of the GPU that a failure is attributed to; "" = none.
            name: the key under which the query is remembered, where one symbol answers several; "" = the symbol.

        Raises: Retired, after a call in which this thread lost its work to another one.
        """
        key = (name or symbol, gpu)
        memory = self.memory
        blocked = memory.blocked.get(key)
        started = time.perf_counter()
        if blocked is not None and blocked > started:  # off, or not due again
            return None
        if gpu in memory.gone and not self.probing:  # the GPU is lost
            return None
        function = self._functions.get(symbol)
        if function is None:
            if not self.knows(symbol):
                memory.off(key[0], gpu, OLD_BINDING, OLD_BINDING_CURE)
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
            if blocked is not None:  # it had failed and works again
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

    def ask_quietly(self, symbol: str, *args: object, gpu: str) -> Answer:
        """Return the driver's answer; None is not reported as missing."""
        answer = self.ask(symbol, *args, gpu=gpu)
        self.memory.forget(symbol, gpu)
        return answer

    def first_of(self, *questions: tuple[str, *tuple[object, ...]], gpu: str = "") -> Answer:
        """Return the answer of the first of several calls for one value that this driver has; None without one.

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
        """Record why a call failed for a GPU: never ask again, ask less often, or give the GPU up until it is back."""
        code = code_of(self.binding, error)
        memory = self.memory
        if code in NO_NEW_VALUE or (code == TIMEOUT and symbol in WAITS):  # no failure: there is nothing new
            return
        reason, cure = explain(code, error)
        if code == 3:
            mode = memory.modes.get(gpu)
            reason = f"{mode}: not supported in this mode" if mode else reason
        elif code == UNINITIALIZED:
            restart(self.binding)
        if code in GONE and gpu:
            memory.lost(gpu, reason)
        elif code in OFF or isinstance(error, (AttributeError, TypeError, ctypes.ArgumentError)):
            memory.off(symbol, gpu, reason, cure)
        else:
            memory.back_off(symbol, gpu, reason)


_NVIDIA = "0x10de"
_DISPLAY = "0x03"  # PCI class: VGA and 3D controllers


def nvidia_gpus(root: str = "/") -> int | None:
    """Return the number of NVIDIA GPUs on the PCI bus; None where the system does not report it.

    Sandboxes show an empty bus, WSL has its GPUs elsewhere, Jetsons do not attach theirs to a bus.

    Args:
        root: of the file system; another one in tests.
    """
    base = Path(root)
    try:
        if (base / "dev/dxg").exists() or list((base / "dev").glob("nvidia*")):  # there is one, perhaps on no bus
            return None
        devices = list((base / "sys/bus/pci/devices").iterdir())
        texts = [
            ((device / "vendor").read_text().strip(), (device / "class").read_text().strip()) for device in devices
        ]
    except OSError:
        return None
    if not texts:
        return None
    return sum(vendor == _NVIDIA and kind.startswith(_DISPLAY) for vendor, kind in texts)


_NO_LIBRARY = 12
_NAME = "libnvidia-ml.so.1"
# Driver folders that the loader does not know: containers without ldconfig, GKE, WSL, NixOS.
_FOLDERS = (
    "/usr/local/nvidia/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
)
_lock = threading.Lock()
_started_in: int | None = None
_starting_since: float | None = None  # perf seconds


def open_nvml() -> tuple[Any, Unavailable | None]:
    """Start NVML if this process has not, which may hang; return (its Python binding, None) or (None, why not)."""
    global _started_in, _starting_since
    if "pynvml" not in sys.modules and nvidia_gpus() == 0 and not _load_library():
        return None, _problem(*NO_GPU)  # without the binding's 6 ms and 2 MB
    try:
        import pynvml
    except ImportError:
        return None, _problem("the Python package nvidia-ml-py is missing", "pip install nvidia-ml-py")
    if not hasattr(pynvml, "_nvmlGetFunctionPointer"):
        # PyPI's `pynvml` before 12 and `nvidia-ml-py3` install a module of the same name.
        return None, _problem(
            "another package took the module name pynvml",
            "pip uninstall pynvml nvidia-ml-py3; pip install --force-reinstall nvidia-ml-py",
        )
    with _lock:
        if _started_in == os.getpid() and pynvml.nvmlLib is not None:
            return pynvml, None
        _starting_since = time.perf_counter()
        try:
            _start(pynvml)
        except Exception as error:
            code = code_of(pynvml, error)
            if code == _NO_LIBRARY and nvidia_gpus() == 0:
                return None, _problem(*NO_GPU)
            return None, _problem(*explain(code, error))
        finally:
            _starting_since = None
        _started_in = os.getpid()
        return pynvml, None


def starting_since() -> float | None:
    """Return the perf seconds at which starting NVML began; None if it is not being started."""
    return _starting_since


def _start(binding: ModuleType) -> None:
    """Start NVML, from a driver folder unknown to the loader if need be. Raises: the binding's NVMLError."""
    try:
        binding.nvmlInit()
    except Exception as error:
        if code_of(binding, error) != _NO_LIBRARY or not _load_library():
            raise
        binding.nvmlInit()


def _load_library() -> bool:
    """Load the driver's library; return whether there is one.

    Folders that the loader does not know are tried, too. The loader finds it by its name afterwards.
    """
    if not sys.platform.startswith("linux"):
        return False
    for path in (_NAME, *(f"{folder}/{_NAME}" for folder in _FOLDERS)):
        try:
            ctypes.CDLL(path)
        except OSError:
            continue
        return True
    return False


def restart(binding: ModuleType) -> None:
    """Start NVML again after other code in the process shut it down."""
    try:
        binding.nvmlInit()
    except Exception:
        pass  # the next query fails, too, and backs off


def code_of(binding: ModuleType, error: Exception) -> int:
    """Return NVML's code behind a binding's exception; 13 for its mismatch error, else -1."""
    if isinstance(error, getattr(binding, "NVMLError", ())):
        return int(getattr(error, "value", -1))
    if isinstance(error, getattr(binding, "NVMLLibraryMismatchError", ())):
        return 13  # raised where a symbol is missing; no subclass of NVMLError
    return -1


def _problem(reason: str, cure: str) -> Unavailable:
    return {"source": "NVML", "reason": reason, "cure": cure}


def _after_fork() -> None:
    global _lock, _starting_since
    _starting_since = None
    _lock = threading.Lock()  # the parent's thread may hold the old one for ever


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# The values that are missing when a call has no answer.
SOURCES = {
    "nvmlInit": "NVML",
    "nvmlDeviceGetUtilizationRates": "utilization",
    "nvmlDeviceGetSamples": "utilization buffer",
    "nvmlDeviceGetMemoryInfo": "memory",
    "nvmlDeviceGetPowerUsage": "power",
    "nvmlDeviceGetEnforcedPowerLimit": "power limit",
    "nvmlDeviceGetTemperature": "temperature",
    "nvmlDeviceGetTemperatureV": "temperature",
    "nvmlDeviceGetClockInfo": "SM clock",
    "nvmlDeviceGetMaxClockInfo": "maximum SM clock",
    "nvmlDeviceGetCurrentClocksEventReasons": "clock event reasons",
    "nvmlDeviceGetFieldValues": "counters (PCIe, throttling, energy, NVLink)",
    "nvmlDeviceGetComputeRunningProcesses": "memory by process",
    "nvmlDeviceGetProcessUtilization": "utilization by process",
    "nvmlDeviceGetCurrPcieLinkGeneration": "PCIe generation",
    "nvmlDeviceGetMaxPcieLinkGeneration": "maximum PCIe generation",
    "nvmlDeviceGetCurrPcieLinkWidth": "PCIe width",
    "nvmlDeviceGetMaxPcieLinkWidth": "maximum PCIe width",
    "nvmlDeviceGetTotalEccErrors": "ECC errors",
    **dict.fromkeys(("nvmlDeviceRegisterEvents", "nvmlEventSetCreate", "nvmlEventSetWait_v2"), "Xid errors"),
    **dict.fromkeys(
        ("nvmlGpmQueryDeviceSupport", "nvmlGpmSampleGet", "nvmlGpmMigSampleGet", "nvmlGpmMetricsGet"),
        "GPM (SM active, occupancy, tensor cores)",
    ),
    "psutil": "host",
}

OLD_BINDING = "the installed nvidia-ml-py does not know this call"
UNIFIED = "the GPU shares the machine's memory: the driver counts that of all programs", ""
OLD_BINDING_CURE = "pip install --upgrade nvidia-ml-py"
LOST_CURE = "see `dmesg | grep -i xid`; a reset or reboot brings a lost GPU back"

NO_GPU = ("no NVIDIA GPU in this machine", "")
NO_GPM = ("this GPU has no GPM, or its driver does not report it: GPUs from Hopper on have one", "")
IMPOSSIBLE = ("the driver's answer is impossible, and left out", "")
HOST_PIDS = (
    "the driver reports the host's process ids, which are not this container's",
    "start the container with `--pid=host` to separate this process's memory from that of others",
)
NOT_LISTED = (
    "the driver does not list this process: a sandbox or MPS stands between them",
    "run outside of it to separate this process's memory from that of others",
)

_CODES: dict[int, tuple[str, str]] = {
    1: ("NVML was shut down by other code in this process", ""),
    2: ("the driver rejects this request", "update the driver"),
    3: ("not supported by this GPU or its driver", ""),
    4: ("no permission", "ask an administrator, or run as root"),
    8: ("a power cable is missing", "attach the GPU's external power cables"),
    9: ("the NVIDIA driver is not loaded", "load it with `modprobe nvidia`, or install the driver"),
    10: ("the driver did not answer in time", ""),
    11: ("the driver has an interrupt problem", "see `dmesg`"),
    12: (
        "no NVIDIA driver library (libnvidia-ml.so.1)",
        "install the NVIDIA driver; in a container pass `--gpus all` and the `utility` capability",
    ),
    13: ("the installed driver is too old for this call", "update the driver"),
    15: ("the GPU is lost: it fell off the bus or is not reachable", LOST_CURE),
    16: ("the GPU requires a reset", "`nvidia-smi --gpu-reset`, or reboot"),
    17: ("the operating system denied the request", "see `dmesg`"),
    18: (
        "the NVIDIA driver was updated and its kernel module is still the old one",
        "reboot, or reload the nvidia kernel modules",
    ),
    20: ("out of memory", ""),
    25: ("driver and nvidia-ml-py disagree on this call's version", OLD_BINDING_CURE),
    28: ("the GPU is no longer there", LOST_CURE),
    999: ("the driver reports an unknown error", "see `dmesg`"),
}


def explain(code: int, error: Exception | None = None) -> tuple[str, str]:
    """Return (reason, cure) of an NVML return code."""
    if code in _CODES:
        return _CODES[code]
    return f"{type(error).__name__}: {error}" if code < 0 else f"NVML error {code}", ""
