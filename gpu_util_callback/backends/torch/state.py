"""State of PyTorch programs that a trial run must not change."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch


def random_states() -> list[Callable[[], None]]:
    """Return what restores the global random states."""
    state = torch.get_rng_state()
    restore = [lambda: torch.set_rng_state(state)]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states = torch.cuda.get_rng_state_all()
        restore.append(lambda: torch.cuda.set_rng_state_all(states))
    return restore


def preserved(source: object) -> Callable[[], None] | None:
    """Return what restores a tensor or a generator in place; None for other objects."""
    if isinstance(source, torch.Generator):
        state = source.get_state()

        def set_back() -> None:
            source.set_state(state)

        return set_back
    if not isinstance(source, torch.Tensor):
        return None
    value = source.detach().to("cpu", copy=True)  # a device may have no room for another one
    grad = None if source.grad is None else source.grad.detach().clone()

    def restore() -> None:
        with torch.no_grad():
            source.detach().copy_(value)
            source.grad = grad

    return restore if source.is_leaf else (lambda: None)


def immutable(value: object) -> Callable[[], object] | None:
    """Return None: tensors are restored in place."""
    return None


def copied(data: object) -> object | None:
    """Return an independent copy of a DataLoader; tensors are their own; None for others."""
    if isinstance(data, torch.Tensor):
        return data
    if not isinstance(data, torch.utils.data.DataLoader):
        return None
    other = copy.copy(data)  # shares the dataset and what draws samples
    object.__setattr__(other, "_iterator", None)  # of persistent workers
    return other


def synchronize(result: object) -> None:
    """Wait for all that was launched."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def processes() -> int:
    """Return how many processes train together."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size())
