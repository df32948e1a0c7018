"""Accelerator utilization: times of computing and of everything, over stretches of steps."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from gpu_util_callback.diagnosis.evidence.blocks import Occurrences, Phases
from gpu_util_callback.recording.fold import Fold
from gpu_util_callback.recording.manifest_facts import AcceleratorUseFacts, EpochUse

# Rows outside steps that belong to an epoch's training: the last results, the exhausted input.
_ROWS_OF_TRAINING = (("gap", "step"), ("gap", "input_wait"), ("input_setup", "input_wait"))


@dataclass(eq=False)
class AcceleratorUse:
    """Times of computing and of everything, over stretches of consecutive steps.

    The definition is that of the MLPerf Storage benchmark, as its tool DLIO computes it: the time
    of computing over the time from the end of an epoch's first step to the end of its last one.
    Computing is a step without its wait for input, its compilation and its callbacks.

    Memory is bounded: of a run with more stretches than `CAPACITY`, neighbours are joined.
    """

    CAPACITY = 4096

    _fold: Fold = field(default_factory=lambda: Fold(AcceleratorUse.CAPACITY))  # by the number of a stretch
    _stretches: int = 0
    _computed_ns: int = 0  # in all steps
    _last_end: int | None = None  # of the newest step

    def add(self, steps: Mapping[str, np.ndarray]) -> None:
        """Add new rows of the `steps` table, in order, to the sums of their stretches.

        A stretch is a series of steps each of which starts when the one before it ends.
        """
        if not len(steps["start_ns"]):
            return
        start, duration, body, wait = (steps[name] for name in ("start_ns", "duration_ns", "body_ns", "input_wait_ns"))
        compute_ns = np.maximum(body, 0) + np.maximum(steps["gpu_wait_ns"], 0)
        end = start + np.maximum(duration, 0)
        end_before = np.concatenate([[-1 if self._last_end is None else self._last_end], end[:-1]])
        stretch = self._stretches - 1 + np.cumsum(start != end_before)  # number of each step's stretch, from 0
        self._last_end, self._stretches = int(end[-1]), int(stretch[-1]) + 1
        computed = self._computed_ns + np.cumsum(compute_ns)  # in all steps so far
        self._computed_ns = int(computed[-1])
        self._fold.add(
            stretch,
            sum=(("rows", "unknown"), np.stack([np.ones_like(start), (body < 0) | (wait < 0)])),
            # The first step's: computed_ns includes it.
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
        if 2 * unknown.sum() > rows.sum():  # the parts of most steps are not known
            return None
        epochs = phases.of("epoch").get("")
        ends = np.sort(epochs["end_ns"]) if epochs is not None else np.zeros(0, np.int64)
        # Whether a kind of row is computing, and its occurrences.
        outside = [(account == "step", phases.of(kind, account=account).get("")) for kind, account in _ROWS_OF_TRAINING]
        # Number of each stretch's epoch.
        of_epoch = np.searchsorted(ends, self._fold.of("first", "start_ns"), side="right")
        epochs_measured: list[EpochUse] = []
        for epoch in np.unique(of_epoch).tolist():
            in_epoch = of_epoch == epoch
            steps = int(rows[in_epoch].sum())
            if steps == 1:  # by definition the first, in which all starts up, is left out
                continue
            # From the end of the first step to that of the last one: what was computed by then.
            (begin, *_), (before, *_) = self._fold.matrix("first", ("end_ns", "computed_ns"))[:, in_epoch].tolist()
            end, computed = self._fold.matrix("last", ("end_ns", "computed_ns"))[:, in_epoch].max(axis=1).tolist()
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
    """Return the utilization of the steps from `begin_ns` to `end_ns`, in percent; None if they took no time.

    Args:
        begin_ns, end_ns: end of the epoch's first step, and of its last one.
        compute_ns: time of computing in between.
        outside: rows outside the steps that belong to the epoch's training, and whether they are computing.
        until_ns: the epoch's end; None = not known.
    """
    for computing, rows in outside:
        if rows is None:
            continue
        inside = (rows["start_ns"] >= begin_ns) & (rows["end_ns"] <= (until_ns or end_ns))
        if inside.any():
            end_ns = max(end_ns, int(rows["end_ns"][inside].max()))
            compute_ns += int(rows["self_ns"][inside].sum()) if computing else 0
    return min(100.0, 100 * compute_ns / (end_ns - begin_ns)) if end_ns > begin_ns else None
