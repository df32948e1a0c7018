"""The work of a training step: FLOPs of its matrix products and convolutions.

The convention of model FLOPs utilization: forward and backward, two FLOPs a multiply-add, nothing
else, and nothing that is computed again to save memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

MATMUL, CONV = "matmul", "conv"  # kinds of work: TF32 is switched on and off for each


class NotCounted(Exception):
    """Work that cannot be counted; says why."""


@dataclass
class CountedWork:
    """FLOPs that were counted together.

    Attributes:
        flops: by (kind, type of the operands: "float32").
        samples: in the batch.
        missing: what could not be counted, each named once.
    """

    flops: Counter[tuple[str, str]] = field(default_factory=Counter)
    samples: int = 0
    missing: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Return all FLOPs."""
        return sum(self.flops.values())

    def add(self, kind: str, dtype: str, multiply_adds: float) -> None:
        """Add the work of an operation."""
        self.flops[kind, dtype] += 2 * int(multiply_adds)

    def miss(self, operation: str) -> None:
        """Note something that cannot be counted."""
        if operation not in self.missing:
            self.missing.append(operation)

    def include(self, other: CountedWork, times: int = 1) -> None:
        """Add the work of a part that runs this often."""
        for key, flops in other.flops.items():
            self.flops[key] += times * flops
        for operation in other.missing:
            self.miss(operation)

    def per_sample(self) -> dict[tuple[str, str], float]:
        """Return the FLOPs of one sample.

        Raises: NotCounted where the sum is unknown.
        """
        if self.missing:
            more = len(self.missing) - 3
            operations = ", ".join(self.missing[:3]) + (f" and {more} more" if more > 0 else "")
            raise NotCounted(f"the work of {operations} is not known")
        if not self.samples:
            raise NotCounted("the size of the batch is not known")
        if not self.total:
            raise NotCounted("the step has no matrix product and no convolution")
        return {key: flops / self.samples for key, flops in self.flops.items() if flops}


def product(sizes: Iterable[int | None]) -> int:
    """Return the product of sizes. Raises: NotCounted where one is unknown."""
    total = 1
    for size in sizes:
        if size is None:
            raise NotCounted("a size is unknown")
        total *= int(size)
    return total


def einsum_multiply_adds(equation: str, shapes: Sequence[Sequence[int | None]]) -> int:
    """Return the multiply-adds of an einsum of two operands; 0 of one, which multiplies nothing.

    Raises: NotCounted where a size is unknown, or for more operands, whose order is not known.
    """
    operands = equation.replace(" ", "").partition("->")[0].split(",")
    if len(operands) < 2:
        return 0
    if len(operands) > 2:
        raise NotCounted("an einsum of several operands")
    sizes: dict[str, int | None] = {}
    for labels, shape in zip(operands, shapes, strict=True):
        head, dots, tail = labels.partition("...")
        labelled = len(head) + len(tail)
        batch = [f"#{-place}" for place in range(len(shape) - labelled, 0, -1)] if dots else []
        for label, size in zip([*head, *batch, *tail], shape, strict=True):
            earlier = sizes.get(label)
            sizes[label] = size if earlier in (None, 1) else earlier
    return product(sizes.values())
