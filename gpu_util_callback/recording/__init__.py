"""The recording: columns, segments and pyramid on disk; a writer and a reader."""

from gpu_util_callback.recording.alignment import Clocks, session_clocks
from gpu_util_callback.recording.clock import Clock
from gpu_util_callback.recording.discovery import Recordings, read_recordings
from gpu_util_callback.recording.problems import Problem
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.summary import Account, account
from gpu_util_callback.recording.writer import RecordingWriter

__all__ = [
    "Account",
    "Clock",
    "Clocks",
    "Problem",
    "Recording",
    "RecordingWriter",
    "Recordings",
    "account",
    "read_recordings",
    "session_clocks",
]
