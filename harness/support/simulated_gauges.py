"""What slow gauges see of GPUs that work now and then."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from simulated_boards import Board

MS, S = 1_000_000, 1_000_000_000
NAN = float("nan")
HOST = -1  # in place of a GPU's index
START_NS = 1_750_000_000 * S
# How often the recorder reads what, in seconds: PCIe traffic and event reasons, the driver's other counters, …
REASONS_S, BATCH_S, PROCESSES_S, HEALTH_S, GPM_S, HOST_S, FLUSH_S = 0.18, 1.0, 1.0, 10.0, 0.18, 1.0, 2.0


@dataclass
class Busy:
    """When one GPU worked: intervals and how densely."""

    start: list[np.ndarray] = field(default_factory=list)
    end: list[np.ndarray] = field(default_factory=list)
    share: list[np.ndarray] = field(default_factory=list)

    def add(self, start, end, share) -> None:
        start, end = np.atleast_1d(start), np.atleast_1d(end)
        self.start.append(start)
        self.end.append(end)
        self.share.append(np.broadcast_to(np.asarray(share, float), start.shape))

    def upto(self, times: np.ndarray) -> np.ndarray:
        """Busy nanoseconds before each time."""
        if not self.start:
            return np.zeros(len(times))
        start, end, share = (np.concatenate(part) for part in (self.start, self.end, self.share))
        grown = np.concatenate([[0.0], np.cumsum((end - start) * share)])
        edges = np.stack([start, end], axis=1).ravel()
        level = np.stack([grown[:-1], grown[1:]], axis=1).ravel()
        return np.interp(times - START_NS, edges - START_NS, level)


def _outside(times: np.ndarray, stretches: list[tuple[int, int]]) -> np.ndarray:
    keep = np.ones(len(times), bool)
    for start, end in stretches:
        keep &= (times < start) | (times >= end)
    return times[keep]


class Gauges:
    """Samples of a job's GPUs, as the recorder would have read them; the base of `Job`."""

    rng: np.random.Generator
    board: Board | None
    count: int  # GPUs
    now: int  # ns since the epoch
    hz: float
    without: set[str]
    jitter: float
    dry: bool
    drop: float
    missed: list[tuple[int, int]]
    absent: list[tuple[int, int]]
    values: dict[tuple[int, str], list[tuple[int, float]]]
    _busy: list[Busy]
    _marks: dict[str, list[tuple[int, float]]]

    def _seen(self, times: np.ndarray) -> np.ndarray:
        keep = self.rng.random(len(times)) >= self.drop
        return _outside(times[keep], [*self.missed, *self.absent])

    def _value(self, index: int, column: str, times: np.ndarray, default: float) -> np.ndarray:
        changes = self.values.get((index, column), [])
        values = np.full(len(times), default)
        for at, value in changes:
            values[times >= at] = value
        return values

    def _mean_busy(self, index: int, times: np.ndarray, window_s: float) -> np.ndarray:
        """Percent of the last whole window in which kernels ran."""
        window = round(window_s * S)
        at = START_NS + (times - START_NS) // window * window
        busy = self._busy[index]
        share = (busy.upto(at) - busy.upto(at - window)) / window
        return np.clip(np.rint(100 * share + self.rng.normal(0, self.jitter, len(times))), 0, 100)

    def samples(self) -> dict[str, dict[str, np.ndarray]]:
        """All groups of samples, each with its own times."""
        groups: dict[str, dict[str, np.ndarray]] = {}
        ticks = np.arange(START_NS + S // 20, self.now, round(S / self.hz))
        ticks = ticks + self.rng.integers(0, 300_000, len(ticks))
        for index in range(self.count):
            times = self._seen(ticks)
            groups[f"gpu{index}"] = self._gauges(index, times)
            if "ring" not in self.without and not self.board.mig and index < 2:
                fine = self._seen(np.arange(START_NS + S // 6, self.now, S // 6))
                used = self._mean_busy(index, fine, 1 / 6)
                groups[f"gpu{index}/utilization"] = self._buffer(fine, used)
            if self.board.gpm and "gpm" not in self.without:
                groups[f"gpu{index}/gpm"] = self._gpm(index)
            if any(at == index and "allocator" in name for at, name in self.values) and "allocator" not in self.without:
                groups[f"gpu{index}/allocator"] = self._allocator(index)
        if "host" not in self.without:
            times = _outside(np.arange(START_NS, self.now, round(HOST_S * S)), self.absent)
            groups["host"] = {
                "time_ns": times,
                "cpu_pct": self.rng.normal(30, 5, len(times)).clip(0, 100),
                "cpu_max_pct": self.rng.normal(70, 10, len(times)).clip(0, 100),
            }
            for (index, column), rows in self.values.items():
                if index == HOST:
                    place = np.searchsorted([at for at, _ in rows], times, side="right")
                    known = np.array([np.nan, *(value for _, value in rows)])
                    groups["host"][column] = known[place]
        for group, rows in self._marks.items():
            column = group.split("/")[1]
            groups[group] = {
                "time_ns": np.array([at for at, _ in rows]),
                column: np.array([value for _, value in rows]),
            }
        return {name: group for name, group in groups.items() if len(group["time_ns"])}

    def _buffer(self, times: np.ndarray, used: np.ndarray) -> dict[str, np.ndarray]:
        keep = np.ones(len(times), bool)
        if self.dry:  # idle for a second: the polled value instead, at every third sample
            idle = used < 5
            keep = ~idle | (np.convolve(idle, np.ones(7), "full")[: len(idle)] >= 7)
            keep &= ~idle | (np.arange(len(times)) % 3 == 0)
        return {"time_ns": times[keep], "utilization_pct": used[keep]}

    def _gauges(self, index: int, times: np.ndarray) -> dict[str, np.ndarray]:
        board, rng, n = self.board, self.rng, len(times)
        used = self._mean_busy(index, times, board.window_s)
        forced = self._value(index, "utilization_pct", times, NAN)
        used = np.where(np.isnan(forced), used, np.rint(forced + rng.normal(0, 1, n)).clip(0, 100))
        watts = self._value(index, "power_w", times, NAN)
        watts = np.where(np.isnan(watts), board.power_w * (0.25 + 0.006 * used), watts)
        clock = self._value(index, "sm_clock_mhz", times, 0.985 * board.clock_mhz)
        columns = {
            "time_ns": times,
            "utilization_pct": used,
            "memory_utilization_pct": np.rint(0.5 * used),
            "memory_used_bytes": self._value(index, "memory_used_bytes", times, 0.9 * board.memory_bytes),
            "power_mw": np.rint(1000 * watts * rng.normal(1, 0.03, n)),
            "temperature_c": self._value(index, "temperature_c", times, 66),
            "sm_clock_mhz": np.rint((clock + rng.normal(0, 8, n)) / 15) * 15,
        }
        self._add_paced(columns, index, times)
        for source, names in (
            ("utilization", ("utilization_pct", "memory_utilization_pct")),
            ("power", ("power_mw",)),
            ("clock", ("sm_clock_mhz",)),
        ):
            if source in self.without or (board.mig and source == "utilization"):
                for name in names:
                    columns.pop(name)
        return columns

    def _add_paced(self, columns: dict[str, np.ndarray], index: int, times: np.ndarray) -> None:
        """Add the columns that are read less often than the others."""
        board, rng, n = self.board, self.rng, len(times)
        paced = (
            (BATCH_S, "throttle", {"throttle_thermal_pct": 0, "throttle_power_pct": 0, "throttle_other_pct": 0}),
            (REASONS_S, "throttle", {"event_reasons": 0}),
            (REASONS_S, "pcie", {"pcie_rx_bytes_per_s": 2e8, "pcie_tx_bytes_per_s": 3e7}),
            (
                PROCESSES_S,
                "processes",
                {
                    "memory_process_bytes": 0.85 * board.memory_bytes,
                    "memory_other_bytes": 0,
                    "processes_other": 0,
                    "utilization_process_pct": NAN,
                    "utilization_other_pct": NAN,
                },
            ),
            (
                HEALTH_S,
                "health",
                {
                    "power_limit_mw": 1000 * board.power_w,
                    "sm_clock_max_mhz": board.clock_mhz,
                    "pcie_generation": board.link[0],
                    "pcie_width": board.link[1],
                    "ecc_corrected": 0,
                    "ecc_uncorrected": 0,
                },
            ),
        )
        for period, source, defaults in paced:
            if source in self.without or (not board.counters and source in ("throttle", "pcie")):
                continue
            due = (times - START_NS) // round(period * S)
            read = np.diff(due, prepend=-1) > 0
            for column, default in defaults.items():
                value = self._value(index, column, times, default)
                if column.endswith("_per_s") or column.startswith(("throttle", "utilization_")):
                    value = np.where(value > 0, value * rng.normal(1, 0.04, n), value)
                    if column.endswith("_pct"):
                        value = np.clip(value, 0, 100)
                columns[column] = np.where(read, value, NAN)

    def _gpm(self, index: int) -> dict[str, np.ndarray]:
        times = self._seen(np.arange(START_NS + S // 5, self.now, round(GPM_S * S)))
        busy = self._busy[index]
        active = (busy.upto(times) - busy.upto(times - round(GPM_S * S))) / (GPM_S * S)
        sm = self._value(index, "sm_active_pct", times, 85)
        noise = self.rng.normal(1, 0.05, (3, len(times)))
        values = np.clip(sm * active * noise[0], 0, 100)
        tensor = self._value(index, "tensor_active_pct", times, 40)
        return {
            "time_ns": times,
            "sm_active_pct": values,
            "sm_occupancy_pct": 0.5 * values,
            "tensor_active_pct": np.clip(tensor * active * noise[1], 0, 100),
            "dram_active_pct": np.clip(40 * active * noise[2], 0, 100),
        }

    def _allocator(self, index: int) -> dict[str, np.ndarray]:
        times = np.arange(START_NS + 2 * S, self.now + 1, round(FLUSH_S * S))
        times = _outside(times, self.absent)
        names = sorted(name for at, name in self.values if at == index and "allocator" in name)
        rows = {name: self._value(index, name, times, NAN) for name in names}
        for name in ("allocator_retries", "allocator_ooms"):  # counters: they are given as rates
            if name in rows:
                rate = np.nan_to_num(rows[name])
                rows[name] = np.floor(np.cumsum(rate * FLUSH_S))
        return {"time_ns": times, **rows}
