"""What makes a scenario's verdict right, and when three instruments agree."""

import json

import pytest
from evidence.findings import read
from evidence.instruments import agreement
from evidence.scenarios import SCENARIOS, named
from evidence.table import table
from evidence.verdicts import judge
from generated_runs import GPU, Generated, write
from recorded_runs import show_recorded

from gpu_util_callback.diagnosis import RULES


def found(*causes, **more):
    return {"causes": list(causes), "windows": 2, "unavailable": [], **more}


def test_every_cause_that_is_spoken_of_exists():
    known = {rule.cause for rule in RULES}
    for scenario in SCENARIOS:
        assert scenario.expected | scenario.allowed <= known, scenario.name


@pytest.mark.parametrize(
    ("name", "answer", "right", "word"),
    [
        ("healthy", found(), True, ""),
        ("healthy", found("throttled"), False, "not true: throttled"),
        ("slow-input", found("input_bound"), True, ""),
        ("slow-input", found(), False, "not found: input_bound"),
        ("copies", found("transfer_bound", "input_bound"), True, ""),
        ("copies", found("input_bound"), False, "not found: transfer_bound"),
        ("copies", found("transfer_bound", "contention"), False, "not true: contention"),
        ("float32", found(windows=0), False, "not found"),
        ("competitor", found(), False, "not found: contention"),
        ("competitor", found(unavailable=[{"source": "gpu0 process ids"}]), True, "hides"),
        ("healthy", {"error": "no end within 5 s"}, False, "no end"),
    ],
)
def test_verdicts(name, answer, right, word):
    verdict = judge(named(name), answer)
    assert verdict.right is right
    assert word in verdict.note


def test_without_a_gpu_a_trace_may_be_absent():
    assert judge(named("float32"), found(windows=0), stand_in=True).right
    assert not judge(named("float32"), found(windows=2), stand_in=True).right


@pytest.mark.parametrize(
    ("nvml", "sm", "kernels", "busy", "said"),
    [
        (95, 80, 97, 97, "yes"),
        (95, 80, 60, 60, "no: trace -35"),
        (94, 12, 24, 94, "yes"),  # NVML counts copies, too
        (24, 12, 24, 94, "no: trace +70"),
        (40, 80, 45, 45, "no: SM +40"),
        (95, None, None, None, "-"),
        (None, None, 50, 50, "-"),
    ],
)
def test_agreement_of_the_instruments(nvml, sm, kernels, busy, said):
    numbers = {"nvml_pct": nvml, "sm_active_pct": sm, "kernel_busy_pct": kernels, "any_busy_pct": busy}
    assert agreement(numbers) == said


def test_copies_of_a_trace_are_read_beside_its_kernels(tmp_path):
    run = Generated(seed=1, gpus=[GPU])
    run.steps(300, step_ms=10)
    run.trace(8, 10, copy_h2d=0.7)
    write(run, tmp_path)
    measured = read(str(tmp_path))
    assert (measured["kernel_busy_pct"], measured["any_busy_pct"]) == pytest.approx((30, 100), abs=1)


def test_the_table_shows_what_is_not_known_as_such():
    scenario = named("healthy")
    text = table([(scenario, {"error": "x"}, judge(scenario, {"error": "x"}))])
    assert text.splitlines()[-1].split() == ["healthy", "nothing", *"------", "WRONG"]


def test_recorded_runs_are_shown_as_recorded(tmp_path):
    from make_recording import make_recording

    recorded = tmp_path / "recorded"
    truth = {
        "scenario": "healthy",
        "wrong": "nothing",
        "backend": "jax",
        "stand_in": False,
        "date": "2026-11-30",
        "gpu": "NVIDIA H200",
        "driver": "580.1",
        "keras": "3.15",
        "expected": [],
        "allowed": [],
    }
    for name, stand_in in (("healthy", False), ("played", True)):
        run = recorded / "h200-jax" / name
        make_recording(run, steps=200, gpus=1)
        (run / "truth.json").write_text(json.dumps({**truth, "stand_in": stand_in}))
    lines = show_recorded(recorded, tmp_path / "logs" / "recorded")
    assert "Recorded earlier, not on this machine now: 2026-11-30, NVIDIA H200, " in lines[0]
    assert len(lines) == 3 and "input pipeline" in lines[2]
    [shown] = (tmp_path / "logs" / "recorded").iterdir()
    assert shown.name == "2026-11-30, NVIDIA H200, driver 580.1, Keras 3.15 on jax"
    assert [run.name for run in shown.iterdir()] == ["healthy"]
    assert show_recorded(tmp_path / "none", tmp_path / "logs" / "recorded") == []
