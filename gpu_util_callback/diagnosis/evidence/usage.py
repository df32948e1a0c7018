"""Use of the GPUs, in bounded memory: energy by the training thread's activity, and accelerator utilization."""

from collections.abc import Iterable, Mapping

import numpy as np

from gpu_util_callback.diagnosis.evidence.blocks import GAP_NS, Occurrences, Phases
from gpu_util_callback.diagnosis.thresholds import Constant
from gpu_util_callback.recording.fold import Fold
from gpu_util_callback.recording.manifest_facts import AcceleratorUseFacts, Energy, EpochUse, Gpu, GpuEnergy
from gpu_util_callback.recording.schema import ACCOUNTS, FIT_GAP, PAUSES, STEP_PARTS
from gpu_util_callback.recording.segments import AnyTables

PREFERRED = Constant(0.9, "of the time that power was sampled: where the energy counter covers it, it is used")
# Columns of a GPU's samples that energy is computed from, the more accurate one first.
_COUNTER, _POWER = "power_energy_mw", "power_mw"
_J = 2e12  # amounts are kept in half picojoules, milliwatts times nanoseconds: sums are exact


class TimeSums:
    """Amounts spread over stretches of time, summed by name in bins that widen as a run grows.

    Bins are aligned to the clock and sums are integers: the content depends on what was added, not
    on the order or on the pieces in which it came.

    Args:
        start_ns: of the run; what lies before its bin is left out. None: that of what is added first.
    """

    CAPACITY = 8192
    BASE_NS = 100_000_000

    def __init__(self, start_ns: int | None) -> None:
        self._fold = Fold(self.CAPACITY, self.BASE_NS, None if start_ns is None else start_ns // self.BASE_NS)

    @property
    def bin_ns(self) -> int:
        return self._fold.width

    def add(self, start: np.ndarray, end: np.ndarray, **amounts: np.ndarray) -> None:
        """Add int[n] amounts by name, each spread evenly over the time from start to end, int[n]."""
        each = np.stack(list(amounts.values()))
        is_spread = (end > start) & (each > 0).any(axis=0)
        if not is_spread.any():
            return
        self._fold.add(np.array([start[is_spread].min(), end[is_spread].max() - 1]))  # bins widen first
        origin = (self._fold.first or 0) * self.bin_ns
        is_spread &= end > origin
        if not is_spread.any():
            return
        start, end, each = start[is_spread], end[is_spread], np.maximum(each[:, is_spread], 0)
        if (start[1:] >= end[:-1]).all():
            left, sums = self._in_turn(start, end, each, origin)
        else:
            left, sums = self._overlapping(start, end, each, origin)
        self._fold.add(left, sum=(list(amounts), sums))

    def _in_turn(
        self, start: np.ndarray, end: np.ndarray, each: np.ndarray, origin: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the bins' starts, and the amounts in each, of stretches that follow each other.

        What was used up by an edge are the stretches that have ended there, and a part of at most one more.
        """
        first, last = int(max(start[0], origin)) // self.bin_ns, int(end[-1] - 1) // self.bin_ns
        edges = np.arange(first, last + 2) * self.bin_ns
        ended = np.searchsorted(end, edges, side="right")
        used = np.concatenate([np.zeros((len(each), 1), np.int64), np.cumsum(each, axis=1)], axis=1)[:, ended]
        at = np.minimum(ended, len(start) - 1)
        passed = np.where(ended < len(start), np.maximum(edges - start[at], 0), 0)
        used += np.floor(each[:, at] * (passed / (end - start)[at])).astype(np.int64)
        return edges[:-1], np.diff(used, axis=1)

    def _overlapping(
        self, start: np.ndarray, end: np.ndarray, each: np.ndarray, origin: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return start and amounts of each bin of each stretch."""
        head = np.maximum(start, origin) // self.bin_ns
        count = (end - 1) // self.bin_ns - head + 1
        at = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        left = (np.repeat(head, count) + at) * self.bin_ns
        rows, length = np.repeat(each, count, axis=1), np.repeat(end - start, count)
        begin = np.repeat(start, count)

        def by(edge: np.ndarray) -> np.ndarray:
            passed = np.clip(edge - begin, 0, length)
            return np.where(passed == length, rows, np.floor(rows * (passed / length)).astype(np.int64))

        return left, by(left + self.bin_ns) - by(left)

    def __contains__(self, name: str) -> bool:
        return name in self._fold.columns("sum")

    def total(self, name: str) -> int:
        """Return everything added under a name."""
        return int(self.of(name).sum())

    def of(self, name: str) -> np.ndarray:
        """Return the sums of a name by bin."""
        return self._fold.of("sum", name) if name in self else np.zeros(self._fold.used, np.int64)

    def starts(self) -> np.ndarray:
        """Return the start of each bin, ns since the epoch."""
        return ((self._fold.first or 0) + np.arange(self._fold.used)) * self.bin_ns


class EnergyUse:
    """Energy of the GPUs over a run, and what the training thread did while it was used.

    From the driver's energy counter, sampled as the mean power since the reading before: nothing
    between two readings is missed, and it is spread over that time as power was sampled. Without a
    counter it is the integral of the power samples, an estimate. Longer than `GAP_NS` between two
    samples, nothing is measured.

    Args:
        start_ns: of the run, None = not known.
    """

    def __init__(self, start_ns: int | None) -> None:
        self._sums = TimeSums(start_ns)
        # GPU's group -> time and value of its newest power sample
        self._newest: dict[str, tuple[int, float]] = {}
        # GPU's group -> when its counter was read, and times and values of the ticks since then
        self._unread: dict[str, tuple[int, np.ndarray, np.ndarray]] = {}

    def add(self, tables: AnyTables, samples: AnyTables) -> None:
        """Add new rows of steps and phases, and new samples of GPUs."""
        for group, block in samples.items():
            if group.startswith("gpu") and "/" not in group:
                if _COUNTER in block:
                    self._add_counter(group, block)
                if _POWER in block:
                    self._add_gauge(group, block)
        if "steps" in tables:
            self._add_steps(tables["steps"])
        if "phases" in tables:
            self._add_phases(tables["phases"])

    def _add_gauge(self, group: str, block: Mapping[str, np.ndarray]) -> None:
        """Add the energy between power samples: the mean of both."""
        power = np.asarray(block[_POWER], np.float64)
        is_valid = np.isfinite(power) & (power >= 0)
        if not is_valid.any():
            return
        times = np.asarray(block["time_ns"], np.int64)
        before_ns, before = self._newest.get(group, (int(times[is_valid][0]), np.nan))
        at = np.concatenate([[before_ns], times[is_valid]])
        power = np.concatenate([[before], power[is_valid]])
        self._newest[group] = int(at[-1]), float(power[-1])
        twice = power[1:] + np.where(np.isfinite(power[:-1]), power[:-1], power[1:])
        self._add_energy(f"{group}/{_POWER}", at, twice, np.diff(at) <= GAP_NS)

    def _add_counter(self, group: str, block: Mapping[str, np.ndarray]) -> None:
        """Add the energy between two reads of a counter, spread as power was sampled meanwhile."""
        times = np.asarray(block["time_ns"], np.int64)
        if not len(times):
            return
        unknown = np.full(len(times), np.nan)
        rows = np.stack([np.asarray(block.get(column, unknown), np.float64) for column in (_COUNTER, _POWER)])
        # A counter is first read where its column begins, without a rate.
        before_ns, earlier, earlier_rows = self._unread.get(group, (int(times[0]), times[:0], rows[:, :0]))
        times, rows = np.concatenate([earlier, times]), np.concatenate([earlier_rows, rows], axis=1)
        reads = np.flatnonzero(np.isfinite(rows[0]) & (rows[0] >= 0) & (times > before_ns))
        end = reads[-1] + 1 if len(reads) else 0
        newest_ns = int(times[end - 1]) if end else before_ns
        is_recent = times[end:] <= newest_ns + GAP_NS
        self._unread[group] = newest_ns, times[end:][is_recent], rows[:, end:][:, is_recent]
        at = np.concatenate([[before_ns], times[:end]])
        interval = np.searchsorted(reads, np.arange(end))
        length = np.diff(at)
        is_short = (np.bincount(interval, length, len(reads)) <= GAP_NS)[interval]
        power = _shaped(rows[0][reads], interval, rows[1][:end], length)
        self._add_energy(f"{group}/{_COUNTER}", at, 2 * power, is_short)

    def _add_energy(self, name: str, at: np.ndarray, twice: np.ndarray, is_short: np.ndarray) -> None:
        """Add twice the power between times, int[n + 1], where that time is short enough to be measured."""
        start, end = at[:-1][is_short], at[1:][is_short]
        length = np.maximum(end - start, 0)
        amount = np.rint(twice[is_short]).astype(np.int64) * length
        self._sums.add(start, end, **{name: amount, f"{name}/covered": length})

    def _add_steps(self, steps: Mapping[str, np.ndarray]) -> None:
        at = steps["start_ns"]
        for column, category in STEP_PARTS.items():
            length = np.maximum(steps[column], 0)
            self._sums.add(at, at + length, **{category: length})
            at = at + length

    def _add_phases(self, phases: Mapping[str, np.ndarray]) -> None:
        between = np.isin(phases["kind"].astype(str), PAUSES)
        accounts = np.where(between, FIT_GAP, phases["account"].astype(str))
        start, end, spent = phases["start_ns"], phases["end_ns"], phases["self_ns"]
        for category in {*ACCOUNTS[:-1], FIT_GAP} & {*accounts}:
            of_category = accounts == category
            self._sums.add(start[of_category], end[of_category], **{category: np.maximum(spent[of_category], 0)})

    def result(self, gpus: Iterable[Gpu], start_ns: int, end_ns: int) -> Energy | None:
        """Return the energy of a run's GPUs; None where no power was sampled of any in use.

        Args:
            gpus: the manifest's; those that the framework does not use, and MIG devices, whose
                power is their whole board's, are left out of the totals.
        """
        rows: list[GpuEnergy] = []
        names = []
        inside = self._inside(start_ns, end_ns)
        for gpu in gpus:
            index = gpu["index"]
            column = self._source(f"gpu{index}")
            if column is None or gpu.get("mig"):
                continue
            name = f"gpu{index}/{column}"
            covered = float((self._sums.of(f"{name}/covered") * inside).sum())
            rows.append(
                {
                    "index": index,
                    "energy_j": _figures(float((self._sums.of(name) * inside).sum()) / _J),
                    "source": "energy counter" if column == _COUNTER else "power samples",
                    "measured_s": round(covered / 1e9, 3),
                }
            )
            if gpu.get("used_by_framework"):
                names.append((name, rows[-1]))
        if not names:
            return None
        split = self._split([name for name, _ in names], start_ns, end_ns)
        return {
            "total_j": _figures(sum(split.values())),
            "estimated": any(row["source"] == "power samples" for _, row in names),
            "measured_s": min(row["measured_s"] for _, row in names),
            "by_time_j": {name: _figures(value) for name, value in split.items()},
            "gpus": rows,
        }

    def _source(self, group: str) -> str | None:
        """Return the column that a GPU's energy is computed from, None where it has neither."""
        counted, sampled = (self._sums.total(f"{group}/{column}/covered") for column in (_COUNTER, _POWER))
        if counted and counted >= PREFERRED * sampled:
            return _COUNTER
        return _POWER if sampled else None

    def _inside(self, start_ns: int, end_ns: int) -> np.ndarray:
        """Return the share of each bin that lies in the run and not between two fits."""
        starts, width = self._sums.starts(), self._sums.bin_ns
        run = np.minimum(starts + width, end_ns) - np.maximum(starts, start_ns)
        return np.clip((run - self._sums.of(FIT_GAP)) / width, 0, 1)

    def _split(self, names: list[str], start_ns: int, end_ns: int) -> dict[str, float]:
        """Return joules by category: within a bin, by the time of each."""
        share = self._inside(start_ns, end_ns)
        energy = sum(self._sums.of(name) for name in names) * share / _J
        present = share * self._sums.bin_ns
        joules, unassigned = {}, energy.copy()
        spent = {name: self._sums.of(name) for name in ACCOUNTS[:-1]}
        # Rows that overlap by mistake share a bin's energy; they do not multiply it.
        whole = np.maximum(present, sum(spent.values()))
        for name, ns in spent.items():
            part = np.where(whole > 0, energy * ns / np.maximum(whole, 1), 0.0)
            joules[name] = float(part.sum())
            unassigned -= part
        return {**joules, "other": float(np.maximum(unassigned, 0).sum())}


def _shaped(means: np.ndarray, interval: np.ndarray, gauge: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Return means of intervals as values of the pieces they consist of, in proportion to a gauge.

    Args:
        means: float[intervals].
        interval: int[pieces], whose piece each is; an unknown gauge leaves its interval even.
        gauge, length: float[pieces].
    """
    count = len(means)
    weighted = np.bincount(interval, gauge * length, count)
    whole = np.bincount(interval, length, count)
    with np.errstate(divide="ignore", invalid="ignore"):
        shape = gauge * (whole / weighted)[interval]
    return means[interval] * np.where(np.isfinite(shape), shape, 1.0)


def _figures(joules: float) -> float:
    """Return a number with as many digits as a driver's counter is worth."""
    return float(f"{joules:.6g}")


# Rows outside steps that belong to an epoch's training: the last results, the exhausted input.
_TRAINING = (("gap", "step"), ("gap", "input_wait"), ("input_setup", "input_wait"))


class AcceleratorUse:
    """Times of computing and of everything, over stretches of consecutive steps.

    The definition is that of the MLPerf Storage benchmark, as its tool DLIO computes it: the time
    of computing over the time from the end of an epoch's first step to the end of its last one.
    Computing is a step without its wait for input, its compilation and its callbacks.

    Memory is bounded: of a run with more stretches than `CAPACITY`, neighbours are joined.
    """

    CAPACITY = 4096

    def __init__(self) -> None:
        self._fold = Fold(self.CAPACITY)  # by the number of a stretch
        self._stretches = 0
        self._computed_ns = 0  # in all steps
        self._last_end: int | None = None  # of the newest step

    def add(self, steps: Mapping[str, np.ndarray]) -> None:
        """Add new rows of the `steps` table, in order, to the sums of their stretches.

        A stretch is a series of steps each of which starts when the one before it ends.
        """
        if not len(steps["start_ns"]):
            return
        start, duration, body, wait = (steps[name] for name in ("start_ns", "duration_ns", "body_ns", "input_wait_ns"))
        compute = np.maximum(body, 0) + np.maximum(steps["gpu_wait_ns"], 0)
        end = start + np.maximum(duration, 0)
        end_before = np.concatenate([[-1 if self._last_end is None else self._last_end], end[:-1]])
        stretch = self._stretches - 1 + np.cumsum(start != end_before)
        self._last_end, self._stretches = int(end[-1]), int(stretch[-1]) + 1
        computed = self._computed_ns + np.cumsum(compute)  # in all steps so far
        self._computed_ns = int(computed[-1])
        self._fold.add(
            stretch,
            sum=(("rows", "unknown"), np.stack([np.ones_like(start), (body < 0) | (wait < 0)])),
            first=(("start_ns", "end_ns", "computed_ns"), np.stack([start, end, computed])),
            last=(("end_ns", "computed_ns"), np.stack([end, computed])),
        )

    def result(self, phases: Phases) -> AcceleratorUseFacts | None:
        """Return the utilization; None where the parts of steps are not known, or steps too few.

        Steps after the last epoch count as one more epoch, and all of a loop without epochs as one.

        Returns: the mean of the epochs, as in the benchmark, and each epoch, numbered from 0; [] of
            more epochs than are kept.
        """
        if not self._stretches:
            return None
        rows, unknown = self._fold.matrix("sum", ("rows", "unknown"))
        if 2 * unknown.sum() > rows.sum():
            return None
        epochs = phases.of("epoch").get("")
        ends = np.sort(epochs["end_ns"]) if epochs is not None else np.zeros(0, np.int64)
        outside = [(account == "step", phases.of(kind, account=account).get("")) for kind, account in _TRAINING]
        of_epoch = np.searchsorted(ends, self._fold.of("first", "start_ns"), side="right")
        epochs_measured: list[EpochUse] = []
        for epoch in np.unique(of_epoch).tolist():
            mine = of_epoch == epoch
            steps = int(rows[mine].sum())
            if steps == 1:  # by definition the first, in which all starts up, is left out
                continue
            # From the end of the first step to that of the last one: what was computed by then.
            (begin, *_), (before, *_) = self._fold.matrix("first", ("end_ns", "computed_ns"))[:, mine].tolist()
            end, computed = self._fold.matrix("last", ("end_ns", "computed_ns"))[:, mine].max(axis=1).tolist()
            until = int(ends[epoch]) if epoch < len(ends) else None
            pct = _utilization(begin, end, computed - before, outside, until)
            if pct is not None:
                epochs_measured.append({"epoch": epoch, "steps": steps - 1, "au_pct": round(pct, 3)})
        if not epochs_measured:
            return None
        mean = sum(epoch_use["au_pct"] for epoch_use in epochs_measured) / len(epochs_measured)
        is_exact = epochs is None or not epochs.joined
        return {"pct": round(mean, 3), "epochs": epochs_measured if is_exact else []}


def _utilization(
    begin_ns: int,
    end_ns: int,
    compute_ns: int,
    outside: Iterable[tuple[bool, Occurrences | None]],
    until_ns: int | None,
) -> float | None:
    """Return the utilization of the steps from `begin_ns` to `end_ns`, in percent.

    Args:
        outside: rows outside the steps, and whether they are computing.
        until_ns: the epoch's end, None where it is not known.
    """
    for computing, of in outside:
        if of is None:
            continue
        inside = (of["start_ns"] >= begin_ns) & (of["end_ns"] <= (until_ns or end_ns))
        if inside.any():
            end_ns = max(end_ns, int(of["end_ns"][inside].max()))
            compute_ns += int(of["self_ns"][inside].sum()) if computing else 0
    return min(100.0, 100 * compute_ns / (end_ns - begin_ns)) if end_ns > begin_ns else None
