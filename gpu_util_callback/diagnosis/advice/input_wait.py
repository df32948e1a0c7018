"""Wait for input: its measurements, and the limits that decide a remedy's gain."""

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_util_callback.diagnosis.advice.snippets import batches_an_epoch, steps_an_epoch
from gpu_util_callback.diagnosis.evidence.cores import Cores, measure_cores
from gpu_util_callback.diagnosis.evidence.pipeline import LITTLE, Stage, chain_ms
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.spans import Range
from gpu_util_callback.diagnosis.read_ahead import LongFetches
from gpu_util_callback.diagnosis.rule import LEAST_GAIN
from gpu_util_callback.diagnosis.thresholds import A_FEW, A_TENTH, AGAIN, MOSTLY, Constant, Count
from gpu_util_callback.words import capitalized, percent

MOST_WORKERS = Count(16, "more workers rarely help, and each takes memory")
MOST_CALLS = Count(32, "more files or calls at a time rarely help, and each takes memory")
COMPUTES = Constant(0.65, "CPU share from which a call computes: with a free core it would use all of it")
FIGHTS = Constant(1.3, "a worker process that burns more CPUs than this runs several threads")
LOOP_PYTHON_MS = Constant(0.8, "Python of a step in Keras' fit on TensorFlow and JAX, measured")
NO_MS = Constant(1e-6, "a wait that is nothing: shares are divided by it")
YOURS = "your_function"  # in a line of code


@dataclass(frozen=True)
class InputWait:
    """Wait for input, with all facts that the advice needs. Times are ms per batch.

    Attributes:
        lost_ms: the avoidable part of a step's wait, without that for `rare` fetches.
        needed_ms: duration of a step without it: batches must come this fast.
        stage: the stage to blame, the slowest; None = not known, or none is (`not_the_bottleneck`).
        overlaps: the stage's time for a batch is longer than a step: a sum over its threads.
        not_the_bottleneck: stages are known, and none works long enough to explain the wait.
        stages: all of them, slowest first.
        read_elsewhere: what is known of the stages was in part read of other batches than these.
        rare: the few long fetches that hold much of the wait; None = it is steady.
        rare_ms: the avoidable wait for these, by all steps of the span.
    """

    run: Run
    where: Range
    lost_ms: float
    needed_ms: float
    stage: Stage | None = None
    overlaps: bool = False
    not_the_bottleneck: bool = False
    stages: Sequence[Stage] = ()
    read_elsewhere: bool = False
    rare: LongFetches | None = None
    rare_ms: float = 0.0

    @property
    def slowest(self) -> Stage:
        """The stage to blame, where one is."""
        assert self.stage is not None
        return self.stage

    # -- what is measured ----------------------------------------------------------------------

    @property
    def arrives_ms(self) -> float:
        """Time between batches now, long ones left out."""
        return self.needed_ms + self.lost_ms

    @property
    def pace(self) -> str:
        """The batches' pace and the model's, in words."""
        return (
            f"a batch arrives every {brief(self.arrives_ms)}, but the model could take one every "
            f"{brief(self.needed_ms)}"
        )

    @property
    def one_at_a_time(self) -> str:
        """The time that a single maker of batches takes for one, beside the model's, in words."""
        takes = brief(self.arrives_ms) + ", mostly waiting for files or the network" * (self.waits is True)
        return f"{self.maker} builds one batch at a time ({takes}); the model needs one every {brief(self.needed_ms)}"

    @property
    def paces(self) -> str:
        """`pace` as a sentence without its full stop."""
        return capitalized(self.pace)

    @property
    def kind(self) -> str:
        """Kind of the input, in lower case: "tf.data", "pydataset", "torch dataloader", ..."""
        return self.run.input_kind

    @property
    def input_class(self) -> str:
        """Name of the user's class or generator; "" if unknown."""
        return str(self.run.fit.get("input_class") or "")

    @property
    def workers(self) -> int:
        """Worker processes or threads that make batches."""
        return int(self.run.fit.get("input_workers") or 0)

    @property
    def one_step_a_pass(self) -> bool:
        """True if a loop makes an iterator for each batch: `next(iter(dataset))`."""
        return self.run.custom_loop and steps_an_epoch(self.run) == 1

    @property
    def steps_a_pass(self) -> int | None:
        """Steps of a pass over the input; None = not known.

        With `steps_per_epoch`, an epoch may be shorter: the next one continues the pass. The length of an
        input that repeats is that of all its passes.
        """
        repeats = any(stage.repeats for stage in self.stages)
        return (None if repeats else self.run.fit.get("input_batches")) or steps_an_epoch(self.run)

    @property
    def batches_a_pass(self) -> int:
        """Batches of a pass over the input or, where that is not known, of these steps."""
        return self.steps_a_pass or max(1, self.where.steps)

    @property
    def one_pass(self) -> bool:
        """True if all epochs read one iterator of a pipeline that does not repeat, such as an endless generator's."""
        repeats = any(stage.repeats for stage in self.stages)
        return self.run.fit.get("input_one_iterator") is True and bool(self.stages) and not repeats

    @property
    def later_passes(self) -> float:
        """Share (0-1) of these steps that come after the first pass over the input, which a cache still has to make."""
        run, where, epochs = self.run, self.where, self.run.fit.get("epochs")
        epoch, batches = steps_an_epoch(run) or 0, self.steps_a_pass or 0
        cut = 0 < epoch < batches
        passes = epochs * epoch / batches if cut and epochs is not None else epochs
        if (passes is not None and passes <= 1) or self.one_pass:
            return 0.0
        first_end, rows = self._first_pass_end, where.steps
        if rows <= 0:
            return 1.0
        if where.end_step <= first_end and not run.ended and passes is not None:
            return 1 - 1 / passes  # the others are still to come
        return max(0.0, min(1.0, (where.end_step - max(first_end, where.start_step)) / rows))

    @property
    def _first_pass_end(self) -> int:
        """The first step of the second pass; 0 = not known."""
        run, batches = self.run, self.steps_a_pass or 0
        cut = 0 < (steps_an_epoch(run) or 0) < batches
        ends = [int(rows["end_ns"][0]) for rows in run.phases.of("epoch").values() if len(rows) and not cut]
        return run.step_at(min(ends)) if ends else batches

    # -- cores and the interpreter -------------------------------------------------------------

    @functools.cached_property
    def cores(self) -> Cores:
        """The cores that this process can have, and who keeps them busy."""
        return measure_cores(self.run, self.where)

    @property
    def worker_cpus(self) -> float | None:
        """Cores that each worker process keeps busy; None = not sampled."""
        return None if self.cores.of_workers is None or not self.workers else self.cores.of_workers / self.workers

    @property
    def input_cpus(self) -> float | None:
        """Cores that the input keeps busy while steps run; None = not known, or it is made between the steps."""
        if self.workers and (self.run.fit.get("input_processes") or "pydataset" not in self.kind):
            return self.cores.of_workers
        beside = self.works_ahead or (
            "pydataset" in self.kind and (self.workers > 1 or self.run.framework == "tensorflow")
        )
        own_cpus, queued = self.cores.own, self.cores.queued
        if not beside or own_cpus is None or queued is None:
            return None
        # A stage's time is that of its threads, which wait for a core as often as the main thread.
        made_ms = (1 - queued) * sum(stage.work_ms_per_batch for stage in self.stages if not stage.passing)
        if not self.stages:
            made_ms = sum(call["calls"] * call["cpu_ms"] for call in self._timed_calls) / max(1, self.where.steps)
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
    def cpu_ms(self) -> float:
        """CPU time of this process for a batch and its step together; 0.0 = not sampled."""
        return (self.cores.own or 0.0) * (self.arrives_ms + self.rare_ms)

    @property
    def cores_ms(self) -> float:
        """Least time between batches with the same work on all cores that it can have."""
        return max(0.0, self.cpu_ms) / max(0.3, self.cores.reachable)

    @functools.cached_property
    def _timed_calls(self) -> Sequence[Mapping[str, Any]]:
        """The timed Python functions of the input, with their long calls unless these are told apart (`rare`)."""
        calls = self.run.fit.get("input_calls") or []
        timed_calls = [call for call in calls if call.get("timed") and call.get("wall_ms")]
        if self.rare is not None:
            return timed_calls
        return [_with_long(call) for call in timed_calls]

    @property
    def call(self) -> Mapping[str, Any] | None:
        """The Python function of the input that takes most of the time; None = not timed."""
        beside = self.part is not None or self.collates
        calls = [call for call in self._timed_calls if call.get("part") or not beside]
        return max(calls, key=lambda call: call["calls"] * call["wall_ms"], default=None)

    @functools.cached_property
    def part(self) -> Mapping[str, Any] | None:
        """The part of a DataLoader beside its dataset, or around it, that most stack samples met; None = none."""
        most = max((call for call in self._sampled_calls if call.get("part")), key=_samples, default={})
        return most if _samples(most) >= max(A_FEW, MOSTLY * self._samples) else None

    @property
    def _sampled_calls(self) -> Sequence[Mapping[str, Any]]:
        """The input's functions that stack samples met, but the libraries' own code."""
        calls = self.run.fit.get("input_calls") or []
        return [call for call in calls if call.get("samples") and call.get("part") not in ("loader", "epoch_end")]

    @property
    def _samples(self) -> int:
        """Samples of the stack in which the input was made."""
        return sum(_samples(call) for call in self.run.fit.get("input_calls") or [])

    @property
    def named(self) -> Mapping[str, Any] | None:
        """The input's function to be named: a DataLoader's part, else the slowest, or the one that samples met."""
        items = [call for call in self._sampled_calls if not call.get("part")]
        return self.part or self.call or (None if self.collates else max(items, key=_samples, default=None))

    @property
    def collates(self) -> bool:
        """True if most of the wait passes in the program's function that joins samples to a batch."""
        if self.part is not None:
            return self.part["part"] == "collate_fn"
        unsampled = not any(call.get("part") for call in self.run.fit.get("input_calls") or [])
        joins = unsampled and self.joining_ms > MOSTLY * self.lost_ms
        return bool(self.collate) and (self.items_there or joins)

    @property
    def beside_workers(self) -> bool:
        """True if most of the wait passes in what the training process does whatever the workers."""
        return self.part is not None and not self.collates

    @property
    def part_share(self) -> float:
        """The share (0-1) of the wait that passes in this part of a DataLoader; 0.0 = not known."""
        if self.part is not None:
            return _samples(self.part) / self._samples
        return min(1.0, self.joining_ms / self.lost_ms)

    @property
    def part_takes(self) -> str:
        """The part of a DataLoader, and its share of the wait, as a clause."""
        name, of = (self.part["name"], self.part["part"]) if self.part is not None else (self.collate, "collate_fn")
        takes = (
            f"takes {percent(100 * self.part_share)} of the wait" if self.part_share else "joins samples that are there"
        )
        return f"{(self.collates and self.collate) or name} ({of}) {takes}"

    @property
    def waits_evenly(self) -> bool:
        """True if the steps wait about equally long, so that no few batches hold the wait: by the median block.

        The longest wait of each block is left out.
        """
        steps = self.run.steps
        rows, waits_ns = steps["rows"], steps["wait_ns"]
        several = rows > 1
        if not several.any():
            return False
        usual_ns = np.median((waits_ns - steps["top_wait_ns"])[several] / (rows[several] - 1))
        return bool(usual_ns >= MOSTLY * waits_ns.sum() / rows.sum())

    @property
    def handling_ms(self) -> float:
        """The part of the wait in which the batch of a PyDataset or a generator is handled once it is made.

        The functions that make the batch were timed: it is what they leave of the wait. 0 = little, or not
        known: of calls of which few take long, the timed ones say too little.
        """
        if not self.handling or self.workers > 1 or not self.waits_evenly:
            return 0.0
        return self._beside_calls_ms

    @property
    def joining_ms(self) -> float:
        """The part of the wait in which a DataLoader joins samples to a batch; 0 = little, or not known."""
        return self._beside_calls_ms if "dataloader" in self.kind and not self.workers else 0.0

    @property
    def _beside_calls_ms(self) -> float:
        """The part of the wait outside of the functions that were timed; 0 = little, or not known."""
        waited_ms = self.run.steps.total("input_wait_ns") / 1e6
        if self.rare is not None:
            waited_ms -= self.rare.count * self.rare.each_ms
        if not self._timed_calls or waited_ms <= 0:
            return 0.0
        made_ms = sum(call["calls"] * call["wall_ms"] for call in self._timed_calls)
        share = 1 - made_ms / waited_ms  # of the whole run: its calls are not known step by step
        return share * self.lost_ms if share > LITTLE else 0.0

    @property
    def items_there(self) -> bool:
        """True if the samples of a DataLoader are in memory, so that nothing has to make them."""
        return self.input_class in ("TensorDataset", "list", "tuple")

    @property
    def collate(self) -> str:
        """The user's function that joins samples to a batch; "" = the library's, or not known."""
        return str(self.run.fit.get("input_collate") or "")

    @property
    def call_line(self) -> str:
        """The line of the program that the input's function mostly is in, and the library it calls; "" = not known."""
        call = self.named
        if call is None or (call.get("in_line") or 0) < max(A_FEW, MOSTLY * (call.get("samples") or 0)):
            return ""
        library = f", in {call['library']}" if call.get("library") and self.in_library(call["library"]) else ""
        return f"{call['line']}{library}"

    @property
    def mostly_in(self) -> str:
        """The function that most stack samples met, its line and a question, without a full stop; "" = not known."""
        if self.named is None or _samples(self.named) < max(A_FEW, MOSTLY * self._samples):
            return ""
        line = self.call_line and f", mostly at {self.call_line}"
        return f"{self.call_name} takes most of that{line}. Make once, before training, what is the same in each pass"

    @property
    def line_share(self) -> float:
        """The share (0-1) of the input's function that is spent at that line, or in the library that it calls."""
        call = self.named or {}
        return max(call.get("in_line") or 0, call.get("in_library") or 0) / max(1, call.get("samples") or 0)

    def in_library(self, *libraries: str) -> float:
        """Return the share (0-1) of the input's function that is spent in these libraries; 0.0 = little."""
        call = self.named
        if call is None or (call.get("samples") or 0) < A_FEW or call.get("library") not in libraries:
            return 0.0
        share = call["in_library"] / call["samples"]
        return share if share >= MOSTLY else 0.0

    @property
    def call_a_sample(self) -> bool:
        """True if the input's function is called for each sample, as a Subset calls it, not for each batch."""
        if self.call is None:
            return False
        return self.call["name"] == "Subset.__getitems__" or self.call["calls"] >= AGAIN * self.run.steps.total_rows

    @property
    def made_at_once(self) -> bool:
        """True if nearly all of the wait is the handling of finished batches: no worker can help."""
        return self.handling_ms > (1 - LITTLE) * self.lost_ms

    @property
    def call_cpu_share(self) -> float | None:
        """CPU time of the input's function as a share of its duration; None = not timed.

        Time in which it was ready to run and had no core is left out. Where that is not known and
        the cores are busy, nothing tells a function that computes from one that waits.
        """
        call = self.call
        if call is None or call.get("cpu_ms") is None:
            return None
        queued_ms = call.get("queued_ms")
        if queued_ms is None and self.cores.full:
            return None
        return min(1.0, call["cpu_ms"] / max(1e-9, call["wall_ms"] - (queued_ms or 0.0)))

    @property
    def waits(self) -> bool | None:
        """True if making a batch mostly waits, False if it computes; None = not known.

        The CPU time of the input's Python functions decides, whatever else the machine does. Where
        they are not timed, a process that hardly computes waits, unless others take its cores.
        """
        share = self.call_cpu_share
        if share is not None:
            return True if share < MOSTLY else False if share > COMPUTES else None
        own_cpus = self.cores.own
        if own_cpus is None:
            return None
        if own_cpus >= COMPUTES:
            return False
        return True if own_cpus < MOSTLY and not self.cores.may_be_lacking else None

    @property
    def workers_wait(self) -> bool | None:
        """True if the worker processes mostly wait (for files, a network); None = not known."""
        each = self.worker_cpus
        if each is not None:
            return None if each < MOSTLY and self.cores.may_be_lacking else each < MOSTLY
        if math.isinf(self.cores.in_use):
            return None
        # The whole machine computes less than half as much as they could.
        return self.cores.in_use < MOSTLY * min(self.workers, self.cores.allowed)

    @property
    def python_ms(self) -> float:
        """Upper bound of the Python computation for a batch, which threads cannot share."""
        call, steps = self.call, self.run.steps.total_rows
        if call is not None and call.get("cpu_ms") is not None and steps:
            return call["calls"] / steps * call["cpu_ms"]
        return max(0.0, self.cpu_ms - self.needed_ms)

    def interpreter_ms(self, python_ms: float) -> float:
        """Return the least time between batches that Python's one lock allows.

        Args:
            python_ms: computation of the input's functions per batch; the step's is added.
        """
        if not python_ms:
            return 0.0
        torch = self.run.framework == "torch" and self.run.device == "cpu"
        return python_ms + (self.needed_ms if torch else min(self.needed_ms, LOOP_PYTHON_MS))

    # -- the model of the limits ---------------------------------------------------------------

    def gain(self, saves: float) -> float:
        """Return how many times faster these steps get if this share of `lost_ms` is gone."""
        now_ms = self.arrives_ms + self.rare_ms
        return now_ms / max(1e-9, now_ms - saves * self.lost_ms)

    def kept(self, saves: float) -> float:
        """Return the share of `lost_ms` that is gone in the passes after the first, with their long fetches.

        Args:
            saves: the share without these.
        """
        if self.rare is None:
            return self.later_passes * saves
        first = self._first_pass_end
        later = self.rare.later(first) if 0 < first < self.where.end_step else self.later_passes
        return self.later_passes * saves + later * self.rare_ms / self.lost_ms

    def saves(self, arrives_ms: float) -> float:
        """Return the share of the wait that is gone when batches are `arrives_ms` apart."""
        if self.lost_ms <= 0:
            return 1.0
        wait_left_ms = max(0.0, arrives_ms - self.needed_ms)
        return max(0.0, min(1.0, 1 - wait_left_ms / self.lost_ms))

    def after(self, stage: Stage, stage_ms: float, *, spared_ms: float = 0.0, python_ms: float | None = None) -> float:
        """Return the time between batches if a stage works ahead and takes `stage_ms` per batch.

        The largest of the limits: the step with what the loop makes itself, the slowest threaded
        stage, the interpreter and the cores. No part takes longer than batches do now.

        Args:
            spared_ms: the CPU time per batch that is then not needed at all.
            python_ms: the Python computation per batch then; None = as now if a function computes.
        """
        first, slowest = chain_ms(self.stages, stage, stage_ms)
        other_limits_ms = max(min(slowest, self.arrives_ms), min(first, self.arrives_ms) + self.needed_ms)
        cores = max(0.0, self.cpu_ms - spared_ms) / max(0.3, self.cores.reachable)
        if python_ms is None:
            python_ms = self.python_ms if "py_function" in stage.flags else 0.0
        return max(stage_ms, other_limits_ms, cores, self.interpreter_ms(python_ms))

    @property
    def modelled_ms(self) -> float:
        """Time between batches now, as these limits predict it."""
        if not self.stages or self.read_elsewhere or self.stage is None:
            return self.arrives_ms
        first, slowest = chain_ms(self.stages)
        return max(slowest, first + self.needed_ms, self.cores_ms)

    def saved_by(self, arrives_ms: float) -> float:
        """Return the share that a change saves; 0 if the model sees no change in itself."""
        if self.modelled_ms < LEAST_GAIN * min(arrives_ms, self.arrives_ms):
            return 0.0
        return self.saves(arrives_ms)

    @property
    def work_ms(self) -> float:
        """Time of all stages for a batch."""
        return sum(stage.ms_per_batch for stage in self.stages if not stage.passing)

    @property
    def works_ahead(self) -> bool:
        """True if stages are known, and one of them makes batches while steps run."""
        return any(stage.threaded for stage in self.stages)

    @property
    def keeps_up(self) -> bool:
        """True if the stages are fast enough by their own numbers, so that none is to blame.

        They work ahead, no part of the pipeline takes a batch as long as a step, nor do the cores
        need as long for all of its work, and what the loop itself makes of a batch is little of
        the wait.
        """
        if not self.works_ahead or self.read_elsewhere:
            return False
        first, slowest = chain_ms(self.stages)
        late_ms = max(0.0, max(slowest, self.cores_ms) - self.needed_ms)
        return late_ms + first < LITTLE * self.lost_ms

    @property
    def usual_fetch_ms(self) -> float:
        """Time of one worker for a batch that is not among the long ones, at most."""
        if self.call is not None and self.run.steps.total_rows:
            return self.call["calls"] * self.call["wall_ms"] / self.run.steps.total_rows
        if self.stages:
            return max(chain_ms(self.stages))
        if self.workers:  # between nothing and what just keeps up
            return MOSTLY * self.workers * self.arrives_ms
        return self.lost_ms

    @property
    def item_ms(self) -> float:
        """Time that one thread needs for a batch.

        On TensorFlow it makes the next one during the step; elsewhere the loop waits for it.
        """
        return self.arrives_ms if self.run.framework == "tensorflow" else self.lost_ms

    # -- what a cache would hold ---------------------------------------------------------------

    @property
    def pass_bytes(self) -> float | None:
        """Bytes of the batches of a pass over the input; None = unknown."""
        dims, batches = self.run.fit.get("input_dims"), self.steps_a_pass
        dtypes = {str(array.get("dtype")) for array in self.run.fit.get("input_first") or []}
        if not dims or not batches or dtypes & {"object", "string"}:
            return None
        values = 0
        for shape in dims:
            # Of a size that varies, (least, most) is known.
            sizes = [max(size) if isinstance(size, list) else size for size in shape or ()]
            known_sizes = [size for size in sizes if size and size > 0]
            if not sizes or len(known_sizes) < len(sizes):
                return None
            values += math.prod(known_sizes)
        return float(batches * 4 * values)  # most are float32

    @property
    def batches_in_memory(self) -> float:
        """Batches that fit into a tenth of the memory; infinite = not known."""
        limit, size = self.run.host_limit, self.pass_bytes
        return max(2.0, A_TENTH * limit[0] / size * self.batches_a_pass) if limit and size else math.inf

    @property
    def fits_memory(self) -> bool | None:
        """True if the batches of a pass fit into this machine's memory; None = unknown."""
        machine = self.run.machine
        memory = machine.get("memory_limit_bytes") or machine.get("memory_total_bytes")
        size = self.pass_bytes
        return None if size is None or not memory else size <= MOSTLY * memory

    @property
    def asked_room(self) -> str:
        """The question whether all of it fits into memory, as the end of another one; "" where it does."""
        return "" if self.fits_memory else ", and do all of them fit into memory"

    @property
    def repeats(self) -> bool | None:
        """True if items of the dataset were seen to be the same when they were asked for again; None = not known."""
        return self.run.fit.get("input_repeats")

    @property
    def size(self) -> str:
        """The bytes of a pass's batches in words, with a leading space; "" if unknown."""
        size = self.pass_bytes
        if size is None:
            return ""
        return f" ({size / 1e9:,.1f} GB)" if size >= 1e9 else f" ({size / 1e6:,.0f} MB)"

    @property
    def input_random(self) -> bool | None:
        """True if a map draws random numbers, also within nested functions; None = not known."""
        maps = [function for function in self.run.fit.get("input_maps") or [] if function.get("which") != "validation"]
        if any(function.get("random") for function in maps):
            return True
        unknown = not maps and any(stage.name.startswith("map") for stage in self.stages)
        unknown = unknown or any(function.get("python") for function in maps)
        unknown = unknown or any(stage.flags & {"py_function", "stateful"} for stage in self.stages)
        return None if unknown else False

    def random_up_to(self, stage: Stage) -> bool | None:
        """Return whether a stage or one before it draws random numbers; None = not known.

        Where it is not known which stage draws them, each may.
        """
        maps = [function for function in self.run.fit.get("input_maps") or [] if function.get("which") != "validation"]
        flags = [flag for other in self.stages for flag in other.flags]
        placed = all(
            flags.count(flag) >= sum(bool(function.get(fact)) for function in maps)
            for fact, flag in (("random", "random"), ("python", "py_function"))
        )
        if self.input_random is not True or not placed:
            return self.input_random
        before = [other for other in self.stages if other.place >= stage.place]
        if any(other.random for other in before):
            return True
        return None if any(other.flags & {"py_function", "stateful"} for other in before) else False

    # -- words ---------------------------------------------------------------------------------

    @property
    def batches(self) -> str:
        """Batches of an epoch as an expression in code."""
        return batches_an_epoch(self.run)

    @property
    def batch_size(self) -> str:
        """Batch size as an expression in code."""
        return str(self.run.fit.get("batch_size") or "batch_size")

    @property
    def function(self) -> str:
        """The user's name of the slowest stage's function: of a lambda, that of the Python function it calls."""
        name = function_of(self.stage)
        return self.named["name"] if name == YOURS and self.named is not None and self.kind == "tf.data" else name

    @property
    def call_name(self) -> str:
        """Name of the Python function that makes the input."""
        return str(self.named["name"]) if self.named else self.function

    @property
    def calls_at_a_time(self) -> str:
        """Number of calls of the slowest stage that run at a time, in words."""
        calls = round(self.stage.parallelism) if self.stage is not None else 1
        return "one call" if calls <= 1 else f"{calls} calls"

    @property
    def maker(self) -> str:
        """The maker of the batches, by its name in the program, to begin a sentence."""
        if self.kind == "generator":
            return f"The generator {self.input_class}".strip()
        is_dataset = self.kind.startswith(("pydataset", "sequence"))
        return self.input_class or ("The PyDataset" if is_dataset else "The loader")

    @property
    def items_class(self) -> str:
        """Name of the method that makes one item; of the class alone where a library's `__iter__` calls the user's."""
        method = ".__iter__" if self.run.fit.get("input_iterable") else ".__getitem__"
        return f"{self.input_class or 'dataset'}{'' if self.run.fit.get('input_shards') else method}"

    def too_few_workers(self, of: str) -> str:
        """Return that a loader's worker processes are too few, as a sentence without its full stop."""
        if self.workers > 1:
            return f"{self.workers} worker processes of {of} are too few"
        return f"{self.workers} worker process of {of} is too few"

    @property
    def grain_workers(self) -> str:
        """The maker of Grain's batches, as a sentence without its full stop."""
        if self.workers:
            return self.too_few_workers("Grain")
        if self.input_class == "DataLoader":
            return "Grain makes the batches in the training process, while the model waits"
        return "Grain makes the batches in one process"

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
        if self.waits is True:
            return f"{maker} makes one batch at a time, and mostly waits"
        if self.waits is False:
            return f"{maker} computes in Python, which runs one thread at a time"
        return f"{maker} makes one batch at a time"

    @property
    def first_types(self) -> set[str]:
        """The types of the arrays in the first batch; empty if not known."""
        return {str(array.get("type")) for array in self.run.fit.get("input_first") or []}

    @property
    def handling(self) -> str:
        """Handling of a finished batch by Keras' `fit` before a step gets it, as a clause; "" = little.

        Read in Keras 3.15. JAX on a CPU takes arrays as they are, and so does PyTorch take tensors.
        """
        if self.run.custom_loop or not self.kind.startswith(("pydataset", "sequence", "generator")):
            return ""
        if self.run.framework == "tensorflow":
            return "Keras has tf.data convert each batch (from_generator), on another thread"
        to_gpu = "to the GPU" if self.run.device == "gpu" else ""
        if self.run.framework == "jax" or self.first_types == {"torch"}:
            by = " (jax.device_put)" if self.run.framework == "jax" else ""
            return f"Keras copies each batch {to_gpu}{by}" if to_gpu else ""
        return f"Keras converts each batch{f' and copies it {to_gpu}' if to_gpu else ''}"

    @property
    def call_takes(self) -> str:
        """Duration of a call of the function that makes the input, in words."""
        ms = self.call["wall_ms"] if self.call else 0.0
        return brief(ms) if ms >= 0.1 else f"{max(1, round(1e3 * ms))} µs"

    @property
    def limit(self) -> str:
        """The limit of the input, for a headline without a remedy; "" if it is not known."""
        if self.made_at_once:
            return self.handling
        who = self.stage.name if self.stage is not None else self.call_name if self.call else "it"
        if self.cores.full and self.waits is not True:
            mine = self.stage is not None and not self.cores.others_compute
            return self.cores.busy + (f", most with {who}" if mine else "")
        if self.waits is True and self.stage is not None:
            return f"the stage {who} mostly waits, for files or a network"
        if self.waits is False and (self.call or (self.stage and "py_function" in self.stage.flags)):
            return f"the Python code of {self.call_name} runs one thread at a time"
        if self.stage is not None:
            return f"the stage {who} takes {brief(self.stage.ms_per_batch)} a batch"
        return ""

    @property
    def takes(self) -> str:
        """The slowest stage's time for a batch, in words."""
        stage = self.stage
        if stage is None:
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
        alone_ms = stage.work_ms_per_batch if self.overlaps else stage.ms_per_batch
        if alone_ms >= self.needed_ms or not self.stages:
            return f"{each}, but the model could take one every {needed_text}"
        if not self.works_ahead:
            return f"{each}, while the model waits"
        if self.read_elsewhere:
            return f"{stage.name} is the slowest stage of the pipeline, and {self.pace}"
        _, slowest_ms = chain_ms(self.stages)
        if slowest_ms >= self.needed_ms:
            return (
                f"{each}. With the other stages on its thread that is {brief(slowest_ms)}, but the "
                f"model could take one every {needed_text}"
            )
        return f"{each}; {self.pace}"


def _samples(call: Mapping[str, Any]) -> int:
    return call.get("samples") or 0


def _with_long(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a function's times with its few long calls, which are taken to compute as much of their time."""
    more = 1 + call.get("long_ms", 0.0) / max(1e-9, call["calls"] * call["wall_ms"])
    return {**call, **{name: more * call[name] for name in ("wall_ms", "cpu_ms", "queued_ms") if name in call}}


def fork_safe(run: Run) -> bool:
    """Return False where JAX holds a GPU: a forked child would hang or abort."""
    return (run.framework, run.device) != ("jax", "gpu")


def starts_fresh(run: Run) -> bool:
    """Return whether Python starts worker processes by importing the script, which needs a guard then."""
    version = re.match(r"3\.(\d+)", str(run.framework_facts.get("python", "")))
    newer = version is not None and int(version[1]) >= 14
    return newer or run.machine.get("system") in ("Windows", "Darwin")


def brief(ms: float) -> str:
    """Format milliseconds: `12 ms`, `3.4 ms`, `0.8 ms`, `under 0.1 ms`."""
    return f"{ms:.0f} ms" if ms >= 9.95 else f"{ms:.1f} ms" if ms >= 0.05 else "under 0.1 ms"


def function_of(stage: Stage | None) -> str:
    """Return the user's name of a stage's function; `YOURS` where it has none."""
    name_match = re.search(r"\((\w+)\)", stage.name) if stage is not None else None
    return name_match[1] if name_match and name_match[1] != "lambda" else YOURS
