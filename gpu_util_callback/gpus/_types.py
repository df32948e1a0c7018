"""What callers give the sampler and what it gives back."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["FrameworkGpu", "SampleBlock"]


@dataclass(frozen=True)
class FrameworkGpu:
    """A GPU as the framework names it.

    index: the framework's ordinal (`gpu<i>`). uuid and pci_bus_id identify it for certain, with or
    without the prefixes and leading zeros that NVML prints. cuda_ordinal: the CUDA runtime's
    number where it differs from `index` (after `tf.config.set_visible_devices`).
    """

    index: int
    name: str = ""
    uuid: str | None = None
    pci_bus_id: str | None = None
    compute_capability: Sequence[int] | str | None = None
    cuda_ordinal: int | None = None


@dataclass(frozen=True)
class SampleBlock:
    """Samples of one group since the last drain.

    time_ns: int64 (n,), on the recording's clock, not decreasing. values: float64 (n, m), one
    column per name in `columns`; NaN is absent.
    """

    group: str
    columns: tuple[str, ...]
    time_ns: np.ndarray
    values: np.ndarray
