"""A run's memory in the report: peaks, limits, and the room for a batch."""

import pytest
from generated_runs import GPU, Generated, reported

from gpu_util_callback.diagnosis.memory_report import memory_sentence
from gpu_util_callback.report.terminal import render

GIB = 1 << 30


def run_of(sizes: list[int], per_sample: float = 0.05 * GIB, base: float = 6 * GIB) -> Generated:
    """A run whose batches have these sizes, a hundred steps each, and take memory in proportion."""
    known = {str(number): size for number, size in enumerate(dict.fromkeys(sizes))}
    ids = {size: int(number) for number, size in known.items()}
    facts = {"memory": {"batch_sizes": known}} if len(sizes) > 1 else {}
    run = Generated(seed=2, gpus=[GPU], fit={"batch_size": sizes[0]}, **facts)
    peak = 0.0
    for number, size in enumerate(sizes):
        peak = max(peak, base + size * per_sample)
        for part in range(12):
            began = run.now
            run.steps(10, step_ms=100, shape_id=ids[size] if len(sizes) > 1 else -1)
            seconds = (run.now - began) / 1e9
            live = base if part % 3 == 0 and number != 1 else 0.6 * (peak - base) + base
            run.gpu_value("allocator_used_bytes", seconds, live)
            run.gpu_value("allocator_peak_bytes", seconds, peak)
            run.gpu_value("allocator_limit_bytes", seconds, 40 * GIB)
    return run


@pytest.mark.parametrize("sizes", [[64], [64, 128, 256], [256, 64, 128, 512]])
def test_room_for_a_batch_by_a_line_through_the_sizes_that_ran(sizes):
    memory = run_of(sizes).diagnose()["memory"]
    [gpu] = memory["gpus"]
    assert gpu["bytes_per_sample"] == pytest.approx(0.05 * GIB, rel=0.02)
    assert gpu["room_for_batch"] == pytest.approx((0.95 * 40 - 6) / 0.05, rel=0.02)
    assert gpu["limit_bytes"] == 40 * GIB


def test_no_room_is_named_where_it_was_not_measured():
    memory = run_of([64], per_sample=0.0).diagnose()["memory"]
    assert memory["gpus"][0]["room_for_batch"] is None
    run = Generated(seed=2, gpus=[GPU])
    run.steps(200, step_ms=10)
    assert run.diagnose()["memory"] is None


def test_the_report_and_the_terminal_show_it(tmp_path):
    machine = {"memory_total_bytes": 64 * GIB, "memory_limit_bytes": 16 * GIB}
    run = Generated(seed=2, machine=machine)
    run.steps(300, step_ms=20)
    run.mark("host", "process_held_bytes", 3.2 * GIB)
    report = reported(run, tmp_path)
    assert report["memory"] == {
        "host": {"peak_bytes": int(3.2 * GIB), "limit_bytes": 16 * GIB, "limited_by": "container"},
        "gpus": [],
    }
    assert memory_sentence(report) == "Peak memory: host 3.2 of 16 GiB."
    assert "Peak memory: host 3.2 of 16 GiB." in render({"runs": [report], "sessions": []}, width=100)


@pytest.mark.parametrize(
    "dims, most, blamed",
    [
        ([[None, 64], [None]], None, False),  # full before the first step, every element as large
        ([[None, None], [None]], None, True),  # longer ones take the place of shorter ones
        (None, None, True),
        (None, GIB // 2, False),  # all of it holds less than what was added
        (None, 4 * GIB, True),
    ],
)
def test_a_shuffle_buffer_that_has_been_full_explains_no_growth(dims, most, blamed):
    fit = {"batch_size": 32, "input_kind": "tf.data", "input_dims": dims, "input_shuffle_bytes": most}
    run = Generated(seed=2, fit=fit, machine={"memory_total_bytes": 16 * GIB})
    for epoch in range(6):
        with run.epoch():
            for step in range(20):
                run.steps(10, step_ms=20)
                held = (2 + 0.2 * epoch + 0.01 * step) * GIB
                run.mark("host", "process_held_bytes", held)
            run.reading(("Shuffle", "ShuffleDatasetV3", 0.1, 1, ""), ("root", "Root", 0, 1, ""), batches=200)
    [growth] = [one for one in run.diagnose()["findings"] if one["cause"] == "memory_growth"]
    assert ("shuffle" in str(growth["evidence"].get("grows_with"))) == blamed
    assert ("ds.shuffle" in growth["advice"]["code"]) == blamed
