"""Files that could not be read: path, reason and remedy."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict

from gpu_util_callback.recording.container import Damaged
from gpu_util_callback.recording.manifest import ManifestError, UnknownFormat
from gpu_util_callback.recording.storage import LeadsOutside
from gpu_util_callback.redaction import shortened, without_secrets

log = logging.getLogger("gpu_util_callback")


@dataclass(frozen=True)
class Problem:
    """A file that could not be read: its path, and one line with reason and remedy."""

    path: str
    message: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", without_secrets(self.path))
        object.__setattr__(self, "message", without_secrets(self.message))

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class ReportedProblem(TypedDict):
    """A file that could not be read."""

    path: str
    message: str


def reported(problems: Iterable[Problem]) -> list[ReportedProblem]:
    """Return problems for JSON."""
    return [{"path": problem.path, "message": problem.message} for problem in problems]


def reason(error: Exception) -> str:
    """Return the reason in a few words on one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return shortened(str(error)) or type(error).__name__


def remedy(error: Exception) -> str:
    """Return in one line what the user can do about an error of reading."""
    if isinstance(error, (Damaged, ManifestError, FileNotFoundError)):
        return "if this folder is a copy, copy it again"
    if isinstance(error, LeadsOutside):
        return "pass its target as a log directory of its own"
    if isinstance(error, PermissionError):
        return "make it readable, for example with `chmod -R a+rX` on the log directory"
    if isinstance(error, ImportError):
        return "install what the message names"
    return "make sure that the disk or the store that holds it responds"


def unreadable(error: Exception) -> str:
    """Return the whole message for input that cannot be opened at all."""
    return f"cannot be read: {reason(error)}: {remedy(error)}"


def unopened(path: str, error: Exception) -> Problem:
    """Return the problem of a recording that cannot be opened; it must not hide those next to it."""
    if isinstance(error, UnknownFormat):
        return Problem(path, str(error))
    return Problem(path, unreadable(error)) if isinstance(error, OSError) else unexpected(path, error)


def unexpected(path: str, error: Exception) -> Problem:
    """Return the problem of a recording that fails for a reason no reader foresaw.

    It must not hide the recordings next to it; the traceback goes to the debug log.
    """
    log.debug("%s cannot be shown", path, exc_info=error)
    error_text = f"{type(error).__name__}: {reason(error)}"
    return Problem(path, f"cannot be shown ({error_text}): please report it, with this folder")
