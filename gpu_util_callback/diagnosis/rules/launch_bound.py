"""Launch-bound: the GPU waits for the host between many short kernels."""

from gpu_util_callback.diagnosis.advice import host as host_advice
from gpu_util_callback.diagnosis.advice import loops
from gpu_util_callback.diagnosis.advice.snippets import enlarge_batch, has_keras_fit, idioms
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.script import StackSamples, stack_samples_of
from gpu_util_callback.diagnosis.evidence.stalls import idle_in_steps
from gpu_util_callback.diagnosis.evidence.windows import share_of, stretches_of, traced_gpus
from gpu_util_callback.diagnosis.rule import ESTIMATED, Advice, Evidence, Findings, Rule
from gpu_util_callback.diagnosis.thresholds import (
    A_TENTH,
    MIN_SAMPLES,
    MOSTLY_PCT,
    OP_US,
    SMALL_US,
    Limits,
    Threshold,
    chosen,
)
from gpu_util_callback.recording.manifest_facts import SourceFacts


class LaunchBound(Rule):
    """Profiler windows show the GPU idle between launches, and the kernels are short.

    Or they show it idle between steps, where no wait, callback or compilation accounts for it and
    the driver saw it idle, too: the host's own work for a step takes longer than the GPU's.

    Without a window one case is still clear: the step runs eagerly, operation by operation from
    Python, because it was asked for or because nothing compiles it. If a GPU is in use it must be
    idle most of the time, with no wait for input that explains it; without one, the cost is not
    known.
    """

    cause = "launch_bound"
    title = "Launch-bound"
    look = "⋮", "olive"
    sources = (
        "profiler windows",
        "or: run_eagerly, GPU utilization and input wait",
        "or: looks at the training thread's Python stack in a loop's steps",
    )
    thresholds = {
        "idle_launch_pct": Threshold(15, "XProf calls 15 % of kernel launch time high"),
        "mean_kernel_us": SMALL_US,
        "kernels_per_step": Threshold(10, "in a trace; fewer: their launches are not what a step consists of"),
        "linked_kernels_pct": MOSTLY_PCT,  # in a trace; of the kernels it must be known what started them
        "idle_host_pct": Threshold(30, "a profiler slows the host's side of small steps by some 10-20 % of them"),
        "host_active_pct": Threshold(60, "the driver must see the GPU idle as well, outside of the windows"),
        "eager_active_pct": Threshold(
            50,
            "eager and more than half busy: something else first; of 33 eager trainings below it "
            "twice the batch took at most 4 % longer: launches took the time, not work",
        ),
        "eager_looks_pct": Threshold(30, "loops that nothing compiles have 80-100 %, compiled ones 0-5 %"),
        "min_looks": MIN_SAMPLES,
        "eager_op_us": OP_US,
        "min_steps": Threshold(30, "fewer steps are mostly warm-up"),
    }
    unknown = "no profiler window shows what the GPU did between kernels"
    unknown_in_trace = "the trace does not show enough GPU work, or no launches"

    def missing(self, run: Run) -> bool:
        if run.source is not None:
            return not (run.source["idle_judged"] and run.source["linked_kernels"])
        is_reported = run.fit.get("run_eagerly", False) or run.framework_facts.get("eager_by")
        return not (traced_gpus(run) or is_reported or run.fit.get("dispatch"))

    def find(self, run: Run, limits: Limits) -> Findings:
        if run.source is not None:
            yield from self._traced(run, limits)
        elif traced_gpus(run):
            launches = list(self._traced(run, limits))
            yield from launches or self._host_behind(run, limits)
        else:
            yield from self._eager(run, limits)

    def _traced(self, run: Run, limits: Limits) -> Findings:
        """Yield the findings about idle time between short kernels, in windows or a trace."""
        for share in stretches_of(run, limits["idle_launch_pct"], "idle_launch"):
            if not share.kernels_per_step or share.kernel_us > limits["mean_kernel_us"]:
                continue
            per_step = round(share.kernels_per_step)
            evidence: Evidence = {
                "idle_launch_pct": run.rounded(share.pct, 1),
                "mean_kernel_us": run.rounded(share.kernel_us, 1),
                "kernels_per_step": per_step,
                "idle_launch_ms_per_step": run.rounded(share.ms_per_step, 3),
            }
            fired = ["idle_launch_pct", "mean_kernel_us"]
            if run.source is not None:
                kernels = share.kernels_per_step * share.steps * len(share.gpus)
                counted = {  # in traces alone: windows of a recording may be too short to count kernels
                    "kernels_per_step": share.kernels_per_step,
                    "linked_kernels_pct": 100 * run.source["linked_kernels"] / max(1, kernels),
                }
                if any(value < limits[name] for name, value in counted.items()):
                    continue
                evidence |= counted | {"short_kernels_pct": run.source["short_kernels_pct"]}
                fired += counted
            yield self.loss(
                share,
                _advice(run, per_step),
                threshold=chosen(limits, *fired),
                evidence=evidence,
                of_trace=f"The GPU waits {share.pct:.0f} % of the time between short kernels",
            )

    def _host_behind(self, run: Run, limits: Limits) -> Findings:
        """Yield the finding that the host prepares steps more slowly than the GPU computes them."""
        share = share_of(run, "idle_host", "idle_launch")
        steps = run.steps
        spent_ns = steps.total("duration_ns")
        if share is None or steps.total_rows < limits["min_steps"] or not spent_ns:
            return
        explained_ns = int(steps.explained_ns.sum())
        pct = share.pct - 100 * explained_ns / spent_ns  # idle time that waits, callbacks and compiling do not explain
        if pct < limits["idle_host_pct"]:
            return
        idle, idle_in_steps_ns = run.idle(*steps.extent_ns), idle_in_steps(run)
        if idle is None or idle_in_steps_ns is None or idle.active_pct >= limits["host_active_pct"]:
            return
        behind = "The GPU is done with a step before Python has prepared the next one. "
        larger = enlarge_batch(run, behind, "Give each step more to do with a larger batch.")
        yield self.finding(
            title="The host keeps the GPU waiting",
            lost_ns=max(0, min(round(pct / 100 * spent_ns), idle_in_steps_ns - explained_ns)),
            confidence=ESTIMATED,
            evidence={
                "idle_host_pct": round(pct, 1),
                "gpu_active_pct": round(idle.active_pct, 1),
                "step_ms": round(spent_ns / steps.total_rows / 1e6, 3),
                "traced_steps": share.steps,
            },
            threshold={"idle_host_pct": limits["idle_host_pct"], "gpu_active_pct": limits["host_active_pct"]},
            advice=host_advice.run_compiled(run) if run.fit.get("run_eagerly", False) else larger,
            gpus=share.gpus,
        )

    def _eager(self, run: Run, limits: Limits) -> Findings:
        """Yield the finding that the step runs eagerly; with GPUs only if they idle for it."""
        eager = _runs_eagerly(run, limits)
        if eager is None or run.steps.total_rows < limits["min_steps"]:
            return
        evidence, advice = eager
        threshold: Evidence = {name: limits[name] for name in evidence if name in limits}
        title, gpus, lost_ns = "The step runs eagerly, operation by operation from Python", run.used_gpus, None
        title = loops.COPIES if loops.copied_arrays(run) == advice else title
        idle = run.idle(*run.steps.extent_ns) if run.used_gpus else None
        idle_in_steps_ns = idle_in_steps(run) if idle is not None else None
        if idle is not None and idle_in_steps_ns is not None:
            spent_ns = run.steps.total("duration_ns")
            explained_ns = int(run.steps.explained_ns.sum())
            # The rest of the idle time, if all time with another explanation was idle, too.
            lost_ns = min(idle_in_steps_ns, spent_ns) - explained_ns
            least_ns = (1 - limits["eager_active_pct"] / 100) * (spent_ns - explained_ns)
            if idle.active_pct >= limits["eager_active_pct"] or lost_ns < least_ns:
                return
            title, gpus, lost_ns = "Eager execution leaves the GPU idle", list(idle.gpus), max(0, lost_ns)
            evidence = {"gpu_active_pct": round(idle.active_pct, 1), **evidence}
            evidence["unexplained_idle_s"] = round(lost_ns / 1e9, 3)
            threshold = {"gpu_active_pct": limits["eager_active_pct"], **threshold}
        yield self.finding(
            title=title,
            lost_ns=lost_ns,
            confidence=ESTIMATED,
            evidence=evidence,
            threshold=threshold,
            advice=advice,
            gpus=gpus,
        )


# -- eager execution ---------------------------------------------------------------------------


def _runs_eagerly(run: Run, limits: Limits) -> tuple[Evidence, Advice] | None:
    """Return evidence and advice if the step runs eagerly; None if not, or if unknown.

    PyTorch always does unless the step is compiled: that alone is no cause.
    """
    if run.fit.get("run_eagerly", False) and (run.used_gpus or run.framework != "torch"):  # asked for in compile()
        return {"run_eagerly": "yes"}, host_advice.run_compiled(run)
    by = run.framework_facts.get("eager_by")
    if by:  # by a switch for debugging
        return {"eager_by": by}, _undo_debugging_advice(str(by))
    stack_samples = stack_samples_of(run)
    if stack_samples is None or not idioms(run).decorator:
        return None
    if run.steps.total("compile_ns") > (1 - A_TENTH) * run.steps.total("duration_ns"):
        return None  # the samples met its tracing
    pct, op_us = stack_samples.eager_pct, stack_samples.op_us
    least_pct = max(limits["eager_looks_pct"], stack_samples.predict_set_up_pct)
    if stack_samples.count < limits["min_looks"] or pct < least_pct:
        return None
    if op_us is not None and op_us >= limits["eager_op_us"]:
        return None
    evidence: Evidence = {"eager_looks_pct": round(pct, 1), "looks": stack_samples.count}  # stack samples show it
    if stack_samples.operations:
        evidence |= {"operations_per_step": stack_samples.operations, "eager_op_us": op_us and round(op_us, 1)}
    return evidence, _compile_advice(run, stack_samples)


def _compile_advice(run: Run, stack_samples: StackSamples) -> Advice:
    """Return the advice to compile the step of a loop, by the function's name if it is known."""
    if copies := loops.copied_arrays(run):
        return copies
    words = idioms(run)
    some = f"each of some {stack_samples.operations:,} operations" if stack_samples.operations else "each operation"
    name = stack_samples.function or "train_step"
    into = "" if stack_samples.function else "Put what the loop does with a batch into one function and "
    do = f"{into}compile it" if into else f"Compile {name} into one program"
    code = f"{words.decorator}  # the line to add\ndef {name}(...):"
    return Advice(
        f"Python starts {some} of a step by itself, on any device: for a small one that takes longer than computing "
        f"it. {do}; {words.mind}.",
        code,
        saves=1.0,
        compiles=True,
        proof="tape_eager",
    )


# What makes all compiled functions eager -> the line that undoes it, and what measured that.
_UNDO = {
    "tf.config.run_functions_eagerly(True)": ("tf.config.run_functions_eagerly(False)", "functions_eagerly"),
    "jax_disable_jit": ('jax.config.update("jax_disable_jit", False)', "jit_disabled"),
}


def _undo_debugging_advice(by: str) -> Advice:
    """Return the advice to leave out a switch that makes Python start each operation."""
    says = f"{by} makes Python start every operation of a compiled function by itself. It is meant for debugging: leave"
    also = ", and jax.disable_jit() and JAX_DISABLE_JIT, which set it as well," * (by == "jax_disable_jit")
    code, proof = _UNDO[by]
    return Advice(f"{says} it{also} out.", code, saves=1.0, compiles=True, proof=proof)


def _advice(run: Run, per_step: int) -> Advice:
    """Return advice on many short kernels: launch fewer or longer kernels."""
    if run.fit.get("run_eagerly", False):
        return host_advice.run_compiled(run)
    runs = "A step runs" if run.source is None or run.source["steps_judged"] else "The trace shows"
    says = f"{runs} {per_step:,} GPU kernels so short that the GPU waits for the next one. "
    compiled = run.fit.get("jit_compile", False) or (run.framework == "jax" and run.source is None)
    # A compilation by Keras on torch took over half a minute.
    if has_keras_fit(run) and (compiled or run.framework == "torch"):
        says += "The step is compiled already. " * compiled
        return enlarge_batch(run, says, "Give each kernel more to do with a larger batch.")
    if has_keras_fit(run):
        # Keras compiles by itself where it can: it is switched off, or a layer does not support it.
        return Advice(
            f"{says}Does every layer support XLA (layer.supports_jit)? If so, compile the step, which fuses many of "
            "them into few.",
            "model.compile(..., jit_compile=True)",
            question=True,
        )
    # A compiler made the kernels.
    if run.source is not None and (run.source.get("compiled_by") or _replays(run.source)):
        return _compiled_advice(run, run.source, says)
    compile_step = idioms(run).compiled
    if not compile_step and run.other_program:
        return Advice(
            f"{says}Give each more to do, fuse several of them, or launch them as one graph (cudaGraphLaunch)."
        )
    if not compile_step:  # no way to compile is known
        return enlarge_batch(run, says, "Give each more to do with a larger batch.")
    # Without a gain: nobody measured one on a GPU.
    return Advice(
        f"{says}Do steps get faster when many of them are fused into few? If so, compile the step; the first steps "
        "take long while it compiles.",
        compile_step,
        question=True,
    )


def _replays(source: SourceFacts) -> bool:
    """Return whether most of a trace's kernels are replayed from CUDA graphs."""
    return source.get("graph_kernels_pct", 0.0) >= MOSTLY_PCT.default


_GRAPH_OF_COMPILED = """\
- model = torch.compile(model)
+ model = torch.compile(model, mode="reduce-overhead")  # records CUDA graphs"""


def _compiled_advice(run: Run, source: SourceFacts, says: str) -> Advice:
    """Return advice on many short kernels that a compiler made: a CUDA graph launches all of them at once."""
    if _replays(source):
        says += "Most of them are replayed from CUDA graphs already. "
    elif source["compiled_kernels_pct"] < MOSTLY_PCT.default:
        return Advice(
            f"{says}The model is compiled already, but {100 - source['compiled_kernels_pct']:.0f} % of them are "
            "launched outside of it. Is the optimizer's step among them? If so, take its fused form, of a few kernels.",
            "optimizer = torch.optim.AdamW(..., fused=True)" if source["trains"] and run.framework else "",
            question=True,
        )
    elif source["compiled_by"] in ("torch", "exported") and run.framework in ("torch", ""):
        return Advice(
            f"{says}The model is compiled already, yet each kernel is launched by itself. Do the shapes of its inputs "
            "stay the same? If so, record them as a CUDA graph, which is launched at once.",
            _GRAPH_OF_COMPILED if run.framework and source["compiled_by"] == "torch" else "",
            question=True,
        )
    else:
        says += "The step is compiled already. "
    return Advice(f"{says}Give each more to do with a larger batch, or take several steps in one call.")
