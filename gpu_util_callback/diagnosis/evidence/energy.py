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
    gpu_rows: list[GpuEnergy] = []  # one row a GPU, those of the framework also in `used`
    totals: dict[str, float] = {}
    used: list[GpuEnergy] = []
    own_power_gpus = [gpu for gpu in run.gpus if not gpu.get("mig")]
    power_of_gpu = _power_of_gpus(run, [gpu["index"] for gpu in own_power_gpus])
    for gpu in own_power_gpus:
        if gpu["index"] not in power_of_gpu:
            continue
        source, piece_ns, piece_j, spent_ns = power_of_gpu[gpu["index"]]
        gpu_rows.append(
            {
                "index": gpu["index"],
                "energy_j": _six_digits(float(piece_j.sum())),
                "source": source,
                "measured_s": round(float(piece_ns.sum()) / 1e9, 3),
            }
        )
        if gpu.get("used_by_framework"):
            used.append(gpu_rows[-1])
            # Rows that overlap by mistake share a piece's energy; they do not multiply it.
            # Length of each piece, or the accounts' sum if that is longer.
            whole = np.maximum(np.maximum(piece_ns, sum(spent_ns.values())), 1)
            energy_by_time = {name: float((piece_j * ns / whole).sum()) for name, ns in spent_ns.items()}
            energy_by_time["other"] = max(0.0, float(piece_j.sum()) - sum(energy_by_time.values()))
            totals = {name: totals.get(name, 0.0) + part for name, part in energy_by_time.items()}
    if not used:  # no GPU of the framework has power samples
        return None
    return {
        "total_j": _six_digits(sum(totals.values())),
        "estimated": any(row["source"] == _BY_SAMPLES for row in used),
        "measured_s": min(row["measured_s"] for row in used),
        "by_time_j": {name: _six_digits(part) for name, part in totals.items()},
        "gpus": gpu_rows,
    }


_Pieces = tuple[np.ndarray, np.ndarray, np.ndarray]  # begin and end in ns, and milliwatts between them
_SourcePieces = tuple[Source, np.ndarray, np.ndarray, dict[str, np.ndarray]]


def _power_of_gpus(run: Run, gpus: Sequence[int]) -> dict[int, _SourcePieces]:
    """Return each GPU's power as pieces of the run: GPU -> (source, ns, joules, account -> ns of the training thread).

    Arrays have one value a piece; time between fits is left out of the ns. The energy counter is taken if it covers
    most of the time that power was sampled. GPUs without power samples are left out.
    """
    bins = [(index, run.samples[f"gpu{index}"]) for index in gpus if f"gpu{index}" in run.samples]
    sources: list[tuple[int, Source]] = [(index, source) for index, _ in bins for source in (_BY_COUNTER, _BY_SAMPLES)]
    pieces = [read(of_gpu) for _, of_gpu in bins for read in (_from_counter, _from_samples)]
    if not pieces:
        return {}
    begin, end, power = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    # Of each piece, its index in `sources`.
    number_of_piece = np.repeat(np.arange(len(sources)), [len(each) for each, _, _ in pieces])
    is_short = end - begin <= GAP_NS  # longer than GAP_NS, nothing was measured
    begin, end = np.maximum(begin, run.start_ns), np.minimum(end, run.end_ns)
    inside = is_short & (end > begin)
    begin, end, power, number_of_piece = begin[inside], end[inside], power[inside], number_of_piece[inside]
    spent = _thread_ns(run, begin, end)  # of all GPUs at once: a call costs as much as thousands of pieces
    present_ns = np.maximum(end - begin - spent.pop(FIT_GAP), 0)
    power_of_gpu: dict[int, _SourcePieces] = {}
    for number, (index, source) in enumerate(sources):
        own = number_of_piece == number
        covered = float(present_ns[own].sum())
        # The counter comes first; samples replace it where it covers too little.
        if covered and (index not in power_of_gpu or float(power_of_gpu[index][1].sum()) < PREFERRED * covered):
            joules = power[own] * present_ns[own] / 1e12
            power_of_gpu[index] = source, present_ns[own], joules, {name: ns[own] for name, ns in spent.items()}
    return power_of_gpu


def _thread_ns(run: Run, begin: np.ndarray, end: np.ndarray) -> dict[str, np.ndarray]:
    """Return the training thread's time in each of n pieces, by account, and between fits as `FIT_GAP`.

    Args:
        begin, end: int64 (n,), of the pieces, ns since the epoch.

    Returns:
        account -> float64 (n,), ns; 0 where nothing was recorded.
    """
    spent = {name: np.zeros(len(begin)) for name in (*ACCOUNTS[:-1], FIT_GAP)}
    edges_ns = np.concatenate([begin, end])
    of_steps = run.steps.spent_ns(edges_ns) if len(run.steps) and len(begin) else {}
    for by_account in (of_steps, run.phases.spent_ns(edges_ns) if len(begin) else {}):
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
    """Return power by the energy counter, up to its last reading, as (begin ns, end ns, milliwatts) of n pieces.

    A reading is the mean power since the one before. It is spread over the cells of samples between the two in
    proportion to the power gauge, where that was read. Intervals longer than `GAP_NS` are left out.
    """
    if _COUNTER_COLUMN not in bins:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    reads, reading_mw = bins.means(_COUNTER_COLUMN)
    sampled_cells = np.flatnonzero(bins.fold.of("first", "time") < FAR)
    sampled_cells = sampled_cells[sampled_cells <= reads[-1]]
    last = bins.times("last", sampled_cells)
    begin = np.append(bins.times("first", sampled_cells[:1]), last[:-1])
    gauge_mw = np.full(bins.fold.used, np.nan)
    if _POWER_COLUMN in bins:
        cells, piece_mw = bins.means(_POWER_COLUMN)
        gauge_mw[cells] = piece_mw
    interval = np.searchsorted(reads, sampled_cells)  # of each cell, the reading that covers it
    length = (last - begin).astype(np.float64)
    is_short = (np.bincount(interval, length, len(reads)) <= GAP_NS)[interval]  # sums of the pieces' lengths by reading
    piece_mw = _spread_by_gauge(reading_mw, interval, gauge_mw[sampled_cells], length)
    return begin[is_short], last[is_short], piece_mw[is_short]


def _spread_by_gauge(means: np.ndarray, interval: np.ndarray, gauge: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Spread the mean of each interval over its pieces in proportion to a gauge; the interval's mean is kept.

    Args:
        means: float[intervals], power of each in milliwatts.
        interval: int[pieces], the interval of each piece.
        gauge: float[pieces], milliwatts; NaN in any piece leaves its interval even.
        length: float[pieces], ns.

    Returns:
        float[pieces], milliwatts.
    """
    count = len(means)
    gauge_by_time = np.bincount(interval, gauge * length, count)
    interval_ns = np.bincount(interval, length, count)
    with np.errstate(divide="ignore", invalid="ignore"):
        shape = gauge * (interval_ns / gauge_by_time)[interval]
    return means[interval] * np.where(np.isfinite(shape), shape, 1.0)


def _six_digits(joules: float) -> float:
    """Round joules to six digits, the precision of a driver's counter."""
    return float(f"{joules:.6g}")
