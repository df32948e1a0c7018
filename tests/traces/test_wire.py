import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xspace_builder import message_class

from gpu_util_callback.traces import wire

int64 = st.integers(-(2**63), 2**63 - 1)
small = st.integers(0, 300)
stat = st.tuples(st.sampled_from(["int", "uint", "double", "str", "ref"]), int64, small)


def add_stat(event, kind: str, value: int, key: int) -> None:
    s = event.stats.add(metadata_id=key)
    if kind == "int":
        s.int64_value = value
    elif kind == "uint":
        s.uint64_value = value % 2**64
    elif kind == "double":
        s.double_value = float(value)
    elif kind == "ref":
        s.ref_value = abs(value)
    else:
        s.str_value = b"x" * (key % 200)


@settings(deadline=None)
@given(st.lists(st.tuples(int64, int64, int64, st.lists(stat, max_size=6)), max_size=30))
def test_many_messages_at_once_read_as_protobuf_reads_them(rows):
    line = message_class("XLine")(id=7, name=b"line", timestamp_ns=5)
    for metadata, offset, duration, stats in rows:
        event = line.events.add(metadata_id=metadata, offset_ps=offset, duration_ps=duration)
        for kind, value, key in stats:
            add_stat(event, kind, value, key)
    data = line.SerializeToString()
    payloads, others = wire.payloads_of(data, 0, len(data), (4,), 1000)
    starts, ends = payloads[4]
    assert {number for number, *_ in others} >= {1, 2, 3}
    buffer = wire.Buffer(data)
    table, (owner, s_start, s_end) = wire.decode(buffer, starts, ends, (1, 2, 3), repeated=4)
    for number, field in ((1, "metadata_id"), (2, "offset_ps"), (3, "duration_ps")):
        got = table[number].value.view(np.int64).tolist()
        assert got == [getattr(e, field) for e in line.events]
    order = np.argsort(s_start)
    stats = [s for e in line.events for s in e.stats]
    owners = [i for i, e in enumerate(line.events) for _ in e.stats]
    assert owner[order].tolist() == owners
    decoded, _ = wire.decode(buffer, s_start[order], s_end[order], (1, 2, 3, 4, 5, 7), payloads=(5,))
    for i, s in enumerate(stats):
        assert decoded[1].value.view(np.int64)[i] == s.metadata_id
        which = s.WhichOneof("value")
        number = {"double_value": 2, "uint64_value": 3, "int64_value": 4}.get(which)
        if number:
            column = decoded[number]
            raw = column.value.view(np.float64 if number == 2 else np.int64)[i]
            assert column.present[i]
            assert int(raw) % 2**64 == int(getattr(s, which)) % 2**64
        elif which == "str_value":
            text = buffer.slice(int(decoded[5].value[i]), int(decoded[5].end[i]))
            assert text == s.str_value


def test_a_message_with_very_many_fields_is_read_too():
    event = message_class("XEvent")(metadata_id=3)
    for i in range(5000):
        event.stats.add(metadata_id=i, int64_value=i)
    data = event.SerializeToString()
    buffer = wire.Buffer(data)
    table, (owner, start, _) = wire.decode(buffer, np.array([0]), np.array([len(data)]), (1,), repeated=4)
    assert table[1].value.tolist() == [3]
    assert len(owner) == len(set(start.tolist())) == 5000


@settings(deadline=None, max_examples=300)
@given(st.binary(min_size=1, max_size=60))
def test_arbitrary_bytes_are_read_or_refused_never_run_over(data):
    buffer = wire.Buffer(data)
    try:
        _, (_, _, ends) = wire.decode(buffer, np.array([0]), np.array([len(data)]), (1, 2), repeated=4)
    except wire.BadMessage:
        return
    assert (ends <= len(data)).all()


@pytest.mark.parametrize("cut", [1, 2, 5, 11])
def test_a_cut_message_is_refused(cut):
    event = message_class("XEvent")(metadata_id=300, offset_ps=2**40, duration_ps=2**35)
    data = event.SerializeToString()[:-1]
    buffer = wire.Buffer(data)
    end = len(data) - (cut - 1) % len(data)
    if end in (0, 3, 10):  # a whole number of fields
        return
    with pytest.raises(wire.BadMessage):
        wire.decode(buffer, np.array([0]), np.array([end]), (1,))


def test_too_many_entries_are_refused_before_they_fill_the_memory():
    data = b"\x22\x00" * 101 + b"\x08\x01" * 1102
    payloads, others = wire.payloads_of(data, 0, len(data), (4,), 1203)
    assert (len(payloads[4][0]), len(others)) == (101, 1000)
    for limit in (100, 1202):  # the payloads; the other fields
        with pytest.raises(wire.TooMany):
            wire.payloads_of(data, 0, len(data), (4,), limit)
