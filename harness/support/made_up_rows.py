"""Rows of made-up runs as a recorder makes them; times in nanoseconds."""

import numpy as np

PARTS = ("input_wait_ns", "compile_ns", "body_ns", "gpu_wait_ns", "callbacks_ns")


def step_table(start_ns: int, first: int = 0, *, rest_ns=0, **columns) -> dict[str, np.ndarray]:
    """Return steps that follow each other from `start_ns` on; each lasts as long as its parts and `rest_ns`.

    Args:
        first: their first number.
        columns: of the table; a part that is not given takes no time.
    """
    count = max(np.size(values) for values in columns.values())
    known = dict.fromkeys(PARTS, 0) | {"batches": 1, "estimated": 0, "shape_id": -1} | columns
    rows = {name: np.array(np.broadcast_to(values, count), np.int64) for name, values in known.items()}
    duration = sum(rows[part] for part in PARTS) + rest_ns
    return {
        "step": np.arange(first, first + count),
        "start_ns": start_ns + np.concatenate([[0], np.cumsum(duration)[:-1]]),
        "duration_ns": duration,
        "input_get_ns": rows["input_wait_ns"],
        **rows,
    }


def phase_table(*rows: tuple) -> dict[str, np.ndarray]:
    """Return phases: (kind, name, start, end, step, account), by default of no account."""
    names = ("kind", "name", "start_ns", "end_ns", "step", "account")
    whole = [(*row, "")[: len(names)] for row in rows]
    columns = {name: np.array(values) for name, values in zip(names, zip(*whole, strict=True), strict=True)}
    for name in ("kind", "name", "account"):
        columns[name] = columns[name].astype(object)
    return columns | {"self_ns": columns["end_ns"] - columns["start_ns"], "count": np.ones(len(rows), np.int64)}
