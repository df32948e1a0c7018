"""Recompilation: the step is traced or compiled again and again, mostly for new input shapes."""

from typing import Any

import numpy as np

from gpu_util_callback.diagnosis.advice.snippets import has_keras_fit
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.script import Script
from gpu_util_callback.diagnosis.evidence.spans import Series
from gpu_util_callback.diagnosis.rule import ESTIMATED, MEASURED, Advice, Evidence, Findings, Rule, significant
from gpu_util_callback.diagnosis.thresholds import (
    MANY_TIMES,
    MATTERS_PCT,
    MOSTLY,
    SIGNIFICANT,
    Count,
    Limits,
    Threshold,
)
from gpu_util_callback.recording.manifest_facts import Retraced

FEW_SHAPES = 2  # shapes left when inputs are padded to a few lengths: two at least
MULTIPLE = 128  # lengths divisible by it suit a GPU; shorter ones are padded to half of it
_NAMES = ("x", "y", "sample_weight")

FILLED = "the model's input: it has padding, which the model must mask"
PADDED = "which samples share a batch, and leaves out those of the last one"
# As the recording's `input_dims`: for each tensor of a batch its sizes, None where one may vary,
# [smallest, largest] if it was observed to.
Dims = list[list[Any]]


def _advise_shapes(run: Run, times: int) -> Advice:
    """Return the advice for a step that was compiled `times` times: by its traces, else by its input's shapes."""
    # One compilation is unavoidable and not counted as lost.
    share_saved = 1 - (FEW_SHAPES - 1) / max(FEW_SHAPES, times - 1)
    traced = _advise_traces(run, times, f"{times} steps had to be compiled first: ", share_saved)
    if traced is not None:
        return traced
    dims = _declared_dims(run)
    # All sizes are known and never vary.
    if dims is not None and not (_batch_varies(dims) or _varying_sizes(dims)):
        return Advice(
            f"{times} steps had to be compiled first, although the shape of their input stayed the same: something "
            "else that the step gets changes, a Python number or the size of a slice. Pass the number as a tensor or "
            "an array, and slice equal parts."
        )
    text = (
        f"{times} steps had to be compiled first, because the shape of their input (or a Python number in it) was new. "
    )
    if run.framework == "torch" and not has_keras_fit(run):
        return Advice(f"{text}Compile it once for all shapes.", "model = torch.compile(model, dynamic=True)")
    if run.framework == "torch":  # Keras compiles for each shape
        return Advice(
            f"{text}Without compilation its shapes may change freely.", "model.compile(..., jit_compile=False)"
        )
    if dims is None:  # it is not known what varies
        return Advice(
            f"{text}Do batches differ in their number of samples, or in length? If so, give all batches the same "
            "number of samples (drop_remainder=True in tf.data), and pad what varies in length to one length, "
            f"or a few; this changes {PADDED}.",
            "",
            share_saved,
            question=True,
            changes=PADDED,
        )
    if run.input_kind == "tf.data":
        return _tf_data_advice(run, dims, text, share_saved)
    return _arrays(run, dims, text, share_saved)


def _advise_traces(run: Run, times: int, text: str, share_saved: float) -> Advice | None:
    """Return the advice for a loop's compiled function by what is new in its traces; None where that is not known.

    Args:
        times: how often it was compiled.
        text: the sentence to begin with.
        share_saved: of the time lost, 0-1.
    """
    if not run.custom_loop:
        return None
    made = run.memory_facts.get("functions_made_per_step", 0.0)  # tf.functions
    if made * run.steps.total_rows >= MOSTLY * times:
        return Advice(
            f"{text}the program makes new tf.functions as it trains, {made:.2g} a step, and each has to be traced. "
            "Make each of them once, before the loop.",
            "",
            share_saved,
            proof="function_made_in_steps",
        )
    retraced = run.memory_facts.get("retraced")
    if retraced is None or retraced["traces"] < MOSTLY * times:  # most compilations are of something else
        return None
    function = retraced["function"]
    if run.framework != "tensorflow":
        return _advise_compiled(retraced, text, share_saved)
    if retraced["same_tensors"]:
        return Advice(
            f"{text}{function} is traced again although the tensors that it gets keep their types and shapes. A "
            "Python number or another object among its arguments is new each time: pass it as a tensor.",
            f"{function}(..., tf.constant(number))",
            share_saved,
            proof="tape_retraced",
        )
    remedy = "Let one trace serve them all, or give it an input_signature with None for each size that varies."
    says = f"{text}{function} gets tensors of new shapes. {remedy}"
    return Advice(says, "@tf.function(reduce_retracing=True)", share_saved, proof="loop_lengths")


def _advise_compiled(retraced: Retraced, text: str, share_saved: float) -> Advice | None:
    """Return the advice for a line that has JAX or torch.compile compile again; None where it passes new shapes.

    `text` is the sentence to begin with, `share_saved` the share of the time lost, 0-1.
    """
    function, line = retraced["function"], retraced["line"]
    if retraced.get("new_function"):
        return Advice(
            f"{text}{line} calls a new function each time ({function}), which JAX compiles again. Define it and call "
            "jax.jit once, before the loop, and pass what varies as arguments.",
            "",
            share_saved,
            proof="function_jitted_in_steps",
        )
    if not retraced["same_tensors"]:  # new shapes: what the input declares says more
        return None
    if "new_function" not in retraced:  # PyTorch's; JAX always has it
        return Advice(
            f"{text}what torch.compile takes for fixed was new each time, and no size of a tensor: {function} "
            f"({line or 'in no known line'}). After 8 versions it runs that function uncompiled. Keep a number that "
            "changes in a tensor."
        )
    return Advice(
        f"{text}{line} calls {function} with arrays of known types and shapes; something else is new each time, a "
        "static argument (static_argnums, static_argnames) or a size. Pass numbers as arrays, and slice equal parts."
    )


def _tf_data_advice(run: Run, dims: Dims, text: str, share_saved: float) -> Advice:
    """Return the advice to give all batches of a dataset one shape.

    Args:
        dims: for each tensor its sizes, the samples first (see `Dims`).
        text: the sentence to begin with.
        share_saved: of the time lost, 0-1.
    """
    size = run.fit.get("batch_size") or _largest(dims[0][0]) or "batch_size"
    if not _varying_sizes(dims):  # but for the number of samples
        return Advice(
            f"{text}Batches differ in their number of samples: batch again with one number, "
            "and without what is left over.",
            f"ds = ds.unbatch().batch({size}, drop_remainder=True)",
            saves=1.0,
            proof="odd_batches",
        )
    longest = max((-(-size // MULTIPLE) * MULTIPLE for size in _varying_sizes(dims) if size), default=512)
    shapes = ", ".join(str([longest if _varies(size) else size for size in sizes[1:]]) for sizes in dims)
    shapes = f"({shapes})" if len(dims) > 1 else shapes
    return Advice(
        f"{text}Does the model mask what is padded? If so, pad all inputs to one length, and drop the "
        f"smaller last batch; this changes {PADDED}.",
        f"ds = ds.unbatch().padded_batch({size}, padded_shapes={shapes}, drop_remainder=True)"
        f"  # {longest}: your longest input",
        share_saved,
        question=True,
        changes=PADDED,
        proof="odd_lengths",
    )


def _arrays(run: Run, dims: Dims, text: str, share_saved: float) -> Advice:
    """Return advice for batches made in Python: fill up small ones, pad each axis that varies to a few lengths.

    Args:
        dims: for each tensor its sizes, the samples first (see `Dims`).
        text: the sentence to begin with.
        share_saved: of the time lost, 0-1, where lengths vary; where only the number of samples does, all is saved.
    """
    lines, says = [], []
    # Lengths are padded to multiples of this, small enough to leave at least two lengths.
    first = 0 if run.custom_loop else 1  # a loop's first axis may be the parts of one sample: no batch of samples
    longest = max((size or 2 * MULTIPLE for size in _varying_sizes(dims, first)), default=2 * MULTIPLE)
    multiple = min(MULTIPLE, 1 << (max(2, longest - 1) // 2).bit_length())
    names = _NAMES[: len(dims)]
    if _batch_varies(dims) and not run.custom_loop:  # in a loop the first axis is padded like the others
        size = _largest(dims[0][0]) or run.fit.get("batch_size")
        says.append("fill the smaller batches up with samples that they have, or leave some out")
        fill = ", ".join(f"{name}[fill]" for name in names)
        lines += [
            f"fill = np.arange({size or 'batch_size'}) % len({names[0]})  # the largest batch's",
            f"{', '.join(names)} = {fill}",
        ]
    for tensor, sizes in enumerate(dims):
        axes = [axis for axis, size in enumerate(sizes) if axis >= first and _varies(size)]
        if not axes:
            continue
        name = names[tensor]
        pads = ", ".join(
            f"(0, -{name}.shape[{axis}] % {multiple})" if axis in axes else "(0, 0)" for axis in range(len(sizes))
        )
        lines.append(f"{name} = np.pad({name}, [{pads}])")
    if not _varying_sizes(dims, first):
        remedy = f"{text}Batches differ in their number of samples: {says[0]}."
        return Advice(remedy, "\n".join(lines), saves=1.0, proof="odd_batches_jax")
    says.insert(0, f"Pad what varies to a few lengths, here to multiples of {multiple}")
    remedy = f"{text}{', and '.join(says)}; this changes {FILLED}."
    return Advice(remedy, "\n".join(lines), share_saved, changes=FILLED, proof="varying_shapes")


def _declared_dims(run: Run) -> Dims | None:
    """Return the shapes of a batch's tensors as the input declares them.

    None where it does not, for one tensor at least, or for more than have a name in the advice.
    """
    dims = run.fit.get("input_dims")
    if not isinstance(dims, list) or not 0 < len(dims) <= len(_NAMES):
        return None
    sizes_by_tensor = [sizes for sizes in dims if isinstance(sizes, list)]
    return sizes_by_tensor if len(sizes_by_tensor) == len(dims) and sizes_by_tensor[0] else None


def _varies(size: Any) -> bool:
    return not isinstance(size, int)


def _largest(size: Any) -> int | None:
    return int(size[1]) if isinstance(size, list) else size


def _batch_varies(dims: Dims) -> bool:
    return any(bool(sizes) and _varies(sizes[0]) for sizes in dims)


def _varying_sizes(dims: Dims, first: int = 1) -> list[int | None]:
    """Return the largest size, if seen, of each dimension that varies, from axis `first` on (0 = the samples)."""
    return [_largest(size) for sizes in dims for size in sizes[first:] if _varies(size)]


EVERY_FIT = "Every fit compiles its own train function"


def _advise_fits(run: Run) -> Advice:
    """Return the advice for fits that each compile: of new models, or of one compiled again."""
    text = "Every fit compiles its train function, because its model is new or was compiled again. "
    if run.fit.get("jit_compile") and run.framework != "jax":
        text += "Do its few steps win back what XLA takes to compile them (jit_compile=False)? "
    text += "If models are new, can one model serve all fits, with its weights set back before each? "
    text += "Is compile called on one model before each fit? If so, call it once, and set the learning rate."
    return Advice(
        text,
        "model.optimizer.learning_rate = rate  # before each fit, in place of model.compile(...)",
        saves=1.0,
        question=True,
        proof="blind/fifth/new_rates",
    )


SLOW = Count(3, "times a step on a known shape: then one on a new shape compiled; longer inputs take longer")
LEAST_NS = Count(50_000_000, "and this much longer: XLA needs 100 ms for the smallest model")
KNOWN_STEPS = Count(10, "on known shapes, to know what a step takes that does not compile")


class Recompilation(Rule):
    """Steps spend time compiling after the first ones, more than a few times.

    Every run compiles once for training, often once more for the last, smaller batch, and once for
    validation: this number of compilations is excluded.

    Why a loop's compiled function is traced again is read from its traces: new shapes, a Python
    number among its arguments, or a function that is made in each step.
    """

    cause = "recompilation"
    title = "Recompilation"
    look = "↻", "violet"
    part = "compile"
    idling = True
    sources = ("compilation time of each step", "or: input shape of each step")
    thresholds = {
        "compile_pct": MATTERS_PCT,
        "compilations": Threshold(5, "training, the smaller last batch, and one of each again are normal"),
        **SIGNIFICANT,
    }
    unknown = "neither compilation nor the shapes of inputs were recorded"

    def missing(self, run: Run) -> bool:
        columns = ("compile_known", "known_rows", "new_rows")
        return not any(run.steps.total(name) for name in columns)

    def find(self, run: Run, limits: Limits) -> Findings:
        spans = significant(self._spans(run, limits), run.present_ns, limits)
        yield from spans or significant(self._beside_steps(run, limits), run.present_ns, limits)
        yield from self._each_fit(run, limits)

    def _each_fit(self, run: Run, limits: Limits) -> Findings:
        """Yield the finding about a script whose fits compile, each with a recording of its own.

        `compile_pct`: of the time in all fits of the process.
        """
        script = Script.from_process(run.manifest.get("process"))
        # Few fits in the process, or most of them in this recording, whose steps show it.
        if script is None or script.fits < max(limits["compilations"], 2 * _fits(run)):
            return
        pct = 100 * script.compiles_again_s / max(1e-9, script.fits_s)
        if pct < limits["compile_pct"] or script.compiles_again_s < limits["least_s"]:
            return
        yield self.finding(
            title=EVERY_FIT,
            lost_ns=round(1e9 * script.compiles_again_s),
            evidence={"compile_pct": round(pct, 1), "compilations": script.compilations},
            advice=_advise_fits(run),
            detail="every_fit",
            of_ns=round(1e9 * script.wall_s),
        )

    def _beside_steps(self, run: Run, limits: Limits) -> Findings:
        """Yield the finding about a line of a loop that compiles again and again within few steps, none of the first.

        Such a loop writes a text, or scores single samples, now and then.
        """
        retraced, first_ns = run.memory_facts.get("retraced"), run.steps.total("compile_ns", slice(1))
        if not run.custom_loop or retraced is None or retraced["traces"] < limits["compilations"]:
            return
        # Time compiling after the first block of steps, ns. Of that line's at least `least_ns` lies there: all that
        # was compiled in the first block may have been its own.
        took, times = run.steps.total("compile_ns") - first_ns, retraced["traces"]
        pct, least_ns = 100 * took / max(1, run.present_ns), 1e9 * retraced.get("seconds", 0.0) - first_ns
        if pct < limits["compile_pct"] or least_ns < MOSTLY * took:
            return
        says = f"{retraced['line']} calls {retraced['function']} with arrays of new shapes, {times} in all, and JAX "
        says += "compiles each. Pad them to one length, or to a few, and leave out what was added."
        evidence: Evidence = {"compile_pct": round(pct, 1), "compilations": times}
        yield self.finding(
            lost_ns=run.lost_of(round(took * (1 - 1 / times)), run.whole),
            evidence=evidence | {"seconds_each": round(took / times / 1e9, 3)},
            advice=_advise_traces(run, times, f"{times} compilations lie in few steps: ", 0.0) or Advice(says),
            detail="beside_steps",
        )

    def _spans(self, run: Run, limits: Limits) -> Findings:
        """Yield the findings about stretches of steps in which compiling takes much of the time.

        Arrays have a value a block of steps: ns `spent` compiling, ns of the `top` compilation, how many `times`.
        """
        steps = run.steps
        usual = _known_shape_ns(run)
        new = _beyond(run, usual) if usual is not None else np.zeros(len(steps), np.int64)
        # Time measured as compilation, and time of steps on new shapes beyond the others'.
        spent = np.maximum(steps["compile_ns"], new)
        top = np.maximum(steps["top_compile_ns"], np.where(new > 0, steps["top_new_ns"], 0))
        times = np.maximum(steps["compile_events"], np.where(new > 0, steps["new_rows"], 0))
        series = Series(steps["rows"], steps["duration_ns"], spent, top, times, steps.rows_per_block)
        for where, blocks in run.spans_in(series, enter=limits["compile_pct"] / 100, min_rows=4):
            count, took = int(times[blocks].sum()), int(spent[blocks].sum())
            if count < limits["compilations"]:
                continue
            lost = run.lost_of(took - _paid_anyhow(top[blocks], took, count), where)
            pct = 100 * took / max(1, steps.total("duration_ns", blocks))
            if pct < limits["compile_pct"]:
                continue
            # Some of it was not measured, but seen by steps on new shapes that took longer than others.
            by_shape = steps.total("compile_ns", blocks) < took
            evidence: Evidence = {
                "compile_pct": round(pct, 1),
                "compilations": count,
                "seconds_each": round(took / count / 1e9, 3),
                "steps": where.steps,
                "seen_by": "steps on a new input shape, against those on a known one" if by_shape else None,
            }
            fits = _fits(run)
            each_fit = fits > 1 and count <= 2 * fits  # its last, smaller batch compiles as well
            yield self.finding(
                title=EVERY_FIT if each_fit else self.title,
                where=where,
                lost_ns=lost,
                confidence=ESTIMATED if by_shape or steps.mostly_estimated(blocks) else MEASURED,
                evidence=evidence,
                advice=_advise_fits(run) if each_fit else _advise_shapes(run, count),
                state=count >= MANY_TIMES,
            )


def _fits(run: Run) -> int:
    """Return the number of fits in the recording."""
    return int(run.facts.get("fits") or 1)


def _paid_anyhow(top: np.ndarray, took: int, count: int) -> int:
    """Return the time of the unavoidable compilation: the first, or one that is far longer than the others, ns."""
    largest = int(top.max())
    usual_ns = (took - largest) / max(1, count - 1)
    return largest if largest > SLOW * usual_ns else int(top[top > 0][0])


def _known_shape_ns(run: Run) -> float | None:
    """Return the median time of a step whose input shape is not new, ns; None with too few steps, or without need."""
    rows, spent = run.steps["known_rows"], run.steps["known_ns"]
    has_rows = rows > 0
    # PyTorch reports each compilation: steps that take long without one lack a core, or wait for a file.
    if int(rows.sum()) < KNOWN_STEPS or (run.framework == "torch" and run.steps.total("compile_known")):
        return None
    return float(np.median(spent[has_rows] / rows[has_rows]))


def _beyond(run: Run, usual: float) -> np.ndarray:
    """Return the time of steps on new shapes beyond the usual, int64[blocks], ns; 0 where that is not a lot.

    Args:
        usual: of a step on a known shape, ns.
    """
    rows, spent = run.steps["new_rows"], run.steps["new_ns"]
    beyond = spent - rows * usual
    slow = (rows > 0) & (spent >= SLOW * rows * usual) & (beyond >= rows * LEAST_NS)
    return np.where(slow, beyond, 0).astype(np.int64)
