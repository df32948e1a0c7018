"""A GPU played by a script, for machines without one: the framework's side. Children only.

The framework claims the stand-in's GPU and tells what its allocator holds; into each profiler
window the events of a GPU are drawn under the real step markers, laid out as CUPTI's are. All of
it is made up, so that everything behind it can be run.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from evidence.standin_pens import KinetoPen, XSpacePen

GIB = float(1 << 30)
LIMIT = 105 * GIB
PS_PER_US = 1_000_000


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
    "tiny-kernels": Played(kernels=150, share=0.22, queued=False, name="sm80_xmma_gemm_f32f32_simt_nn_ffma"),
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
        "jax": lambda: import_module("gpu_util_callback.backends.jax.backend").JaxAdapter,
        "torch": lambda: import_module("gpu_util_callback.backends.torch.backend").TorchAdapter,
        "tensorflow": lambda: import_module("gpu_util_callback.backends.tensorflow.backend").TensorFlowAdapter,
    }[backend]()
    adapter.devices = lambda self: claimed
    adapter.memory = lambda self: {0: memory}

    from gpu_util_callback.backends.base import profiler_session_for

    if backend == "torch":
        import torch

        torch.set_num_threads(1)  # its threads spin for one another on a machine with few cores
    session = profiler_session_for(backend)
    if session is None:
        return
    stop = session.stop

    def stop_and_draw(folder: Path) -> Path | None:
        file = stop(folder)
        if file is not None:
            # In a process of its own: here it would hold Python's lock while the model trains.
            subprocess.run([sys.executable, "-P", "-m", "evidence.standin_trace", str(file), scenario], check=True)
        return file

    session.stop = stop_and_draw  # type: ignore[method-assign]


def draw(name: str, data: bytes, played: Played) -> bytes:
    """A file of that name, with a GPU that did `played` in each of its marked steps."""
    pen: Any = KinetoPen(data) if name.endswith(".json") else XSpacePen(data)
    for start, end in pen.steps():
        whole = end - start
        at = start + int(played.idle * whole)
        if played.copy:
            size = int(played.copy * whole)
            pen.copy(at - 5 * PS_PER_US, at, size)
            at += size
        busy = int(played.share * whole)
        # Kernels that are launched one by one are short, however long a step is here.
        count = played.kernels if played.queued else max(played.kernels, busy // (40 * PS_PER_US))
        each, pitch = busy // count, (end - at) // count
        first_call = at - 10 * PS_PER_US
        for number in range(count):
            begin = at + number * pitch + pitch - each
            called = first_call + number * PS_PER_US if played.queued else begin - 6 * PS_PER_US
            pen.kernel(played.name, called, begin, each)
    return pen.result()


def main() -> int:
    """`python -m evidence.standin_trace FILE SCENARIO` draws into a window's file."""
    file, scenario = Path(sys.argv[1]), sys.argv[2]
    file.write_bytes(draw(file.name, file.read_bytes(), _PLAYED.get(scenario, _HEALTHY)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
