"""A fit of a day: does recording it cost more as it grows?

The training is made up, as fast as Python can call the hooks; timeline, recorder, diagnosis,
scalars and writer are those of a real fit, on a clock that the steps move. Ten million steps are a
day of 8.64 ms each; `BENCH_LONG_STEPS=10000000` takes them all (some ten minutes), by default it is
a tenth.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from diagnosis_cost import COLUMNS

from gpu_util_callback import read_recordings
from gpu_util_callback.backends.input_watch import Adapter
from gpu_util_callback.recorder.recorder import Recorder, State
from gpu_util_callback.recorder.settings import Settings
from gpu_util_callback.recording.clock import Clock
from gpu_util_callback.recording.segments import SampleBlock
from gpu_util_callback.steps.timeline import Timeline

STEP_NS = 8_640_000  # 10⁷ of them are a day
FLUSH_STEPS = 1736  # 15 s; a fit flushes ten times as often, with a tenth of the rows
EPOCH = 10_000
PARTS = 10


class Day:
    """A made-up training, recorded on its own clock."""

    def __init__(self, folder: str):
        self.now = time.perf_counter_ns()
        start, wall = self.now, time.time_ns()
        clock = Clock(perf_ns=lambda: self.now, wall_ns=lambda: wall + self.now - start)
        self.timeline = Timeline(perf=lambda: self.now)
        self.begins = self.timeline.around_begin(lambda batch: None, lambda now: None, self.failed)
        self.ends = self.timeline.around_end(self.end_hooks, logs_are_ready=True)
        self.recorder = Recorder(
            Settings(log_dir=folder, report=False), Adapter("none"), clock=clock, timeline=self.timeline
        )
        self.recorder.facts["fit"] = {"timing": "python"}
        self.random = np.random.default_rng(0)
        self.sampled_ns = clock.now()
        self.recorder._gpus.take = self.samples
        self.took: dict[str, list[float]] = {"whole": [], "diagnosis": [], "writing": []}
        outputs = self.recorder._outputs
        outputs.diagnose = self.timed("diagnosis", outputs.diagnose)
        outputs._write = self.timed("writing", outputs._write)
        outputs.flush = lambda now=False: None  # written here, not by the writing thread

    def timed(self, name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.took[name].append(1e3 * (time.thread_time() - start))

        return call

    def samples(self) -> list[SampleBlock]:
        """One GPU, ten times a second since the last call."""
        times = np.arange(self.sampled_ns, self.recorder.clock.now(), 100_000_000)
        self.sampled_ns = int(times[-1]) + 100_000_000 if len(times) else self.sampled_ns
        values = 50 + self.random.normal(size=(len(times), len(COLUMNS))).round(1)
        return [SampleBlock("gpu0", COLUMNS, times, values)]

    def step(self, number: int) -> None:
        """A step; every seventh stretch of a hundred waits for its input."""
        self.begins(number)
        start = self.now
        wait = STEP_NS // 2 if number // 100 % 7 == 3 else 50_000
        self.now += STEP_NS - 40_000
        self.timeline.call, self.timeline.call_end = start, self.now
        self.timeline.stamps = (start, start + wait, 0.0, 0)
        self.ends(number)

    def end_hooks(self, batch: int, logs: Any) -> None:
        self.now += 40_000

    def failed(self, error: BaseException) -> None:
        raise error

    def train(self, steps: int) -> list[dict[str, float]]:
        """Train; what a flush took in each tenth, and the memory after it."""
        recorder, timeline = self.recorder, self.timeline
        recorder._started_ns = recorder.clock.now()
        recorder.start = lambda *_: None
        recorder.intake.begin(recorder.adapter, recorder.clock.offset_ns)
        recorder._open()
        while recorder.path is None:
            time.sleep(0.01)
        timeline.begin()
        flush = self.timed("whole", self.flush)
        parts = []
        for part in range(PARTS):
            for number in range(part * steps // PARTS, (part + 1) * steps // PARTS):
                if number % EPOCH == 0:
                    if number:
                        timeline.epoch_end()
                        timeline.epoch_ended()
                    timeline.epoch_begin(number // EPOCH)
                    timeline.epoch_begun()
                self.step(number)
                if number % FLUSH_STEPS == 0:
                    flush()
            parts.append({name: statistics.median(ms) for name, ms in self.took.items()})
            parts[-1]["resident_mb"] = psutil.Process().memory_info().rss / 1e6
            for ms in self.took.values():
                ms.clear()
        timeline.finish()
        recorder._ended_ns = recorder.clock.now()
        recorder._enter(State.ENDED)
        recorder._tick(last=True)
        recorder._outputs.close("ended")
        recorder._closed.wait()
        return parts

    def flush(self) -> None:
        self.recorder._tick()
        self.recorder._outputs._write()


def main() -> dict[str, Any]:
    steps = int(os.environ.get("BENCH_LONG_STEPS", "1000000"))
    print(f"{steps:,} steps, {steps * STEP_NS / 3.6e12:.1f} h; CPU of one flush of 15 s, ms, median")
    with tempfile.TemporaryDirectory() as folder:
        parts = Day(folder).train(steps)
        (recording,) = read_recordings(folder)
        assert recording.step_count == steps, recording.step_count
        files = [path for path in Path(recording.path).rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        scalars = sum(path.stat().st_size for path in Path(folder).glob("events*"))
    print(f"{'steps so far':>14}{'whole':>9}{'diagnosis':>11}{'writing':>9}{'resident':>11}")
    for number, part in enumerate(parts, 1):
        print(
            f"{number * steps // PARTS:>14,}{part['whole']:>9.1f}{part['diagnosis']:>11.1f}"
            f"{part['writing']:>9.1f}{part['resident_mb']:>8.0f} MB"
        )
    print(f"{len(files)} files, {size / 1e6:.1f} MB, scalars {scalars / 1e6:.1f} MB")
    figures = {name: [round(part[name], 2) for part in parts] for name in parts[0]}
    return {"steps": steps, **figures, "files": len(files), "bytes": size}


if __name__ == "__main__":
    main()
