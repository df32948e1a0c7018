"""What the recording's tests share."""

import pytest
from scripted_runs import ScriptedTime

from gpu_util_callback.recording import RecordingWriter


@pytest.fixture
def scripted_time():
    return ScriptedTime()


@pytest.fixture
def make_writer(tmp_path, scripted_time):
    """`make_writer(**options) -> RecordingWriter` below tmp_path/run, on the scripted clock."""

    def make(log_dir=tmp_path / "run", facts=None, **options):
        return RecordingWriter(log_dir, facts or {}, clock=scripted_time.clock(), **options)

    return make
