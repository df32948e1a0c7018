"""`gpu-util total`: sums over all runs, restarts joined, the command."""

import json
import shutil
import tracemalloc
from pathlib import Path

import pytest
from generated_runs import GPU, Generated, findings_of, write
from make_recording import make_recording

from gpu_util_callback.cli import main
from gpu_util_callback.diagnosis import logdir_report
from gpu_util_callback.diagnosis.run_reports import Recorded
from gpu_util_callback.diagnosis.run_summary import MAX_BYTES, read_summary, summary_as_diagnosed, written
from gpu_util_callback.diagnosis.survey import survey
from gpu_util_callback.diagnosis.total_time import REPEATED, total
from gpu_util_callback.recording import read_recordings
from gpu_util_callback.recording.manifest import parse
from gpu_util_callback.recording.manifest_facts import RunSummary
from gpu_util_callback.recording.schema import SUMMARY_FILE

HOUR = 3600.0


def total_of(*logdirs, **options):
    return total(survey([str(logdir) for logdir in logdirs], **options))


def run_of(seconds=6.0, *, gpus=1, at_s=0.0, wait_ms=0.0, **facts) -> Generated:
    gpus = [GPU | {"index": at, "uuid": f"GPU-{at}"} for at in range(gpus)]
    facts = {"script": "train.py", "model": {"parameters": 1_000_000}, "fit_index": 0} | facts
    run = Generated(seed=1, gpus=gpus, at_s=at_s, **facts)
    run.steps(round(seconds * 100), step_ms=10, wait_ms=wait_ms)
    return run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixed")
    for place, scenario in enumerate(("thirds", "healthy", "slow", "host_stall", "no_gpu")):
        make_recording(folder / scenario, scenario, 300, 3, seed=place, scalars=False)
    return folder


@pytest.fixture
def mixed(made, tmp_path):
    """Recordings that the test may change."""
    return shutil.copytree(made, tmp_path, dirs_exist_ok=True)


def test_the_sums_are_those_of_the_single_reports(mixed):
    found = total_of(mixed)
    runs = logdir_report(read_recordings(mixed))["runs"]
    wall = sum(run["wall_s"] * len(run["gpus"]) for run in runs)
    lost, saves = {}, {}
    for run in runs:
        for one in findings_of(run):
            if one["lost_s"] and run["gpus"]:
                cause = one["cause"]
                lost[cause] = lost.get(cause, 0) + one["lost_s"] * len(run["gpus"])
                most_s = min(one["lost_s"], (one["saves_range_s"] or (0.0, 0.0))[1])
                saves[cause] = saves.get(cause, 0) + most_s * len(run["gpus"])
    assert len(lost) >= 2
    hours = found["gpu_hours"]
    assert hours["total"] == pytest.approx(wall / HOUR, rel=1e-6)
    assert hours["lost"] == pytest.approx(sum(lost.values()) / HOUR, rel=1e-6)
    assert sum(hours[part] for part in ("productive", "lost", "other", "not_judged")) == (
        pytest.approx(hours["total"], rel=1e-6)
    )
    by_cause = {one["cause"]: one for one in found["causes"]}
    for cause in lost:
        assert by_cause[cause]["gpu_hours"] == pytest.approx(lost[cause] / HOUR, rel=1e-6)
        assert by_cause[cause]["saves_gpu_hours"] == pytest.approx(saves[cause] / HOUR, rel=1e-6)
    assert all(saves.values()), "a fix that asks a question saves time, too"
    assert found["without_gpu"]["recordings"] == 1
    active = sum(run["wall_s"] * gpu["utilization_pct"]["mean"] / 100 for run in runs for gpu in run["gpus"])
    assert found["gpu_active"]["gpu_hours"] == pytest.approx(active / HOUR, rel=1e-3)
    assert found["read"]["diagnosed"] == 0  # their manifests were enough


def test_the_runs_add_up_to_the_whole(mixed):
    found = total_of(mixed)
    assert sum(run["gpu_hours"]["total"] for run in found["runs"]) == (
        pytest.approx(found["gpu_hours"]["total"], abs=1e-7)
    )


def test_runs_are_ranked_by_what_fixing_them_saves(mixed):
    found = total_of(mixed)
    saves = [run["saves_gpu_hours"] for run in found["runs"]]
    assert saves == sorted(saves, reverse=True) and saves[0] > saves[-1]
    first = found["runs"][0]
    assert first["run"] == "slow" and first["top"]["cause"] == "input_bound"
    assert "map(" in first["top"]["advice"]["code"]


def test_gpus_that_do_nothing_lose_all_their_time(tmp_path):
    run = run_of(30, gpus=2)
    samples = run.samples

    def one_idles(hz=10):
        groups = samples(hz)
        groups["gpu1"]["utilization_pct"][:] = 0
        return groups

    run.samples = one_idles
    write(run, tmp_path, framework={"name": "tensorflow", "backend": "tensorflow"})
    found = total_of(tmp_path)
    [cause] = [one for one in found["causes"] if one["cause"] == "gpus_unused"]
    assert cause["gpu_hours"] == pytest.approx(found["gpu_hours"]["total"] / 2, rel=1e-6)
    assert cause["hours"] == 0  # the training itself is not slower for it
    assert found["gpu_hours"]["productive"] < found["gpu_hours"]["total"] / 2


@pytest.mark.parametrize(
    "scheduler, counted",
    [
        (None, False),  # a shared machine: others may have used them
        ({"name": "SLURM", "job": "7", "restarts": 0}, True),
    ],
)
def test_gpus_that_the_framework_leaves_alone_count_where_they_were_given(tmp_path, scheduler, counted):
    run = run_of(10, gpus=2, scheduler=scheduler)
    for gpu in run.facts["gpus"]:
        gpu["used_by_framework"] = False
    write(run, tmp_path)
    found = total_of(tmp_path)
    wall = found["hours"]["total"]
    assert found["gpu_hours"]["total"] == pytest.approx(2 * wall if counted else 0)
    assert found["gpu_hours"]["lost"] == found["gpu_hours"]["total"]


# --- the summaries beside the recordings ----------------------------------------------------------


def summarize(logdir):
    """Write what a recorder writes at the end, from the manifests below a log directory."""
    for path in Path(logdir).rglob("manifest.json"):
        summary = summary_as_diagnosed(Recorded(parse(path.read_bytes())[0]), "ended")
        path.with_name(SUMMARY_FILE).write_bytes(written(summary))


def test_the_total_of_summaries_is_that_of_manifests(mixed):
    of_manifests = total_of(mixed)
    summarize(mixed)
    sizes = [path.stat().st_size for path in mixed.rglob(SUMMARY_FILE)]
    assert len(sizes) == 5 and max(sizes) <= MAX_BYTES
    for path in mixed.rglob("manifest.json"):
        path.write_text("not read")
    assert total_of(mixed) == of_manifests


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-20],
        lambda data: b"[" * 2000,
        lambda data: data.replace(b'"wall_s":', b'"wall_s":"'),
        lambda data: data.replace(b'"steps":', b'"steps":-'),
        lambda data: data.replace(b'"lost_s":', b'"lost_s":1e300,"x":'),
        lambda data: data.replace(b'"judged"', b'"jugded"'),
        lambda data: data + b" " * MAX_BYTES,
    ],
)
def test_a_damaged_summary_gives_way_to_the_manifest(mixed, damage):
    expected = total_of(mixed)
    summarize(mixed)
    for path in mixed.rglob(SUMMARY_FILE):
        path.write_bytes(damage(path.read_bytes()))
    assert total_of(mixed) == expected


def test_rows_on_disk_give_the_same_total_in_little_memory(mixed, tmp_path_factory, monkeypatch):
    [slow] = (mixed / "slow").rglob("manifest.json")
    summary = json.loads(written(summary_as_diagnosed(Recorded(parse(slow.read_bytes())[0]), "ended")))

    def runs(count: int) -> Path:
        """Write `count` summaries: of jobs of two ranks, where every third job goes on with the one before it."""
        folder = tmp_path_factory.mktemp("runs")
        for at in range(count):
            group, start = at // 6, at % 6 // 2
            begin_ns = summary["start_ns"] + group * 10**12 + start * 10**11
            facts = {"start_ns": begin_ns, "end_ns": begin_ns + 10**10, "rank": at % 2, "world_size": 2}
            facts |= {"job": f"job{at // 2}", "job_source": "argument", "process": [at, at], "script": "a.py"}
            facts["status"] = "interrupted" if start == 1 else "ended"
            home = folder / f"run{group}-{min(start, 1)}/plugins/gpu_utilization/{at:06d}"
            home.mkdir(parents=True)
            (home / SUMMARY_FILE).write_text(json.dumps({**summary, **facts}))
        return folder

    def peak_bytes(folder: Path) -> int:
        tracemalloc.start()
        found = total_of(folder)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert found["recordings"] == 3 * found["trainings"] == 6 * found["restarts"]["restarts"]
        return peak

    few, many = runs(60), runs(420)
    known = {**total_of(few)}
    monkeypatch.setattr("gpu_util_callback.diagnosis.survey.MOST_IN_MEMORY", 1)
    assert {**total_of(few)} == known
    assert (peak_bytes(many) - peak_bytes(few)) / 360 < 2500, "bytes a run; with all rows in memory 4400"


def test_a_summary_keeps_the_advice_that_saves_most_and_stays_small(mixed):
    losses = {f"cause_{at}": {"title": "T", "lost_s": 9.0, "saves_s": float(at)} for at in range(20)}
    advice = {cause: {"text": "x" * 300, "code": ""} for cause in losses}
    row = survey([str(mixed / "slow")]).rows[0]
    data = written({name: row[name] for name in RunSummary.__annotations__} | {"lost": losses, "advice": advice})
    assert data is not None and len(data) <= MAX_BYTES
    kept = read_summary(data)
    assert kept is not None and "cause_19" in kept["advice"] and "cause_0" not in kept["advice"]
    assert kept["lost"] == losses
    wide = row | {"gpus": {str(at): "NVIDIA H100 80GB HBM3" for at in range(64)}, "lost": losses, "advice": advice}
    assert written({name: wide[name] for name in RunSummary.__annotations__}) is None, "total reads its manifest"


# --- restarts -------------------------------------------------------------------------------------


def chain(tmp_path, starts, run="run", **facts):
    """Write starts of (first epoch, steps, status); an epoch has 100 steps."""
    at_s = 0.0
    for place, (epoch, steps, status) in enumerate(starts):
        one = run_of(
            steps / 100,
            at_s=at_s,
            pid=100 + place,
            **{name: value[place] if isinstance(value, list) else value for name, value in facts.items()},
        )
        one.facts["fit"] |= {"first_epoch": epoch, "first_iteration": 100 * epoch, "steps_per_epoch": 100}
        home = run if isinstance(run, str) else run[place]
        write(one, tmp_path / home, status=status, process_started=place)
        at_s += steps / 100 + 60
    return total_of(tmp_path)


KILLED = [(0, 370, "interrupted"), (3, 250, "interrupted"), (5, 130, "interrupted"), (6, 400, "ended")]


def test_a_job_killed_and_resumed_three_times_counts_each_step_once(tmp_path):
    found = chain(tmp_path, KILLED)
    [training] = found["runs"]
    assert len(training["restarts"]) == 3
    assert training["steps"] == 1000
    assert found["restarts"] == {"trainings": 1, "restarts": 3, "steps_done_again": 150, "unknown": 0}
    [repeated] = [one for one in found["causes"] if one["cause"] == REPEATED]
    assert repeated["gpu_hours"] == pytest.approx(150 * 0.0101 / HOUR, rel=0.02)
    assert found["gpu_hours"]["total"] == pytest.approx(1150 * 0.0101 / HOUR, rel=0.02)


def test_a_start_from_nothing_makes_everything_before_it_lost(tmp_path):
    found = chain(tmp_path, [(0, 300, "interrupted"), (3, 200, "interrupted"), (0, 900, "ended")])
    [training] = found["runs"]
    assert training["steps"] == 900 and found["restarts"]["steps_done_again"] == 500


SLURM = {"name": "SLURM", "job": "4711", "restarts": 0}


KILLED_ONCE, ENDED_TWICE = ([(0, 150, status), (0, 200, "ended")] for status in ("interrupted", "ended"))
APART = {"run": ["a", "b"]}  # another log directory at each start, as with a time in its name
POD = APART | {"scheduler": {"name": "Kubernetes", "job": "t/bert", "restarts": None}}


@pytest.mark.parametrize(
    "starts, facts, joined",
    [
        (KILLED_ONCE, APART | {"scheduler": [SLURM, SLURM | {"restarts": 1}]}, True),
        (KILLED_ONCE, APART | {"scheduler": [SLURM, SLURM]}, False),  # a sweep within one job
        (KILLED_ONCE, POD, True),
        (ENDED_TWICE, POD, False),  # the next training of the same pod
        (KILLED_ONCE, APART | {"trial": "trial_ab12", "trial_of": "Ray Tune"}, True),
        (KILLED_ONCE, APART | {"trial": ["trial_1", "trial_2"], "trial_of": "Ray Tune"}, False),
        # Restored from a backup, whatever the log directory is called.
        ([(0, 250, "interrupted"), (2, 200, "ended")], APART, True),
        ([(0, 250, "interrupted"), (4, 200, "ended")], APART, False),
        ([(0, 250, "ended"), (2, 200, "ended")], APART, False),
        # In the same log directory.
        ([(0, 200, "ended"), (2, 200, "ended")], {}, True),
        (ENDED_TWICE, {}, False),
        (KILLED_ONCE, {}, True),
        (KILLED_ONCE, {"script": ["train.py", "tune.py"]}, False),
        (KILLED_ONCE, {"model": [{"parameters": 1}, {"parameters": 2}]}, False),
        (KILLED_ONCE, {"script": None}, False),
    ],
)
def test_what_shows_that_a_start_continues_another(tmp_path, starts, facts, joined):
    facts = dict(facts)
    found = chain(tmp_path, starts, run=facts.pop("run", "run"), **facts)
    assert found["trainings"] == (1 if joined else 2)
    assert found["restarts"]["restarts"] == (1 if joined else 0)


def test_steps_done_again_are_unknown_where_the_start_is(tmp_path):
    for place in range(2):
        one = run_of(2, at_s=100 * place, pid=place)
        write(one, tmp_path, status="interrupted", process_started=place)
    found = total_of(tmp_path)
    [training] = found["runs"]
    assert training["steps"] is None and found["restarts"]["unknown"] == 1
    assert found["gpu_hours"]["lost"] == 0


def test_the_ranks_of_a_job_are_one_training_and_all_their_gpus_count(tmp_path):
    for rank in range(4):
        write(run_of(5, job="j", rank=rank, world_size=4), tmp_path / f"worker{rank}")
    found = total_of(tmp_path)
    [training] = found["runs"]
    assert training["ranks"] == 4 and training["gpus"] == 4 and training["steps"] == 500
    assert found["gpu_hours"]["total"] == pytest.approx(4 * found["runs"][0]["wall_s"] / HOUR)


# --- reading --------------------------------------------------------------------------------------


def test_a_recording_without_a_diagnosis_is_diagnosed_from_its_rows(tmp_path):
    write(run_of(20, wait_ms=10), tmp_path / "old")
    found = total_of(tmp_path)
    assert found["read"]["diagnosed"] == 1
    assert found["causes"][0]["cause"] == "input_bound"


def test_other_thresholds_diagnose_every_run_with_them(mixed):
    assert total_of(mixed)["causes"]
    found = total_of(mixed, thresholds={"input_bound.wait_pct": 99})
    assert found["read"]["diagnosed"] == 5
    assert "input_bound" not in {one["cause"] for one in found["causes"]}


def test_a_damaged_recording_does_not_hide_the_others(mixed):
    [manifest] = (mixed / "slow").rglob("manifest.json")
    manifest.write_bytes(manifest.read_bytes()[:500])
    [newer] = (mixed / "healthy").rglob("manifest.json")
    facts = json.loads(newer.read_bytes())
    newer.write_text(json.dumps(facts | {"format": [99, 0]}))
    found = total_of(mixed)
    assert found["recordings"] == 4  # the rows of "slow" can still be read
    said = [one["message"] for one in found["read"]["problems"]]
    assert any("upgrade gpu-util-callback" in text for text in said)
    assert any("manifest.json" in text for text in said)


def test_a_damaged_fact_is_said(mixed):
    [manifest] = (mixed / "slow").rglob("manifest.json")
    facts = json.loads(manifest.read_bytes())
    manifest.write_text(json.dumps(facts | {"fits": "many"}))
    found = survey([str(mixed)])
    assert len(found.rows) == 5 and len(found.problems) == 1


def test_a_recording_found_twice_counts_once(mixed):
    once = total_of(mixed)
    assert total_of(mixed, mixed / "slow")["recordings"] == once["recordings"]


@pytest.mark.parametrize("where", ["logs", "logs/slow", "logs/slow/plugins/gpu_utilization"])
def test_an_object_store_gives_the_same_as_a_folder(mixed, where):
    import fsspec

    store = fsspec.filesystem("memory")
    try:
        store.put(str(mixed), "/bucket/logs", recursive=True)
        found = total_of(f"memory://bucket/{where}")
        local = total_of(mixed / where.removeprefix("logs").strip("/"))
        assert found["gpu_hours"] == local["gpu_hours"] and found["gpu_hours"]["total"] > 0
        assert found["causes"] == local["causes"]
        names = [sorted(run["run"] for run in one["runs"]) for one in (found, local)]
        assert names[0] == names[1]
    finally:
        store.store.clear()
        store.pseudo_dirs[:] = [""]


# --- the command ----------------------------------------------------------------------------------


def command(capsys, *arguments):
    code = main(["total", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_the_command_prints_the_total(mixed, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    code, text, said = command(capsys, mixed)
    assert code == 0 and not said
    assert "GPU time" in text and "Input-bound" in text and "input_bound" not in text
    assert "1. 2 runs: saves up to" in text and "slow, thirds" in text, "one fix helps both"
    assert max(map(len, text.splitlines())) <= 100
    code, text, _ = command(capsys, mixed, "--json")
    report = json.loads(text)
    assert code == 0 and report["version"] == 1 and report["logdirs"] == [str(mixed)]


def test_a_price_makes_costs_of_the_hours(mixed, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    arguments = ["total", str(mixed), "--price-per-gpu-hour", "3.5"]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    cost, hours = found["cost"], found["gpu_hours"]
    assert cost["total"] == pytest.approx(3.5 * hours["total"], abs=1e-6)
    assert cost["lost"] == pytest.approx(3.5 * hours["lost"], abs=1e-6) and cost["lost"] > 0
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert f"At 3.50 an hour of a GPU: {cost['total']:,.2f} in all, {cost['lost']:,.2f} lost" in said
    with pytest.raises(SystemExit):
        main(["total", str(mixed), "--price-per-gpu-hour", "-1"])
    assert main(["total", str(mixed), "--json"]) == 0
    assert "cost" not in json.loads(capsys.readouterr().out)


def test_globs_name_log_directories(mixed, capsys):
    code, text, _ = command(capsys, f"{mixed}/h*", "--json")
    assert code == 0 and json.loads(text)["recordings"] == 2
    code, _, said = command(capsys, f"{mixed}/x*")
    assert code == 2 and said == f"gpu-util total: no directory matches {mixed}/x*\n"


def test_input_that_cannot_be_used_is_one_line(tmp_path, capsys):
    for arguments, line in (
        ((), "which log directories?"),
        ((tmp_path / "no",), "does not exist"),
        ((tmp_path,), "no recording in"),
        (("http://127.0.0.1:6006",), "is a web address"),
    ):
        code, text, said = command(capsys, *arguments)
        assert code == 2 and not text and line in said and said.count("\n") == 1


def test_hours_of_training_count_where_no_run_held_a_gpu(tmp_path, capsys):
    make_recording(tmp_path, "no_gpu", 200, scalars=False)
    code, text, _ = command(capsys, tmp_path)
    assert code == 0 and "no run held a GPU" in text and "hours of training" in text


def test_the_page_lists_all_runs_and_no_name_leaves_its_cell(mixed, tmp_path, capsys):
    write(run_of(5, script="</script><b>x.py"), mixed / "<i>evil")
    out = tmp_path / "total.html"
    code, _, said = command(capsys, mixed, "--html", out)
    assert code == 0 and "wrote" in said
    text = out.read_text()
    assert "</script><b>" not in text and "<i>evil" not in text
    data = json.loads(text.partition('id="gpu-utilization-data">')[2].partition("</script>")[0])
    rows = data["runs"]["recordings"]
    assert len(rows) == len(data["total"]["runs"]) == 6
    assert {"slow", "<i>evil"} <= {row["run"] for row in rows}
    code, _, said = command(capsys, mixed, "--html", tmp_path / "no" / "x.html")
    assert code == 2 and "cannot write" in said
