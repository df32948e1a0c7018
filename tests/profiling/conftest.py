"""Fits with profiler windows."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before anybody imports TensorFlow

import pytest
from fake_profiler import Door, FakeProfiler, Reader

from gpu_util_callback.profiling.profiler_windows import ProfilerWindows
from gpu_util_callback.profiling.schedule import TraceSchedule
from gpu_util_callback.recording.clock import Clock


@pytest.fixture
def make(tmp_path, monkeypatch):
    made = []
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))

    def windows(trace=((3, 6),), profiler=None, reader=None, **kwargs):
        profiler = profiler or FakeProfiler(Door())
        result = ProfilerWindows(
            profiler,
            TraceSchedule.of(trace),
            Clock(),
            kwargs.pop("log_dir", str(tmp_path / "logs")),
            share=kwargs.pop("share", 0.01),
            reader=reader or Reader(),
            **kwargs,
        )
        made.append((result, profiler))
        return result, profiler

    yield windows
    for result, profiler in made:
        result.close(5)
        assert profiler.door.running != "ours"
        assert not hasattr(profiler.door.start, "__wrapped__")  # what we wrapped is put back
    assert list(temporary.iterdir()) == []
