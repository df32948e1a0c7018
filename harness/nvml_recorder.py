"""Record what a real GPU answers, as a scenario that the stand-in replays.

    python harness/nvml_recorder.py --seconds 60 --output h100-training.nvml

    scenario = Recording("h100-training.nvml")      # then as any Scenario
    with loaded(scenario, tmp_path): ...

Every value is kept with the time at which it was read, every error with the time it was given,
every call's median latency. Names, UUIDs and process ids are kept; `--anonymous` replaces them.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "support"))

from nvml import NOBODY, Gpu, Scenario

# symbol -> the curve it answers
GAUGES = {
    "nvmlDeviceGetPowerUsage": "power_mw",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit_mw",
    "nvmlDeviceGetPowerManagementDefaultLimit": "power_default_mw",
    "nvmlDeviceGetPersistenceMode": "persistence",
    "nvmlDeviceGetComputeMode": "compute_mode",
    "nvmlDeviceGetPerformanceState": "performance_state",
    "nvmlDeviceGetNumGpuCores": "cores",
    "nvmlDeviceGetCurrPcieLinkGeneration": "pcie_generation",
    "nvmlDeviceGetMaxPcieLinkGeneration": "pcie_generation_max",
    "nvmlDeviceGetCurrPcieLinkWidth": "pcie_width",
    "nvmlDeviceGetMaxPcieLinkWidth": "pcie_width_max",
    "nvmlDeviceGetCurrentClocksEventReasons": "event_reasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "event_reasons",
    "nvmlDeviceGetVirtualizationMode": "virtualization",
}
# (symbol, its arguments) -> the curve
NUMBERED = {
    ("nvmlDeviceGetTemperatureV", (0,)): "temperature:0",
    ("nvmlDeviceGetTemperature", (0,)): "temperature:0",
    ("nvmlDeviceGetTemperatureThreshold", (1,)): "temperature_threshold:1",
    **{("nvmlDeviceGetClockInfo", (i,)): f"clock:{i}" for i in range(3)},
    **{("nvmlDeviceGetMaxClockInfo", (i,)): f"clock_max:{i}" for i in range(3)},
    ("nvmlDeviceGetTotalEccErrors", (0, 0)): "ecc_volatile:0",
    ("nvmlDeviceGetTotalEccErrors", (1, 0)): "ecc_volatile:1",
}
FIELDS = (197, 198, 83, 74, 76, 269, 270, 271, 82, 186, (138, 0xFFFFFFFF), (139, 0xFFFFFFFF))
INSTANTANEOUS_FIELDS = (82, 186)
GPM_METRICS = (1, 2, 3, 5, 7, 10, 11, 12, 13, 20, 21, 60, 61)
MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}


class Recording(Scenario):
    """A recorded scenario file, to be played like a written one."""

    def __init__(self, path: str | Path, **options: str | float) -> None:
        super().__init__(**options)
        lines = Path(path).read_text().splitlines()
        self._lines = [line for line in lines if not line.startswith("# absent ")]
        self.absent = {line.split()[2] for line in lines if line.startswith("# absent ")}

    def text(self) -> str:
        """The scenario file; options given here come first and win."""
        return super().text() + "\n".join(self._lines) + "\n"


class _Answers:
    """What one GPU has answered so far."""

    def __init__(self, gpu: Gpu, handle: Any) -> None:
        self.gpu = gpu
        self.handle = handle
        self.points: dict[str, list[tuple[float, float]]] = {}
        self.types: dict[str, int] = {}
        self.codes: dict[str, list[tuple[float, int]]] = {}
        self.last_us = [0, 0]
        self.processes: dict[tuple[str, int, int | None], list[float]] = {}
        self.gpm: tuple[Any, Any] | None = None
        self.gpm_t: float | None = None


class Recorder:
    """Asks a running NVML the same questions again and again; `scenario()` is what it learnt."""

    def __init__(self, binding: Any, now: Callable[[], float], start_s: float, own_pid: int) -> None:
        """now: seconds since start_s, which is in seconds since the epoch."""
        self._nvml = binding
        self._start_s = start_s
        self._now = now
        self._own_pid = own_pid
        self._absent: set[str] = set()
        self._took: dict[str, list[float]] = {}
        self._scenario = Scenario()
        for name, symbol in (
            ("driver", "nvmlSystemGetDriverVersion"),
            ("nvml", "nvmlSystemGetNVMLVersion"),
            ("cuda", "nvmlSystemGetCudaDriverVersion_v2"),
        ):
            self._scenario.options[name] = getattr(binding, symbol)()
        self._gpus: list[_Answers] = []
        for index in range(binding.nvmlDeviceGetCount()):
            self._add(index)

    def _add(self, index: int) -> None:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        gpu = self._scenario.gpu(
            "bare",
            name=nvml.nvmlDeviceGetName(handle),
            uuid=nvml.nvmlDeviceGetUUID(handle),
            pci=nvml.nvmlDeviceGetPciInfo(handle).busId,
        )
        self._gpus.append(_Answers(gpu, handle))
        try:
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
            gpu.curve("compute_capability", 10 * major + minor)
            gpu.curve("gpm_supported", nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
        except nvml.NVMLError:
            pass

    def tick(self) -> None:
        """Ask everything once."""
        for answers in self._gpus:
            self._gauges(answers)
            self._batches(answers)

    def _ask(self, answers: _Answers, symbol: str, *args: Any, exported: str = "") -> Any:
        """An answer, or None; its code and latency are kept under the driver's own symbol."""
        name = exported or symbol
        function = getattr(self._nvml, symbol, None)
        if function is None or name in self._absent:
            return None
        code, answer, began = 0, None, time.perf_counter()
        try:
            answer = function(answers.handle, *args)
        except self._nvml.NVMLError as error:
            code = error.value
        except self._nvml.NVMLLibraryMismatchError:
            code = 13
        self._took.setdefault(name, []).append(time.perf_counter() - began)
        if code == 13:
            self._absent.add(name)
            return None
        history = answers.codes.setdefault(name, [])
        if not history or history[-1][1] != code:
            history.append((self._now(), code))
        return answer

    def _keep(self, answers: _Answers, curve: str, value: float, t: float | None = None) -> None:
        points = answers.points.setdefault(curve, [])
        if not points or points[-1][1] != value or curve.startswith(("samples", "field")):
            points.append((self._now() if t is None else t, float(value)))

    def _gauges(self, answers: _Answers) -> None:
        for symbol, curve in GAUGES.items():
            value = self._ask(answers, symbol)
            if value is not None:
                self._keep(answers, curve, value)
        for (symbol, args), curve in NUMBERED.items():
            value = self._ask(answers, symbol, *args)
            if value is not None:
                self._keep(answers, curve, value)
        rates = self._ask(answers, "nvmlDeviceGetUtilizationRates")
        if rates is not None:
            self._keep(answers, "utilization", rates.gpu)
            self._keep(answers, "memory_utilization", rates.memory)
        memory = self._ask(
            answers, "nvmlDeviceGetMemoryInfo", self._nvml.nvmlMemory_v2, exported="nvmlDeviceGetMemoryInfo_v2"
        ) or self._ask(answers, "nvmlDeviceGetMemoryInfo")
        if memory is not None:
            self._keep(answers, "memory_total", memory.total)
            self._keep(answers, "memory_used", memory.used)
            self._keep(answers, "memory_reserved", getattr(memory, "reserved", 0))

    def _batches(self, answers: _Answers) -> None:
        values = self._ask(answers, "nvmlDeviceGetFieldValues", list(FIELDS))
        for value in values if values is not None else ():
            if value.nvmlReturn == 0:
                curve = f"field:{value.fieldId}:{value.scopeId}"
                answers.types[curve] = value.valueType
                self._keep(answers, curve, getattr(value.value, MEMBERS[value.valueType]))
        for column, kind in enumerate((1, 2)):
            answer = self._ask(answers, "nvmlDeviceGetSamples", kind, answers.last_us[column])
            for sample in answer[1] if answer else ():
                answers.last_us[column] = max(answers.last_us[column], sample.timeStamp)
                t = self._wall_s(sample.timeStamp) - self._start_s
                self._keep(answers, f"samples:{kind}", sample.sampleValue.uiVal, t)
        for kind in ("Compute", "MPSCompute", "Graphics"):
            listed = self._ask(
                answers, f"nvmlDeviceGet{kind}RunningProcesses", exported=f"nvmlDeviceGet{kind}RunningProcesses_v3"
            )
            word = {"MPSCompute": "mps"}.get(kind, kind.lower())
            for process in listed or ():
                key = (word, process.pid, process.usedGpuMemory)
                answers.processes.setdefault(key, [self._now(), 0.0])[1] = self._now()
        self._gpm(answers)

    def _wall_s(self, stamp_us: int) -> float:
        boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        if abs(stamp_us / 1e6 - time.time()) > 86_400:
            self._scenario.options["samples_clock"] = "boot"
            return stamp_us / 1e6 + time.time() - boot_s
        return stamp_us / 1e6

    def _gpm(self, answers: _Answers) -> None:
        if answers.gpu.curves.get("gpm_supported", "").endswith(" 0.0") or ("gpm_supported" not in answers.gpu.curves):
            return
        nvml = self._nvml
        if answers.gpm is None:
            answers.gpm = (nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc())
        older, newer = answers.gpm
        now = self._now()
        if answers.gpm_t is not None and now - answers.gpm_t < 0.12:
            return
        if self._ask(answers, "nvmlGpmSampleGet", newer) is None:
            return
        if answers.gpm_t is not None:
            request = nvml.c_nvmlGpmMetricsGet_t()
            request.version = nvml.NVML_GPM_METRICS_GET_VERSION
            request.sample1, request.sample2 = older, newer
            request.numMetrics = len(GPM_METRICS)
            for i, metric in enumerate(GPM_METRICS):
                request.metrics[i].metricId = metric
            nvml.nvmlGpmMetricsGet(request)
            for i, metric in enumerate(GPM_METRICS):
                if request.metrics[i].nvmlReturn == 0:
                    value = request.metrics[i].value
                    self._keep(answers, f"gpm:{metric}", value, answers.gpm_t)
        answers.gpm_t, answers.gpm = now, (newer, older)

    def scenario(self, latency: bool = True, anonymous: bool = False) -> Scenario:
        """What was learnt, to be written to a file."""
        scenario = self._scenario
        scenario.absent |= self._absent
        scenario.calls.clear()
        for index, answers in enumerate(self._gpus):
            gpu = answers.gpu
            if anonymous:
                gpu.texts["uuid"] = f"GPU-{index:08x}-0000-0000-0000-000000000000"
            for curve, points in answers.points.items():
                self._curve(gpu, curve, points, answers.types.get(curve, 3))
            for symbol, history in answers.codes.items():
                ends = [t for t, _ in history[1:]] + [1e9]
                for (t, code), end in zip(history, ends, strict=True):
                    first = -1e9 if t == history[0][0] else t
                    if code != 0:
                        scenario.call(symbol, gpu=gpu.index, code=code, from_=first, until=end)
            gpu.lines.clear()
            for (kind, pid, used), (first, last) in answers.processes.items():
                who = "self" if pid == self._own_pid else (NOBODY + pid % 7 if anonymous else pid)
                gpu.process(who, used, kind, from_=first, until=last + 1.5)
        if latency:
            for symbol, took in self._took.items():
                scenario.call(symbol, latency_s=statistics.median(took))
        return scenario

    def _curve(self, gpu: Gpu, curve: str, points: list[tuple[float, float]], kind: int) -> None:
        if curve.startswith("samples"):
            gpu.curve(curve, sorted(points), "list")
        elif curve.startswith("field") and int(curve.split(":")[1]) not in INSTANTANEOUS_FIELDS:
            steady: list[tuple[float, float]] = []
            for t, value in points:  # a counter that wrapped or began anew jumps, it does not slope
                if steady and value < steady[-1][1]:
                    steady.append((t - 1e-6, steady[-1][1]))
                steady.append((t, value))
            gpu.curve(curve, steady, "line", type=kind)
        elif curve.startswith("field"):
            gpu.curve(curve, points, type=kind)
        else:
            gpu.curve(curve, points)


def main() -> None:
    """Record this machine's GPUs; SIGTERM ends it early, and what was recorded is written."""
    import os
    import signal

    import pynvml

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--hz", type=float, default=10)
    parser.add_argument("--anonymous", action="store_true", help="replace UUIDs and process ids")
    arguments = parser.parse_args()
    pynvml.nvmlInit()
    began = time.time()
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    recorder = Recorder(pynvml, lambda: time.time() - began, began, os.getpid())
    print("recording", flush=True)
    while time.time() - began < arguments.seconds and not ended:
        due = time.time() + 1 / arguments.hz
        recorder.tick()
        time.sleep(max(0.0, due - time.time()))
    scenario = recorder.scenario(anonymous=arguments.anonymous)
    absent = "".join(f"# absent {symbol}\n" for symbol in sorted(scenario.absent))
    arguments.output.write_text(absent + scenario.text())


if __name__ == "__main__":
    main()
