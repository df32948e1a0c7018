"""The column encoding gives back what it was given, whatever that was."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gpu_util_callback.recording.container import FrameError, decode_frame, encode_frame, plain_frame

ints = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-1, 3), st.sampled_from([0, -1, 2**40, 10**18]))
int_columns = hnp.arrays(np.int64, st.integers(0, 60), elements=ints)
float_columns = hnp.arrays(
    np.float64,
    st.integers(0, 60),
    elements=st.one_of(
        st.floats(allow_nan=True, allow_infinity=True),
        st.integers(-1000, 100_000).map(float),
        st.integers(0, 1000).map(lambda n: n / 10),
        st.just(float("nan")),
    ),
)


def round_trip(values, kind, **options):
    frame, matrix = encode_frame({"x": values}, {"x": kind}, **options)
    assert matrix.dtype == np.uint8
    assert matrix.shape[1] == frame["rows"] == len(values)
    return decode_frame(frame, matrix)["x"]


@settings(max_examples=300, deadline=None)
@given(int_columns)
def test_integers_come_back(values):
    assert (round_trip(values, "int") == values).all()


@settings(max_examples=300, deadline=None)
@given(float_columns)
def test_floats_come_back(values):
    np.testing.assert_array_equal(round_trip(values, "float"), values)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(ints, st.floats(), st.text(max_size=3)), max_size=40))
def test_what_is_encoded_plainly_comes_back(rows):
    columns = {
        "x": np.array([row[0] for row in rows], np.int64),
        "y": np.array([row[1] for row in rows], np.float64),
        "z": [row[2] for row in rows],
    }
    frame, matrix = plain_frame(columns, {"x": "int", "y": "float", "z": "text"})
    assert matrix.dtype == np.uint8 and matrix.shape[1] == len(rows)
    found = decode_frame(json.loads(json.dumps(frame)), matrix)
    assert (found["x"] == columns["x"]).all()
    assert (found["y"].view(np.int64) == columns["y"].view(np.int64)).all(), "to the bit"
    assert found["z"].tolist() == columns["z"]


@settings(max_examples=100, deadline=None)
@given(float_columns)
def test_a_quantum_bounds_the_error_and_keeps_absence(values):
    found = round_trip(values, "float", quanta={"x": 0.01})
    np.testing.assert_array_equal(np.isnan(found), np.isnan(values))
    fits = np.abs(values) < 1e12
    rounding = 1e-3 if np.abs(values[fits]).max(initial=0) > 1e9 else 1e-6  # of floats of that size
    assert np.abs(found[fits] - values[fits]).max(initial=0) <= 0.005 + rounding


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.text(), st.sampled_from(["", "epoch", "epoch 2"])), max_size=50))
def test_texts_come_back(values):
    found = round_trip(np.array([*values, None], object)[:-1], "text")
    assert found.tolist() == values


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(ints, ints, ints), min_size=0, max_size=40))
def test_predicted_columns_come_back_even_where_the_prediction_is_nonsense(rows):
    table = np.array(rows, np.int64).reshape(-1, 3).T
    columns = {"start": table[0], "duration": table[1], "part": table[2]}
    predictions = {"start": ("chain", {"duration": 1}), "part": ("sum", {"duration": 1})}
    frame, matrix = encode_frame(columns, dict.fromkeys(columns, "int"), predictions)
    found = decode_frame(frame, matrix)
    for name, values in columns.items():
        assert (found[name] == values).all(), name


def test_a_single_column_can_be_asked_for_and_brings_what_it_follows_from():
    columns = {"start": np.array([10, 15, 27]), "duration": np.array([5, 12, 3])}
    frame, matrix = encode_frame(columns, dict.fromkeys(columns, "int"), {"start": ("chain", {"duration": 1})})
    assert list(decode_frame(frame, matrix, ["start", "nothing"])) == ["start"]
    assert decode_frame(frame, matrix, ["start"])["start"].tolist() == [10, 15, 27]


def test_constant_columns_take_no_planes():
    columns = {"zero": np.zeros(1000, np.int64), "step": np.arange(1000)}
    _, matrix = encode_frame(columns, dict.fromkeys(columns, "int"))
    assert len(matrix) == 0


def test_percentages_take_one_byte_and_multiples_of_a_mebibyte_few():
    random = np.random.default_rng(1)
    columns = {
        "utilization_pct": random.integers(0, 101, 500).astype(float),
        "memory_used_bytes": 2**20 * random.integers(8_000, 8_100, 500).astype(float),
    }
    frame, matrix = encode_frame(columns, dict.fromkeys(columns, "float"))
    assert len(matrix) == 2
    assert frame["columns"]["memory_used_bytes"]["unit"] == 2**20


@pytest.mark.parametrize(
    "spoil",
    [
        lambda f: f.update(rows=7),
        lambda f: f["columns"]["x"].update(at=50),
        lambda f: f["columns"]["x"].update(width=9),
        lambda f: f["columns"]["x"].update(width=-1),
        lambda f: f["columns"]["x"].update(heads=[1, 2, 3]),
        lambda f: f["columns"]["x"].update(heads=["1"]),
        lambda f: f["columns"]["x"].update(base=2**70),
        lambda f: f["columns"]["x"].update(type="object"),
        lambda f: f["columns"]["x"].pop("at"),
        lambda f: f["columns"]["x"].update({"from": ["sum", {"x": 1}, 0]}),
        lambda f: f["columns"]["x"].update({"from": ["sum", {"y": 1}, 0]}),
        lambda f: f["columns"]["x"].update({"from": 3}),
        lambda f: f.update(columns=None),
    ],
)
def test_a_description_that_does_not_fit_is_refused(spoil):
    frame, matrix = encode_frame({"x": np.array([3, 1, 4, 1, 5, 9])}, {"x": "int"})
    spoil(frame)
    with pytest.raises(FrameError):
        decode_frame(frame, matrix)
