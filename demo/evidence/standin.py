"""A GPU played by a script, for machines without one: the driver's side. Nothing here is measured.

The stand-in driver library of the tests (`harness/support/nvml.py`) answers the sampler; needs a C
compiler.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = "stand-in GPU (not real)"
GIB = 1 << 30

# scenario -> what the driver's instruments show: GPU active, SM active, tensor cores, all in %
_SHOWN = {
    "healthy": (98, 88, 60),
    "healthy-defaults": (98, 88, 60),
    "slow-input": (33, 28, 20),
    "tiny-kernels": (22, 1, 0),
    "copies": (94, 12, 0),  # of it 70 without a kernel
    "float32": (99, 95, 0),
    "full-memory": (97, 85, 55),
    "competitor": (100, 90, 60),
    "long-validation": (60, 52, 30),  # idle while it validates, as its mean
}


def environment(scenario: str, folder: Path, rival: int) -> dict[str, str]:
    """What to add to the environment of a child, so that its NVIDIA driver is the stand-in.

    Args:
        folder: where the library is built and the script is written.
        rival: the id of a process that plays the competitor.
    """
    support = str(ROOT / "harness" / "support")
    if support not in sys.path:
        sys.path.insert(0, support)
    from nvml import Scenario
    from nvml import environment as nvml_environment

    active, sm, tensor = _SHOWN[scenario]
    script = Scenario(driver="000.00")
    gpu = script.gpu("h100", name=NAME)
    # Never quite the same value twice, as with real instruments; the mean is what is meant.
    ripple = [(0.25 * i, max(0, min(100, active + (i * 7) % 5 - 2))) for i in range(2000)]
    gpu.curve("utilization", ripple).curve("gpm:2", sm).curve("gpm:5", tensor)
    gpu.curve("gpm:3", 0.6 * sm).curve("memory_total", 140 * GIB)
    full = scenario == "full-memory"
    gpu.curve("memory_used", (133 if full else 30) * GIB)
    gpu.curve("power_mw", 120_000 + 5_000 * active)
    own = 50 if scenario == "competitor" else active
    gpu.process("self", (132 if full else 29) * GIB, sm=own)
    if scenario == "competitor":
        gpu.process(rival, GIB, sm=45)
    folder.mkdir(parents=True, exist_ok=True)
    return nvml_environment(script, folder)
