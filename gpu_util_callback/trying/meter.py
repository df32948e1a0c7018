"""In a child: times steps after the warm-up, and ends the program once it has enough of them.

Loaded by its path into a program of any environment: the standard library alone.
"""

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

WARM_STEPS, WARM_S = 20, 1.0  # compilation, and buffers that were filled meanwhile
COMPARED_LOSSES = 10  # first steps whose losses are compared
FEWEST_STEPS = 8  # steps that a pace can be taken from
LATE_FACTOR = 3  # times `seconds`: the longest that the end of an epoch is waited for
LEAST_S = 1.5  # shorter times scatter more than the start of a process is worth
LEAST_SHARE = 0.5  # likewise, of the time that a process took to come so far


class Mark(NamedTuple):
    """A moment of a training, or what lies between two.

    Attributes:
        seconds: of steps.
        between_s: seconds from the last step of an epoch to the next one's beginning.
        steps, epochs: done.
    """

    seconds: float
    between_s: float
    steps: int
    epochs: int

    def since(self, then: "Mark") -> "Mark":
        """Return what lies between."""
        differences = [now - before for now, before in zip(self, then, strict=True)]
        return Mark(*differences)  # type: ignore[arg-type]


class Meter:
    """Times the steps and epochs of one child's training.

    Args:
        plan: `steps` to time; or `epochs`, of which so many or a multiple of them (0 = by steps), where one ends in
            time; `seconds`, after which less is enough; `folder`, for the result and for `claim`, an empty file that
            the first training process makes.
    """

    def __init__(self, plan: dict[str, Any]):
        self.plan = plan
        self.losses: dict[int, float] = {}
        self.drain: Callable[[], None] = lambda: None  # waits until the device is done
        self.was_applied: Callable[[], bool] = lambda: True  # whether the change met its call
        self.batch_size: int | None = None  # of the training; None = not known
        self.by_monitor = False  # our monitor's loop marks the steps
        self.rare_work = ""  # at the end of some epochs: "validation", or a callback's name
        self.rare_every = 1  # how many epochs of the whole training have one end with it
        self._is_trainer: bool | None = None  # of the program's processes; None = it has not trained so far
        self.steps = 0  # so far
        self._epochs = 0  # that ended; from then on whole ones are timed
        self._epoch_steps = 0  # at the beginning of the epoch
        self._between_s = 0.0  # in pauses that ended: between epochs, in validation
        self._before_epoch_s = 0.0  # of it, before the epoch began
        self._did_rare_work = False  # since the epoch began
        self._ends_s: dict[bool, list[float]] = {}  # pauses of each timed epoch, with and without `rare_work`
        # Moments of `time.perf_counter`, s:
        self._began_s = time.perf_counter()
        self._pause_began_s: float | None = None  # None = within an epoch
        self._first_s: float | None = None
        self._least_s = LEAST_S  # to time
        self._start_mark: Mark | None = None  # where timing began; None = still warming up
        self._last_mark = Mark(0.0, 0.0, 0, 0)
        self._step_marks: deque[Mark] = deque(maxlen=20_000)  # before each step, the last ones

    # -- what hooks report -------------------------------------------------------------------------

    def begin(self) -> None:
        """A training begins, perhaps not the first: what came before was warm-up where nothing is timed so far."""
        if self._start_mark is None:
            self._epochs = 0
        if self._is_trainer is not None:  # decided by an earlier training of this process
            return
        if int(os.environ.get("WORLD_SIZE") or 1) > 1:
            self.fail("several processes train together (torchrun): start it as one process")
            os._exit(1)
        try:
            os.close(os.open(Path(self.plan["folder"], "claim"), os.O_CREAT | os.O_EXCL))
            self._is_trainer = True
        except FileExistsError:  # another process trains; this one only helps it
            self._is_trainer = False

    def epoch_begins(self) -> None:
        """An epoch begins; the time since the one before is no step's."""
        self._end_pause()
        self._ends_s.setdefault(self._did_rare_work, []).append(self._between_s - self._before_epoch_s)
        self._before_epoch_s, self._did_rare_work = self._between_s, False
        self._epoch_steps = self.steps
        if self._start_mark is not None:  # timing goes on: perhaps the planned epochs are complete
            if self._has_enough():
                self.finish()
        elif self._epochs and (self.plan["epochs"] or self._is_warm()):
            # An epoch ended before this one: from here on whole ones are timed.
            self._begin_timing()

    def tick(self, steps: int) -> None:
        """So many steps were done since the training's beginning, and the next one is asked for."""
        if self._first_s is None:
            self._first_s = time.perf_counter()
        self._end_pause()
        self.steps = max(self.steps, steps)
        self._mark_now()
        self._step_marks.append(self._last_mark)
        if self._start_mark is None:
            if not self._epochs and self._is_warm():  # timing by steps begins within the first epoch
                self._begin_timing()
        elif self._has_enough(times_as_long=LATE_FACTOR if self._epochs or self.plan["epochs"] else 1):
            self.finish()

    def epoch_ends(self, steps: int) -> None:
        """The last step of an epoch is done; `steps` of the training so far. An epoch without steps does not count."""
        if steps > self._epoch_steps:
            self._epochs += 1
            if self._epochs == 1 and self._start_mark is not None and self._start_mark.steps != self._epoch_steps:
                self._start_mark = None
        self.pauses(steps)

    def happens(self, work: str) -> None:
        """Some work is done at the end of the epoch."""
        self._did_rare_work |= work == self.rare_work

    def pauses(self, steps: int = 0) -> None:
        """So many steps are done, and what follows until the next one is no step: validation, work between epochs."""
        self.steps = max(self.steps, steps)
        if self._pause_began_s is None:
            self._pause_began_s = time.perf_counter()
        self._mark_now()

    def loss(self, value: Callable[[], Any], steps: int | None = None) -> None:
        """Note the loss after `steps` steps (None = those so far), only of the first `COMPARED_LOSSES`."""
        steps = self.steps if steps is None else steps
        if steps <= COMPARED_LOSSES:
            try:
                self.losses[steps] = float(value())
            except Exception:  # a loss that is no number
                self.losses.clear()

    # -- deciding ----------------------------------------------------------------------------------

    def _end_pause(self) -> None:
        """Add the time since a pause began to the time between epochs."""
        if self._pause_began_s is not None:
            self._between_s += time.perf_counter() - self._pause_began_s
            self._pause_began_s = None

    def _mark_now(self) -> None:
        """Set the last mark to this moment; a pause that lasts counts as time between epochs."""
        now = time.perf_counter()
        between_s = self._between_s + (now - self._pause_began_s if self._pause_began_s is not None else 0.0)
        self._last_mark = Mark(now - between_s, between_s, self.steps, self._epochs)

    def _begin_timing(self) -> None:
        """Begin timing here: all that came before was warm-up."""
        self.drain()
        self._mark_now()
        self._start_mark = self._last_mark
        self._ends_s = {}
        self._least_s = max(LEAST_S, LEAST_SHARE * (time.perf_counter() - self._began_s))

    def _is_warm(self) -> bool:
        """Return True after the steps and seconds of warm-up."""
        if self._first_s is None or self.steps < WARM_STEPS:
            return False
        return time.perf_counter() - self._first_s >= min(WARM_S, self.plan["seconds"])

    def _has_enough(self, times_as_long: int = 1) -> bool:
        """Return True if the timed part holds the planned steps or epochs, or `times_as_long` the planned seconds."""
        assert self._start_mark is not None
        done, seconds = self._last_mark.since(self._start_mark), self.plan["seconds"]
        if self.plan["epochs"]:  # whole epochs are timed, with what lies between them
            took_s = done.seconds + done.between_s
            is_complete = done.epochs > 0 and done.epochs % self.plan["epochs"] == 0
        else:
            took_s, is_complete = done.seconds, done.steps >= self.plan["steps"]
        if times_as_long == 1 and is_complete and took_s >= min(self._least_s, seconds):
            return True
        waits = done.epochs == 1 and self.rare_every > 1  # for an epoch of the other kind
        return took_s >= times_as_long * seconds and not waits and (done.epochs >= 1 or done.steps >= FEWEST_STEPS)

    # -- the end -----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Write the result and end the training."""
        self.drain()
        assert self._start_mark is not None
        self._mark_now()
        self._write(self._timed_part())
        self.leave()

    def leave(self) -> None:
        """End the process."""
        os._exit(0)

    def at_exit(self) -> None:
        """Use what there is of a program that ends, by no error, before there was enough."""
        if not self._is_trainer:
            return
        # Of the last three quarters of the steps.
        warm_marks = [tick for tick in self._step_marks if tick.steps >= self.steps // 4]
        # Enough steps were timed.
        if self._start_mark is not None and self._last_mark.steps - self._start_mark.steps >= FEWEST_STEPS:
            self._write(self._timed_part())
        elif warm_marks and warm_marks[-1].steps - warm_marks[0].steps >= FEWEST_STEPS:
            # Timing began too late or not at all: the pace without what epochs end with.
            self._write(warm_marks[-1].since(warm_marks[0])._replace(epochs=0))
        else:
            self.fail(f"it ended after {self.steps} steps, too few to take a pace from")

    def _timed_part(self) -> Mark:
        """Return the timed part, with the seconds between epochs that a whole training would have.

        0 epochs = not known.

        An epoch with rare work counts by its share of the training, 1 of `rare_every`. Epochs whose pause was not seen
        to end get the mean of the others.
        """
        assert self._start_mark is not None
        done = self._last_mark.since(self._start_mark)
        rare, plain = self._ends_s.get(True, []), self._ends_s.get(False, [])
        whole_steps = self._epoch_steps - self._start_mark.steps  # in timed epochs that ended
        if whole_steps <= 0 or (self.rare_every > 1 and not (rare and plain)) or not (rare or plain):
            return done._replace(epochs=0)
        end_s = fmean(rare + plain)
        if self.rare_every > 1:
            end_s = fmean(plain) + (fmean(rare) - fmean(plain)) / self.rare_every
        epochs = done.steps * len(rare + plain) / whole_steps
        return done._replace(between_s=end_s * epochs)

    def fail(self, problem: str) -> None:
        """Report why this training cannot be timed."""
        self._save({"problem": problem})

    def _write(self, measured: Mark) -> None:
        """Write the timed part, with losses, memory and set-up, as the child's result."""
        if not self.was_applied():
            self.fail("the program never makes the call that the change is about")
            return
        batch = {} if self.batch_size is None else {"batch size": str(self.batch_size)}
        self._save(
            {
                **measured._asdict(),
                "losses": self.losses,
                "host_bytes": host_bytes(),
                "gpu_bytes": gpu_bytes(),
                "set_up": set_up() | batch,
            }
        )

    def _save(self, result: dict[str, Any]) -> None:
        """Write the child's result file in one rename; a result that is there stays."""
        path = Path(self.plan["folder"], "result.json")
        if not path.exists():
            unfinished = path.with_name(f"{path.name}.{os.getpid()}")
            unfinished.write_text(json.dumps(result))
            unfinished.rename(path)


def set_up() -> dict[str, str]:
    """Return what a training computes with: GPU, CPU cores, framework, precision -> text.

    What is not known is left out.
    """
    modules = sys.modules
    facts = {"CPU cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())}
    try:
        if "keras" in modules:
            keras = modules["keras"]
            facts["framework"] = str(keras.backend.backend())
            facts["precision"] = str(keras.mixed_precision.dtype_policy().name)
        else:
            facts["framework"] = next((name for name in ("jax", "torch", "tensorflow") if name in modules), "none")
        if facts["framework"] == "torch":
            cuda = modules["torch"].cuda
            facts["GPU"] = str(cuda.get_device_name(0)) if cuda.is_available() else "none"
        elif facts["framework"] == "jax":
            facts["GPU"] = str(modules["jax"].local_devices()[0].device_kind)
        elif facts["framework"] == "tensorflow":
            config = modules["tensorflow"].config
            details = map(config.experimental.get_device_details, config.list_physical_devices("GPU"))
            facts["GPU"] = ", ".join(str(gpu.get("device_name", "GPU")) for gpu in details) or "none"
    except Exception:  # names that moved: what is not known is not compared
        pass
    return facts


def host_bytes() -> int | None:
    """Return the most bytes that this process held; None where the system does not say."""
    if resource is None:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def gpu_bytes() -> int | None:
    """Return the most bytes that the framework's allocator held on its first GPU; None = not known."""
    try:
        if "torch" in sys.modules and (cuda := sys.modules["torch"].cuda).is_initialized():
            return int(cuda.max_memory_allocated())
        if "jax" in sys.modules:
            return int(sys.modules["jax"].local_devices()[0].memory_stats()["peak_bytes_in_use"])
        if "tensorflow" in sys.modules:
            return int(sys.modules["tensorflow"].config.experimental.get_memory_info("GPU:0")["peak"])
    except Exception:  # no GPU, or a library whose names moved
        pass
    return None
