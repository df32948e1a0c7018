"""Work of a loop that lies in some of its steps: an evaluation in every fiftieth."""

import numpy as np
import pytest
from generated_runs import GPU, START_NS, Generated

TORCH = {"name": "torch", "backend": "torch"}


def loop(count: int = 12, long_ms: float = 400, *, gpus=(), gpu_share: float = 0.97, framework=TORCH, kind="custom"):
    """Return a loop of steps of 2 ms, the fiftieth of which takes `long_ms`."""
    run = Generated(seed=4, gpus=list(gpus), framework=framework, fit={"loop": kind, "input_kind": "generator"})
    for _ in range(count):
        run.steps(49, step_ms=2, gpu_share=0.6)
        run.steps(1, step_ms=np.array([long_ms]), gpu_share=gpu_share)
    return run


def found(run: Generated) -> list[dict]:
    return [one for one in run.findings("host_stall") if one["title"] == "Long steps among short ones"]


def test_long_steps_are_counted_and_asked_for_their_name():
    [finding] = found(loop())
    assert finding["lost_s"] == pytest.approx(12 * 0.4, rel=0.02) and finding["saves_s"] == 0
    assert finding["evidence"]["times"] == 12
    assert "12 of 600 steps take 200 times as long as the others" in finding["advice"]["text"]
    assert finding["advice"]["code"].startswith('with monitor.phase("validation")')


@pytest.mark.parametrize(
    ("dispatch", "named"),
    [
        ({"samples": 200, "called": "save_grid", "in_called": 160}, True),
        ({"samples": 200, "called": "save_grid", "in_called": 60}, False),  # not most of them
        ({"samples": 10, "called": "save_grid", "in_called": 9}, False),
        ({"samples": 200, "called": None, "in_called": 0}, False),
    ],
)
def test_the_function_in_which_they_pass_is_named(dispatch, named):
    """Seen: pictures that a GAN saves in each 25th step were long steps without a name."""
    run = loop()
    run.facts["fit"]["dispatch"] = dispatch
    [finding] = run.findings("host_stall")
    assert (finding["title"] == "save_grid makes some steps long") == named
    code = finding["advice"]["code"]
    assert code == "if step % 100 == 0:\n    save_grid(...)" if named else code.startswith("with monitor.phase")
    assert finding["advice"]["question"] == named
    if named:
        run.facts["fit"]["dispatch"] |= {"own": 130, "own_at": "save_grid (gan.py, line 30)", "at_place": 90}
        [of_line] = run.findings("host_stall")
        assert "passes in save_grid (gan.py, line 30)." in of_line["advice"]["text"]
        assert finding["saves_range_s"][0] == pytest.approx(0.5 * finding["lost_s"] / 1.2, rel=0.05)


@pytest.mark.parametrize(("gpu_share", "lost_s"), [(0.02, 4.8), (0.5, 2.5)])
def test_of_long_steps_only_the_time_in_which_the_gpu_idles_is_lost(gpu_share, lost_s):
    [finding] = found(loop(gpus=[GPU], gpu_share=gpu_share, long_ms=400))
    assert finding["lost_s"] == pytest.approx(lost_s, rel=0.3)


@pytest.mark.parametrize(
    "run",
    [
        loop(long_ms=20),  # not a fifth of the time
        loop(long_ms=25, count=40),  # so long does Linux give the core to others
        loop(count=2),
        loop(gpus=[GPU], gpu_share=0.98),  # it waits there for a GPU that is at work
        loop(framework={"name": "jax", "backend": "jax"}),  # the same on a CPU
        loop(kind="fit"),
    ],
)
def test_they_are_no_finding_where_they_are_rare_short_or_at_work(run):
    assert not found(run)


EVERY_50TH, AT_TIMES = range(49, 1000, 50), (20, 90, 190, 240, 430, 470, 600, 710, 950)


@pytest.mark.parametrize(
    ("at", "process", "count"),
    [
        (AT_TIMES, 90, 0),
        (AT_TIMES, 190, 1),
        (EVERY_50TH, 90, 1),  # no other program comes in the rhythm of steps
    ],
)
def test_on_cores_that_others_take_a_step_may_take_long(at, process, count):
    """Seen: a loop of PyTorch beside other programs was asked where it validates."""
    run = Generated(seed=4, gpus=[], framework=TORCH, fit={"loop": "custom", "input_kind": "generator"})
    run.steps(1000, step_ms=np.where(np.isin(np.arange(1000), list(at)), 400.0, 2.0))
    run.facts["machine"] = {"cpus": 2, "cpus_allowed": 2}
    times = np.arange(START_NS, run.now, 10**9)
    cpu = {"process_cpu_pct": np.full(len(times), float(process)), "cpu_pct": np.full(len(times), 97.0)}
    findings = run.findings("host_stall", samples=run.samples() | {"host": {"time_ns": times, **cpu}})
    assert len(findings) == count
