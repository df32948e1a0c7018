"""Running the probes: each in a process of its own, all at once, with a deadline."""

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpu_util_callback.doctor.probe import MARK

__all__ = ["FRAMEWORKS", "installed", "run_probes"]

# framework -> the distributions that bring it
FRAMEWORKS = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tf-nightly", "tensorflow-intel"),
    "jax": ("jax",),
    "torch": ("torch",),
}
_KEPT_STDERR = 4_000


def installed(framework: str) -> list[tuple[str, str]]:
    """(distribution, version) of all that bring a framework, from metadata alone."""
    found = []
    for name in FRAMEWORKS[framework]:
        try:
            found.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def run_probes(wanted: dict[str, list[str]], timeout_s: float) -> dict[str, dict[str, Any]]:
    """name -> its answer; {"error"} when it failed, hung or died. wanted: name -> arguments."""
    with ThreadPoolExecutor(max(len(wanted), 1)) as pool:
        running = {
            name: pool.submit(_run, [name, *arguments], timeout_s)
            for name, arguments in wanted.items()
        }
        return {name: future.result() for name, future in running.items()}


def _run(arguments: list[str], timeout_s: float) -> dict[str, Any]:
    root = str(Path(__file__).resolve().parents[2])
    paths = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), root]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gpu_util_callback.doctor.probe", *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {timeout_s:g} s", "timeout": True}
    except OSError as error:
        return {"error": str(error)}
    answer: dict[str, Any] = {"error": "no answer"}
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(MARK):
            answer = json.loads(line[len(MARK) :])
            break
    else:
        if done.returncode < 0:
            answer = {"error": f"the process died of {signal.Signals(-done.returncode).name}"}
        elif done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            answer = {"error": f"the process failed: {last[0]}"}
    answer["stderr"] = done.stderr[-_KEPT_STDERR:]
    return answer
