"""Who holds the others back: found where the recordings say so, and never guessed."""

import pytest
from generated_runs import GPU, Generated, write

from gpu_util_callback.diagnosis import logdir_report
from gpu_util_callback.recording import read_recordings
from gpu_util_callback.report.terminal import render

H200 = GPU | {"index": 0}


def session(folder, workers):
    """Write `workers` (functions of a Generated run) as the ranks of a job; its findings."""
    for rank, make in enumerate(workers):
        run = Generated(
            seed=rank,
            gpus=[H200],
            job="abc",
            rank=rank,
            world_size=len(workers),
            fit_index=0,
            host=f"node-{rank}",
            framework={"name": "torch", "version": "2.13", "collectives": "nccl"},
        )
        make(run)
        write(run, folder)
    report = logdir_report(read_recordings(folder))
    (one,) = report["sessions"]
    return one["findings"], render(report, 100)


def traced(gpu_share=1.0, **share):
    def make(run):
        run.steps(100, step_ms=40, gpu_share=gpu_share)
        run.trace(5, 40, **share)
        run.steps(300, step_ms=40, gpu_share=gpu_share)

    return make


def sampled(active, sm=None, wait_ms=0.0):
    def make(run):
        run.steps(500, step_ms=40 - wait_ms, wait_ms=wait_ms, gpu_share=active / 100)
        if sm is not None:
            run.gpu_value("sm_active_pct", 30, sm)

    return make


WAITS = traced(collective=0.45, idle_launch=0.02)


@pytest.mark.parametrize(
    ("category", "word"),
    [
        ("kernel", "its GPU computes longer"),
        ("idle_host", "its host keeps the GPU waiting"),
        ("idle_launch", "its host launches slowly"),
        ("copy_h2d", "its copies to the GPU are slow"),
    ],
)
def test_the_worker_that_waits_least_and_works_most_is_named(tmp_path, category, word):
    share = {} if category == "kernel" else {category: 0.42}
    slow = traced(collective=0.05, **share)
    (found,), text = session(tmp_path, [WAITS, WAITS, slow, WAITS])
    assert found["ranks"] == [2]
    assert found["title"] == f"Worker 2 holds the others back: {word}"
    assert found["confidence"] == "estimated"
    # 40 % of 40 ms, 400 steps.
    assert found["lost_s"] == pytest.approx(0.4 * 0.040 * 400, rel=0.05)
    assert found["evidence"]["others_collective_ms_per_step"] == pytest.approx(18, rel=0.05)
    assert found["threshold"] == {"worker_wait_pct": 5}
    assert word in text


def without_nccl(active):
    def make(run):
        run.facts["framework"] = {"name": "torch", "collectives": "gloo"}
        sampled(active)(run)

    return make


@pytest.mark.parametrize(
    "workers",
    [
        # The exchange itself is slow, on all alike.
        [WAITS, WAITS, WAITS],
        # One waits less, but what it does instead was not seen to take longer.
        [WAITS, traced(collective=0.05, other=0.42), WAITS],
        # A worker without windows could be the one.
        [WAITS, sampled(99), traced(collective=0.05)],
        # They do not wait for each other: another pace.
        [WAITS, lambda run: (run.trace(5, 80, collective=0.02), run.steps(400, step_ms=80))],
        [lambda run: run.steps(500, step_ms=10, wait_ms=40), lambda run: run.steps(2500, step_ms=10, wait_ms=0.1)],
        # By counters: all alike, nobody is seen to wait, one does not tell, no clear difference, no NCCL.
        [sampled(98), sampled(95), sampled(97)],
        [sampled(60), sampled(30), sampled(62)],
        [sampled(98, 22), sampled(97), sampled(99, 71)],
        [sampled(98, 40), sampled(97, 45), sampled(99, 55)],
        [without_nccl(98), without_nccl(55), without_nccl(97)],
    ],
)
def test_where_the_recordings_do_not_tell_nobody_is_named(tmp_path, workers):
    assert session(tmp_path, workers)[0] == []


def test_a_worker_whose_gpu_idles_while_the_others_wait_in_nccl(tmp_path):
    (found,), text = session(tmp_path, [sampled(98), sampled(55), sampled(97)])
    assert found["ranks"] == [1] and found["lost_s"] is None
    assert found["evidence"]["worker_gap_pct"] >= 25
    assert "its GPU idles while the others wait" in text


def test_a_worker_whose_gpu_works_while_the_others_wait_in_nccl(tmp_path):
    (found,), _ = session(tmp_path, [sampled(98, 22), sampled(97, 20), sampled(99, 71)])
    assert found["ranks"] == [2] and found["lost_s"] is None
    assert found["title"].endswith("its GPU works longest")


def test_a_known_reason_is_the_only_one(tmp_path):
    """The GPU of a worker that waits for its input idles, too."""
    found, _ = session(tmp_path, [sampled(98), sampled(55, wait_ms=16.0), sampled(97)])
    assert [one["id"] for one in found] == ["imbalance:worker1.input_wait"]


def fed(later=40.5, **changed):
    """A rank with gradients exchanged by DistributedDataParallel, and the first two batches that it was given.

    Args:
        later: sum of the second one's photos.
    """
    photos = {
        "dtype": "float32",
        "rows": 32,
        "bytes": 221184,
        "min": -3.99,
        "max": 3.95,
        "sum": 17.25,
        "integers": False,
    }
    labels = {"dtype": "int64", "rows": 32, "bytes": 256, "min": 0.0, "max": 5.0, "sum": 80.0, "integers": True}

    def make(run):
        facts = {"exchanges": {"count": 300, "updates": 300, "exposed_ms": 1.0}} | changed.pop("facts", {})
        given = {"input_first": [photos | changed, labels], "input_second": [photos | {"sum": later}, labels]}
        run.facts["fit"] = {"loop": "custom"} | given | facts
        run.steps(400, step_ms=40)

    return make


def test_ranks_that_all_have_the_same_batches_are_named(tmp_path):
    """Seen: "Nothing held up training" of two ranks that each went through all rows, in the same order."""
    (found,), text = session(tmp_path, [fed(), fed(), fed()])
    assert found["id"] == "data_waste:ranks" and found["ranks"] == [0, 1, 2] and found["lost_s"] is None
    assert "DistributedSampler" in found["advice"]["code"] and "All 3 workers train on the same batches" in text


@pytest.mark.parametrize(
    "workers",
    [
        [fed(), fed(sum=17.5)],
        [fed(), fed(), fed(sum=17.5)],
        [fed(), fed(later=41.0)],  # one fixed batch first
        [fed(later=17.25), fed(later=17.25)],  # a warm-up: twice the same, then perhaps others
        [fed(facts={"input_second": []}), fed(facts={"input_second": []})],  # no second one was seen
        [fed(facts={"exchanges": None}), fed(facts={"exchanges": None})],  # each may train a model of its own
        [fed(min=0.0, max=1.0, integers=True), fed(min=0.0, max=1.0, integers=True)],  # masks: equal by chance
    ],
)
def test_ranks_whose_batches_differ_or_may_are_not(tmp_path, workers):
    assert session(tmp_path, workers)[0] == []


def test_a_late_start_does_not_hide_the_straggler(tmp_path):
    def early(run):
        run.steps(1, step_ms=6000)  # until the others have come
        run.steps(50, step_ms=40)

    def late(run):
        run.steps(1, step_ms=100)
        run.steps(50, step_ms=5, wait_ms=35)

    (found,), _ = session(tmp_path, [early, late])
    assert found["ranks"] == [1]
    assert found["advice"]["code"] == "" and found["saves_s"] == 0, "its own finding has the cure"


def stands_still(steps, collective, place):
    def make(run):
        run.steps(steps, step_ms=40)
        start = run.now
        run.now += 60_000_000_000
        standstill = {"start_ns": start, "seconds": 60.0, "step": steps, "limit_s": 30.0, "step_ms": 40.0}
        standstill |= {"thread": "training", "place": place, "calls": "", "collective": collective}
        run.facts["step_watch"] = {"seconds": 60.0, "times": 1, "standstills": [standstill], "still": True}

    return make


@pytest.mark.parametrize("steps", [400, 399])
def test_of_a_job_that_stands_still_the_worker_that_stopped_first_is_named(tmp_path, steps):
    waits = stands_still(400, collective=True, place="`main` at train.py:30")
    first = stands_still(steps, collective=False, place="`read` at data.py:7")
    findings, shown = session(tmp_path, [waits, first, waits])
    (finding,) = findings
    assert finding["cause"] == "stuck" and finding["ranks"] == [1] and finding["lost_s"] == 60
    assert "worker 1 stopped first" in finding["title"] and "data.py:7" in finding["title"]
    assert "worker 1 stopped first" in " ".join(shown.split())
