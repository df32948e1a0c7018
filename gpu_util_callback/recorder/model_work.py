"""Amount of training: samples per second, and the model's work as a share of the GPUs' peak."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpu_util_callback.backends.base import NotCounted
from gpu_util_callback.backends.input_watch import Adapter
from gpu_util_callback.backends.inputs import batch_shape
from gpu_util_callback.recording.manifest_facts import Unavailable
from gpu_util_callback.recording.segments import AnyTables, SampleBlock
from gpu_util_callback.recording.work import MFU_PCT, SAMPLES_PER_S, full_rates, mfu_of
from gpu_util_callback.steps.rows import seen_batch_size

POINT_S = 0.5  # of training behind each point of a lane, at least: a step alone scatters too much
CURE = "give flops_per_sample="
# Rows outside the steps that are part of the training: a new iterator and its first batch, and
# waiting for the last steps at the end.
TRAINING = ("input_wait", "step")


class BatchSizes:
    """Samples in each batch of a fit.

    Args:
        data_adapter: Keras' adapter of the fit's input; None without one.
        shapes: returns the signatures of the batches' shapes, with their ids.
    """

    def __init__(self, data_adapter: object | None, shapes: Callable[[], Mapping[float, int]]):
        self._shapes = shapes
        # the latter: elements of a sample, as a graph stamps elements a batch
        fixed, self._numbers_per_sample = batch_shape(data_adapter)
        self._usual_size = _count(data_adapter, "batch_size") or fixed
        partial = _count(data_adapter, "has_partial_batch")
        # of an epoch's last batch; None = as the others
        self._last_size = _count(data_adapter, "partial_batch_size") if partial else None
        self._batches_per_epoch = _count(data_adapter, "num_batches")  # in an epoch
        self._sizes: dict[int, float] = {}  # by the shape's id

    def of(self, steps: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the samples in each batch: float64[rows], NaN where not known.

        What the batch's shape says comes first, then what Keras' adapter says.

        Args:
            steps: rows of `steps`.
        """
        numbers = steps["shape_id"]
        for number in set(numbers.tolist()) - self._sizes.keys():
            self._sizes[number] = self._size(number)
        sizes = np.array([self._sizes[number] for number in numbers.tolist()], float)
        if self._usual_size is not None:
            usual = np.full(len(sizes), float(self._usual_size))
            if self._last_size is not None and self._batches_per_epoch:
                usual[(steps["step"] + 1) % self._batches_per_epoch == 0] = self._last_size
            sizes = np.where(np.isnan(sizes), usual, sizes)
        return sizes

    def _size(self, shape_id: int) -> float:
        """Return the samples of a batch with this shape's id; NaN if they are not known."""
        signature = next((of_shape for of_shape, at in self._shapes().items() if at == shape_id), 0.0)
        size = seen_batch_size(signature)
        if size is None and self._numbers_per_sample and signature > 0 and signature % self._numbers_per_sample == 0:
            size = int(signature) // self._numbers_per_sample  # stamped in the graph
        return float("nan") if size is None else float(size)


def _count(owner: object, name: str) -> int | None:
    """Return an attribute that is a positive whole number; None for anything else."""
    try:
        value = getattr(owner, name, None)
        return int(value) if value is not None and int(value) > 0 else None
    except Exception:  # Keras' adapters raise for what they do not know
        return None


class ModelWork:
    """Throughput of a recording, and its MFU. All methods run on the recorder's thread.

    Args:
        adapter: the framework's, which counts the work of a step.
        flops_given: FLOPs of a sample, where the user states them.

    Attributes:
        unavailable: what is not known, and why.
        sizes: of the batches of the newest fit.
        rates: samples per second at which each GPU would be at its peak, by "gpu0", ...
    """

    def __init__(self, adapter: Adapter, flops_given: float | None):
        self._adapter = adapter
        self._flops_given = flops_given
        self.sizes: BatchSizes | None = None
        self.rates: dict[str, float] = {}
        self.unavailable: list[Unavailable] = []
        self._work: dict[str, object] | None = None  # the manifest's `work`; None = not known
        if flops_given is not None:
            self._work = {"flops_per_sample": flops_given, "source": "given"}
        self._by_kind: dict[tuple[str, str], float] = {}  # FLOPs of a sample by (kind, type of the operands)
        self._settled = flops_given is not None  # the work is known, or will never be
        self._steps = 0
        self._size: int | None = None  # samples of the largest batch
        self._samples = self._training_ns = 0.0
        self._point_samples = self._point_ns = 0.0  # since the lanes' last point

    def add(self, tables: AnyTables) -> list[SampleBlock]:
        """Add rows of steps and phases; return new samples of the lanes (samples per second, MFU).

        Training time is that of the steps without compilations, and of the phases around them that belong to training.
        """
        phases, steps = tables.get("phases"), tables.get("steps")
        phases_ns = 0.0
        if phases is not None:
            rows = np.isin(phases["account"].astype(str), TRAINING)
            phases_ns = float(phases["self_ns"][rows].sum())
        self._training_ns += phases_ns
        self._point_ns += phases_ns
        if steps is None or not len(steps["step"]) or self.sizes is None:
            return []
        self._steps += len(steps["step"])
        sizes = self.sizes.of(steps)
        measured = sizes[np.isfinite(sizes)]
        if len(measured):
            self._size = int(measured.max())
        steps_ns = steps["duration_ns"] - np.maximum(steps["compile_ns"], 0)
        self._samples += float(sizes.sum())  # NaN for good where one is not known
        self._training_ns += float(steps_ns.sum())
        return self._points(sizes, steps_ns, steps["start_ns"] + steps["duration_ns"])

    def _points(self, sizes: np.ndarray, spent: np.ndarray, ends: np.ndarray) -> list[SampleBlock]:
        """Return samples of the lanes: means since the point before, at least `POINT_S` of training each.

        Args:
            sizes: float64[rows], samples in each batch; NaN = not known.
            spent: int64[rows] ns, training time.
            ends: int64[rows] ns.
        """
        points: list[tuple[int, float]] = []
        for size, took, end in zip(sizes.tolist(), spent.tolist(), ends.tolist(), strict=True):
            self._point_samples += size
            self._point_ns += took
            if self._point_ns >= POINT_S * 1e9:
                if self._point_samples == self._point_samples:  # known (not NaN)
                    points.append((end, 1e9 * self._point_samples / self._point_ns))
                self._point_samples = self._point_ns = 0.0
        if not points:
            return []
        times = np.array([when for when, _ in points], np.int64)
        rates = np.array([rate for _, rate in points])
        blocks = [SampleBlock("model", (SAMPLES_PER_S,), times, rates[:, None])]
        for gpu, peak_rate in self.rates.items():
            used = np.array([mfu_of(rate, peak_rate) or np.nan for rate in rates.tolist()])
            if np.isfinite(used).any():
                blocks.append(SampleBlock(f"{gpu}/model", (MFU_PCT,), times, used[:, None]))
        return blocks

    def facts(self, facts: Mapping[str, object], gpus: Sequence[Mapping[str, object]]) -> dict[str, Any]:
        """Return `gpus` with their peaks, `work` and `throughput` for the manifest; the latter two where known.

        Args:
            facts: of the manifest.
            gpus: the sampled ones.
        """
        if gpu_used(gpus):
            self._settle()  # a CPU has no peak to compare with, and counting costs up to 20 ms a fit
        result: dict[str, object] = {"gpus": list(gpus)}
        if self._samples == self._samples and self._samples and self._training_ns > 0:  # known (not NaN)
            result["throughput"] = {"samples": int(self._samples), "training_s": round(self._training_ns / 1e9, 6)}
        if self._work is not None and self._flops_given is None and _varies(facts):
            self._work, self.rates = None, {}
            self._miss("the inputs have more than one shape, and the work of each differs")
        if self._work is None:
            return result
        result["gpus"] = self._with_peaks(facts, gpus)
        result["work"] = self._work
        self.rates = {f"gpu{index}": rate for index, rate in full_rates(result).items()}
        return result

    def _settle(self) -> None:
        """Count the work of a sample, once; while no step has run there is nothing to count."""
        if self._settled or not self._steps:
            return
        try:
            work = self._adapter.work(self._size)
            if work is None:  # not yet
                return
            self._by_kind = work.per_sample()
        except NotCounted as error:
            self._miss(str(error))
        except Exception as error:  # a framework whose internals moved
            self._miss(" ".join(f"{type(error).__name__}: {error}".split()))
        else:
            self._work = {"flops_per_sample": round(sum(self._by_kind.values()), 1), "source": "counted"}
        self._settled = True

    def _miss(self, reason: str, source: str = "model FLOPs", cure: str = CURE) -> None:
        entry: Unavailable = {"source": source, "reason": reason, "cure": cure}
        if entry not in self.unavailable:
            self.unavailable.append(entry)

    def _with_peaks(self, facts: Mapping[str, Any], gpus: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
        """Return copies of the GPUs, those that do the work with their "peak"; none has one if any is not known."""
        from gpu_util_callback.gpus.peaks import peak_of

        gpus_shown = [dict(gpu) for gpu in gpus]
        at_work = _working_gpus(facts, gpus_shown)
        if at_work is None:
            self._miss("which of the GPUs trains is not known", "MFU", "")
            return gpus_shown
        policy = str((facts.get("fit") or {}).get("mixed_precision") or "float32")
        tf32 = self._adapter.runtime.tf32()
        peaks = []
        for gpu in at_work:
            peak, reason = peak_of(gpu, precision_of(self._by_kind, policy, tf32))
            if peak is None:
                self._miss(reason, "MFU", "")
                return gpus_shown
            peaks.append(peak)
        for gpu, peak in zip(at_work, peaks, strict=True):
            gpu["peak"] = peak
        return gpus_shown


def gpu_used(gpus: Sequence[Mapping[str, object]]) -> bool:
    """Return whether the framework uses a GPU."""
    return any(gpu.get("used_by_framework") for gpu in gpus)


def _varies(facts: Mapping[str, Any]) -> bool:
    """Return whether batches that Python saw differ in more than their size."""
    dims = (facts.get("fit") or {}).get("input_dims") or ()
    return any(isinstance(size, list) for shape in dims for size in (shape or ())[1:])


def _working_gpus(facts: Mapping[str, Any], gpus: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Return the GPUs that share the training's work; None where that is not known."""
    used = [gpu for gpu in gpus if gpu.get("used_by_framework")]
    fit = facts.get("fit") or {}
    replicas = {replica.get("gpu") for replica in fit.get("replicas") or ()} - {None}
    if replicas:  # a strategy says so
        return [gpu for gpu in used if gpu["index"] in replicas]
    if len(used) < 2:  # no choice
        return used
    backend = (facts.get("framework") or {}).get("backend")
    if backend in ("tensorflow", "jax") and fit.get("loop") != "custom":
        return [min(used, key=lambda gpu: gpu["index"])]  # without a strategy, on the first one
    return None


_TYPES = {"float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float64": "fp64"}


def precision_of(by_kind: Mapping[tuple[str, str], float], policy: str, tf32: Mapping[str, bool]) -> str:
    """Return the precision in which most of the work is done.

    "fp16", "bf16", "tf32", "fp32", "fp64", or the type's name.

    Args:
        by_kind: FLOPs by (kind, type of the operands); empty where they are not known.
        policy: Keras' dtype policy, for that case.
        tf32: by kind, whether float32 may be computed in TF32.
    """
    if not by_kind:
        dtype = policy.removeprefix("mixed_")
        by_kind = {("matmul", dtype): 1.0}
    sums: dict[str, float] = {}
    for (kind, dtype), flops in by_kind.items():
        precision = _TYPES.get(dtype, dtype)
        if dtype == "float32":
            precision = "tf32" if tf32.get(kind) else "fp32"
        sums[precision] = sums.get(precision, 0.0) + flops
    return max(sums, key=lambda precision: sums[precision])
