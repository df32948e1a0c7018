"""The clock is read ten times as often as the counters of throttled time."""

import numpy as np
import pytest
from generated_runs import GPU, Generated

BOARD = GPU | {"sm_clock_max_mhz": 1980}
HZ = 10


class ReadOnceASecond(Generated):
    """A run whose throttled time is read with every tenth sample."""

    def samples(self, hz: float = HZ) -> dict[str, dict[str, np.ndarray]]:
        groups = super().samples(hz)
        columns = groups["gpu0"]
        ticks = np.arange(len(columns["time_ns"]))
        for column in [column for column in columns if column.startswith("throttle")]:
            columns[column] = np.where(ticks % HZ == 0, columns[column], np.nan)
        return groups


def part(run: Generated, seconds: float, clock_mhz: float, throttled_pct: float) -> None:
    run.steps(round(seconds * 50), step_ms=20)
    run.gpu_value("sm_clock_mhz", seconds, clock_mhz)
    run.gpu_value("throttle_thermal_pct", seconds, throttled_pct)


def test_a_few_seconds_without_throttling_show_the_full_clock():
    run = ReadOnceASecond(seed=5, gpus=[BOARD])
    part(run, 4, 1700, 0)
    part(run, 20, 1200, 80)
    [finding] = run.findings("throttled")
    assert finding["evidence"]["full_clock_mhz"] == 1700
    assert finding["lost_s"] == pytest.approx(20 * 0.97 * (1 - 1200 / 1700), rel=0.1)


def test_the_clock_between_two_reads_counts_and_not_only_that_of_the_second():
    run = ReadOnceASecond(seed=5, gpus=[BOARD])
    part(run, 6, 1800, 0)
    part(run, 20, 900, 80)
    groups = run.samples()
    columns = groups["gpu0"]
    # The clock recovers whenever the counters are read.
    is_read = np.isfinite(columns["throttle_thermal_pct"])
    columns["sm_clock_mhz"] = np.where(is_read, 1800, columns["sm_clock_mhz"])
    [finding] = run.findings("throttled", samples=groups)
    assert finding["lost_s"] == pytest.approx(0.9 * 20 * 0.97 * 0.5, rel=0.1)
