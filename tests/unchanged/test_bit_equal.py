"""A seeded training leaves the same bits behind with and without us.

All of it as a table: `python -m harness.unchanged`.
"""

from __future__ import annotations

import pytest
from packages import need

from harness.unchanged.cells import Cell, everything, outcomes

# The exhausted fetch of data of unknown length, in the graph and in Python; random ops; windows. A plain graph is in
# those with more to it.
FEW = {
    Cell("tensorflow", "filter", "random ops in train_step"),
    Cell("tensorflow", "filter", "side effects in train_step"),
    Cell("tensorflow", "filter", "steps_per_execution=4"),
    Cell("tensorflow", "filter", "run_eagerly"),
    Cell("tensorflow", "tf.data", "jit_compile"),
    Cell("tensorflow", "tf.data", "validation_data"),
    Cell("tensorflow", "filter", "op determinism"),
    Cell("tensorflow", "from_generator", "graph"),
    Cell("tensorflow", "tf.data", "profiler windows"),
    Cell("jax", "filter", "graph"),
    Cell("jax", "arrays", "compiled again"),  # JAX takes an old step for the new one where that is kept
    Cell("torch", "torch DataLoader", "graph"),
    Cell("torch", "filter", "random ops in train_step"),
    Cell("tensorflow", "tf.function", "plain", loop=True),
}


def processes() -> list:
    """The cells that share a process, few and all of them."""
    found = []
    for name, cells in (("few", FEW), ("all", set(everything()))):
        for process in sorted({cell.process for cell in cells}):
            backend, what = process
            marks = [pytest.mark.slow, pytest.mark.timeout(3600)] if name == "all" else []
            together = [cell for cell in everything() if cell in cells and cell.process == process]
            found.append(pytest.param(together, marks=marks, id=f"{name}-{backend}-{what}"))
    return found


@pytest.mark.parametrize("cells", processes())
def test_the_same_bits(cells):
    need(cells[0].backend)
    bad = [f"{o.cell}: {o}" for o in outcomes(cells) if o.failed or o.changed]
    assert not bad, "\n".join(bad)


def test_the_few_are_of_the_matrix():
    assert set(everything()) >= FEW
