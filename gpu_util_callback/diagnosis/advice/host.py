"""Advice on what the host does beside training: validation, `predict`, and while a trace's GPUs wait for it."""

import math
import re
from dataclasses import dataclass, replace

from gpu_util_callback.diagnosis.advice.loaders import CORE_FREE, ITEM_WAITS, fork_safe, starts_fresh, with_workers
from gpu_util_callback.diagnosis.advice.snippets import command, drops_of, epochs_apart, in_epochs, in_loop
from gpu_util_callback.diagnosis.advice.table import Entry, choose, first_holding
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.samples import batch_memory, batch_of
from gpu_util_callback.diagnosis.rule import Advice
from gpu_util_callback.diagnosis.thresholds import A_FEW, A_QUARTER, A_TENTH, DOUBLE, MIN_SAMPLES, MOSTLY, Count
from gpu_util_callback.recording.manifest_facts import InputDrop, SourceBlockingCall
from gpu_util_callback.recording.work import samples_per_s
from gpu_util_callback.words import duration, ordinal

WORKERS = Count(4, "worker processes are enough for most validation data")
TIMES_AS_LARGE = Count(8, "a batch of validation keeps no gradients; measured with so many")
LEFT = Count(4, "validations that a training keeps at least, if it has as many")


@dataclass(frozen=True)
class Validations:
    """Validations that take a good part of the time.

    Attributes:
        count: how many there were.
        took_ns, wait_ns: their time, and how much of it they waited for their data.
        span_ns: training and validation together.
    """

    run: Run
    count: int
    took_ns: int
    wait_ns: int
    span_ns: int

    @property
    def pct(self) -> float:
        """Share of the time of training and validation that validations take, %."""
        return 100 * self.took_ns / max(1, self.span_ns)

    @property
    def takes(self) -> str:
        """`pct` as a sentence without its full stop."""
        return f"Validation takes {self.pct:.0f} % of the time"

    def gain(self, saves: float) -> float:
        """Return how many times faster training and validation get."""
        return self.span_ns / max(1.0, self.span_ns - saves * self.took_ns)

    @property
    def waiting(self) -> float:
        """Share of their time in which they wait for their data."""
        return self.wait_ns / max(1, self.took_ns)

    @property
    def waits(self) -> str:
        """`waiting` in words."""
        return f"Validation waits for its data {100 * self.waiting:.0f} % of its time"

    @property
    def kind(self) -> str:
        """Kind of the validation data in lower case, or of training's where it is not known."""
        fit = self.run.fit
        kind = str(fit.get("validation_kind", "")).lower() or self.run.input_kind
        torch = self.run.framework == "torch" and not fit.get("validation_kind")
        return kind or ("unknown" if torch else "tf.data")

    @property
    def total(self) -> int:
        """Validations of the whole training, those to come included."""
        to_come = int(self.run.fit.get("epochs") or 0) // epochs_apart(self.run, self.count)
        return max(self.count, to_come) if not self.run.ended else self.count

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
        return max(WORKERS, 2 * self.workers)

    @property
    def workers_save(self) -> float:
        """Share of the validations that more workers save, where cores are free."""
        return self.waiting * (1 - max(1, self.workers) / self.more_workers)

    @property
    def cached(self) -> bool | None:
        """True if the validation pipeline has a cache; None = not known."""
        return self.run.pipeline.has_cache("validation") if self.kind == "tf.data" else False

    @property
    def random(self) -> bool | None:
        """True if a map of the validation data draws random numbers; None = not known."""
        maps = [m for m in self.run.fit.get("input_maps") or [] if m.get("which") == "validation"]
        if any(function.get("random") for function in maps):
            return True
        return None if not maps or any(function.get("python") for function in maps) else False

    @property
    def set_batches(self) -> int:
        """Batches of one pass over what the validation pipeline repeats; 0 = it repeats nothing, or not known."""
        return int(self.run.fit.get("validation_set_batches") or 0)

    @property
    def passes(self) -> float:
        """Passes over its set in each validation; 0 = not known."""
        return self.batches / self.set_batches if self.set_batches else 0.0

    @property
    def dropped(self) -> InputDrop | None:
        """The skip of the validation pipeline that drops most samples which were made for it; None without one."""
        skips = [drop for drop in drops_of(self.run, "validation") if drop["stage"] == "skip"]
        return max(skips, key=lambda drop: drop["count"] * drop["samples"], default=None)

    @property
    def dropped_samples(self) -> int:
        """Samples that each validation makes and drops before its first batch."""
        return self.dropped["count"] * self.dropped["samples"] if self.dropped is not None else 0

    @property
    def dropped_share(self) -> float:
        """Share of the samples made for a validation that it drops; 0.0 = not known."""
        size = self.run.fit.get("validation_batch_size") or self.run.fit.get("batch_size")
        size = size or (self.dropped["samples"] if self.dropped is not None and self.dropped["samples"] > 1 else 0)
        return self.dropped_samples / (self.dropped_samples + size * self.batches) if size else 0.0

    @property
    def monitors(self) -> tuple[str, ...]:
        """Callbacks that stop, save or slow down by a metric of each epoch."""
        callbacks = self.run.fit.get("callbacks", {})
        return tuple(name for name, callback_facts in callbacks.items() if "monitor" in callback_facts)

    @property
    def _times_less(self) -> int:
        """Divisor of the work with which it takes a tenth of the time."""
        return math.ceil((1 / A_TENTH - 1) * self.took_ns / max(1, self.span_ns - self.took_ns))

    @property
    def larger(self) -> int:
        """Times as many samples a batch, where a training's would fit into the memory of its GPUs; 0 = not known."""
        memory = [batch_memory(self.run, gpu) for gpu in self.run.used_gpus]
        rooms = [room.room // max(1, self.size) if room is not None else 0 for room in memory]
        return min(TIMES_AS_LARGE, *rooms, self.batches // A_FEW) if self.size else 0

    @property
    def size(self) -> int:
        """Samples of a batch; 0 = not known."""
        return int(self.run.fit.get("validation_batch_size") or 0)

    @property
    def training_size(self) -> int:
        """Samples of a batch of training; 0 = not known."""
        return batch_of(self.run) or int(self.run.fit.get("input_batch_size") or 0)

    @property
    def batching_saves(self) -> float:
        """Share that batches as large as training's save, at least, where a row takes as long as one in training."""
        rate = samples_per_s(self.run.manifest)
        rows_s = self.count * self.batches * self.size / rate if rate else math.inf
        return self.per_batch - self.waiting - 1e9 * rows_s / max(1, self.took_ns)

    @property
    def factor(self) -> int:
        """Epochs between validations with which they take a tenth of the time, and some remain."""
        return max(2, min(self._times_less, self.total // LEFT))

    @property
    def every_epochs(self) -> int:
        """Epochs from one validation to the next with `factor`."""
        return self.factor * epochs_apart(self.run, self.count)

    @property
    def every(self) -> str:
        """`factor` in words: "every 5th epoch"."""
        in_steps = self.run.custom_loop and not in_epochs(self.run, self.count)
        return f"{self.factor} times less often" if in_steps else f"every {ordinal(self.every_epochs)} epoch"

    @property
    def steps(self) -> int:
        """Batches with which a validation takes a tenth of the time."""
        return max(1, round(self.batches / max(2, self._times_less)))

    @property
    def per_batch(self) -> float:
        """Share of a validation that its batches take, without its beginning and its end."""
        spent = self.run.validation.total("duration_ns")
        return min(1.0, spent / max(1, self.took_ns))

    @property
    def joining(self) -> float:
        """Share of the stack samples between steps that were in joining the outputs of its batches."""
        dispatch = self.run.fit.get("dispatch") or {}
        return (dispatch.get("between_joining") or 0) / max(MIN_SAMPLES.default, dispatch.get("between") or 0)

    @property
    def known_less_often(self) -> str:
        """Consequences of validating less often."""
        names = ", ".join(self.monitors)
        metrics = f"validation metrics are known {self.every} only"
        return f"{metrics}: {names} see fewer of them" if names else metrics


def _fewer_steps(validations: Validations) -> str:
    """Return the line of `fit` that validates on `validations.steps` batches."""
    # Keras cuts arrays into as many batches as there are, unless a batch size is given.
    size = ""
    if validations.run.fit.get("validation_kind") == "numpy":
        size = f", validation_batch_size={validations.run.fit.get('batch_size') or 'batch_size'}"
    return f"model.fit(..., validation_steps={validations.steps}{size})"


_MEANT_SAMPLES = " validation_steps counts batches, not samples."
_ITEMS = "[val_dataset[i] for i in range(len(val_dataset))]"
# The same samples more than once, or for nothing: whatever else takes time, these need none of it.
VALIDATION_AGAIN = (
    Entry(
        "one pass",
        when=lambda v: not v.run.custom_loop and v.passes >= DOUBLE,
        says=lambda v: (
            f"{v.takes}. Each validation has {v.batches:,} batches of a set of {v.set_batches:,}: it reads the set "
            f"{v.passes:.0f} times.{_MEANT_SAMPLES * (v.run.fit.get('validation_set_samples') == v.batches)}"
        ),
        remedy="Read it once",
        code="model.fit(..., validation_steps={set_batches})",
        saves=lambda v: v.per_batch * (1 - 1 / v.passes),
        changes="validation metrics only as far as the passes differ",
        proof="validation_one_pass",
    ),
    Entry(
        "skip before",
        when=lambda v: v.dropped is not None and v.dropped["exact"],
        says="{waits}: skip({dropped[count]}) drops {dropped_samples:,} samples that {dropped[behind]} made, in each "
        "validation.",
        remedy="Skip them before they are made: the same samples follow",
        code="val_ds = val_ds.skip({dropped_samples})  # before {dropped[behind]}, in place of skip({dropped[count]})",
        saves=lambda v: v.waiting * v.dropped_share,
        proof="validation_skip",
    ),
)
_OTHERWISE = "tf.data", "numpy", "dataloader"  # kinds with remedies of their own, or in memory
# For validations that wait for their data: a cache gained 2 times where validating half as often gained 1.4.
VALIDATION_DATA = (
    Entry(
        "cache, asked",
        when=lambda v: v.kind == "tf.data" and v.total > 1 and not v.cached and v.random is not True,
        says="{waits}.",
        asks="Is it the same data every time, all of it (no shuffle, repeat or validation_steps), and does it "
        "fit into memory?",
        remedy="Keep it in memory: the first validation stays slow",
        code="val_ds = val_ds.cache()  # validation data, as its last step",
        saves=lambda v: v.waiting * (1 - 1 / v.total),
        frees_cores=True,
        proof="validation_decoding",
    ),
    Entry(
        "workers",
        untried="it is about the validation data",
        when=lambda v: "dataloader" in v.kind and fork_safe(v.run) and not starts_fresh(v.run),
        says="{waits}.",
        asks=CORE_FREE,
        remedy="Let worker processes prepare it ahead of time",
        code="val_loader = DataLoader(val_dataset, ..., num_workers={more_workers}, persistent_workers=True)",
        saves=lambda v: v.workers_save,
        proof="validation_workers",
    ),
    Entry(
        "threads, asked",
        when=lambda v: "pydataset" in v.kind and not v.run.custom_loop,
        says="{waits}.",
        asks=ITEM_WAITS,
        remedy="Let several threads prepare it ahead of time",
        code=lambda v: with_workers(v.run, "val_dataset", v.more_workers, processes=False),
        saves=lambda v: v.workers_save,
        proof="validation_threads",
    ),
    Entry(
        "kept batches",
        when=lambda v: v.total > 1 and v.run.fit.get("validation_kind") and not v.kind.endswith(_OTHERWISE),
        says="{waits}.",
        asks="Are its batches the same every time, and do they fit into memory?",
        remedy="Make them once, before training",
        code=lambda v: f"val_dataset = {_ITEMS if 'pydataset' in v.kind else 'list(val_dataset)'}" * v.run.custom_loop,
        saves=lambda v: v.waiting * (1 - 1 / v.total),
        proof="validation_kept",
    ),
)
_SIZES = {
    "tf.data": "val_ds = val_ds.batch({})  # in place of batch({})",
    "numpy": "model.fit(..., validation_batch_size={})",
    "torch dataloader": "val_loader = DataLoader(val_dataset, ..., batch_size={})",
}
# Four times 625 batches of 32 took 4.9 to 32 s, of 256 samples 2.3 to 8.8 s: a small model, TensorFlow and PyTorch.
VALIDATION_BATCHES = (
    Entry(
        "rows at once",
        when=lambda v: 0 < v.size <= A_QUARTER * v.training_size and v.batching_saves > A_QUARTER,
        says="{takes}: it goes through {batches:,} batches of size {size}, where training's have {training_size}.",
        asks=lambda v: "" if v.kind in ("tf.data", "numpy") else "Have all its samples one shape?",
        remedy="Batch it as large",
        code=lambda v: "" if v.run.trainer else _SIZES.get(v.kind, "").format(v.training_size, v.size),
        saves=lambda v: v.batching_saves,
        proof="validation_rows",
    ),
    Entry(
        "joined outputs",
        untried="it is about what metrics need",
        when=lambda v: v.run.trainer == "transformers" and v.joining >= MOSTLY,
        says="{takes}, most of it in joining all that the model returns for each batch.",
        asks="Do the metrics need the logits alone, not hidden states or attentions (output_hidden_states=True)?",
        remedy="Keep those only",
        code="Trainer(..., preprocess_logits_for_metrics="
        "lambda logits, labels: logits[0] if isinstance(logits, tuple) else logits)",
        saves=lambda v: v.joining,
        proof="blind/seventh/hidden_states",
    ),
    Entry(
        "larger batches",
        when=lambda v: v.kind == "numpy" and not v.run.custom_loop and v.larger >= DOUBLE,
        says="{takes}, in {batches} batches.",
        asks="Is it faster in batches {larger} times as large?",
        remedy="Validate in those",
        code=lambda v: f"model.fit(..., validation_batch_size={v.larger * v.size})",
        saves=lambda v: v.per_batch * MOSTLY,
        proof="validation_small_batches",
    ),
)
VALIDATION_LESS = (
    Entry(
        "a loop's validation less often",
        untried="it is the loop's own code",
        when=lambda v: v.run.custom_loop and v.total >= LEFT,
        says="{takes}.",
        remedy="Validate {every}",
        code=lambda v: in_loop(v.run, "validation", v.count, v.factor),
        saves=lambda v: 1 - math.ceil(v.count / v.factor) / v.count,
        changes="how often validation metrics are known",
        proof="blind/second/hf_evaluations",
    ),
    Entry(
        "less often",
        when=lambda v: not v.run.custom_loop and v.total >= LEFT,
        says="{takes}.",
        remedy="Validate {every}",
        code="model.fit(..., validation_freq={every_epochs})",
        saves=lambda v: 1 - (v.total // v.factor) / v.total,
        changes="what callbacks see: {known_less_often}",
        proof="validation_cached",
    ),
    Entry(
        "fewer batches",
        when=lambda v: not v.run.custom_loop and v.batches >= 2 and v.cached is False and not v.monitors,
        says="{takes}.",
        remedy="Validate on {steps} of its {batches} batches, and on all of them at the end",
        code=_fewer_steps,
        saves=lambda v: v.per_batch * (1 - v.steps / v.batches),
        changes="validation metrics: they are those of a part of the data",
        proof="validation_fewer",
    ),
)
VALIDATION_LIMITS = (Entry("time", says=lambda v: f"{v.takes}.{f' {v.waits}.' if v.waiting > A_QUARTER else ''}"),)


def advise_validations(validations: Validations) -> Advice:
    """Return advice for validations that take a good part of the time.

    Remedies with the same metrics come first, then fewer validations or batches, then what limits them.
    """
    repeated_work, is_waiting = choose(VALIDATION_AGAIN, validations), validations.waiting > A_QUARTER
    quicker = (is_waiting and choose(VALIDATION_DATA, validations)) or choose(VALIDATION_BATCHES, validations)
    # Nothing is done in vain, and it gets quicker with the same metrics.
    if repeated_work is None and quicker is not None:
        return quicker
    less = repeated_work or choose(VALIDATION_LESS, validations) or first_holding(VALIDATION_LIMITS, validations)
    return replace(less, leaves_out=True)


PREDICT_ADVICE = Advice(
    "Keras makes a data adapter, a pipeline and an iterator in every call of predict: it is meant "
    "for data sets. For one batch at a time call predict_on_batch, which computes the same, or the "
    "model itself inside a compiled function.",
    "predictions = model.predict_on_batch(batch)  # in place of model.predict(batch)",
    saves=1.0,
    proof="dqn",
)


def run_compiled(run: Run) -> Advice:
    """Return the advice for a Keras model that was told to run eagerly."""
    gpu_idles = ", and the GPU waits for the next one" if run.device == "gpu" else ""
    return Advice(
        f"The model runs eagerly: Python starts every operation by itself{gpu_idles}. Let Keras compile the step into "
        "one graph.",
        "model.compile(..., run_eagerly=False)",
        saves=1.0,
        compiles=True,
        proof="new_trials/eager_mlp",
    )


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
    """Return advice on a trace that shows what a program pays for once, and hardly its steps.

    Args:
        name: what the host did, such as compiling.
        took_ns: how long that took.
    """
    return Advice(
        f"{name} takes {duration(took_ns / 1e9)}, once. Record after the warm-up, some steps "
        "later: this part of the trace does not show what holds the other steps back.",
        _RECORD_LATER.get(run.framework, ""),
    )


# Calls of CUDA's and HIP's runtime and driver by what holds the host in them, and what to look for.
_MEMORY = re.compile(r"(Malloc|Free|MemAlloc|HostAlloc|HostRegister|HostUnregister|MemMap|MemUnmap|MemCreate)", re.I)
_COPIES = re.compile(r"(cu|cuda|hip)Memcpy", re.I)
_LOADS = re.compile(r"Module(Load|Unload|Get)|Library(Load|Unload)|FuncGetAttributes|FuncLoad|Launch", re.I)


def blocked_in(run: Run, call: SourceBlockingCall) -> Advice:
    """Return advice on a call of the GPU's driver or runtime that holds the host while the GPUs idle."""
    name, torch = call["name"], run.framework == "torch"
    says = f"The host is held in {name} for {duration(call['each_ns'] / 1e9)}"
    says += f" (called by {call['op']}). " if call["op"] else ". "
    if _COPIES.match(name):  # a copy that waits for its end
        copies = run.source["copies"] if run.source is not None else ()
        pageable = any(copy["direction"] == "h2d" and copy["memory"] == "pageable" for copy in copies)
        return Advice(
            f"{says}It is one copy, however small. Is it needed in each step? If not, leave it out"
            f"{'; else copy from pinned memory, without waiting' * pageable}.",
            "batch = batch.pin_memory().to(device, non_blocking=True)" if torch and pageable else "",
            question=True,
        )
    if _MEMORY.search(name):  # memory is allocated or given back
        return Advice(
            f"{says}The driver takes or gives back memory, for which it may wait for the GPU. Does the step empty a "
            "cache or allocate other sizes each time? If so, keep the memory and use it again.",
            f"{command(run, 'PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True')}  # without torch.cuda.empty_cache()"
            if torch
            else "",
            question=True,
        )
    if _LOADS.search(name):  # code is loaded onto the GPU at its first launch
        return Advice(
            f"{says}A first launch loads its code into the GPU, others return in microseconds. Do steps go on to "
            "launch new code (shapes that change, a compiler that tunes)? If so, keep shapes alike, and warm up first.",
            question=True,
        )
    return Advice(f"{says}Move it out of the step.")


def host_activity(name: str) -> Advice:
    """Return advice on what a trace's host does while the GPUs wait for it.

    Args:
        name: of the longest activity, as the profiler has it; "" = not known.
    """
    name = name.removeprefix("$")  # the profiler's mark of Python functions
    if _COMPILES.search(name):  # the framework's compiler
        return Advice(
            f"Most of that time the host compiles ({name}). Trace later steps; if they compile, "
            "too, keep the shapes of the batches the same."
        )
    if _RUNTIME.match(name):  # the framework's own calls
        return Advice(
            f"Most of that time the host is in {name}: the framework itself prepares and starts the work of a step. "
            "Give each call more to do: a larger batch, or several steps in one call."
        )
    if name:
        return Advice(f"Most of that time the host is in {name}: move it out of the step or make it faster.")
    return Advice("Look at what the host does between the launches: Python, logging, callbacks.")
