"""Profiler data: the trace that a recording was made of, or its profiler windows.

`Traced` holds the windows in bounded memory: GPU time by category, and kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import cast

import numpy as np

from gpu_util_callback.diagnosis.thresholds import A_FEW, Constant
from gpu_util_callback.recording.fold import Fold
from gpu_util_callback.recording.manifest_facts import Facts, SourceFacts, TracedFacts, TracedSums
from gpu_util_callback.recording.schema import CATEGORIES

LEAST_STEPS = A_FEW  # of a trace or a window; fewer are a fragment, and their mean represents no others


def base_of(source: SourceFacts) -> str:
    """Return the name of the base of shares: a step, or the trace as one."""
    return "step" if source["steps_judged"] else "trace"


def shows_idle_host(source: SourceFacts) -> bool:
    """Return whether a trace shows what the host did while its GPUs idled."""
    return bool(source["gpus"] and source["idle_judged"] and source["host_traced"])


MAX_KERNELS = 4096
# Windows kept separately; of more, neighbours are added up. The recorder takes a hundred in a run
# of ten thousand times the first one's age.
MAX_WINDOWS = 256


def explains_idle(facts: Facts) -> bool:
    """Return whether a recording shows why its GPUs idled: a trace with too little work does not."""
    source = facts.get("source")
    return not source or source["idle_judged"]


# Columns of a window: the number of its steps, and what is summed over them.
_SUMS = ("steps", "duration_ns", "kernels", "kernel_busy_ns", "any_busy_ns", *(f"{name}_ns" for name in CATEGORIES))


@dataclass(frozen=True, slots=True)
class TracedGpu:
    """Time of one GPU in all windows: nanoseconds by category over `steps` steps."""

    steps: int
    duration_ns: int
    kernels: int
    kernel_busy_ns: int
    ns: dict[str, int]

    def share(self, *categories: str) -> float:
        """Return the share of the traced time in these categories, 0-1."""
        return sum(self.ns.get(name, 0) for name in categories) / max(1, self.duration_ns)

    def per_step_ms(self, category: str) -> float:
        return self.ns.get(category, 0) / max(1, self.steps) / 1e6


UNLIKE = Constant(0.15, "of the run: windows that show this much more computing than NVML do not represent it")


def extrapolated(
    traced_gpu: TracedGpu | None, times: Mapping[str, float], wall_s: float | None, active_pct: float | None
) -> dict[str, float]:
    """Return the estimated seconds of a run's steps by category of a GPU; {} if its windows do not represent them.

    Idling for input never exceeds the training thread's wait for it, in whatever steps the windows lie; windows in
    steps far busier than the run, as measured by NVML, are not extrapolated.

    Args:
        traced_gpu: sums over the GPU's windows; None = no window.
        times: the training thread's seconds by account.
        wall_s: duration of the run; None = unknown.
        active_pct: NVML's mean utilization; None = not sampled.
    """
    if not wall_s or traced_gpu is None or not traced_gpu.duration_ns:
        return {}
    waited_s = times.get("input_wait")
    in_steps_s = min(wall_s, float(times.get("step") or 0) + float(waited_s or 0))
    # NVML counts every kernel, however few cores it takes, and copies: it never shows less than the kernels do.
    computing = in_steps_s / wall_s * (traced_gpu.share("kernel") + traced_gpu.share("collective"))
    if active_pct is not None and computing > active_pct / 100 + UNLIKE:
        return {}
    seconds = {name: in_steps_s * traced_gpu.share(name) for name in CATEGORIES}
    other_s = in_steps_s - seconds["idle_input"]
    # The windows met more waiting than the run has: idling is capped, the rest scaled up.
    if waited_s is not None and seconds["idle_input"] > waited_s and other_s > 0:
        scale = (in_steps_s - waited_s) / other_s
        seconds = {name: waited_s if name == "idle_input" else scale * part for name, part in seconds.items()}
    return seconds


class Windows:
    """Windows of one GPU, in the order of the steps: `windows["kernel_ns"]` has shape `(n,)`.

    Columns: "first_step" and "end_step" of each, the number of its "steps", and sums over them:
    "duration_ns", "kernels", "kernel_busy_ns", "any_busy_ns" and the time of each category.
    """

    def __init__(self, columns: Mapping[str, np.ndarray]):
        self._columns = columns

    def __len__(self) -> int:
        return len(self["steps"])

    def __getitem__(self, column: str) -> np.ndarray:
        return self._columns[column]

    def spent_ns(self, *categories: str) -> np.ndarray:
        return sum((self[f"{name}_ns"] for name in categories), np.zeros(len(self), np.int64))

    def inside(self, first: float, end: float) -> Windows:
        """Return the windows whose middle lies in the steps [first, end)."""
        middle = (self["first_step"] + self["end_step"]) / 2
        in_range = (middle >= first) & (middle < end)
        return Windows({name: values[in_range] for name, values in self._columns.items()})

    def edges(self, first: int, end: int) -> np.ndarray:
        """Divide the steps [first, end) among them, half-way between two: shape `(n + 1,)`.

        The recorder takes windows ever more rarely as a run grows: the later ones represent more
        steps.
        """
        between = (self["end_step"][:-1] + self["first_step"][1:]) / 2
        return np.maximum.accumulate(np.clip([first, *between, end], first, end))

    def total(self, weights: np.ndarray | int = 1) -> TracedGpu:
        """Return the sums over all windows, each with its weight."""
        steps, duration_ns, kernels, busy_ns, _, *ns = (round((weights * self[name]).sum()) for name in _SUMS)
        return TracedGpu(steps, duration_ns, kernels, busy_ns, dict(zip(CATEGORIES, ns, strict=True)))


@dataclass(slots=True)
class Kernel:
    """All runs of one kernel on one GPU in all windows."""

    name: str
    tensor_core: str
    count: int = 0
    total_ns: int = 0


class Traced:
    """Sums over the `traced_steps` and `kernels` tables."""

    kernels: dict[tuple[int, str], Kernel]
    _folds: dict[int, Fold]  # GPU -> its windows, of which neighbours may be joined

    def __init__(self) -> None:
        self.kernels = {}
        self._folds = {}
        self._windows: dict[int, Windows] = {}  # the same as columns, since the newest rows
        self._gpus: dict[int, TracedGpu] = {}

    def facts(self, steps: int) -> list[TracedFacts]:
        """Return the sums of each GPU, for a report of a run of so many steps."""
        return [
            {"gpu": index, "sums": _sums_facts(self.gpus[index]), "of_run": _sums_facts(self._run_sums(index, steps))}
            for index in sorted(self._folds)
        ]

    @property
    def gpus(self) -> dict[int, TracedGpu]:
        """Sums over all windows for each GPU; rows of the host alone are under -1."""
        if not self._gpus:
            self._gpus = {index: self.of(index).total() for index in self._folds}
        return self._gpus

    def of(self, index: int) -> Windows:
        """Return the windows of a traced GPU with at least one step; of very many, neighbours are added up."""
        if index not in self._windows:
            fold = self._folds[index]
            has_steps = fold.of("sum", "steps") > 0
            columns = {"first_step": fold.of("first", "first_step"), "end_step": fold.of("last", "end_step")}
            columns |= {name: fold.of("sum", name) for name in _SUMS}
            self._windows[index] = Windows({name: values[has_steps] for name, values in columns.items()})
        return self._windows[index]

    def for_all(self, index: int, steps: int) -> TracedGpu | None:
        """Return the windows of a GPU, each weighted by the steps of the run it represents."""
        return self._run_sums(index, steps) if index in self._folds else None

    def _run_sums(self, index: int, steps: int) -> TracedGpu:
        """Return the sums of a GPU's windows, each weighted by the steps that it represents."""
        windows = self.of(index)
        rows = np.diff(windows.edges(0, max(1, steps)))
        represented = rows / windows["steps"] if len(windows) > 1 and rows.any() else 1
        return windows.total(represented)

    def add_steps(self, table: Mapping[str, np.ndarray]) -> None:
        """Add new rows of `traced_steps` to their windows; rows of the host alone (gpu -1) are kept under -1."""
        if not len(table.get("step", ())):
            return
        self._gpus = {}
        self._windows.clear()
        for index in np.unique(table["gpu"]).tolist():
            of_gpu = table["gpu"] == index
            step = table["step"][of_gpu]
            # Unknown (-1) counts as 0.
            summed = [np.ones_like(step), *(np.maximum(table[name][of_gpu], 0) for name in _SUMS[1:])]
            self._folds.setdefault(index, Fold(MAX_WINDOWS)).add(
                np.maximum(table["window"][of_gpu], 0),
                first=(("first_step",), step[np.newaxis]),
                last=(("end_step",), step[np.newaxis] + 1),
                sum=(_SUMS, np.stack(summed)),
            )

    def add_kernels(self, table: Mapping[str, np.ndarray]) -> None:
        """Add new rows of `kernels` by GPU and name.

        Beyond `MAX_KERNELS` names a GPU's further kernels share "others".
        """
        for i in range(len(table["name"])):
            key = int(table["gpu"][i]), str(table["name"][i])
            if key not in self.kernels and len(self.kernels) >= MAX_KERNELS:
                key = key[0], "others"
            kernel = self.kernels.setdefault(key, Kernel(key[1], str(table["tensor_core"][i])))
            kernel.count += max(0, int(table["count"][i]))
            kernel.total_ns += max(0, int(table["total_ns"][i]))


def _sums_facts(gpu: TracedGpu) -> TracedSums:
    """Return a GPU's sums as a report has them."""
    return cast(TracedSums, asdict(gpu))
