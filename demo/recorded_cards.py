"""The table and the pictures of real cards: their recorded readings, replayed through our sampler.

    python demo/recorded_cards.py

Needs ../shared/data/recorded-gpus and ../shared/data/measured-mfu beside the checkout, and a C
compiler for the stand-in driver. Prints the rows of docs/benchmarks.md and writes docs/cards-*.svg.
"""

import csv
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "harness" / "support")]

from nvml import loaded  # noqa: E402
from replayed_gpus import LOADS, NAMES, SECOND, SQUARES, RecordedGpu, recorded, trained  # noqa: E402
from stepped import Stepped  # noqa: E402

from gpu_util_callback.diagnosis import Evidence, run_report  # noqa: E402
from gpu_util_callback.diagnosis.evidence.run_evidence import Run  # noqa: E402
from gpu_util_callback.gpus import _gate, _reader  # noqa: E402

DATA = ROOT.parent / "shared" / "data"
WORK = tempfile.TemporaryDirectory()  # recordings are read when they are asked
PHASES_S = 0.0, 0.035, 0.07  # when the first poll comes, relative to the driver's refreshes
COLOURS = {"load": "#9aa5b1", "polled": "#d0791f", "ours": "#1b7f79", "meter": "#6b7280"}


def replay(card: RecordedGpu, *, counter: bool = False, instant: bool = True, phase_s: float = 0):
    """Record a training over a card; (recording, epoch ns of the card's second 0)."""
    scenario = card.scenario(counter=counter, time="manual")
    if not instant:
        scenario.gpus[0].without("field:186:0")
    _gate._started_in = None
    _reader.host_pids = lambda: True
    folder = Path(tempfile.mkdtemp(dir=WORK.name))
    with loaded(scenario, Path(WORK.name)) as library:
        return trained(card, Stepped(library), folder, phase_s=phase_s)


def active_pct(recording, begin: int, stretches, *, polled: bool) -> float:
    """Mean utilization over stretches (start, end), s; `polled`: by the time of the query."""
    samples = dict(recording.samples)
    if polled:
        samples.pop("gpu0/utilization", None)
    evidence = Evidence()
    evidence.add({"steps": recording.steps}, samples)
    run = Run(recording.facts, evidence, ended=True)
    at = begin + np.rint(np.array(stretches) * SECOND).astype(np.int64)
    idle, _ = run.idle_each(at[:, 0], at[:, 1])
    return 100 * float(np.average(1 - idle, weights=at[:, 1] - at[:, 0]))


def span(values: Iterable[float], digits: int = 0) -> str:
    low, high = (f"{value:.{digits}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def attribution(name: str) -> str:
    """One row: refresh found, and utilization in steps, outside and in stalls, before and after."""
    card = recorded(DATA, name)
    stalled = card.with_stalls(0.5, 6)
    stalls = [(end, start) for (_, end), (start, _) in zip(stalled.loads, stalled.loads[1:])]  # noqa: B905
    (start, end), ((on, off),) = card.metered_s, card.loads
    figures: dict[tuple[str, bool], list[float]] = {}
    refreshes = []
    for phase_s in PHASES_S:
        recording, begin = replay(card, phase_s=phase_s)
        halts, halts_begin = replay(stalled, phase_s=phase_s)
        refreshes.append(halts.facts["gpus"][0]["utilization_refresh_ms"] / 1e3)
        for polled in (True, False):
            for what, data, stretches in (
                ("in", (recording, begin), [(on, off)]),
                ("out", (recording, begin), [(start + 0.2, on), (off, end)]),
                ("stall", (halts, halts_begin), stalls),
            ):
                pct = active_pct(*data, stretches, polled=polled)
                figures.setdefault((what, polled), []).append(pct)
    cells = " | ".join(
        f"{span(figures[what, True])} → {span(figures[what, False])} %" for what in ("in", "out", "stall")
    )
    return f"| {title(name)} | 2 s → {span([2 * one for one in refreshes], 1)} s | {cells} |"


def energy(name: str) -> str:
    """One row: energy by power readings, before and after, and by a counter, over the meter's."""
    card = recorded(DATA, name)
    (start, end), ((on, off),) = card.metered_s, card.loads
    meter, step = card.meter_j(start, end), card.meter_j(on, off)
    cells = []
    for counter, instant in ((False, False), (False, True), (True, True)):
        used = run_report(replay(card, counter=counter, instant=instant)[0])["energy"]
        split = used["by_time_j"]
        parts = (used["total_j"] / meter, split["step"] / step, split["input_wait"] / (meter - step))
        cells.append(", ".join(f"{100 * (part - 1):+.1f}" for part in parts))
    if "field:186:0" not in card.readings:
        cells[1] = "no such reading"
    return f"| {title(name)} | {meter:,.0f} J | {' | '.join(cells)} |"


def title(name: str) -> str:
    return NAMES[name.split("_")[0]].removeprefix("NVIDIA ")


# -- pictures ----------------------------------------------------------------------------------


class Picture:
    """An SVG of curves over time.

    Args:
        x, y: the ranges of both axes.
        labels: below the horizontal and beside the vertical axis.
    """

    WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 260, 52, 30, 12, 38

    def __init__(self, x: tuple[float, float], y: tuple[float, float], labels: tuple[str, str], log=False):
        self.x, self.y, self.log = x, y, log
        self._key_at = self.LEFT
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.WIDTH} {self.HEIGHT}" '
            'font-family="sans-serif" font-size="12">'
            f'<rect width="{self.WIDTH}" height="{self.HEIGHT}" fill="#ffffff"/>'
        ]
        right, bottom = self.WIDTH - self.RIGHT, self.HEIGHT - self.BOTTOM
        for value in np.linspace(*y, 5):
            at = self._v(value)
            self.parts.append(
                f'<path d="M{self.LEFT} {at:.1f}H{right}" stroke="#e5e7eb"/>'
                f'<text x="{self.LEFT - 6}" y="{at + 4:.1f}" text-anchor="end" fill="#4b5563">'
                f"{value:.0f}</text>"
            )
        marks = [0.1, 0.3, 1, 3, 10, 30] if log else np.linspace(*x, 7)
        for value in marks:
            self.parts.append(
                f'<text x="{self._h(value):.1f}" y="{bottom + 16}" text-anchor="middle" '
                f'fill="#4b5563">{value:.3g}</text>'
            )
        self.parts.append(
            f'<text x="{(self.LEFT + right) / 2}" y="{self.HEIGHT - 6}" text-anchor="middle" '
            f'fill="#4b5563">{labels[0]}</text>'
            f'<text x="14" y="{self.HEIGHT / 2}" text-anchor="middle" fill="#4b5563" '
            f'transform="rotate(-90 14 {self.HEIGHT / 2})">{labels[1]}</text>'
        )

    def _h(self, value: float) -> float:
        low, high = self.x
        if self.log:
            value, low, high = np.log([value, low, high])
        return self.LEFT + (value - low) / (high - low) * (self.WIDTH - self.RIGHT - self.LEFT)

    def _v(self, value: float) -> float:
        low, high = self.y
        height = self.HEIGHT - self.BOTTOM - self.TOP
        return self.TOP + (high - value) / (high - low) * height

    def key(self, text: str, colour: str) -> None:
        self.parts.append(
            f'<rect x="{self._key_at}" y="9" width="14" height="10" fill="{colour}"/>'
            f'<text x="{self._key_at + 19}" y="18" fill="#111827">{text}</text>'
        )
        self._key_at += 40 + round(6.4 * len(text))

    def bands(self, stretches: Iterable[tuple[float, float]], text: str) -> None:
        """Shade stretches (start, end) over the whole height."""
        for start, end in stretches:
            a, b = (self._h(min(max(at, self.x[0]), self.x[1])) for at in (start, end))
            if b > a:
                self.parts.append(
                    f'<rect x="{a:.1f}" y="{self.TOP}" width="{b - a:.1f}" fill-opacity="0.35" '
                    f'height="{self.HEIGHT - self.BOTTOM - self.TOP}" fill="{COLOURS["load"]}"/>'
                )
        self.key(text, COLOURS["load"])

    def curve(self, t: Sequence[float], values: Sequence[float], text: str, colour: str, hold: str = "line") -> None:
        """Draw values: "line", "after" (each until the next) or "before" (of the time before)."""
        t, values = np.asarray(t, float), np.asarray(values, float)
        if hold == "after":
            changes = np.diff(values, prepend=np.nan, append=np.nan) != 0
            t, values = t[changes[:-1] | changes[1:]], values[changes[:-1] | changes[1:]]
        inside = np.flatnonzero((t >= self.x[0]) & (t <= self.x[1]))
        first, last = max(0, inside[0] - 1), min(len(t), inside[-1] + 2)
        t, values = np.clip(t[first:last], *self.x), values[first:last]
        points = [f"M{self._h(t[0]):.1f} {self._v(values[0]):.1f}"]
        for i in range(1, len(t)):
            x, y, before = self._h(t[i]), self._v(values[i]), self._h(t[i - 1])
            if hold == "after":
                points.append(f"H{x:.1f}V{y:.1f}")
            elif hold == "before":
                points.append(f"M{before:.1f} {self._v(values[i - 1]):.1f}V{y:.1f}H{x:.1f}")
            else:
                points.append(f"L{x:.1f} {y:.1f}")
        self.parts.append(f'<path d="{"".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        self.key(text, colour)

    def dots(self, x: Sequence[float], y: Sequence[float], text: str, colour: str) -> None:
        for a, b in zip(x, y, strict=True):
            self.parts.append(
                f'<circle cx="{self._h(a):.1f}" cy="{self._v(b):.1f}" r="3.2" fill="{colour}" fill-opacity="0.65"/>'
            )
        self.key(text, colour)

    def save(self, name: str) -> None:
        path = ROOT / "docs" / f"cards-{name}.svg"
        path.write_text("\n".join([*self.parts, "</svg>"]) + "\n", encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")


def readings(recording, begin: int, group: str, column: str) -> tuple[np.ndarray, np.ndarray]:
    block = recording.samples[group]
    known = np.isfinite(block[column])
    return (block["time_ns"][known] - begin) / SECOND, block[column][known]


def draw_utilization() -> None:
    card = recorded(DATA, "a100_load_6s").with_stalls(0.5, 6)
    recording, begin = replay(card, phase_s=0.07)
    picture = Picture((2.4, 4.2), (0, 100), ("seconds", "% of the time"))
    picture.bands(card.loads, "the card computes")
    picture.curve(
        *readings(recording, begin, "gpu0", "utilization_pct"), "what a query returns then", COLOURS["polled"], "after"
    )
    picture.curve(
        *readings(recording, begin, "gpu0/utilization", "utilization_pct"),
        "the time that it is the mean of",
        COLOURS["ours"],
        "before",
    )
    picture.save("utilization")


def draw_square() -> None:
    card = recorded(DATA, SQUARES[0])
    recording, begin = replay(card)
    picture = Picture((1.2, 3.0), (0, 100), ("seconds", "% of the time"))
    picture.bands(card.loads, "the card computes")
    picture.curve(
        *readings(recording, begin, "gpu0/utilization", "utilization_pct"), "utilization", COLOURS["ours"], "before"
    )
    picture.save("square-wave")


def draw_power() -> None:
    card = recorded(DATA, "rtx3090_load_6s")
    picture = Picture((0.5, 9.5), (0, 480), ("seconds", "watts"))
    picture.bands(card.loads, "the card computes")
    for values, text, colour in (
        (card.readings["power_mw"], "power.draw", COLOURS["polled"]),
        (card.readings["field:186:0"], "power.draw.instant", COLOURS["ours"]),
    ):
        picture.curve(card.t, values / 1e3, text, colour, "after")
    width = 8  # of 5 ms
    rows = len(card.meter_w) // width * width
    meter = [part[:rows].reshape(-1, width).mean(1) for part in (card.meter_t, card.meter_w)]
    picture.curve(*meter, "meter", COLOURS["meter"])
    picture.save("power")


def draw_mfu() -> None:
    picture = Picture((0.05, 50), (0, 100), ("MFU, %", "utilization, %"), log=True)
    for card, colour in (("A100", COLOURS["ours"]), ("L40", COLOURS["polled"])):
        with (DATA / "measured-mfu" / f"mfu_{card}.csv").open() as lines:
            rows = [row for row in csv.DictReader(lines) if row["model_name"] != "baseline"]
        key = itemgetter("model_name", "dtype", "batch_size")
        alike = [list(group) for _, group in groupby(sorted(rows, key=key), key=key)]
        columns = [
            [statistics.median(float(row[name]) for row in group) for group in alike]
            for name in ("mfu_percentage_calflops_mean", "gpu_utilization_mean")
        ]
        picture.dots(*columns, card, colour)
    picture.save("mfu")


def table(names: str, rows: Iterable[str]) -> None:
    print(names, "| --- " * names.count("|", 1) + "|", *rows, sep="\n", end="\n\n")


if __name__ == "__main__":
    table("| card | lag assumed → found | steps | outside | stalls of 0.5 s |", map(attribution, LOADS))
    table("| card | meter | power.draw | power.draw.instant | energy counter |", map(energy, LOADS))
    for draw in (draw_utilization, draw_square, draw_power, draw_mfu):
        draw()
