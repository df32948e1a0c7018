"""Wait for input: its measurements, and the limits that decide a remedy's gain."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from gpu_util_callback.diagnosis.advice.snippets import steps_an_epoch
from gpu_util_callback.diagnosis.evidence.cores import Cores, measure_cores
from gpu_util_callback.diagnosis.evidence.pipeline import LITTLE, Stage, chain_ms, dropped_behind
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.spans import Range
from gpu_util_callback.diagnosis.read_ahead import LongFetches
from gpu_util_callback.diagnosis.rule import LEAST_GAIN
from gpu_util_callback.diagnosis.thresholds import A_FEW, MOSTLY, Constant, Count
from gpu_util_callback.words import capitalized, percent

MOST_WORKERS = Count(16, "more workers rarely help, and each takes memory")
MOST_CALLS = Count(32, "more files or calls at a time rarely help, and each takes memory")
COMPUTES = Constant(0.65, "CPU share from which a call computes: with a free core it would use all of it")
LOOP_PYTHON_MS = Constant(0.8, "Python of a step in Keras' fit on TensorFlow and JAX, measured")
NO_MS = Constant(1e-6, "a wait that is nothing: shares are divided by it")
YOURS = "your_function"  # in a line of code
NO_STAGE = Stage("", "", 0.0, 0.0, 1.0, frozenset(), place=-1)  # of which nothing is known, behind all others
ROWS_IN_MEMORY = "TensorDataset", "list", "tuple"  # datasets whose samples are there, so that nothing has to make them


# -- what is measured ------------------------------------------------------------------------------


class Passes(NamedTuple):
    """Passes over the input.

    With `steps_per_epoch`, an epoch may be shorter than a pass: the next one continues it. The length of an
    input that repeats is that of all its passes.

    Attributes:
        steps: of a pass; 0 = not known.
        first_end: the first step of the second pass; 0 = not known.
        later: share (0-1) of a span's steps that come after the first pass, which a cache still has to make.
    """

    steps: int
    first_end: int
    later: float


def measure_passes(run: Run, where: Range, stages: Sequence[Stage]) -> Passes:
    """Measure how the steps of a span lie in the passes over the input.

    Where the length of a pass is unknown, an epoch counts as one.
    """
    epoch_steps, epochs = steps_an_epoch(run) or 0, run.fit.get("epochs")
    repeats = any(stage.repeats for stage in stages)
    pass_steps = (None if repeats else run.fit.get("input_batches")) or epoch_steps
    is_cut = 0 < epoch_steps < pass_steps  # epochs end before a pass does: the next epoch continues it
    pass_count = epochs * epoch_steps / pass_steps if is_cut and epochs is not None else epochs
    epoch_ends_ns = [int(rows["end_ns"][0]) for rows in run.phases.of("epoch").values() if len(rows) and not is_cut]
    first_end = run.step_at(min(epoch_ends_ns)) if epoch_ends_ns else pass_steps
    # One iterator of what does not repeat, such as an endless generator's, makes a single pass in all epochs.
    endless = run.fit.get("input_one_iterator") is True and bool(stages) and not repeats
    if (pass_count is not None and pass_count <= 1) or endless:
        later = 0.0  # all of it is the first pass
    elif where.steps > 0 and where.end_step <= first_end and not run.ended and pass_count is not None:
        later = 1 - 1 / pass_count  # the others are still to come
    else:
        # Of this span, the steps after the first pass.
        later = (where.end_step - max(first_end, where.start_step)) / where.steps if where.steps > 0 else 1.0
    return Passes(pass_steps, first_end, max(0.0, min(1.0, later)))


class Calls(NamedTuple):
    """Python functions of the input, as they were timed and as samples of the stack met them.

    Attributes:
        timed: the timed ones, without the time in which they were ready to run and had no core, and with the time of
            their few long calls unless these are told apart.
        slowest: the timed one that takes most time in all; None = none was timed.
        named: the one to be named: a DataLoader's part, else the slowest, or the one that most samples met.
        part: the part of a DataLoader beside its dataset, or around it, that most samples met; None = none.
        samples: of the stack in which the input was made.
        joined: share (0-1) of the wait in which a DataLoader joins samples to a batch; 0.0 = little, or not known.
        handled: share in which a batch of a PyDataset or a generator is handled once it is made; 0.0 likewise.
        collates: most of the wait passes in the program's function that joins samples to a batch.
        beside_workers: most of it passes in what the training process does whatever the workers.
    """

    timed: Sequence[Mapping[str, Any]]
    slowest: Mapping[str, Any] | None
    named: Mapping[str, Any] | None
    part: Mapping[str, Any] | None
    samples: int
    joined: float
    handled: float
    collates: bool
    beside_workers: bool


def measure_calls(run: Run, rare: LongFetches | None, handling: str) -> Calls:
    """Measure which Python functions make the input, by their timed calls and by samples of the stack.

    Args:
        rare: the few long fetches, left out of the functions' times; None = the wait is steady.
        handling: what Keras does with a finished batch, as in `InputWait`; "" = little.
    """
    calls: Sequence[Mapping[str, Any]] = run.fit.get("input_calls") or []
    measured = [call for call in calls if call.get("timed") and call.get("wall_ms")]
    timed = [_unqueued(call if rare else _with_long(call)) for call in measured]
    samples = sum(map(samples_of, calls))
    # Functions that most samples of the input met.
    sampled_most = [call for call in calls if samples_of(call) >= max(A_FEW, MOSTLY * samples)]
    parts = [call for call in sampled_most if call.get("part") not in (None, "loader", "epoch_end")]
    part = max(parts, key=samples_of, default=None)
    joined, handled = _outside_calls(run, timed, rare, handling)
    # The program's function that joins samples takes most of the wait.
    collates = part["part"] == "collate_fn" if part else _joins(run, joined)
    # Beside a slow part of the loader, the dataset's timed functions are not the cause.
    makers = [call for call in timed if call.get("part") or not (part or collates)]
    slowest = max(makers, key=_all_ms, default=None)
    item_calls = [call for call in calls if samples_of(call) and not (call.get("part") or collates)]
    named = part or slowest or max(item_calls, key=samples_of, default=None)
    return Calls(timed, slowest, named, part, samples, joined, handled, collates, part is not None and not collates)


def _joins(run: Run, joined: float) -> bool:
    """Return whether the program's function that joins samples takes most of the wait, though no sample met a part."""
    unsampled = not any(call.get("part") for call in run.fit.get("input_calls") or [])
    takes_most = (joined > MOSTLY and unsampled) or run.fit.get("input_class") in ROWS_IN_MEMORY
    return bool(run.fit.get("input_collate")) and takes_most


def _outside_calls(
    run: Run, timed: Sequence[Mapping[str, Any]], rare: LongFetches | None, handling: str
) -> tuple[float, float]:
    """Return `Calls.joined` and `Calls.handled`: shares (0-1) of the run's wait that the timed functions leave.

    Like theirs, the time of the wait is that without waiting for a core.
    """
    waited_ms = run.steps.total("input_wait_ns") / 1e6 - (rare.count * rare.each_ms if rare else 0.0)
    waited_ms *= 1 - (measure_cores(run, run.whole).queued or 0.0)
    unexplained_share = 1 - sum(map(_all_ms, timed)) / waited_ms if timed and waited_ms > 0 else 0.0
    workers = run.fit.get("input_workers") or 0
    if unexplained_share <= LITTLE:  # the timed functions explain the wait
        return 0.0, 0.0
    if "dataloader" in run.input_kind:  # joining samples; with workers it is done in their processes
        return (0.0 if workers else unexplained_share), 0.0
    # Of calls of which few take long, the timed ones say too little.
    return 0.0, unexplained_share if handling and workers <= 1 and _waits_evenly(run) else 0.0


@dataclass(frozen=True)
class InputWait:
    """Wait for input in a span, with all that was measured about it. Times are ms per batch.

    Attributes:
        lost_ms: the avoidable part of a step's wait, without that for `rare` fetches.
        needed_ms: duration of a step without it: batches must come this fast.
        kind: of the input, in lower case: "tf.data", "pydataset", "torch dataloader", ...; "" if unknown.
        input_class: name of the user's class or generator; "" if unknown.
        workers: processes or threads that make batches.
        cores: those that this process can have, and who keeps them busy.
        waits: making a batch mostly waits; False = it computes, None = not known.
        handling: what Keras' `fit` does with a finished batch before a step gets it, as a clause; "" = little.
        stages: all of them, slowest first.
        read_elsewhere: what is known of the stages was in part read of other batches than these.
        rare: the few long fetches that hold much of the wait; None = it is steady.
        rare_ms: the avoidable wait for these, by all steps of the span.
        stage: the stage to blame, the slowest; `NO_STAGE` = not known, or none is (`not_the_bottleneck`).
        overlaps: the stage's time for a batch is longer than a step: a sum over its threads.
        not_the_bottleneck: stages are known, and none works long enough to explain the wait.
    """

    run: Run
    where: Range
    lost_ms: float
    needed_ms: float
    kind: str
    input_class: str
    workers: int
    cores: Cores
    passes: Passes
    calls: Calls
    waits: bool | None
    handling: str
    stages: Sequence[Stage]
    read_elsewhere: bool
    rare: LongFetches | None
    rare_ms: float
    stage: Stage = NO_STAGE
    overlaps: bool = False
    not_the_bottleneck: bool = False

    @property
    def arrives_ms(self) -> float:
        """Time between batches now, long ones left out."""
        return self.needed_ms + self.lost_ms

    @property
    def collate(self) -> str:
        """The user's function that joins samples to a batch; "" = the library's, or not known."""
        return str(self.run.fit.get("input_collate") or "")

    @property
    def batches_a_pass(self) -> int:
        """Batches of a pass over the input or, where that is not known, of these steps."""
        return self.passes.steps or max(1, self.where.steps)

    # -- cores and the interpreter -------------------------------------------------------------

    @property
    def worker_cpus(self) -> float | None:
        """Cores that each worker process keeps busy; None = not sampled."""
        return None if self.cores.of_workers is None or not self.workers else self.cores.of_workers / self.workers

    @property
    def input_cpus(self) -> float | None:
        """Cores that the input keeps busy while steps run; None = not known, or it is made between the steps."""
        is_dataset = "pydataset" in self.kind
        if self.workers and (self.run.fit.get("input_processes") or not is_dataset):  # worker processes make it
            return self.cores.of_workers
        beside = self.works_ahead or (is_dataset and (self.workers > 1 or self.run.framework == "tensorflow"))
        own_cpus, queued = self.cores.own, self.cores.queued
        if not beside or own_cpus is None or queued is None:  # made between the steps, or not sampled
            return None
        # A stage's time is that of its threads, which wait for a core as often as the main thread.
        made_ms = (1 - queued) * sum(stage.work_ms_per_batch for stage in self.stages if not stage.passing)
        if not self.stages:
            # No stages: the timed Python functions.
            made_ms = sum(call["calls"] * call["cpu_ms"] for call in self.calls.timed) / max(1, self.where.steps)
        return min(own_cpus, made_ms / self.arrives_ms)

    @property
    def share_of_input(self) -> float:
        """The input's share (0-1) of the cores that steps lack, beside other programs by what each computes."""
        input_cpus = self.input_cpus if self.cores.others_compute else None
        return 1.0 if input_cpus is None else input_cpus / (input_cpus + self.cores.of_others)

    @property
    def room_unknown(self) -> bool:
        """True if nothing tells whether workers would find a free core, or would mostly wait."""
        return self.waits is not True and (self.cores.own is None or not self.cores.allowed)

    @property
    def workers_may_help(self) -> bool:
        """True unless workers would compute, and no core is free for them."""
        return self.waits is True or self.cores.has_room or self.room_unknown

    @property
    def workers_wait(self) -> bool | None:
        """True if the worker processes mostly wait (for files, a network); None = not known."""
        each = self.worker_cpus
        if each is not None:  # sampled by process; on busy cores they may only wait for one
            return None if each < MOSTLY and self.cores.may_be_lacking else each < MOSTLY
        if math.isinf(self.cores.in_use):
            return None
        # The whole machine computes less than half as much as they could.
        return self.cores.in_use < MOSTLY * min(self.workers, self.cores.allowed)

    @property
    def cpu_ms(self) -> float:
        """CPU time of this process for a batch and its step together; 0.0 = not sampled."""
        return (self.cores.own or 0.0) * (self.arrives_ms + self.rare_ms)

    def cores_ms(self, spared_ms: float = 0.0) -> float:
        """Return the least time between batches with all cores that this process can have.

        Args:
            spared_ms: the CPU time per batch that is then not needed at all.
        """
        return max(0.0, self.cpu_ms - spared_ms) / max(0.3, self.cores.reachable)

    @property
    def python_ms(self) -> float:
        """Upper bound of the Python computation for a batch, which threads cannot share."""
        call, steps = self.calls.slowest, self.run.steps.total_rows
        if call is not None and call.get("cpu_ms") is not None and steps:
            return call["calls"] / steps * call["cpu_ms"]
        return max(0.0, self.cpu_ms - self.needed_ms)

    def interpreter_ms(self, python_ms: float) -> float:
        """Return the least time between batches in ms that Python's global interpreter lock allows.

        0.0 without Python.
        """
        if not python_ms:
            return 0.0
        # On a CPU PyTorch's steps start their operations from Python, until they end.
        is_python = self.run.framework == "torch" and self.run.device == "cpu"
        return python_ms + (self.needed_ms if is_python else min(self.needed_ms, LOOP_PYTHON_MS))

    # -- the functions of the input ------------------------------------------------------------

    @property
    def made_at_once(self) -> bool:
        """True if nearly all of the wait is the handling of finished batches: no worker can help."""
        return self.calls.handled > 1 - LITTLE

    @property
    def part_share(self) -> float:
        """The share (0-1) of the wait that passes in this part of a DataLoader; 0.0 = not known."""
        if self.calls.part is not None:
            return samples_of(self.calls.part) / self.calls.samples
        return min(1.0, self.calls.joined)

    @property
    def call_line(self) -> str:
        """The line of the program that the input's function mostly is in, and the library it calls; "" = not known."""
        call = self.calls.named
        if call is None or (call.get("in_line") or 0) < max(A_FEW, MOSTLY * samples_of(call)):
            return ""
        library = f", in {call['library']}" if call.get("library") and self.in_library(call["library"]) else ""
        return f"{call['line']}{library}"

    @property
    def line_share(self) -> float:
        """The share (0-1) of the input's function that is spent at that line, or in the library that it calls."""
        call = self.calls.named or {}
        return max(call.get("in_line") or 0, call.get("in_library") or 0) / max(1, samples_of(call))

    def in_library(self, *libraries: str) -> float:
        """Return the share (0-1) of the input's function that is spent in these libraries; 0.0 = little."""
        call = self.calls.named
        if call is None or samples_of(call) < A_FEW or call.get("library") not in libraries:
            return 0.0
        share = call["in_library"] / samples_of(call)
        return share if share >= MOSTLY else 0.0

    # -- the model of the limits ---------------------------------------------------------------

    def gain(self, saves: float) -> float:
        """Return how many times faster these steps get if this share of `lost_ms` is gone."""
        now_ms = self.arrives_ms + self.rare_ms
        return now_ms / max(1e-9, now_ms - saves * self.lost_ms)

    def kept(self, saves: float) -> float:
        """Return the share (0-1) of `lost_ms` that is gone if results of the first pass are kept.

        Long fetches count, too.

        Args:
            saves: the share that is gone in a later pass, without the long fetches.
        """
        first_end, later = self.passes.first_end, self.passes.later
        if self.rare is None:
            return later * saves
        # Share of the long fetches that lie after the first pass.
        later_rare = self.rare.later(first_end) if 0 < first_end < self.where.end_step else later
        return later * saves + later_rare * self.rare_ms / self.lost_ms

    def saves(self, arrives_ms: float) -> float:
        """Return the share of the wait that is gone when batches are `arrives_ms` apart."""
        if self.lost_ms <= 0:
            return 1.0
        wait_left_ms = max(0.0, arrives_ms - self.needed_ms)
        return max(0.0, min(1.0, 1 - wait_left_ms / self.lost_ms))

    def after(self, stage_ms: float, *, spared_ms: float = 0.0, python_ms: float | None = None) -> float:
        """Return the time between batches in ms if the slowest stage works ahead and takes `stage_ms` per batch.

        The largest of the limits: the step with what the loop makes itself, the slowest threaded stage, the interpreter
        and the cores. No part takes longer than batches do now.

        Args:
            spared_ms: the CPU time per batch that is then not needed at all.
            python_ms: the Python computation per batch then; None = as now if a function computes.
        """
        first, slowest = chain_ms(self.stages, self.stage, stage_ms)
        other_limits_ms = max(min(slowest, self.arrives_ms), min(first, self.arrives_ms) + self.needed_ms)
        if python_ms is None:
            python_ms = self.python_ms if "py_function" in self.stage.flags else 0.0
        return max(stage_ms, other_limits_ms, self.cores_ms(spared_ms), self.interpreter_ms(python_ms))

    def saves_by(self, stage_ms: float, *, spared_ms: float = 0.0, python_ms: float | None = None) -> float:
        """Return the share (0-1) of the wait that is gone if batches come as `after` predicts.

        Its arguments are the same.

        0.0 if the limits predict no change from what they give for the pipeline as it is.
        """
        arrives_ms = self.after(stage_ms, spared_ms=spared_ms, python_ms=python_ms)
        modelled_now_ms = self.arrives_ms  # now, by the same limits
        if self.stages and not self.read_elsewhere and self.stage is not NO_STAGE:
            first, slowest = chain_ms(self.stages)
            modelled_now_ms = max(slowest, first + self.needed_ms, self.cores_ms())
        return 0.0 if modelled_now_ms < LEAST_GAIN * min(arrives_ms, self.arrives_ms) else self.saves(arrives_ms)

    @property
    def work_ms(self) -> float:
        """Time of all stages for a batch."""
        return sum(stage.ms_per_batch for stage in self.stages if not stage.passing)

    @property
    def works_ahead(self) -> bool:
        """True if stages are known, and one of them makes batches while steps run."""
        return any(stage.threaded for stage in self.stages)

    @property
    def filtered(self) -> tuple[Stage, float] | None:
        """The filter behind the slow stage that drops most of its results, and the share of these, 0-1."""
        return dropped_behind(self.stage, self.stages)

    @property
    def keeps_up(self) -> bool:
        """True if the stages are fast enough by their own numbers, so that none is to blame.

        They work ahead, no part of the pipeline takes a batch as long as a step, nor do the cores need as long for all
        of its work, and what the loop itself makes of a batch is little of the wait.
        """
        if not self.works_ahead or self.read_elsewhere:
            return False
        own_part_ms, slowest_ms = chain_ms(self.stages)
        late_ms = max(0.0, max(slowest_ms, self.cores_ms()) - self.needed_ms)
        return late_ms + own_part_ms < LITTLE * self.lost_ms

    # -- what a cache would hold ---------------------------------------------------------------

    @property
    def pass_bytes(self) -> float | None:
        """Bytes of the batches of a pass over the input; None = unknown."""
        dims, batches = self.run.fit.get("input_dims"), self.passes.steps
        dtypes = {str(array.get("dtype")) for array in self.run.fit.get("input_first") or []}
        if not dims or not batches or dtypes & {"object", "string"}:  # strings and objects have no size by their shape
            return None
        # Of a size that varies, (least, most) is known.
        sizes = [[max(size) if isinstance(size, list) else size or 0 for size in shape or ()] for shape in dims]
        if not all(shape and min(shape) > 0 for shape in sizes):
            return None
        return float(batches * 4 * sum(map(math.prod, sizes)))  # most are float32

    @property
    def fits_memory(self) -> bool | None:
        """True if the batches of a pass fit into this machine's memory; None = unknown."""
        size, limit = self.pass_bytes, self.run.host_limit
        return None if size is None or limit is None else size <= MOSTLY * limit[0]

    @property
    def asked_room(self) -> str:
        """The question whether all of it fits into memory, as the end of another one; "" where it does."""
        return "" if self.fits_memory else ", and do all of them fit into memory"

    @property
    def repeats(self) -> bool | None:
        """True if items of the dataset were seen to be the same when they were asked for again; None = not known."""
        return self.run.fit.get("input_repeats")

    # -- words ---------------------------------------------------------------------------------

    @property
    def pace(self) -> str:
        """The batches' pace and the model's, in words."""
        return (
            f"a batch arrives every {brief(self.arrives_ms)}, but the model could take one every "
            f"{brief(self.needed_ms)}"
        )

    @property
    def paces(self) -> str:
        """`pace` as a sentence without its full stop."""
        return capitalized(self.pace)

    @property
    def part_takes(self) -> str:
        """The part of a DataLoader, and its share of the wait, as a clause."""
        part = self.calls.part or {"name": self.collate, "part": "collate_fn"}
        share = self.part_share
        takes = f"takes {percent(100 * share)} of the wait" if share else "joins samples that are there"
        return f"{(self.calls.collates and self.collate) or part['name']} ({part['part']}) {takes}"

    @property
    def mostly_in(self) -> str:
        """The function that most stack samples met, its line and a question, without a full stop; "" = not known."""
        if samples_of(self.calls.named or {}) < max(A_FEW, MOSTLY * self.calls.samples):
            return ""
        line = self.call_line and f", mostly at {self.call_line}"
        return f"{self.call_name} takes most of that{line}. Make once, before training, what is the same in each pass"

    @property
    def function(self) -> str:
        """The user's name of the slowest stage's function: of a lambda, that of the Python function it calls."""
        name, named = function_of(self.stage), self.calls.named
        return named["name"] if name == YOURS and named is not None and self.kind == "tf.data" else name

    @property
    def call_name(self) -> str:
        """Name of the Python function that makes the input."""
        return str(self.calls.named["name"]) if self.calls.named else self.function

    @property
    def maker(self) -> str:
        """The maker of the batches, by its name in the program, to begin a sentence."""
        if self.kind == "generator":
            return f"The generator {self.input_class}".strip()
        is_dataset = self.kind.startswith(("pydataset", "sequence"))
        return self.input_class or ("The PyDataset" if is_dataset else "The loader")

    @property
    def loop_paces(self) -> str:
        """The maker of a loop's batches and their pace, as a sentence without its full stop."""
        if "pydataset" in self.kind or self.kind == "generator":
            return f"{self.maker} makes each batch while the loop waits: {self.pace}"
        return f"The loop waits for its batches: {self.pace}"

    @property
    def loader_limit(self) -> str:
        """The limit of the batches' pace, as a sentence without its full stop."""
        maker = self.maker
        if self.cores.full:
            return capitalized(self.cores.busy)
        if self.workers > 1:
            return f"{maker} has {self.workers} workers, as many as this machine can use"
        if self.waits is False:
            return f"{maker} computes in Python, which runs one thread at a time"
        return f"{maker} makes one batch at a time{', and mostly waits' * (self.waits is True)}"

    @property
    def limit(self) -> str:
        """The limit of the input, for a headline without a remedy; "" if it is not known."""
        if self.made_at_once:
            return self.handling
        who = self.stage.name or (self.call_name if self.calls.slowest else "it")
        if self.cores.full and self.waits is not True:
            # The stage keeps the cores busy, not other programs.
            mine = self.stage is not NO_STAGE and not self.cores.others_compute
            return self.cores.busy + (f", most with {who}" if mine else "")
        if self.waits is False and (self.calls.slowest or "py_function" in self.stage.flags):
            return f"the Python code of {self.call_name} runs one thread at a time"
        if self.stage is not NO_STAGE:
            return f"the stage {who} takes {brief(self.stage.ms_per_batch)} a batch"
        return ""

    @property
    def takes(self) -> str:
        """The slowest stage's time for a batch, in words."""
        stage = self.stage
        if stage is NO_STAGE:
            return self.paces
        on = ""
        if not self.overlaps and stage.parallelism >= 1.5:
            on = f" on {stage.parallelism:.0f} threads"
        summed = ", summed over its threads" if self.overlaps else on
        took, needed_text = brief(stage.work_ms_per_batch), brief(self.needed_ms)
        if stage.name in ("batch", "padded_batch"):
            each = f"Putting a batch together takes {took}{summed}"
        else:
            each = f"{stage.name} takes {took} a batch{summed}"
        if self.filtered is not None:
            each += f" ({self.filtered[0].name} drops {percent(100 * self.filtered[1])} of its results)"
        alone_ms = stage.work_ms_per_batch if self.overlaps else stage.ms_per_batch
        if alone_ms >= self.needed_ms or not self.stages:  # the stage alone is too slow
            return f"{each}, but the model could take one every {needed_text}"
        if not self.works_ahead:  # each batch is made between the steps
            return f"{each}, while the model waits"
        if self.read_elsewhere:  # its time is not that of these batches
            return f"{stage.name} is the slowest stage of the pipeline, and {self.pace}"
        _, slowest_ms = chain_ms(self.stages)
        if slowest_ms >= self.needed_ms:  # fast enough alone, too slow with the stages on its thread
            return (
                f"{each}. With the other stages on its thread that is {brief(slowest_ms)}, but the "
                f"model could take one every {needed_text}"
            )
        return f"{each}; {self.pace}"


def measure_input(
    run: Run, where: Range, lost_ms: float, needed_ms: float, rare: LongFetches | None = None, explained_ms: float = 0.0
) -> InputWait:
    """Measure the input of a span of steps, all times in ms per batch.

    Args:
        lost_ms: the avoidable part of a step's wait.
        needed_ms: duration of a step without it.
        rare: the few long fetches, to be judged apart from the others; None = the wait is steady.
        explained_ms: stages that work less for a batch than this do not explain the wait.
    """
    stages: Sequence[Stage] = run.pipeline.stages(*where.extent_ns)
    passes = measure_passes(run, where, stages)
    fast_enough = bool(stages) and sum(stage.ms_per_batch for stage in stages if not stage.passing) < explained_ms
    rare_ms = 0.0
    if rare is not None:  # the rest of the wait is that of usual batches
        stages, rare = _usual_stages(run, stages, passes, rare)
        rare_ms = rare.share * lost_ms
        lost_ms = max(NO_MS, lost_ms - rare_ms)
    handling = _handling(run)
    cores, calls = measure_cores(run, where), measure_calls(run, rare, handling)
    return InputWait(
        run,
        where,
        lost_ms,
        needed_ms,
        run.input_kind,
        str(run.fit.get("input_class") or ""),
        int(run.fit.get("input_workers") or 0),
        cores,
        passes,
        calls,
        _mostly_waits(cores, calls.slowest),
        handling,
        stages,
        run.pipeline.reads_elsewhere(where.steps, *where.extent_ns),
        rare,
        rare_ms,
        not_the_bottleneck=fast_enough,
    )


def _usual_stages(
    run: Run, stages: Sequence[Stage], passes: Passes, rare: LongFetches
) -> tuple[Sequence[Stage], LongFetches]:
    """Return the stages without the time of the long fetches, and the long fetches with the name of their stage.

    That time is taken from the slowest stage, if it lies in it; else both are returned as they are.
    """
    slowest = slowest_of(stages, passes)
    long_ms = rare.count * rare.each_ms / rare.rows
    if slowest is NO_STAGE or slowest.work_ms_per_batch < MOSTLY * long_ms:
        return stages, rare
    usual_share = max(0.0, 1 - long_ms / slowest.work_ms_per_batch)
    quicker = slowest._replace(
        work_ms_per_batch=usual_share * slowest.work_ms_per_batch, ms_per_batch=usual_share * slowest.ms_per_batch
    )
    usual_stages = [quicker if stage is slowest else stage for stage in stages]
    named = replace(rare, stage=slowest.name) if run.input_kind == "tf.data" else rare
    return sorted(usual_stages, key=lambda stage: -stage.ms_per_batch), named


def slowest_of(stages: Sequence[Stage], passes: Passes) -> Stage:
    """Return the slowest stage, `NO_STAGE` without any; of stages behind a full cache only those that still work count.

    Args:
        stages: slowest first.
    """
    making = [stage for stage in stages if not stage.passing]
    at_work = [stage for stage in making if not stage.cached and stage.work_ms_per_batch > 0]
    return next(iter(at_work if at_work and passes.later > MOSTLY else making), NO_STAGE)


def _mostly_waits(cores: Cores, call: Mapping[str, Any] | None) -> bool | None:
    """Return True if making a batch mostly waits, False if it computes, None if neither is known.

    The CPU time of the input's Python function decides, whatever else the machine does, as `Calls.timed` leaves out the
    time in which it was ready to run and had no core. Where it is not timed, or that time is not known on busy cores, a
    process that hardly computes waits, unless others take its cores.

    Args:
        call: the slowest timed function; None = none was timed.
    """
    # Timed: the function's own share of computing.
    if call is not None and call.get("cpu_ms") is not None and ("queued_ms" in call or not cores.full):
        computing_share = min(1.0, call["cpu_ms"] / max(1e-9, call["wall_ms"]))
        if computing_share < MOSTLY:
            return True
        return False if computing_share > COMPUTES else None
    if cores.own is None:  # not timed: the whole process' cores
        return None
    if cores.own >= COMPUTES:
        return False
    return True if cores.own < MOSTLY and not cores.may_be_lacking else None


def _handling(run: Run) -> str:
    """Return what Keras' `fit` does with a finished batch before its step, as a clause; "" = little or nothing.

    As read in Keras 3.15. JAX on a CPU takes arrays as they are, and so does PyTorch take tensors.
    """
    # A loop of the user's own, tf.data or a DataLoader: nothing.
    if run.custom_loop or not run.input_kind.startswith(("pydataset", "sequence", "generator")):
        return ""
    if run.framework == "tensorflow":
        return "Keras has tf.data convert each batch (from_generator), on another thread"
    to_gpu = "to the GPU" if run.device == "gpu" else ""
    if run.framework == "jax" or first_types(run) == {"torch"}:
        by = " (jax.device_put)" if run.framework == "jax" else ""
        return f"Keras copies each batch {to_gpu}{by}" if to_gpu else ""
    return f"Keras converts each batch{f' and copies it {to_gpu}' if to_gpu else ''}"


def first_types(run: Run) -> set[str]:
    """Return the types of the arrays in the first batch; empty if not known."""
    return {str(array.get("type")) for array in run.fit.get("input_first") or []}


def _waits_evenly(run: Run) -> bool:
    """Return True if steps wait about equally long, so that no few batches hold the wait.

    The median over blocks is compared with the mean wait; the longest wait of each block is left out.
    """
    rows, waits_ns = run.steps["rows"], run.steps["wait_ns"]
    several = rows > 1
    if not several.any():
        return False
    usual_ns = np.median((waits_ns - run.steps["top_wait_ns"])[several] / (rows[several] - 1))
    return bool(usual_ns >= MOSTLY * waits_ns.sum() / rows.sum())


def samples_of(call: Mapping[str, Any]) -> int:
    """Return how many samples of the stack met a function of the input."""
    return call.get("samples") or 0


def _all_ms(call: Mapping[str, Any]) -> float:
    """Return the time of all calls of a timed function."""
    return call["calls"] * call["wall_ms"]


def _with_long(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a function's times with its few long calls, which are taken to compute as much of their time."""
    more = 1 + call.get("long_ms", 0.0) / max(1e-9, _all_ms(call))
    return {**call, **{name: more * call[name] for name in ("wall_ms", "cpu_ms", "queued_ms") if name in call}}


def _unqueued(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a function's times without those in which its thread was ready to run and had no core."""
    if "queued_ms" not in call:
        return call
    return {**call, "wall_ms": max(call["cpu_ms"], call["wall_ms"] - call["queued_ms"]), "queued_ms": 0.0}


def brief(ms: float) -> str:
    """Format milliseconds: `12 ms`, `3.4 ms`, `0.8 ms`, `under 0.1 ms`."""
    if ms < 0.05:
        return "under 0.1 ms"
    return f"{ms:.0f} ms" if ms >= 9.95 else f"{ms:.1f} ms"


def function_of(stage: Stage) -> str:
    """Return the user's name of a stage's function; `YOURS` where it has none."""
    name_match = re.search(r"\((\w+)\)", stage.name)
    return name_match[1] if name_match and name_match[1] != "lambda" else YOURS
