"""The column encoding gives back what it was given, whatever that was."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gpu_util_callback.recording.container import Damaged, decode_frame, encode_frame
from gpu_util_callback.recording.schema import TABLES
from gpu_util_callback.recording.segments import Segment, complete, encode_segment

ints = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-1, 3), st.sampled_from([0, -1, 2**40, 10**18]))
int_columns = hnp.arrays(np.int64, st.integers(0, 60), elements=ints)
decimals = st.one_of(
    st.integers(-1000, 100_000).map(float),
    st.integers(0, 1000).map(lambda n: n / 10),
    st.integers(0, 10**9).map(lambda n: n / 1000),
    st.just(float("nan")),
)
float_columns = hnp.arrays(np.float64, st.integers(0, 60), elements=decimals)


def round_trip(values, kind, name="x"):
    frame, matrix = encode_frame({name: values}, {name: kind})
    assert matrix.dtype == np.uint8
    assert matrix.shape[1] == frame["rows"] == len(values)
    return decode_frame(json.loads(json.dumps(frame)), matrix).get(name, np.zeros(0))


@settings(max_examples=300, deadline=None)
@given(int_columns, float_columns)
def test_integers_and_decimals_come_back_exactly(whole, decimal):
    np.testing.assert_array_equal(round_trip(whole, "int"), whole)
    np.testing.assert_array_equal(round_trip(decimal, "float"), decimal)


@settings(max_examples=100, deadline=None)
@given(hnp.arrays(np.float64, st.integers(0, 60), elements=st.floats(-1e12, 1e12) | st.just(np.nan) | st.just(np.inf)))
@pytest.mark.parametrize(("name", "part"), [("x", 0.001), ("read_bytes_per_s", 1024), ("power_mw", 1)])
def test_other_floats_come_back_to_the_resolution_of_their_unit(name, part, values):
    found = round_trip(values, "float", name)
    finite = np.isfinite(values)
    np.testing.assert_array_equal(np.isfinite(found), finite)
    assert np.abs(found[finite] - values[finite]).max(initial=0) <= part / 2 + 1e-3


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.text(), st.sampled_from(["", "epoch", "epoch 2"])), max_size=50))
def test_texts_come_back(values):
    found = round_trip(np.array([*values, None], object)[:-1], "text")
    assert found.tolist() == values


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(*[ints] * 12), min_size=1, max_size=40))
def test_steps_come_back_even_where_their_parts_do_not_add_up(rows):
    columns = complete("steps", dict(zip(TABLES["steps"], np.array(rows, np.int64).T, strict=True)))
    segment = Segment(encode_segment({"steps": columns}, {}, 0))
    found = segment.table("steps")
    for name, values in columns.items():
        assert (found[name] == values).all(), name


def test_constant_columns_take_no_planes():
    _, matrix = encode_frame({"zero": np.zeros(1000, np.int64)}, {"zero": "int"})
    assert len(matrix) == 0


def test_percentages_and_multiples_of_a_mebibyte_take_one_byte():
    random = np.random.default_rng(1)
    columns = {
        "utilization_pct": random.integers(0, 101, 500).astype(float),
        "memory_used_bytes": 2**20 * random.integers(8_000, 8_100, 500).astype(float),
    }
    _, matrix = encode_frame(columns, dict.fromkeys(columns, "float"))
    assert len(matrix) == 2


@pytest.mark.parametrize(
    "spoil",
    [
        lambda f: f.update(rows=7),
        lambda f: f["columns"]["x"].update(at=50),
        lambda f: f["columns"]["x"].update(width=9),
        lambda f: f["columns"]["x"].update(width=-1),
        lambda f: f["columns"]["x"].update(unit="1"),
        lambda f: f["columns"]["x"].update(base=2**70),
        lambda f: f["columns"]["x"].update(type="object"),
        lambda f: f["columns"]["x"].update(type="float", per=0),
        lambda f: f["columns"]["x"].update(type="float", per=1, absent=9),
        lambda f: f["columns"]["x"].update(type="text", words=["a"]),
        lambda f: f["columns"]["x"].pop("at"),
        lambda f: f.update(columns=None),
    ],
)
def test_a_description_that_does_not_fit_is_refused(spoil):
    frame, matrix = encode_frame({"x": np.array([3, 1, 4, 1, 5, 9])}, {"x": "int"})
    spoil(frame)
    with pytest.raises(Damaged):
        decode_frame(frame, matrix)


def test_steps_without_a_column_that_others_follow_from_are_damaged():
    columns = complete("steps", {"start_ns": [1, 2], "duration_ns": [1, 1]})
    data = encode_segment({"steps": columns}, {}, 0)
    segment = Segment(data)
    del segment._frames["tables/steps"]["columns"]["duration_ns"]
    with pytest.raises(Damaged, match="no column 'duration_ns'"):
        segment.table("steps")
