"""What a measuring process is told, and how it answers, whatever happens to it. Children only."""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


class NoGpu(RuntimeError):
    """The framework computes on the CPU: no other training can be measured here either."""


@dataclasses.dataclass
class Job:
    """What a child is to do; travels as JSON.

    Attributes:
        scenario: its name.
        answer: the file for what came out.
        seconds: how long a recorded fit should take.
        stand_in: no GPU: play one.
        windows: whether the profiler may be used.
        keep: "" or a folder: also keep a compact, redacted copy of the log directory there.
    """

    scenario: str
    backend: str
    log_dir: str
    answer: str
    seconds: float = 20.0
    stand_in: bool = False
    windows: bool = True
    keep: str = ""


def answer(job: Job, found: dict[str, Any]) -> None:
    """Write what is known so far; readers never see half of it."""
    half = Path(job.answer + ".part")
    half.write_text(json.dumps(found))
    half.replace(job.answer)


def run_as_process(work: Callable[[Job], dict[str, Any]]) -> None:
    """Do the job whose file is this process' argument, answer, and end: 1 = there is an error.

    A crash leaves its stack in the output, and so does SIGUSR1.
    """
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    job = Job(**json.loads(Path(sys.argv[1]).read_text()))
    os.environ["KERAS_BACKEND"] = job.backend
    try:
        found = work(job)
    except NoGpu as error:
        found = {"error": str(error), "no_gpu": True}
    except Exception as error:
        traceback.print_exc()
        found = {"error": f"{type(error).__name__}: {error}"[:400]}
    answer(job, found)
    sys.stdout.flush()
    sys.stderr.flush()
    # Python's own end may hang on TensorFlow: in the iterator of a fit that was stopped early.
    os._exit(1 if "error" in found else 0)
