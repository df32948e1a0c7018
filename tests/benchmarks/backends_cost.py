"""What recording adds to a training step on JAX and PyTorch, and what it reads from the device."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from alternation import BUDGET_PYTHON_US, BUDGET_RATIO, BUDGET_US, Cost

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def main(pairs: int = 150) -> None:
    print(Cost.HEADER)
    for backend in ("jax", "torch"):
        if importlib.util.find_spec(backend) is None:
            print(f"{backend}: skipped, it is not installed (pip install {backend})")
            continue
        path = os.pathsep.join(map(str, (ROOT, HERE, HERE.parent / "backends")))
        environ = {
            **os.environ,
            "PYTHONPATH": path,
            "KERAS_BACKEND": backend,
            # One thread of the device's, so that steps of one fit are alike.
            "OMP_NUM_THREADS": "1",
            "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
        }
        command = [sys.executable, "-W", "ignore", str(HERE / "backend_program.py"), str(pairs)]
        subprocess.run(command, env=environ, check=True)
    print(
        f"budget: whole ≤ {BUDGET_US} µs, of it Python ≤ {BUDGET_PYTHON_US} µs, "
        f"ratio ≤ {BUDGET_RATIO} at 5 ms"
    )


if __name__ == "__main__":
    main()
