"""Slow steps: what is known of a step's inside and can be changed, where no GPU shows what it costs."""

from collections.abc import Mapping
from itertools import chain

import numpy as np

from gpu_util_callback.diagnosis.advice import host
from gpu_util_callback.diagnosis.advice.snippets import has_keras_fit
from gpu_util_callback.diagnosis.evidence.blocks import Occurrences
from gpu_util_callback.diagnosis.evidence.cores import measure_cores
from gpu_util_callback.diagnosis.evidence.memory_tracks import ONE_STEP
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.script import stack_samples_of
from gpu_util_callback.diagnosis.evidence.stalls import usual_bodies_ns, usual_body_ns
from gpu_util_callback.diagnosis.rule import ESTIMATED, MEASURED, Advice, Evidence, Finding, Findings, Rule, significant
from gpu_util_callback.diagnosis.rules.input_bound import InputBound
from gpu_util_callback.diagnosis.rules.sync_bound import in_one_call, steps_a_call
from gpu_util_callback.diagnosis.thresholds import (
    A_FEW,
    A_TREND,
    A_TWENTIETH,
    DOUBLE,
    MIN_SAMPLES,
    MOSTLY,
    MOSTLY_PCT,
    SIGNIFICANT,
    Limits,
    Threshold,
)
from gpu_util_callback.steps.dispatch import PASS, WEIGHTS
from gpu_util_callback.words import counted, duration, listed, percent, times

LARGER = "Do larger batches train as well? If so, fewer steps have to be started."


class SlowSteps(Rule):
    """A fact of the steps that makes them slow and can be changed; whether it may be, is mostly a question.

    Settings, metrics and layers are known before the first step, the parts of a step and its operations from stack
    samples, growth from its times. What a fact costs a run does not show: it never did without. So nothing is said
    where steps are less than half of the run, nor, but for settings, where a GPU computes: its samples say more.

    In float16 on a CPU that only stores it mixed_float16 took 1.5 to 6.7 times as long in three of four small models
    (TensorFlow, JAX), and as long in one. float64 took 3.2 (dense layers) and 4.3 times as long (convolutions).
    bfloat16 is not judged: some CPUs are faster with it.
    """

    cause = "slow_steps"
    title = "Slow steps"
    look = "½", "grey"
    sources = ("settings, layers and metrics of the model", "stack samples in steps", "times of the steps")
    thresholds = {
        "min_steps": Threshold(30, "fewer steps are mostly warm-up"),
        "min_looks": MIN_SAMPLES,
        "batch_size": Threshold(8, "on a CPU the layers of a small model take eight samples in about the time of one"),
        "step_ms": Threshold(2, "starting a step takes a framework 0.2-1 ms of a CPU, whatever its batch"),
        "share_of_step_pct": MOSTLY_PCT,
        "predict_set_up_pct": Threshold(20, "predict of 100 batches spends under 5 % on its set-up, of one 70-90 %"),
        "eager_op_us": Threshold(30, "at 11 and 15 larger batches gained 11 and 4 times, at 56 only 1.2 times"),
        "compared_thresholds": Threshold(20, "of 65,536 values each takes 1.1 ms: 199 took 16, one 0.2"),
        "begin_pct": Threshold(25, "samples miss part of it, as it keeps Python's lock: they saw 58 % of 94 %"),
        "compile_pct": MOSTLY_PCT,
        "kept_pct": Threshold(67, "a backward takes about twice its forward: two thirds; through kept graphs 78-93"),
        "backward_times": Threshold(6, "a backward pass took up to 4.8 times its forward pass, one of kept graphs 10"),
        "frozen_pct": MOSTLY_PCT,
        "padding_pct": MOSTLY_PCT,
        "padded_rows": MIN_SAMPLES,
        "slowdown": Threshold(1.5, "between an early and a late step: scatter and a busy machine reach 1.3"),
        **SIGNIFICANT,
    }
    unknown = "no step was recorded"

    def missing(self, run: Run) -> bool:
        return run.source is not None or not len(run.steps)

    def find(self, run: Run, limits: Limits) -> Findings:
        """Yield the facts of the steps that this run's device and length allow to judge, of those that cost enough."""
        yield from _predicts(run, limits)
        if run.steps.total_rows < limits["min_steps"]:
            return
        kinds = [_debugging, _of_model, _frozen, _growing]  # on any device; each decides for itself
        on_cpu = run.framework_facts.get("device") == "cpu" and not run.used_gpus
        if run.steps.total("body_ns") >= MOSTLY * run.present_ns:
            kinds += [_precision, _padded]  # elsewhere a thread starts a device's work
            kinds += [_of_optimizer, _parametrized, _of_samples] if on_cpu else []
        kinds += [_started] * on_cpu
        findings = chain.from_iterable(kind(run, limits) for kind in kinds)
        yield from significant(findings, run.present_ns, limits)


_PASS = """def endless(data):
    while True:
        yield from data
batches = endless(loader)  # once, before the loop
batch = next(batches)"""
_CACHED = """with torch.nn.utils.parametrize.cached():
    loss = ...  # the forward pass"""
_ONCE = """state = state.detach()  # between chunks
sum(losses).backward()  # or: once for all losses"""


def _fact(
    detail: str, title: str, evidence: Mapping, says: str | Advice, code: str = "", lost_ns: int = 0, proof: str = ""
) -> Finding:
    """Return the finding of a fact; `says` what to do or, with a question mark, asks whether it may be done.

    Args:
        lost_ns: 0 = not known.
    """
    advice = Advice(says, code, question="?" in says, proof=proof) if isinstance(says, str) else says
    how, lost = (ESTIMATED, lost_ns) if lost_ns else (MEASURED, None)
    return SlowSteps.finding(
        title=title, evidence=dict(evidence), advice=advice, detail=detail, lost_ns=lost, confidence=how
    )


def _predicts(run: Run, limits: Limits) -> Findings:
    """Yield that a loop's steps call `predict`, which is made for data sets.

    The time lost is that of its set-up, the share of the stack samples in steps that met it.
    """
    samples = stack_samples_of(run)
    pct = samples.predict_set_up_pct if samples is not None and samples.count >= limits["min_looks"] else 0.0
    if pct >= limits["predict_set_up_pct"]:
        title = "The steps call predict, which sets itself up each time"
        lost_ns = round(pct / 100 * run.steps.total("body_ns"))
        yield _fact("predict", title, {"predict_set_up_pct": round(pct, 1)}, host.PREDICT_ADVICE, lost_ns=lost_ns)


def _started(run: Run, limits: Limits) -> Findings:
    """Yield that the thread which starts the compiled steps is at work for most of each, not the threads that compute.

    Of a small model that computes little 76 to 81 % (16 steps in one call: 1.7 to 3 times as fast), of convolutions of
    5 ms 13 to 24 %, of dense layers of 13 ms 9 %. PyTorch computes on that thread itself. Beside an input for which
    training waits on cores that are short the same steps were at 29, 36 and 50 %: what is theirs of it is not known.
    """
    calls, each_ns, dispatch = run.fit.get("python_in_steps") or {}, usual_body_ns(run), run.fit.get("dispatch") or {}
    # Share of the time in steps in which the thread has a core, but for calls that do not train; negative = none.
    pct = 100 * ((calls.get("on_core") or 0.0) - (calls.get("aside") or 0.0))
    samples, compiled = calls.get("samples") or 0, dispatch.get("compiled") or 0
    eager = run.fit.get("run_eagerly") or run.framework_facts.get("eager_by") or run.framework == "torch"
    is_compiled = compiled >= MOSTLY * samples if run.custom_loop else not eager and steps_a_call(run) == 1
    size = run.fit.get("batch_size") or 0
    queued = measure_cores(run, run.whole).queued or 0.0  # share of their time in which threads wait for a core
    if each_ns > 1e6 * limits["step_ms"]:  # what it takes to start a step hardly shows
        return
    enough = samples >= limits["min_looks"] and _at_least(pct, samples) >= limits["share_of_step_pct"]
    if is_compiled and enough and not _waits_beside_input(run, queued):
        evidence: Evidence = {"share_of_step_pct": round(pct, 1), "looks": samples, "step_ms": round(each_ns / 1e6, 3)}
        says = f"Of a step of {duration(each_ns / 1e9)} the thread that starts it works for {percent(pct)}. "
        advice = Advice(f"{says}{LARGER}", question=True) if run.custom_loop else in_one_call(run, says)
        lost_ns = round((1 - queued) * pct / 100 * run.steps.total("body_ns"))
        yield _fact("start", "Starting each step takes most of it", evidence, advice, lost_ns=lost_ns)
    # Not known to be mostly starting, but as few samples as one: a larger batch takes about as long.
    elif 0 < size <= limits["batch_size"] and run.steps.total("body_ns") >= MOSTLY * run.present_ns:
        title = f"Each step of {duration(each_ns / 1e9)} trains {counted(size, 'sample')}"
        yield _fact("samples", title, {"batch_size": size, "step_ms": round(each_ns / 1e6, 3)}, LARGER)


def _at_least(pct: float, samples: int) -> float:
    """Return what a share is at least, by the number of samples that it was counted in, %: less two standard errors."""
    error_pct = (max(0.0, pct * (100 - pct)) / max(1, samples)) ** 0.5
    return pct - DOUBLE * error_pct


def _waits_beside_input(run: Run, queued: float) -> bool:
    """Return whether training waits for its input, and threads for a core that share `queued` (0-1) of their time."""
    waits_pct = 100 * run.account["time_s"]["input_wait"] / max(1e-9, run.present_ns / 1e9)
    shares_pct = {"core_wait_pct": 100 * queued, "wait_pct": waits_pct}
    return all(pct >= InputBound.thresholds[name].default for name, pct in shares_pct.items())


# Beginning of a switch -> what it does, what it slows, and the line that turns it off; None = its opposite.
_SWITCHES = {
    "torch.profiler": ("It records each operation, and keeps all records in memory until it ends.", "each step", ""),
    "tf.data": ("Python runs the functions of its stages, and no stage works ahead.", "the input", ""),
    "sys.": ("Python calls it at each line, or each call.", "Python", None),
    "cProfile": ("It notes each call of a function, and its end.", "Python", ""),
    "tracemalloc": ("It keeps the stack of each object that Python makes.", "Python", "tracemalloc.stop()"),
    "": ("Results are checked, or waited for, one by one.", "each step", None),
}


def _debugging(run: Run, limits: Limits) -> Findings:
    """Yield the switches for debugging that were on, one finding each."""
    for switch in run.fit.get("debugging") or []:
        if run.used_gpus or "CUDA" not in switch:  # those of CUDA do nothing without a GPU
            says, slows, off = next(how for beginning, how in _SWITCHES.items() if switch.startswith(beginning))
            if off is None:  # the switch itself, turned round
                off = (
                    f"{switch}(None)"
                    if "sys." in switch
                    else switch.replace("True", "False").replace("=1", "=0").replace("enable_", "disable_")
                )
            title = f"{switch}, meant for debugging, is on and slows {slows}"
            yield _fact(switch, title, {}, f"{says} Leave it out unless you look for an error.", off)


def _of_model(run: Run, limits: Limits) -> Findings:
    """Yield what the layers, losses and metrics of a model say of its steps, where these are most of the run."""
    # Layers that are unrolled, by name; metric -> how many thresholds it compares with.
    steps, layers, counts = run.steps, run.model.get("unrolled"), run.model.get("thresholds") or {}
    compile_pct = 100 * steps.total("compile_ns") / max(1, run.present_ns)
    if layers and compile_pct >= limits["compile_pct"]:
        title = f"Compiling takes {percent(compile_pct)} of the run: {listed(layers)} with unroll=True"
        asks = "Each time step is in the graph for itself. Is training too short to win that back? If so, leave it out."
        code = f"keras.layers.{layers[0]}(..., unroll=False)"
        yield _fact("unrolled", title, {"compile_pct": round(compile_pct, 1)}, asks, code)
    if run.used_gpus or steps.total("body_ns") < MOSTLY * run.present_ns:  # what follows matters on a CPU, in steps
        return
    many = {name: count for name, count in counts.items() if count >= limits["compared_thresholds"]}
    if many:
        compare, most = f"{listed([*many])} compare{'s' * (len(many) == 1)}", max(many.values())
        asks = "Are equal steps from 0 to 1 good enough, or fewer thresholds? Equal steps take one pass."
        code = f"keras.metrics.{next(iter(many))}(..., thresholds=np.linspace(0, 1, 201).tolist())"
        title = f"{compare} each value of a batch with {most} thresholds, one by one"
        yield _fact("thresholds", title, {"compared_thresholds": most}, asks, code)
    for place, loop in (run.model.get("looped") or {}).items():  # where it is -> how it is written
        asks = (
            "Each pass starts its operations again. Are the passes independent of each other, such as one for each "
            "sample? If so, compute them at once, in operations on the whole batch."
        )
        yield _fact(place, f"Each step runs a loop of operations: {loop} in {place}", {}, asks)


_FLOAT32 = {
    "jax": 'jax.config.update("jax_enable_x64", False)',
    "torch": "model = model.float()  # and each batch: x.float()",
    "keras": 'keras.config.set_floatx("float32")  # before the model is built; x.astype("float32") before fit',
}


def _precision(run: Run, limits: Limits) -> Findings:
    """Yield that the model computes in float64, or in float16 on a CPU that has no arithmetic for it."""
    policy, on_cpu = run.fit.get("mixed_precision"), run.framework_facts.get("device") == "cpu" and not run.gpus
    evidence: Evidence = {"precision": policy, "cpu": run.machine.get("cpu")}
    changes = "This changes the numbers: losses will differ a little."
    if policy == "float64":  # on any device
        says = "On a CPU that takes two to four times as long as float32, on most GPUs longer. Does training need it?"
        code = _FLOAT32.get(run.framework if run.custom_loop else "keras", "")
        asks = f"{says} If not, make the model and its data float32. {changes}"
        yield _fact(policy, "The model computes in float64", evidence, asks, code, proof="blind/seventh/double_floats")
    if policy in ("mixed_float16", "float16") and on_cpu and run.machine.get("cpu_float16") is False:
        says = f"This CPU has no arithmetic for {policy}: each operation converts to float32, and back. Take float32."
        code = 'keras.mixed_precision.set_global_policy("float32")  # before the model is built'
        yield _fact("float16", "Half precision on a CPU", evidence, f"{says} {changes}", code, proof="half_precision")


# Trainer or framework -> batches of rows that are about as long.
_ALIKE = {
    "transformers": 'TrainingArguments(..., train_sampling_strategy="group_by_length")',
    "torch": "order = sorted(range(len(dataset)), key=lambda i: len(dataset[i][0]))\n"
    "batches = [order[i : i + {size}] for i in range(0, len(order), {size})]\n"
    "loader = DataLoader(dataset, batch_sampler=random.sample(batches, len(batches)), ...)",
    "tensorflow": "ds = ds.bucket_by_sequence_length(lambda x, y: tf.shape(x)[0], [32, 128], 3 * [{size}])",
    "jax": "order = np.argsort((x != 0).sum(1))  # rows by their length\n"
    "batches = np.array_split(order, len(x) // {size})  # then shuffle these",
}


def _padded(run: Run, limits: Limits) -> Findings:
    """Yield that most positions of the sequences in a step are padding, where the model may compute them as well.

    Mails of 4 to 320 words in batches of 16 took 2.4 times as long as in batches of mails that are about as long.
    """
    padding = run.fit.get("input_padding")
    pct = 100 * padding["share"] if padding is not None else 0.0
    if padding is None or padding["rows"] < limits["padded_rows"] or pct < limits["padding_pct"]:
        return
    asks = "Does the model compute these as well (it does not where it packs sequences, or only looks ids up)? If so, "
    more = "" if run.framework == "torch" else " Each new length compiles: round it up to one of a few."
    more += " (Before transformers 5: group_by_length=True.)" * (run.trainer == "transformers")
    if padding["beyond"] >= MOSTLY * padding["share"]:  # all rows are padded further than the longest of their batch
        says = f"{percent(100 * padding['beyond'])} are beyond the longest row of a batch. {asks}cut each batch there."
        code = "x = x[:, (x != 0).any(0)]  # where 0 is the padding; masks and labels likewise"
    else:  # within a batch short rows are padded to the length of long ones
        says = f"Batches mix short and long rows. {asks}put rows that are about as long into one batch."
        code = _ALIKE.get(run.trainer) or _ALIKE.get(run.framework, "")
        code = code.replace("{size}", str(run.fit.get("batch_size") or "batch_size"))
    evidence: Evidence = {"padding_pct": round(pct, 1), "padded_rows": padding["rows"]}
    title = f"{percent(pct)} of the positions in its batches are padding"
    yield _fact("padding", title, evidence, f"{says}{more}", code)


def _frozen(run: Run, limits: Limits) -> Findings:
    """Yield that most of a model is frozen, in front of what trains, and is given the same arrays in each epoch.

    A frozen MobileNetV2 under a head of one layer: 3.4 to 5.9 times as fast with its outputs computed once.
    """
    pct, epochs = 100 * (run.model.get("frozen_share") or 0.0), int(run.fit.get("epochs") or 0)
    steps = run.steps
    in_steps = steps.total("body_ns") >= MOSTLY * (run.present_ns - steps.total("compile_ns"))  # is most of the run
    if run.input_kind != "numpy" or epochs < A_FEW or pct < limits["frozen_pct"] or not in_steps:
        return
    title = f"The layers in front, {percent(pct)} of the parameters, are frozen, and computed in each epoch"
    asks = (
        f"Their outputs for the same arrays are computed again in each of {epochs} epochs. Are they called with "
        "training=False, on samples that nothing changes by chance? If so, compute them once, and fit the other layers "
        "on them."
    )
    code = "features = frozen.predict(x)  # once; then head.fit(features, y, ...)"
    yield _fact("frozen", title, {"frozen_pct": round(pct, 1)}, asks, code)


# On a CPU Adam's step took 3.7 to 11 times as long in four models, and whole steps 1.3 to 2.3 times.
_FUSED = Advice(
    "It goes through all weights, operation by operation. Is it Adam or AdamW of torch.optim, without fused=True? If "
    "so, fuse it: one pass over each weight, equal but for rounding.",
    "optimizer = torch.optim.AdamW(..., fused=True)",
    saves=0.7,
    question=True,
    proof="fused_optimizer",
)


def _of_optimizer(run: Run, limits: Limits) -> Findings:
    """Yield that stack samples in steps of PyTorch met mostly the optimizer.

    The time lost is known for its step in a loop of the program's, which can be fused; in Keras' fit it is not.
    """
    calls = run.fit.get("python_in_steps") or {}
    parts, looks = calls.get("parts") or {}, calls.get("samples") or 0
    pct = 100 * sum(share for part, share in parts.items() if part.startswith(("optimizer", "zero_grad")))
    if looks >= limits["min_looks"] and pct >= limits["share_of_step_pct"]:
        evidence: Evidence = {"share_of_step_pct": round(pct, 1), "looks": looks}
        says, share = (LARGER, 0.0) if has_keras_fit(run) else (_FUSED, parts.get("optimizer.step", 0.0))
        lost_ns = round(share * run.steps.total("body_ns"))
        yield _fact("optimizer", "Most of each step passes in the optimizer", evidence, says, lost_ns=lost_ns)


def _of_samples(run: Run, limits: Limits) -> Findings:
    """Yield what the stack samples in steps say: the first of passes, kept graphs and small operations (PyTorch).

    Shares are of the samples in steps, 0-1: `begins` of those that begin a pass, `parts` by the part of a step.
    """
    calls, samples = run.fit.get("python_in_steps") or {}, stack_samples_of(run)
    parts, looks = calls.get("parts") or {}, calls.get("samples") or 0
    begins, dispatch = parts.get(PASS, 0.0), run.fit.get("dispatch") or {}
    begins_pct, body_ns = 100 * begins, run.steps.total("body_ns")
    # A validation within some steps begins a pass, too. Then usual steps take no more than all but the begins does.
    least = min(1 - begins / 2, DOUBLE * (1 - begins))
    is_usual = usual_body_ns(run) * run.steps.total_rows >= least * body_ns
    # Each step begins a pass over the data.
    if looks >= limits["min_looks"] and begins_pct >= limits["begin_pct"] and is_usual:
        # The samples at the line and those of begins are more than all: the line has begins.
        is_there = dispatch.get("at_place", 0) > (1 - begins) * dispatch.get("samples", 0)
        made = f"At {dispatch['own_at']} an" if is_there else "An"
        asks = (
            f"{made} iterator over the data is made: shuffled, it orders all samples or fills its buffer; if not, it "
            "gives the same batch again. Is that done for each step, as by next(iter(loader))? If so, make the "
            "iterator once, and the next one when it is used up."
        )
        # But for PyTorch's, the samples are of its first batch as well.
        lost_ns = round(begins * body_ns) if run.framework == "torch" else 0
        evidence: Evidence = {"begin_pct": round(begins_pct, 1), "looks": looks}
        title = "Each step begins a pass over the data"
        yield _fact("begin_of_a_pass", title, evidence, asks, _PASS, lost_ns)
        return
    backward, kept = parts.get("backward", 0.0), calls.get("kept", 0.0)
    forward = parts.get("forward", 0.0) + parts.get(WEIGHTS, 0.0)
    is_kept = kept >= MOSTLY * backward and _at_least(100 * backward, looks) >= limits["kept_pct"]
    alone = int(run.manifest.get("world_size", 1)) < 2  # a backward waits for other ranks
    # Most of each step goes backward, through graphs that are kept.
    if looks >= limits["min_looks"] and is_kept and alone:
        asks = (
            f"{calls['keeps_at']} goes backward with retain_graph=True. Does a later call go through the same graph "
            "again, such as through all chunks of a sequence before its own, or through layers that several losses "
            "share? If so, detach the state between chunks, or add the losses up and go backward once."
        )
        evidence = {"kept_pct": round(100 * backward, 1), "looks": looks}
        title = "Most of each step goes backward through graphs that are kept"
        twice = backward - DOUBLE * (1 - backward)  # beyond the time of a usual backward
        yield _fact("kept_graph", title, evidence, asks, _ONCE, round(twice * body_ns), "blind/eighth/kept_graph")
        return
    if backward >= limits["backward_times"] * (forward or 1.0):
        return  # it goes through graphs that were kept, or waits for other ranks
    # Time between two operations that Python starts, µs; None = not known.
    op_us = samples.op_us if samples is not None and run.framework == "torch" else None
    if samples is not None and op_us and op_us < limits["eager_op_us"]:
        asks = (
            f"Python starts one every {op_us:.0f} µs, which takes as long as computing a small one. Do larger batches "
            "train as well? If so, each computes more; if not, try torch.compile."
        )
        evidence = {"operations_per_step": samples.operations, "eager_op_us": round(op_us, 1)}
        title = f"Each step starts some {samples.operations:,} small operations"
        yield _fact("operations", title, evidence, asks, "model = torch.compile(model)")


def _parametrized(run: Run, limits: Limits) -> Findings:
    """Yield that most of PyTorch's step computes weights from others, such as an orthogonal matrix, at each use.

    The backward pass through them has no frames: its share is taken as that of the forward pass.
    """
    calls = run.fit.get("python_in_steps") or {}
    parts, looks = calls.get("parts") or {}, calls.get("samples") or 0
    weights, backward = parts.get(WEIGHTS, 0.0), parts.get("backward", 0.0)
    forward = weights + parts.get("forward", 0.0)
    pct = 100 * weights / max(forward, 1e-9) * (forward + backward)
    if looks >= limits["min_looks"] and pct >= limits["share_of_step_pct"]:
        asks = (
            "Weights with a parametrization, such as orthogonal or weight_norm, are computed each time that they are "
            "used. Is such a layer used several times in a step? If so, keep them during the forward pass."
        )
        evidence: Evidence = {"share_of_step_pct": round(pct, 1), "looks": looks}
        title = "Most of each step computes parametrized weights"
        yield _fact("parametrized", title, evidence, asks, _CACHED)


def _growing(run: Run, limits: Limits) -> Findings:
    """Yield that steps took longer and longer, with batches of one shape, while no GPU computed.

    The median of each eighth of the run is longer than that of the eighth before, with no jump between two.
    """
    bodies_ns = usual_bodies_ns(run)
    if run.used_gpus or not _of_one_shape(run) or len(bodies_ns) < A_FEW * A_TREND:
        return
    # Without the first twentieth, which warms up.
    parts = np.array_split(bodies_ns[int(A_TWENTIETH * len(bodies_ns)) :], A_TREND)
    usual_ns = np.array([np.median(part) for part in parts])
    longer_ns, grown_ns = np.diff(usual_ns), usual_ns[-1] - usual_ns[0]
    factor = float(usual_ns[-1] / max(1.0, usual_ns[0]))
    is_steady = longer_ns.min() > 0 and longer_ns.max() <= ONE_STEP * grown_ns
    if is_steady and factor >= limits["slowdown"] and _grown_within_epochs_ns(run, bodies_ns) >= MOSTLY * grown_ns:
        asks = (
            f"They took {times(factor)} as long in the last eighth of the run as in the first, in even growth. Does "
            "something grow with each, such as hooks, a list or a graph? If so, keep it at one size."
        )
        lost_ns = round(float((usual_ns - usual_ns[0]).mean()) * run.steps.total_rows)
        yield _fact("growing", "Steps take longer and longer", {"slowdown": round(factor, 2)}, asks, lost_ns=lost_ns)


def _of_one_shape(run: Run) -> bool:
    """Return whether all batches are known to have one shape, but for some with fewer samples than the first."""
    # Sizes by tensor (None = may vary, [smallest, largest] = seen to); the first batch's number of samples.
    dims, first = run.fit.get("input_dims") or [None], run.memory_facts.get("batch_sizes", {}).get("0")
    shapes = [shape or [None] for shape in dims]
    samples = all(isinstance(shape[0], int) or (shape[0] and shape[0][1] == first) for shape in shapes)
    return samples and all(isinstance(size, int) for shape in shapes for size in shape[1:])


def _grown_within_epochs_ns(run: Run, bodies_ns: np.ndarray) -> float:
    """Return by how much steps took longer within epochs, in all, ns; 0.0 where epochs have too few steps to tell.

    What grows with each step does so there; what is made larger for each epoch, such as layers that train, is not.

    Args:
        bodies_ns: own time of a step, of the blocks of `usual_bodies_ns`.
    """
    blocks = run.steps["rows"] > 1 if len(bodies_ns) < len(run.steps) else slice(None)
    ended_ns = run.phases.of("epoch").get("", Occurrences())["end_ns"]
    first = np.searchsorted(ended_ns, run.steps["start_ns"][blocks], side="right")  # epoch in which a block begins, ...
    last = np.searchsorted(ended_ns, run.steps["end_ns"][blocks])  # ... and ends
    apart = max(1, len(bodies_ns) // (2 * len(np.unique(first))))  # half an epoch
    longer_ns = (bodies_ns[apart:] - bodies_ns[:-apart])[first[:-apart] == last[apart:]]
    return float(np.median(longer_ns)) * len(bodies_ns) / apart if len(longer_ns) else 0.0
