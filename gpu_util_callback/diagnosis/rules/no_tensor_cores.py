"""No tensor cores: matrix kernels run on the ordinary cores of a GPU that has tensor cores."""

import re
from collections.abc import Sequence

from gpu_util_callback.diagnosis.advice.snippets import half_precision, has_keras_fit, idioms, keras_policy
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.source import Kernel
from gpu_util_callback.diagnosis.evidence.windows import capability, traced_gpus
from gpu_util_callback.diagnosis.rule import Advice, Finding, Findings, Rule
from gpu_util_callback.diagnosis.thresholds import Limits, Threshold

_MATRIX = re.compile(r"gemm|conv(?!ert)|cudnn|winograd|matmul|wgrad|dgrad|fprop|attention|Cijk_", re.IGNORECASE)
_HELPER = re.compile(
    r"nchwtonhwc|nhwctonchw|convert|im2col|im3d2col|bn_(fw|bw)|norm|pool|reorder|transpose"
    r"|splitkreduce|scalepacked|computeoffsets|gemv|depthwise|softmax|bias|activation",
    re.IGNORECASE,
)


class NoTensorCores(Rule):
    """Matrix kernels of a traced window surely do not use tensor cores.

    Kernels for which it is not known are no evidence: they must be fewer than the plain ones. From
    compute capability 8.0 on, 32-bit matrix products use tensor cores too (TF32), so such a kernel
    there points to a type or a shape that prevents it.
    """

    cause = "no_tensor_cores"
    title = "Tensor cores unused"
    look = "○", "grey"
    sources = ("kernels of profiler windows", "compute capability")
    thresholds = {
        "plain_matrix_pct": Threshold(
            20, "a fifth of kernel time: below, mixed precision gains less than it costs to try"
        ),
        "kernel_pct": Threshold(30, "where kernels take less of the step than that, faster ones do not show"),
        "compute_capability": Threshold(7.0, "Volta is the first with tensor cores"),
    }
    unknown = "no profiler window lists the kernels, or the compute capability is not known"
    unknown_in_trace = "the trace has no kernels, or does not say the GPU's compute capability"

    def missing(self, run: Run) -> bool:
        return not any(capability(run, gpu) and _kernels(run, gpu) for gpu in traced_gpus(run))

    def find(self, run: Run, limits: Limits) -> Findings:
        """Yield one finding for all GPUs: the first one's evidence, and of a trace the numbers of all."""
        findings = [finding for gpu in traced_gpus(run) if (finding := self._of_gpu(run, limits, gpu)) is not None]
        if not findings:
            return
        first = findings[0]  # one line for all GPUs: they run the same model
        if run.source is not None:  # a trace's line names them all
            first.gpus = [gpu for finding in findings for gpu in finding.gpus or ()]
            first.detail = ""
        yield first

    def _of_gpu(self, run: Run, limits: Limits, gpu: int) -> Finding | None:
        """Return the finding about a GPU's kernels that could use tensor cores and do not; None without it.

        Shares of kernels are % of the time of all kernels; `kernel_pct` is that time, % of the traced steps.
        """
        busy, able = run.traced.gpus.get(gpu), capability(run, gpu)
        kernels = _kernels(run, gpu)
        if busy is None or able is None or not kernels:
            return None
        kernel_pct = 100 * max(busy.kernel_busy_ns, busy.ns["kernel"]) / max(1, busy.duration_ns)
        plain = [
            kernel
            for kernel in kernels
            if kernel.tensor_core == "no" and _MATRIX.search(kernel.name) and not _HELPER.search(kernel.name)
        ]
        used, unknown = ([kernel for kernel in kernels if kernel.tensor_core == use] for use in ("yes", "unknown"))
        total_ns = _total_ns(kernels)
        plain_pct, used_pct, unknown_pct = (100 * _total_ns(group) / total_ns for group in (plain, used, unknown))
        # No tensor cores, or kernels are not what the steps spend their time in.
        if able < limits["compute_capability"] or kernel_pct < limits["kernel_pct"]:
            return None
        # Few matrix kernels on ordinary cores, or fewer than of those that use tensor cores or may do so.
        if plain_pct < limits["plain_matrix_pct"] or max(unknown_pct, round(used_pct)) >= plain_pct:
            return None
        policy = str(run.fit.get("mixed_precision", ""))
        title, severity = self.title, None  # None = that of the time lost
        if run.source is not None:
            title, severity = f"{'Hardly a' if used else 'No'} kernel uses the tensor cores", plain_pct / 100
        return self.finding(
            title=title,
            evidence={
                "plain_matrix_pct": run.rounded(plain_pct, 1),
                "kernel_pct": run.rounded(kernel_pct, 1),
                "tensor_core_pct": run.rounded(used_pct),
                "unknown_kernels_pct": run.rounded(unknown_pct, 1),
                "largest_kernel": max(plain, key=lambda kernel: kernel.total_ns).name[:120],
                "precision": policy or None,
                "compute_capability": able,
            },
            advice=_advice(run, able, policy),
            gpus=[gpu],
            detail=f"gpu{gpu}",
            severity=severity,
        )


def _kernels(run: Run, gpu: int) -> list[Kernel]:
    """Return a GPU's kernels in its profiler windows; a collective has no tensor cores to use: waiting is no work."""
    of_gpu = [kernel for (index, _), kernel in run.traced.kernels.items() if index == gpu and kernel.tensor_core]
    return of_gpu if _total_ns(of_gpu) else []


def _total_ns(kernels: Sequence[Kernel]) -> int:
    return sum(kernel.total_ns for kernel in kernels)


def _advice(run: Run, able: float, policy: str) -> Advice:
    """Return advice: mixed precision, or suitable sizes if it is on.

    Args:
        able: the GPU's compute capability; from 8.0 on it has bfloat16, which needs no scaled loss.
        policy: Keras' name of the precision, such as "mixed_float16"; "" = not known.
    """
    if policy.startswith("mixed"):
        return Advice(
            "Mixed precision is on, and still the largest matrix kernels do not use the tensor "
            "cores: their sizes may not be multiples of 8. Pad channels, units and vocabulary.",
            "units = 8 * math.ceil(units / 8)",
            alters_training=True,
        )
    says = "Matrix products run in 32 bits on the ordinary cores; tensor cores do them several times as fast in 16 bits"
    if run.other_program:  # none of the frameworks that code is known for
        more = "or in TF32 from compute capability 8.0 on. Try whether the results are exact enough."
        return Advice(f"{says}, {more}")
    kind = half_precision(able)
    code, scaled = idioms(run).half.format(kind=kind), idioms(run).scaler
    if has_keras_fit(run):
        code, scaled = keras_policy(kind), "; Keras scales the loss"
    elif run.framework == "tensorflow":
        code, scaled = keras_policy(kind), "; scale the loss with keras.optimizers.LossScaleOptimizer"
    scaled = "" if kind == "bfloat16" else scaled
    text = f"{says}. Train in mixed precision ({kind}{scaled})."
    return Advice(text, code, saves=1.0, alters_training=True, proof="transformer_torch")
