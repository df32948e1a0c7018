"""What a loop of one's own does outside its steps without saying so."""

import pytest
from generated_runs import GPU, MS, START_NS, Generated, findings_of, write

from gpu_util_callback import read_recordings
from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.report.screen import grouped, two_lines

CUSTOM = {"loop": "custom", "batch_size": 32, "input_kind": "generator"}


def loop(gpus=(), **facts) -> Generated:
    return Generated(
        seed=5, gpus=list(gpus), **{"fit": CUSTOM, "framework": {"name": "torch", "backend": "torch"}} | facts
    )


def unnamed(run: Generated, ms: float, busy: float = 0.0) -> None:
    run._busy.append((run.now, run.now + round(ms * MS), busy))
    run.now += round(ms * MS)


def epochs(run: Generated, count: int, ms: float, *, busy: float = 0.0) -> None:
    for _ in range(count):
        with run.epoch():
            run.steps(60, step_ms=20)
        unnamed(run, ms, busy)


def test_work_after_each_epoch_is_a_question_and_no_fix():
    run = loop()
    epochs(run, 5, 2400)
    run.steps(60, step_ms=20, wait_ms=4)  # a small wait, which cost far less
    found = run.diagnose()
    [span] = [one for one in found["spans"] if one["cause"] == "host_stall"]
    assert found["verdict"].startswith("No bottleneck found: 12 s of ")
    assert "faster" not in found["verdict"]  # a mark by itself saves nothing
    assert span["lost_s"] == pytest.approx(12, rel=0.01) and span["saves_s"] == 0
    assert span["evidence"]["place_in_loop"] == "after each epoch"
    assert "2.4 s after each epoch is unaccounted for" in span["advice"]["text"]
    assert span["advice"]["code"].startswith('with monitor.phase("validation"): ...')


def sampled(**samples):
    """Return a loop of 60 steps with 100 ms between them, as stack samples show it."""
    run = loop(fit={**CUSTOM, "dispatch": {"samples": 100, "between": 100} | samples})
    for _ in range(60):
        run.steps(1, step_ms=20)
        unnamed(run, 100)
    return run


@pytest.mark.parametrize("inside, cause", [(80, "predict"), (30, "unmarked")])
def test_predict_between_the_steps_has_its_name(inside, cause):
    run = sampled(between_predict=inside, between_predict_set_up=3 * inside // 4)
    [span] = run.findings("host_stall")
    assert f"host_stall:{cause}" in span["id"]
    named = cause == "predict"
    assert ("predict_on_batch" in span["advice"]["code"]) == named
    assert span["saves_s"] == pytest.approx(0.6 * span["lost_s"] if named else 0, rel=0.01)


@pytest.mark.parametrize("inside, cause", [(80, "fetching"), (0, "unmarked"), (None, "unmarked")])
def test_an_iterator_between_the_steps_is_input(inside, cause):
    run = sampled(between_input=inside)
    [span] = run.findings("host_stall")
    assert f"host_stall:{cause}" in span["id"]
    named = cause == "fetching"
    assert run.diagnose()["verdict"].startswith("Training waits for its input") == named
    assert ("monitor.batches(dataset)" in span["advice"]["code"]) >= named
    assert span["saves_s"] == 0


@pytest.mark.parametrize("reads, in_function", [(80, 0), (80, 80), (30, 0)])
def test_reads_of_what_jax_computes_are_no_work_without_a_name(reads, in_function):
    """Seen: "work outside steps and phases: mark it" of a loop that reads its loss once an epoch."""
    run = sampled(between_reads=reads, between_function="test", between_in_function=in_function)
    [span] = run.findings("host_stall")
    waits = (reads, in_function) == (80, 0)
    assert span["title"].startswith("The loop waits for values of JAX") == waits
    assert (span["lost_s"] is None) == waits


def in_function(count: int, *, each_epoch: bool = True, function: str | None = "test", **facts) -> Generated:
    """A loop that spends 2.4 s in a function after each of 5 epochs, or 100 ms of it after each step."""
    dispatch = {"samples": 100, "between": 100, "between_function": function, "between_in_function": count}
    run = loop(fit={**CUSTOM, "dispatch": dispatch, **facts})
    if each_epoch:
        epochs(run, 5, 2400)
        run.steps(60, step_ms=20)
    else:
        for _ in range(60):
            run.steps(1, step_ms=20)
            unnamed(run, 100)
    return run


def test_a_function_outside_the_steps_has_its_name():
    run = in_function(90)
    [span] = run.findings("host_stall")
    assert "host_stall:function" in span["id"] and span["title"] == "test runs after each epoch"
    assert run.diagnose()["verdict"].startswith("test runs after each epoch: 12 s of ")
    assert span["advice"]["question"] and span["advice"]["code"] == "if epoch % 2 == 0:\n    test(...)"
    assert span["saves_s"] == 0 and span["saves_range_s"][0] == pytest.approx(5, rel=0.02)
    assert span["evidence"]["between_function_pct"] == 90


def test_a_loader_that_lightning_makes_again_for_each_epoch_has_its_name():
    """Seen: texts parsed in train_dataloader were time without a name, behind a small wait for batches."""
    run = in_function(90, function="Reviews.train_dataloader", trainer="lightning")
    assert run.diagnose()["verdict"].startswith("Reviews.train_dataloader runs after each epoch: 12 s of ")
    [span] = run.findings("host_stall")
    assert "in setup" in span["advice"]["text"] and span["saves_s"] == 0


@pytest.mark.parametrize(
    "facts", [{"function": "make_loader"}, {"function": "Net.on_train_epoch_start", "trainer": "lightning"}]
)
def test_what_may_be_made_once_is_asked_about(facts):
    """A function that made the loader anew was offered to run in every second epoch."""
    [span] = in_function(90, **facts).findings("host_stall")
    assert span["title"] == f"{facts['function']} runs after each epoch"
    assert "make the same each time, such as data? Then call it once" in span["advice"]["text"]
    assert bool(span["advice"]["code"]) == ("trainer" not in facts)


def test_a_function_between_the_steps_is_to_be_marked_by_its_name():
    [span] = in_function(80, each_epoch=False, function="log_images").findings("host_stall")
    assert span["title"] == "log_images runs between the steps" and span["saves_s"] == 0
    assert 'with monitor.phase("validation"): log_images(...)' in span["advice"]["code"]


@pytest.mark.parametrize(
    "facts", [{"count": 40}, {"count": 90, "function": None}, {"count": 90, "trainer": "lightning"}]
)
def test_other_time_outside_the_steps_stays_without_a_name(facts):
    [span] = in_function(**facts).findings("host_stall")
    assert "host_stall:unmarked" in span["id"]


def test_an_eager_step_is_named_before_time_without_a_name(tmp_path):
    dispatch = {"samples": 100, "eager": 90, "function": "step"}
    tensorflow = {"name": "tensorflow", "backend": "tensorflow"}
    run = loop(fit={**CUSTOM, "dispatch": dispatch}, framework=tensorflow)
    epochs(run, 5, 2400)
    write(run, tmp_path)
    report = run_report(*read_recordings(tmp_path))
    assert report["verdict"].startswith("The step runs eagerly")
    eager, unnamed_ = grouped(findings_of(report))
    assert (eager.first["cause"], unnamed_.first["id"][:19]) == ("launch_bound", "host_stall:unmarked")
    assert "Compile step into one program" in two_lines(report)


def test_time_without_a_name_alone_is_never_fixed_first(tmp_path):
    run = loop()
    epochs(run, 5, 2400)
    write(run, tmp_path)
    said = two_lines(run_report(*read_recordings(tmp_path)))
    assert "Fix first" not in said
    assert 'To see what it is: with monitor.phase("validation")' in said


@pytest.mark.parametrize(
    "times, steps, ms, place, counted",
    [(8, 50, 900, "about every 50 steps", 8), (200, 1, 15, "between the steps", None)],
)
def test_what_a_loop_does_now_and_then_is_told_by_its_pace(times, steps, ms, place, counted):
    run = loop()
    for _ in range(times):
        run.steps(steps, step_ms=20)
        unnamed(run, ms)
    [span] = run.findings("host_stall")
    assert span["evidence"]["place_in_loop"] == place and span["evidence"].get("times") == counted
    assert span["lost_s"] == pytest.approx(times * ms / 1e3, rel=0.02)


def stretches() -> Generated:
    """One is setting up, and one an event."""
    run = loop()
    for ms in (20_000, 9_000):
        unnamed(run, ms)
        run.steps(200, step_ms=20)
    return run


def after_epochs(run: Generated, ms: float) -> Generated:
    epochs(run, 5, ms)
    return run


@pytest.mark.parametrize(
    "run",
    [*(after_epochs(loop(), ms) for ms in (0, 10, 150)), stretches(), after_epochs(Generated(seed=5), 2400)],
    ids=["0 ms", "10 ms", "150 ms", "now and then", "Keras' fit"],
)
def test_a_loop_that_keeps_its_books_is_healthy(run):
    assert run.findings("host_stall") == []


@pytest.mark.parametrize("busy, lost_s", [(0.0, 15), (0.97, 0)])
def test_what_keeps_the_gpu_at_work_loses_nothing(busy, lost_s):
    run = loop([GPU])
    epochs(run, 5, 3000, busy=busy)
    assert sum(span["lost_s"] for span in run.findings("host_stall")) == pytest.approx(lost_s, rel=0.1)


def test_it_is_never_more_than_the_account_leaves():
    run = loop()
    epochs(run, 5, 2400)
    run._phase("callback", "by mistake", START_NS, START_NS + 6 * 10**9, 0, account="callbacks")  # counted twice
    [span] = run.findings("host_stall")
    assert span["lost_s"] == pytest.approx(6, rel=0.01)


def test_a_long_run_is_told_by_its_epochs():
    run = loop()
    for _ in range(40):
        with run.epoch():
            run.steps(2000, step_ms=20)
        unnamed(run, 30_000)
    [span] = run.findings("host_stall")
    assert span["evidence"]["place_in_loop"] == "after each epoch"
    assert span["lost_s"] == pytest.approx(40 * 30, rel=0.03)
