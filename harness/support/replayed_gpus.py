"""Recorded GPUs in the stand-in driver: it answers as the card did, with the truth beside it.

    card = recorded(trace_data, "a100_load_6s")
    card.loads          # [(start, end)] of the times in which the card computed, s
    card.meter_j(a, b)  # joules at the board's connectors
    with loaded(card.scenario(), folder): ...  # what the driver said, on the recording's clock

`trained` records a training over it: steps where the card computed, waits where it idled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_rows import phase_table, step_table
from nvml import Scenario

LOADS = ("a100_load_6s", "rtx3090_load_6s", "rtx4090_load_6s")
SQUARES = ("a100_50ms_on_50ms_off", "rtx3090_50ms_on_50ms_off")
NAMES = {"a100": "NVIDIA A100", "rtx3090": "NVIDIA GeForce RTX 3090", "rtx4090": "NVIDIA GeForce RTX 4090"}
SECOND = 10**9
STEP_S = 0.1


@dataclass(frozen=True)
class RecordedGpu:
    """What a driver said, s after its first reading, and what was true meanwhile.

    Attributes:
        t, readings: when it was asked, and its answers by name; shape `(n,)`.
        edges_s: when the load began and ended, in turns.
        meter_t, meter_w: the middle of each 5 ms of the external meter, and their mean power.
    """

    name: str
    t: np.ndarray
    readings: dict[str, np.ndarray]
    edges_s: np.ndarray
    meter_t: np.ndarray
    meter_w: np.ndarray

    @property
    def loads(self) -> list[tuple[float, float]]:
        """Start and end of each time in which it computed."""
        return [(float(a), float(b)) for a, b in zip(self.edges_s[::2], self.edges_s[1::2])]  # noqa: B905

    @property
    def metered_s(self) -> tuple[float, float]:
        """The time that both the driver and the meter cover."""
        return float(max(self.t[0], self.meter_t[0])), float(min(self.t[-1], self.meter_t[-1]))

    def meter_j(self, start_s: float, end_s: float) -> float:
        """Joules by the meter between two times."""
        edges = np.append(self.meter_t - 0.0025, self.meter_t[-1] + 0.0025)
        total = np.concatenate([[0.0], np.cumsum(self.meter_w * np.diff(edges))])
        return float(np.interp(end_s, edges, total) - np.interp(start_s, edges, total))

    def spliced(self, pieces: Iterable[tuple[float, float]]) -> RecordedGpu:
        """The recording made of pieces (start, end) of it, one after the other."""
        t, rows, meter, edges, at = [], [], [], [], 0.0
        for start, end in pieces:
            inside = (self.t >= start) & (self.t < end)
            metered = (self.meter_t >= start) & (self.meter_t < end)
            t.append(self.t[inside] - start + at)
            rows.append({name: values[inside] for name, values in self.readings.items()})
            meter.append((self.meter_t[metered] - start + at, self.meter_w[metered]))
            edges.append(self.edges_s[(self.edges_s >= start) & (self.edges_s < end)] - start + at)
            at += end - start
        return replace(
            self,
            t=np.concatenate(t),
            edges_s=np.concatenate(edges),
            readings={name: np.concatenate([row[name] for row in rows]) for name in self.readings},
            meter_t=np.concatenate([part[0] for part in meter]),
            meter_w=np.concatenate([part[1] for part in meter]),
        )

    def with_stalls(self, stall_s: float, count: int) -> RecordedGpu:
        """The card computing for two seconds at a time, with stalls in between."""
        (on, off), end = self.loads[0], float(self.t[-1])
        stall = [(off - 1, off + stall_s), (on, on + 1)]
        return self.spliced([(on - 1, on + 1), *count * stall, (off - 1, min(off + 2, end))])

    def scenario(self, *, counter: bool = False, **options: str | float) -> Scenario:
        """What its driver said, held until it said something else.

        Args:
            counter: with an energy counter that counts what the meter measured.
            options: of the `Scenario`. The ring of samples was not recorded: there is none.
        """
        scenario = Scenario(samples_period_ms=0, **options)
        gpu = scenario.gpu("a100", name=NAMES[self.name.split("_")[0]]).without("field:83:0")
        for name, values in self.readings.items():
            changed = np.flatnonzero(np.diff(values, prepend=np.nan) != 0)
            points = [(float(self.t[i]), float(values[i])) for i in changed]
            gpu.curve(name, points, **({"type": 1} if name.startswith("field") else {}))
        if counter:
            gpu.counter(83, list(zip(self.meter_t, 1000 * self.meter_w, strict=True)))
        return scenario


def recorded(data: Path, name: str) -> RecordedGpu:
    """Return a recording of `../shared/data/recorded-gpus`; skips where it is not there."""
    file = data / "recorded-gpus" / f"{name}.csv"
    if not file.exists():
        pytest.skip("no ../shared/data/recorded-gpus beside this checkout")
    rows = [line.split(",") for line in file.read_text().splitlines()[1:]]
    epoch_us = np.array([int(row[0]) for row in rows])

    def column(place: int) -> np.ndarray:
        return np.array([float(row[place]) for row in rows])

    readings = {
        "utilization": column(1),
        "temperature:0": column(3),
        "clock:1": column(4),
        "power_mw": 1000 * column(5),
    }
    if len(rows[0]) > 6:
        # The RTX 3090's files have one value more than names: the last follows the meter within
        # 0.1 s, the one before it is `power.draw` again.
        readings["field:186:0"] = 1000 * column(-1)
    meter = np.loadtxt(file.with_suffix(".meter_5ms.csv"), delimiter=",", skiprows=1)
    edges = (np.loadtxt(file.with_suffix(".edges.txt")) - epoch_us[0]) / 1e6
    return RecordedGpu(
        name,
        (epoch_us - epoch_us[0]) / 1e6,
        readings,
        edges[:2] if name in LOADS else edges[: len(edges) // 2 * 2],
        (meter[:, 0] - epoch_us[0]) / 1e6,
        meter[:, 1],
    )


def steps_of(card: RecordedGpu, start_s: float, end_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Return start and end of steps where the card computed, and of waits where it idled.

    Returns:
        Edges in s, shape `(n + 1,)`, and which of the n stretches are steps.
    """
    edges, computing = [start_s], []
    for on, off in card.loads:
        count = max(1, round((off - on) / STEP_S))
        edges += np.linspace(on, off, count + 1).tolist()
        computing += [False, *[True] * count]
    return np.array([*edges, end_s]), np.array([*computing, False])


def trained(card: RecordedGpu, stepped: Any, log_dir: Path, *, hz: float = 10, phase_s: float = 0):
    """Record a training over a card; (its recording, epoch ns of the card's second 0).

    A stretch without load is a wait for input before the step after it, but between two loads
    that are not short: that is a callback, `ModelCheckpoint`.

    Args:
        stepped: a reader over the card's scenario, whose time is moved by hand.
        phase_s: when it is first asked.
    """
    start_s, end_s = card.metered_s
    begin = stepped.library.start_us * 1000
    for at_s in (*np.arange(start_s + phase_s, end_s, 1 / hz), end_s):
        stepped.library.set_time(at_s)
        stepped.reader.read(at_s if at_s < end_s else math.inf)
    blocks = stepped.drain()

    def ns(seconds: Any) -> Any:
        return begin + np.rint(np.asarray(seconds) * SECOND).astype(np.int64)

    edges, computing = steps_of(card, start_s, end_s)
    length = np.diff(ns(edges))
    stalls = [(float(a), float(b)) for (_, a), (b, _) in pairwise(card.loads) if b - a > STEP_S]
    stalled = ~computing & np.isin(edges[:-1], [a for a, _ in stalls])
    parts = {"input_wait_ns": ~computing & ~stalled, "body_ns": computing, "callbacks_ns": stalled}
    tables = {"steps": step_table(ns(start_s), **{name: length * inside for name, inside in parts.items()})}
    if stalls:
        named = [("callback", "ModelCheckpoint", *map(int, ns(stall))) for stall in stalls]
        rows = [(*one, step, "callbacks") for one, step in zip(named, np.flatnonzero(stalled), strict=True)]
        tables["phases"] = phase_table(*rows)
    facts = {"framework": {"name": "torch"}, "fit": {"batch_size": 32}}
    times = {"started_ns": int(ns(start_s)), "ended_ns": int(ns(end_s))}
    return stepped.recording(log_dir, blocks, tables, **facts, **times), begin
