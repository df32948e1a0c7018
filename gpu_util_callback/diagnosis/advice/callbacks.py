"""Advice on callbacks and a loop's phases that stop training, by name."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass, replace

from gpu_util_callback.diagnosis.advice.input_wait import brief
from gpu_util_callback.diagnosis.advice.input_work import MAKES_ARRAY
from gpu_util_callback.diagnosis.advice.snippets import at_steps, in_loop, steps_an_epoch, usual_period
from gpu_util_callback.diagnosis.advice.table import Entry, first_holding
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.rule import Advice
from gpu_util_callback.diagnosis.thresholds import DOUBLE, FOUR_FIFTHS, Constant
from gpu_util_callback.recording.manifest_facts import OwnCallback, PythonInSteps
from gpu_util_callback.steps.dispatch import ELEMENTS, EXCHANGES, OWN_PYTHON
from gpu_util_callback.words import duration, ordinal, percent

EVERY_BATCH = 100  # a callback that works every hundredth batch no longer shows ...
SELDOM = 10  # ... if it works in most; one that works less often than this takes long each time
# Round numbers of batches, of which advice takes the first that suffices.
BATCHES = (100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000)
# Interval in epochs at which a callback may work, and the share of the time it may still take.
EPOCHS = (1, 2, 3, 5, 10, 20, 50, 100)
LEFT = 0.045  # so that what is left is no gain worth a word (`LEAST_GAIN`: 5 %)

# Measured, of what update_freq="batch" takes: update_freq="epoch" alone leaves 30-40 %, with
# write_steps_per_second 40-80 %, and this 1 %.
_ONCE_PER_EPOCH = """\
class OncePerEpoch(keras.callbacks.TensorBoard):
    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch)  # without the metrics
callbacks = [OncePerEpoch(..., update_freq="epoch", write_steps_per_second=False)]"""

_SAVERS = ("ModelCheckpoint", "BackupAndRestore")
# Keras' own, whose code a program subclasses instead of editing it.
_OF_KERAS = ("CSVLogger", "EarlyStopping", "LambdaCallback", "ReduceLROnPlateau", "RemoteMonitor", "TensorBoard")
SHORT = Constant(1800, "s: a training this short is repeated rather than resumed; a longer one keeps its saves")
_AS_BEFORE = "Does training go on the same where it is left out"


@dataclass(frozen=True)
class Work:
    """Work of a callback's hook, or of a phase of a loop, for which training waits.

    Attributes:
        name: "Class.hook", or the phase's; "" = not known.
        times: how often it worked in the span.
        took_ns: its time in all.
        span_ns: the span's.
        epochs: of the span.
    """

    run: Run
    name: str
    times: int
    took_ns: int
    span_ns: int
    epochs: int

    @property
    def who(self) -> str:
        """Class or phase."""
        return self.name.partition(".")[0] or "A callback"

    @property
    def hook(self) -> str:
        """Hook's name; "" for a phase of a loop."""
        return self.name.partition(".")[2]

    @property
    def facts(self) -> OwnCallback:
        """Facts of the class, one of the user's callbacks."""
        return (self.run.fit.get("callbacks") or {}).get(self.who) or {}

    @property
    def place(self) -> str:
        """The hook, as "work (train.py, line 12)"; of a trainer's phase all hooks that it may be; else the class."""
        places = self.facts.get("places") or {}
        return places.get(self.hook) or ("" if self.hook else " or ".join(places.values())) or self.who

    @property
    def from_library(self) -> bool:
        """True if the class is not the program's own."""
        return self.who in _OF_KERAS or bool(self.facts.get("library"))

    @property
    def base(self) -> str:
        """The class as a program names it."""
        return f"keras.callbacks.{self.who}" if self.who in _OF_KERAS else self.who

    @property
    def first_argument(self) -> str:
        """The hook's name for its epoch or batch; "" if it takes none."""
        usual = next((unit for unit in ("batch", "epoch") if unit in self.hook), "")
        argument_name = (self.facts.get("names") or {}).get(self.hook) or usual
        return str(argument_name) if usual and re.fullmatch(r"[A-Za-z_]\w*", str(argument_name)) else usual

    @property
    def saver(self) -> bool:
        """True for Keras' callbacks that save the model."""
        return self.who in _SAVERS

    @property
    def rest_ns(self) -> int:
        """Time of the span without the work, ns."""
        return self.span_ns - self.took_ns

    @property
    def total(self) -> int:
        """Epochs of the whole training."""
        return max(self.epochs, int(self.run.fit.get("epochs", self.epochs)))

    @property
    def every_epochs(self) -> int:
        """Interval in epochs at which the work no longer shows, done at their ends."""
        once_an_epoch_ns = self.took_ns / max(1, self.times) * self.epochs
        share = once_an_epoch_ns / max(1.0, self.rest_ns)
        return next((every for every in EPOCHS if share / every <= LEFT), EPOCHS[-1])

    @property
    def once(self) -> bool:
        """True if the training is so short that the work of its epochs should be done once."""
        is_short = self.span_ns / self.epochs * self.total < SHORT * 1e9
        return self.every_epochs >= self.total > 1 and is_short

    @property
    def keeping_best(self) -> str:
        """Another way to keep the best weights, where the model is saved only once."""
        if self.who != "ModelCheckpoint":
            return ""
        epochs = int(self.run.fit.get("epochs") or 1)
        return (
            f". To keep only the best weights, use EarlyStopping(patience={epochs}, restore_best_weights=True); "
            "it holds them in memory"
        )

    @property
    def as_now(self) -> str:
        """The line that stands in the program now, in place of which `_at_every` gives another."""
        return f"callbacks = [{self.who}(...)]" if self.from_library else f"...  # in {self.name or 'the callback'}"


@dataclass(frozen=True)
class EpochWork(Work):
    """Work at the end of each epoch, or in a phase of a loop."""

    @property
    def says(self) -> str:
        """The observation."""
        return f"{self.place} takes {duration(self.took_ns / self.times / 1e9)} each time, and training waits."

    @property
    def every_epochs(self) -> int:
        """Interval in epochs at which the work no longer shows, longer than now."""
        return max(2, super().every_epochs)

    @property
    def saved(self) -> float:
        """Share (0-1) of the work that is left out at the wanted interval."""
        return 1 - math.ceil(self.times / self.every_epochs) / self.times

    @functools.cached_property
    def argument(self) -> Interval | None:
        """The class's argument for its interval; None = it has none."""
        return _argument(self, "epoch", 1.0, min(self.every_epochs, self.total))


@dataclass(frozen=True)
class StepWork(Work):
    """Work after batches.

    Attributes:
        steps: of the span.
        pooled: Keras runs it on other threads, and waits for them at the ends of epochs and validations.
    """

    steps: int
    pooled: bool = False

    @property
    def each_ms(self) -> float:
        """Time of the work per step."""
        return self.took_ns / self.steps / 1e6

    @property
    def period(self) -> float:
        """Steps from one time to the next."""
        return self.steps / self.times if self.times else 1.0

    @property
    def says(self) -> str:
        """The observation."""
        waits = "the GPU waits" if self.run.used_gpus else "training waits"
        if self.pooled:
            which = "validation" if "test" in self.hook else "epoch"
            return (
                f"Keras runs {self.place} on other threads, and at the end of each {which} training waits for them, "
                f"{duration(self.took_ns / 1e9)} in all."
            )
        if self.period >= SELDOM:  # it works in few steps, and takes long each time
            spent = duration(self.took_ns / self.times / 1e9)
            every = usual_period(self.steps / self.epochs, self.times / self.epochs)
            return f"About every {every} steps, {self.place} takes {spent}, and {waits}."
        return f"{self.place} takes {brief(self.each_ms)} a step, and {waits}."

    @property
    def or_in_background(self) -> str:
        """The remedy of a background thread, as the end of a sentence; "" where Keras runs the hook on one already."""
        return "" if self.pooled else ", or do it in a background thread"

    @property
    def per_epoch(self) -> float:
        """Steps of an epoch; of the whole loop where no fit restarts the count."""
        return self.steps / (1 if self.run.custom_loop else max(1, self.epochs))

    @property
    def every(self) -> int:
        """Interval in batches at which the work no longer shows."""
        if self.period < SELDOM:
            return EVERY_BATCH
        needed_interval = self.period * self.took_ns / max(1.0, self.rest_ns) / LEFT
        return next((every for every in BATCHES if every >= needed_interval), BATCHES[-1])

    @property
    def once_an_epoch(self) -> bool:
        """True if `every` batches are more than an epoch has, so that the work belongs at its end."""
        several = self.per_epoch > self.period
        return self.every >= self.per_epoch and several and self.every > EVERY_BATCH

    @property
    def saved(self) -> float:
        """Share (0-1) of the work that is left out at the wanted interval."""
        often = max(1.0, self.per_epoch / self.period)
        return 1 - min(1.0, math.ceil(self.per_epoch / self.every) / often)

    @functools.cached_property
    def argument(self) -> Interval | None:
        """The class's argument for its interval; None = it has none."""
        return _argument(self, "batch", self.period, self.every)


ARGUMENT = Entry(
    "argument",
    when=lambda w: w.argument is not None,
    remedy="Its argument {argument.name} sets how often it works",
    code="{who}(..., {argument.name}={argument.wanted})",
    before="{who}(..., {argument.name}={argument.now})",
    saves=lambda w: w.saved,
    proof="callback_argument",
)
_SWAPS = Entry(
    "swapped weights",
    when=lambda w: w.who == "SwapEMAWeights",
    says="{says} It swaps the weights for their averages and back.",
)
_SAVE_AFTER = '\nmodel.save("model.keras")  # after fit, which ends between two saves'
_SAVE_ONCE = Entry(
    "save once",
    when=lambda w: w.saver and w.once,
    remedy=lambda w: f"Save once, at the end of this short training{w.keeping_best}",
    code='model.save("model.keras")  # after fit, instead of {who}',
    saves=lambda w: 1 - 1 / max(w.total, w.times),
    proof="checkpoints",
)
_LESS_OFTEN = Entry(
    "less often",
    asks=f"{_AS_BEFORE}?",
    remedy="Do it less often, or in a background thread",
    code=lambda w: _at_every(w, w.every_epochs),
    before=lambda w: w.as_now,
    saves=lambda w: w.saved,
    proof="callback_epochs",
)
_ONCE = Entry(
    "once, at the end",
    when=lambda w: w.once and w.hook,
    asks=f"{_AS_BEFORE}?",
    remedy="Do it once, at the end of this short training",
    code=lambda w: _in_later_hook(w, "on_train_end"),
    before=lambda w: w.as_now,
    saves=lambda w: 1 - 1 / w.total,
    proof="epoch_callback",
)
_SAVE_LESS_OFTEN = replace(
    _LESS_OFTEN,
    name="a loop's checkpoints",
    # No later step rests on a phase that saves.
    when=lambda w: w.run.custom_loop and "checkpoint" in w.name.lower(),
    asks="",
    changes="how much of the training a crash loses",
    before="",
    proof="loop_checkpoints",
)
EPOCH_WORK = (
    _SWAPS,
    replace(
        _SAVE_LESS_OFTEN,
        remedy="Save {every_epochs} times less often",
        code=lambda w: in_loop(w.run, w.name, w.times, w.every_epochs),
    ),
    _SAVE_ONCE,
    Entry(
        "no histograms",
        when=lambda w: "histogram_freq" in (w.facts.get("every") or {}),
        remedy="Histograms and images of all weights take most of that: write none",
        code="keras.callbacks.TensorBoard(..., histogram_freq=0, write_images=False)",
        saves=lambda w: 1.0,
        proof="blind/third/weight_histograms",
    ),
    ARGUMENT,
    _ONCE,
    Entry(
        "save less often",
        when=lambda w: w.saver,
        remedy=lambda w: f"Save every {ordinal(w.every_epochs)} epoch",
        code=lambda w: _save_every(w) + (_SAVE_AFTER if w.total % w.every_epochs else ""),
        saves=lambda w: 1 - (w.times // w.every_epochs) / w.times,
        proof="saves_less_often",
    ),
    replace(
        _ONCE,
        name="a loop's phase once",
        when=lambda w: not w.hook and w.once and w.run.ended,
        remedy="Do it once, at the end of this short training, or in a background thread",
        code=lambda w: in_loop(w.run, w.name, w.total, last=True),
        before="",
        proof="loop_phase_once",
    ),
    replace(
        _LESS_OFTEN,
        name="a loop's phase less often",
        when=lambda w: not w.hook,
        code=lambda w: in_loop(w.run, w.name, w.times, w.every_epochs),
        before="",
        proof="loop_phase_less_often",
    ),
    _LESS_OFTEN,
)
STEP_WORK = (
    _SWAPS,
    replace(
        _SAVE_LESS_OFTEN,
        remedy=lambda w: f"Save every {ordinal(w.every)} step",
        code=lambda w: at_steps(w.run, w.name, w.every),
        proof="loop_checkpoints_in_steps",
    ),
    _SAVE_ONCE,
    Entry(
        "save at epochs",
        when=lambda w: w.saver,
        remedy=lambda w: "Save once an epoch" if w.every_epochs == 1 else f"Save every {ordinal(w.every_epochs)} epoch",
        code=lambda w: _save_every(w),
        saves=lambda w: max(0.0, 1 - max(1, w.epochs // w.every_epochs) / max(1, w.times)),
        proof="blind/first/saved_each_batches",
    ),
    Entry(
        "no metrics of batches",
        when=lambda w: w.who == "TensorBoard",
        says="{says} It makes a summary of every metric after every batch, even of those that "
        "update_freq does not let it write.",
        remedy="Write once an epoch, and give it no metrics in between",
        code=lambda w: _ONCE_PER_EPOCH,
        saves=lambda w: 1.0,
        proof="tests/cures/test_advice.py::test_tensorboard_makes_no_summaries_between_epochs",
    ),
    Entry(
        "no progress bar",
        when=lambda w: w.who == "ProgbarLogger",
        says=lambda w: f"Keras' progress bar takes {brief(w.each_ms)} of every step, and these steps are short.",
        remedy="Print one line an epoch instead",
        code="model.fit(..., verbose=2)",
        saves=lambda w: 1.0,
        proof="progress_bar",
    ),
    replace(
        _LESS_OFTEN,
        name="a loop's phase less often",
        when=lambda w: w.run.custom_loop,
        remedy=lambda w: f"Do it every {ordinal(w.every)} step, or do it in a background thread",
        code=lambda w: at_steps(w.run, w.name, w.every),
        before="",
        proof="loop_phase_in_steps",
    ),
    ARGUMENT,
    replace(
        _LESS_OFTEN,
        name="once an epoch",
        when=lambda w: w.once_an_epoch,
        remedy="Do it once an epoch{or_in_background}",
        code=lambda w: _in_later_hook(w, "on_epoch_end"),
        proof="callback_once_an_epoch",
    ),
    replace(
        _LESS_OFTEN,
        remedy=lambda w: f"Do it every {ordinal(w.every)} batch{w.or_in_background}",
        code=lambda w: _at_every(w, w.every),
        proof="reading_callback_jax",
    ),
)


def at_epochs(work: EpochWork) -> Advice:
    """Return advice for a callback that works at the end of epochs, or in a loop's phase."""
    return replace(first_holding(EPOCH_WORK, work), leaves_out=True)


def in_steps(work: StepWork) -> Advice:
    """Return advice for a callback that works after batches."""
    return replace(first_holding(STEP_WORK, work), leaves_out=True)


@dataclass(frozen=True)
class Interval:
    """A class's argument for its interval: its name, its value now, and the one to set."""

    name: str
    now: int
    wanted: int


def _argument(work: Work, unit: str, period: float, new_interval: int) -> Interval | None:
    """Return a class's argument that sets how often its callback works; None if it has none.

    Args:
        unit: the unit that the argument counts, "batch" or "epoch".
        period: the observed interval in these units: an argument of a very different value does not set it.
        new_interval: the interval to set.
    """
    values = work.facts.get("every") or {}
    other_unit = r"epoch" if unit == "batch" else r"batch|step|iter"
    for argument, value in values.items():
        # No plain name, or it counts the other unit.
        if not re.fullmatch(r"[A-Za-z]\w*", argument) or re.search(other_unit, argument):
            continue
        if value < new_interval and value / 2 <= period <= 2 * value:
            return Interval(argument, value, new_interval)
    return None


def _at_every(work: Work, every: int) -> str:
    """Return lines that let a hook do its work at every `every`th call only.

    Code of the program's own class gets a condition; of a library's class a subclass is made.
    """
    name, counter = work.name or "the callback", work.first_argument or ("" if work.hook else "batch")
    # A hook without a number counts its calls itself.
    calls = "" if counter else 'self.calls = getattr(self, "calls", -1) + 1'
    condition = f"if {counter or 'self.calls'} % {every} == 0:"
    if not work.from_library:
        return "\n".join(filter(None, [calls, f"{condition} ...  # in {name}"]))
    passed_arguments = f"{counter}, " if counter else ""
    lines = [
        f"class Rare{work.who}({work.base}):",
        f"    def {work.hook}(self, {passed_arguments}logs=None):",
        *([f"        {calls}"] if calls else []),
        f"        {condition}",
        f"            super().{work.hook}({passed_arguments}logs)",
        f"callbacks = [Rare{work.who}(...)]",
    ]
    return "\n".join(lines)


def _in_later_hook(work: Work, to: str) -> str:
    """Return lines that move a hook's work to a later hook, with the arguments of its last call.

    Args:
        to: name of the later hook, such as "on_train_end".
    """
    first, hook = work.first_argument, work.hook
    passed = f"{first}, logs" if first else "logs"
    arguments = f"{first}, logs=None" if first else "logs=None"
    later = "epoch, logs=None" if "epoch" in to else "logs=None"
    lines = [f"def {hook}(self, {arguments}):", f"    self.last = {passed}", f"def {to}(self, {later}):"]
    if not work.from_library:
        return "\n".join([*lines, f"    {passed} = self.last", f"    ...  # what {work.name} does"])
    lines += [f"    super().{to}({later.replace('=None', '')})", f"    super().{hook}(*self.last)"]
    inside = [f"    {line}" for line in lines]
    return "\n".join([f"class Rare{work.who}({work.base}):", *inside, f"callbacks = [Rare{work.who}(...)]"])


def _save_every(work: Work) -> str:
    """Return the line of a saving callback that saves every `work.every_epochs` epochs."""
    if work.every_epochs == 1:
        return f'keras.callbacks.{work.who}(..., save_freq="epoch")'
    steps = steps_an_epoch(work.run) or "steps_per_epoch"
    where = ", where val_loss is not known: without save_best_only" if work.who == "ModelCheckpoint" else ""
    return f"keras.callbacks.{work.who}(..., save_freq={work.every_epochs} * {steps})  # in batches{where}"


# What a step calls, as stored -> what to do, its code, and what that changes. Nothing else rests on these calls.
_LOG = (
    f"It computes and writes on the training thread: log every {ordinal(EVERY_BATCH)} step",
    f"if step % {EVERY_BATCH} == 0: ...  # what is logged now",
    "how many points the log has",
)
_TEXT = (
    "An f-string makes text of each element, whether a logger shows the line or not: make it every "
    f"{ordinal(EVERY_BATCH)} step, or of the shape and the mean alone",
    f"if step % {EVERY_BATCH} == 0: ...  # what is printed or logged now",
    "how many lines the log has",
)
_SPARED = {
    "gc.collect": (
        "Python collects garbage by itself: leave it out, or collect once an epoch",
        "gc.collect()  # after an epoch, not in each step",
        "when memory that refers to itself is freed",
    ),
    "log_metrics": (_LOG[0], f"Trainer(..., log_every_n_steps={EVERY_BATCH})", _LOG[2]),  # Lightning's loggers
    **dict.fromkeys(("str(tensor)", "str(array)"), _TEXT),
    **dict.fromkeys(("tf.summary", "SummaryWriter", "wandb", "mlflow", "self.log"), _LOG),
}


def is_exchange(calls: PythonInSteps) -> bool:
    """Return whether calls within the steps are exchanges between ranks."""
    return calls["calls"].startswith(tuple(EXCHANGES.values()))


def call_seldom(calls: PythonInSteps, exchanges: int = 0, of_jax: bool = False) -> Advice:
    """Return advice for calls within the steps that do not train.

    Args:
        calls: what was seen of them: their name, line and share of the steps' time.
        exchanges: calls between ranks in a step; 0 = not known.
        of_jax: whether JAX trains, whose arrays never change.
    """
    call, place, share, at_line = calls["calls"], calls["at"], calls["aside"], calls["at_line"]
    part = "" if at_line >= FOUR_FIFTHS else f", {percent(100 * at_line)} of it there"
    function = place.partition(" ")[0]
    if calls.get("through"):  # the compiled step calls a Python function
        return _called_back(calls, part)
    if calls.get("beside"):  # another thread holds the interpreter's lock
        says = f"{place} keeps Python's lock on another thread, and each call of the training waits for it"
        return Advice(f"{says}. Let that thread block (queue.get()), sleep, or be a process.")
    within = "" if call in (function, OWN_PYTHON) else f"calls such as {call}, in "
    says = f"{percent(100 * share)} of the steps' time passes in {within}{place}{part}."
    spared = _SPARED.get(call) or _SPARED.get(function.rpartition(".")[2])
    if spared is not None:  # logging and the like: seldom is enough
        remedy, code, changes = spared
        saves = at_line * (1 - 1 / EVERY_BATCH)
        text = f"{says} {remedy}. This changes {changes}."
        proof = "blind/ninth/debug_strings" if spared is _TEXT else "logs_in_steps"
        return Advice(text, code, saves, changes=changes, leaves_out=True, proof=proof)
    if is_exchange(calls) and calls["learned"]:  # ranks average their gradients call by call
        sends = f"A step exchanges gradients in {exchanges:,} calls, and in each waits for all ranks."
        text = f"{says} {sends} Are most of them small? If so, let DistributedDataParallel send many at a time, while "
        code = "model = torch.nn.parallel.DistributedDataParallel(model)  # in place of the exchanges"
        saves, proof = at_line * FOUR_FIFTHS, "blind/sixth/tutorial_averages"
        return Advice(f"{text}backward runs.", code, saves, question=True, proof=proof)
    if is_exchange(calls):  # ranks exchange something else
        text = f"{says} Each rank waits there for all others, and pickles objects: two numbers in a tensor cost less."
        often = f"does training go on the same where they exchange in every {ordinal(SELDOM)} step"
        asks, code = f"Do they come there at the same time, and {often}?", f"if step % {SELDOM} == 0: ...  # {call}"
        saves, proof = at_line * (1 - 1 / SELDOM), "blind/fifth/gathered_scores"
        return Advice(f"{text} {asks}", code, saves, question=True, leaves_out=True, proof=proof)
    if call == ELEMENTS:
        text = f"{says} Each element of an array of JAX is an operation of its own: convert the whole array once."
        code = "values = np.asarray(values)  # before the loop over its elements"
        return Advice(text, code, proof="blind/tenth/loss_of_each")
    is_hook = function.rpartition(".")[2].startswith("on_")  # a trainer's
    slow = "" if within or is_hook else " Python runs there, element by element: compute it of whole arrays."
    if of_jax and call in ("copy.deepcopy", "copy.copy"):
        asks = "Are they arrays of JAX, and not donated (donate_argnums)? If so, keep a reference: they never change."
        code = "before = weights, state  # in place of a copy"
        return Advice(f"{says} {asks}", code, at_line, question=True, proof="blind/eleventh/taken_back")
    if calls.get("learned"):  # training uses the result
        return Advice(f"{says}{slow} Training learns from its value: it cannot be left out.")
    if re.search(MAKES_ARRAY, call):  # an array made of Python's numbers
        asks = f"Does {call} get Python's numbers, such as a list or a deque? It goes through them one by one"
        return Advice(f"{says} {asks}: keep them in an array, and change that in place.", question=True)
    return leave_out(f"{says}{slow}", f"...  # {call}", at_line, proof="step_statistics")


def call_half_as_often(calls: PythonInSteps) -> Advice:
    """Return advice for calls that do not train, within some of the steps."""
    says = f"{percent(100 * calls['aside'])} of the steps' time passes in {calls['calls']}, in some of them alone"
    text = f"{says}, at {calls['at']}. Is half as often enough, or can a background thread do it?"
    return Advice(text, "", calls["at_line"] / DOUBLE, question=True, leaves_out=True, proof="loop_long_steps")


def leave_out(says: str, code: str, share: float, otherwise: str = "", proof: str = "") -> Advice:
    """Return advice to leave out of most steps what a share (0-1) of the lost time passes in, if it may be."""
    often = f"If so, do it every {ordinal(SELDOM)} step{otherwise}."
    text, code = f"{says} {_AS_BEFORE} of most steps? {often}", f"if step % {SELDOM} == 0: {code}"
    return Advice(text, code, share * (1 - 1 / SELDOM), question=True, leaves_out=True, proof=proof)


def _called_back(calls: PythonInSteps, part: str) -> Advice:
    """Return advice for a Python function that a compiled step calls and waits for.

    Args:
        part: how much of that is at the named line, as the end of a clause; "" = nearly all.
    """
    call, of_batch = calls["calls"], calls.get("of_batch")
    says = (
        f"{percent(100 * calls['aside'])} of the steps' time passes in {calls['at']}{part}: the compiled step calls "
        f"{call} through {calls['through']} and waits for it."
    )
    if of_batch is False:  # it needs the model's outputs: nothing can be computed before
        asks = (
            "It is given what the model computes. Is it a metric, which no loss uses? If so, compute it once an epoch"
        )
        return Advice(f"{says} {asks}; if not, write it with the framework's operations.", question=True)
    alone = "It is given the batch alone, nothing that the model computes. " if of_batch else ""
    asks = f"Does {call} return the same for a sample in each epoch{'' if of_batch else ', whatever the weights are'}?"
    return Advice(
        f"{says} {alone}{asks} If so, compute it once, and give it to the step with the batch.",
        f"made = {call}(...)  # of all samples, once; a part of the targets, as the loss gets them",
        calls["at_line"],
        question=True,
        proof="called_back",
    )
