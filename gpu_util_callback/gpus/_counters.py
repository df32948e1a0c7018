"""Cumulative counters, read in one call, as rates and shares of the time between reads."""

import time
from dataclasses import dataclass
from typing import Any

from gpu_util_callback.gpus import _words
from gpu_util_callback.gpus._buffers import VALUE_MEMBERS
from gpu_util_callback.gpus._devices import NvmlGpu
from gpu_util_callback.gpus._gate import NO_NEW_VALUE, OFF, Gate

__all__ = ["Counters"]

NAN = float("nan")
_BATCH = "nvmlDeviceGetFieldValues"
_ALL_LINKS = 0xFFFFFFFF
_WRAP = 2**32
# The maximum rate of a PCIe link of each generation, bytes per second and lane.
_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9}


@dataclass(frozen=True)
class Field:
    """One field of the batch. unit: the value of one count in the column's unit and second."""

    id: int
    column: str
    scope: int = 0
    scale: float = 1.0
    cumulative: bool = True
    wraps: bool = False


_NS_TO_PCT = 100e-9
FIELDS = (
    Field(197, "pcie_tx_bytes_per_s", wraps=True),
    Field(198, "pcie_rx_bytes_per_s", wraps=True),
    Field(269, "throttle_thermal_pct", scale=_NS_TO_PCT),  # software thermal slowdown, ns
    Field(270, "throttle_thermal_pct", scale=_NS_TO_PCT),  # hardware thermal slowdown
    Field(74, "throttle_power_pct", scale=_NS_TO_PCT),  # power cap
    Field(271, "throttle_power_pct", scale=_NS_TO_PCT),  # external power brake
    Field(76, "throttle_other_pct", scale=_NS_TO_PCT),  # sync boost
    Field(83, "power_energy_mw"),  # mJ a second
    Field(138, "nvlink_tx_bytes_per_s", _ALL_LINKS, 1024.0),
    Field(139, "nvlink_rx_bytes_per_s", _ALL_LINKS, 1024.0),
    Field(82, "memory_temperature_c", cumulative=False),
)

# Clock event reasons -> the column their share of time belongs to. Idle and clocks set by the user
# are not throttling.
REASON_COLUMNS = {
    0x20: "throttle_thermal_pct", 0x40: "throttle_thermal_pct",
    0x4: "throttle_power_pct", 0x80: "throttle_power_pct",
    0x10: "throttle_other_pct", 0x200: "throttle_other_pct", 0x400: "throttle_other_pct",
}  # fmt: skip
_HW_SLOWDOWN = 0x8  # thermal or power brake; the two bits that distinguish them are newer


class Counters:
    """Reads the batch into one row of `columns`; NaN where a counter is absent or was reset.

    A share of time comes from the driver's own nanosecond counters. Where it has none, or does not
    answer the batch, the share comes from the event reasons of each tick (0 or 100), whose mean
    over ticks estimates it, and PCIe traffic from the older call, once a second.
    """

    columns = (*dict.fromkeys(field.column for field in FIELDS), "event_reasons")

    def __init__(self, gate: Gate, gpu: NvmlGpu, key: str) -> None:
        self._gate = gate
        self._gpu = gpu
        self._key = key
        self._fields = list(FIELDS)
        self._before: dict[Field, tuple[float, float]] = {}  # field -> (seconds, count)
        self._wrapped: set[Field] = set()
        facts = gpu.facts
        lane = _LANE.get(facts.get("pcie_generation_max") or 0, 0.0)
        self._link_rate = lane * (facts.get("pcie_width_max") or 0)  # 0 = unknown
        self._throughput_due_s = 0.0
        self._empty = [NAN] * len(self.columns)
        self._share_positions = [self.columns.index(column) for column in _SHARES]
        # The binding's structures read attributes in Python; their descriptors do it in C.
        structure = gate.binding.c_nvmlFieldValue_t
        self._getters = [
            getattr(structure, name).__get__
            for name in ("nvmlReturn", "timestamp", "valueType", "value")
        ]
        self._prepare()

    def read(self) -> list[float]:
        """Return [float] * len(columns): rates since the last read."""
        row = self._empty[:]
        uncounted = self._uncounted
        if self._fields:
            answer = self._gate.ask(_BATCH, self._gpu.board, self._asked, gpu=self._key)
            if answer is None:
                self._before.clear()  # a gap: no rate over an unobserved interval
                uncounted = list(_SHARES)
                if self._gate.lacks(_BATCH, self._key):
                    self._drop_all()
            else:
                self._account(answer, row)
        self._reasons(row, uncounted)
        self._throughput(row)
        return row

    @property
    def wraps(self) -> bool:
        """True if this driver's PCIe counters were seen to wrap and need frequent reads."""
        return bool(self._wrapped)

    def _prepare(self) -> None:
        """Compute everything that depends on the remaining fields."""
        self._asked = [
            (field.id, field.scope) if field.scope else field.id for field in self._fields
        ]
        self._positions = [self.columns.index(field.column) for field in self._fields]
        counted = {field.column for field in self._fields}
        self._uncounted = [column for column in _SHARES if column not in counted]
        self._unmetered = [column for column in _THROUGHPUT if column not in counted]

    def _account(self, answer: Any, row: list[float]) -> None:
        now_s = time.perf_counter()
        get_code, get_time, get_type, get_value = self._getters
        dropped = []
        for field, position, value in zip(self._fields, self._positions, answer, strict=True):
            code = get_code(value)
            if code != 0:
                dropped.append((field, int(code)))
                continue
            count = float(getattr(get_value(value), VALUE_MEMBERS.get(get_type(value), "ullVal")))
            if not field.cumulative:
                row[position] = count
                continue
            rate = self._rate(field, get_time(value) / 1e6 or now_s, count)
            if rate == rate:
                known = row[position]
                row[position] = rate if known != known else known + rate
        for position in self._share_positions:
            if row[position] > 100:
                row[position] = 100.0  # two causes at once
        for field, code in dropped:
            self._drop(field, code)

    def _rate(self, field: Field, at_s: float, count: float) -> float:
        before = self._before.get(field)
        self._before[field] = (at_s, count)
        if before is None or at_s <= before[0]:
            return NAN
        seconds = at_s - before[0]
        grown = count - before[1]
        if grown < 0:
            if not field.wraps or before[1] >= _WRAP or self._too_fast(grown + _WRAP, seconds):
                return NAN  # the driver was reloaded: the counter was reset
            grown += _WRAP
            self._wrapped.add(field)
        if field in self._wrapped and self._link_rate * seconds >= _WRAP:
            return NAN  # it may have wrapped more than once between two reads
        return grown / seconds * field.scale

    def _too_fast(self, grown: float, seconds: float) -> bool:
        return bool(self._link_rate) and grown / seconds > 1.1 * self._link_rate

    def _drop(self, field: Field, code: int) -> None:
        """Drop a field that this GPU does not have; remember why."""
        self._before.pop(field, None)
        if code in NO_NEW_VALUE or code not in OFF:
            return
        self._fields.remove(field)
        self._prepare()
        if all(other.column != field.column for other in self._fields):
            self._name_missing(field.column, *_words.explain(code))

    def _drop_all(self) -> None:
        """Drop the whole batch, which this driver lacks or refuses; report what is lost with it."""
        missing = self._gate.memory.reason(_BATCH, self._key)
        columns = dict.fromkeys(field.column for field in self._fields)
        self._fields.clear()
        self._prepare()
        if missing is None:  # already reported: the GPU was lost and is back
            return
        for column in columns:
            self._name_missing(column, missing["reason"], missing["cure"])
        self._gate.memory.forget(_BATCH, self._key)

    def _name_missing(self, column: str, reason: str, cure: str) -> None:
        """Remember why a column has no values, unless another call provides them."""
        instead = REASON_CALLS if column in _SHARES else ()
        if not any(self._gate.knows(symbol) for symbol in instead):
            self._gate.memory.note(column, self._key, reason, cure)

    def _throughput(self, row: list[float]) -> None:
        """Read the PCIe traffic of the last 20 ms; each query takes as long."""
        now_s = time.perf_counter()
        if not self._unmetered or now_s < self._throughput_due_s:
            return
        self._throughput_due_s = now_s + _THROUGHPUT_S
        for column in self._unmetered:
            name = f"{_PCIE}/{column}"
            rate = self._gate.ask(
                _PCIE, self._gpu.board, _THROUGHPUT[column], gpu=self._key, name=name
            )
            if rate is not None:
                row[self.columns.index(column)] = 1024.0 * rate
                self._gate.memory.forget(column, self._key)
            elif self._gate.lacks(name, self._key):
                self._gate.memory.forget(name, self._key)  # the counter's own reason is better

    def _reasons(self, row: list[float], uncounted: list[str]) -> None:
        questions = [(symbol, self._gpu.board) for symbol in REASON_CALLS]
        bits = self._gate.first_of(*questions, gpu=self._key)
        if bits is None:
            return
        row[-1] = float(bits)
        for column in uncounted:
            named = any(bits & bit for bit, owner in REASON_COLUMNS.items() if owner == column)
            unnamed = column == "throttle_other_pct" and bits & _HW_SLOWDOWN and not bits & 0xC0
            row[self.columns.index(column)] = 100.0 if named or unnamed else 0.0


_PCIE = "nvmlDeviceGetPcieThroughput"
_THROUGHPUT = {"pcie_tx_bytes_per_s": 0, "pcie_rx_bytes_per_s": 1}  # column -> argument of the call
_THROUGHPUT_S = 1.0
_SHARES = ("throttle_thermal_pct", "throttle_power_pct", "throttle_other_pct")
REASON_CALLS = (
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",  # its name before driver 535
)
