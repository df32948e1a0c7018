"""An input whose workers or threads take the cores from the steps is priced by what it computes."""

import numpy as np
import pytest
from generated_runs import GPU, Generated

LOADER = {"input_kind": "torch DataLoader", "input_workers": 2, "input_class": "Items", "steps_per_epoch": 100}
STAGES = ("map(decode)", "ParallelMapV2", 60.0, 2.0, ""), ("prefetch", "Prefetch", 0.0, 1.0, "")


def full(fit=LOADER, cpus: int = 2, stages=(), gpus=(), wait_ms: float = 2.0, gpu_share: float = 0.3) -> Generated:
    """Steps of 28 ms in place of 8, which hardly wait for their batches."""
    run = Generated(
        seed=5,
        gpus=list(gpus),
        framework={"name": "torch", "backend": "torch"},
        fit={"loop": "custom", "batch_size": 128} | fit,
        machine={"cpus": cpus, "cpus_allowed": cpus, "memory_total_bytes": 64 * 2**30},
    )
    for _ in range(4):
        with run.epoch():
            run.steps(100, step_ms=28, wait_ms=wait_ms, gpu_share=gpu_share)
            if stages:
                run.reading(*stages, batches=100)
    return run


def cores(run: Generated, observed: dict[str, float]) -> list[dict]:
    """The findings about cores."""
    return [finding for finding in taken(run, observed) if "cores" in finding["id"]]


def taken(run: Generated, observed: dict[str, float]) -> list[dict]:
    """The findings about the input, with the host's samples of the whole run."""
    times = np.arange(run.facts["started_ns"], run.now, 500_000_000)
    columns = {name: np.full(len(times), float(value)) for name, value in observed.items()}
    return run.findings("input_bound", samples=run.samples() | {"host": {"time_ns": times} | columns})


def host(own: float, children: float | None, all_pct: float, queued: float | None) -> dict[str, float]:
    values = {"process_cpu_pct": own, "children_cpu_pct": children, "cpu_pct": all_pct, "threads_queued_pct": queued}
    return {name: value for name, value in values.items() if value is not None}


def locked(
    kind="generator", backend="tensorflow", cpu_ms=14.0, processes=False, gpus=(), device: str | None = "cpu", **fit
) -> Generated:
    """Steps of 16 ms beside a Python function of the input that takes 15 for each, of which it computes 14."""
    call = {"name": "batches", "calls": 400, "timed": 40, "wall_ms": cpu_ms + 1, "cpu_ms": cpu_ms, "queued_ms": 0.3}
    at = {"samples": 60, "line": "compute (data.py, line 9)", "in_line": 60}
    fit = {"input_kind": kind, "input_class": "batches", "input_calls": [call | at], "input_workers": 2} | fit
    run = Generated(
        seed=5,
        gpus=list(gpus),
        framework={"name": backend, "backend": backend, "keras": "3.15.1", "device": device},
        fit={"batch_size": 16, "epochs": 4, "input_processes": processes} | fit,
        machine={"cpus": 4, "cpus_allowed": 4, "memory_total_bytes": 64 * 2**30},
    )
    for _ in range(4):
        with run.epoch():
            run.steps(100, step_ms=16, wait_ms=0.1, gpu_share=0.1)
            if kind == "generator":
                run.reading(("generator", "Generator", cpu_ms + 1, 1.0, "py_function"), STAGES[1], batches=100)
    return run


@pytest.mark.parametrize(
    ("kind", "backend", "gpus"),
    [
        ("generator", "tensorflow", ()),
        ("PyDataset", "tensorflow", ()),
        ("PyDataset", "jax", ()),
        ("generator", "tensorflow", [GPU]),
    ],
)
def test_python_of_the_input_beside_the_steps_is_their_pace(kind, backend, gpus):
    """Seen: steps of 15 ms that took one without the input, 4 to 5 times as fast: "Nothing held up training"."""
    run = locked(kind, backend, gpus=gpus)
    [finding] = [found for found in taken(run, host(105, 0, 30, 2)) if "lock" in found["id"]]
    assert finding["title"] == "The input keeps Python's lock from the steps"
    assert finding["lost_s"] == pytest.approx(400 * 0.0132, rel=0.1)
    assert "compute (data.py, line 9)" in finding["advice"]["text"]


@pytest.mark.parametrize(
    ("run", "own"),
    [
        (locked(), 190),  # a step computes meanwhile, without the lock
        (locked(cpu_ms=7.0), 150),
        (locked(cpu_ms=7.0), 105),  # what else the step waits for is not known
        (locked("PyDataset", processes=True), 105),
        (locked("PyDataset", "torch", input_workers=0), 105),  # in turns with the steps
        (locked(device="tpu"), 105),  # which nothing samples
        (locked(device=None), 105),
    ],
)
def test_steps_that_compute_themselves_are_not_kept_from_the_lock(run, own):
    assert [found for found in taken(run, host(own, 0, 60, 2)) if "lock" in found["id"]] == []


def test_workers_that_fill_the_cores_are_priced_by_their_own_cpu_time():
    """Seen: a step takes 28 ms in place of 8, the wait is 7 %: "No bottleneck found"."""
    [finding] = cores(full(), host(own=55, children=100, all_pct=78, queued=45))
    assert finding["title"] == "The input takes the cores from the steps"
    assert finding["lost_s"] == pytest.approx(0.45 * 400 * 0.03, rel=0.1)
    assert finding["evidence"]["input_cpus"] == 1.0
    assert "1.0 of 2 cores" in finding["advice"]["text"] and "same item in every epoch" in finding["advice"]["text"]


def test_it_costs_no_more_than_the_input_computes():
    [finding] = cores(full(), host(own=20, children=110, all_pct=98, queued=300))
    assert finding["lost_s"] == pytest.approx(0.55 * 400 * 0.03, rel=0.1)


def test_the_threads_of_a_pipeline_are_its_own():
    run = full({"input_kind": "tf.data", "loop": "fit"}, stages=STAGES)
    [finding] = cores(run, host(own=190, children=0, all_pct=97, queued=40))
    assert finding["evidence"]["core_wait_pct"] == pytest.approx(100 * 40 / 230, abs=0.1), "of what they could run"
    assert finding["evidence"]["input_cpus"] == pytest.approx(60 * 190 / 230 / 30, rel=0.05)
    assert "cache()" in finding["advice"]["code"]


def test_a_thread_that_launches_is_starved_as_well():
    observed = host(own=110, children=690, all_pct=99, queued=30)
    [finding] = cores(full(LOADER | {"input_workers": 8}, cpus=8, gpus=[GPU]), observed)
    assert finding["gpus"] == [0] and finding["lost_s"] == pytest.approx(30 / 140 * 400 * 0.03, rel=0.1)
    assert cores(full(LOADER | {"input_workers": 8}, cpus=8, gpus=[GPU], gpu_share=1.0), observed) == []


@pytest.mark.parametrize(
    "observed",
    [
        host(own=95, children=100, all_pct=98, queued=4),  # each thread has a core
        host(own=60, children=30, all_pct=98, queued=60),  # other programs take them
        host(own=178, children=17, all_pct=98, queued=130),  # a model's own threads fill them: a healthy fit
        host(own=95, children=100, all_pct=98, queued=None),  # no Linux
        host(own=195, children=2, all_pct=99, queued=30),  # the model's own threads
        host(own=95, children=None, all_pct=98, queued=45),
        host(own=150, children=40, all_pct=98, queued=130),  # a healthy fit: its input computes a fifth
        host(own=170, children=25, all_pct=98, queued=60),
    ],
    ids=[
        "a core each",
        "others",
        "the model fills them",
        "not sampled",
        "own threads",
        "workers unknown",
        "a fifth",
        "an eighth",
    ],
)
def test_nothing_is_found_where_the_input_takes_no_core_from_the_steps(observed):
    assert cores(full(), observed) == []


def test_batches_made_between_the_steps_take_nothing_from_them():
    assert cores(full(LOADER | {"input_workers": 0}), host(own=195, children=0, all_pct=98, queued=45)) == []
