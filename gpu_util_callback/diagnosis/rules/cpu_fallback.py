"""CPU fallback: there is a GPU, but the framework, or the model in it, does not use it."""

from gpu_util_callback.diagnosis.advice.snippets import idioms
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.samples import allocator
from gpu_util_callback.diagnosis.rule import Advice, Evidence, Findings, Rule
from gpu_util_callback.diagnosis.thresholds import A_FEW, A_FIFTH, Limits, Threshold
from gpu_util_callback.unused_gpu import Unused, called, why_unused
from gpu_util_callback.words import capitalized


class CpuFallback(Rule):
    """The driver lists GPUs that this process may use, but the training does not use them.

    Either the framework lists none of them, or it lists them and the model is not there: they idle
    all the time, and hold nothing. A small model at work may leave hardly a trace in the
    utilization, but it occupies memory; if memory use is not known, nothing is reported.

    The cost cannot be known from the run: the GPU never showed how fast it would be.
    """

    cause = "cpu_fallback"
    title = "GPU not used"
    look = "⌂", "red"
    blocking = unused = True
    sources = (
        "GPUs the driver shows",
        "GPUs the framework lists",
        "GPU utilization and memory (for GPUs it lists and does not use)",
    )
    thresholds = {
        "gpu_active_pct": Threshold(
            1, "the driver counts in whole percents: a kernel or a copy now and then makes one"
        ),
        "memory_mib": Threshold(100, "a CUDA context alone takes more, and nothing runs without one"),
        "min_s": Threshold(5, "in seconds: not a model that is still being built"),
    }
    unknown = "no GPU was seen by the driver"

    def missing(self, run: Run) -> bool:
        return not run.gpus

    def find(self, run: Run, limits: Limits) -> Findings:
        """Yield the finding that the framework lists none of the GPUs, or that its steps do not run there."""
        if not len(run.steps) or run.framework_facts.get("guessed"):
            return  # another framework may be at work, on the GPU
        if run.used_gpus:
            yield from self._unused_by_steps(run, limits)
            return
        if any(_busy_itself(run, gpu["index"], limits) for gpu in run.gpus):
            return  # by another library: CuPy, TensorRT, Triton, or workers that open the GPU
        who = called(run.framework)
        names = sorted({str(gpu.get("name") or "GPU") for gpu in run.gpus})
        count = len(run.gpus)
        built_for_cuda = run.framework_facts.get("cuda_build")
        check = next(iter(run.facts.get("gpu_check") or ()), None)
        # The reason recorded during the run knows the environment, too.
        why = why_unused(run.framework, count, count, built_for_cuda)
        if check is not None and check.get("code"):
            why = {"reason": check["reason"], "code": check["code"]}
        evidence: Evidence = {"gpus_visible": count, "gpus_used_by_framework": 0, "gpu": ", ".join(names)}
        if version := run.framework_facts.get("version"):
            evidence["framework"] = f"{run.framework or 'framework'} {version}"
        if built_for_cuda is not None:
            evidence["framework_built_for_cuda"] = bool(built_for_cuda)
        evidence["seen"] = why["reason"]
        yield self.finding(
            title=f"{capitalized(who)} does not use the {names[0]}",
            evidence=evidence,
            advice=Advice(
                _reason_and_cure(why, who),
                why["code"],
                proof="tests/cures/test_advice_gpus.py::test_a_build_without_cuda_is_replaced",
            ),
            gpus=[gpu["index"] for gpu in run.gpus],
        )

    def _unused_by_steps(self, run: Run, limits: Limits) -> Findings:
        """Yield a finding if the framework lists the GPUs but the steps do not run there."""
        start_ns = int(run.steps["start_ns"][0])
        idle = run.idle(start_ns, run.end_ns)
        if idle is None or len(idle.gpus) < len(run.used_gpus):  # not all GPUs were sampled
            return
        too_short = run.end_ns - start_ns < limits["min_s"] * 1e9 or idle.samples < A_FEW * len(idle.gpus)
        if too_short or idle.active_pct >= limits["gpu_active_pct"]:
            return
        empty = [held for gpu in idle.gpus if (held := _no_model_in_memory(run, gpu, limits["memory_mib"])) is not None]
        if len(empty) < len(idle.gpus):  # one of them holds a model, or its memory is not known
            return
        held_in, most_bytes = max(empty, key=lambda held: held[1])
        names = [str(run.gpu(gpu).get("name") or "GPU") for gpu in idle.gpus]
        yield self.finding(
            title=f"Training does not run on the {names[0]}",
            evidence={
                "gpus_used_by_framework": len(idle.gpus),
                "gpu": ", ".join(sorted(set(names))),
                "gpu_active_pct": round(idle.active_pct, 1),
                held_in: round(most_bytes / 2**20, 3),
            },
            advice=Advice(
                f"{capitalized(called(run.framework))} sees the {names[0]}, but the steps run on the CPU: its memory "
                "holds no model, and it was idle throughout. Put the model and every batch on the GPU.",
                idioms(run).on_gpu,
                proof="forgotten_cpu",
            ),
            gpus=idle.gpus,
        )


def _busy_itself(run: Run, gpu: int, limits: Limits) -> bool:
    """Return True if this process keeps a GPU busy that its framework does not list."""
    process_mean = run.gpu_mean(gpu, "utilization_process_pct", run.start_ns, run.end_ns)
    if process_mean is None:  # a driver that tells no utilization by process may tell its memory
        process_bytes = run.highest(gpu, "memory_process_bytes")
        if process_bytes is None or process_bytes < limits["memory_mib"] * 2**20:
            return False
        everybody = run.gpu_mean(gpu, "utilization_pct", run.start_ns, run.end_ns)
        return everybody is not None and everybody.value >= 100 * A_FIFTH  # more than a display alone
    return process_mean.value >= limits["gpu_active_pct"]


def _no_model_in_memory(run: Run, gpu: int, memory_mib: float) -> tuple[str, float] | None:
    """Return the name of the evidence that no model lies in a GPU's memory, and the bytes held; None without evidence.

    The framework's allocator is the best source. A driver that reports the memory of the process, or of all processes
    together, shows that there is not even a context.

    Args:
        memory_mib: least that a process on the GPU takes.
    """
    of_allocator = allocator(run, gpu)
    if of_allocator is not None:
        # A model takes at least a byte per parameter, and some memory if they were not counted.
        model = float(run.model.get("parameters") or 1)
        return ("allocator_peak_mib", of_allocator.peak) if of_allocator.peak < model else None
    for column, name in (
        ("memory_process_bytes", "process_memory_mib"),
        ("memory_used_bytes", "device_memory_used_mib"),
    ):
        most = run.highest(gpu, column)
        if most is not None and most < memory_mib * 2**20:
            return name, most
    return None


def _reason_and_cure(why: Unused, who: str) -> str:
    """Return why the framework does not use the GPU, and what to do, in two sentences."""
    reason = f"Training runs on the CPU: {why['reason']}."
    if why["code"].startswith("pip"):
        return f"{reason} Install the build of {who} that has it."
    if why["code"].startswith("unset"):
        return f"{reason} Remove that setting and start again."
    return f"{reason} gpu-util doctor says which library is missing or does not fit."
