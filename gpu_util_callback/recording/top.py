"""The data of a recording's first view: its overview, distributions and longest phases."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from gpu_util_callback.recording.container import Container, Damaged
from gpu_util_callback.recording.overview import Overview
from gpu_util_callback.recording.sealed import StoredIndex, stored_index, stored_phases
from gpu_util_callback.recording.segments import Extent, Rows, concatenate
from gpu_util_callback.recording.summary import Summary

__all__ = ["StoredTop", "Top"]


@dataclass(frozen=True)
class StoredTop:
    """An `overview.npz` whose list of segments is consistent."""

    container: Container
    index: StoredIndex

    @classmethod
    def opened(cls, data: bytes) -> "StoredTop":
        """Open it. Raises: Damaged."""
        container = Container(data)
        return cls(container, stored_index(container))


@dataclass(frozen=True)
class Top:
    """The first view of the segments up to number `covered`; `phases` None: none were stored."""

    overview: Overview
    summary: Summary
    phases: dict[str, np.ndarray] | None = None
    covered: int = -1

    @classmethod
    def stored(
        cls, stored: StoredTop, extent: Extent, on_damage: Callable[[Damaged], None]
    ) -> "Top":
        """Return the first view stored in `overview.npz`; `on_damage` as for `Overview.unpack`.

        Raises: Damaged.
        """
        try:
            return cls(
                Overview.unpack(stored.container, on_damage),
                Summary.restore(stored.container.index["summary"]),
                stored_phases(stored.container, extent),
                stored.index.covered,
            )
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            if isinstance(error, Damaged):
                raise
            raise Damaged(f"not an overview: {error!r}") from error

    def add(self, tables: Rows, samples: Rows) -> None:
        """Add the rows of another segment, in place."""
        self.overview.add(tables, samples)
        self.summary.add(tables, samples)

    def with_rows(self, tables: Rows, samples: Rows) -> "Top":
        """Return another one that includes these rows."""
        summary, phases = self.summary.copy(), self.phases
        summary.add(tables, samples)
        if phases is not None and "phases" in tables:
            phases = concatenate("phases", [phases, tables["phases"]])
        overview = self.overview.with_rows(tables, samples)
        return replace(self, overview=overview, summary=summary, phases=phases)
