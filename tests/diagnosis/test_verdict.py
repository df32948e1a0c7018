"""What the verdict says of a run, and of one in which no rule found a cause."""

import re
from pathlib import Path

import numpy as np
import pytest
from generated_runs import GPU, Generated, findings_of, reported, write

from gpu_util_callback.diagnosis import logdir_report, run_report
from gpu_util_callback.diagnosis.compare import comparison
from gpu_util_callback.diagnosis.engine import promise_once
from gpu_util_callback.diagnosis.verdict import SMALL, headline, saves_range
from gpu_util_callback.job import RayContext, job_facts
from gpu_util_callback.recording import read_recordings
from gpu_util_callback.report.screen import grouped, two_lines
from gpu_util_callback.report.terminal import comparison_table, render
from gpu_util_callback.words import percent, times


def run_of(gpus=(), **steps):
    run = Generated(seed=3, gpus=list(gpus), framework={"backend": "torch"})
    run.steps(600, step_ms=20, **steps)
    return run


def compiling_a_little() -> Generated:
    run = Generated(seed=3, gpus=[GPU], framework={"backend": "tensorflow"})
    run.steps(1, step_ms=20, compile_ms=800, gpu_share=0.0)
    run.steps(2000, step_ms=20, gpu_share=0.81)
    return run


def unsampled() -> Generated:
    run = run_of([GPU])
    run.drop_samples = 1.0
    return run


def blind() -> Generated:
    run = run_of()
    run._steps[0]["input_wait_ns"] = np.full(600, -1)
    return run


def shared() -> Generated:
    run = run_of([GPU])
    run.gpu_value("utilization_other_pct", 30, 8)
    return run


def some_waits(wait_ms: float, seed: int = 3, waiting: int = 200, pace=lambda part: 20.0) -> Generated:
    """36 s of steps, of which some wait."""
    run = Generated(seed=seed, framework={"backend": "torch"}, fit=dict(LOADER))
    for part in range(18):
        run.steps(100, step_ms=pace(part), wait_ms=wait_ms if 100 * part < waiting else 0)
    return run


LOADER = {
    "input_kind": "torch DataLoader",
    "input_workers": 2,
    "input_pin_memory": True,
    "input_ready_pct": 98.0,
    "input_handover_ms": 4.0,
    "batch_size": 64,
    "loop": "custom",
}
JAX_PROCESSES = {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"}
NOT_HELD_UP = "Nothing held up training: "


OPTIMIZER = "Most of each step passes in the optimizer: "


def in_parts(samples: int = 75, device: str | None = "cpu", gpus=(), **parts: float) -> Generated:
    """A run whose steps passed in these parts of PyTorch's, by so many stack samples."""
    run = run_of(gpus)
    run.facts["framework"]["device"] = device
    run.facts["fit"]["python_in_steps"] = {"samples": samples, "parts": parts}
    return run


@pytest.mark.parametrize(
    "run, begins, there",
    [
        (run_of([GPU], gpu_share=0.4), "GPU active 40 %, no single cause", ""),
        (run_of([GPU], gpu_share=0.0), "GPU active 0", "no single cause"),
        (compiling_a_little(), "GPU active ", "no single cause"),
        (run_of([GPU], gpu_share=0.97), "Nothing held up training", "active 9"),
        (run_of([GPU, GPU | {"index": 1}]), "", "the GPUs were active 97 % of the time on average"),
        (shared(), "", "active 88 % of the time (not counting other processes)"),
        (run_of(), NOT_HELD_UP, ". No GPU, so the inside of steps was not checked."),
        (unsampled(), NOT_HELD_UP, ". GPU utilization was not measured, so the inside of steps was not checked."),
        (blind(), "", "No GPU, so waits for input and the inside of steps were not checked."),
        (in_parts(**{"forward": 0.034, "backward": 0.08, "optimizer.step": 0.88}), OPTIMIZER, " s of 12 s."),
        (in_parts(**{"optimizer.step": 0.4, "zero_grad": 0.2}), OPTIMIZER, " s of 12 s."),
        (
            in_parts(forward=0.6, backward=0.3, zero_grad=0.1),
            NOT_HELD_UP,
            "forward 60 %, backward 30 %, zero_grad 10 %.",
        ),
        (in_parts(19, optimizer=0.88), NOT_HELD_UP, "the inside of steps was not checked."),
        (in_parts(device=None, optimizer=0.88), NOT_HELD_UP, "the inside of steps was not checked."),
        (in_parts(forward=0.3, backward=0.1), NOT_HELD_UP, "the inside of steps was not checked."),  # most is elsewhere
        (in_parts(gpus=[GPU], optimizer=0.88), NOT_HELD_UP, "the GPU was active"),
        (run_of([GPU], wait_ms=3), "The GPU waits for its input: ", ""),  # now and then: it does not starve
        (run_of([GPU], wait_ms=20), "The input pipeline starves the GPU: ", ""),
        # 3.2 s of 40 are 9 %, a gain within the scatter of a run whose parts' pace lies 12 % from its middle as a rule.
        (some_waits(4.0, waiting=900), "Training waits", ""),
        (some_waits(4.0, waiting=900, pace=lambda part: 20 + 3 * (-1) ** part), "Nothing large", ""),
        (some_waits(12.0, waiting=1800, pace=lambda part: 20 + 6 * (-1) ** part), "Training waits for its input", ""),
    ],
)
def test_the_verdict_begins_with_what_counts(run, begins, there):
    found = run.diagnose()
    assert found["verdict"].startswith(begins) and there in found["verdict"]
    assert "GPU active" not in begins or not findings_of(found)


def test_an_idle_gpu_that_no_cause_explains_is_explained_by_the_shares_beside_it(tmp_path):
    run = run_of([GPU], gpu_share=0.7)
    run.trace(8, 20, kernels=500, idle_launch=0.13, idle_sync=0.07, idle_host=0.02)
    run.steps(100, step_ms=20, gpu_share=0.7)
    found = reported(run, tmp_path / "run")
    assert not findings_of(found)
    idle = found["gpu_time_est"]["0"]
    launch, sync = (percent(100 * idle[name] / found["wall_s"]) for name in ("idle_launch", "idle_sync"))
    assert f", no single cause: {launch} idle between launches, {sync} at syncs. " in found["verdict"]
    assert "other work of the host" not in found["verdict"], "under a twentieth"


def test_what_took_most_of_the_rest_is_named(tmp_path):
    run = run_of()
    run.phase("callback", 10, name="Export")  # once: an event, and no state of the run
    found = reported(run, tmp_path / "run")
    assert not findings_of(found)
    assert found["verdict"].startswith("No bottleneck found: ")
    assert "% in callbacks. No GPU, so" in found["verdict"]


@pytest.mark.parametrize("gpus, share", [([], None), ([GPU], 0.4)])
def test_the_compiling_that_every_run_begins_with_is_named_where_it_is_much(tmp_path, gpus, share):
    run = Generated(seed=3, gpus=gpus, framework={"backend": "tensorflow"})
    compiling = np.zeros(200)
    compiling[0] = 2_500
    run.steps(200, step_ms=20, compile_ms=compiling, gpu_share=share or 0.97)
    verdict = reported(run, tmp_path / "run")["verdict"]
    assert "% compiling" in verdict and ("% without compiling" in verdict) == bool(gpus)
    assert verdict.startswith("GPU active " if gpus else "Nothing held up training")


@pytest.mark.parametrize("gpus", [[], [GPU]])
@pytest.mark.parametrize(
    ("kind", "account", "subject"),
    [
        ("compilation", "compile", "Compiling"),
        ("validation", "validation", "Validation"),
        ("callback", "callbacks", "Callbacks"),
        ("input_setup", "input_wait", "Waiting for input"),
    ],
)
def test_what_took_more_than_the_steps_comes_first(tmp_path, kind, account, subject, gpus):
    """Once, and short: no finding. "No bottleneck" beside three quarters of the time sounds as if there were none."""
    run = Generated(seed=3, gpus=gpus, framework={"backend": "tensorflow"})
    run.phase(kind, 0.4, name="once", account=account)
    run.steps(40, step_ms=3)
    found = reported(run, tmp_path / "run")
    assert not findings_of(found)
    assert re.match(rf"{subject} took 7\d % of 5\d\d ms, training steps 2\d %", found["verdict"]), found["verdict"]


def test_nothing_held_back_is_not_said_beside_a_wait(tmp_path):
    run = Generated(seed=3, framework={"backend": "tensorflow"})
    run.phase("input_setup", 1.0, name="iterator")  # once: no state
    run.phase("compilation", 0.9, name="train function traced", account="compile")
    run.steps(300, step_ms=16.5)
    verdict = reported(run, tmp_path / "run")["verdict"]
    assert verdict.startswith("Nothing held up training") and "waiting" not in verdict


def test_steps_that_cannot_be_read_are_not_called_none(tmp_path):
    path = Path(write(run_of(), tmp_path / "run"))
    for file in path.glob("*.npz"):  # the sums, too
        file.write_bytes(file.read_bytes()[:100])
    report = logdir_report(read_recordings(tmp_path / "run"))
    [run] = report["runs"]
    assert run["steps"] == 600 and not run["findings"]
    assert run["verdict"].startswith("The 600 steps of this run could not be read: damaged")
    table = "\n".join(comparison_table(comparison([run, run]), 100))
    assert "not readable" in table and "none" not in table


def _shown(verdict: str) -> str:
    return verdict.split("active ")[1].split(" %")[0].removeprefix("only ")


@pytest.mark.parametrize("busy", [0.97, 0.6])
def test_verdict_card_and_bar_name_one_share(tmp_path, busy):
    """Samples are denser while the GPU works; what is shown is its share of the run's time."""
    run = run_of([GPU], gpu_share=busy)
    run.phase("callback", 6, name="Export")
    run.drop_samples = 0.0
    samples = run.samples

    def thinned():
        blocks = samples()
        for block in blocks.values():
            seconds = (block["time_ns"] - block["time_ns"][0]) / 1e9
            kept = (block["utilization_pct"] > 10) | (np.arange(len(seconds)) % 10 == 0)
            blocks["gpu0"] = {name: column[kept] for name, column in block.items()}
        return blocks

    run.samples = thinned
    write(run, tmp_path / "run")
    [recording] = read_recordings(tmp_path / "run")
    report = run_report(recording)
    [gpu] = report["gpus"]
    shown = _shown(report["verdict"])
    assert percent(gpu["utilization_pct"]["mean"]) == f"{shown} %"
    account = report["gpu_time_est"]["0"]
    assert account["basis"] == "nvml"
    assert percent(100 * account["gpu_active"] / report["wall_s"]) == f"{shown} %"
    plain = recording.summary["gpu0"]["utilization_pct"]["mean"]
    assert plain > gpu["utilization_pct"]["mean"] + 5, "else this test shows nothing"
    assert f"GPU active {shown} %" in render(logdir_report([recording]))


def lines(run: Generated, folder: Path) -> list[str]:
    return two_lines(reported(run, folder)).splitlines()


@pytest.mark.parametrize(
    ("wait_ms", "policy", "backend", "is_said"),
    [
        (0, "float64", "torch", True),
        (0, "float64", "jax", True),
        (10, "float64", "tensorflow", True),
        (60, "float64", "tensorflow", False),  # the input takes most of the time
        (0, "float32", "torch", False),
    ],
)
def test_a_model_in_float64_is_asked_about_where_its_steps_take_most(wait_ms, policy, backend, is_said):
    run = Generated(seed=3, framework={"backend": backend, "device": "cpu"}, fit={"mixed_precision": policy})
    run.steps(300, step_ms=20, wait_ms=wait_ms)
    found = [finding for finding in run.diagnose()["findings"] if finding["cause"] == "slow_steps"]
    assert [finding["title"] for finding in found] == ["The model computes in float64"] * is_said
    assert all(finding["advice"]["question"] and finding["lost_s"] is None for finding in found)


def test_what_can_be_tried_is_said_beside_a_loss_that_nothing_mends(tmp_path):
    """Epochs of arrays set up their input; the cost of half precision is not known."""
    facts = {"input_kind": "numpy", "mixed_precision": "mixed_float16"}
    run = Generated(
        seed=3,
        framework={"backend": "tensorflow", "device": "cpu"},
        fit=facts,
        machine={"cpu": "A", "cpu_float16": False},
    )
    for _ in range(6):
        with run.epoch():
            run.steps(60, step_ms=20)
            run.phase("input_setup", 0.5, name="iterator")
    first, second = lines(run, tmp_path)
    assert "Training waits for its input: 3" in first
    assert first.endswith("Half precision on a CPU; cost unknown.")
    assert "To try (Half precision on a CPU): " in second and "float32" in second


def test_of_a_fix_and_a_question_the_fix_alone_counts_and_is_shown():
    asked = {"saves_s": 0.0, "saves_range_s": [5.0, 8.0], "lost_s": 8.0, "id": "input_bound@50", "start_step": 50}
    fix = {"saves_s": 3.0, "saves_range_s": [2.0, 4.0], "lost_s": 4.0, "id": "input_bound@0", "start_step": 0}
    findings = [
        {"cause": "input_bound", "title": "Input-bound", "advice": {"text": "", "code": "a", "question": question}} | of
        for of, question in ((asked, True), (fix, False))
    ]
    [group] = grouped(findings)
    assert group.first["id"] == "input_bound@0"
    assert headline(findings, 20.0)["saves_range_s"] == list(saves_range(group.members)) == [2.0, 4.0]
    assert saves_range([findings[0]]) == (5.0, 8.0), "alone it is what a yes saves"


@pytest.mark.parametrize(
    "first, second, referred",
    [
        ({"code": "ds = ds.batch(128)"}, {"code": "ds = ds.batch(64)"}, True),
        ({"code": "ds1.workers = 4"}, {"code": "ds2.workers = 4"}, False),  # of training and of validation
        ({"code": "ds = ds.batch(16)", "saves_s": None}, {"code": "ds = ds.batch(128)"}, False),  # less, and more
        ({"start_step": 0, "end_step": 500}, {"start_step": 500, "end_step": 900}, False),
        ({"start_step": 0, "end_step": 500}, {"start_step": 400, "end_step": 900}, True),
        ({}, {"question": True}, False),
        ({}, {"cause": "launch_bound"}, False),
    ],
)
def test_the_same_change_is_promised_once(first, second, referred):
    findings = []
    for cause, of in (("launch_bound", first), ("sync_bound", second)):
        given = {"code": "ds = ds.batch(128)", "question": False, "saves_s": 3.0, "cause": cause} | of
        advice = {"text": "Do.", "before": "", "code": given.pop("code"), "question": given.pop("question")}
        findings.append({"title": "Slow", "evidence": {}, "saves_range_s": None, "advice": advice} | given)
    promise_once(findings)
    text, code = (findings[1]["advice"][name] for name in ("text", "code"))
    assert (text, code == "") == (
        ('Do. The same change as for "Slow" helps here, too.', True) if referred else ("Do.", False)
    )
    assert findings[1]["saves_s"] == (0 if referred else 3)
    assert findings[0]["advice"]["code"]


def test_a_small_finding_is_listed_and_makes_no_headline(tmp_path):
    run = some_waits(5.0)
    found = run.diagnose()
    [finding] = found["spans"]
    assert 0.9 < finding["lost_s"] < 1.1
    assert found["verdict"].startswith("Nothing large held up training: 9")
    assert "1.0 s" not in found["verdict"], "said once, by the line below"
    assert "batch_size" not in finding["advice"]["code"], "for 1.01 times the speed"
    _, second = lines(run, tmp_path / "run")
    assert "Fix first" not in second and "Minor: Input-bound, 1.0 s" in second
    text = render(logdir_report(read_recordings(tmp_path / "run")))
    assert "Input-bound" in text and " 1×" not in text


@pytest.mark.parametrize("backend, waits_ms", [("tensorflow", 0.0), ("tensorflow", 5.0), ("jax", 5.0)])
def test_a_verdict_about_a_cause_of_unknown_cost_has_no_headline_of_another(tmp_path, backend, waits_ms):
    """Seen: an eager model, and as its first finding a wait of a twelfth of the run that no line saves."""
    run = some_waits(waits_ms)
    run.facts |= {"framework": {"backend": backend}, "fit": dict(LOADER) | {"run_eagerly": True, "loop": "keras"}}
    found = reported(run, tmp_path / "run")
    assert found["verdict"].startswith("The step runs eagerly") and found["headline"] is None
    assert {one["cause"] for one in findings_of(found)} == {"launch_bound"} | ({"input_bound"} if waits_ms else set())


def test_runs_of_one_program_have_one_headline():
    """Their waits lie about the limit from which they are findings."""
    verdicts = [some_waits(wait_ms, seed).diagnose() for seed, wait_ms in enumerate((3, 3.6, 4.2))]
    assert len({bool(found["spans"]) for found in verdicts}) == 2
    openings = {found["verdict"].partition(":")[0] for found in verdicts}
    assert openings <= {"Nothing held up training", "Nothing large held up training"}


@pytest.mark.parametrize("gpus", [[], [GPU]])
@pytest.mark.parametrize(("own", "all_pct", "others"), [(45, 98, "1.5"), (115, 96, "0.8")])
def test_cores_that_other_programs_keep_are_said_in_place_of_an_all_clear(gpus, own, all_pct, others):
    """Seen: two busy processes of others made training 1.5 to 2.1 times slower, and nothing held it up."""
    run = run_of(gpus, gpu_share=0.4)
    run.facts["machine"] = {"cpus": 2, "cpus_allowed": 2}
    full = host_samples(run, process_cpu_pct=own, cpu_pct=all_pct, threads_queued_pct=85)
    verdict = run.diagnose(samples=run.samples() | full)["verdict"]
    waited = f"this one's threads waited for one {percent(100 * 85 / (85 + max(15, own)))} of their time"
    assert f"Other programs used {others} of the 2 cores, and {waited}" in verdict, verdict
    assert verdict.startswith("GPU active " if gpus else "Other programs used") and "held" not in verdict
    quiet = run.diagnose(samples=run.samples() | host_samples(run, process_cpu_pct=own, cpu_pct=own / 2 + 2))
    assert "Other programs" not in quiet["verdict"]


@pytest.mark.parametrize("kind", ["validation", "checkpoint", "callback"])
def test_cores_that_other_programs_keep_are_said_beside_a_stall(kind):
    """Seen: two busy processes of others, and validations of half of the time."""
    run = Generated(seed=1)
    for _ in range(4):
        with run.epoch():
            run.steps(200, step_ms=10)
            run.phase(kind, 2, name=f"Pictures.{kind}")
    run.facts["machine"] = {"cpus": 2, "cpus_allowed": 2}
    full = host_samples(run, process_cpu_pct=45, cpu_pct=98, threads_queued_pct=85)
    verdict = run.diagnose(samples=run.samples() | full)["verdict"]
    assert "stalls training: 8.0 s of 16 s." in verdict and " Other programs used 1.5 of the 2 cores, and" in verdict
    quiet = run.diagnose(samples=run.samples() | host_samples(run, process_cpu_pct=45, cpu_pct=25))
    assert "stalls training" in quiet["verdict"] and "Other programs" not in quiet["verdict"]


@pytest.mark.parametrize(
    "place",
    [
        job_facts(environ={"WORLD_SIZE": "2", "RANK": "1", "MASTER_PORT": "29500"}),
        job_facts(environ=JAX_PROCESSES),
        job_facts(environ={}, framework=("JAX", "a", 0, 4)),
        RayContext("Ray Tune", "train_ab12_00000").facts(),
    ],
    ids=["torchrun", "JAX by environment", "the framework's count", "Ray Tune"],
)
def test_cores_that_a_job_may_keep_itself_are_not_said_to_be_other_programs(place):
    """Seen: one of two ranks on two cores was told that other programs used 0.8 of them."""
    run = run_of([])
    run.facts |= {"machine": {"cpus": 2, "cpus_allowed": 2}} | place
    full = host_samples(run, process_cpu_pct=115, cpu_pct=96, threads_queued_pct=85)
    verdict = run.diagnose(samples=run.samples() | full)["verdict"]
    assert verdict.startswith("Other processes of this job or other programs used 0.8 of the 2 cores, and "), verdict
    assert verdict.startswith(SMALL)


def host_samples(run: Generated, **values: float) -> dict:
    times = np.arange(run.facts["started_ns"], run.now, 500_000_000)
    columns = {name: np.full(len(times), float(value)) for name, value in ({"children_cpu_pct": 0} | values).items()}
    return {"host": {"time_ns": times} | columns}


def test_the_headline_is_the_finding_whose_cure_saves_most(tmp_path):
    run = run_of([GPU], wait_ms=20)
    run.facts.setdefault("fit", {})["callbacks"] = {"Export": {"every": {"period": 1}}}
    run.slow_map(600, 40)
    for _ in range(6):
        run.steps(60, step_ms=20)
        run.phase("callback", 2.5, name="Export.on_epoch_end")
    found = reported(run, tmp_path / "run")
    listed = findings_of(found)
    assert {one["cause"] for one in listed} == {"input_bound", "host_stall"}
    saves = sum(one["saves_s"] for one in listed)
    assert found["headline"]["all_saves_s"] == pytest.approx(saves)
    first = max(listed, key=lambda one: one["saves_range_s"][0])
    gains = [times(found["wall_s"] / (found["wall_s"] - saved)) for saved in first["saves_range_s"]]
    assert found["verdict"].endswith(f"Fixing it could make this run {gains[0][:-1]} to {gains[1]} faster.")
    assert found["headline"]["ids"] == [first["id"]]


@pytest.mark.parametrize(
    ("each_s", "facts", "begins", "second"),
    [
        # Validation costs more and has no remedy that is sure; the smaller one can be asked about.
        (
            {"validation": 1.2, "callback": 0.7},
            {"epochs": 2},
            "Validation stalls training: 2.4 s. Sheet stalls training",
            "Ask first (Sheet): ",
        ),
        # The larger one leads: "it" is plain.
        ({"validation": 0.4, "callback": 2.0}, {}, "Sheet stalls training: 12 s of", "Ask first: "),
        # A fix by an argument that promises, behind what only may cost more.
        (
            {"validation": 1.2, "callback": 0.9},
            {"callbacks": {"Sheet": {"every": {"period": 1}}}},
            "Validation stalls training: 7.2 s. Sheet stalls training: 5.4 s of 15 s. Fixing Sheet could make this run",
            "Fix first (Sheet): Sheet(..., period=",
        ),
    ],
)
def test_a_headline_says_which_of_two_findings_is_to_be_fixed(tmp_path, each_s, facts, begins, second):
    fit = {"input_kind": "numpy", "epochs": 6, "steps_per_epoch": 20, **facts}
    run = Generated(seed=3, framework={"name": "tensorflow", "backend": "tensorflow"}, fit=fit)
    for _ in range(fit["epochs"]):
        with run.epoch():
            run.steps(20, step_ms=20)
            for kind, seconds in each_s.items():
                run.phase(kind, seconds, name={"validation": "validation"}.get(kind, "Sheet.on_epoch_end"))
    found = reported(run, tmp_path / "run")
    lines = two_lines(found).splitlines()
    assert found["verdict"].startswith(begins), found["verdict"]
    assert lines[1].strip().startswith(second), lines


def test_a_single_cause_is_promised_by_itself(tmp_path):
    run = run_of([GPU], wait_ms=20)
    run.slow_map(600, 40)
    found = reported(run, tmp_path / "run")
    assert re.search(r"s\. Fixing it could make this run 1.5 to 2× faster\.$", found["verdict"])
