"""Several GPUs of one training: what holds them back together is lost once, and only where it
computes."""

import pytest
from generated_runs import GPU, Generated, findings_of

BOARD = GPU | {"sm_clock_max_mhz": 1980, "power_limit_mw": 700_000, "power_default_mw": 700_000}
HOT = {"sm_clock_mhz": 1200, "throttle_thermal_pct": 95}
COOL = {"sm_clock_mhz": 1965, "throttle_thermal_pct": 0}


def several(count: int, **facts) -> Generated:
    gpus = [BOARD | {"index": gpu, "nvml_index": gpu} for gpu in range(count)]
    return Generated(seed=count, gpus=gpus, **facts)


def part(run: Generated, values: dict[int, dict[str, float]], **steps) -> tuple[int, int]:
    """A stretch of steps, in which the GPUs read these values."""
    begin = run.now
    first, end = run.steps(400, **({"step_ms": 30} | steps))
    for gpu, columns in values.items():
        for column, value in columns.items():
            run.gpu_value(column, (run.now - begin) / 1e9, value, gpu=gpu)
    return first, end


def only(run: Generated, cause: str) -> dict:
    found = run.diagnose()
    [finding] = findings_of(found)
    assert finding["cause"] == cause
    return finding | {"verdict": found["verdict"]}


@pytest.mark.parametrize("count", [2, 8])
def test_gpus_that_are_hot_together_lose_their_time_once(count):
    def lost(gpus: int) -> dict:
        run = several(gpus)
        part(run, dict.fromkeys(range(gpus), COOL))
        part(run, dict.fromkeys(range(gpus), HOT))
        return only(run, "throttled")

    one, all_of_them = lost(1), lost(count)
    assert all_of_them["lost_s"] == pytest.approx(one["lost_s"], rel=0.02)
    assert all_of_them["gpus"] == list(range(count))
    assert "faster" not in all_of_them["verdict"]  # a lower power limit or colder air: nobody measured what they save
    numbers = ",".join(map(str, range(count)))
    assert f"nvidia-smi -i {numbers} -q" in all_of_them["advice"]["code"]


def test_the_hotter_of_two_sets_the_pace_and_each_is_named():
    run = several(3)
    part(run, {0: COOL, 1: HOT, 2: HOT | {"sm_clock_mhz": 990}})
    finding = only(run, "throttled")
    assert finding["gpus"] == [1, 2] and finding["evidence"]["gpu"] == 2
    assert finding["severity"] == pytest.approx(0.97 * (1 - 990 / 1980), abs=0.02)
    assert finding["advice"]["text"].startswith("Heat slows gpu1 and gpu2 down")


def test_two_reasons_of_one_slow_clock_are_one_loss():
    run = several(1)
    part(run, {0: HOT | {"throttle_other_pct": 60}})
    finding = only(run, "throttled")
    assert finding["title"] == "Throttled (thermal)"
    assert finding["severity"] == pytest.approx(0.97 * (1 - 1200 / 1980), abs=0.02)


def test_what_others_take_from_two_gpus_at_once_is_taken_once():
    shared = {"utilization_other_pct": 40}
    run = several(2)
    part(run, {0: shared, 1: shared})
    finding = only(run, "contention")
    assert finding["severity"] == pytest.approx(0.4, abs=0.02)
    assert "gpu0 and gpu1" in finding["title"] and finding["gpus"] == [0, 1]


def test_the_free_gpu_takes_the_place_of_the_shared_one_alone():
    run = several(3)
    part(
        run,
        {
            0: {"utilization_other_pct": 0},
            1: {"utilization_other_pct": 40},
            2: {"utilization_pct": 0, "utilization_other_pct": 0},
        },
    )
    [finding] = run.findings("contention")
    assert "CUDA_VISIBLE_DEVICES=0,2 " in finding["advice"]["code"]


def test_many_free_gpus_are_counted():
    run = several(10)
    shared, free = {"utilization_other_pct": 40}, {"utilization_pct": 0, "utilization_other_pct": 0}
    part(run, {gpu: shared if gpu < 5 else free for gpu in range(10)})
    [finding] = run.findings("contention")
    assert "Nobody uses 5 GPUs" in finding["advice"]["text"]


@pytest.mark.parametrize(
    "theirs",
    [
        {"utilization_pct": 95, "utilization_other_pct": 95},
        {"utilization_pct": 95, "utilization_other_pct": 94} | HOT,
        {"utilization_pct": 60, "utilization_other_pct": 60},
    ],
    ids=["full", "hot", "half busy"],
)
def test_a_gpu_that_only_somebody_else_computes_on_holds_nobody_back(theirs):
    """TensorFlow sees all GPUs of a shared machine, and runs everything on the first."""
    run = several(2)
    part(run, {0: {"utilization_other_pct": 0}, 1: theirs})
    found = run.diagnose()
    assert found["spans"] == found["findings"] == []
    assert found["verdict"].startswith("Nothing held up training")


def test_a_wait_behind_the_busy_gpu_costs_nothing_though_another_one_is_unused():
    run = several(2)
    part(run, {1: {"utilization_pct": 0}}, step_ms=10, wait_ms=5, gpu_in_wait=1.0)
    assert only(run, "gpus_unused")["evidence"]["busy_active_pct"] > 90


@pytest.mark.parametrize("active", [1 / 3, 0.53, 0.8])
def test_causes_share_what_the_gpu_idled(active):
    """Waits and callbacks of a third each, on a GPU that works through some of both."""
    run = several(1)
    part(run, {}, step_ms=10, wait_ms=10, callback_ms=10)
    begin, end, _ = run._busy[-1]
    run._busy[-1] = begin, end, active
    found = run.diagnose()
    assert {span["cause"] for span in found["spans"]} == {"input_bound", "host_stall"}
    idle_s = (1 - active) * (end - begin) / 1e9
    assert sum(span["lost_s"] for span in found["spans"]) == pytest.approx(idle_s, rel=0.05)
    waits = next(span for span in found["spans"] if span["cause"] == "input_bound")
    length = (waits["end_ns"] - waits["start_ns"]) / 1e9
    assert waits["evidence"]["faster_up_to"] == pytest.approx(length / (length - waits["saves_s"]), rel=0.03)


def test_an_eager_model_is_not_charged_with_what_validation_took():
    run = several(1, fit={"run_eagerly": True})
    idle_s = 0.0
    for _ in range(6):
        with run.epoch():
            run.steps(200, step_ms=10, wait_ms=5, gpu_share=0.3)
            run.phase("validation", 2, share=0.2)
    idle_s = sum((end - start) * (1 - share) for start, end, share in run._busy) / 1e9
    findings = run.findings()
    assert {finding["cause"] for finding in findings} == {"input_bound", "host_stall", "launch_bound"}
    assert sum(finding["lost_s"] for finding in findings) <= 1.03 * idle_s


def test_a_day_of_eight_gpus_gives_tens_of_spans():
    run = several(8)
    for bout in range(40):
        bad = {gpu: HOT | {"utilization_other_pct": 40} for gpu in range(bout % 8 + 1)}
        good = COOL | {"utilization_other_pct": 0}
        part(run, dict.fromkeys(range(8), good))
        part(run, {gpu: bad.get(gpu, good) for gpu in range(8)})
    found = run.diagnose()
    assert {span["cause"] for span in found["spans"]} == {"throttled", "contention"}
    assert len(found["spans"]) <= 48


def test_a_gpu_that_comes_and_goes_all_day_gives_tens_of_spans():
    run = several(1)
    for _ in range(100):
        run.steps(20, step_ms=30)
        run.mark("gpu0/lost", "lost", 1)
        run.steps(20, step_ms=30)
        run.mark("gpu0/lost", "lost", 0)
    spans = run.diagnose()["spans"]
    assert 1 <= len(spans) <= 24
    assert sum(span["evidence"]["times"] or 1 for span in spans) == 100
    assert spans[0]["title"] == "gpu0 was lost and came back"


@pytest.mark.parametrize("limit, cause", [(0.92, "memory_pressure"), (0.3, "memory_limit")])
def test_eight_full_memories_are_one_finding(limit, cause):
    run = several(8)
    total = BOARD["memory_total_bytes"]
    values = {"allocator_limit_bytes": limit * total, "allocator_peak_bytes": 0.97 * limit * total}
    part(run, dict.fromkeys(range(7), values))
    finding = only(run, cause)
    assert finding["gpus"] == list(range(7)) and "(7 GPUs)" in finding["title"]


@pytest.mark.parametrize("why, cause", [(HOT, "throttled"), ({"utilization_other_pct": 40}, "contention"), ({}, None)])
def test_waiting_for_a_slow_gpu_is_not_lost_a_second_time(why, cause):
    """The others idle for half of each step; that is what the slow one's fault costs."""
    run = several(3)
    waits = {"utilization_pct": 50}
    part(run, {0: waits, 1: why, 2: waits})
    lost = {span["cause"]: span["lost_s"] for span in run.diagnose()["spans"]}
    assert set(lost) == {"imbalance", cause} - {None}
    assert (lost["imbalance"] is None) == (cause is not None)


@pytest.mark.parametrize("first", [True, False])
def test_what_others_take_before_the_first_step_or_behind_the_last_is_not_taken_from_us(first):
    run = Generated(seed=9, gpus=[GPU])

    def training():
        run.steps(500, step_ms=20)
        run.gpu_value("utilization_other_pct", 10, 0)

    def others_alone():
        run.phase("callback", 20, name="Export", share=0.97)
        run.gpu_value("utilization_other_pct", 20, 97)

    for part in (others_alone, training) if first else (training, others_alone):
        part()
    assert run.diagnose()["spans"] == []
