"""A GPU played by a script, for machines without one: the framework's side. Children only.

The framework claims the stand-in's GPU and tells what its allocator holds; into each profiler
window a plane of GPU events is drawn under the real step markers, laid out as CUPTI's are. All of
it is made up, so that everything behind it can be run.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    here = Path(__file__).resolve()
    sys.path[:0] = [str(here.parents[1]), str(here.parents[2])]

from gpu_util_callback.traces.xplane_schema import message_class

__all__ = ["draw", "inject"]

GIB = float(1 << 30)
LIMIT = 105 * GIB
PS_PER_US = 1_000_000
DETAILS = "regs:168 static_shared:0 dynamic_shared:213056 grid:132,1,1 block:384,1,1 occ_pct:18.75"
COPY = "kind_src:pageable kind_dst:device size:268435456 dest:0 async:1"


@dataclass(frozen=True)
class Played:
    """What the GPU does in one step, from the step's start: shares of its duration.

    Attributes:
        idle: before the first launch.
        copy: of one copy to the GPU.
        kernels: how many, and their share of the step; they end with it.
        queued: all launched at the beginning; else each launched when the one before has ended.
        name: what they are called.
    """

    kernels: int = 12
    share: float = 0.97
    idle: float = 0.0
    copy: float = 0.0
    queued: bool = True
    name: str = "nvjet_tst_256x128_64x4_2x1_v_bz_coopA_NNT"


_HEALTHY = Played()
_PLAYED = {
    "slow-input": Played(idle=0.66, share=0.33),
    "tiny-kernels": Played(
        kernels=150, share=0.22, queued=False, name="sm80_xmma_gemm_f32f32_simt_nn_ffma"
    ),
    "copies": Played(kernels=2, copy=0.7, share=0.24, name="input_reduce_fusion"),
    "long-validation": Played(share=0.6),
    "float32": Played(name="void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>"),
}


def inject(backend: str, scenario: str) -> None:
    """Make this process' framework claim the stand-in's GPU."""
    from evidence.standin import NAME

    used = 0.97 if scenario == "full-memory" else 0.5
    memory = {
        "allocator_used_bytes": used * LIMIT,
        "allocator_peak_bytes": used * LIMIT,
        "allocator_limit_bytes": LIMIT,
    }
    claimed = [{"index": 0, "name": NAME, "compute_capability": "9.0"}]
    adapter: Any = {
        "jax": lambda: import_module("gpu_util_callback.frameworks.jax").JaxAdapter,
        "torch": lambda: import_module("gpu_util_callback.frameworks.torch").TorchAdapter,
        "tensorflow": lambda: (
            import_module("gpu_util_callback.frameworks.tensorflow").TensorFlowAdapter
        ),
    }[backend]()
    adapter.devices = lambda self: claimed
    adapter.memory = lambda self: {0: memory}

    from gpu_util_callback.frameworks.profiler_session import profiler_session_for

    if backend == "torch":
        import torch

        torch.set_num_threads(1)  # its threads spin for one another on a machine with few cores
    session = profiler_session_for(backend)
    if session is None:
        return
    stop = session.stop

    def stop_and_draw(folder: Path) -> Path | None:
        file = stop(folder)
        if file is not None and file.name.endswith(".xplane.pb"):
            # In a process of its own: here it would hold Python's lock while the model trains.
            subprocess.run([sys.executable, __file__, str(file), scenario], check=True)
        return file

    session.stop = stop_and_draw  # type: ignore[method-assign]


def draw(data: bytes, played: Played) -> bytes:
    """An XSpace with one more plane, of a GPU that did `played` in each of its marked steps."""
    space = message_class("XSpace")()
    space.ParseFromString(data)
    host = next(plane for plane in space.planes if plane.name == b"/host:CPU")
    steps = sorted(_marked(host))
    pen = _Pen(space, host)
    for start, end in steps:
        whole = end - start
        at = start + int(played.idle * whole)
        if played.copy:
            size = int(played.copy * whole)
            pen.event(b"MemcpyH2D", at - 5 * PS_PER_US, at, size, b"memcpy_details", COPY)
            at += size
        busy = int(played.share * whole)
        # Kernels that are launched one by one are short, however long a step is here.
        count = played.kernels if played.queued else max(played.kernels, busy // (40 * PS_PER_US))
        each, pitch = busy // count, (end - at) // count
        first_call = at - 10 * PS_PER_US
        for number in range(count):
            begin = at + number * pitch + pitch - each
            called = first_call + number * PS_PER_US if played.queued else begin - 6 * PS_PER_US
            pen.event(played.name.encode(), called, begin, each, b"kernel_details", DETAILS)
    return space.SerializeToString()


def _marked(host: Any) -> Iterator[tuple[int, int]]:
    """(start, end) in picoseconds of each marked training step."""
    stats = {entry.key: entry.value.name for entry in host.stat_metadata}
    for line in host.lines:
        for event in line.events:
            if any(stats.get(stat.metadata_id) == b"step_num" for stat in event.stats):
                start = line.timestamp_ns * 1000 + event.offset_ps
                yield start, start + event.duration_ps


class _Pen:
    """Adds launches to the host's plane and work to a GPU's."""

    def __init__(self, space: Any, host: Any) -> None:
        self.host = host
        self.device = space.planes.add(id=1000, name=b"/device:GPU:0")
        self.calls = host.lines.add(id=(1 << 40) + 1, name=b"launches of the stand-in")
        self.stream = self.device.lines.add(id=13, name=b"Stream #13(Compute,MemcpyH2D)")
        self.correlation = 1 << 40
        for name, value in ((b"compute_cap_major", 9), (b"compute_cap_minor", 0)):
            self.device.stats.add(metadata_id=_id(self.device.stat_metadata, name),
                                  int64_value=value)  # fmt: skip

    def event(
        self, name: bytes, called: int, at: int, size: int, details: bytes, text: str
    ) -> None:
        """Work of `size` from `at`, launched by a call of 4 µs at `called`; picoseconds."""
        self.correlation += 1
        call = b"cuMemcpyAsync" if name.startswith(b"Memcpy") else b"cuLaunchKernel"
        launched = self.calls.events.add(
            metadata_id=_id(self.host.event_metadata, call), offset_ps=max(0, called),
            duration_ps=4 * PS_PER_US,
        )  # fmt: skip
        work = self.stream.events.add(
            metadata_id=_id(self.device.event_metadata, name), offset_ps=at, duration_ps=size
        )
        for plane, event in ((self.host, launched), (self.device, work)):
            event.stats.add(
                metadata_id=_id(plane.stat_metadata, b"correlation_id"),
                int64_value=self.correlation,
            )
        work.stats.add(metadata_id=_id(self.device.stat_metadata, details), str_value=text.encode())


def main() -> int:
    """`python standin_trace.py FILE SCENARIO` draws into a window's file."""
    file, scenario = Path(sys.argv[1]), sys.argv[2]
    file.write_bytes(draw(file.read_bytes(), _PLAYED.get(scenario, _HEALTHY)))
    return 0


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


if __name__ == "__main__":
    sys.exit(main())
