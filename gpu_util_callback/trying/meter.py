"""In a child: times steps after the warm-up, and ends the program once it has enough of them.

Loaded by its path into a program of any environment: the standard library alone.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

WARM_STEPS, WARM_S = 20, 1.0  # compilation, and buffers that were filled meanwhile
LOSSES = 10  # first steps whose losses are compared
FEWEST = 8  # steps that a pace can be taken from
KEPT_TICKS = 20_000
LATE = 3  # times the seconds: the end of an epoch is not waited for any longer
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
    """The clock of one child's training.

    Args:
        plan: `steps` to time; or `epochs`, of which so many or a multiple of them (0 = by steps), where one ends in
            time; `seconds`, after which less is enough; `result`, the file to write; `claim`, the file that the first
            training process makes.
    """

    def __init__(self, plan: dict[str, Any]):
        self.plan = plan
        self.losses: dict[int, float] = {}
        self.drain: Callable[[], None] = lambda: None  # waits until the device is done
        self.was_applied: Callable[[], bool] = lambda: True  # whether the change met its call
        self.batch_size: int | None = None  # of the training; None = not known
        self.by_monitor = False  # our monitor's loop marks the steps
        self._claimed: bool | None = None
        self.steps = 0  # so far
        self._epochs = 0  # that ended; from then on whole ones are timed
        self._epoch_steps = 0  # at the beginning of the epoch
        self._between_s = 0.0
        self._began = time.perf_counter()
        self._least_s = LEAST_S
        self._pause_began: float | None = None
        self._first: float | None = None
        self._start: Mark | None = None
        self._last = Mark(0.0, 0.0, 0, 0)
        self._ticks: list[Mark] = []

    # -- what hooks report -------------------------------------------------------------------------

    def begin(self) -> None:
        """A training begins, perhaps not the first."""
        if self._claimed is None:
            self._claimed = self._claim()

    def epoch_begins(self) -> None:
        """An epoch begins; the time since the one before is no step's."""
        self._resume()
        self._epoch_steps = self.steps
        if self._start is not None:
            if self._enough():
                self.finish()
        elif self._epochs and (self.plan["epochs"] or self._warm()):
            self._begin_timing()

    def tick(self, steps: int) -> None:
        """So many steps were done since the training's beginning, and the next one is asked for."""
        if self._first is None:
            self._first = time.perf_counter()
        self._resume()
        self.steps = max(self.steps, steps)
        self._note()
        if len(self._ticks) < KEPT_TICKS:
            self._ticks.append(self._last)
        if self._start is None:
            if not self._epochs and self._warm():
                self._begin_timing()
        elif self._enough(times_as_long=LATE if self._epochs or self.plan["epochs"] else 1):
            self.finish()

    def epoch_ends(self, steps: int) -> None:
        """The last step of an epoch is done."""
        if steps > self._epoch_steps:
            self._epochs += 1
            if self._epochs == 1 and self._start is not None and self._start.steps != self._epoch_steps:
                self._start = None
        self.pauses(steps)

    def pauses(self, steps: int = 0) -> None:
        """So many steps are done, and what follows until the next one is no step: validation, work between epochs."""
        self.steps = max(self.steps, steps)
        if self._pause_began is None:
            self._pause_began = time.perf_counter()
        self._note()

    def loss(self, value: Callable[[], Any], steps: int | None = None) -> None:
        """Note the loss after so many steps, of the first few."""
        steps = self.steps if steps is None else steps
        if steps <= LOSSES:
            try:
                self.losses[steps] = float(value())
            except Exception:  # a loss that is no number
                self.losses.clear()

    # -- deciding ----------------------------------------------------------------------------------

    def _resume(self) -> None:
        if self._pause_began is not None:
            self._between_s += time.perf_counter() - self._pause_began
            self._pause_began = None

    def _note(self) -> None:
        now = time.perf_counter()
        between_s = self._between_s + (now - self._pause_began if self._pause_began is not None else 0.0)
        self._last = Mark(now - between_s, between_s, self.steps, self._epochs)

    def _begin_timing(self) -> None:
        self.drain()
        self._note()
        self._start = self._last
        self._least_s = max(LEAST_S, LEAST_SHARE * (time.perf_counter() - self._began))

    def _warm(self) -> bool:
        enough_s = min(WARM_S, self.plan["seconds"])
        return self.steps >= WARM_STEPS and self._first is not None and time.perf_counter() - self._first >= enough_s

    def _enough(self, times_as_long: int = 1) -> bool:
        assert self._start is not None
        done, wanted = self._last.since(self._start), self.plan["epochs"]
        took_s = done.seconds + (done.between_s if wanted else 0.0)
        many = done.epochs > 0 == done.epochs % wanted if wanted else done.steps >= self.plan["steps"]
        if times_as_long == 1 and many and took_s >= min(self._least_s, self.plan["seconds"]):
            return True
        return took_s >= times_as_long * self.plan["seconds"] and (done.epochs >= 1 or done.steps >= FEWEST)

    # -- the end -----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Write the result and end the training."""
        self.drain()
        assert self._start is not None
        self._note()
        self._write(self._last.since(self._start))
        self.leave()

    def leave(self) -> None:
        """End the process."""
        os._exit(0)

    def at_exit(self) -> None:
        """Use what there is of a program that ends, by no error, before there was enough."""
        if not self._claimed:
            return
        later = [tick for tick in self._ticks if tick.steps >= self.steps // 4]
        if self._start is not None and self._last.steps - self._start.steps >= FEWEST:
            self._write(self._last.since(self._start))
        elif later and later[-1].steps - later[0].steps >= FEWEST:
            self._write(later[-1].since(later[0])._replace(epochs=0))
        else:
            self.fail(f"it ended after {self.steps} steps, too few to take a pace from")

    def fail(self, problem: str) -> None:
        """Report why this training cannot be timed."""
        self._save({"problem": problem})

    def _claim(self) -> bool:
        """Return whether this process is the one that trains; others of the program only help it."""
        if int(os.environ.get("WORLD_SIZE") or 1) > 1:
            self.fail("several processes train together (torchrun): start it as one process")
            os._exit(1)
        try:
            os.close(os.open(self.plan["claim"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _write(self, measured: Mark) -> None:
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
        path = Path(self.plan["result"])
        if not path.exists():
            unfinished = path.with_name(f"{path.name}.{os.getpid()}")
            unfinished.write_text(json.dumps(result))
            unfinished.rename(path)


def set_up() -> dict[str, str]:
    """Return what a training computes with, by name: GPUs, cores, framework, precision, the version of none."""
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
