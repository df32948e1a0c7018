"""Warnings from user code name the lines that they name without us, and are shown as often."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from fork_server import python
from packages import need
from programs import ran

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_warnings_name_the_same_lines(backend):
    need(backend)
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
    }
    done = ran(*python("keras"), REPOSITORY / "harness" / "unchanged" / "warners.py", env=environment)
    (line,) = (text for text in done.stdout.splitlines() if text.startswith("WARNED "))
    for action, (without, with_us) in json.loads(line.removeprefix("WARNED ")).items():
        for what, plain, ours in zip(("warned", "logged"), without, with_us, strict=True):
            # Threads of the framework's warn, too: in any order.
            plain, ours = Counter(map(tuple, plain)), Counter(map(tuple, ours))
            assert len(plain) > 100
            assert plain == ours, (action, what, list((ours - plain).items())[:5])
