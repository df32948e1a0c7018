"""A process that trains programs on request: `python -m gauntlet.child`.

Each line of standard input is a request, each line of standard output its answer, both JSON:
`{"program", "variant", "value", "log_dir"}` -> `{"seconds", "changed", "printed"}`, and
`{"program", "alone": true}` -> milliseconds a batch of input and model alone, measured without our
package.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from gauntlet.registry import ANYWHERE, load

BATCHES = 60  # of the model alone
TINY = bool(os.environ.get("GAUNTLET_TINY"))  # try the programs for a GPU where there is none


class Run:
    """One training, as its program sees it.

    Attributes:
        variant: "base", or the name of a cure.
        value: what the printed cure had in its group (a number of workers), or "".
        recorded: whether `callbacks` and `monitor` are ours.
        began_s: the time at which the program asked for `callbacks` or entered `monitor`.
        policy: Keras' precision.
    """

    policy = "float32"

    def __init__(self, variant: str = "base", value: str = "", log_dir: str | None = None) -> None:
        self.variant, self.value, self.log_dir = variant, value, log_dir
        self.began_s: float | None = None
        self._callbacks: list | None = None
        self.alone_ms: dict[str, float] = {}

    def does(self, *variants: str) -> bool:
        """Return whether this is one of these variants."""
        return self.variant in variants

    def number(self, default: int) -> int:
        """Return the number that the printed cure names."""
        return int(self.value) if self.value.isdigit() else default

    def steps(self, count: int) -> int:
        """Return how many steps to train, or a few where programs are only tried (`GAUNTLET_TINY`)."""
        return min(count, 10) if TINY else count

    def size(self, full: int, tiny: int) -> int:
        """Return a size of the model, or a tiny one where programs are only tried."""
        return tiny if TINY else full

    @property
    def device(self) -> str:
        """PyTorch's name of the GPU."""
        return "cpu" if TINY else "cuda"

    @property
    def callbacks(self) -> list:
        """The callbacks for `fit`: ours, or none. Starts the clock when first asked for."""
        return self.traced(0)

    def traced(self, steps: int) -> list:
        """Return the callbacks for a `fit` of so many steps, with two profiler windows; 0 = as by default."""
        if self._callbacks is None:
            self._callbacks = []
            if self.log_dir is not None:
                from gpu_util_callback import GpuUtilCallback

                self._callbacks = [GpuUtilCallback(self.log_dir, trace=windows(steps))]
            self.began_s = time.perf_counter()
        return self._callbacks

    def monitor(self, steps: int = 0) -> Any:
        """Return `GpuUtilMonitor`, or something of its interface. Starts the clock.

        Args:
            steps: of the loop, for two profiler windows; 0 = as by default.
        """
        if self.log_dir is not None:
            from gpu_util_callback import GpuUtilMonitor

            monitor: Any = GpuUtilMonitor(self.log_dir, trace=windows(steps))
        else:
            monitor = NoMonitor()
        self.began_s = time.perf_counter()
        return monitor


def windows(steps: int) -> list[tuple[int, int]] | str:
    """Return two windows of three steps in a training of so many; of an unknown number, the callback's default."""
    return [(at, at + 3) for at in (int(0.3 * steps), int(0.65 * steps))] if steps else "auto"


class NoMonitor:
    """The interface of `GpuUtilMonitor`, without any recording."""

    def __enter__(self) -> NoMonitor:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def batches(self, dataset: Iterable) -> Iterable:
        return dataset

    def phase(self, name: str) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext()

    def fetch(self) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext()

    def step(self) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext()


class Finished(Exception):
    """Both parts of the first fit or loop were timed: the rest of the program is skipped."""


class AloneMonitor(NoMonitor):
    """A monitor whose first `batches` time the input alone, then the loop over one batch."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def batches(self, dataset: Iterable) -> Iterator:
        batch, self.run.alone_ms["input"] = input_alone(iter(dataset))
        yield batch  # whatever the first call of a step builds
        began = time.perf_counter()
        for _ in range(BATCHES):
            yield batch
        self.run.alone_ms["model"] = 1e3 * (time.perf_counter() - began) / BATCHES
        raise Finished


def input_alone(batches: Iterator) -> tuple[Any, float]:
    """Return the first batch and the milliseconds of each of the others."""
    first, began, count = next(batches), time.perf_counter(), 0
    for _ in batches:
        count += 1
        if time.perf_counter() - began > 4:
            break
    return first, 1e3 * (time.perf_counter() - began) / max(1, count)


@contextlib.contextmanager
def alone(run: Run) -> Iterator[None]:
    """Replace `fit` by one that times the input, then the model on one batch that stays."""
    import keras
    from keras.src.trainers.data_adapters import get_data_adapter

    fit = keras.Model.fit

    def timed(self, x=None, y=None, batch_size=None, steps_per_epoch=None, class_weight=None, **_):
        adapter = get_data_adapter(x, y, batch_size=batch_size, shuffle=True)
        on_tf = keras.backend.backend() == "tensorflow"
        batches = adapter.get_tf_dataset() if on_tf else adapter.get_numpy_iterator()
        batch, run.alone_ms["input"] = input_alone(iter(batches))
        if on_tf:
            import tensorflow as tf

            def repeated(count: int) -> Any:
                return tf.data.Dataset.from_tensors(batch).repeat(count)
        else:

            def repeated(count: int) -> Any:
                return (batch for _ in range(count))

        fit(self, repeated(3), verbose=0)
        began = time.perf_counter()
        fit(self, repeated(BATCHES), verbose=0)
        run.alone_ms["model"] = 1e3 * (time.perf_counter() - began) / BATCHES
        raise Finished

    keras.Model.fit = timed
    try:
        yield
    except Finished:
        pass
    finally:
        keras.Model.fit = fit


@contextlib.contextmanager
def instead(variant: str) -> Iterator[None]:
    """Apply a printed line that can be applied to any `fit`: one of `ANYWHERE`."""
    import keras
    import tensorflow as tf

    fit = keras.Model.fit

    def changed(self, x=None, y=None, batch_size=32, **options):
        if variant == "sliced":
            x = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(batch_size)
        if isinstance(x, tf.data.Dataset):
            options["steps_per_epoch"] = int(x.cardinality())
            return fit(self, x.repeat(), **options)
        return fit(self, x, y, batch_size=batch_size, **options)

    keras.Model.fit = changed
    try:
        yield
    finally:
        keras.Model.fit = fit


class Child:
    """Answers requests; knows the weights that each program's base ended with."""

    def __init__(self) -> None:
        self.programs = load()
        self.weights: dict[str, list[np.ndarray]] = {}

    def answer(self, request: dict) -> dict:
        program = self.programs[request.pop("program")]
        if request.get("alone"):
            run = Run()
            run.monitor = lambda steps=0: AloneMonitor(run)  # type: ignore[method-assign]
            self._fresh()
            with alone(run), contextlib.redirect_stdout(io.StringIO()):
                program.train(run)
            return run.alone_ms
        run, printed = Run(**request), io.StringIO()
        self._fresh()
        anywhere = run.variant in ANYWHERE and run.variant not in program.cures
        applied = instead(run.variant) if anywhere else contextlib.nullcontext()
        with contextlib.redirect_stdout(printed), applied:
            result = program.train(run)
            ended = time.perf_counter()
        assert run.began_s is not None, "the program never asked for callbacks or a monitor"
        return {
            "seconds": ended - run.began_s,
            "changed": self._changed(program.name, result),
            "printed": printed.getvalue(),
        }

    def _fresh(self) -> None:
        import keras

        keras.backend.clear_session()
        keras.mixed_precision.set_global_policy("float32")
        keras.utils.set_random_seed(7)

    def _changed(self, name: str, result: Any) -> bool | None:
        """Return whether the trained weights differ from the base's; None if there are none."""
        weights = result.get_weights() if hasattr(result, "get_weights") else result
        if weights is None:
            return None
        weights = [np.asarray(one, "float32") for one in weights]
        base = self.weights.setdefault(name, weights)
        return len(weights) != len(base) or not all(
            one.shape == other.shape and np.allclose(one, other, rtol=1e-3, atol=1e-4)
            for one, other in zip(weights, base, strict=True)
        )


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing else may be printed among the answers
    child = Child()
    import keras  # noqa: F401 - while another process still trains

    for line in sys.stdin:
        try:
            answer = child.answer(json.loads(line))
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
