"""What 1,512 measured trainings say of our limits, and the yardstick made of them."""

import csv
import statistics
from collections import defaultdict
from itertools import groupby

import pytest
from generated_runs import GPU, Generated, findings_of, write

from gpu_util_callback.diagnosis import logdir_report
from gpu_util_callback.diagnosis.rules import launch_bound
from gpu_util_callback.diagnosis.yardstick import BATCHES, TABLE, yardstick
from gpu_util_callback.recording import read_recordings
from gpu_util_callback.report.terminal import render

CARDS = {"A100": "A100-SXM4-80GB", "L40": "L40", "4070": None}
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "tf32"}
MFU = "mfu_percentage_calflops_mean"  # of all matrix products, as ours
MODELS = {"microsoft/DialoGPT-large": 774e6, "gpt2-xl": 1557e6, "Qwen/Qwen2.5-3B": 3086e6, "Qwen/Qwen2.5-1.5B": 1544e6}


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


def test_the_yardstick_is_what_was_measured(measured):
    for card, name in CARDS.items():
        if name is None:
            continue
        keys = sorted({key[1:3] for key in measured if key[0] == card}, key=lambda key: key[1])
        for precision, models in groupby(keys, key=lambda key: key[1]):
            rows = sorted(
                (MODELS[model], *(round(measured[card, model, precision, batch]["mfu"], 1) for batch in BATCHES))
                for model, _ in models
            )
            assert tuple(rows) == TABLE[name][precision]


A100 = {"name": "NVIDIA A100-SXM4-80GB", "peak": {"precision": "bf16"}}


def test_the_yardstick_is_of_this_size_and_precision():
    known = yardstick(A100, 1.5e9)
    assert (known["low_pct"], known["high_pct"]) == (10.7, 21.6)
    assert known["text"] == (
        "others reached 11 to 22 % with language models of 0.8 to 1.6 billion parameters in bf16 on this card"
    )
    assert yardstick(A100, 5e9)["low_pct"] == 25.5


@pytest.mark.parametrize(
    ("gpu", "parameters"),
    [
        (A100, 25e6),
        (A100, None),
        (A100 | {"name": "NVIDIA A100-SXM4-80GB MIG 1g.10gb"}, 1.5e9),
        (A100 | {"name": "NVIDIA L40S"}, 1.5e9),
        (A100 | {"peak": {"precision": "fp32"}}, 1.5e9),
    ],
)
def test_what_nobody_measured_has_none(gpu, parameters):
    assert yardstick(gpu, parameters) is None


def test_it_stands_beside_the_mfu(tmp_path):
    peak = {"tflops": 312, "precision": "bf16", "source": "https://example.org"}
    run = Generated(
        noise=0.0,
        framework={"name": "torch"},
        gpus=[{"index": 0, "name": A100["name"], "used_by_framework": True, "peak": peak}],
        model={"name": "gpt", "parameters": 1_500_000_000},
        work={"flops_per_sample": 5.6e12, "source": "given"},
        throughput={"samples": 100, "training_s": 10.0},
    )
    run.steps(100, step_ms=100)
    write(run, tmp_path)
    report = logdir_report(read_recordings(tmp_path))
    (gpu,) = report["runs"][0]["gpus"]
    assert gpu["mfu_pct"] == pytest.approx(17.9, abs=0.1)
    assert gpu["mfu_yardstick"]["source"].endswith("(MIT)")
    screen = " ".join(render(report, width=200).split())
    assert "MFU 18 % of bf16, 312 TFLOP/s (others reached 11 to 22 % with language" in screen
