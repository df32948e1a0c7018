"""Utilization at the driver's own resolution: its ring of samples, drained."""

import time
from collections.abc import Sequence

from gpu_util_callback.gpus._devices import NvmlGpu
from gpu_util_callback.gpus._gate import Gate
from gpu_util_callback.gpus._store import Store
from gpu_util_callback.recording.clock import Clock

__all__ = ["UtilizationBuffer"]

NAN = float("nan")
_GPU_UTIL, _MEMORY_UTIL = 1, 2
_DAY_US = 86_400 * 1_000_000
_DRY_AFTER_NS = 1_000_000_000


class UtilizationBuffer:
    """Drains `nvmlDeviceGetSamples`; each sample keeps the driver's time stamp.

    The ring runs dry while a GPU idles; the polled value then takes its place, stamped with its own
    time. Stamps are "CPU microseconds" of an undocumented origin, which is found from the stamps.
    """

    columns = ("utilization_pct", "memory_utilization_pct")

    def __init__(self, gate: Gate, gpu: NvmlGpu, key: str, store: Store, clock: Clock) -> None:
        self._gate = gate
        self._gpu = gpu
        self._key = key
        self._store = store
        self._clock = clock
        self._last_us = [0, 0]
        self._since_ns = clock.now()  # older samples are not part of this recording
        self._newest_ns = self._since_ns
        self._ever = False

    def read(self, polled: Sequence[float]) -> None:
        """Drain the ring; `polled` is (utilization, memory utilization) of this tick."""
        rows: dict[int, list[float]] = {}
        for column, kind in enumerate((_GPU_UTIL, _MEMORY_UTIL)):
            for stamp_us, value in self._drain(column, kind):
                rows.setdefault(stamp_us, [NAN, NAN])[column] = value
        group = self._key + "/utilization"
        offset_ns = origin_ns(max(rows)) if rows else 0
        for stamp_us in sorted(rows):
            time_ns = self._clock.from_wall(stamp_us * 1000 + offset_ns)
            if time_ns >= self._since_ns:
                self._ever = True
                self._newest_ns = max(self._newest_ns, time_ns)
                self._store.add(group, self.columns, time_ns, rows[stamp_us])
        if any(row[0] == row[0] for row in rows.values()):
            self._name_polled()
        now_ns = self._clock.now()
        if polled[0] == polled[0] and now_ns - self._newest_ns > _DRY_AFTER_NS:
            self._store.add(group, self.columns, now_ns, list(polled))

    def _name_polled(self) -> None:
        """Report what is really missing where utilization cannot be polled but the ring has it."""
        memory, polled = self._gate.memory, "nvmlDeviceGetUtilizationRates"
        missing = memory.reason(polled, self._key)
        if missing is not None:
            memory.forget(polled, self._key)
            memory.note("polled utilization", self._key, missing["reason"], missing["cure"])

    @property
    def latest(self) -> bool:
        """True if the driver keeps such a ring for this GPU."""
        return self._ever

    def _drain(self, column: int, kind: int) -> list[tuple[int, float]]:
        last = self._last_us[column]
        answer = self._gate.ask(
            "nvmlDeviceGetSamples", self._gpu.handle, kind, last, gpu=self._key,
            name=("nvmlDeviceGetSamples", "nvmlDeviceGetSamples/memory")[column],
        )  # fmt: skip
        if answer is None:
            return []
        value_type, samples = answer
        member = VALUE_MEMBERS.get(value_type, "uiVal")
        found = []
        for sample in samples:
            stamp = int(sample.timeStamp)
            if stamp <= last:
                continue  # drivers have returned samples twice
            self._last_us[column] = max(self._last_us[column], stamp)
            value = float(getattr(sample.sampleValue, member))
            found.append((stamp, value if 0 <= value <= 100 else NAN))
        return found


# NVML's value types -> the member of its value union.
VALUE_MEMBERS = {
    0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal",
}  # fmt: skip


def origin_ns(stamp_us: int) -> int:
    """Return the offset (ns) from driver stamps to the wall clock: 0, or the time of boot.

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
