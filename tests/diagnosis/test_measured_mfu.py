"""What 1,512 measured trainings say of our limits."""

import csv
import statistics
from collections import defaultdict

import pytest
from generated_runs import GPU, Generated, findings_of

from gpu_util_callback.diagnosis.rules import launch_bound

CARDS = "A100", "L40", "4070"
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "tf32"}
MFU = "mfu_percentage_calflops_mean"  # of all matrix products, as ours


@pytest.fixture(scope="module")
def measured(trace_data):
    """(card, model, precision, batch) -> medians of its configurations."""
    folder = trace_data / "measured-mfu"
    if not folder.is_dir():
        pytest.skip("no ../shared/data/measured-mfu beside this checkout")
    rows = defaultdict(list)
    for card in CARDS:
        with (folder / f"mfu_{card}.csv").open() as lines:
            for row in csv.DictReader(lines):
                if row["model_name"] != "baseline":
                    precision = PRECISIONS[row["dtype"]]
                    rows[card, row["model_name"], precision, int(row["batch_size"])].append(row)
    assert sum(map(len, rows.values())) == 1512

    def median(alike, name):
        return statistics.median(float(row[name]) for row in alike)

    return {
        key: {
            "mfu": median(alike, MFU),
            "active": median(alike, "gpu_utilization_mean"),
            "step_ms": 11e3 * key[-1] / median(alike, "tokens_per_second_mean"),
        }
        for key, alike in rows.items()
    }


def diagnosed(active_pct, step_ms, batch, *, eager):
    """The diagnosis of such a training, of which NVML alone is known."""
    run = Generated(
        seed=1,
        gpus=[GPU | {"name": "NVIDIA A100-SXM4-80GB"}],
        framework={"name": "torch", "backend": "torch"},
        fit={"batch_size": batch, "run_eagerly": eager},
        model={"parameters": 774_000_000},
    )
    run.steps(300, step_ms=step_ms, gpu_share=active_pct / 100)
    found = run.diagnose()
    return [one["cause"] for one in findings_of(found)], found


def test_of_the_fill_nothing_is_said_from_nvml_alone(measured):
    """Kernels run in 27 to 74 % of the time where less than 1 % of the peak is used."""
    empty = {key: row for key, row in measured.items() if row["mfu"] < 1}
    assert min(row["active"] for row in empty.values()) < 30
    assert max(row["active"] for row in empty.values()) > 60
    for (*_, batch), row in [*empty.items(), *list(measured.items())[::20]]:
        causes, found = diagnosed(row["active"], row["step_ms"], batch, eager=False)
        assert not {"small_batch", "small_model", "launch_bound"} & set(causes)
        silent = {one["cause"] for one in found["silent"]}
        assert {"small_batch", "small_model", "launch_bound"} <= silent


def longer_for_twice_the_batch(measured):
    """(utilization, time with twice the batch over that with the batch) of each pair."""
    return [
        (row["active"], measured[*key[:3], 2 * key[3]]["step_ms"] / row["step_ms"])
        for key, row in measured.items()
        if (*key[:3], 2 * key[3]) in measured
    ]


def test_below_the_limit_of_eager_steps_launches_take_their_time(measured):
    limit = launch_bound.LaunchBound.thresholds["eager_active_pct"].default
    pairs = longer_for_twice_the_batch(measured)
    below = [longer for active, longer in pairs if active < limit]
    assert len(below) == 33
    assert max(below) < 1.05, "twice the work in the same time: the GPU was not what held it up"
    assert max(longer for active, longer in pairs if limit <= active < 80) > 1.4


def test_eager_steps_below_it_are_named_and_full_ones_are_not(measured):
    named = 0
    for (*_, batch), row in list(measured.items())[::5]:
        causes, _ = diagnosed(row["active"], row["step_ms"], batch, eager=True)
        if row["active"] < 47:
            assert "launch_bound" in causes
            named += 1
        elif row["active"] > 53:
            assert "launch_bound" not in causes
    assert named > 5
