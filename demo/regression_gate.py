"""A gate for CI: train a little, compare with a kept baseline, fail where training became slower.

    python demo/regression_gate.py                  # a baseline, the same again, and a slower one
    python demo/regression_gate.py --steps 2000     # resolves 5 % on a quiet machine

In a workflow the baseline is what the main branch recorded last, kept as a cache or an artifact:

    - run: python train.py --steps 2000 --log-dir logs/new
    - run: gpu-util report logs/new --check --baseline logs/main --max-slowdown 5 --junit gate.xml
    - uses: actions/upload-artifact@v4
      if: always()
      with: {name: gpu-util, path: gate.xml}

Exit code 1 fails the step; the reason stands in the log, in gate.xml and, by itself, in the step's
summary. What both runs' scatter cannot resolve passes and is marked as skipped: give it more steps,
a machine that nobody else uses, or several runs on both sides, compared together by --repeats.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

HERE = Path(__file__).resolve().parent


def train(log_dir: Path, steps: int, slower_ms: float) -> None:
    """Record a small fit; each step of it takes at least 4 ms, and `slower_ms` more."""
    import keras
    import numpy as np

    from gpu_util_callback import GpuUtilCallback

    class Regression(keras.callbacks.Callback):
        """Stands for a change that costs every step some time."""

        def on_train_batch_end(self, batch, logs=None):
            time.sleep((4 + slower_ms) / 1e3)

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.zeros((32 * steps, 64), np.float32)
    callbacks = [Regression(), GpuUtilCallback(str(log_dir), report=False)]
    model.fit(x, x[:, :1], batch_size=32, epochs=1, verbose=0, callbacks=callbacks)


def gate(run: Path, baseline: Path) -> int:
    """Run the check as a workflow's step does; returns its exit code."""
    command = [
        sys.executable,
        "-c",
        "import sys; from gpu_util_callback.cli import main; sys.exit(main())",
        "report",
        str(run),
        "--check",
        "--baseline",
        str(baseline),
        "--max-slowdown",
        "5",
        "--junit",
        str(run / "gate.xml"),
    ]
    return subprocess.run(command, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--log-dir", type=Path, default=HERE / "logs" / "gate")
    args = parser.parse_args()
    shutil.rmtree(args.log_dir, ignore_errors=True)
    for name, slower_ms in (("baseline", 0.0), ("same", 0.0), ("slower", 3.0)):
        train(args.log_dir / name, args.steps, slower_ms)
    codes = [gate(args.log_dir / name, args.log_dir / "baseline") for name in ("same", "slower")]
    print(f"exit codes: {codes[0]} for the same program, {codes[1]} for the slower one")
    return 0 if codes == [0, 1] else 1


if __name__ == "__main__":
    sys.exit(main())
