"""Energy of the GPUs over a run, by what the training thread did while it was used."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from gpu_util_callback.diagnosis.evidence.blocks import GAP_NS
from gpu_util_callback.diagnosis.evidence.gauges import SampleBins
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.thresholds import Constant
from gpu_util_callback.recording.fold import FAR
from gpu_util_callback.recording.manifest_facts import Energy, GpuEnergy
from gpu_util_callback.recording.schema import ACCOUNTS, FIT_GAP

PREFERRED = Constant(0.9, "of the time that power was sampled: where the energy counter covers it, it is used")
# Columns of a GPU's samples that energy is computed from, the more accurate one first.
_COUNTER_COLUMN, _POWER_COLUMN = "power_energy_mw", "power_mw"
Source = Literal["energy counter", "power samples"]
_BY_COUNTER: Source = "energy counter"
_BY_SAMPLES: Source = "power samples"


def energy(run: Run) -> Energy | None:
    """Return the energy of a run's GPUs, and what the training thread did meanwhile; None without power samples.

    From the driver's energy counter, sampled as the mean power since the reading before: nothing
    between two readings is missed, and it is spread over that time as power was sampled. Without a
    counter it is the integral of the power samples, an estimate. Longer than `GAP_NS` between two
    samples, nothing is measured. GPUs that the framework does not use, and MIG devices, whose power
    is their whole board's, are left out of the totals. All of it is computed from the cells of
    samples, steps and phases: in a long run they hold several.
    """
    rows: list[GpuEnergy] = []
    totals: dict[str, float] = {}
    used: list[GpuEnergy] = []
    gpus = [gpu for gpu in run.gpus if not gpu.get("mig")]
    power_of_gpu = _power_of_gpus(run, [gpu["index"] for gpu in gpus])
    for gpu in gpus:
        if gpu["index"] not in power_of_gpu:
            continue
        source, present, joules, spent = power_of_gpu[gpu["index"]]
        rows.append(
            {
                "index": gpu["index"],
                "energy_j": _six_digits(float(joules.sum())),
                "source": source,
                "measured_s": round(float(present.sum()) / 1e9, 3),
            }
        )
        if gpu.get("used_by_framework"):
            used.append(rows[-1])
            # Rows that overlap by mistake share a piece's energy; they do not multiply it.
            whole = np.maximum(np.maximum(present, sum(spent.values())), 1)
            split = {name: float((joules * ns / whole).sum()) for name, ns in spent.items()}
            split["other"] = max(0.0, float(joules.sum()) - sum(split.values()))
            totals = {name: totals.get(name, 0.0) + part for name, part in split.items()}
    if not used:
        return None
    return {
        "total_j": _six_digits(sum(totals.values())),
        "estimated": any(row["source"] == _BY_SAMPLES for row in used),
        "measured_s": min(row["measured_s"] for row in used),
        "by_time_j": {name: _six_digits(part) for name, part in totals.items()},
        "gpus": rows,
    }


_Pieces = tuple[np.ndarray, np.ndarray, np.ndarray]  # begin and end in ns, and milliwatts between them
_SourcePieces = tuple[Source, np.ndarray, np.ndarray, dict[str, np.ndarray]]


def _power_of_gpus(run: Run, gpus: Sequence[int]) -> dict[int, _SourcePieces]:
    """Return the source of each GPU's power, and of each piece of the run its ns, its joules and ns by category.

    GPUs without power samples are left out.
    """
    bins = [(index, run.samples[f"gpu{index}"]) for index in gpus if f"gpu{index}" in run.samples]
    kinds: list[tuple[int, Source]] = [(index, source) for index, _ in bins for source in (_BY_COUNTER, _BY_SAMPLES)]
    pieces = [read(of_gpu) for _, of_gpu in bins for read in (_from_counter, _from_samples)]
    if not pieces:
        return {}
    begin, end, power = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    kind = np.repeat(np.arange(len(kinds)), [len(each) for each, _, _ in pieces])
    is_short = end - begin <= GAP_NS
    begin, end = np.maximum(begin, run.start_ns), np.minimum(end, run.end_ns)
    inside = is_short & (end > begin)
    begin, end, power, kind = begin[inside], end[inside], power[inside], kind[inside]
    spent = _thread_ns(run, begin, end)  # of all GPUs at once: a call costs as much as thousands of pieces
    present = np.maximum(end - begin - spent.pop(FIT_GAP), 0)
    power_of_gpu: dict[int, _SourcePieces] = {}
    for number, (index, source) in enumerate(kinds):
        own = kind == number
        covered = float(present[own].sum())
        if covered and (index not in power_of_gpu or float(power_of_gpu[index][1].sum()) < PREFERRED * covered):
            joules = power[own] * present[own] / 1e12
            power_of_gpu[index] = source, present[own], joules, {name: ns[own] for name, ns in spent.items()}
    return power_of_gpu


def _thread_ns(run: Run, begin: np.ndarray, end: np.ndarray) -> dict[str, np.ndarray]:
    """Return the training thread's ns in each piece of time by account, and those between fits as `FIT_GAP`."""
    spent = {name: np.zeros(len(begin)) for name in (*ACCOUNTS[:-1], FIT_GAP)}
    times = np.concatenate([begin, end])
    of_steps = run.steps.spent_ns(times) if len(run.steps) and len(begin) else {}
    for by_account in (of_steps, run.phases.spent_ns(times) if len(begin) else {}):
        for name in spent.keys() & by_account.keys():
            spent[name] += by_account[name][len(begin) :] - by_account[name][: len(begin)]
    return spent


def _from_samples(bins: SampleBins) -> _Pieces:
    """Return power by samples: in each cell its mean, between two cells the mean of both."""
    cells, power = bins.means(_POWER_COLUMN) if _POWER_COLUMN in bins else (np.zeros(0, np.int64), np.zeros(0))
    first, last = (bins.times(part, cells) for part in ("first", "last"))
    between = (power[1:] + power[:-1]) / 2
    return np.append(first, last[:-1]), np.append(last, first[1:]), np.append(power, between)


def _from_counter(bins: SampleBins) -> _Pieces:
    """Return power by the energy counter: of each cell since the one before, up to the last reading."""
    if _COUNTER_COLUMN not in bins:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    reads, means = bins.means(_COUNTER_COLUMN)
    sampled_cells = np.flatnonzero(bins.fold.of("first", "time") < FAR)
    sampled_cells = sampled_cells[sampled_cells <= reads[-1]]
    last = bins.times("last", sampled_cells)
    begin = np.append(bins.times("first", sampled_cells[:1]), last[:-1])
    gauge = np.full(bins.fold.used, np.nan)
    if _POWER_COLUMN in bins:
        cells, power = bins.means(_POWER_COLUMN)
        gauge[cells] = power
    interval = np.searchsorted(reads, sampled_cells)
    length = (last - begin).astype(np.float64)
    is_short = (np.bincount(interval, length, len(reads)) <= GAP_NS)[interval]
    power = _spread_by_gauge(means, interval, gauge[sampled_cells], length)
    return begin[is_short], last[is_short], power[is_short]


def _spread_by_gauge(means: np.ndarray, interval: np.ndarray, gauge: np.ndarray, length: np.ndarray) -> np.ndarray:
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


def _six_digits(joules: float) -> float:
    """Round joules to six digits, the precision of a driver's counter."""
    return float(f"{joules:.6g}")
