"""The cells of the matrix: fits and loops with and without us, compared bit for bit.

Run as a program, it tries the cells that its argument names as JSON, in this process, and prints a
line of JSON for each.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]

# One line of the matrix each; the first two are crossed with every mode of their backend.
TENSORFLOW_KINDS = (
    "tf.data",
    "filter",
    "arrays",
    "tf.data, shuffled without seed",
    "filter, random map, prefetch",
    "TextLine",
    "TFRecord",
    "repeat, steps_per_epoch",
    "from_generator",
    "endless generator",
    "generator that ends",
    "PyDataset",
    "torch DataLoader",
)
# Of every backend.
MODES = (
    "run_eagerly",
    "mixed precision",
    "random ops in train_step",
    "learning rate schedule, EMA",
    "validation_data",
    "class_weight",
    "two fits",
    "compiled again",
    "other callbacks",
    "profiler windows",
)
TENSORFLOW_MODES = (
    *MODES,
    "jit_compile",
    "steps_per_execution=4",
    "jit_compile, steps_per_execution=4",
    "op determinism",
    "op determinism, steps_per_execution=4",
    "random ops in train_step, jit_compile",
    "random ops in train_step, run_eagerly",
    "side effects in train_step",
)
OTHER_KINDS = ("arrays", "filter", "tf.data", "endless generator", "PyDataset", "torch DataLoader")


@dataclass(frozen=True)
class Cell:
    """A kind of input in a mode of training; with `loop`, a loop without `fit`."""

    backend: str
    kind: str
    mode: str
    loop: bool = False

    @property
    def process(self) -> tuple[str, str]:
        """What cells that share a process have in common."""
        kind = "loop" if self.loop else "fit"
        for apart in ("determinism", "Mirrored"):
            if apart in self.mode:
                kind = apart
        return self.backend, kind


@dataclass
class Outcome:
    """What differs in a cell: between two plain runs, and between a plain and a recorded one."""

    cell: Cell
    plain: list[str]
    ours: list[str]
    failed: str = ""

    @property
    def changed(self) -> list[str]:
        """What we changed: what differs with us and is the same in two runs without us."""
        return [name for name in self.ours if name not in self.plain]

    def __str__(self) -> str:
        if self.failed:
            return f"FAILED: {self.failed}"
        if self.changed:
            return f"CHANGED: {', '.join(self.changed)}"
        if self.plain:
            return f"differs without us: {', '.join(self.plain)}"
        return "equal"


def everything() -> list[Cell]:
    """Each cell of the matrix."""
    kinds = [k for k in TENSORFLOW_KINDS if "torch" not in k or importlib.util.find_spec("torch")]
    cells = [Cell("tensorflow", kind, "graph") for kind in kinds]
    for mode in TENSORFLOW_MODES:
        cells += [Cell("tensorflow", kind, mode) for kind in TENSORFLOW_KINDS[:2]]
    # Keras' own fit fails with a strategy and jit_compile, or several steps per execution.
    cells += [Cell("tensorflow", kind, "MirroredStrategy") for kind in ("arrays", "tf.data", "filter")]
    for backend in ("jax", "torch"):
        cells += [Cell(backend, kind, "graph") for kind in OTHER_KINDS]
        for mode in MODES:
            cells += [Cell(backend, kind, mode) for kind in OTHER_KINDS[:2]]
        if backend == "jax":
            cells += [Cell(backend, kind, "steps_per_execution=4") for kind in OTHER_KINDS[:2]]
    loops = (
        ("tensorflow", "eager"),
        ("tensorflow", "tf.function"),
        ("tensorflow", "the epoch in a tf.function"),
        ("torch", "eager"),
        ("torch", "workers"),
        ("jax", "eager"),
        ("jax", "jit"),
    )
    for framework, way in loops:
        cells += [Cell(framework, way, mode, True) for mode in ("plain", "profiler windows")]
    return cells


def outcomes(cells: list[Cell]) -> Iterator[Outcome]:
    """Try cells, those that can in one process."""
    processes: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        processes.setdefault(cell.process, []).append(cell)
    for together in processes.values():
        yield from _in_process(together)


def _in_process(cells: list[Cell]) -> Iterator[Outcome]:
    from fork_server import python  # the program below finds no support modules

    with tempfile.TemporaryFile("w+") as errors:
        imported = python(cells[0].backend if cells[0].loop else "keras")
        process = subprocess.Popen(
            [*imported, str(HERE / "cells.py"), json.dumps([asdict(cell) for cell in cells])],
            env=_environment(cells[0].backend),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert process.stdout is not None
        tried = 0
        for line in process.stdout:
            if line.startswith('{"cell"'):
                found = json.loads(line)
                tried += 1
                yield Outcome(Cell(**found.pop("cell")), **found)
        process.wait()
        errors.seek(0)
        why = errors.read()[-1500:]
    for cell in cells[tried:]:
        yield Outcome(cell, [], [], f"its process ended: {why}")


def _environment(backend: str) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    path = [str(REPOSITORY), str(HERE), os.environ.get("PYTHONPATH", "")]
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(p for p in path if p),
        "KERAS_BACKEND": backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
    }


# ---- in the process of its own -------------------------------------------------------------------


def _try(cell: Cell) -> Outcome:
    def run(recorded: bool) -> dict:
        log_dir = tempfile.mkdtemp() if recorded else None
        if cell.loop:
            import loops

            windows = [(2, 4), (9, 11)] if cell.mode == "profiler windows" else "off"
            return loops.run(cell.backend, cell.kind, log_dir, windows)
        import fits

        return fits.fit(cell.kind, cell.mode, log_dir)

    try:
        outcome = Outcome(cell, [], _differing(run(False), run(True)))
        if outcome.changed:  # by what is set up once in a process, by threads, or by us
            first, second, ours = run(False), run(False), run(True)
            outcome = Outcome(cell, _differing(first, second), _differing(second, ours))
        for _ in range(3):  # what hangs on threads may be the same twice by chance
            if outcome.changed:
                outcome.plain += [n for n in _differing(first, run(False)) if n in outcome.changed]
    except Exception as error:
        return Outcome(cell, [], [], f"{type(error).__name__}: {error}"[:300])
    return outcome


def _differing(one: dict, other: dict) -> list[str]:
    # As text: NaN is no difference to itself.
    return [name for name in one if json.dumps(one[name]) != json.dumps(other[name])]


def main() -> None:
    """Try the cells of the argument."""
    import warnings

    warnings.simplefilter("ignore")
    cells = [Cell(**cell) for cell in json.loads(sys.argv[1])]
    if any("Mirrored" in cell.mode for cell in cells):
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    for cell in cells:
        print(json.dumps(asdict(_try(cell))), flush=True)


if __name__ == "__main__":
    main()
