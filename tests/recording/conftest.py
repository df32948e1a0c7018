"""What the recording's tests share."""

from pathlib import Path

import numpy as np
import pytest
from scripted_runs import ScriptedTime, step_rows

from gpu_util_callback.recording import RecordingWriter

START = 1_700_000_000_000_000_000


@pytest.fixture
def scripted_time():
    return ScriptedTime()


@pytest.fixture
def make_writer(tmp_path, scripted_time):
    """`make_writer(**options) -> RecordingWriter` below tmp_path/run, on the scripted clock."""

    def make(log_dir=tmp_path / "run", facts=None, **options):
        return RecordingWriter(log_dir, facts or {}, clock=scripted_time.clock(), **options)

    return make


@pytest.fixture
def three_segments(make_writer, scripted_time):
    """The folder of an ended recording: steps 0-99, 100-199 and 200-299, each with samples."""
    writer = make_writer()
    for first in (0, 100, 200):
        start = START + first // 100 * 61_000_000_000
        writer.append("steps", step_rows(100, first=first, start_ns=start))
        writer.append_samples("host", ["cpu_pct"], start + np.arange(5), np.full((5, 1), 1.0))
        writer.flush()
        scripted_time.advance(61)
        writer.flush()
    writer.close("ended")
    assert len(list(Path(writer.path).glob("segment-*"))) == 3
    return Path(writer.path)
