"""Runs a measuring process to its end, or to a limit, and says why it did not answer."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evidence.job import Job

DEMO = Path(__file__).resolve().parents[1]
UNKNOWN_FLAG = re.compile(r"Unknown flags? in XLA_FLAGS")  # XLA then ends the process
_TOLD = re.compile(r"error|fatal|abort|failed|unknown flag", re.IGNORECASE)
_STACKS = ("Current thread", "Thread 0x", "Extension modules", "  File ", "    ")


def run_child(module: str, job: Job, folder: Path, environ: dict[str, str], limit_s: float) -> dict[str, Any]:
    """What the process answered.

    Args:
        module: of this package; run with the job's file as its argument.
        folder: gets `job.json` and `output.txt`, all that it prints.
        limit_s: after which it is ended; what it had answered by then stands.

    Returns: the answer. Where it did not end as it should, also "error", "log" (the end of its
    output) and, where a signal ended it by itself, "signal".
    """
    answer, log, file = Path(job.answer), folder / "output.txt", folder / "job.json"
    answer.unlink(missing_ok=True)
    file.write_text(json.dumps(dataclasses.asdict(job)))
    paths = [str(DEMO), str(DEMO.parent), environ.get("PYTHONPATH", "")]
    environ = {**environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"evidence.{module}", str(file)],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            process.wait(limit_s)
            ended = _ended(process.returncode, answer.exists())
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGUSR1)  # where does it hang? Into its output
            time.sleep(1)
            ended = {"error": f"no end within {limit_s:.0f} s"}
        finally:  # Ctrl-C, too: the child is in a session of its own, with what it has started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    found = json.loads(answer.read_text()) if answer.exists() else {}
    found.update(ended)
    if "error" in found:
        found["log"] = _tail(log)
    if ended:
        found["error"] += f"; {_said(found['log'])}see {log}"
    return found


def _ended(code: int, answered: bool) -> dict[str, Any]:
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return {"error": f"ended by {name}", "signal": name}
    return {} if answered else {"error": f"died with exit code {code}"}


def _tail(log: Path, lines: int = 40) -> list[str]:
    text = log.read_bytes()[-20_000:].decode(errors="replace")
    return [line[:300] for line in text.splitlines() if line.strip()][-lines:]


def _said(lines: list[str]) -> str:
    """The last line that looks like a reason, else the last one that is no stack."""
    plain = [line.strip() for line in lines if not line.startswith(_STACKS)]
    telling = [line for line in plain if _TOLD.search(line)] or plain
    return f'it said "{telling[-1][:200]}"; ' if telling else ""
