"""All readings of one GPU, each at its own pace.

- `GpuGauges`: what the driver answers at once;
- `UtilizationBuffer`: utilization at the driver's own resolution, its ring of samples, drained;
- `Counters`: cumulative counters, read in one call, as rates and shares of the time between reads;
- `Gpm`: metrics of Hopper and newer: how much of the GPU was active, not only that some of it was;
- `Processes`: memory and utilization, split into this process's and other processes';
- `Health` and `XidWatch`: values that change rarely (limits, the PCIe link, ECC counts), and
  critical errors.
"""

import functools
import math
import os
import statistics
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_util_callback.gpus import _gate
from gpu_util_callback.gpus._devices import NvmlGpu, find_again, memory_of
from gpu_util_callback.gpus._gate import NO_NEW_VALUE, NOT_SUPPORTED, OFF, Answer, Gate
from gpu_util_callback.gpus._store import Store
from gpu_util_callback.recording.clock import Clock
from gpu_util_callback.recording.schema import PCIE_LANE_BYTES_PER_S

NAN = float("nan")
_GPU_UTIL, _MEMORY_UTIL = 1, 2
_DAY_US = 86_400 * 1_000_000
# NVML documents windows of 1/6 s to 1 s; changes further apart are not of successive refreshes.
SHORTEST_WINDOW_NS, LONGEST_REFRESH_NS = 166_666_667, 1_200_000_000
FEWEST_REFRESHES = 2


class _Source:
    """A kind of readings of one GPU, which the driver is asked for through its gate.

    Args:
        key: "gpu<i>", to which failures are attributed.
    """

    def __init__(self, gate: Gate, gpu: NvmlGpu, key: str) -> None:
        self._gate = gate
        self._gpu = gpu
        self._key = key

    def _possible(self, answer: Answer, column: str, symbol: str) -> float:
        """Return an answer as a reading; NaN without one, or where it is impossible, which is noted."""
        reading = NAN if answer is None else _sane(float(answer), column)
        if answer is not None and reading != reading:
            self._gate.memory.note(symbol, self._key, *_gate.IMPOSSIBLE)
        return reading


class Refreshes:
    """Refreshes of utilization that polling shows: where the value changes between two polls.

    The driver's value is the mean of the window before its last refresh, as long as the time
    between two refreshes, and is held until the next one.

    Attributes:
        period_ns: between two refreshes; None = not known yet.
    """

    def __init__(self) -> None:
        self._last_poll: tuple[int, Sequence[float]] | None = None  # (ns, values)
        self._changed_ns: int | None = None  # time of the last change
        self._intervals_ns: deque[int] = deque(maxlen=64)  # ns between successive changes
        self._written_ns = 0  # time of the last row
        self.period_ns: int | None = None

    def rows(self, time_ns: int, polled: Sequence[float]) -> list[tuple[int, Sequence[float]]]:
        """Return rows (end of the window in ns, values) of the refreshes that a poll reveals.

        Args:
            time_ns: of the poll.
            polled: the values; the first one is utilization.
        """
        before, self._last_poll = self._last_poll, (time_ns, polled)
        window_ns = self.period_ns or SHORTEST_WINDOW_NS
        # no refresh is seen: the value held still stands for a window now and then
        if before is None or polled[0] == before[1][0]:
            return self._far_enough([(time_ns - window_ns, polled)], window_ns)
        changed_ns = (before[0] + time_ns) // 2
        if self._changed_ns is not None:
            self._add_refresh(changed_ns - self._changed_ns)
        self._changed_ns = changed_ns
        held = self._far_enough([(changed_ns - window_ns, before[1])], window_ns // 2)
        return held + self._far_enough([(changed_ns, polled)], 1)

    def _far_enough(self, rows: list[tuple[int, Sequence[float]]], apart_ns: int) -> list[tuple[int, Sequence[float]]]:
        """Return the rows (ns, values) that are at least `apart_ns` after the last written one."""
        rows = [row for row in rows if row[0] >= self._written_ns + apart_ns]
        self._written_ns = rows[-1][0] if rows else self._written_ns
        return rows

    def _add_refresh(self, apart_ns: int) -> None:
        """Add the time between two changes; the period is the mean of those near the lower third."""
        if apart_ns > LONGEST_REFRESH_NS:  # the value stayed the same over refreshes between
            return
        self._intervals_ns.append(apart_ns)
        # A refresh may bring the same value again, and polls see one early or late by a poll.
        lower = sorted(self._intervals_ns)[(len(self._intervals_ns) - 1) // 3]
        refreshes = [interval_ns for interval_ns in self._intervals_ns if lower <= 2 * interval_ns < 4 * lower]
        if len(refreshes) >= FEWEST_REFRESHES:
            self.period_ns = round(statistics.fmean(refreshes))


class UtilizationBuffer(_Source):
    """Drains `nvmlDeviceGetSamples`; each sample keeps the driver's time stamp.

    The ring runs dry while a GPU idles, and some drivers have none: polled values then take its
    place, stamped with the refresh that they are from. Stamps are "CPU microseconds" of an
    undocumented origin, which is found from the stamps.
    """

    columns = ("utilization_pct", "memory_utilization_pct")

    def __init__(self, gate: Gate, gpu: NvmlGpu, key: str, store: Store, clock: Clock) -> None:
        super().__init__(gate, gpu, key)
        self._store = store
        self._clock = clock
        self._last_us = [0, 0]  # newest stamp of each column, the driver's µs
        self._since_ns = clock.now()  # older samples are not part of this recording
        self._newest_ns = self._since_ns
        self._has_samples = False  # the ring has had a sample
        self._intervals_ns: deque[int] = deque(maxlen=64)  # ns between the ring's samples
        self._refreshes = Refreshes()
        self._polled_rows: list[tuple[int, Sequence[float]]] = []  # polled since the ring's newest sample

    def poll(self, time_ns: int, polled: Sequence[float]) -> None:
        """Take (utilization, memory utilization) in % of this tick, for where the driver's buffer has no samples.

        Args:
            time_ns: on the recording's clock.
            polled: NaN = no answer.
        """
        if polled[0] != polled[0]:  # no answer (NaN)
            return
        absent = self._gate.lacks("nvmlDeviceGetSamples", self._key)
        dry = absent or time_ns - self._newest_ns > 2 * BUFFER_S * 1e9  # no sample of the ring for two reads
        self._polled_rows += self._refreshes.rows(time_ns, polled)
        if dry:
            for stamp_ns, values in self._polled_rows:
                if stamp_ns >= self._newest_ns:
                    self._store.add(self._key + "/utilization", self.columns, stamp_ns, list(values))
            self._polled_rows.clear()

    def read(self) -> None:
        """Drain the ring into the store; polled values of that time are dropped."""
        rows: dict[int, list[float]] = {}
        for column, kind in enumerate((_GPU_UTIL, _MEMORY_UTIL)):
            for stamp_us, value in self._drain(column, kind):
                rows.setdefault(stamp_us, [NAN, NAN])[column] = value
        group = self._key + "/utilization"
        offset_ns = origin_ns(max(rows)) if rows else 0
        for stamp_us in sorted(rows):
            time_ns = self._clock.from_wall(stamp_us * 1000 + offset_ns)
            if time_ns >= self._since_ns:
                if self._has_samples and rows[stamp_us][0] == rows[stamp_us][0]:
                    self._intervals_ns.append(time_ns - self._newest_ns)
                self._has_samples = True
                self._newest_ns = max(self._newest_ns, time_ns)
                self._store.add(group, self.columns, time_ns, rows[stamp_us])
        # What was polled of a time that the ring has samples of.
        self._polled_rows = [row for row in self._polled_rows if row[0] >= self._newest_ns]
        if any(row[0] == row[0] for row in rows.values()):  # utilization is known (not NaN)
            self._name_polled()

    @property
    def refresh_ns(self) -> int | None:
        """Time between two refreshes of utilization, which each is the mean of; None: not seen."""
        if len(self._intervals_ns) >= FEWEST_REFRESHES:
            return round(statistics.median(self._intervals_ns))
        return self._refreshes.period_ns

    def _name_polled(self) -> None:
        """Report only the polled values as missing where utilization cannot be polled but the ring has it."""
        memory, polled = self._gate.memory, "nvmlDeviceGetUtilizationRates"
        missing = memory.reason(polled, self._key)
        if missing is not None:
            memory.forget(polled, self._key)
            memory.note("polled utilization", self._key, missing["reason"], missing["cure"])

    def _drain(self, column: int, kind: int) -> list[tuple[int, float]]:
        """Return the buffer's new readings as (driver's stamp in µs, %), NaN for an impossible one.

        Args:
            column: 0 = utilization, 1 = memory utilization.
            kind: NVML's number of that buffer.
        """
        last = self._last_us[column]
        answer = self._gate.ask(
            "nvmlDeviceGetSamples",
            self._gpu.handle,
            kind,
            last,
            gpu=self._key,
            name=("nvmlDeviceGetSamples", "nvmlDeviceGetSamples/memory")[column],
        )
        if answer is None:
            return []
        value_type, samples = answer
        member = VALUE_MEMBERS.get(value_type, "uiVal")
        readings = []
        for sample in samples:
            stamp = int(sample.timeStamp)
            if stamp <= last:
                continue  # drivers have returned samples twice
            self._last_us[column] = max(self._last_us[column], stamp)
            value = float(getattr(sample.sampleValue, member))
            readings.append((stamp, value if 0 <= value <= 100 else NAN))
        return readings


# NVML's value types -> the member of its value union.
VALUE_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}


def origin_ns(stamp_us: int) -> int:
    """Return the offset (ns) from driver stamps (µs) to the wall clock: 0, or the time of boot.

    Some drivers count from the epoch, some from boot. Any other stamp is taken as the current time.
    """
    wall_ns = time.time_ns()
    if abs(wall_ns // 1000 - stamp_us) < _DAY_US:
        return 0
    boot_clock = getattr(time, "CLOCK_BOOTTIME", None)
    for clock in (boot_clock, getattr(time, "CLOCK_MONOTONIC", None)):
        if clock is not None:
            now_ns = time.clock_gettime_ns(clock)
            if abs(now_ns // 1000 - stamp_us) < min(_DAY_US, 60_000_000):
                return wall_ns - now_ns
    return wall_ns - stamp_us * 1000


_BATCH = "nvmlDeviceGetFieldValues"
_ALL_LINKS = 0xFFFFFFFF
_WRAP = 2**32
# No board draws more than this, nor one whose limit is known more than a few times that.
_MOST_MW, _OVER_LIMIT = 20e6, 4.0


@dataclass(frozen=True)
class Field:
    """One field of the batch.

    Attributes:
        id: NVML's.
        scope: NVML's; 0 = none.
        scale: value of one count in the column's unit (and per second, if cumulative).
        cumulative: a counter, of which the rate is recorded; else a gauge.
        wraps: it may begin again at 2**32.
        spans: its mean over a time without reads is of use.
    """

    id: int
    column: str
    scope: int = 0
    scale: float = 1.0
    cumulative: bool = True
    wraps: bool = False
    spans: bool = False

    @property
    def asked(self) -> int | tuple[int, int]:
        """The field as the driver's binding takes it."""
        return (self.id, self.scope) if self.scope else self.id


_NS_TO_PCT = 100e-9
FIELDS = (
    Field(197, "pcie_tx_bytes_per_s", wraps=True),
    Field(198, "pcie_rx_bytes_per_s", wraps=True),
    Field(269, "throttle_thermal_pct", scale=_NS_TO_PCT),  # software thermal slowdown, ns
    Field(270, "throttle_thermal_pct", scale=_NS_TO_PCT),  # hardware thermal slowdown
    Field(74, "throttle_power_pct", scale=_NS_TO_PCT),  # power cap
    Field(271, "throttle_power_pct", scale=_NS_TO_PCT),  # external power brake
    Field(76, "throttle_other_pct", scale=_NS_TO_PCT),  # sync boost
    Field(83, "power_energy_mw", wraps=True, spans=True),  # mJ a second
    Field(138, "nvlink_tx_bytes_per_s", _ALL_LINKS, 1024.0),
    Field(139, "nvlink_rx_bytes_per_s", _ALL_LINKS, 1024.0),
    Field(82, "memory_temperature_c", cumulative=False),
)

# Clock event reasons -> the column their share of time belongs to. Idle and clocks set by the user
# are not throttling.
REASON_COLUMNS = {
    0x20: "throttle_thermal_pct",
    0x40: "throttle_thermal_pct",
    0x4: "throttle_power_pct",
    0x80: "throttle_power_pct",
    0x10: "throttle_other_pct",
    0x200: "throttle_other_pct",
    0x400: "throttle_other_pct",
}
_HW_SLOWDOWN = 0x8  # thermal or power brake; the two bits that distinguish them are newer


class Counters(_Source):
    """Reads the batch into one row of `columns`; NaN where a counter is absent or was reset.

    A share of time comes from the driver's own nanosecond counters. Where it has none, or does not
    answer the batch, the share comes from the event reasons of each tick (0 or 100), whose mean
    over ticks estimates it, and PCIe traffic from the older call, once a second.
    """

    columns = (*dict.fromkeys(field.column for field in FIELDS), "event_reasons")

    def __init__(self, gate: Gate, gpu: NvmlGpu, key: str) -> None:
        super().__init__(gate, gpu, key)
        self._fields = list(FIELDS)
        self._last_counts: dict[Field, tuple[float, float]] = {}  # field -> (seconds, count)
        self._wrapped: set[Field] = set()  # seen to have begun again
        facts = gpu.facts
        lane = PCIE_LANE_BYTES_PER_S.get(facts.get("pcie_generation_max") or 0, 0.0)
        link_rate = lane * (facts.get("pcie_width_max") or 0)  # 0 = unknown
        limit_mw = max(facts.get("power_limit_mw") or 0, facts.get("power_default_mw") or 0)
        power_mw = _OVER_LIMIT * limit_mw or _MOST_MW
        # per second; 0 = not known
        self._highest_rates = {field: power_mw if field.spans else link_rate for field in FIELDS}
        self._batch_due_s = self._throughput_due_s = 0.0
        self._empty = [NAN] * len(self.columns)
        self._columns = {column: position for position, column in enumerate(self.columns)}
        # The binding's structures read attributes in Python; their descriptors do it in C.
        structure = gate.binding.c_nvmlFieldValue_t
        self._getters = [getattr(structure, name).__get__ for name in ("nvmlReturn", "timestamp", "valueType", "value")]
        self._prepare()

    def read(self, now_s: float) -> list[float]:
        """Return float[len(columns)]: traffic at each call, the other counters once in `BATCH_S`, else NaN.

        Args:
            now_s: `time.perf_counter()`; infinite at the end: all are read.
        """
        row = self._empty[:]
        uncounted = self._uncounted
        fields = self._traffic
        if now_s >= self._batch_due_s:
            self._batch_due_s = now_s + BATCH_S
            fields = self._fields
        if fields:
            answer = self._gate.ask(_BATCH, self._gpu.board, [field.asked for field in fields], gpu=self._key)
            if answer is None:
                # A gap: no rate over an unobserved interval, but all of its energy.
                self._last_counts = {field: count for field, count in self._last_counts.items() if field.spans}
                uncounted = list(_SHARES)
                if self._gate.lacks(_BATCH, self._key):
                    self._drop_all()
            else:
                self._account(fields, answer, row)
        self._reasons(row, uncounted)
        self._throughput(row)
        return row

    @property
    def wraps(self) -> bool:
        """True if this driver's PCIe counters were seen to wrap and need frequent reads."""
        return any(not field.spans for field in self._wrapped)

    def _prepare(self) -> None:
        """Set the lists that depend on the remaining fields: traffic, and columns that no field counts."""
        # Counters of traffic may wrap within a second, and are cheap to read.
        self._traffic = [field for field in self._fields if field.wraps and not field.spans]
        counted = {field.column for field in self._fields}
        self._uncounted = [column for column in _SHARES if column not in counted]
        self._unmetered = [column for column in _THROUGHPUT if column not in counted]

    def _account(self, fields: Sequence["Field"], answer: Answer, row: list[float]) -> None:
        """Put each field's answer into `row`: gauges as they are, counters as rates since the last reading.

        Fields of one column add up. A field that this GPU does not have is dropped.
        """
        now_s = time.perf_counter()
        get_code, get_time, get_type, get_value = self._getters
        dropped = []
        for field, value in zip(fields, answer, strict=True):
            position = self._columns[field.column]
            code = get_code(value)
            if code != 0:
                dropped.append((field, int(code)))
                continue
            count = float(getattr(get_value(value), VALUE_MEMBERS.get(get_type(value), "ullVal")))
            if not field.cumulative:
                row[position] = count
                continue
            rate = self._rate(field, get_time(value) / 1e6 or now_s, count)
            if rate == rate:  # known (not NaN)
                earlier_sum = row[position]
                row[position] = rate if earlier_sum != earlier_sum else earlier_sum + rate
        for column in _SHARES:
            if row[self._columns[column]] > 100:
                row[self._columns[column]] = 100.0  # two causes at once
        for field, code in dropped:
            self._drop(field, code)

    def _rate(self, field: Field, at_s: float, count: float) -> float:
        """Return a counter's growth per second in its column's unit; NaN for the first reading, or after a reset.

        Args:
            at_s: when it was read, by one clock.
        """
        before = self._last_counts.get(field)
        self._last_counts[field] = (at_s, count)
        if before is None or at_s <= before[0]:
            return NAN
        seconds = at_s - before[0]
        growth = count - before[1]
        if growth < 0:  # it has begun again at 2**32, or was reset
            highest = self._highest_rates[field]  # in one second; 0 = not known
            growth += _WRAP
            if not field.wraps or before[1] >= _WRAP or (highest and growth / seconds > 1.1 * highest):
                return NAN  # the driver was reloaded: the counter was reset
            self._wrapped.add(field)
        if field in self._wrapped and self._highest_rates[field] * seconds >= _WRAP:
            return NAN  # it may have wrapped more than once between two reads
        return growth / seconds * field.scale

    def _drop(self, field: Field, code: int) -> None:
        """Drop a field that this GPU does not have, by NVML's return code.

        Report it unless another field has its column.
        """
        self._last_counts.pop(field, None)
        if code in NO_NEW_VALUE or code not in OFF:
            return
        self._fields.remove(field)
        self._prepare()
        # A lone GPU has no other to be linked to: nothing is missing.
        no_links = code == NOT_SUPPORTED and field.scope == _ALL_LINKS
        if no_links and self._gate.ask("nvmlDeviceGetCount") == 1:
            return
        if all(other.column != field.column for other in self._fields):
            self._name_missing(field.column, *_gate.explain(code))

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
        """Put the PCIe traffic of the last 20 ms into `row` where no counter has it; each query takes as long."""
        now_s = time.perf_counter()
        if not self._unmetered or now_s < self._throughput_due_s:
            return
        self._throughput_due_s = now_s + _THROUGHPUT_S
        for column in self._unmetered:
            name = f"{_PCIE}/{column}"
            rate = self._gate.ask(_PCIE, self._gpu.board, _THROUGHPUT[column], gpu=self._key, name=name)
            if rate is not None:
                row[self._columns[column]] = 1024.0 * rate  # the driver's KiB/s as bytes/s
                self._gate.memory.forget(column, self._key)
            elif self._gate.lacks(name, self._key):
                self._gate.memory.forget(name, self._key)  # the counter's own reason is better

    def _reasons(self, row: list[float], uncounted: list[str]) -> None:
        """Put the event reasons into `row`: the bits, and 100 or 0 in the columns without a counter of time.

        Args:
            uncounted: these columns.
        """
        questions = [(symbol, self._gpu.board) for symbol in REASON_CALLS]
        bits = self._gate.first_of(*questions, gpu=self._key)
        if bits is None:
            return
        row[-1] = float(bits)
        for column in uncounted:
            is_reason = any(bits & bit for bit, owner in REASON_COLUMNS.items() if owner == column)
            # a slowdown of the hardware whose cause the driver does not give
            unnamed = column == "throttle_other_pct" and bits & _HW_SLOWDOWN and not bits & 0xC0
            row[self._columns[column]] = 100.0 if is_reason or unnamed else 0.0


_PCIE = "nvmlDeviceGetPcieThroughput"
_THROUGHPUT = {"pcie_tx_bytes_per_s": 0, "pcie_rx_bytes_per_s": 1}  # column -> argument of the call
_THROUGHPUT_S = 1.0  # between two queries, each of which takes the 20 ms that it measures
_SHARES = ("throttle_thermal_pct", "throttle_power_pct", "throttle_other_pct")
REASON_CALLS = (
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",  # its name before driver 535
)


_MIB = float(1 << 20)
# The driver refreshes its counters every 100 ms: closer samples hold no difference.
_APART_NS = 110_000_000
_TOO_OLD_NS = 10_000_000_000  # after a gap this long (a lost GPU, a stopped process) a mean over it says little

# metric id -> (column, value of one unit)
METRICS: dict[int, tuple[str, float]] = {
    2: ("sm_active_pct", 1.0),
    3: ("sm_occupancy_pct", 1.0),
    5: ("tensor_active_pct", 1.0),
    10: ("dram_active_pct", 1.0),
    11: ("fp64_active_pct", 1.0),
    12: ("fp32_active_pct", 1.0),
    13: ("fp16_active_pct", 1.0),
    20: ("pcie_tx_bytes_per_s", _MIB),
    21: ("pcie_rx_bytes_per_s", _MIB),
    60: ("nvlink_rx_bytes_per_s", _MIB),
    61: ("nvlink_tx_bytes_per_s", _MIB),
}


class Gpm(_Source):
    """One row per interval between two chained samples, stamped at the interval's end.

    GPM support is queried, not inferred from the GPU's name. The first interval of a run and the
    first after a gap have no row.
    """

    columns = tuple(column for column, _ in METRICS.values())

    def __init__(self, gate: Gate, gpu: NvmlGpu, key: str, store: Store, clock: Clock) -> None:
        super().__init__(gate, gpu, key)
        self._store = store
        self._clock = clock
        self._metrics = list(METRICS)
        self._samples: list[object] | None = None  # (older, newer), swapped at each read; None = not allocated
        self._request: Answer = None
        self._taken_ns: int | None = None  # when the older of the pair was taken
        self.supported = self._probe()

    def read(self) -> None:
        """Take a sample when the last one is old enough, and store the difference between both."""
        if not self.supported or not self._ready():
            return
        time_ns = self._clock.now()
        if self._taken_ns is not None and time_ns - self._taken_ns < _APART_NS:
            return
        older, newer = self._samples  # type: ignore[misc]
        if not self._take_sample(newer):  # refused: a new chain begins
            self._taken_ns = None
            return
        chained = self._taken_ns is not None and time_ns - self._taken_ns < _TOO_OLD_NS
        self._taken_ns = time_ns
        self._samples = [newer, older]
        if chained:
            row = self._values(older, newer)
            if row is not None:
                self._store.add(self._key + "/gpm", self.columns, time_ns, row)

    def close(self) -> None:
        """Give the samples back to the driver's library."""
        for sample in self._samples or ():
            self._gate.ask("nvmlGpmSampleFree", sample, gpu=self._key)
        self._samples = None
        self.supported = False

    def _probe(self) -> bool:
        """Return whether this GPU has GPM; switched off for good where the driver says that it has not."""
        ask, key = self._gate.ask, self._key
        answer = ask("nvmlGpmQueryDeviceSupport", self._gpu.board, gpu=key)
        if answer is None:
            return False
        if not answer.isSupportedDevice:
            self._gate.memory.off("nvmlGpmQueryDeviceSupport", key, *_gate.NO_GPM)
            return False
        return True

    def _ready(self) -> bool:
        """Return whether both samples of the driver are allocated, which is done at the first call."""
        if self._samples is not None:
            return True
        pair = [self._gate.ask("nvmlGpmSampleAlloc", gpu=self._key) for _ in range(2)]
        if any(sample is None for sample in pair):
            for sample in pair:
                if sample is not None:
                    self._gate.ask("nvmlGpmSampleFree", sample, gpu=self._key)
            return False
        self._samples = pair
        # The binding knows the size of its own structure, which differs between its versions.
        self._request = self._gate.binding.c_nvmlGpmMetricsGet_t()
        self._request.version = self._gate.binding.NVML_GPM_METRICS_GET_VERSION
        return True

    def _take_sample(self, sample: object) -> bool:
        """Have the driver fill a sample of GPM's counters; return False if it refused."""
        gpu, key = self._gpu, self._key
        if gpu.mig and gpu.gi is not None:
            return self._gate.ask("nvmlGpmMigSampleGet", gpu.board, gpu.gi, sample, gpu=key) is not None
        return self._gate.ask("nvmlGpmSampleGet", gpu.handle, sample, gpu=key) is not None

    def _values(self, older: object, newer: object) -> list[float] | None:
        """Return the metrics between two samples, in the columns' units, NaN = unknown; None if all are."""
        request = self._request
        request.sample1, request.sample2 = older, newer
        request.numMetrics = len(self._metrics)
        for i, metric in enumerate(self._metrics):
            request.metrics[i].metricId = metric
        if self._gate.ask("nvmlGpmMetricsGet", request, gpu=self._key) is None:
            return None
        row = dict.fromkeys(self.columns, NAN)
        for i, metric in enumerate(tuple(self._metrics)):
            answer = request.metrics[i]
            column, unit = METRICS[metric]
            if answer.nvmlReturn == 0:
                row[column] = _sane(answer.value, column) * unit
            elif answer.nvmlReturn not in NO_NEW_VALUE and answer.nvmlReturn in OFF:
                self._metrics.remove(metric)
                reason, cure = _gate.explain(int(answer.nvmlReturn))
                self._gate.memory.note(f"{column} (GPM)", self._key, reason, cure)
        values = list(row.values())
        return values if any(value == value for value in values) else None


# By unit: the smallest and largest value of a GPU that runs. Drivers answer 0 or -1 for what a virtual GPU lacks.
_POSSIBLE = {"pct": (0.0, 101.0), "mw": (1.0, 1e8), "c": (1.0, 200.0), "mhz": (1.0, 1e5)}


def _sane(value: float, column: str) -> float:
    """Return a reading (at most 100 for a share), or NaN where the value is impossible for the column's unit."""
    unit = column.rpartition("_")[2]
    lowest, highest = _POSSIBLE.get(unit, (0.0, math.inf))
    return min(value, 100.0 if unit == "pct" else value) if lowest <= value <= highest else NAN


_SM_CLOCK = 1
_VOLATILE = 0  # since the last reboot; aggregate counts survive a repair
_XID = 0x8


class Health(_Source):
    """One row of `columns`, NaN where the driver has no answer."""

    # An idle link that saves power shows a low generation.
    _CALLS: Mapping[str, tuple[Any, ...]] = {
        "power_limit_mw": ("nvmlDeviceGetEnforcedPowerLimit",),
        "sm_clock_max_mhz": ("nvmlDeviceGetMaxClockInfo", _SM_CLOCK),
        "pcie_generation": ("nvmlDeviceGetCurrPcieLinkGeneration",),
        "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth",),
        "ecc_corrected": ("nvmlDeviceGetTotalEccErrors", 0, _VOLATILE),
        "ecc_uncorrected": ("nvmlDeviceGetTotalEccErrors", 1, _VOLATILE),
    }
    columns = tuple(_CALLS)

    def read(self) -> list[float]:
        """Return [float] * len(columns)."""
        return [self._value(column, *call) for column, call in self._CALLS.items()]

    def _value(self, column: str, symbol: str, *args: object) -> float:
        name = f"{symbol}/{column}"
        return self._possible(self._gate.ask(symbol, self._gpu.board, *args, gpu=self._key, name=name), column, name)


class XidWatch:
    """Critical errors (Xid) of all GPUs, each a row of group "gpu<i>/xid"."""

    columns = ("xid",)

    def __init__(self, gate: Gate, gpus: dict[str, NvmlGpu], store: Store, clock: Clock) -> None:
        self._gate = gate
        self._gpus = gpus
        self._store = store
        self._clock = clock
        self._set = gate.ask("nvmlEventSetCreate")
        self._watched = False
        if self._set is not None:
            for key, gpu in gpus.items():
                gate.ask("nvmlDeviceRegisterEvents", gpu.board, _XID, self._set, gpu=key)
                registered = ("nvmlDeviceRegisterEvents", key) not in gate.memory.blocked
                self._watched |= registered

    def read(self) -> None:
        """Store the errors since the last read, without waiting for one."""
        for _ in range(16 if self._watched else 0):
            event = self._gate.ask("nvmlEventSetWait_v2", self._set, 1)
            if event is None:
                return
            if event.eventType == _XID:
                self._mark(event)

    def close(self) -> None:
        """Release the event set."""
        if self._set is not None:
            self._gate.ask("nvmlEventSetFree", self._set)
            self._set, self._watched = None, False

    def _mark(self, event: Answer) -> None:
        """Store a row with an error's number (Xid) for each sampled GPU on the event's board."""
        address = _address(event.device)
        for key, gpu in self._gpus.items():
            if _address(gpu.board) == address:
                row = [float(event.eventData)]
                self._store.add(key + "/xid", self.columns, self._clock.now(), row)


def _address(handle: Answer) -> int:
    import ctypes

    return ctypes.cast(handle, ctypes.c_void_p).value or 0


# Linux gives the machine's first pid namespace this inode number (PROC_PID_INIT_INO).
_FIRST_NAMESPACE = 0xEFFFFFFC
_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
)
_FOREIGN = "process ids"
# A framework creates its CUDA context within seconds of its first use of a GPU.
_PATIENCE = 10  # reads


@functools.cache
def host_pids() -> bool:
    """Return True if we are in the first pid namespace: our process ids are the machine's own."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _FIRST_NAMESPACE
    except OSError:
        return True  # no namespaces here (or not Linux)


def descends(pid: int, ancestor: int) -> bool:
    """Return whether a process is another one, or a child of it at any depth."""
    if pid == ancestor:
        return True
    try:
        import psutil

        return any(parent.pid == ancestor for parent in psutil.Process(pid).parents())
    except Exception:  # it is gone, or of another namespace
        return False


class Processes(_Source):
    """One row of `columns`; NaN where the driver cannot attribute usage.

    What our own children use, workers that open the GPU, is ours.

    Usage is attributed to other processes only after this process was seen in the list under its
    own id: in containers drivers report the host's ids (all of them before R530, the utilization's
    in newer ones as well), and sandboxes have their own ids. Where only the utilization's ids are
    foreign, `utilization_other_pct` is the minimum that others can have: at most one id is ours.

    Args:
        expected: True if the framework of this process uses the GPU, so that the driver has to list
            the process.
    """

    columns = (
        "memory_process_bytes",
        "memory_other_bytes",
        "processes_other",
        "utilization_process_pct",
        "utilization_other_pct",
    )

    def __init__(self, gate: Gate, gpu: NvmlGpu, key: str, expected: bool = False) -> None:
        super().__init__(gate, gpu, key)
        self._own_pid = os.getpid()
        self._expected = expected
        self._in_memory_list = False  # we were seen in a list, under our own id
        self._in_utilization = False  # and among the utilization's samples
        self._ours: dict[int, bool] = {}  # by process id: whether it is this process or its child
        self._reads = 0

    def read(self) -> list[float]:
        """Return float[len(columns)]; NaN where usage cannot be attributed."""
        memory_by_pid = self._memory()
        if memory_by_pid is None:
            return [NAN] * len(self.columns)
        self._reads += 1
        self._in_memory_list = self._in_memory_list or self._names_us(memory_by_pid)
        sampled = self._utilization()
        if self._own_pid in sampled:
            self._in_utilization = self._in_utilization or self._names_us({**memory_by_pid, **sampled})
        return [*self._memory_by_owner(memory_by_pid), *self._utilization_by_owner(sampled, memory_by_pid)]

    def _names_us(self, pids: Mapping[int, float]) -> bool:
        """Return whether these ids are of our namespace: ours is among them, and all exist here."""
        if self._own_pid not in pids:
            return False
        # In a container our id may by chance equal that of a process on the host; that all others
        # exist here as well is no coincidence.
        return host_pids() or all(Path(f"/proc/{pid}").exists() for pid in pids)

    def _memory_by_owner(self, memory_by_pid: Mapping[int, float]) -> list[float]:
        """Return the memory in bytes of this process's tree and of others, and how many others; NaN = unknown.

        Args:
            memory_by_pid: bytes, as the driver lists them.
        """
        # ids that may not be ours: nothing can be attributed
        if not self._in_memory_list and (self._expected or not host_pids()):
            if memory_by_pid and not host_pids():
                self._gate.memory.note(_FOREIGN, self._key, *_gate.HOST_PIDS)
            elif self._expected and self._reads > _PATIENCE:
                self._gate.memory.note(_FOREIGN, self._key, *_gate.NOT_LISTED)
            return [NAN] * 3
        self._gate.memory.forget(_FOREIGN, self._key)
        is_ours = self._descent(memory_by_pid)
        our_bytes = [used for pid, used in memory_by_pid.items() if is_ours[pid]]
        other_bytes = [used for pid, used in memory_by_pid.items() if not is_ours[pid]]
        return [sum(our_bytes), sum(other_bytes), float(len(other_bytes))]

    def _descent(self, pids: Iterable[int]) -> dict[int, bool]:
        """Return whether each process is this one or descends from it; each is looked up once."""
        self._ours = {pid: self._ours[pid] if pid in self._ours else descends(pid, self._own_pid) for pid in pids}
        return self._ours

    def _utilization_by_owner(self, sampled: Mapping[int, int], memory_by_pid: Mapping[int, float]) -> list[float]:
        """Return the GPU use in percent of this process's tree and of others; NaN = unknown.

        Args:
            sampled: % by process id, as the driver reports.
        """
        if not sampled:
            return [NAN, NAN]
        is_ours = self._descent({**memory_by_pid, **sampled})
        our_pct = sum(use for pid, use in sampled.items() if is_ours[pid])
        other_pct = sum(sampled.values()) - our_pct
        ids_are_ours = self._in_utilization or (host_pids() and (self._in_memory_list or not self._expected))
        if ids_are_ours:
            return [min(float(our_pct), 100.0), min(float(other_pct), 100.0)]
        # Foreign ids: one of them may be this process, at most the busiest.
        least = sum(sampled.values()) - max(sampled.values())
        return [NAN, min(float(least), 100.0) if len(sampled) > 1 else NAN]

    def _memory(self) -> dict[int, float] | None:
        """Return pid -> bytes (NaN: not reported by the driver), or None without any list."""
        memory_by_pid: dict[int, float] = {}
        answered = False
        limit = self._gpu.facts.get("memory_total_bytes") or float("inf")
        for symbol in _LISTS:
            listed = self._list(symbol)
            answered |= listed is not None
            for process in listed or ():
                used = process.usedGpuMemory
                # R535.43 to 535.86 changed this structure without a new version.
                if not 0 < process.pid < 1 << 31 or (used is not None and used > limit):
                    continue
                # A CUDA context holds memory: in containers some drivers report 0 for unknown.
                value = float(used) if used else NAN
                earlier = memory_by_pid.get(process.pid)
                memory_by_pid[process.pid] = value if earlier is None or earlier != earlier else max(earlier, value)
        return memory_by_pid if answered else None

    def _list(self, symbol: str) -> list[Answer] | None:
        """Return the driver's list of processes of one kind; None if it gives none."""
        if symbol == _LISTS[0]:
            return self._gate.ask(symbol, self._gpu.handle, gpu=self._key)
        # Few GPUs have graphics or MPS clients: nothing is missing.
        return self._gate.ask_quietly(symbol, self._gpu.handle, gpu=self._key)

    def _utilization(self) -> dict[int, int]:
        """Return the newest SM utilization in percent by process id; {} without any."""
        since_us = time.time_ns() // 1000 - 1_000_000  # 0 would average the whole buffer
        samples = self._gate.ask("nvmlDeviceGetProcessUtilization", self._gpu.handle, since_us, gpu=self._key)
        latest: dict[int, tuple[int, int]] = {}
        for sample in samples or ():
            if 0 < sample.pid < 1 << 31 and sample.smUtil <= 100:  # bogus records have been seen
                latest[sample.pid] = max(latest.get(sample.pid, (0, 0)), (int(sample.timeStamp), int(sample.smUtil)))
        return {pid: value for pid, (_, value) in latest.items()}


_CORE_SENSOR = 0
_POWER_INSTANT = 186  # a field, mW


class GpuGauges(_Source):
    """One row of `columns` per tick, NaN where the driver has no answer.

    Memory and processes are a MIG device's own; power, temperature and clocks are its board's.
    Power is the driver's instantaneous reading where it has one: its other one is a mean over the
    last second on GeForce and on most GPUs since Ampere.
    """

    columns = (
        "utilization_pct",
        "memory_utilization_pct",
        "memory_used_bytes",
        "memory_reserved_bytes",
        "power_mw",
        "temperature_c",
        "sm_clock_mhz",
    )

    def __init__(self, gate: Gate, gpu: NvmlGpu, key: str) -> None:
        super().__init__(gate, gpu, key)
        self.instant: bool | None = None  # the driver has instantaneous power; None: not known yet

    def read(self) -> list[float]:
        """Return the row: [float] * len(columns)."""
        ask, key, board = self._gate.ask, self._key, self._gpu.board
        rates = ask("nvmlDeviceGetUtilizationRates", self._gpu.handle, gpu=key)
        used, reserved = self._memory()
        clock = ask("nvmlDeviceGetClockInfo", board, _SM_CLOCK, gpu=key)
        return [
            NAN if rates is None else _sane(float(rates.gpu), "utilization_pct"),
            NAN if rates is None else _sane(float(rates.memory), "memory_utilization_pct"),
            used,
            reserved,
            self._possible(self._power(), "power_mw", "nvmlDeviceGetPowerUsage"),
            self._possible(self._temperature(), "temperature_c", "nvmlDeviceGetTemperature"),
            self._possible(clock, "sm_clock_mhz", "nvmlDeviceGetClockInfo"),
        ]

    def _memory(self) -> tuple[float, float]:
        """Return (used, reserved by the driver) memory in bytes; NaN where unknown, or where it is the machine's."""
        if self._gpu.facts.get("unified_memory"):
            self._gate.memory.note("nvmlDeviceGetMemoryInfo", self._key, *_gate.UNIFIED)
            return NAN, NAN
        memory = memory_of(self._gate, self._gpu.handle, self._key)
        if memory is None:
            return NAN, NAN
        used = memory.used if memory.used <= memory.total > 0 else NAN  # bogus answers have been seen
        return self._possible(used, "memory_used_bytes", "nvmlDeviceGetMemoryInfo"), float(memory.reserved)

    def _power(self) -> Answer:
        """Return milliwatts, at this moment where the driver has that; None without an answer."""
        if self.instant is not False:
            power = self._instant_power()
            if self.instant:
                return power
        return self._gate.ask("nvmlDeviceGetPowerUsage", self._gpu.board, gpu=self._key)

    def _instant_power(self) -> Answer:
        """Return the power at this moment in mW; None without an answer. Sets `instant` once that is known."""
        name = f"{_BATCH}/power"
        answer = self._gate.ask(_BATCH, self._gpu.board, [_POWER_INSTANT], gpu=self._key, name=name)
        if answer is None:
            if self._gate.lacks(name, self._key):
                self.instant = False
            self._gate.memory.forget(name, self._key)  # nothing is missing
            return None
        code = answer[0].nvmlReturn
        if code == 0:
            self.instant = True
            return float(getattr(answer[0].value, VALUE_MEMBERS.get(answer[0].valueType, "uiVal")))
        if code in OFF and code not in NO_NEW_VALUE:
            self.instant = False
        return None

    def _temperature(self) -> Answer:
        """Return the core's temperature in °C, None if unknown."""
        return self._gate.first_of(
            ("nvmlDeviceGetTemperatureV", self._gpu.board, _CORE_SENSOR),
            ("nvmlDeviceGetTemperature", self._gpu.board, _CORE_SENSOR),  # drivers before 570
            gpu=self._key,
        )


# Seconds between reads of values that are slow to query or to change; the rest: every tick. On an
# H200 the batch of counters takes 5 ms of CPU, the buffer's two queries 4 ms, the processes 2, GPM and
# the event reasons 0.1.
BUFFER_S, GPM_S, REASONS_S, BATCH_S, PROCESSES_S, HEALTH_S = 1.0, 0.18, 0.18, 1.0, 1.0, 10.0
_NO_COUNTERS, _NO_PROCESSES, _NO_HEALTH = ([NAN] * len(kind.columns) for kind in (Counters, Processes, Health))


class GpuReader:
    """Reads one GPU into the store: groups "gpu<i>", "gpu<i>/utilization", "gpu<i>/gpm".

    In "gpu<i>" a column that is read less often than every tick is NaN in between. A GPU that is
    lost has no rows until it is back; group "gpu<i>/lost" holds a 1 when it went and a 0 when it
    came back.

    Args:
        expected: True if the framework of this process uses the GPU.
    """

    columns = (*GpuGauges.columns, *Counters.columns, *Processes.columns, *Health.columns)

    def __init__(
        self, gate: Gate, gpu: NvmlGpu, index: int, store: Store, clock: Clock, expected: bool = False
    ) -> None:
        self.key = f"gpu{index}"
        self.index = index
        self.gpu = gpu
        self._gate = gate
        self._store = store
        self._clock = clock
        self._expected = expected
        self._lost = False
        self._due = [0.0] * 5  # perf seconds at which each of the readings with a period is due
        self._open()

    def renewed(self, gate: Gate) -> "GpuReader":
        """Return a reader of the same GPU for another thread's gate."""
        return GpuReader(gate, self.gpu, self.index, self._store, self._clock, self._expected)

    @property
    def facts(self) -> dict[str, object]:
        """Facts about this GPU's readings that the run has shown, for the manifest."""
        refresh_ns, instant = self._buffer.refresh_ns, self._gauges.instant
        facts: dict[str, object] = {} if instant is None else {"power_instant": instant}
        return facts | ({"utilization_refresh_ms": round(refresh_ns / 1e6)} if refresh_ns else {})

    def read(self, now_s: float) -> None:
        """Read whatever is due, and store a row, or none while the GPU is lost.

        Args:
            now_s: `time.perf_counter()`; infinite at the end: all is due.
        """
        memory = self._gate.memory
        retry_at = memory.gone.get(self.key)
        if retry_at is not None:  # it is lost: is it back?
            self._mark(True)
            if now_s < retry_at or not find_again(self._gate, self.gpu, self.key):
                return
            memory.recovered(self.key)
            self._mark(False)
            self._gpm.close()
            self._open()
        time_ns = self._clock.now()
        gauges = self._gauges.read()
        if self._is_due(0, now_s, BUFFER_S):
            self._buffer.read()
        self._buffer.poll(time_ns, gauges[:2])
        # Read a wrapping counter before it can have wrapped twice.
        pause_s = 0.0 if self._counters.wraps else REASONS_S
        counters = self._counters.read(now_s) if self._is_due(4, now_s, pause_s) else _NO_COUNTERS
        if self._is_due(1, now_s, GPM_S):
            self._gpm.read()
        processes = self._processes.read() if self._is_due(2, now_s, PROCESSES_S) else _NO_PROCESSES
        health = self._health.read() if self._is_due(3, now_s, HEALTH_S) else _NO_HEALTH
        if self.key in memory.gone:
            self._mark(True)  # discard the incomplete row
        else:
            self._store.add(self.key, self.columns, time_ns, gauges + counters + processes + health)

    def close(self) -> None:
        """Drain the last samples and release what the driver's library holds for us."""
        if self.key not in self._gate.memory.gone:
            self._buffer.read()
        self._gpm.close()

    def _open(self) -> None:
        """Make the readers of each kind of values, with nothing kept of earlier readings."""
        gate, gpu, key = self._gate, self.gpu, self.key
        self._gauges = GpuGauges(gate, gpu, key)
        self._buffer = UtilizationBuffer(gate, gpu, key, self._store, self._clock)
        self._counters = Counters(gate, gpu, key)
        self._gpm = Gpm(gate, gpu, key, self._store, self._clock)
        self._processes = Processes(gate, gpu, key, self._expected)
        self._health = Health(gate, gpu, key)

    def _is_due(self, reading: int, now_s: float, period_s: float) -> bool:
        """Return True if a reading is due; its next one is due a period later."""
        if now_s < self._due[reading]:
            return False
        self._due[reading] = now_s + period_s
        return True

    def _mark(self, lost: bool) -> None:
        if lost != self._lost:
            self._lost = lost
            self._store.add(self.key + "/lost", ("lost",), self._clock.now(), [float(lost)])
