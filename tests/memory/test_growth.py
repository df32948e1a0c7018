"""Growth is told from warm-up, saw-teeth, peaks and pools; its onset and rate are right."""

import numpy as np
import pytest
from generated_runs import GPU, Generated

from gpu_util_callback.diagnosis.evidence.gauges import SampleBins
from gpu_util_callback.diagnosis.evidence.memory_tracks import MemoryTrack, grows
from gpu_util_callback.recorder import memory_watch

MIB = 1 << 20
READINGS, STEPS_EACH = 200, 4


def growth(course):
    """What is seen in a course of MiB over 200 readings, with some noise."""
    i = np.arange(READINGS)
    values = (course(i) + np.random.default_rng(0).normal(0, 3, READINGS)) * MIB
    return grows(i * float(STEPS_EACH), values, values, 32 * MIB)


@pytest.mark.parametrize(
    ("name", "course"),
    [
        ("level", lambda i: 500 + 0 * i),
        ("a warm-up", lambda i: 500 + 200 * (1 - np.exp(-i / 20))),
        ("a slow warm-up", lambda i: 500 + 200 * (1 - np.exp(-i / 60))),
        ("an ever slower growth", lambda i: 500 + 50 * np.log(1 + i)),
        ("saw-teeth", lambda i: 500 + 5 * (i % 40)),
        ("two saw-teeth", lambda i: 500 + 5 * (i % 130)),
        ("peaks of validations", lambda i: 500 + 300 * (i % 40 < 3)),
        ("saw-teeth, the last low a high one", lambda i: 500 + 5 * (i % 40) + 60 * (i >= 160)),
        ("two allocations", lambda i: 500 + 100 * (i > 60) + 100 * (i > 120)),
        ("a buffer that fills up", lambda i: 500 + 3 * np.minimum(i, 70)),
        ("a pool that doubles", lambda i: 500 + 2.0 ** np.minimum(i // 20, 7)),
    ],
)
def test_what_is_no_growth(name, course):
    assert growth(course) is None


@pytest.mark.parametrize(
    ("course", "onset", "rate"),
    [
        (lambda i: 500 + i, 0, 0.25),
        (lambda i: 500 + np.maximum(0, i - 100), 400, 0.25),
        (lambda i: 500 + 2 * np.maximum(0, i - 150), 600, 0.5),
        (lambda i: 500 + 200 * (1 - np.exp(-i / 8)) + np.maximum(0, i - 100), 400, 0.25),
        (lambda i: 500 + 5 * (i % 40) + i, 80, 0.25),  # with teeth: shown from the first low on
        (lambda i: 500 + 100 * (i // 25), 0, 1.0),  # a checkpoint kept now and then
        (lambda i: 500 + 60 * np.maximum(0, i // 12 - 5), 272, 1.25),  # ..., from the sixth on
        (lambda i: 500 + 2 * np.maximum(0, i - 50) * (1 + 0.3 * (i % 7 > 3)), 200, 0.5),  # copied
    ],
)
def test_where_growth_begins_and_how_fast_it_is(course, onset, rate):
    found = growth(course)
    assert found is not None
    assert found.onset == pytest.approx(onset, abs=0.05 * READINGS * STEPS_EACH)
    assert found.per_step / MIB == pytest.approx(rate, rel=0.1)
    assert found.per_step <= found.high_per_step


def test_a_track_stays_small_and_keeps_lows_and_highs():
    bins, other_bins = SampleBins(), SampleBins()
    times = np.arange(100_000) * 1_000_000_000
    values = np.rint(1e9 + 1e6 * (np.sin(np.arange(100_000) / 50) + np.arange(100_000) / 1000))
    bins.add({"time_ns": times, "workers": values})
    for part in np.array_split(np.arange(100_000), 77):
        other_bins.add({"time_ns": times[part], "workers": values[part]})
    track, other = bins.track("workers"), other_bins.track("workers")
    assert len(track) <= MemoryTrack.CAPACITY
    assert track.low.min() == np.float32(values.min()) and track.highest == values.max()
    assert np.array_equal(track.low, other.low) and np.array_equal(track.time_ns, other.time_ns)


def leaking(mib_a_step=1.0, gpu=False, epochs=6, **facts) -> Generated:
    """A run of 6 epochs of 100 steps of half a second, whose memory grows from step 200 on."""
    machine = {"memory_total_bytes": 64 << 30, "memory_limit_bytes": 4 << 30}
    run = Generated(seed=3, gpus=[GPU] if gpu else [], machine=machine, **facts)
    for _ in range(epochs):
        with run.epoch():
            run.steps(100, step_ms=500)
    times = np.arange(run.facts["started_ns"], run.now, 1_000_000_000)
    steps = (times - times[0]) / 0.5e9
    held = (1024 + mib_a_step * np.maximum(0, steps - 200)) * MIB
    run.memory = (times, held)
    return run


def diagnosed(run: Generated, group="host", column="process_held_bytes", more=(), *, ended=True):
    times, held = run.memory
    samples = run.samples()
    block = {"time_ns": times, column: held, **dict(more)}
    return run.diagnose(samples={**samples, group: block}, ended=ended)


def of_cause(result, cause="memory_growth"):
    return [one for one in result["findings"] if one["cause"] == cause]


def test_the_finding_names_rate_onset_limit_and_the_step_at_which_memory_is_full():
    [finding] = of_cause(diagnosed(leaking()))
    evidence = finding["evidence"]
    assert evidence["per_step_mib"] == pytest.approx(1.0, rel=0.02)
    assert evidence["since_step"] == pytest.approx(200, abs=30)
    assert evidence["full_at_step"] == pytest.approx(200 + 3072, rel=0.05)
    assert evidence["limited_by"] == "the container's limit"
    assert finding["confidence"] == "estimated" and "full at step 3," in finding["title"]
    assert finding["advice"]["text"].startswith("The cause is not known")


@pytest.mark.parametrize(
    ("models", "compiles", "says", "code"),
    [
        ((25, 25), 1, "25 of the 25 models that were fitted are still in memory", "model.set_weights(first)"),
        ((25, 21), 0, "21 of the 25 models that were fitted are still in memory", "model.set_weights(first)"),
        ((25, 2), 1, "of 25 models, each fitted with the same shapes", "model.set_weights(first)"),
        ((25, 2), 0, "not known", "tracemalloc"),
        ((2, 2), 1, "Give inputs one shape", ""),  # compilations of one model: its shapes differ
        ((5, 1), 4, "Give inputs one shape", ""),
    ],
)
def test_models_that_are_kept_are_not_told_to_give_inputs_one_shape(models, compiles, says, code):
    facts = {"models_fitted": models[0], "models_alive": models[1]}
    run = leaking(memory=facts, framework={"backend": "tensorflow", "keras": "3.15.1"}, epochs=1)
    compiling = np.zeros(24)
    compiling[:compiles] = 100.0
    for _ in range(25):
        with run.epoch():
            run.steps(24, step_ms=500, compile_ms=compiling)
    times = np.arange(run.facts["started_ns"], run.now, 1_000_000_000)
    run.memory = times, (1024.0 + np.arange(len(times))) * MIB
    [finding] = of_cause(diagnosed(run))
    assert says in finding["advice"]["text"] and code in finding["advice"]["code"]


def test_models_are_counted_without_keeping_them(monkeypatch):
    class Model:
        pass

    monkeypatch.setattr(memory_watch, "_fitted", set())
    kept = [Model() for _ in range(3)]
    for model in (*kept, *kept):
        memory_watch.note_fit(model)
    for _ in range(4):
        memory_watch.note_fit(Model())
    assert memory_watch._models() == {"models_fitted": 7, "models_alive": 3}


def test_the_framework_s_live_bytes_count_and_the_driver_s_do_not():
    run = leaking(gpu=True)
    [finding] = of_cause(diagnosed(run, "gpu0/allocator", "allocator_used_bytes"))
    assert finding["gpus"] == [0] and finding["title"].startswith("GPU memory (gpu0) grows by 1")
    assert of_cause(diagnosed(run, "gpu0", "memory_used_bytes")) == []


def test_growth_in_a_first_epoch_is_reported_when_it_takes_much_of_what_was_free():
    small = leaking(0.5, epochs=1)
    small.memory = (small.memory[0], 1e9 + 0.5 * MIB * np.arange(len(small.memory[0])))
    assert of_cause(diagnosed(small)) == []
    tight = leaking(0.5, epochs=1)
    tight.facts["machine"]["memory_limit_bytes"] = int(1e9) + 60 * MIB
    tight.memory = (tight.memory[0], 1e9 + 0.9 * MIB * np.arange(len(tight.memory[0])))
    assert len(of_cause(diagnosed(tight))) == 1


GENERATOR = {"input_kind": "generator"}  # the length of its epochs is only seen
KNOWN = {"steps_per_epoch": 100}


@pytest.mark.parametrize(
    ("fit", "facts", "said"),
    [
        (KNOWN | {"epochs": 6}, {}, False),
        (KNOWN | {"epochs": 20}, {}, False),
        (KNOWN | {"epochs": 40}, {}, True),
        (KNOWN | {"epochs": None}, {}, True),
        (GENERATOR | {"epochs": 20}, {}, False),
        (GENERATOR | {"epochs": 40}, {}, True),
        (KNOWN | {"epochs": 6}, {"lost": {"oom_kills": {}}}, True),  # its process is gone
    ],
)
def test_what_the_planned_end_forestalls_is_no_warning(fit, facts, said):
    """600 steps are done, and memory is full at step 3,272."""
    run = leaking(fit=fit, **facts)
    assert bool(of_cause(diagnosed(run, ended=False))) == said
    [finding] = of_cause(diagnosed(run))
    assert finding["title"].startswith("Host memory grows by 1 MiB a step: full at step 3,")
    planned = None if said and not facts else 100 * fit["epochs"]
    assert finding["evidence"].get("planned_steps") == planned
    assert ("after the end of this training" in finding["title"]) == bool(planned)


def test_a_series_of_fits_has_no_planned_end():
    run = leaking(fit=KNOWN | {"epochs": 1})
    run.phase("between_fits", 0.001)
    assert len(of_cause(diagnosed(run, ended=False))) == 1


def test_memory_that_is_copied_as_it_grows_is_full_when_its_peaks_are():
    """What is kept grows by 1 MiB a step, and is there twice at times."""
    i = np.arange(READINGS)
    low = (500 + 1.0 * i) * MIB
    high = low + 1.0 * i * MIB
    found = grows(i.astype(float), low, high, 32 * MIB)
    assert found.per_step / MIB == pytest.approx(1.0, rel=0.05)
    assert found.peak_per_step / MIB == pytest.approx(2.0, rel=0.1)
    steady = grows(i.astype(float), low, low + 30 * MIB, 32 * MIB)
    assert steady.peak_per_step == steady.per_step


def test_the_limit_is_met_by_what_is_reached_of_late_and_not_by_the_last_reading():
    run = leaking(epochs=6)
    times, held = run.memory
    now_and_then = 300 * MIB * (np.arange(len(times)) % 5 == 0)
    run.memory = times, held + now_and_then
    [finding] = of_cause(diagnosed(run))
    assert finding["evidence"]["limit_gib"] == pytest.approx(4.0, abs=0.02)
    assert finding["evidence"]["full_at_step"] == pytest.approx(200 + 3072 - 300, rel=0.05)
