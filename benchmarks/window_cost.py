"""What profiler windows cost a fit, and why they are read in a process of their own.

All figures come from windows and quiet stretches that alternate within one fit, so that a slow
minute of the machine weighs on both sides.
"""

import itertools
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

EVERY = 160  # steps from window to window
ROUNDS = 8  # windows of each kind


def read_here(file):
    """The same reading in a thread of the training's process."""
    from gpu_util_callback.profiling.window_reader import WindowRows
    from gpu_util_callback.traces import read_trace
    from gpu_util_callback.traces.imported import analyse
    from gpu_util_callback.traces.recorded import recording_tables

    before = time.thread_time()
    trace = read_trace(str(file))
    tables = recording_tables(analyse(trace))
    events = sum(len(p.events) for p in trace.processes)
    return WindowRows(tables, events, 0, [], time.thread_time() - before)


def read_nothing(file):
    from gpu_util_callback.profiling.window_reader import WindowRows

    return WindowRows({"traced_steps": {}, "kernels": {}}, 0, 0, [], 0.0)


class Windows:
    """A fit's windows, read in turns by each of the readers, with every step's time."""

    def __init__(self, keras, folder, length):
        from gpu_util_callback.backends.base import profiler_session_for
        from gpu_util_callback.profiling.profiler_windows import ProfilerWindows
        from gpu_util_callback.profiling.schedule import TraceSchedule
        from gpu_util_callback.profiling.window_reader import WindowReader
        from gpu_util_callback.recording.clock import Clock

        self.process = WindowReader()
        self.readers = {"process, nice 19": self.process.read, "thread": read_here, "not read": read_nothing}
        self.kinds = list(self.readers) * ROUNDS
        self.begins: list[int] = []
        self.opens = [EVERY * (i + 1) for i in range(len(self.kinds))]
        self.length = length
        self.read_at: dict[int, tuple[int, int]] = {}  # window -> perf ns of its reading
        ranges = [(first, first + length) for first in self.opens]
        self.windows = ProfilerWindows(
            profiler_session_for(keras.backend.backend()),
            TraceSchedule.of(ranges),
            Clock(),
            str(folder),
            share=0.01,
            reader=self,
        )
        self.count = 0

    def give_up(self):
        self.process.give_up()

    def read(self, file):
        begin = time.perf_counter_ns()
        index = self.count
        self.count += 1
        rows = self.readers[self.kinds[index]](file)
        self.read_at[index] = (begin, time.perf_counter_ns())
        return rows

    def callback(self, keras):
        outer = self

        class Steps(keras.callbacks.Callback):
            def on_train_begin(self, logs=None):
                outer.windows.begin()

            def on_train_batch_begin(self, batch, logs=None):
                outer.begins.append(time.perf_counter_ns())
                outer.windows.step_begins(batch)

        return Steps()


def training(steps: int):
    """A small model and so many batches for it, which are there when they are wanted."""
    import keras
    import numpy as np
    import tensorflow as tf

    model = keras.Sequential(
        [keras.layers.Input((256,))]
        + [keras.layers.Dense(256, activation="relu") for _ in range(6)]
        + [keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    x = np.zeros((64 * 100, 256), "float32")
    data = tf.data.Dataset.from_tensor_slices((x, np.zeros((len(x), 1), "float32")))
    return model, data.batch(64).cache().repeat().take(steps).prefetch(2)


def fit(length: int):
    """One fit with windows of `length` steps; returns its `Windows` and their results."""
    import keras

    folder = Path(tempfile.mkdtemp(prefix="gpu-util-bench-"))
    try:
        windows = Windows(keras, folder, length)
        steps = windows.opens[-1] + EVERY
        model, data = training(steps)
        model.fit(data, verbose=0, callbacks=[windows.callback(keras)])
        windows.windows.close(60)
        return windows, sorted(windows.windows.drain(), key=lambda r: r.facts["window"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def table(length: int) -> None:
    run, results = fit(length)
    begins = run.begins
    durations = [(b - a) / 1e6 for a, b in itertools.pairwise(begins)]
    rows: dict[str, list] = {}
    quiet_all = []
    for index, first in enumerate(run.opens):
        last = first + run.length
        begin, end = run.read_at[index]
        during = [
            duration for at, duration in zip(begins[last:], durations[last : first + 100], strict=False) if at < end
        ]
        # As many steps right before the window: means, since a mean is above a median anyway.
        quiet = durations[first - max(len(during), 40) : first]
        usual = statistics.mean(quiet)
        quiet_all += quiet
        rows.setdefault(run.kinds[index], []).append(
            (
                sum(durations[first:last]) - usual * run.length,
                sum(during) - usual * len(during),
                len(during),
                max(during, default=0.0),
                (end - begin) / 1e6,
                usual,
            )
        )
    events = statistics.mean(r.facts["events"] for r in results if r.facts["events"])
    print(
        f"\nwindows of {length} steps, {events:,.0f} events kept of each; "
        f"a quiet step takes {statistics.mean(quiet_all):.2f} ms"
    )
    print(f"{'read by':<18}{'in window':>12}{'behind it':>12}{'steps':>8}{'longest':>10}{'reading':>10}{'x quiet':>9}")
    for kind, values in rows.items():
        inside, behind, count, longest, took, usual = map(list, zip(*values, strict=True))
        expected = sum(u * c for u, c in zip(usual, count, strict=True))
        ratio = 1 + sum(behind) / expected if expected else float("nan")
        print(
            f"{kind:<18}{statistics.mean(inside):>+9.1f} ms{statistics.mean(behind):>+9.1f} ms"
            f"{statistics.mean(count):>8.0f}{statistics.mean(longest):>7.1f} ms"
            f"{statistics.mean(took):>7.0f} ms{ratio:>9.2f}"
        )
    costs = [r.facts["cost_s"] for r, kind in zip(results, run.kinds, strict=False) if "nice" in kind]
    print(
        f"charged to the budget: {statistics.mean(costs):.2f} s a window (start, stop, slowed "
        f"steps, processor time of reading): one a {statistics.mean(costs) / 0.01:.0f} s at 1 %"
    )


def a_million_events() -> None:
    """Steps beside a reading of a million events: by the process, and by a thread of this one."""
    import threading

    import keras
    from trace_cost import write_xplane

    from gpu_util_callback.profiling.window_reader import WindowReader

    folder = Path(tempfile.mkdtemp(prefix="gpu-util-bench-"))
    reader = WindowReader()
    readings: dict[str, list[tuple[int, int]]] = {"process, nice 19": [], "thread": []}
    begins: list[int] = []
    done = threading.Event()

    def read() -> None:
        try:
            for _ in range(2):
                for kind, how in (("process, nice 19", reader.read), ("thread", read_here)):
                    time.sleep(3)
                    begin = time.perf_counter_ns()
                    how(file)
                    readings[kind].append((begin, time.perf_counter_ns()))
            time.sleep(3)
        finally:
            done.set()

    class Steps(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            begins.append(time.perf_counter_ns())
            if done.is_set():
                self.model.stop_training = True

    try:
        file = folder / "host.xplane.pb"
        count = write_xplane(file)
        threading.Thread(target=read, daemon=True).start()
        model, data = training(100_000)
        model.fit(data, steps_per_epoch=200, epochs=500, verbose=0, callbacks=[Steps()])
    finally:
        shutil.rmtree(folder, ignore_errors=True)

    steps = list(itertools.pairwise(begins))[20:]
    spans = [span for some in readings.values() for span in some]
    quiet = [(b - a) / 1e6 for a, b in steps if not any(s < b and a < e for s, e in spans)]
    print(f"\na trace of {count:,} events; a quiet step takes {statistics.mean(quiet):.2f} ms")
    print(f"{'read by':<18}{'reading':>10}{'longest step':>15}{'x quiet':>9}")
    for kind, some in readings.items():
        during = [(b - a) / 1e6 for a, b in steps if any(s <= a and b <= e for s, e in some)]
        took = statistics.mean((e - s) / 1e9 for s, e in some)
        ratio = statistics.mean(during) / statistics.mean(quiet)
        print(f"{kind:<18}{took:>8.1f} s{max(during):>12.1f} ms{ratio:>9.2f}")


def main() -> None:
    print("ms that training lost by a window: in it, and until it was stopped and read")
    for length in (5, 60):
        table(length)
    a_million_events()


if __name__ == "__main__":
    main()
