"""The recording: columns, segments and pyramid on disk; a writer, and a reader that is imported when first used."""

from importlib import import_module
from typing import TYPE_CHECKING

from gpu_util_callback.recording.clock import Clock
from gpu_util_callback.recording.writer import RecordingWriter

if TYPE_CHECKING:
    from gpu_util_callback.recording.discovery import Recordings, read_recordings
    from gpu_util_callback.recording.reader import Recording

__all__ = ["Clock", "Recording", "RecordingWriter", "Recordings", "read_recordings"]


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.discovery"), name)
