"""Advice on work that stops training: validation, checkpoints, callbacks by name."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpu_util_callback.diagnosis.advice.input_wait import ROOM, InputWait, brief
from gpu_util_callback.diagnosis.advice.loaders import with_workers
from gpu_util_callback.diagnosis.advice.snippets import steps_an_epoch
from gpu_util_callback.diagnosis.advice.table import Entry, choose, first_holding
from gpu_util_callback.diagnosis.evidence.run import Run
from gpu_util_callback.diagnosis.finding import Advice
from gpu_util_callback.diagnosis.thresholds import Constant
from gpu_util_callback.recording.facts import OwnCallback
from gpu_util_callback.words import duration

EVERY_BATCH = 100  # a callback that works every hundredth batch no longer shows ...
SELDOM = 10  # ... if it works in most; one that works less often than this takes long each time
BATCHES = tuple(one * ten for ten in (100, 1_000, 10_000) for one in (1, 2, 5))
# Interval in epochs at which a callback may work, and the share of the time it may still take.
EPOCHS = (2, 3, 5, 10, 20, 50, 100)
LEFT = 0.045
VALIDATION_WORKERS = 4
# Largest share of training and validation together that a shortened validation takes.
SHARE = 0.1
# Validations that a training keeps at least, if it has as many.
VALIDATIONS_LEFT = 4

# Measured, of what update_freq="batch" takes: update_freq="epoch" alone leaves 30-40 %, with
# write_steps_per_second 40-80 %, and this 1 %.
_ONCE_PER_EPOCH = """\
class OncePerEpoch(keras.callbacks.TensorBoard):
    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch)  # without the metrics
callbacks = [OncePerEpoch(..., update_freq="epoch", write_steps_per_second=False)]"""

# Arguments that set the interval of well-known callbacks, for recordings that hold none.
_INTERVALS = {"WandbMetricsLogger": {"log_freq": 1}}
_SAVERS = ("ModelCheckpoint", "BackupAndRestore")


PREDICT_ADVICE = Advice(
    "Keras makes a data adapter, a pipeline and an iterator in every call of predict: it is meant "
    "for data sets. For one batch at a time call predict_on_batch, which computes the same, or the "
    "model itself inside a compiled function.",
    "predictions = model.predict_on_batch(batch)  # in place of model.predict(batch)",
)


@dataclass(frozen=True)
class Validations:
    """Validations that take a good part of the time.

    Attributes:
        count: how many there were.
        took_ns, wait_ns: their time, and how much of it they waited for their data.
        span_ns: training and validation together; pct: their share of it.
    """

    run: Run
    count: int
    took_ns: int
    wait_ns: int
    span_ns: int
    pct: float

    def gain(self, saves: float) -> float:
        """Return how many times faster training and validation get."""
        return self.span_ns / max(1.0, self.span_ns - saves * self.took_ns)

    @property
    def waiting(self) -> float:
        """Share of their time in which they wait for their data."""
        return self.wait_ns / max(1, self.took_ns)

    @property
    def waits(self) -> str:
        """The same in words."""
        return f"Validation waits for its data {100 * self.waiting:.0f} % of its time"

    @property
    def kind(self) -> str:
        """Kind of the validation data in lower case, or of training's where it is not known."""
        fit = self.run.fit
        kind = str(fit.get("validation_kind") or fit.get("input_kind", "")).lower()
        torch = self.run.framework == "torch" and not fit.get("validation_kind")
        return kind or ("unknown" if torch else "tf.data")

    @property
    def custom_loop(self) -> bool:
        """True if a loop of the user's own trains, not `fit`."""
        return self.run.fit.get("loop") == "custom"

    @property
    def total(self) -> int:
        """Validations of the whole training, those to come included."""
        return (
            max(self.count, int(self.run.fit.get("epochs") or 0))
            if not self.run.ended
            else self.count
        )

    @property
    def batches(self) -> int:
        """Batches of one validation."""
        return round(self.run.validation.total_rows / self.count)

    @property
    def workers(self) -> int:
        """Worker processes that make validation's batches."""
        return int(self.run.fit.get("validation_workers") or 0)

    @property
    def more_workers(self) -> int:
        """Worker processes that would be enough."""
        return max(VALIDATION_WORKERS, 2 * self.workers)

    @property
    def workers_save(self) -> float:
        """Share of the validations that more workers save, where cores are free."""
        return self.waiting * (1 - max(1, self.workers) / self.more_workers)

    @property
    def cores_free(self) -> bool:
        """True if cores are free for worker processes."""
        wait = InputWait(self.run, self.run.whole, 1.0, 1.0)
        return wait.own_cpus is not None and wait.spare_cores >= ROOM

    @property
    def cached(self) -> bool | None:
        """True if the validation pipeline has a cache; None = not known."""
        if self.kind != "tf.data":
            return False
        return self.run.pipeline.has_cache("validation")

    @property
    def random(self) -> bool | None:
        """True if a map of the validation data draws random numbers; None = not known."""
        maps = [m for m in self.run.fit.get("input_maps") or [] if m.get("which") == "validation"]
        if any(one.get("random") for one in maps):
            return True
        return None if not maps or any(one.get("python") for one in maps) else False

    @property
    def monitors(self) -> tuple[str, ...]:
        """Callbacks that stop, save or slow down by a metric of each epoch."""
        callbacks = self.run.fit.get("callbacks", {})
        return tuple(
            name for name, own in callbacks.items() if isinstance(own, Mapping) and "monitor" in own
        )

    @property
    def factor(self) -> int:
        """Epochs between validations with which they take a tenth of the time, and some remain."""
        each, between = self.took_ns / self.count, (self.span_ns - self.took_ns) / self.count
        wanted = math.ceil((1 / SHARE - 1) * each / max(1.0, between))
        return max(2, min(wanted, self.total // VALIDATIONS_LEFT))

    @property
    def every(self) -> str:
        """The same in words: "every 5th epoch"."""
        if self.custom_loop and not _has_epochs(self.run):
            return f"{self.factor} times less often"
        return f"every {_th(self.factor)} epoch"

    @property
    def steps(self) -> int:
        """Batches with which a validation takes a tenth of the time."""
        each, between = self.took_ns / self.count, (self.span_ns - self.took_ns) / self.count
        parts = max(2, math.ceil((1 / SHARE - 1) * each / max(1.0, between)))
        return max(1, round(self.batches / parts))

    @property
    def per_batch(self) -> float:
        """Share of a validation that its batches take: the rest is its beginning and its end."""
        spent = self.run.validation.total("duration_ns")
        return min(1.0, spent / max(1, self.took_ns))

    @property
    def known_less_often(self) -> str:
        """What a validation less often changes."""
        names = ", ".join(self.monitors)
        metrics = f"validation metrics are known {self.every} only"
        return f"{metrics}: {names} see fewer of them" if names else metrics


def _fewer_steps(validations: Validations) -> str:
    # Keras cuts arrays into as many batches as there are, unless a batch size is given.
    size = ""
    if validations.run.fit.get("validation_kind") == "numpy":
        size = f", validation_batch_size={validations.run.fit.get('batch_size') or 'batch_size'}"
    return f"model.fit(..., validation_steps={validations.steps}{size})"


WAITING = Constant(
    0.25, "of a validation: a cache gained 2 times where validating half as often gained 1.4"
)
_CACHE = Entry(
    "cache",
    when=lambda v: v.kind == "tf.data" and v.total > 1
    and v.cached is False and v.random is False,
    says="{waits}, and it reads the same data every time.",
    remedy="Keep it in memory, if it fits: the first validation stays slow",
    code="val_ds = val_ds.cache()  # as its last step",
    saves=lambda v: v.waiting * (1 - 1 / v.total),
    wrong_if="a map is random, the data does not fit into memory, or a cache is there",
)  # fmt: skip
# For validations that wait for their data.
VALIDATION_DATA = (
    _CACHE,
    replace(
        _CACHE,
        name="cache, asked",
        when=lambda v: v.kind == "tf.data" and v.total > 1 and not v.cached
        and v.random is not True,
        says="{waits}.",
        asks="Is it the same data every time, without random numbers, and does it fit into memory?",
        remedy="Keep it in memory: the first validation stays slow",
    ),
    Entry(
        "workers",
        when=lambda v: "dataloader" in v.kind and v.cores_free,
        says="{waits}.",
        remedy="Let worker processes prepare it ahead of time",
        code="val_loader = DataLoader(val_dataset, ..., num_workers={more_workers}, "
        "persistent_workers=True)",
        saves=lambda v: v.workers_save,
        wrong_if="no core is free, or JAX holds a GPU and workers are forked",
    ),
    Entry(
        "threads, asked",
        when=lambda v: "pydataset" in v.kind and not v.custom_loop,
        says="{waits}.",
        asks="Does its __getitem__ mostly wait, for files or a network?",
        remedy="Let several threads prepare it ahead of time",
        code=lambda v: with_workers(v.run, "val_dataset", v.more_workers, processes=False),
        saves=lambda v: v.workers_save,
        wrong_if="__getitem__ computes: threads share Python's one lock",
    ),
    Entry(
        "kept batches",
        when=lambda v: v.total > 1 and v.kind not in ("tf.data", "numpy")
        and "dataloader" not in v.kind and v.run.fit.get("validation_kind") is not None,
        says="{waits}.",
        asks="Are its batches the same every time, and do they fit into memory?",
        remedy="Make them once, before training",
        code=lambda v: "val_dataset = [val_dataset[i] for i in range(len(val_dataset))]"
        if "pydataset" in v.kind and v.custom_loop
        else "val_dataset = list(val_dataset)" if v.custom_loop else "",
        saves=lambda v: v.waiting * (1 - 1 / v.total),
        wrong_if="batches are random or too many",
    ),
)  # fmt: skip
VALIDATION_LESS = (
    Entry(
        "a loop's validation less often",
        when=lambda v: v.custom_loop and v.total >= VALIDATIONS_LEFT,
        says="Validation takes {pct:.0f} % of the time.",
        remedy="Validate {every}",
        code=lambda v: _in_loop(v.run, "validation", v.count, v.factor),
        saves=lambda v: 1 - math.ceil(v.count / v.factor) / v.count,
        changes="how often validation metrics are known",
        wrong_if="each validation decides something",
    ),
    Entry(
        "less often",
        when=lambda v: not v.custom_loop and v.total >= VALIDATIONS_LEFT,
        says="Validation takes {pct:.0f} % of the time.",
        remedy="Validate {every}",
        code="model.fit(..., validation_freq={factor})",
        saves=lambda v: 1 - (v.total // v.factor) / v.total,
        changes="what callbacks see: {known_less_often}",
        wrong_if="each validation decides something; the line names the callbacks",
    ),
    Entry(
        "fewer batches",
        when=lambda v: not v.custom_loop and v.batches >= 2 and v.cached is False
        and not v.monitors,
        says="Validation takes {pct:.0f} % of the time.",
        remedy="Validate on {steps} of its {batches} batches, and on all of them at the end",
        code=_fewer_steps,
        saves=lambda v: v.per_batch * (1 - v.steps / v.batches),
        changes="validation metrics: they are those of a part of the data",
        wrong_if="a cache of the data would never fill, or a callback monitors a metric",
    ),
)  # fmt: skip
VALIDATION_LIMITS = (
    Entry(
        "data",
        when=lambda v: v.waiting > WAITING,
        says="Validation takes {pct:.0f} % of the time. {waits}.",
    ),
    Entry("time", when=lambda v: True, says="Validation takes {pct:.0f} % of the time."),
)


def validation(
    run: Run, *, count: int, took_ns: int, wait_ns: int, span_ns: int, pct: float
) -> Advice:
    """Return advice for validations that take a good part of the time.

    Args:
        count: how many there were.
        took_ns, wait_ns: their time, and how much of it they waited for their data.
        span_ns: training and validation together.
        pct: their share of it.
    """
    measure = Validations(run, count, took_ns, wait_ns, span_ns, pct)
    advice = choose(VALIDATION_DATA, measure) if measure.waiting > WAITING else None
    if advice is not None:
        return advice
    advice = choose(VALIDATION_LESS, measure) or first_holding(VALIDATION_LIMITS, measure)
    return replace(advice, leaves_out=True)


def at_epoch_end(run: Run, name: str, *, count: int, took_ns: int, span_ns: int) -> Advice:
    """Return advice for a callback that works at the end of epochs (or in a custom loop's phase).

    Args:
        count, took_ns: how often it worked in the span, and how long in all.
        span_ns: the span.
    """
    who, hook = _parts(name)
    each_s = took_ns / count / 1e9
    every = _epochs_between(took_ns, span_ns - took_ns)
    kept = math.ceil(count / every) / count
    total = max(count, int(run.fit.get("epochs", count)))
    once = every >= total > 1
    says = f"{who} takes {duration(each_s)} each time, and training waits. "
    if who in _SAVERS and once:
        return _save_once(says, who, total)
    if who == "TensorBoard":
        return Advice(
            f"{says}Histograms and images of all weights take most of that: write none.",
            "keras.callbacks.TensorBoard(..., histogram_freq=0, write_images=False)",
        )
    rhythm = _rhythm(run, who, "epoch", 1.0, min(every, total), says, 1 - kept)
    if rhythm is not None:
        return rhythm
    if once and hook:
        return Advice(
            f"{says}Do it once, at the end of this short training.",
            _moved(run, name, "on_train_end"),
            1 - 1 / total,
            before=_as_now(run, name),
        )
    if who in _SAVERS:
        slim = ""
        if who == "ModelCheckpoint" and "adam" in str(run.fit.get("optimizer")).lower():
            slim = (
                " Weights without Adam's state are a third of the size (save_weights_only=True, a "
                "path that ends in .weights.h5)."
            )
        return Advice(
            f"{says}Save every {_th(every)} epoch.{slim}",
            _save_every(run, who, every),
            1 - (count // every) / count,
        )
    if not hook and once and run.ended:
        return Advice(
            f"{says}Do it once, at the end of this short training, or in a background thread.",
            _in_loop(run, name, total, last=True),
            1 - 1 / total,
        )
    if not hook:  # a phase of a custom loop
        return Advice(
            f"{says}Do it less often, or in a background thread.",
            _in_loop(run, name, count, every),
            1 - kept,
        )
    return Advice(
        f"{says}Do it less often, or in a background thread.",
        _every(run, name, "epoch", every),
        1 - kept,
        before=_as_now(run, name),
    )


def in_steps(
    run: Run, name: str, *, steps: int, times: int, epochs: int, took_ns: int, span_ns: int
) -> Advice:
    """Return advice for a callback that works after batches.

    Args:
        steps, times, epochs: steps of the span, those in which it worked, epochs in it.
        took_ns, span_ns: how long it worked in all, and the span.
    """
    each_ms = took_ns / steps / 1e6
    who, _ = _parts(name)
    waits = "the GPU waits" if run.used_gpus else "training waits"
    says = f"{who} takes {brief(each_ms)} a step, and {waits}. "
    period = steps / times if times else 1.0
    if period >= SELDOM:
        spent = duration(took_ns / times / 1e9)
        says = f"About every {period:.0f} steps, {who} takes {spent}, and {waits}. "
    if who in _SAVERS:
        saved_ns = took_ns / max(1, times) * epochs  # if it were once an epoch
        every = _epochs_between(saved_ns, span_ns - took_ns)
        if saved_ns <= LEFT * (span_ns - took_ns):
            every = 1
        total = max(epochs, int(run.fit.get("epochs", epochs)))
        if every >= total > 1:
            return _save_once(says, who, max(total, times))
        left = max(1, epochs // every) if every > 1 else epochs
        return Advice(
            f"{says}Save {'once an epoch' if every == 1 else f'every {_th(every)} epoch'}.",
            _save_every(run, who, every),
            max(0.0, 1 - left / max(1, times)),
        )
    if who == "TensorBoard":
        return Advice(
            f"{says}It makes a summary of every metric after every batch, even of those that "
            "update_freq does not let it write. Write once an epoch, and give it no metrics in "
            "between.",
            _ONCE_PER_EPOCH,
        )
    if who == "ProgbarLogger":
        return Advice(
            f"Keras' progress bar takes {brief(each_ms)} of every step, and these steps are short. "
            "Print one line an epoch instead.",
            "model.fit(..., verbose=2)",
        )
    own = run.fit.get("loop") == "custom"
    per_epoch = steps / (1 if own else max(1, epochs))  # Keras counts from 0 in each epoch
    every = _batches_between(period, took_ns, span_ns - took_ns)
    often = max(1.0, per_epoch / period)
    kept = min(1.0, math.ceil(per_epoch / every) / often)
    if own:
        return Advice(
            f"{says}Do it every {_th(every)} step, or do it in a background thread.",
            f'if step % {every} == 0:\n    with monitor.phase("{name}"): ...',
            1 - kept,
        )
    rhythm = _rhythm(run, who, "batch", period, every, says, 1 - kept)
    if rhythm is not None:
        return rhythm
    if every >= per_epoch and often > 1 and every > EVERY_BATCH:
        return Advice(
            f"{says}Do it once an epoch, or do it in a background thread.",
            _moved(run, name, "on_epoch_end"),
            1 - kept,
            before=_as_now(run, name),
        )
    return Advice(
        f"{says}Do it every {_th(every)} batch, or do it in a background thread.",
        _every(run, name or "the callback", "batch", every),
        1 - kept,
        before=_as_now(run, name or "the callback"),
    )


def _rhythm(
    run: Run, who: str, unit: str, period: float, every: int, says: str, saves: float
) -> Advice | None:
    """Return the advice for a class with an argument for its interval; None for others.

    Args:
        unit: the unit it counts, "batch" or "epoch".
        period: its observed interval in these units: an argument of a very different value is not
            the interval.
        every: the interval to set.
        says, saves: as for the advice.
    """
    said = _own(run, who).get("every") or _INTERVALS.get(who, {})
    other = r"epoch" if unit == "batch" else r"batch|step|iter"
    for argument, value in said.items() if isinstance(said, Mapping) else ():
        known = re.fullmatch(r"[A-Za-z]\w*", argument) and type(value) is int and value > 0
        if not known or re.search(other, argument):
            continue
        if value < every and value / 2 <= period <= 2 * value:
            return Advice(
                f"{says}Its argument {argument} sets how often it works.",
                f"{who}(..., {argument}={every})",
                saves,
                before=f"{who}(..., {argument}={value})",
            )
    return None


def _own(run: Run, who: str) -> OwnCallback:
    """Return what is known of a class of the user's callbacks."""
    return (run.fit.get("callbacks") or {}).get(who) or {}


def _first_argument(run: Run, name: str) -> str:
    """Return a hook's name for its epoch or batch; "" if it takes none."""
    who, hook = _parts(name)
    usual = "batch" if "batch" in hook else "epoch" if "epoch" in hook else ""
    own = (_own(run, who).get("names") or {}).get(hook) or usual
    return str(own) if usual and re.fullmatch(r"[A-Za-z_]\w*", str(own)) else usual


def _every(run: Run, name: str, unit: str, every: int) -> str:
    """Return lines that let a hook do its work at every `every`th call."""
    who, hook = _parts(name)
    counted = _first_argument(run, name) or ("" if "." in name else unit)
    if _own(run, who).get("library"):
        if counted:
            return _subclass(who, hook, f"if {counted} % {every} == 0", counted)
        return _subclass(
            who, hook, f"if self.calls % {every} == 0", "",
            'self.calls = getattr(self, "calls", -1) + 1',
        )  # fmt: skip
    if counted:
        return f"if {counted} % {every} == 0: ...  # in {name}"
    return (
        'self.calls = getattr(self, "calls", -1) + 1\n'
        f"if self.calls % {every} == 0: ...  # in {name}"
    )


def _subclass(who: str, hook: str, condition: str, first: str, before: str = "") -> str:
    """Return a class that does the work of a library's hook under a condition."""
    counted = f"{first}, " if first else ""
    lines = [
        f"class Rare{who}({who}):", f"    def {hook}(self, {counted}logs=None):",
        *([f"        {before}"] if before else []), f"        {condition}:",
        f"            super().{hook}({counted}logs)", f"callbacks = [Rare{who}(...)]",
    ]  # fmt: skip
    return "\n".join(lines)


def _as_now(run: Run, name: str) -> str:
    """Return what a person has now of what `_every` changes."""
    who, _ = _parts(name)
    return f"callbacks = [{who}(...)]" if _own(run, who).get("library") else f"...  # in {name}"


def _moved(run: Run, name: str, to: str) -> str:
    """Return lines that move a hook's work to a later hook, with the arguments available there."""
    who, hook = _parts(name)
    first = _first_argument(run, name)
    given = f"{first}, logs" if first else "logs"
    arguments = f"{first}, logs=None" if first else "logs=None"
    later = "epoch, logs=None" if "epoch" in to else "logs=None"
    if _own(run, who).get("library"):
        return (
            f"class Rare{who}({who}):\n"
            f"    def {hook}(self, {arguments}):\n"
            f"        self.last = {given}\n"
            f"    def {to}(self, {later}):\n"
            f"        super().{to}({later.replace('=None', '')})\n"
            f"        super().{hook}(*self.last)\n"
            f"callbacks = [Rare{who}(...)]"
        )
    return (
        f"def {hook}(self, {arguments}):\n"
        f"    self.last = {given}\n"
        f"def {to}(self, {later}):\n"
        f"    {given} = self.last\n"
        f"    ...  # what {name} does"
    )


def _save_once(says: str, who: str, times: int) -> Advice:
    best = (
        " To keep only the best weights, use EarlyStopping(restore_best_weights=True); it holds "
        "them in memory."
        if who == "ModelCheckpoint" else ""
    )  # fmt: skip
    return Advice(
        f"{says}Save once, at the end of this short training.{best}",
        f'model.save("model.keras")  # after fit, instead of {who}',
        1 - 1 / times,
    )


def _has_epochs(run: Run) -> bool:
    """Return whether a loop passes over its data several times, as far as the monitor saw."""
    return any(rows.count for rows in run.phases.of("epoch").values())


def _in_loop(run: Run, phase: str, count: int, factor: int = 1, *, last: bool = False) -> str:
    """Return lines around work a loop does `count` times, for every `factor`th or the last one."""
    body = f'    with monitor.phase("{phase}"): ...'
    if _has_epochs(run):
        when = f"epoch == {count - 1}" if last else f"epoch % {factor} == 0"
    else:
        total, period = run.steps.total_rows, max(1, round(run.steps.total_rows / count))
        when = f"step == {total - 1}" if last else f"step % {factor * period} == 0"
    return f"if {when}:\n{body}"


def _batches_between(period: float, took_ns: float, rest_ns: float) -> int:
    """Return the interval in batches that keeps work acceptable; `period` is the present one."""
    if period < SELDOM:
        return EVERY_BATCH
    wanted = period * took_ns / max(1.0, rest_ns) / LEFT
    return next((every for every in BATCHES if every >= wanted), BATCHES[-1])


def _epochs_between(took_ns: float, rest_ns: float) -> int:
    """Return the interval in epochs at which work no longer shows."""
    share = took_ns / max(1.0, rest_ns)
    return next((every for every in EPOCHS if share / every <= LEFT), EPOCHS[-1])


def _save_every(run: Run, who: str, epochs: int) -> str:
    if epochs == 1:
        return f'keras.callbacks.{who}(..., save_freq="epoch")'
    steps = steps_an_epoch(run) or "steps_per_epoch"
    comment = "  # in batches"
    if who == "ModelCheckpoint":
        comment += ", where val_loss is not known: without save_best_only"
    return f"keras.callbacks.{who}(..., save_freq={epochs} * {steps}){comment}"


def _parts(name: str) -> tuple[str, str]:
    """Split "ModelCheckpoint.on_epoch_end" into class and hook."""
    who, _, hook = name.partition(".")
    return who or "A callback", hook


# Calls of compiled functions, and their internals in the frameworks.
_RUNTIME = re.compile(
    r"PjitFunction\(|FunctionRun|EagerLocalExecute|EagerExecute|EagerKernelExecute|ExecutorState"
    r"|KernelAndDevice|(multi|one)_step_on_|PJRT_|PjRt|Pjrt|TfrtCpu|GpuExecutable|XlaLaunch"
)
_COMPILES = re.compile(
    r"xla.?compil|backend_compile|compile_(fx|or_get)|compileandload|hlo.?pass|autotun|_dynamo"
    r"|_inductor",
    re.IGNORECASE,
)


_RECORD_LATER = {
    "torch": "schedule = torch.profiler.schedule(wait=1, warmup=3, active=3)",
    "tensorflow": "keras.callbacks.TensorBoard(log_dir, profile_batch=(10, 20))",
}


def traced_too_early(run: Run, name: str, took_ns: int) -> Advice:
    """Return advice on a trace that shows what a program pays for once, and hardly its steps."""
    return Advice(
        f"{name} takes {duration(took_ns / 1e9)}, once. Record after the warm-up, some steps "
        "later: this part of the trace does not show what holds the other steps back.",
        _RECORD_LATER.get(run.framework, ""),
        0.0,
    )


def host_activity(name: str) -> Advice:
    """Return advice on what a trace's host does while the GPUs wait for it; "" = not known."""
    name = name.removeprefix("$")  # the profiler's mark of Python functions
    if _COMPILES.search(name):
        return Advice(
            f"Most of that time the host compiles ({name}). Trace later steps; if they compile, "
            "too, keep the shapes of the batches the same."
        )
    if _RUNTIME.match(name):
        return Advice(
            f"Most of that time the host is in {name}: the framework itself prepares and starts "
            "the work of a step. Give each call more to do: a larger batch, or several steps in "
            "one call.",
            saves=0.0,  # how much less it then prepares is not known
        )
    if name:
        return Advice(
            f"Most of that time the host is in {name}: move it out of the step or make it faster."
        )
    return Advice(
        "Look at what the host does between the launches: Python, logging, callbacks.", saves=0.0
    )


def _th(number: int) -> str:
    ends = {} if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{ends.get(number % 10, 'th')}"
