"""The stages of a tf.data pipeline: names as they were written, times, flags."""

from __future__ import annotations

import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_truth import BATCH, WIDTH, traced
from injected_fit import recorded_fit

from gpu_util_callback.backends.tensorflow.backend import TensorFlowAdapter
from gpu_util_callback.backends.tensorflow.written_stages import Reader, function_name, word
from gpu_util_callback.recorder import intake

SLEPT: list[float] = []  # what `decode` really took, call by call


def decode(index):
    def sleep(value):
        began = time.perf_counter()
        time.sleep(0.004)
        SLEPT.append(time.perf_counter() - began)
        return value

    index = tf.numpy_function(sleep, [index], tf.int64)
    return tf.ensure_shape(index, [])


def augment(index):
    return tf.cast(index, tf.float32) * tf.ones((WIDTH,)), tf.zeros((1,))


def read(dataset, batches=6):
    iterator = iter(dataset)
    for _ in range(batches):
        next(iterator)
    return Reader("train").read(iterator)


def stages(rows):
    return {row["stage"]: row for row in rows}


@pytest.mark.parametrize("own", [False, True])
def test_a_stage_of_a_librarys_function_is_told_from_the_users(own):
    values = np.zeros((400, 2), "float32")
    data = keras.utils.timeseries_dataset_from_array(values, values[:, 0], 8, batch_size=16, shuffle=True)
    if own:
        data = tf.data.Dataset.range(100).map(augment).batch(4)
    maps = [row for row in read(data, 2) if row["stage"].startswith("map")]
    assert maps and all(("library" in row["flags"]) != own for row in maps)


def jitter(index):
    return index + tf.random.uniform((), maxval=3, dtype=tf.int64)


def test_the_stage_that_draws_random_numbers_is_known():
    steady = tf.data.Dataset.range(100).map(augment)
    random = tf.data.Dataset.range(100).map(jitter).map(augment)
    found = stages(read(tf.data.Dataset.zip((steady, random)).batch(4), 2))
    assert [name for name, row in found.items() if "random" in row["flags"].split(",")] == ["map(jitter)"]
    sampled = tf.data.Dataset.sample_from_datasets([steady, steady], [0.5, 0.5])
    assert any("random" in row["flags"].split(",") for row in read(sampled.batch(4), 2))


def test_names_flags_and_times():
    dataset = (
        tf.data.Dataset.range(1000).map(decode).map(augment, num_parallel_calls=2).shuffle(4).batch(BATCH).prefetch(2)
    )
    SLEPT.clear()
    found = stages(read(dataset))
    slow = found["map(decode)"]
    assert set(slow["flags"].split(",")) == {"py_function", "sequential", "stateful"}
    assert slow["processing_ns"] == max(row["processing_ns"] for row in found.values())
    # Calls go on while the stages are read, and Python's lock costs something on top of the sleep.
    per_element = slow["processing_ns"] / slow["elements"] / 1e9
    assert 0.8 * min(SLEPT) < per_element < 1.5 * max(SLEPT)
    assert "fixed_parallelism" in found["map(augment)"]["flags"]
    assert found["prefetch"]["buffer_limit"] == 2
    # Each stage but the last feeds another one.
    parents = {row["node"]: row["parent"] for row in found.values()}
    assert sorted(parents.values())[0] == -1
    assert all(parent in parents or parent == -1 for parent in parents.values())


def test_fused_stages_keep_their_function_name():
    dataset = (
        tf.data.Dataset.range(1000)
        .map(augment, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(BATCH, num_parallel_calls=tf.data.AUTOTUNE)
    )
    options = tf.data.Options()
    options.experimental_optimization.map_and_batch_fusion = True
    rows = read(dataset.with_options(options))
    assert any("map(augment)" in row["stage"] for row in rows), [r["stage"] for r in rows]


def doubled(value):
    return value + value


@pytest.mark.parametrize(
    "around",
    [
        pytest.param(lambda data: data.map(doubled).map(lambda value: value), id="after"),
        pytest.param(lambda data: data.map(lambda value: value, num_parallel_calls=2).map(doubled), id="before"),
        pytest.param(lambda data: data.batch(4).map(doubled).unbatch(), id="that unbatch puts in"),
        pytest.param(lambda data: data.map(lambda value: (value, value)).map(doubled_first), id="of two, swapped"),
    ],
)
def test_a_map_that_returns_its_arguments_does_not_take_anothers_name(around):
    data = around(tf.data.Dataset.range(1000).map(decode))
    found = read(data.prefetch(2))
    assert any("doubled" in row["stage"] for row in found), [row["stage"] for row in found]
    slow = max(found, key=lambda row: row["processing_ns"])
    assert slow["stage"].startswith("map(decode)")


def doubled_first(value, other):
    return other, doubled(value)


def test_two_sources():
    first = tf.data.Dataset.range(1000).map(decode)
    second = tf.data.Dataset.range(1000).map(lambda x: x + 1)
    found = stages(read(tf.data.Dataset.zip((first, second)), 3))
    assert "map(decode)" in found and "zip" in found
    assert any(name.startswith("map(lambda") for name in found), list(found)


def test_branches_of_a_concatenation_keep_their_own_names():
    """Seen: the slow branch was named after the map of the first one."""

    def branch(*functions):
        dataset = tf.data.Dataset.range(1000)
        for function in functions:
            dataset = dataset.map(function, num_parallel_calls=tf.data.AUTOTUNE)
        return dataset.batch(2).take(8).prefetch(1)

    def jitter(index):
        return decode(index)

    def plain(index):
        return index + 1

    iterator = iter(branch(plain).concatenate(branch(plain, jitter)).concatenate(branch(plain)))
    reader = Reader("train")
    slow = []
    for _ in range(3):
        for _ in range(7):
            next(iterator)
        rows = [row for row in reader.read(iterator) if row["processing_ns"] > 4e6]
        slow.append({row["stage"]: row["flags"] for row in rows})
    assert not any("jitter" in name for name in slow[0])
    (name,) = [name for name in slow[1] if "jitter" in name]
    assert "py_function" in slow[1][name]
    assert not any("py_function" in f for n, f in slow[1].items() if "jitter" not in n)


def test_a_generator_is_python():
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(range(100)), output_signature=tf.TensorSpec((), tf.int32)
    ).batch(4)
    found = stages(read(dataset, 3))
    assert found["generator"]["flags"] == "py_function"
    assert found["generator"]["elements"] >= 12
    assert "py_function" in found["from_generator"]["flags"]


def test_readings_are_differences():
    iterator = iter(tf.data.Dataset.range(1000).map(decode))
    reader = Reader("train")
    for _ in range(5):
        next(iterator)
    before = stages(reader.read(iterator))["map(decode)"]["elements"]
    for _ in range(7):
        next(iterator)
    after = stages(reader.read(iterator))["map(decode)"]["elements"]
    assert before >= 5 and before + after == pytest.approx(12, abs=4)


def test_work_of_a_shuffle_that_ran_empty_is_no_reading():
    """Seen: it had given up the slow map, and no stage seemed slow. A shuffle of file names gives up nothing."""

    def shuffled(per_file):
        names = tf.data.Dataset.range(3).shuffle(3)
        return names.interleave(lambda _: tf.data.Dataset.range(per_file)).map(augment).shuffle(60).batch(BATCH)

    assert read(shuffled(20), 2) == []
    assert stages(read(shuffled(1000), 2))["map(augment)"]["elements"] >= 60


@pytest.mark.parametrize(
    ("name", "own"),
    [
        (b"__inference_Dataset_map_decode_11", "decode"),
        (b"__inference_Dataset_interleave_read_file_2_7", "read_file_2"),
        ("__inference_Dataset_filter_<lambda>_3", "lambda"),
        ("__inference_something_else", ""),
    ],
)
def test_function_names(name, own):
    assert function_name(name) == own


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("ParallelMapV2", "map"),
        ("BatchV2", "batch"),
        ("Root", "iterator"),
        ("ShardDataset", "shard"),
        ("MapAndBatchV2", "map + batch"),
        ("ForeverRepeat", "repeat"),
        ("MemoryCacheImpl", "cache"),
        ("FixedLengthRecordV2", "FixedLengthRecordDataset"),
        ("DirectedInterleave", "sample_from_datasets"),
        ("SomethingNew", "something_new"),
    ],
)
def test_words(op, name):
    assert word(op) == name


def test_autotune_off_is_said(tmp_path):
    dataset = tf.data.Dataset.from_tensors(
        (np.zeros((BATCH, WIDTH), np.float32), np.zeros((BATCH, 1), np.float32))
    ).repeat(60)
    options = tf.data.Options()
    options.autotune.enabled = False
    recording = recorded_fit(traced(), tmp_path / "logs", x=dataset.with_options(options))
    (missing,) = [u for u in recording.facts["unavailable"] if u["source"] == "pipeline"]
    assert "autotune" in missing["cure"]
    assert len(recording.steps["step"]) == 60


def test_a_reading_that_hangs_does_not_hold_the_recording(tmp_path, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(intake, "DEADLINE_S", 0.2)
    monkeypatch.setattr(TensorFlowAdapter, "pipeline", lambda self: release.wait(60) and [])
    x = np.zeros((BATCH * 20, WIDTH), np.float32)
    try:
        recording = recorded_fit(traced(), tmp_path / "logs", x=x, y=x[:, :1], batch_size=BATCH)
    finally:
        release.set()
    assert recording.status == "ended" and len(recording.steps["step"]) == 20
    (missing,) = [u for u in recording.facts["unavailable"] if u["source"] == "pipeline"]
    assert "cannot be read within 0.2 s" in missing["reason"]


def test_the_workers_of_a_pydataset_have_no_stages_and_nobody_is_warned(tmp_path, caplog):
    class Made(keras.utils.PyDataset):
        def __len__(self):
            return 20

        def __getitem__(self, index):
            return np.ones((4, WIDTH), np.float32), np.ones((4, 1), np.float32)

    recording = recorded_fit(traced(), tmp_path, x=Made(workers=2))
    (missing,) = [u for u in recording.facts["unavailable"] if u["source"] == "pipeline"]
    assert "PyDataset" in missing["reason"] and not missing["cure"]
    assert "autotune" not in caplog.text
