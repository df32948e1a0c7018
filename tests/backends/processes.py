"""Programs that train on another backend, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from fork_server import python

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent


def environment(**more: str) -> dict[str, str]:
    """The variables of a training process: this checkout, one CPU thread a pool, no colours."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("TF_CONFIG", "KERAS_BACKEND")}
    path = [str(REPOSITORY), str(HERE), str(HERE.parents[1] / "harness" / "support"), os.environ.get("PYTHONPATH", "")]
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(p for p in path if p),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
        "OMP_NUM_THREADS": "1",
        "TMPDIR": os.environ["TESTS_PROGRAMS"],
        **more,
    }


def start(program: str, *arguments: str, **variables: str) -> subprocess.Popen:
    """Start one of this folder's programs, with Keras or the framework that it names first imported."""
    frameworks = [name for name in arguments[:1] if name in ("tensorflow", "jax", "torch")]
    imported = ["keras"] if "KERAS_BACKEND" in variables else frameworks
    return subprocess.Popen(
        [*python(*imported), str(HERE / program), *arguments],
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def results(process: subprocess.Popen, timeout_s: float = 240) -> dict:
    """What a program printed as `RESULT <name> <json>`, by name. Fails if the program did."""
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        pytest.fail(f"no end after {timeout_s:g} s:\n{output[-6000:]}")
    assert process.returncode == 0, output[-6000:]
    found = {}
    for line in output.splitlines():
        if line.startswith("RESULT "):
            _, name, text = line.split(" ", 2)
            found[name] = json.loads(text)
    return found


_shared: dict[tuple, dict] = {}


def shared(program: str, *arguments: str, **variables: str) -> dict:
    """The results of a program that several tests look at; it runs once for all of them."""
    key = (program, arguments, tuple(sorted(variables.items())))
    if key not in _shared:
        _shared[key] = results(start(program, *arguments, **variables))
    return _shared[key]


def forget() -> None:
    """Run shared programs anew from here on."""
    _shared.clear()


def summed_up(one: dict) -> None:
    """The parts of a recording's account add up, and its rows are in order."""
    account = one["account"]
    assert sum(account["time_s"].values()) == pytest.approx(account["wall_s"], rel=0.005, abs=0.001)
    assert min(account["time_s"].values()) >= -0.001, account
    assert one["in_order"] and one["fits"], one
