"""Clock readings to rows: pure arithmetic, no framework."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from gpu_util_callback.steps.assemble import Assembler, share_rows
from gpu_util_callback.steps.compilations import Compilations
from gpu_util_callback.steps.rows import ENDED_MEANWHILE, UNSEEN, InputRows, shape_signature
from gpu_util_callback.steps.timeline import CALL, FIRST, TESTING, TRACED, Function, Phase, SkippedCalls, Timeline

MS = 1_000_000


def call(**times) -> list[int]:
    row = [0] * len(CALL)
    for name, value in times.items():
        row[CALL[name]] = int(value * MS) if name != "flags" else value
    return row


def done(start, length=1, **more) -> list[int]:
    """A call that took so long, and nothing beside it did."""
    end = start + length
    return call(start=start, call=start, call_end=end, logs=end, logs_end=end, end=end, **more)


def rows(*pairs, signature=None) -> InputRows:
    stamps = np.array(pairs, float).reshape(-1, 2)
    delivered = np.where(stamps[:, 1] < 0, -1, stamps[:, 1] * MS).astype(np.int64)
    signature = np.zeros(len(stamps)) if signature is None else np.array(signature, float)
    return InputRows((stamps[:, 0] * MS).astype(np.int64), delivered, signature)


class Graph:
    """Rows that a graph has written, taken in parts."""

    def __init__(self, *parts: InputRows):
        self.parts = list(parts)

    def take(self) -> InputRows:
        return self.parts.pop(0) if self.parts else rows()


def block(calls, given, most=1, **more) -> list:
    """What a timeline's queue holds of such calls, whose graph has written what is given."""
    graph = Graph(given) if given is not None else None
    return [Function("train", most, graph, **more), *map(tuple, calls)]


def steps(items, **arguments) -> dict[str, np.ndarray]:
    (columns,) = Assembler(0, Compilations(**arguments)).add(items)["steps"]
    return columns


SIMPLE = call(start=0, hooks=0.5, hooks_end=1, call=1, call_end=11, logs=13, logs_end=14, end=15, flags=FIRST)


def changed(**times) -> list[int]:
    """The simple call with other readings."""
    row = list(SIMPLE)
    for name, value in times.items():
        row[CALL[name]] = value
    return row


# torch: the step begins with the request, and the call has no wait in it.
FETCHED_BEFORE = call(start=0, hooks=4, hooks_end=4, call=4, call_end=9, logs=9, logs_end=9, end=9)
WHOLE = {"duration": 15, "input_get": 4, "input_wait": 4, "body": 6, "gpu_wait": 2, "callbacks": 1.5, "compile": 0}


@pytest.mark.parametrize(
    ("row", "given", "expected"),
    [
        (SIMPLE, rows((2, 6)), WHOLE),
        (changed(flags=TRACED), rows((2, 6)), {"compile": 6, "body": 0}),  # but for its wait
        (SIMPLE, None, {"input_wait": None, "input_get": None, "body": 10}),
        (changed(logs=0), rows((2, 6)), {"gpu_wait": None, "callbacks": None}),  # without the hooks that show them
        (FETCHED_BEFORE, rows((0, 3.5)), {"input_wait": 3.5, "body": 5, "duration": 9}),
        # A wall clock that was set in mid fetch makes no impossible wait.
        (SIMPLE, rows((2, 5000)), {"input_wait": 10}),
        (SIMPLE, rows((2, 0.5)), {"input_wait": 0}),
    ],
)
def test_the_parts_of_a_step(row, given, expected):
    """In ms; None: absent."""
    table = steps(block([row], given))
    found = {name: table[f"{name}_ns"][0] for name in expected}
    assert found == {name: -1 if ms is None else ms * MS for name, ms in expected.items()}
    assert table["estimated"][0] == 0 and table["batches"][0] == 1


@pytest.mark.parametrize(("most", "fetched"), [(1, [(2, 10)]), (8, [(2, 10), (10, 10.5)])])
def test_the_fetch_of_the_first_batch_without_a_stop_of_the_process(most, fetched):
    assembler = Assembler(0, stops=[(3 * MS, 9 * MS)])
    tables = assembler.add(block([SIMPLE], rows(*fetched), most=most))
    (phases,), (table,) = tables["phases"], tables["steps"]
    first = [phases[name][0] / MS for name in ("start_ns", "end_ns", "self_ns")]
    assert phases["name"].tolist() == ["first batch"] and first == [2, 10, 2]
    assert table["input_wait_ns"][0] == table["input_get_ns"][0] == 2 * MS
    assert table["duration_ns"].sum() == 9 * MS


def test_a_traced_call_is_a_phase_that_counts_in_its_step():
    (phases,) = Assembler(0).add(block([changed(flags=TRACED)], rows((2, 6))))["phases"]
    assert phases["kind"].tolist() == ["compilation"] and phases["account"].tolist() == [""]


@pytest.mark.parametrize(("delay", "work"), [(12.0, 8.0), (3.0, 8.0), (12.0, 0.5), (0.0, 4.0), (8.0, 8.0)])
@pytest.mark.parametrize("n", [8, 3, 1])
def test_several_steps_in_one_call(delay, work, n):
    """Batches fetched ahead: only what delays a step is a wait."""
    fetched, free, request = [], 2.0, 2.0
    lost = 0.0
    for k in range(n):
        ready = request + delay
        begin = max(ready, free)
        lost += max(0.0, ready - (2.0 if k == 0 else free))
        fetched.append((request, ready))
        free, request = begin + work, ready  # the next fetch begins at once
    row = call(start=0, hooks=0, hooks_end=1, call=1, call_end=free, logs=free, logs_end=free + 1, end=free + 2)
    table = steps(block([row], rows(*fetched), most=8))
    assert len(table["step"]) == n and (table["batches"] == n).all()
    assert table["input_get_ns"].sum() == pytest.approx(n * delay * MS)
    assert table["input_wait_ns"].sum() == pytest.approx(lost * MS, rel=1e-3, abs=0.001 * MS)
    assert table["duration_ns"].sum() == pytest.approx((free + 2) * MS)
    parts = sum(table[name] for name in ("input_wait_ns", "compile_ns", "body_ns", "gpu_wait_ns", "callbacks_ns"))
    assert (parts <= table["duration_ns"]).all()
    total = table["body_ns"].sum() + table["input_wait_ns"].sum()
    assert total == pytest.approx((free - 1) * MS, rel=1e-3)


def test_serial_fetches_are_exact():
    row = done(0, 40)
    given = rows((0, 6), (14, 15), (23, 33))
    table = steps(block([row], given, most=8, serial=True))
    assert (table["input_wait_ns"] / MS).tolist() == [6, 1, 10]
    assert (table["duration_ns"] / MS).tolist() == [14, 9, 17]
    assert (table["estimated"] == 0).all()


def test_sharing_rows_among_calls():
    def share(came: str, calls: int, most: int):
        given = rows(*[(i, i + 0.5 if c == "x" else -1) for i, c in enumerate(came)])
        found = share_rows(given, calls, most)
        return None if found is None else [came[part] for part in found]

    assert share("xxxxxxxx", 2, 4) == ["xxxx", "xxxx"]
    assert share("xxxxxx.", 2, 4) == ["xxxx", "xx."]
    # An unrolled loop asks several times; a call that found nothing is not among the calls.
    assert share("xxxxx...xx", 3, 4) == ["xxxx", "x...", "xx"]
    assert share(".xxxx", 1, 4) == ["xxxx"]
    assert share("xxxx.xxxx", 2, 4) == ["xxxx.", "xxxx"]
    assert share("xxx", 3, 1) == ["x", "x", "x"]
    assert share("xx", 3, 1) is None
    # A call that was interrupted leaves a row and is not among the calls.
    assert share("xxxx", 3, 1) == ["x", "x", "x"]
    assert share("xxxxxx", 1, 4) == ["xxxx"]
    assert share("xxxx", 2, 4) is None


def test_shapes_and_what_they_compile():
    signature = [7, 7, 7, 9, 9, 7, 11]
    lengths = [5, 5, 5, 300, 5, 5, 6]  # a new shape that costs nothing compiled nothing
    calls = [done(1000 * k, ms) for k, ms in enumerate(lengths)]
    given = rows(*[(1000 * k, 1000 * k + 1) for k in range(7)], signature=signature)
    table = steps(block(calls, given), shapes_compile=True)
    assert table["shape_id"].tolist() == [0, 0, 0, 1, 1, 0, 2]
    assert np.flatnonzero(table["compile_ns"]).tolist() == [3]
    given = rows(*[(1000 * k, 1000 * k + 1) for k in range(7)], signature=signature)
    table = steps(block(calls, given), shapes_compile=False)
    assert not table["compile_ns"].any()


def test_first_seen_shapes_are_no_measure_for_each_other():
    """Lengths that come once each, from the first step on: 300 ms is not what a step takes."""
    own = np.array([900, 300, 290, 310, 5, 5, 280, 5], np.int64) * MS
    traced = np.array([True] + [False] * 7)
    new = np.array([True, True, True, True, False, False, True, False])
    for always, expected in ((True, [0, 1, 2, 3, 6]), (False, [0, 6])):
        compilations = Compilations(shapes_compile=True, every_shape_compiles=always)
        assert np.flatnonzero(compilations.among(traced, new, own)).tolist() == expected
    # Where it is not certain, steps that are merely long are left alone.
    slow = Compilations(shapes_compile=True)
    assert not slow.among(np.zeros(8, bool), np.ones(8, bool), own).any()


def test_phases_know_their_step_whatever_the_order_of_the_queue():
    late = Phase("callback", "late", 0, 5, "callbacks", 5, calls=3)
    early = Phase("callback", "early", 0, 5, "callbacks", 5, calls=1)
    partial = [(k, k + 0.1) for k in range(10)]
    calls = [done(i) for i in range(3)]
    assembler = Assembler(0)
    tables = assembler.add([early, late])
    assert "phases" not in tables  # their calls are not assembled yet
    tables = assembler.add(block(calls, rows(*partial), most=4))
    (phases,) = tables["phases"]
    where = dict(zip(phases["name"], phases["step"], strict=True))
    assert where["early"] == 4 and where["late"] == 10
    assert assembler.steps == 10


def test_a_phase_between_calls_does_not_cut_their_block():
    """A callback's hook may have a row of its own in every step: rows stay cheap, steps exact."""
    items = []
    for k in range(20):
        items.append(tuple(call(start=k, call=k, call_end=k + 1, end=k + 1)))
        items.append(Phase("callback", f"after {k}", k, k + 1, "callbacks", 1, calls=k + 1))
    tables = Assembler(0).add([Function("train"), *items])
    (table,), (phases,) = tables["steps"], tables["phases"]
    assert len(table["step"]) == 20
    assert phases["step"].tolist() == list(range(1, 21))


def test_steps_that_come_too_fast_are_counted_without_rows():
    """All else stays, at its place; a graph's calls have to stay, too, as its rows are theirs."""
    calls = [tuple(call(start=k, call=k, call_end=k + 1, end=k + 1)) for k in range(8)]
    mark = [Phase("callback", f"after {k}", k, k, "callbacks", 1, calls=k) for k in range(9)]
    tested = tuple(call(start=3, call=3, end=4, flags=TESTING))
    graph = Function("train", 1, Graph(rows((7, 7.5))))
    queue = deque(
        [
            Function("train"),
            *calls[:2],
            mark[1],
            calls[2],
            tested,
            mark[3],
            Function("train", 2),
            *calls[3:5],
            mark[5],
            *calls[5:7],
            graph,
            calls[7],
        ]
    )
    assembler = Assembler(0)
    items, taken = assembler.skip(queue, 12)
    assert taken == 12 and list(queue) == [calls[6], graph, calls[7]]
    tables = assembler.add(items)
    (phases,) = tables["phases"]
    names = dict(zip(phases["name"], phases["step"].tolist(), strict=True))
    assert names["after 1"] == 1 and names["after 3"] == 3 and names["after 5"] == 7
    unkept = phases["account"] == "other"
    assert phases["self_ns"][unkept].tolist() == [3 * MS, 3 * MS]
    assert assembler.skipped == assembler.steps == 9 and "steps" not in tables
    assert assembler.skip(queue, 3) == ([SkippedCalls(6 * MS, 7 * MS, 1, MS)], 1)
    assert assembler.add([SkippedCalls(6 * MS, 7 * MS, 1, MS), *queue])["steps"][0]["step"] == [11]
    assert assembler.skip(deque(calls), 3) == ([], 0)


def test_calls_after_some_that_lost_their_rows_have_their_own():
    calls = [tuple(done(k)) for k in range(4)]
    graph = Graph(rows((1.2, 1.4), (3.2, 3.5)))  # of one of three calls, and of one under way
    assembler = Assembler(0)
    (lost,) = assembler.add([Function("train", 1, graph), *calls[:3]])["steps"]
    (table,) = assembler.add(calls[3:])["steps"]
    assert lost["input_wait_ns"].tolist() == [-1, -1, -1] and assembler.lost_rows == 3
    assert table["input_wait_ns"].tolist() == [0.3 * MS]


def test_rows_of_a_call_under_way_wait_for_it():
    one = done(0, 30)
    two = done(30, 30)
    graph = Graph(rows((0, 5), (10, 12), (30, 33)), rows((40, 50)))
    assembler = Assembler(0)
    (first,) = assembler.add([Function("train", 2, graph, serial=True), tuple(one)])["steps"]
    (second,) = assembler.add([tuple(two)])["steps"]
    assert (first["input_wait_ns"] / MS).tolist() == [5, 2]
    assert (first["duration_ns"] / MS).tolist() == [10, 20]
    assert (second["input_wait_ns"] / MS).tolist() == [3, 10]
    assert (second["duration_ns"] / MS).tolist() == [10, 20]


def test_calls_that_fetch_in_python_bring_their_own_rows():
    """A call without a batch of its own takes none of the next one's."""
    at = [done(k) for k in (1, 2, 3)]
    stamps = [(MS, MS + MS // 2, 7.0, 0), (), (3 * MS, 3 * MS + MS // 4, 9.0, 0)]
    items = [Function("train"), *((*row, *own) for row, own in zip(at, stamps, strict=True))]
    table = steps(items)
    assert table["input_wait_ns"].tolist() == [MS // 2, -1, MS // 4]
    assert table["shape_id"].tolist() == [0, -1, 1]
    two, one = (MS, MS + 5, 0.0, 0, MS + 9, MS + 20, 0.0, 0), (2 * MS, 2 * MS + 30, 0.0, 0)
    several = steps([Function("train", 2), (*at[0], *two), (*at[1], *one)])
    assert several["batches"].tolist() == [2, 2, 1]


def test_a_device_that_was_done_meanwhile_ends_the_wait():
    """The device's end is seen on another thread, by the call's number."""
    at = [done(k) for k in (1, 2)]
    seen = {0: 2 * MS + MS // 4}
    idle = (MS, MS + MS // 2, 0.0, 0)
    busy = (2 * MS, 2 * MS + MS // 2, 0.0, ENDED_MEANWHILE)
    items = [(*at[0], *idle), (*at[1], *busy)]
    (table,) = Assembler(0, device_done=seen).add(items)["steps"]
    assert table["input_wait_ns"].tolist() == [MS // 2, MS // 4]
    assert not seen or min(seen) >= 1


def test_validations_between_steps_keep_their_place():
    row = done(0)
    test = done(1, flags=TESTING)
    items = [Function("validation"), tuple(row), (*test, MS, MS + 5, 0.0, 0), tuple(row), (*test, MS, MS + 7, 0.0, 0)]
    tables = Assembler(0).add(items)
    assert [part["step"].tolist() for part in tables["validation_steps"]] == [[1], [2]]
    assert [part["input_wait_ns"].tolist() for part in tables["validation_steps"]] == [[5], [7]]
    assert sum(len(part["step"]) for part in tables["steps"]) == 2


def test_a_validation_batch_that_was_not_requested_has_no_wait():
    """Of a loop that only says where its steps begin; as in training."""
    test = done(1, flags=TESTING)
    items = [Function("validation"), (*test, UNSEEN, MS, 0.0, 0), (*test, MS, MS + 7, 0.0, 0)]
    (table,) = Assembler(0).add(items)["validation_steps"]
    assert table["input_wait_ns"].tolist() == [-1, 7]


def test_rows_that_cannot_be_read_leave_the_steps():
    class Broken(Graph):
        def take(self):
            raise OSError("gone")

    said = []
    assembler = Assembler(0, failed=said.append)
    (table,) = assembler.add([Function("train", 1, Broken()), tuple(SIMPLE)])["steps"]
    assert table["input_wait_ns"].tolist() == [-1] and str(said[0]) == "gone"
    (table,) = assembler.add([tuple(SIMPLE)])["steps"]
    assert len(said) == 1 and len(table["step"]) == 1


class Clock:
    """A clock that goes on by 1 with every reading, or as told."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        self.now += 1
        return self.now


def hooks(timeline: Timeline):
    """What stands around a list's batch hooks; the end hooks take 7."""

    def ends(batch, logs):
        timeline._perf.now += 7

    begin = timeline.around_begin(lambda batch: None, lambda now: None, pytest.fail)
    return begin, timeline.around_end(ends, logs_are_ready=True)


def test_a_timeline_accounts_for_every_nanosecond_of_an_epoch():
    clock = Clock()
    timeline = Timeline(perf=clock)
    begin, end = hooks(timeline)
    timeline.begin()
    began = clock.now
    for epoch in range(2):
        timeline.epoch_begin(epoch)
        timeline.epoch_begun()
        clock.now += 100  # the iterator is made
        for _ in range(3):
            begin(0)
            start = clock()
            clock.now += 50
            timeline.call, timeline.call_end = start, clock()
            end(0)
        timeline.input_work("new iterator", clock() - 5, clock())
        clock.now += 30
        timeline.epoch_end()
        timeline.epoch_ended()
    timeline.finish()
    wall = clock.now - began
    tables = Assembler(0).add(list(timeline.queue), last=True)
    counted = sum(
        int(part[name].sum()) for part in tables["steps"] for name in ("body_ns", "gpu_wait_ns", "callbacks_ns")
    )
    for phases in tables["phases"]:
        counted += int(phases["self_ns"][phases["account"] != ""].sum())
    assert sum(len(part["step"]) for part in tables["steps"]) == 6
    # Readings themselves take 1 here; all that passes by the hundred is accounted for.
    assert 0 <= wall - counted < 0.2 * wall


def test_an_end_of_data_is_input_and_no_step():
    clock = Clock()
    timeline = Timeline(perf=clock)
    begin, _ = hooks(timeline)
    timeline.begin()
    timeline.epoch_begin(0)
    timeline.epoch_begun()
    begin(0)
    start = clock()
    clock.now += 40
    timeline.no_batch(start, clock())
    timeline.epoch_end()
    timeline.finish()
    tables = Assembler(0).add(list(timeline.queue), last=True)
    assert "steps" not in tables
    (phases,) = tables["phases"]
    at = phases["name"].tolist().index("end of data")
    assert phases["account"][at] == "input_wait" and phases["self_ns"][at] >= 40


class Odd:
    """An element of a batch that is no tensor."""

    def __init__(self, shape):
        self._shape = shape

    @property
    def shape(self):
        if isinstance(self._shape, Exception):
            raise self._shape
        return self._shape


@pytest.mark.parametrize("shape", [7, ValueError("unknown rank"), ([1], [2])])
@pytest.mark.parametrize("nest", [tuple, list])
def test_a_batch_whose_shape_is_something_else_has_no_signature(shape, nest):
    assert shape_signature(nest([Odd(shape), Odd(shape)])) == 0.0
    assert shape_signature({"x": Odd(shape)}) == 0.0
