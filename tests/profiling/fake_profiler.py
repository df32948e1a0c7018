"""A made-up profiler, its door and its reader, and fits that use them."""

import threading
import time

import numpy as np

from gpu_util_callback.profiling.session import ProfilerBusy, ProfilerFailed, ProfilerSession
from gpu_util_callback.profiling.window_reader import WindowRows


class Door:
    """A framework's module with its function that starts a profile."""

    def __init__(self):
        self.running = None
        self.starts = 0

    def start(self, owner):
        if self.running is not None:
            raise RuntimeError("already profiling")
        self.running = owner
        self.starts += 1


class FakeProfiler(ProfilerSession):
    def __init__(self, door, device=False, server=None, stop_s=0.0, fails=None):
        super().__init__()
        self.door = door
        self.device = device
        self._server = server
        self.stop_s = stop_s
        self.fails = fails
        self.marks = []  # (step, "open" | "close")
        self.doings = []  # "settle", "start", "mark", "unmark", "stop", in their order
        self.settle_s = 0.0
        self.stopped_on = []
        self.halted = []  # (thread, whether it still ran)

    @property
    def traces_device(self):
        return self.device

    def _settle(self):
        self.doings.append("settle")
        time.sleep(self.settle_s)
        if self.fails == "settle":
            raise RuntimeError("the device is gone")

    def mark(self, step):
        self.marks.append((step, "open"))
        self.doings.append("mark")
        profiler = self

        class Mark:
            def close(self):
                profiler.marks.append((step, "close"))
                profiler.doings.append("unmark")

        return Mark()

    def halt(self, folder):
        self.halted.append((threading.current_thread(), self.door.running == "ours"))
        if self.fails == "halt":
            raise RuntimeError("it goes on")
        super().halt(folder)

    def server(self):
        return self._server

    def _start(self, folder):
        self.doings.append("start")
        if self.fails == "start":
            raise ProfilerFailed("it does not start", "buy another")
        if self.fails == "fault":
            raise AttributeError("no such thing")
        try:
            self.door.start("ours")
        except RuntimeError as error:
            raise ProfilerBusy("taken") from error

    def _stop(self, folder):
        self.doings.append("stop")
        time.sleep(self.stop_s)
        self.stopped_on.append(threading.current_thread())
        self.door.running = None
        if self.fails == "stop":
            raise ProfilerFailed("it wrote nothing", "make room")
        if self.fails == "full":
            raise OSError(28, "No space left on device")
        run = folder / "plugins" / "profile" / "now"
        run.mkdir(parents=True)
        (run / "host.xplane.pb").write_bytes(b"")

    def _drop(self):
        self.door.running = None

    def _current(self):
        return self.door.running

    def _entry_points(self):
        yield self.door, "start"


def rows(steps, gpu=0, problems=(), device_events=10, clock_ns=None):
    """What reading a window gives: one row a step, kernels for 2 of 5 ms."""
    n = len(steps)
    start = (time.time_ns() if clock_ns is None else clock_ns) + np.arange(n) * 5_000_000
    return WindowRows(
        {
            "traced_steps": {
                "step": np.array(steps),
                "gpu": np.full(n, gpu),
                "start_ns": start,
                "duration_ns": np.full(n, 5_000_000),
                "kernel_ns": np.full(n, 2_000_000),
                "kernel_busy_ns": np.full(n, 2_000_000),
                "window": np.zeros(n, int),
            },
            "kernels": {
                "window": np.zeros(1, int),
                "gpu": np.array([gpu]),
                "name": np.array(["gemm"]),
                "count": np.array([n]),
            },
        },
        events=500,
        device_events=device_events,
        problems=list(problems),
        cpu_s=0.2,
    )


class Reader:
    def __init__(self, result=None):
        self.result = result
        self.files = []

    def read(self, file):
        self.files.append(file)
        assert file.is_file()
        if isinstance(self.result, Exception):
            raise self.result
        return self.result if self.result is not None else rows(range(1000))

    def give_up(self):
        pass


def train(windows, steps, begin=0, step_s=0.002):
    for step in range(begin, begin + steps):
        windows.step_begins(step)
        time.sleep(step_s)


def fit(windows, steps, *args, **kwargs):
    """Train from begin to end; what the windows left."""
    windows.begin(*args, **kwargs)
    train(windows, steps)
    windows.close(5)
    return windows.drain()


def reasons(windows):
    return [entry["reason"] for entry in windows.unavailable]


def tables_of(result):
    """The rows that a window adds to a recording."""
    tables = {}
    result.add_to(tables)
    return tables


def kernel_times_ms(result):
    """The scalars of a window: (step, GPU, ms)."""
    return [(step, tag.split("/")[1], ms) for step, values, _ in result.points() for tag, ms in values.items()]
