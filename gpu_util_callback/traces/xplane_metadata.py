"""The names and stats that events of a plane refer to by number, decoded on first use.

Parsed into objects, a file of empty entries would take fifty times its size; here an entry costs
its place in a few columns, and only names that events use become strings.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from gpu_util_callback.traces import wire

__all__ = ["STAT_FIELDS", "STAT_TEXTS", "Metadata"]

# XStat: metadata_id, double, uint64, int64, str, bytes, ref
STAT_FIELDS = (1, 2, 3, 4, 5, 6, 7)
STAT_TEXTS = (5, 6)

Spans = tuple[np.ndarray, np.ndarray]


class _Entries:
    """One map of a plane: names by id, and the stats of some."""

    def __init__(self, data: bytes, spans: Spans, stats_field: int = 0) -> None:
        starts, ends = spans
        low, high = (int(starts.min()), int(ends.max())) if len(starts) else (0, 0)
        self.buffer = wire.Buffer(memoryview(data)[low:high])
        entries, _ = wire.decode(self.buffer, starts - low, ends - low, (1, 2), payloads=(2,))
        keys, value = entries[1].value.view(np.int64), entries[2]
        self._row = {key: row for row, key in enumerate(keys.tolist())}
        inner, (owner, self._stat_start, self._stat_end) = wire.decode(
            self.buffer, value.value.astype(np.int64), value.end, (2,), stats_field, payloads=(2,)
        )
        self._name = inner[2]
        self._owner = keys[owner]

    def __getitem__(self, key: int) -> str | None:
        row = self._row.get(key)
        return None if row is None else self._text(row)

    def _text(self, row: int) -> str:
        raw = self.buffer.slice(int(self._name.value[row]), int(self._name.end[row]))
        return raw.decode("utf-8", "replace")

    def items(self) -> dict[int, str]:
        named = self._name.present
        return {key: self._text(row) for key, row in self._row.items() if named[row]}

    @cached_property
    def stats(self) -> tuple[np.ndarray, dict[int, wire.Fields]]:
        """The entry id of each stat, and the stats."""
        table, _ = wire.decode(
            self.buffer, self._stat_start, self._stat_end, STAT_FIELDS, payloads=STAT_TEXTS
        )
        return self._owner, table


class Metadata:
    """The maps and the own stats of one plane.

    Args:
        data: the file.
        events, stats: positions of the entries of the two maps.
        own: positions of the plane's own stats.
    """

    def __init__(self, data: bytes, events: Spans, stats: Spans, own: Spans) -> None:
        self.events = _Entries(data, events, stats_field=5)
        self.stat_names = _Entries(data, stats).items()
        self._data, self._own = data, own
        self._texts: dict[str, dict[int, str]] = {}

    def event_name(self, key: int) -> str:
        name = self.events[key]
        return "unknown" if name is None else name

    def stat_ids(self, names: tuple[str, ...]) -> dict[str, int]:
        """Return the ids of some stats, by name; without those that the plane does not have."""
        return {name: key for key, name in self.stat_names.items() if name in names}

    def texts(self, stat: str) -> dict[int, str]:
        """Return a text stat that metadata carries for all of its events, by the event's id."""
        if stat not in self._texts:
            key = self.stat_ids((stat,)).get(stat)
            owner, table = self.events.stats
            self._texts[stat] = {}
            ids = table[1].value.view(np.int64)
            for row in np.flatnonzero(ids == key).tolist() if key is not None else ():
                value = _value(self.events.buffer, table, row, self.stat_names)
                if isinstance(value, str):
                    self._texts[stat][int(owner[row])] = value
        return self._texts[stat]

    def facts(self, *names: str) -> dict[str, Any]:
        """Return some of the plane's own stats by name: numbers and texts."""
        starts, ends = self._own
        if not len(starts):
            return {}
        low, high = int(starts.min()), int(ends.max())
        buffer = wire.Buffer(memoryview(self._data)[low:high])
        table, _ = wire.decode(buffer, starts - low, ends - low, STAT_FIELDS, payloads=STAT_TEXTS)
        result = {}
        for name, key in self.stat_ids(names).items():
            rows = np.flatnonzero(table[1].value.view(np.int64) == key)
            value = _value(buffer, table, int(rows[-1]), self.stat_names) if len(rows) else None
            if value is not None:
                result[name] = value
        return result


def _value(buffer: wire.Buffer, table: dict[int, wire.Fields], row: int, names: dict) -> Any:
    """Return one stat: a number, a text, or None."""
    for number in STAT_FIELDS[1:]:
        column = table[number]
        if not column.present[row]:
            continue
        raw = column.value[row]
        if number in STAT_TEXTS:
            return buffer.slice(int(raw), int(column.end[row])).decode("utf-8", "replace")
        if number == 7:
            return names.get(int(raw), "")
        return (
            float(raw.view(np.float64))
            if number == 2
            else int(raw if number == 3 else raw.view(np.int64))
        )
    return None
