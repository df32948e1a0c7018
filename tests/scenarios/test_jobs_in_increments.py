"""Made-up jobs, diagnosed as they grow as a recorder would: the same as all at once, however much is folded."""

import json
from itertools import pairwise

import numpy as np
import pytest
from made_up_run import restored
from test_made_up_jobs import CASES

from gpu_util_callback.diagnosis import Evidence, Run, judge
from gpu_util_callback.diagnosis.evidence import blocks, gauges, memory_tracks, source, usage

# Each cause, from several boards; long runs are left to the benchmark.
EVERY = 3
LONG = ("million", "hours")
SOME = [number for number in range(0, len(CASES), EVERY) if not any(word in CASES[number].name for word in LONG)]


def pieces(columns: dict, edges: list[int]) -> list[dict]:
    return [{name: column[a:b] for name, column in columns.items()} for a, b in pairwise(edges)]


def whole_readings(edges: list[int], times: np.ndarray) -> list[int]:
    """Move edges back to where a reading of the pipeline begins: a recorder appends all rows of one at once."""
    return [edge if edge in (0, len(times)) else int(np.searchsorted(times, times[edge])) for edge in edges]


def cuts(rng: np.random.Generator, size: int, parts: int) -> list[int]:
    """0, `parts - 1` random places, and the end."""
    return [0, *np.sort(rng.integers(0, size + 1, parts - 1)).tolist(), size]


@pytest.fixture(params=[1, 32])
def folded(request, monkeypatch):
    """Room for so many times less than a recorder keeps, so that short jobs are folded as those of days are."""
    for kept in (blocks.StepBlocks, blocks.Occurrences, gauges.SampleBins, memory_tracks.MemoryTrack):
        monkeypatch.setattr(kept, "CAPACITY", kept.CAPACITY // request.param)
    monkeypatch.setattr(usage.AcceleratorUse, "CAPACITY", usage.AcceleratorUse.CAPACITY // request.param)
    monkeypatch.setattr(source, "MAX_WINDOWS", source.MAX_WINDOWS // request.param)


@pytest.mark.usefixtures("folded")
@pytest.mark.parametrize("number", SOME, ids=[CASES[number].name for number in SOME])
def test_rows_in_other_pieces_give_the_same(number):
    job, _ = CASES[number].build()
    tables = {
        name: {column: np.asarray(values) for column, values in table.items()} for name, table in job.tables().items()
    }
    samples = job.samples()
    once = job.diagnose(tables=tables, samples=samples)

    rng = np.random.default_rng(number)
    parts = int(rng.integers(2, 9))
    growing = Evidence(job.facts["started_ns"])
    edges = {name: cuts(rng, len(next(iter(table.values()))), parts) for name, table in tables.items()}
    if "pipeline" in edges:
        edges["pipeline"] = whole_readings(edges["pipeline"], tables["pipeline"]["time_ns"])
    cut_tables = {name: pieces(table, edges[name]) for name, table in tables.items()}
    cut_samples = {name: pieces(block, cuts(rng, len(block["time_ns"]), parts)) for name, block in samples.items()}
    for part in range(parts):
        growing.add(
            {name: cut[part] for name, cut in cut_tables.items()},
            {name: cut[part] for name, cut in cut_samples.items()},
        )
        if part % 2:
            judge(Run(job.facts, growing, job.now))
        else:  # a reader goes on where a recorder had stored its sums
            growing = restored(growing)
    steps = tables["steps"]
    assert growing.steps.total("duration_ns") == steps["duration_ns"].sum(), "nothing is lost where rows are folded"
    assert json.dumps(judge(Run(job.facts, growing, job.now, ended=True))) == json.dumps(once)
