"""State of JAX programs that a trial run must not change."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np


def random_states() -> list[Callable[[], None]]:
    """Return what restores global random states: JAX has none."""
    return []


def preserved(value: object) -> Callable[[], None] | None:
    """Return what restores an object in place; None: arrays do not change."""
    return None


def immutable(value: object) -> Callable[[], object] | None:
    """Return a function that returns arrays as they are now, also after they were donated."""
    leaves, tree = jax.tree_util.tree_flatten(value)
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
    if not arrays or any(jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key) for array in arrays):
        return None
    copies = [np.array(leaf) if isinstance(leaf, jax.Array) else leaf for leaf in leaves]

    def again() -> object:
        if not any(array.is_deleted() for array in arrays):
            return value
        arrays_again = [
            jax.numpy.asarray(copy, dtype=leaf.dtype) if isinstance(leaf, jax.Array) else leaf
            for copy, leaf in zip(copies, leaves, strict=True)
        ]
        return jax.tree_util.tree_unflatten(tree, arrays_again)

    return again


def copied(data: object) -> object | None:
    """Return an independent copy of a dataset of this framework; None for others."""
    return data if isinstance(data, jax.Array) else None


def synchronize(result: object) -> None:
    """Wait for all that was launched."""
    jax.block_until_ready(result)
    jax.effects_barrier()


def processes() -> int:
    """Return how many processes train together."""
    return jax.process_count()
