"""GPU models as their drivers show them: what they can tell, and how slowly."""

from dataclasses import dataclass

GB = 1_000_000_000


@dataclass(frozen=True)
class Board:
    """A GPU model. `window_s`: over how long its utilization is averaged."""

    name: str
    memory_bytes: int
    capability: str
    clock_mhz: int
    power_w: int
    link: tuple[int, int]
    window_s: float = 1.0
    gpm: bool = False
    mig: bool = False
    counters: bool = True  # whether it counts PCIe traffic and throttled time


RTX2080 = Board("NVIDIA GeForce RTX 2080", 8 * GB, "7.5", 2100, 215, (3, 16), 1 / 6)
LAPTOP = Board("NVIDIA GeForce RTX 3060 Laptop GPU", 6 * GB, "8.6", 2100, 80, (4, 8), 1 / 6)
T4 = Board("Tesla T4", 15 * GB, "7.5", 1590, 70, (3, 16), 1.0)
V100 = Board("Tesla V100-SXM2-16GB", 16 * GB, "7.0", 1530, 300, (3, 16), 0.5)
A100 = Board("NVIDIA A100-SXM4-40GB", 40 * GB, "8.0", 1410, 400, (4, 16), 1.0)
A100_MIG = Board("NVIDIA A100 MIG 1g.5gb", 5 * GB, "8.0", 1410, 400, (4, 16), mig=True)
H100 = Board("NVIDIA H100 80GB HBM3", 80 * GB, "9.0", 1980, 700, (5, 16), 0.5, gpm=True)
L4 = Board("NVIDIA L4", 24 * GB, "8.9", 2040, 72, (4, 16), 1.0)
B200 = Board("NVIDIA B200", 180 * GB, "10.0", 1965, 1000, (5, 16), 0.5, gpm=True)
GTX1080 = Board("NVIDIA GeForce GTX 1080 Ti", 11 * GB, "6.1", 1911, 250, (3, 16), 1 / 6, counters=False)
