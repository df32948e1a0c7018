"""Draw a GPU's work, and the calls that launch it, into a profiler's file. Times in picoseconds."""

from __future__ import annotations

import json
import re
from typing import Any

from evidence.xspace_messages import message_class

PS_PER_US = 1_000_000
CALL = 4 * PS_PER_US  # what a call that launches something takes
COPIED = 268435456  # bytes
_LAUNCH = {
    "grid": [132, 1, 1],
    "block": [384, 1, 1],
    "registers per thread": 168,
    "shared memory": 213056,
    "est. achieved occupancy %": 18,
    "blocks per SM": 1.0,
}
_STEP = re.compile(r"ProfilerStep#\d+")


class XSpacePen:
    """Into an XSpace of TensorFlow or JAX: the GPU becomes one more plane."""

    DETAILS = b"regs:168 static_shared:0 dynamic_shared:213056 grid:132,1,1 block:384,1,1 occ_pct:18.75"

    def __init__(self, data: bytes) -> None:
        self.space = message_class("XSpace")()
        self.space.ParseFromString(data)
        self.host = next(plane for plane in self.space.planes if plane.name == b"/host:CPU")
        self.marked = sorted(self._marked())
        self.device = self.space.planes.add(id=1000, name=b"/device:GPU:0")
        self.calls = self.host.lines.add(id=(1 << 40) + 1, name=b"launches of the stand-in")
        self.stream = self.device.lines.add(id=13, name=b"Stream #13(Compute,MemcpyH2D)")
        self.correlation = 1 << 40
        for name, value in ((b"compute_cap_major", 9), (b"compute_cap_minor", 0)):
            self.device.stats.add(metadata_id=_id(self.device.stat_metadata, name), int64_value=value)

    def _marked(self) -> list[tuple[int, int]]:
        stats = {entry.key: entry.value.name for entry in self.host.stat_metadata}
        found = []
        for line in self.host.lines:
            for event in line.events:
                if any(stats.get(stat.metadata_id) == b"step_num" for stat in event.stats):
                    start = line.timestamp_ns * 1000 + event.offset_ps
                    found.append((start, start + event.duration_ps))
        return found

    def steps(self) -> list[tuple[int, int]]:
        """(start, end) of each marked training step."""
        return self.marked

    def copy(self, called: int, at: int, size: int) -> None:
        """A copy to the GPU of `size` from `at`."""
        text = f"kind_src:pageable kind_dst:device size:{COPIED} dest:0 async:1"
        self._event(b"MemcpyH2D", b"cuMemcpyAsync", called, at, size, b"memcpy_details", text.encode())

    def kernel(self, name: str, called: int, at: int, size: int) -> None:
        self._event(name.encode(), b"cuLaunchKernel", called, at, size, b"kernel_details", self.DETAILS)

    def _event(self, name: bytes, call: bytes, called: int, at: int, size: int, details: bytes, text: bytes) -> None:
        self.correlation += 1
        launched = self.calls.events.add(
            metadata_id=_id(self.host.event_metadata, call), offset_ps=max(0, called), duration_ps=CALL
        )
        work = self.stream.events.add(metadata_id=_id(self.device.event_metadata, name), offset_ps=at, duration_ps=size)
        for plane, event in ((self.host, launched), (self.device, work)):
            event.stats.add(metadata_id=_id(plane.stat_metadata, b"correlation_id"), int64_value=self.correlation)
        work.stats.add(metadata_id=_id(self.device.stat_metadata, details), str_value=text)

    def result(self) -> bytes:
        return self.space.SerializeToString()


def _id(entries: Any, name: bytes) -> int:
    """The metadata id of a name, added where it is new."""
    highest = 0
    for entry in entries:
        if entry.value.name == name:
            return entry.key
        highest = max(highest, entry.key)
    entry = entries.add(key=highest + 1)
    entry.value.id, entry.value.name = highest + 1, name
    return highest + 1


class KinetoPen:
    """Into PyTorch's Chrome trace."""

    def __init__(self, data: bytes) -> None:
        self.trace = json.loads(data)
        self.trace["deviceProperties"] = [
            {
                "id": 0,
                "name": "stand-in GPU (not real)",
                "totalGlobalMem": 140 << 30,
                "computeMajor": 9,
                "computeMinor": 0,
                "numSms": 132,
                "warpSize": 32,
            }
        ]
        self.events = self.trace["traceEvents"]
        self.marked = [
            event for event in self.events if event.get("ph") == "X" and _STEP.fullmatch(str(event.get("name")))
        ]
        self.correlation = 1 << 40

    def steps(self) -> list[tuple[int, int]]:
        """(start, end) of each marked training step."""
        return sorted(
            (round(event["ts"] * PS_PER_US), round((event["ts"] + event["dur"]) * PS_PER_US)) for event in self.marked
        )

    def copy(self, called: int, at: int, size: int) -> None:
        """A copy to the GPU of `size` from `at`."""
        self._event(
            "gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", "cudaMemcpyAsync", called, at, size, {"bytes": COPIED}
        )

    def kernel(self, name: str, called: int, at: int, size: int) -> None:
        self._event("kernel", name, "cudaLaunchKernel", called, at, size, _LAUNCH)

    def _event(self, category: str, name: str, call: str, called: int, at: int, size: int, more: dict) -> None:
        self.correlation += 1
        linked = {"correlation": self.correlation}
        where = {key: self.marked[0][key] for key in ("pid", "tid")}
        self.events += [
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": call,
                **where,
                "ts": called / PS_PER_US,
                "dur": CALL / PS_PER_US,
                "args": linked,
            },
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 0,
                "tid": 7,
                "ts": at / PS_PER_US,
                "dur": size / PS_PER_US,
                "args": {"device": 0, "context": 1, "stream": 7, **linked, **more},
            },
        ]

    def result(self) -> bytes:
        return json.dumps(self.trace).encode()
