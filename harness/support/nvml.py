"""Our stand-in for the NVIDIA driver library: building it, writing its scenarios, loading it.

    scenario = Scenario()
    gpu = scenario.gpu("h100")                      # a healthy H100 under load
    gpu.curve("utilization", [(0, 90), (5, 10)])    # 90 % until second 5, then 10 %
    scenario.call("nvmlDeviceGetPowerUsage", code=3)  # NVML_ERROR_NOT_SUPPORTED

    subprocess.run([...], env=environment(scenario, tmp_path))   # closest to production
    with loaded(scenario, tmp_path) as library:                  # in this process
        library.set_time(3.0)

The real `nvidia-ml-py` runs over it. Without a C compiler, `build_standin` skips the test.
"""

import contextlib
import ctypes
import hashlib
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "nvml_standin"
GIB = 1 << 30
NOBODY = (1 << 22) + 1  # a process id above Linux' highest; lower ones may be ours, of a run's thousands of children
Points = float | Sequence[tuple[float, float]]
_numbers = itertools.count()

# What the profiles share: a whole GPU at work. Watts, clocks and counters are per model below.
_COMMON: dict[str, Points] = {
    "utilization": 95,
    "memory_utilization": 40,
    "memory_reserved": 600 << 20,
    "memory_used": 20 * GIB,
    "temperature:0": 60,
    "temperature_threshold:1": 87,
    "event_reasons": 0,
    "persistence": 1,
    "compute_mode": 0,
    "performance_state": 0,
    "power_management": 1,
    "ecc_mode": 1,
    "ecc_volatile:0": 0,
    "ecc_volatile:1": 0,
    "pcie_replays": 0,
    "encoder": 0,
    "decoder": 0,
    "bar1_total": 128 * GIB,
    "minor": 0,
    "pcie_width": 16,
    "pcie_width_max": 16,
}

_GPM = {1: 95, 2: 80, 3: 40, 5: 30, 7: 30, 10: 50, 11: 0, 12: 20, 13: 1, 20: 2000, 21: 4000, 60: 100, 61: 200}


def _board(
    memory_gib: int,
    capability: int,
    architecture: int,
    cores: int,
    watts: tuple[int, int],
    clocks: tuple[tuple[int, int], tuple[int, int]],
    pcie: int,
    **more: Points,
) -> dict[str, Points]:
    """A GPU's quantities: watts drawn and allowed, clocks of its cores and memory now and at most, its bus."""
    quantities = {"memory_total": memory_gib * GIB, "compute_capability": capability, "architecture": architecture}
    quantities |= {"cores": cores, "power_mw": 1000 * watts[0], "gpm_supported": 0}
    quantities |= dict.fromkeys(("power_limit_mw", "power_default_mw", "power_max_mw"), 1000 * watts[1])
    for name, (core, memory) in zip(("clock", "clock_max"), clocks, strict=True):
        quantities |= {f"{name}:0": core, f"{name}:1": core, f"{name}:2": memory}
    return quantities | {"pcie_generation": pcie, "pcie_generation_max": pcie} | more


_PROFILES: dict[str, tuple[str, dict[str, Points]]] = {
    "h100": (
        "NVIDIA H100 80GB HBM3",
        _board(80, 90, 9, 16896, (500, 700), ((1980, 2619), (1980, 2619)), 5)
        | {"gpm_supported": 1, **{f"gpm:{metric}": value for metric, value in _GPM.items()}},
    ),
    "a100": ("NVIDIA A100-SXM4-40GB", _board(40, 80, 7, 6912, (300, 400), ((1410, 1215), (1410, 1215)), 4)),
    "t4": ("Tesla T4", _board(15, 75, 6, 2560, (60, 70), ((1350, 5000), (1590, 5001)), 3, memory_used=4 * GIB)),
}

# Cumulative counters: field id -> growth a second. PCIe bytes wrap at 2^32 on older GPUs.
_COUNTERS: dict[int, tuple[float, dict[str, float]]] = {
    197: (2e9, {"wrap": 2**32}),
    198: (4e9, {"wrap": 2**32}),
    83: (500_000, {}),  # mJ: 500 W
    74: (0, {}),
    76: (0, {}),
    269: (0, {}),
    270: (0, {}),
    271: (0, {}),
}


@dataclass
class Gpu:
    """One GPU (or MIG device) of a scenario; a curve it lacks answers "not supported"."""

    index: int
    texts: dict[str, str]
    curves: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def curve(self, name: str, points: Points, kind: str = "hold", **options: float) -> "Gpu":
        """Set a quantity: a number, or (second, value) points.

        kind: "hold" (until the next point), "line" (interpolated), "rate" (a counter growing by
        the value a second), "list" (the driver's own samples). options: period, wrap, start, type.
        """
        pairs = [(0, points)] if isinstance(points, (int, float)) else points
        words = " ".join(f"{key}={value}" for key, value in options.items())
        numbers = " ".join(f"{float(t)!r} {float(v)!r}" for t, v in pairs)
        self.curves[name] = f"curve {name} {kind} {words} : {numbers}"
        return self

    def counter(self, field_id: int, rate: Points, scope: int = 0, **options: float) -> "Gpu":
        """A cumulative field value growing by `rate` a second (a number or held points)."""
        return self.curve(f"field:{field_id}:{scope}", rate, "rate", **options)

    def without(self, *names: str) -> "Gpu":
        """Take quantities away ("name*": by prefix): those calls answer "not supported"."""
        for name in names:
            for known in list(self.curves):
                if known == name or (name.endswith("*") and known.startswith(name[:-1])):
                    del self.curves[known]
        return self

    def process(self, pid: int | str, used_bytes: int | None, kind: str = "compute", **options: float) -> "Gpu":
        """A process on this GPU; pid "self" is whoever asks, bytes None is "not available".

        options: from_, until (seconds), sm, mem (percent), gi, ci.
        """
        words = " ".join(f"{key.rstrip('_')}={value}" for key, value in options.items())
        size = "na" if used_bytes is None else int(used_bytes)
        self.lines.append(f"process {kind} {pid} {size} {words}")
        return self

    def xid(self, t: float, code: int) -> "Gpu":
        """A critical error `code` at second `t`."""
        self.lines.append(f"xid {t} {code}")
        return self


class Scenario:
    """What the stand-in will answer, of GPUs of these profiles and more. Times are seconds since it was loaded.

    options: driver, nvml, cuda (13000 = 13.0), time ("wall" | "manual"), start_us (epoch
    microseconds of second 0), samples_clock ("epoch" | "boot"), samples_period_ms,
    samples_capacity, samples_idle ("kept" | "dry"), gpm_refresh_ms, forked_calls ("abort").
    """

    def __init__(self, *profiles: str, **options: str | float) -> None:
        self.options: dict[str, str | float] = dict(options)
        self.gpus: list[Gpu] = []
        self.calls: list[str] = []
        self.absent: set[str] = set()
        for profile in profiles:
            self.gpu(profile)

    def gpu(self, profile: str = "h100", **texts: str) -> Gpu:
        """Add a GPU: "h100" (GPM), "a100", "t4" or "bare" (a name and nothing else)."""
        index = sum(" mig " not in f" {' '.join(gpu.lines)} " for gpu in self.gpus)
        name, curves = _PROFILES.get(profile, ("NVIDIA GPU", {}))
        begin = 0x1A2B3C4D + 0x11111111 * index
        gpu = Gpu(
            index,
            {
                "name": name,
                "uuid": f"GPU-{begin:08x}-1a2b-3c4d-5e6f-{profile.encode().hex():0>12.12}",
                "pci": f"00000000:{0x17 + index:02X}:00.0",
                **texts,
            },
        )
        if profile != "bare":
            for quantity, value in {**_COMMON, **curves}.items():
                gpu.curve(quantity, value)
            for field_id, (rate, options) in _COUNTERS.items():
                gpu.counter(field_id, rate, **({} if profile == "h100" else options))
            gpu.curve("field:82:0", 65, type=1)  # memory temperature
        if profile == "h100":  # NVLink, all links together, KiB a second
            gpu.counter(138, 200_000, scope=0xFFFFFFFF).counter(139, 100_000, scope=0xFFFFFFFF)
        self.gpus.append(gpu)
        return gpu

    def mig(self, parent: Gpu, gi: int = 1, ci: int = 0, **texts: str) -> Gpu:
        """A MIG device of `parent`, whose own utilization then is not supported."""
        parent.curve("mig_mode", 1).without("utilization", "memory_utilization")
        gpu = Gpu(
            100 + len(self.gpus),
            {
                "name": f"{parent.texts['name']} MIG 1g.10gb",
                "uuid": f"MIG-{0x5E6F7081 + len(self.gpus):08x}-aaaa-bbbb-cccc-000000000000",
                **texts,
            },
        )
        gpu.curve("memory_total", 10 * GIB).curve("memory_used", 2 * GIB)
        gpu.lines.append(f"mig {parent.index} {gi} {ci}")
        self.gpus.append(gpu)
        return gpu

    def call(
        self, symbol: str, *, gpu: int | None = None, code: int | None = None, latency_s: float = 0, **options: float
    ) -> "Scenario":
        """Script a call ("*": all; "field:<id>", "gpm:<id>": one value): its code, its delay.

        options: from_, until (seconds), after, times (calls), count (what count to report).
        """
        words = [f"call {symbol}"]
        if gpu is not None:
            words.append(f"gpu={gpu}")
        if code is not None:
            words.append(f"code={code}")
        if latency_s:
            words.append(f"latency_us={int(latency_s * 1e6)}")
        words += [f"{key.rstrip('_')}={value}" for key, value in options.items()]
        self.calls.append(" ".join(words))
        return self

    def without(self, *symbols: str) -> "Scenario":
        """The library of an old driver: these functions do not exist in it."""
        self.absent.update(symbols)
        return self

    def text(self) -> str:
        """The scenario file."""
        lines = [f"option {name} {value}" for name, value in self.options.items()]
        lines += self.calls
        for gpu in self.gpus:
            lines.append(f"gpu {gpu.index}")
            lines += [f"text {name} {value}" for name, value in gpu.texts.items()]
            lines += [*gpu.curves.values(), *gpu.lines]
        return "\n".join(lines) + "\n"

    def write(self, path: str | os.PathLike) -> Path:
        """Write the scenario file."""
        Path(path).write_text(self.text())
        return Path(path)


@cache
def _compiled() -> tuple[str, tempfile.TemporaryDirectory[str]]:
    """The compiler, and a folder with the stand-in's object files; skips without a compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        import pytest

        pytest.skip("no C compiler to build the stand-in libnvidia-ml.so.1 with")
    folder = tempfile.TemporaryDirectory()
    sources = map(str, sorted(SOURCES.glob("*.c")))
    subprocess.run([compiler, "-O2", "-fPIC", "-fvisibility=hidden", "-c", *sources], cwd=folder.name, check=True)
    return compiler, folder


def build_standin(folder: str | os.PathLike, absent: Sequence[str] = (), named: bool = True) -> Path:
    """Link libnvidia-ml.so.1 (without the `absent` symbols) below `folder`, once; its path.

    A library that bears its name, as the driver's does, is found by it for the rest of the process
    that loaded it once, in tests to come, too; `named=False` makes one that is not.
    """
    compiler, objects = _compiled()
    name = (
        "nvml" if not absent else "nvml-without-" + hashlib.sha256(" ".join(sorted(absent)).encode()).hexdigest()[:12]
    )
    target = Path(folder) / (name if named else f"{name}-unnamed") / "libnvidia-ml.so.1"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    hidden = "".join(f"{symbol};" for symbol in sorted(absent))
    exports = target.parent / "exports.map"
    exports.write_text("{ global: nvml*; standin*; local: " + hidden + " *; };\n")
    built = target.with_name(f"built-{os.getpid()}.so")
    subprocess.run(
        [
            compiler,
            "-shared",
            "-Wl,-Bsymbolic",
            *([f"-Wl,-soname,{target.name}"] if named else []),
            f"-Wl,--version-script={exports}",
            "-o",
            str(built),
            *map(str, sorted(Path(objects.name).glob("*.o"))),
            "-lm",
            "-lpthread",
        ],
        check=True,
    )
    built.replace(target)
    return target


def environment(scenario: Scenario, folder: str | os.PathLike, **extra: str) -> dict[str, str]:
    """os.environ of a subprocess in which the stand-in is the NVIDIA driver library."""
    library = build_standin(folder, sorted(scenario.absent))
    file = scenario.write(Path(folder) / f"scenario-{os.getpid()}-{next(_numbers)}.txt")
    paths = [str(library.parent), os.environ.get("LD_LIBRARY_PATH", "")]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, paths)),
        "NVML_STANDIN_SCENARIO": str(file),
        **extra,
    }


class Library:
    """The stand-in loaded into this process."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = path
        self._folder = folder
        self.lib = ctypes.CDLL(str(path))
        self.lib.standin_set_time.argtypes = [ctypes.c_double]
        self.lib.standin_time.restype = ctypes.c_double
        self.lib.standin_start_us.restype = ctypes.c_int64
        for name in ("standin_calls", "standin_total_calls", "standin_gpm_samples"):
            getattr(self.lib, name).restype = ctypes.c_long

    def play(self, scenario: Scenario) -> None:
        """Start a scenario from its second 0."""
        file = scenario.write(self._folder / f"scenario-{os.getpid()}-{next(_numbers)}.txt")
        self.lib.standin_load(str(file).encode())

    def set_time(self, seconds: float) -> None:
        """Move to a scenario second and stand still there."""
        self.lib.standin_set_time(seconds)

    @property
    def time(self) -> float:
        """The scenario second it is now."""
        return self.lib.standin_time()

    @property
    def start_us(self) -> int:
        """Epoch microseconds of scenario second 0."""
        return self.lib.standin_start_us()

    def calls(self, symbol: str | None = None) -> int:
        """How often a symbol (None: any) was called since the scenario began."""
        if symbol is None:
            return self.lib.standin_total_calls()
        return self.lib.standin_calls(symbol.encode())

    @property
    def gpm_samples(self) -> int:
        """GPM samples allocated and not freed."""
        return self.lib.standin_gpm_samples()


@contextlib.contextmanager
def loaded(scenario: Scenario, folder: str | os.PathLike) -> Iterator[Library]:
    """The stand-in as this process's NVIDIA library, under the real binding."""
    import pynvml

    library = Library(build_standin(folder, sorted(scenario.absent), named=False), Path(folder))
    before = (pynvml.nvmlLib, pynvml._nvmlLib_refcount)
    library.play(scenario)
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib, pynvml._nvmlLib_refcount = library.lib, 0
    try:
        yield library
    finally:
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml.nvmlLib, pynvml._nvmlLib_refcount = before
