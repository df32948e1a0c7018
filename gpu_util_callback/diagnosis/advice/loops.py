"""Advice on a loop of the user's own: time that nothing names between its steps, or in some of them."""

from gpu_util_callback.diagnosis.advice import host
from gpu_util_callback.diagnosis.advice.callbacks import leave_out
from gpu_util_callback.diagnosis.advice.snippets import roundest
from gpu_util_callback.diagnosis.evidence.blocks import Occurrences
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.script import StackSamples
from gpu_util_callback.diagnosis.rule import Advice
from gpu_util_callback.diagnosis.thresholds import DOUBLE, MOSTLY
from gpu_util_callback.recording.manifest_facts import Dispatch, PythonInSteps
from gpu_util_callback.words import capitalized, duration, percent

# Places of time between the steps of a loop; another is "about every 20 steps".
AFTER_EPOCHS, EACH_STEP = "after each epoch", "between the steps"
WAITS_BETWEEN = "Training waits for its input between the steps"
WAITS_WITHIN = "Training waits for its input within the steps"
PREDICTS_BETWEEN = "predict is called between the steps"
COPIES = "Each step copies arrays to change some of their elements"
OWN_PYTHON = "The program's own Python in each step keeps the GPU waiting"
_MARK = " Mark it, so that it is named and judged accordingly."
_NOT_SEEN = f" The monitor does not see what the loop does there: validation, saving, logging?{_MARK}"
_LET_IT_FETCH = "for batch in monitor.batches(dataset): ...  # then without monitor.step()"
_SEES = " The monitor sees why only where it is given the dataset."
_MAKES = "Does it make the same each time, such as data? Then call it once, before the loop."
_LOADS = "Lightning calls {} again and again. Read the data once, in setup, or set reload_dataloaders_every_n_epochs=0."


def unnamed(run: Run, place: str, each_s: float) -> Advice:
    """Return advice on time of a custom loop that nothing names.

    Args:
        place: AFTER_EPOCHS, EACH_STEP, or other words that say when, such as "about every 20 steps".
        each_s: its length each time, in seconds.
    """
    each, says = duration(each_s), _NOT_SEEN
    if place == AFTER_EPOCHS:
        time = f"{each} {place}"
        code = 'with monitor.phase("validation"): ...  # what runs after each epoch, by its name'
    elif place == EACH_STEP:
        time, says = f"{each} between steps", _MARK
        code = 'with monitor.phase("logging"): ...  # what the loop does between two steps, by its name'
        if not run.trainer and not run.steps.total("wait_known"):  # the fetching of batches was not seen either
            asks = "Does the loop fetch its next batch there? If so, let it see the fetching."
            return Advice(f"{time} is not seen by the monitor. {asks}", _LET_IT_FETCH, question=True)
    else:
        time = f"{capitalized(place)}, {each}"
        code = f'with monitor.phase("checkpoint"): ...  # what runs {place}, under its name'
    # A trainer marks what it does by itself.
    return Advice(f"{time} is unaccounted for.{'' if run.trainer else says}", "" if run.trainer else code)


def fetching_between(run: Run, share: float) -> Advice:
    """Return advice on an iterator in which a share (0-1) of the time between the steps passes."""
    text = f"{100 * share:.0f} % of the time between the steps passes in the iterator of a dataset."
    return Advice(text) if run.trainer else Advice(text + _SEES, _LET_IT_FETCH)


# What delivers batches -> the line with which it makes them during the steps.
_AHEAD = {
    "a DataLoader": f"loader = DataLoader(dataset, ..., num_workers={host.WORKERS}, persistent_workers=True)",
    "a tf.data.Dataset": "ds = ds.prefetch(tf.data.AUTOTUNE)  # as its last stage",
}


def fetching_within(run: Run, calls: PythonInSteps) -> Advice:
    """Return advice on a line in the steps that fetches their batches, and waits for them."""
    source, code = calls["fetches_from"], _AHEAD.get(calls["fetches_from"], "")
    text = f"In {percent(100 * calls['fetches'])} of the steps' time it waits for {source}, at {calls['fetches_at']}."
    text += " Is a core free to make batches during the steps? Then let it." * bool(code)
    # A trainer's program has no monitor, which `gpu-util run` brings.
    sees, let_it_fetch = ("", "") if run.trainer else (_SEES, _LET_IT_FETCH)
    return Advice(text + sees, code or let_it_fetch, question=bool(code))


def function_between(run: Run, function: str, place: str) -> Advice:
    """Return advice on a function of the program that runs outside the steps, at this place of the loop.

    Args:
        function: "name" or "Class.method", as in the program.
    """
    # A DataLoader that is made again and again.
    if run.trainer == "lightning" and function.endswith(".train_dataloader"):
        return Advice(_LOADS.format(function))
    if run.trainer:
        return Advice(f"{function} runs {place}. {_MAKES} Else call it less often, or let it do less.")
    text = f"{function} runs {place}, and the monitor does not see what it does there. {_MAKES}"
    if place != AFTER_EPOCHS:  # it may be a validation or logging: let the program mark it
        code = f'with monitor.phase("validation"): {function}(...)  # or what else it is'
        return Advice(f"{text} Marked, it is judged as what it is.", code)
    text, code = f"{text} Is every second epoch enough?", f"if epoch % 2 == 0:\n    {function}(...)"
    return Advice(text, code, 1 / DOUBLE, question=True, leaves_out=True, proof="loop_function")


def reads_between(share: float, place: str) -> Advice:
    """Return advice where a share (0-1) of the samples outside the steps is in reads of JAX's values, at this place."""
    return Advice(
        f"{percent(100 * share)} of the time outside the steps passes in reads of what JAX computes, such as "
        f"float(loss), {place}. Compiled functions return before they are done: it is the steps' own work that it "
        "waits for there, and what else was called behind them. If that is a validation, mark it.",
        'with monitor.phase("validation"): ...  # what is computed there, and its read',
    )


def long_steps(run: Run, long: Occurrences, usual_ns: float, function: str) -> Advice:
    """Return advice on steps that take many times as long as the usual one.

    Args:
        function: the program's, in which most of their time passes; "" = not known.
        long: the steps; usual_ns: duration of the usual one.
    """
    ratio = long.self_ns / long.count / max(1.0, usual_ns)
    as_long = f"{float(f'{ratio:.2g}'):,.0f} times as long as the others"
    text = f"{long.count:,} of {run.steps.total_rows:,} steps take {as_long}."
    if run.trainer:
        return Advice(text)
    if not function:
        return Advice(text + _NOT_SEEN, 'with monitor.phase("validation"): ...  # what runs in them, by its name')
    # Steps from one long step to the next, and the steps in a block, within which they are known.
    apart, block = (long["step"][-1] - long["step"][0]) / (len(long["step"]) - 1), run.steps.rows_per_block
    off = block / (len(long["step"]) - 1)  # of a block the first step is known
    every = max(2, 2 * roundest(apart - off, apart + off))
    samples: Dispatch = run.fit.get("dispatch") or {}
    line = samples.get("own_at") or ""
    is_most = line.startswith(f"{function} (") and samples["at_place"] >= MOSTLY * samples["own"]
    text += f" Most of that passes in {line if is_most else function}. Is half as often enough?"
    code = f"if step % {every} == 0:\n    {function}(...)"
    return Advice(text, code, 1 / DOUBLE, question=True, leaves_out=True, proof="loop_long_steps")


def own_python(samples: StackSamples) -> Advice:
    """Return advice on Python of the program's own in which the training thread spends a part of each step."""
    place, part = samples.own_at[0], "most" if samples.own_at[1] > MOSTLY else percent(100 * samples.own_at[1])
    return Advice(
        f"{percent(100 * samples.own)} of a step the training thread is in Python of the program's "
        f"own, {part} of it in {place}, and the GPU waits. Make that cheaper, or let the input do it, whose "
        "workers prepare a batch during steps."
    )


def copied_arrays(run: Run) -> Advice | None:
    """Return the advice where most operations that a loop starts change JAX's arrays by a copy; None elsewhere."""
    dispatch: Dispatch = run.fit.get("dispatch") or {}
    if dispatch.get("in_copied", 0) < MOSTLY * max(1, dispatch.get("eager", 0)):
        return None
    return Advice(
        f"Most of it passes in x.at[...].set(...) outside of jit, mostly at {dispatch['copied_at']}: that copies all "
        "of x for each change, and may wait for the compiled step that came before. Is x larger than a few MB? If so, "
        "keep it in an array of NumPy, which is changed in place, or change it in a compiled function that reuses it.",
        "@functools.partial(jax.jit, donate_argnums=0)\ndef changed(x, index, value):\n"
        "    return x.at[index].set(value)",
        question=True,
        proof="blind/ninth/copied_buffer",
    )


def in_each_step(at: str, share: float, of_jax: bool) -> Advice:
    """Return advice on a function of the program in which a share (0-1) of each step on a CPU passes.

    Args:
        at: the function and its line, as "work (train.py, line 12)".
        of_jax: it starts operations of JAX one by one.
    """
    says, code = f"{percent(100 * share)} of the steps' time passes in {at}", f"{at.partition(' (')[0]}(...)"
    if of_jax:  # the thread hands the compiled step over
        says += ", which starts operations one by one, and may wait there for the compiled step that came before"
    within, proof = ", or within the compiled step" * of_jax, "blind/sixth/layer_norms" if of_jax else "step_statistics"
    return leave_out(f"{says}.", code, 1.0, within, proof)
