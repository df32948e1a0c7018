"""A group's entries in memory: what was put in comes out at every width, in little room."""

import threading

import numpy as np
import pytest

from gpu_util_callback.recording.levels import Entries, LevelsBuilder
from tensorboard_plugin.tiles import entries as entries_module
from tensorboard_plugin.tiles.entries import Series

HOUR = 3_600 * 10**9


def samples(count, seed=0, since=0, **columns):
    """`count` samples at 10 Hz of "power_mw" and whatever else is named."""
    random = np.random.default_rng(seed)
    times = since + np.arange(count) * 10**8 + random.integers(0, 10**6, count)
    power = random.normal(300, 50, count)
    power[random.integers(count)] = 9_000 + seed  # one spike, to be found again
    rows = {name: np.broadcast_to(value, count) for name, value in columns.items()}
    return {"time_ns": times, "power_mw": power, **rows}


def entries(rows, builder=None):
    builder = builder or LevelsBuilder(0)
    builder.add({}, {"gpu0": rows})
    found = builder.entries()["gpu0"]
    builder.clear()
    return found


def between(series, columns, level, first=0, last=HOUR * 100):
    return series.between(columns, level, "time", None, (first, last))


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Folded early and in small blocks, so that all of it happens."""
    monkeypatch.setattr(entries_module, "FEWEST", 8)
    monkeypatch.setattr(entries_module, "BLOCK", 50)


@pytest.mark.parametrize("pieces", [1, 3, 200])
def test_every_width_holds_all_rows_and_every_spike(pieces):
    rows, builder, series = samples(20_000), LevelsBuilder(0), Series()
    for part in np.array_split(np.arange(20_000), pieces):
        series.add(entries({name: values[part] for name, values in rows.items()}, builder))
        if pieces < 10:
            between(series, ["power_mw"], 50)  # in between, somebody looks
    assert series.columns == ["power_mw"]
    counts = []
    for level in range(series.bits, series.bits + 16, 3):
        keys, of_each, (low, high, mean) = between(series, ["power_mw"], level)
        counts.append(len(keys))
        assert of_each.sum() == 20_000
        assert (np.diff(keys) >= 0).all() and keys[0] == rows["time_ns"][0]
        assert high.max() == np.float32(rows["power_mw"].max())
        assert low.min() == np.float32(rows["power_mw"].min())
        average = (mean[0] * of_each).sum() / 20_000
        assert average == pytest.approx(rows["power_mw"].mean(), rel=1e-4)
        assert (np.diff(keys >> level) >= 0).all()
    assert counts == sorted(counts, reverse=True)
    assert counts[2] < counts[0] / 20, "coarse views take few entries"
    # The same numbers as when each bucket is reduced from the rows.
    level = series.bits + 6
    keys, _, (_, high, _) = between(series, ["power_mw"], level)
    for bucket in (0, 5, int(keys[-1] >> level)):
        inside = rows["time_ns"] >> level == bucket
        assert high[0][keys >> level == bucket].max() == np.float32(rows["power_mw"][inside].max())


def test_a_column_takes_room_once_it_changes():
    constant = samples(16_000, limit_mw=700.0, memory_bytes=5.0, absent_pct=np.nan)
    series = Series(["power_mw", "limit_mw"], 1_100)
    series.add(entries(constant))
    one = 3 * 4 * len(series)  # min, max and mean of one column
    assert series.nbytes < 3 * one + 32 * 2 * len(series)
    later = samples(1_000, 1, since=2 * HOUR, limit_mw=np.arange(1_000) % 7, memory_bytes=5.0,
                    new_pct=3.0)  # fmt: skip
    series.add(entries(later))
    columns = ["limit_mw", "memory_bytes", "absent_pct", "new_pct"]
    assert series.columns == ["power_mw", *columns]
    for level in (series.bits, series.bits + 7):
        keys, _, (low, high, mean) = between(series, columns, level)
        old = keys < HOUR
        for part in (low, high, mean):
            assert (part[:, old].T[:, :2] == [700, 5]).all()
            assert (part[1] == 5).all()
            assert np.isnan(part[2]).all() and np.isnan(part[3][old]).all()
            assert (part[3][~old] == 3).all()
        assert (low[0][~old].min(), high[0][~old].max()) == (0, 6)


def test_a_clock_that_went_back_loses_nothing():
    series, spike = Series(), 9_000 + 3
    for seed, since in ((1, HOUR), (3, 0), (2, 2 * HOUR)):
        series.add(entries(samples(1_600, seed, since=since)))
    for level in (series.bits, series.bits + 8):
        keys, of_each, (_, high, _) = between(series, ["power_mw"], level)
        assert of_each.sum() == 3 * 1_600
        assert (np.diff(keys) >= 0).all()
        assert spike in high[0]


def test_entries_that_come_while_others_are_read_are_all_there():
    series, builder, failures = Series(), LevelsBuilder(0), []
    parts = [
        entries(samples(160, seed, since=seed * 16 * 10**9, limit_mw=float(seed // 20)), builder)
        for seed in range(60)
    ]
    series.add(parts[0])
    done = threading.Event()

    def look():
        try:
            look_on()
        except Exception as error:
            failures.append(repr(error))

    def look_on():
        seen = 0
        while not done.is_set():
            for level in (series.bits, series.bits + 3, series.bits + 9):
                keys, of_each, (low, high, mean) = between(series, series.columns, level)
                total = int(of_each.sum())
                if total < seen or total % 160 or len(keys) != high.shape[1]:
                    failures.append((seen, total))
                if (low > high).any() or np.isnan(mean).any():
                    failures.append("torn")
                seen = total

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for part in parts[1:]:
        series.add(part)
    done.set()
    for thread in threads:
        thread.join(60)
    assert not failures, failures[:3]
    assert between(series, ["power_mw"], 60)[1].sum() == 60 * 160
    assert isinstance(parts[0], Entries)
