"""Input that is set up anew in each epoch: how often, how long, and the line that fits the run."""

from types import SimpleNamespace

import numpy as np
import pytest
from advised import apply
from advised_runs import DATALOADER, PYDATASET, TORCH, TUNED, found, phases, run_of
from generated_runs import START_NS


def test_set_ups_that_follow_one_another_are_one():
    """Keras begins a PyDataset in three pieces: an epoch is set up once, for their sum."""
    run = run_of(epochs=6, steps_per_epoch=200, **PYDATASET)
    for _ in range(6):
        with run.epoch():
            for seconds in (1.5, 0.001, 0.01):
                run.phase("input_setup", seconds, name="workers")
                run.now += 1000
            run.steps(200, step_ms=10)
    [found] = run.diagnose()["findings"] or run.diagnose()["spans"]
    assert found["evidence"]["times"] == 6
    assert found["evidence"]["seconds_each"] == pytest.approx(1.511, abs=0.01)
    assert "on_epoch_end" in found["advice"]["text"] and not found["advice"]["code"]


@pytest.mark.parametrize(("in_items", "says"), [(0, "Pairs.on_epoch_end takes most of that, mostly at "), (40, "both")])
def test_an_end_of_epoch_that_takes_most_of_it_is_named_with_its_line(in_items, says):
    """Seen: negatives that were drawn one by one in on_epoch_end took 7 of 8 s, and "make both cheaper" was said."""
    line = "Pairs.draw (data.py, line 36)"
    calls = [
        {"name": "Pairs.on_epoch_end", "part": "epoch_end", "samples": 30, "line": line, "in_line": 25},
        {"name": "Pairs.__getitem__", "calls": 600, "timed": 99, "wall_ms": 0.1, "cpu_ms": 0.1, "samples": in_items},
    ]
    run = run_of(epochs=6, steps_per_epoch=100, **PYDATASET, input_calls=calls)
    for _ in range(6):
        with run.epoch():
            run.phase("input_setup", 1.5, name="input: end of epoch")
            run.steps(100, step_ms=10)
    text = found(run, "input_bound")["advice"]["text"]
    assert says in text and (line in text) == (in_items == 0)


def begun(name: str, samples: int, kind="torch DataLoader", setup_s=1.5, wait_ms=0.0, **more) -> str:
    """Return the advice on six set-ups, of which samples met a function at one line, and 10 the loader's own code."""
    call = {"name": name, "samples": samples, "line": "slow (data.py, line 8)", "in_line": samples} | more
    rest = {"name": "DataLoader.__next__", "samples": 10, "line": "x (y, line 1)", "in_line": 10, "part": "loader"}
    facts = {"input_kind": kind, "input_workers": 2, "input_persistent_workers": True, "loop": "custom"}
    run = run_of(framework=TORCH, epochs=6, steps_per_epoch=100, input_calls=[call, rest], **facts)
    for _ in range(6):
        with run.epoch():
            run.phase("input_setup", setup_s, name="iterator")
            run.steps(100, step_ms=10, wait_ms=wait_ms)
    return next(f for f in run.findings("input_bound") if "sets up" in f["title"])["advice"]["text"]


@pytest.mark.parametrize(
    ("name", "more"),
    [("Weighted.__iter__", {"part": "sampler"}), ("Clips.__iter__", {}), ("Around.__iter__", {"part": "wrapper"})],
)
def test_what_sets_the_input_up_is_named_with_its_line(name, more):
    """Seen: "longer epochs need it less often", of a dataset's `__iter__` that sorted all of it first."""
    assert f"{name} takes most of that, mostly at slow (data.py, line 8)" in begun(name, 30, **more)


@pytest.mark.parametrize(
    "of", [{"samples": 2}, {"samples": 9}, {"samples": 30, "in_line": 9}, {"samples": 30, "wait_ms": 15.0}]
)
def test_nothing_is_named_that_may_not_be_most_of_a_set_up(of):
    text = begun("Weighted.__iter__", part="sampler", **of)
    assert "takes most of that" not in text and "Longer epochs" in text


def set_up_beside_validation(seconds, **facts):
    """Epochs whose input is taken down before their validation, and set up behind it."""
    run = run_of(epochs=len(seconds), steps_per_epoch=100, **facts)
    for epoch_s in seconds:
        with run.epoch():
            run.phase("input_setup", epoch_s, name="iterator")
            run.steps(100, step_ms=10)
            run.phase("input_setup", 0.04, name="new iterator")
            run.phase("validation", 0.05, name="validation", account="validation")
    return run


@pytest.mark.parametrize(
    ("facts", "is_found"),
    [
        ({"input_kind": "numpy"}, False),
        ({"input_kind": "PyDataset", "input_workers": 0}, False),
        ({"input_kind": "tf.data"}, False),  # seen: "1.3 times without autotuning", of a healthy fit; 1.01 to 1.24
        ({"input_kind": "torch DataLoader", "input_workers": 2, "framework": TORCH}, True),  # they could be kept
    ],
)
def test_what_each_epoch_takes_to_begin_is_no_finding_where_nothing_can_be_done(facts, is_found):
    """Seen: six short healthy fits, and batches out of an HDF5 file, were headed by 26 and 110 ms an epoch."""
    run = set_up_beside_validation([0.2] * 8, **facts)
    assert bool(run.findings("input_bound")) == is_found


def test_what_lies_on_both_sides_of_a_validation_is_one_set_up():
    finding = found(set_up_beside_validation([0.5] * 5), "input_bound")
    assert finding["evidence"]["times"] == 5
    assert finding["evidence"]["seconds_each"] == pytest.approx(0.54, abs=0.01)
    assert "takes 540 ms each time" in finding["advice"]["text"]


def test_set_ups_of_which_some_take_long_are_told_by_their_mean_and_their_longest():
    finding = found(set_up_beside_validation([0.1, 0.1, 0.9, 0.1, 0.8, 0.1, 0.1]), "input_bound")
    assert "takes 354 ms on average, 940 ms at most" in finding["advice"]["text"]


KEPT = {
    "epochs": 8,
    "steps_per_epoch": 400,
    "input_dims": [[32, 28, 28]],
    "input_maps": [{"name": "map(decode)", "which": "train", "random": False, "python": False}],
    "machine": {"cpus": 8, "cpus_allowed": 8, "memory_total_bytes": 64 * 2**30},
}


@pytest.mark.parametrize(("wait_ms", "is_told"), [(3.0, True), (0.0, False)])
def test_first_batches_of_epochs_have_the_remedy_of_the_costly_map_behind_them(wait_ms, is_told):
    """Seen: a map anew in each epoch was the third finding, behind its own first batches and others' time."""
    run = run_of(**KEPT)
    for _ in range(8):
        with run.epoch():
            run.phase("input_setup", 0.25 if wait_ms else 0.6, name="iterator")
            run.steps(400, step_ms=2, wait_ms=wait_ms)
            run.reading(TUNED, batches=400)
    findings = run.findings("input_bound")
    told = [finding["advice"]["code"].startswith("ds = ds.cache()") for finding in findings]
    assert set(told) == {is_told}, findings
    assert {"sets up" in finding["title"] for finding in findings} >= {True}


ARRAYS = {
    "input_kind": "numpy",
    "input_beside": ["y"],
    "input_first": [{"dtype": "float32", "rank": 2, "rows": 4000}, {"dtype": "float32", "rank": 2, "rows": 4000}],
    "input_maps": [{"name": "map(permutation)", "which": "train", "random": True, "python": False}],
    "batch_size": 128,
}


@pytest.mark.parametrize(
    "facts, code",
    [
        # With the lines 30 epochs of 4,000 rows took 5.9 s in place of 7.2 s, medians of three.
        (ARRAYS, ".shuffle(len(x)).batch(128)\n"),
        (ARRAYS | {"input_beside": ["y", "sample_weight"]}, ""),
        (ARRAYS | {"input_first": ARRAYS["input_first"][:1]}, ""),
        (ARRAYS | {"input_first": 3 * ARRAYS["input_first"][:1]}, ""),
        (ARRAYS | {"input_maps": []}, ""),  # shuffle=False
        (ARRAYS | {"batch_size": None}, ""),
        (ARRAYS | {"validation_split": 0.2}, ""),
        ({"input_kind": "numpy"}, ""),  # a dataset of rows in place of arrays was slower
        # Autotuning may hold up the end of an iterator: 12 epochs of images from files took 7.1 s, 5.2 s without it.
        ({"input_kind": "tf.data"}, "options.autotune.enabled = False"),
        # Repeating gained 1.1 and changed weights.
        ({"input_kind": "tf.data", "input_autotune": False}, ""),
    ],
)
def test_what_was_seen_to_gain_is_asked_for_and_nothing_promised(facts, code):
    finding = found(set_up_beside_validation([0.5] * 5, **facts), "input_bound")
    advice = finding["advice"]
    assert code in advice["code"] and bool(code) == bool(advice["code"]) == advice["question"]
    assert finding["saves_s"] == 0
    assert "shuffle" not in code or advice["changes"].startswith("the order of the samples")


def short_epochs(epochs: int = 400, setup_s: float = 0.05, validates_s: float = 0.0, steps: int = 2, **facts):
    """Epochs of two steps, whose set-up takes most of the time, perhaps with a validation."""
    run = run_of(**{"epochs": epochs, "steps_per_epoch": steps} | facts)
    for _ in range(epochs):
        with run.epoch():
            run.phase("input_setup", setup_s, name="iterator")
            run.steps(steps, step_ms=5)
            if validates_s:
                run.phase("validation", validates_s)
    return run


SMALL = ARRAYS | {"input_first": [{"rows": 64, "bytes": 2048, "min": 0.0, "max": 1.0}, {"rows": 64, "bytes": 256}]}
MACHINE = {"cpus": 8, "cpus_allowed": 8, "memory_total_bytes": 10**10}


@pytest.mark.parametrize(
    "facts, passes",
    [
        # 400 epochs of two batches of arrays took 29 s, 9 of 41 passes each 3.4 s.
        (SMALL, 45),
        (SMALL | {"epochs": 40}, 10),  # some ends of epochs remain
    ],
)
def test_epochs_that_mostly_begin_may_make_several_passes(facts, passes):
    run = short_epochs(machine=MACHINE, **facts)
    finding = found(run, "input_bound")
    advice = finding["advice"]
    assert f"come after every {passes} passes" in advice["text"] and advice["question"]
    x, y = np.arange(64 * 8).reshape(64, 8), np.arange(64)
    fitted = []
    model = SimpleNamespace(fit=lambda *arrays, epochs: fitted.append((*arrays, epochs)))
    apply(advice["code"].replace("..., ", ""), x=x, y=y, np=np, model=model)
    [(of_x, of_y, epochs)] = fitted
    assert len(of_x) == len(of_y) == 64 * passes and (of_y == of_x[:, 0] // 8).all()
    assert epochs == round(run.facts["fit"]["epochs"] / passes)


@pytest.mark.parametrize(
    "run, code",
    [
        (short_epochs(setup_s=0.008, machine=MACHINE, **SMALL), ".shuffle(len(x))"),  # not half of the time
        (short_epochs(epochs=7, setup_s=0.5, machine=MACHINE, **SMALL), ".shuffle(len(x))"),  # no two would remain
        (short_epochs(machine=MACHINE | {"memory_total_bytes": 10**6}, **SMALL), ".shuffle(len(x))"),
        (short_epochs(machine=MACHINE, **SMALL, validation_split=0.2), "validation_data=(x[n:], y[n:]), epochs=9)"),
        (short_epochs(machine=MACHINE, **SMALL | {"input_beside": ["y", "sample_weight"]}), ""),
        (short_epochs(machine=MACHINE, **ARRAYS), ".shuffle(len(x))"),  # how large they are is not known
        (short_epochs(input_kind="tf.data"), "ds = ds.repeat(45)\nmodel.fit(ds, ..., epochs=9)"),
    ],
)
def test_passes_are_no_more_than_fit(run, code):
    printed = found(run, "input_bound")["advice"]["code"]
    assert code in printed and bool(code) == bool(printed)


def test_epochs_of_a_step_or_two_that_validate_have_one_remedy():
    """Seen: `validation_freq=6` for 80 epochs of one step, 1.4 to 1.6 times faster, where 20 passes each gained 13."""
    [span] = short_epochs(100, 0.02, validates_s=0.03, machine=MACHINE, **SMALL).diagnose()["spans"]
    assert span["title"] == "Each epoch of 2 steps sets up its input and validates"
    assert 4 < span["lost_s"] <= 5, "of both"
    assert "after every 25 passes" in span["advice"]["text"] and "concatenate([array] * 25)" in span["advice"]["code"]


@pytest.mark.parametrize("steps, facts", [(3, SMALL), (2, ARRAYS)])
def test_validations_of_longer_epochs_or_other_arrays_are_told_apart(steps, facts):
    spans = short_epochs(100, 0.02, validates_s=0.03, steps=steps, machine=MACHINE, **facts).diagnose()["spans"]
    assert "Validation stalls training" in [span["title"] for span in spans]


@pytest.mark.parametrize("split", [0.2, 0.25])
def test_arrays_that_fit_splits_are_split_before_they_are_repeated(split):
    advice = found(short_epochs(machine=MACHINE, **SMALL, validation_split=split), "input_bound")["advice"]
    x, y, fitted = np.arange(64 * 8).reshape(64, 8), np.arange(64), []
    model = SimpleNamespace(fit=lambda *arrays, epochs, validation_data: fitted.append((*arrays, validation_data)))
    apply(advice["code"].replace("..., ", ""), x=x, y=y, np=np, model=model)
    [(of_x, of_y, (held_x, held_y))] = fitted
    assert set(of_y) == set(range(64)) - set(held_y) and len(held_y) == np.ceil(64 * split), "as Keras splits them"
    assert (of_y == of_x[:, 0] // 8).all() and (held_y == held_x[:, 0] // 8).all()


def two_epochs(stall_s: float, at: int, before_s: float = 0.3):
    """Two epochs of 4 s; training stands still as the input of the one numbered `at` begins."""
    run = run_of(epochs=2, steps_per_epoch=400)
    for epoch in range(2):
        with run.epoch():
            name = f"epoch {epoch + 1}: iterator"
            seconds = stall_s if epoch == at else before_s
            run.phase("input_setup", seconds, name=name)
            run.steps(400, step_ms=10)
            run.phase("input_setup", 0.02, name="end of data")
    return run


@pytest.mark.parametrize(
    "stall_s, at, ended",
    [
        (3.0, 0, True),  # what the first epoch begins with had to be
        (0.9, 1, True),  # a hiccup
        (3.0, 1, True),  # it may not come again, and nothing mends it: the verdict has its share of the time
        (3.0, 1, False),  # more epochs may come without
    ],
)
def test_other_waits_at_the_beginning_of_an_epoch_are_not(stall_s, at, ended):
    run = two_epochs(stall_s, at)
    result = run.diagnose(ended=ended)
    assert not result["spans"] and not result["findings"]


def with_host(run, **percent) -> dict:
    times = np.arange(START_NS, run.now, 10**9)
    host = {"time_ns": times} | {name: np.full(len(times), float(value)) for name, value in percent.items()}
    run.facts["machine"] = {"cpus": 2, "cpus_allowed": 2}
    return run.diagnose(samples=run.samples() | {"host": host}, ended=True)


def one_long_fetch():
    run = run_of(epochs=1, steps_per_epoch=400, **DATALOADER)
    run.steps(400, step_ms=10, wait_ms=np.where(np.arange(400) == 200, 5000.0, 0.0))
    return run


@pytest.mark.parametrize("make", [one_long_fetch])
@pytest.mark.parametrize(
    ("process", "others", "queued", "named"),
    [
        (40, 160, {}, False),  # seen: a healthy training beside fifteen other programs
        (20, 180, {}, False),
        (20, 180, {"threads_queued_pct": 150}, False),
        (1, 199, {}, False),  # it may wait for a file; nobody can tell
        (1, 199, {"threads_queued_pct": 9}, True),  # seen: it slept, beside a dozen busy programs
        (20, 180, {"threads_queued_pct": 30}, True),
        (140, 40, {}, True),
        (40, 60, {}, True),  # cores are free
    ],
)
def test_one_wait_on_a_machine_that_others_fill_is_no_verdict_on_the_input(make, process, others, queued, named):
    result = with_host(make(), process_cpu_pct=process, cpu_pct=(process + others) / 2, **queued)
    assert bool(result["spans"]) == named


@pytest.mark.parametrize(
    "facts, code, question",
    [
        (DATALOADER | {"input_workers": 2}, "persistent_workers=True", True),
        (DATALOADER | {"input_workers": 2, "input_persistent_workers": True}, "", False),
        (DATALOADER | {"input_workers": 0}, "", False),
        (DATALOADER | {"input_workers": None}, "persistent_workers=True", True),
        ({"framework": TORCH, "input_kind": ""}, "persistent_workers=True", True),
        (DATALOADER | {"input_workers": 2, "trainer": "transformers"}, "dataloader_persistent_workers", True),
    ],
)
def test_workers_that_nobody_saw_are_asked_for(facts, code, question):
    advice = found(phases("input_setup", "iterator", **facts), "input_bound")["advice"]
    assert code in advice["code"] and bool(advice["code"]) == bool(code)
    assert advice["question"] == question


@pytest.mark.parametrize(("steps", "gains"), [(3, False), (100, True)])
def test_workers_that_stay_are_promised_nothing_where_epochs_end_before_the_loader(steps, gains):
    """Measured: they make what they were asked for ahead, which takes as long as the start of new ones."""
    run = run_of(framework=TORCH, epochs=8, steps_per_epoch=100, **DATALOADER | {"input_workers": 2, "loop": "custom"})
    for _ in range(8):
        with run.epoch():
            run.phase("input_setup", 1.5, name="iterator")
            run.steps(steps, step_ms=10)
    finding = found(run, "input_bound")
    assert "persistent_workers=True" in finding["advice"]["code"] and (finding["saves_range_s"] is not None) == gains


@pytest.mark.parametrize(("workers", "sampled"), [(2, True), (1, False)])
def test_workers_of_a_loader_that_ray_makes_anew_stay_with_a_sampler_for_its_part(workers, sampled):
    run = phases("input_setup", "iterator", **DATALOADER | {"input_workers": 2})
    run.facts |= {"trial_of": "Ray Train", "world_size": workers}
    code = found(run, "input_bound")["advice"]["code"]
    assert "persistent_workers=True" in code and ("sampler=DistributedSampler(dataset)" in code) == sampled


@pytest.mark.parametrize(("buffered", "says"), [(40, "A shuffle fills its buffer then"), (20, "autotuning holds up")])
def test_a_shuffle_that_fills_is_told_from_an_iterator_that_is_slow_to_end(buffered, says):
    """Seen: switching autotuning off gained nothing where a shuffle took in what a map had still to make."""
    run = run_of(epochs=6, steps_per_epoch=100, input_kind="tf.data", input_autotune=True)
    for _ in range(6):
        with run.epoch():
            run.phase("input_setup", 0.3, name="iterator")
            run.steps(100, step_ms=10)
            stages = ("map(decode)", "ParallelMapV2", 4.0, 1.0, "autotuned"), ("shuffle", "ShuffleV3", 0.1, 1.0, "")
            run.reading(*stages, batches=100, buffer=(buffered, np.nan))
    advice = found(run, "input_bound")["advice"]
    assert says in advice["text"] and bool(advice["code"]) == (buffered == 20)
