"""What the tab is told about a recording among its like: workers of a job, the fit before."""

import pytest
from generated_runs import GPU, STARTED, Generated, write
from make_recording import make_recording
from plugin_app import PluginApp

from gpu_util_callback import read_recordings
from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.recording.reader import Recording
from tensorboard_plugin import jobs
from tensorboard_plugin.jobs import job_reply


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    """Two fits of one model, the first starved; three workers, one of them starved."""
    root = tmp_path_factory.mktemp("jobs")
    make_recording(root / "before", "slow", steps=300, gpus=1, past_s=3000, **STARTED)
    make_recording(root / "after", "healthy", steps=300, gpus=1, past_s=2000, **STARTED)
    for rank in range(3):
        # In step: what one waits for its input, the others wait for it in the step.
        run = Generated(seed=1, gpus=[GPU], rank=rank, world_size=3, job="b", host=f"node-{rank}")
        run.steps(300, step_ms=10 if rank == 1 else 40, wait_ms=30 if rank == 1 else 0)
        write(run, root / "pod")
    return root


@pytest.fixture(scope="module")
def ask(logdir):
    """`ask(run, rank=0)`: the id of one recording, and the reply for it."""
    app = PluginApp(logdir)

    def ask_(run, rank=0):
        (one,) = [item for item in app.json("/runs")["recordings"] if (item["run"], item["rank"]) == (run, rank)]
        return one["id"], app.json("/job", id=one["id"])

    return ask_


def test_the_fit_before_is_named_with_what_was_promised_and_got(ask):
    before, first = ask("before")
    _, second = ask("after")
    assert first["since"] is None and first["findings"] == [] and first["verdict"] is None
    since = second["since"]
    assert (since["id"], since["run"], since["gone"]) == (before, "before", ["input_bound"])
    assert 1.5 < since["got"] <= 1.1 * since["estimated"][1]


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_every_worker_hears_of_the_slow_one(ask, rank):
    id_, reply = ask("pod", rank)
    assert [one["rank"] for one in reply["workers"]] == [0, 1, 2]
    assert reply["workers"][rank]["id"] == id_
    (finding,) = reply["findings"]
    assert finding["cause"] == "imbalance" and finding["ranks"] == [1]
    assert {row["name"] for row in finding["rows"]} == set(finding["evidence"])
    assert reply["verdict"]["rank"] == 1 and reply["verdict"]["finding"] == finding["id"]
    assert reply["verdict"]["id"] == reply["workers"][1]["id"]
    assert reply["verdict"]["text"].startswith(finding["title"])
    # What the late one finds by itself is the same loss: it has one number.
    of_late = next(group for group in reply["verdict"]["groups"] if group["ranks"] == [1])
    assert of_late["lost_s"] == reply["verdict"]["lost_s"] == finding["lost_s"] > 0
    waits = reply["waits"]
    assert waits["confidence"] == "measured"
    assert waits["rank"] == 1 and (waits["steps"][0], waits["steps"][-1]) == (0, 300)
    assert len(waits["steps"]) == len(waits["ns"]) == len(waits["rows"][0]["shares"]) + 1
    assert waits["ns"] == sorted(waits["ns"])
    for row in waits["rows"]:  # 30 of 40 ms, for its input or for the one that waits for it
        assert row["shares"] == pytest.approx([0.75] * len(row["shares"]), abs=0.1), row


def reply_of(folder, *workers):
    """Return the reply for the first of workers, each of which a function makes of a run."""
    for rank, make in enumerate(workers):
        run = Generated(
            seed=rank,
            gpus=[GPU],
            rank=rank,
            world_size=len(workers),
            job="b",
            fit_index=0,
            host=f"node-{rank}",
            framework={"name": "torch", "version": "2.13", "collectives": "nccl"},
        )
        make(run)
        write(run, folder)
    recordings = sorted(read_recordings(folder), key=lambda one: one.facts["rank"])
    return job_reply(recordings[0], recordings, run_report)


def test_waits_that_only_profiler_windows_show_are_one_share_and_an_estimate(tmp_path):
    def traced(collective, **share):
        def make(run):
            run.steps(100, step_ms=40)
            run.trace(5, 40, collective=collective, **share)
            run.steps(300, step_ms=40)

        return make

    waits = reply_of(tmp_path, traced(0.45), traced(0.45), traced(0.05, idle_host=0.42))["waits"]
    assert (waits["rank"], waits["part"], waits["confidence"]) == (2, "idle_host", "estimated")
    assert (waits["steps"][0], waits["steps"][-1]) == (0, 400) and waits["ns"] == sorted(waits["ns"])
    for row in waits["rows"]:
        assert len(row["shares"]) + 1 == len(waits["steps"]) and set(row["shares"]) == {row["shares"][0]}
    assert [row["shares"][0] for row in waits["rows"]] == pytest.approx([0.4, 0.4, 0.42], abs=0.03)


def test_how_long_workers_wait_is_not_known_from_counters(tmp_path):
    def sampled(active):
        return lambda run: run.steps(500, step_ms=40, gpu_share=active / 100)

    reply = reply_of(tmp_path, sampled(98), sampled(55), sampled(97))
    assert reply["findings"][0]["ranks"] == [1] and reply["waits"] is None


def test_only_reports_that_are_needed_are_made(logdir):
    """2,000 runs in a log directory must not be read for one of them."""
    recordings = sorted(read_recordings(logdir), key=lambda one: one.start_ns)
    made = []

    def report_of(one):
        made.append(one.run)
        return run_report(one)

    first = next(one for one in recordings if one.run == "before")
    reply = job_reply(first, recordings, report_of)
    assert len(reply["workers"]) == 1 and made == ["before"]


def test_a_job_of_too_many_workers_is_judged_by_what_each_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "MAX_WORKERS", 2)
    for rank in range(4):
        path = make_recording(
            tmp_path / f"{rank}",
            "slow" if rank == 2 else "healthy",
            steps=300,
            gpus=1,
            job="a",
            rank=rank,
            world_size=4,
        )
        assert path
    recordings = list(read_recordings(tmp_path))
    known = {one.id: run_report(one) for one in recordings}
    monkeypatch.setattr(Recording, "stored", property(lambda one: known[one.id]))
    for one in recordings:
        one.session = "s"

    made = []
    reply = jobs.job_reply(recordings[0], recordings, lambda one: made.append(one.id) or known[one.id])
    assert set(made) <= {recordings[0].id}, "the reports of all would take too long"
    assert len(reply["workers"]) == 4 and reply["findings"] == []
    assert reply["verdict"]["rank"] == 2 and reply["verdict"]["text"].startswith("Worker 2 of 4: ")
    assert reply["verdict"]["groups"][0]["ranks"] == [2]
