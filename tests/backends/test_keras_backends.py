"""Real fits on Keras' JAX and torch backends: input waits, compilations, validation, endings."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec

import numpy as np
import pytest
from injected import SLACK_MS
from packages import need
from processes import shared, summed_up

# What holds measured waits against injected ones, each up to three times; and what counts, in another process.
MEASURED = {"jax": ("waits", "hidden", "executions", "epochs"), "torch": ("waits", "epochs")}
COUNTED_BOTH = ("nests", "logs", "interrupted", "remade", "on_batch", "used_up", "synchronizations", "calls")
COUNTED = {"jax": ("stages", "behind", "regrouped", "shapes", *COUNTED_BOTH), "torch": COUNTED_BOTH}
BACKENDS = tuple(MEASURED)


def run(backend: str, *groups: str) -> dict:
    """The results of groups of a backend, from one process."""
    need("keras", backend)
    return shared("keras_program.py", *groups, KERAS_BACKEND=backend)


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


@pytest.fixture
def measured(backend):
    return run(backend, *MEASURED[backend])


@pytest.fixture
def counted(backend):
    return run(backend, *COUNTED[backend])


@pytest.mark.real_clock("milliseconds of waits that are injected")
def test_wait_is_the_truth(backend, measured):
    waits = {name: one for name, one in measured.items() if name.startswith("waits/")}
    assert len(waits) >= 6 + (find_spec("tensorflow") is not None)  # its tf.data
    for name, one in waits.items():
        assert one["good"], f"{name}: off by {one['off']} of {one['truth']} ms"
        assert one["status"] == "ended" and one["estimated"] == 0
        assert one["steps"] == 24
        summed_up(one)
    long = measured["waits/PyDataset_workers/plain/long"]
    assert long["truth"][1] < 0.5, "two workers were meant to hide 2 ms behind a step of 15 ms"
    kinds = {one["fit"]["input_kind"] for name, one in measured.items() if "waits" in name}
    assert {"generator", "PyDataset", "numpy"} <= kinds
    assert measured["waits/generator/plain/short"]["fit"]["input_workers"] == 0
    assert long["fit"]["input_workers"] == 2 and long["fit"]["input_processes"] is False
    if backend == "torch":
        assert "torch DataLoader" in kinds
        loader = measured["waits/DataLoader_workers/plain/short"]["fit"]
        assert loader["input_workers"] == 2 and loader["input_processes"] is True
        assert loader["input_class"] == "Batches" and loader["input_iterable"] is False
        assert measured["waits/DataLoader/plain/short"]["fit"]["input_workers"] == 0
    timing = {one["fit"]["timing"] for one in measured.values() if "fit" in one}
    assert timing == {{"jax": "python", "torch": "loader"}[backend]}


def test_batches_of_any_nest_are_recorded_with_their_sizes(counted):
    for kind in ("dictionary", "nested", "lengths"):
        one = counted[f"nests/{kind}"]
        assert one["steps"] == 5 and one["samples"] == 27 and not one["problems"], one
    assert counted["nests/lengths"]["fit"]["input_dims"] == [[[3, 8], [6, 16], 3], [[3, 8], 1]]


@pytest.mark.real_clock("shares of real time")
def test_steps_that_the_device_has_yet_to_do_are_no_validation():
    one = run("jax", *COUNTED["jax"])["behind"]
    summed_up(one)
    assert one["behind"] == 2, "one validation an epoch, with steps of its epoch before it"
    assert one["account"]["time_s"]["validation"] < 0.3 * one["validations_s"]
    assert one["account"]["time_s"]["step"] > 0.5 * one["account"]["wall_s"]


@pytest.mark.real_clock("the pipelines are read at intervals")
def test_stages_of_tf_data_are_read_outside_of_tensorflow_too():
    """Beside PyTorch, too: `test_loops.py`."""
    need("tensorflow")
    one = run("jax", *COUNTED["jax"])["stages"]
    summed_up(one)
    assert ["train", "map(decode)"] in one["found"]
    assert ["validation", "map(decode)"] in one["found"]
    assert one["decode_ms"] > 19, "it sleeps 20 ms, and waits for a core on a busy machine"
    assert {"py_function", "sequential"} <= set(one["flags"][0].split(","))
    decode = {"name": "map(decode)", "random": False, "python": True}
    assert one["fit"]["input_maps"] == [{**decode, "which": "train"}, {**decode, "which": "validation"}]


@pytest.mark.real_clock("milliseconds of functions that sleep and that compute")
def test_wall_and_cpu_of_the_functions_that_make_batches(backend, counted):
    calls = {name: one for name, one in counted.items() if name.startswith("calls/")}
    assert len(calls) == (10 if backend == "torch" else 6)
    for name, one in calls.items():
        _, kind, way = name.split("/")
        assert one["restored"], name
        assert one["workers"] == 0, "the loader's processes end with the fit"
        timed = [call for call in one["calls"] or () if call.get("timed")]  # a loader's parts are only sampled
        if kind == "DataLoader_workers":
            assert not timed, "they run in other processes"
            continue
        [entry] = timed
        owner = {"PyDataset": "Made", "DataLoader": "Batches"}.get(kind.partition("_")[0])
        assert entry["name"] == (f"{owner}.__getitem__" if owner else "batches")
        assert entry["timed"] == 17 and entry["calls"] == pytest.approx(40, abs=2)
        assert entry["wall_ms"] > 2.9, name
        assert (entry["cpu_ms"] < 1) if way == "Truth" else (entry["cpu_ms"] > 2.9), name


@pytest.mark.real_clock("milliseconds of waits that are injected")
def test_a_fetch_that_the_device_hides_is_no_wait():
    found = run("jax", *MEASURED["jax"])
    hidden, late = found["hidden/8"], found["hidden/100"]
    for one in (hidden, late):  # two cores share the device's work and everything else
        assert np.median(one["get_ms"]) == pytest.approx(np.median(one["made_ms"]), abs=2)
    assert np.median(hidden["wait_ms"]) < 0.5, "the device was busy with the step before"
    # Only the part of the fetch that came after the device's work delayed the step.
    assert 10 < np.median(late["wait_ms"]) < 95
    for one in (hidden, late):
        summed_up(one)


@pytest.mark.real_clock("milliseconds of waits that are injected")
def test_several_steps_per_execution():
    one = run("jax", *MEASURED["jax"])["executions"]
    summed_up(one)
    assert one["batches"] == [8] * 32 + [3] * 3
    assert one["measured_s"] == pytest.approx(one["truth_s"], rel=0.10)
    assert one["estimated"] == 0 and one["steps"] == 35


def test_another_number_of_steps_per_execution_in_mid_fit():
    one = run("jax", *COUNTED["jax"])["regrouped"]
    summed_up(one)
    assert one["batches"] == [4] * 12 + [1] * 6
    assert one["estimated"] == 0 and one["steps"] == 18


def test_every_new_shape_is_a_compilation():
    one = run("jax", *COUNTED["jax"])["shapes"]
    summed_up(one)
    compiled = np.array(one["compile_ms"]) > 0
    assert compiled.tolist() == [True, False, False, True, False, True, False, True, False, False]
    assert one["shape_ids"] == [0, 0, 0, 1, 1, 2, 2, 3, 3, 0]
    share = np.array(one["compile_ms"])[compiled] / np.array(one["duration_ms"])[compiled]
    assert (share > 0.8).all()


@pytest.mark.real_clock("milliseconds of waits that are injected")
def test_epochs_and_validation(measured):
    one = measured["epochs"]
    summed_up(one)
    assert one["steps"] == 30 and one["epochs"] == one["validations"] == 3
    assert len(one["validation_ms"]) == 18
    assert min(one["validation_ms"]) > 6.9
    assert np.median(one["validation_off_ms"]) == pytest.approx(0, abs=2 * SLACK_MS)
    assert one["account"]["time_s"]["validation"] >= 18 * 0.007


@pytest.mark.real_clock("milliseconds of waits that are injected")
def test_second_fit_and_what_is_left_behind(measured):
    one = measured["second"]
    summed_up(one)
    assert one["steps"] == 10 and one["compile_ms"] == 0
    assert all(module.startswith("keras.") for module in one["left"]), "our wrapper is still there"


def test_epochs_logs_have_our_numbers(counted):
    """And on TensorFlow: `keras/test_epoch_logs.py`."""
    history, summary = counted["logs"]["history"], counted["logs"]["summary"]
    assert all(len(history[name]) == 3 for name in ("loss", "val_loss", "input_wait_pct", "samples_per_s"))
    assert all(rate > 0 for rate in history["samples_per_s"])
    assert summary["steps"] == 27 and summary["status"] == "ended"


def test_an_interrupted_fit_is_closed(counted):
    one = counted["interrupted"]
    assert one["status"] == "interrupted"
    assert one["steps"] == 5


def test_a_train_function_made_anew_is_timed(counted):
    one = counted["remade"]
    summed_up(one)
    assert one["steps"] == 24
    assert min(one["get_ms"]) > 1.9


def test_a_generator_that_is_used_up_is_said_before_all_else(counted):
    repeated = "the generator is used up; Keras repeats its first two batches."
    assert counted["used_up/training"]["verdict"] == f"Epochs 2–4 had 2 of 40 steps: {repeated}"
    assert counted["used_up/validation"]["verdict"] == f"Validations 2–4 had 2 of 20 batches: {repeated}"


def test_train_on_batch_in_a_callback_is_no_step(counted):
    one = counted["on_batch"]
    summed_up(one)
    assert one["status"] == "ended" and one["steps"] == 16


def test_no_synchronization_is_added(counted):
    one = counted["synchronizations"]
    without, beside = Counter(one["without"]), Counter(one["with_callback"])
    assert not without - beside
    # JAX's value of the optimizer's step count, read once before the device has work.
    assert beside - without in (Counter(), Counter({"_value, training thread": 1}))
    assert sum(one["without"].values()) >= 80, "Keras reads the logs of every step"
