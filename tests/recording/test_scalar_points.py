"""Scalars: which rows make a point."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gpu_util_callback.recorder.outputs import ScalarPoints


def rows(steps: int, seed: int) -> dict[str, np.ndarray]:
    some = np.random.default_rng(seed)
    duration = some.integers(500_000, 900_000, steps)
    wait = np.where(some.random(steps) < 0.1, -1, some.integers(0, 400_000, steps))
    return {
        "step": np.arange(steps),
        "start_ns": np.cumsum(duration) - duration,
        "duration_ns": duration,
        "input_wait_ns": wait,
    }


def one_by_one(table: dict[str, np.ndarray], stride) -> list[tuple[int, dict[str, float], int]]:
    """The points as one would make them by hand."""
    points, since, due = [], 0, 0
    for step in table["step"].tolist():
        if step < due:
            continue
        part = slice(since, step + 1)
        took, wait = table["duration_ns"][part], table["input_wait_ns"][part]
        values = {"gpu_util/step_time_ms": took.sum() / len(took) / 1e6}
        if (wait >= 0).any():
            values["gpu_util/input_wait_ms"] = wait[wait >= 0].sum() / (wait >= 0).sum() / 1e6
        points.append((step, values, int(table["start_ns"][step] + table["duration_ns"][step])))
        since, due = step + 1, step + stride(step + 1)
    return points


@pytest.mark.parametrize(
    "freq, stride",
    [
        (1, lambda step: 1),
        (7, lambda step: 7),
        ("auto", lambda step: next(2**k for k in range(40) if step < 200 * 2 ** (k + 1))),
    ],
)
def test_points_do_not_depend_on_how_rows_come(freq, stride):
    table = rows(3000, seed=1)
    cuts = sorted(random.Random(2).sample(range(3000), 9))
    points = ScalarPoints(freq)
    found = []
    for first, end in zip([0, 0, *cuts], [0, *cuts, 3000], strict=True):  # one part is empty
        found += points.add_steps({name: values[first:end] for name, values in table.items()})
    assert found == one_by_one(table, stride)
    last = int(table["start_ns"][-1] + table["duration_ns"][-1])
    rest = points.last_point(2999, last)
    assert len(rest) == (found[-1][0] < 2999)
