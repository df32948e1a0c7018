"""Cuts an XSpace file to a few of its steps: still valid, and a fraction of the size.

python demo/evidence/trim.py window.xplane.pb small.xplane.pb --steps 2
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from evidence.xspace_messages import message_class

# What a reader of GPU work needs; HLO programs and the profiler's own planes are left out.
PLANES = re.compile(rb"^(/device:GPU:\d+|/host:CPU|/host:CUPTI|Task Environment)")
# Bookkeeping of thread pools: most events of a host plane, and nobody's time.
NOISE = re.compile(rb"^(ThreadpoolListener::|ExecutorPropagateOutputs|ExecutorState::ProcessAsync)")


def trim_xspace(data: bytes, steps: int = 2, planes: re.Pattern[bytes] = PLANES) -> bytes:
    """The first `steps` marked steps after the first one, of the planes whose names match.

    Everything that overlaps those steps is kept, and the launch calls of kept work. Without step
    markers all events stay. Host names and the profiler's messages go.

    Raises:
        ValueError: no XSpace.
    """
    space = message_class("XSpace")()
    try:
        space.ParseFromString(data)
    except Exception as error:  # protobuf's DecodeError, whichever implementation raises it
        raise ValueError("not an XSpace file") from error
    if not space.planes:
        raise ValueError("not an XSpace file")
    kept = message_class("XSpace")()
    for plane in space.planes:
        if planes.match(plane.name):
            kept.planes.add().CopyFrom(plane)
    span = _span(kept, steps)
    if span is not None:
        linked: set[int] = set()
        for plane in kept.planes:
            if plane.name.startswith(b"/device:"):
                _cut(plane, span, None)
                linked |= _correlations(plane)
        for plane in kept.planes:
            if plane.name.startswith(b"/host:"):
                _cut(plane, span, linked)
    for plane in kept.planes:
        _drop_unused_names(plane)
    return kept.SerializeToString()


def _span(space: Any, steps: int) -> tuple[int, int] | None:
    """[start, end) of the wanted steps in picoseconds; None without markers."""
    marks = []
    for plane in space.planes:
        names = {entry.key: entry.value.name for entry in plane.stat_metadata}
        for line in plane.lines if plane.name.startswith(b"/host:") else ():
            for event in line.events:
                if any(names.get(stat.metadata_id) == b"step_num" for stat in event.stats):
                    start = _start(line, event)
                    marks.append((start, start + event.duration_ps))
    if not marks:
        return None
    marks.sort()
    first = 1 if len(marks) > steps else 0  # the first one lacks what began before the window
    chosen = marks[first : first + steps]
    return chosen[0][0], max(end for _, end in chosen)


def _start(line: Any, event: Any) -> int:
    return line.timestamp_ns * 1000 + event.offset_ps


def _cut(plane: Any, span: tuple[int, int], linked: set[int] | None) -> None:
    low, high = span
    known = {entry.key: entry.value.name for entry in plane.event_metadata}
    correlation = {entry.key for entry in plane.stat_metadata if entry.value.name == b"correlation_id"}
    for line in plane.lines:
        kept = []
        for event in line.events:
            if NOISE.match(known.get(event.metadata_id, b"")):
                continue
            start = _start(line, event)
            inside = start < high and start + event.duration_ps >= low
            if inside or (linked and _linked(event, correlation, linked)):
                kept.append(event)
        events = [message_class("XEvent").FromString(one.SerializeToString()) for one in kept]
        del line.events[:]
        line.events.extend(events)
    lines = [line for line in plane.lines if line.events]
    copies = [message_class("XLine").FromString(line.SerializeToString()) for line in lines]
    del plane.lines[:]
    plane.lines.extend(copies)


def _linked(event: Any, correlation: set[int], linked: set[int]) -> bool:
    return any(
        stat.metadata_id in correlation and (stat.int64_value or stat.uint64_value) in linked for stat in event.stats
    )


def _correlations(plane: Any) -> set[int]:
    keys = {entry.key for entry in plane.stat_metadata if entry.value.name == b"correlation_id"}
    return {
        stat.int64_value or stat.uint64_value
        for line in plane.lines
        for event in line.events
        for stat in event.stats
        if stat.metadata_id in keys
    }


def _drop_unused_names(plane: Any) -> None:
    events = {event.metadata_id for line in plane.lines for event in line.events}
    entries = [entry for entry in plane.event_metadata if entry.key in events]
    stats: set[int] = set()
    owners = [plane, *(event for line in plane.lines for event in line.events)]
    owners += [entry.value for entry in entries]
    for owner in owners:
        for stat in owner.stats:
            stats.add(stat.metadata_id)
            if stat.WhichOneof("value") == "ref_value":
                stats.add(stat.ref_value)
    for field, kept in (
        ("event_metadata", entries),
        ("stat_metadata", [entry for entry in plane.stat_metadata if entry.key in stats]),
    ):
        kind = message_class("EventMetadataEntry" if field[0] == "e" else "StatMetadataEntry")
        copies = [kind.FromString(entry.SerializeToString()) for entry in kept]
        repeated = getattr(plane, field)
        del repeated[:]
        repeated.extend(copies)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--steps", type=int, default=2)
    args = parser.parse_args()
    args.target.write_bytes(trim_xspace(args.source.read_bytes(), args.steps))
    print(f"{args.source.stat().st_size:,} -> {args.target.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
