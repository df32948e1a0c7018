"""Records of kernels by CUPTI's own interface, over a stand-in: who may attach, what is read, how it ends."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from cupti import (
    KERNEL,
    MEMCPY,
    MEMSET,
    RECORD,
    Attachment,
    Cupti,
    CuptiError,
    Refused,
    build_standin,
    busy_ns,
    decode,
    launch,
)
from programs import ran

SUPPORT = Path(__file__).parents[2] / "harness" / "support"


@pytest.fixture(scope="module")
def cupti_library(tmp_path_factory) -> Path:
    return build_standin(tmp_path_factory.mktemp("cupti"))


@pytest.fixture
def cupti(cupti_library, monkeypatch, tmp_path):
    """A stand-in of its own for each test: `cupti("version=130300")`."""
    copies = []

    def make(words: str = "") -> Cupti:
        monkeypatch.setenv("CUPTI_STANDIN", words)
        copies.append(tmp_path / f"libcupti-{len(copies)}.so.13")
        copies[-1].write_bytes(cupti_library.read_bytes())
        return Cupti(copies[-1])

    return make


@pytest.mark.parametrize("words, several", [("version=28", False), ("version=130001", False), ("version=130500", True)])
def test_kernels_and_copies_are_read_with_their_times(cupti, words, several):
    made = cupti(words)
    attachment = Attachment(made, several)
    began = made.now_ns()
    for _ in range(3):
        launch(made, 156, copies=3)
    attachment.detach()
    records = attachment.records()
    assert [int((records["kind"] == kind).sum()) for kind in (KERNEL, MEMCPY, MEMSET)] == [468, 6, 3]
    assert busy_ns(records) == 468 * 67_000
    assert records["start_ns"].min() == began
    assert np.all(np.diff(records["start_ns"].astype("i8")) > 0)
    launch(made, 5)  # nobody is attached
    assert not len(attachment.records())
    assert attachment.dropped == 0


def test_nothing_is_lost_between_one_attachment_and_the_next(cupti):
    made = cupti()
    for kernels in (7, 200, 1):
        attachment = Attachment(made)
        launch(made, kernels)
        attachment.detach()
        attachment.detach()
        assert len(attachment.records()) == kernels


def test_full_buffers_arrive_while_it_runs(cupti):
    made = cupti()
    attachment = Attachment(made, most=100)
    launch(made, 1050)
    attachment.flush()
    assert len(attachment.records()) == 1050
    attachment.detach()


def test_records_without_a_buffer_are_counted(cupti):
    made = cupti()
    attachment = Attachment(made, buffers=2, most=100)
    launch(made, 1000)
    attachment.detach()
    assert len(attachment.records()) == 200
    assert attachment.dropped == 800


def test_another_subscriber_refuses_us_and_we_another(cupti):
    made = cupti("version=130500")
    first = Attachment(made)
    with pytest.raises(Refused, match="MULTIPLE_SUBSCRIBERS") as refused:
        Attachment(made)
    assert refused.value.holder
    with pytest.raises(Refused):  # the first one did not ask for company
        Attachment(made, several=True)
    first.detach()
    Attachment(made, several=True).detach()
    with pytest.raises(Refused) as refused:
        Attachment(cupti("taken=1"))
    assert refused.value.holder == "Nsight Systems"


def test_several_have_each_their_records(cupti):
    made = cupti("version=130300")
    one, other = Attachment(made, several=True), Attachment(made, several=True)
    launch(made, 10)
    one.detach()
    launch(made, 5)
    other.detach()
    assert (len(one.records()), len(other.records())) == (10, 15)
    with pytest.raises(Refused):  # before 13.3 nobody has company
        made = cupti("version=130200")
        Attachment(made, several=True)
        Attachment(made, several=True)


def test_what_fails_leaves_nothing_behind(cupti):
    with pytest.raises(CuptiError, match="999"):
        Attachment(cupti("driver=0"))
    made = cupti("fail=2")
    with pytest.raises(CuptiError, match="INSUFFICIENT_PRIVILEGES"):
        Attachment(made)
    Attachment(made).detach()


ENDS = """
import os, sys
from cupti import Attachment, Cupti, launch
made = Cupti(sys.argv[1])
attachment = Attachment(made)
launch(made, 50)
"""


@pytest.fixture
def ending(cupti_library):
    def run(code: str, **how) -> str:
        environ = {**os.environ, "PYTHONPATH": str(SUPPORT), "CUPTI_STANDIN": "trap=1"}
        return ran(sys.executable, "-c", ENDS + code, cupti_library, env=environ, timeout=60, **how).stdout

    return run


def test_a_process_that_ends_attached_ends_well(ending):
    """CUPTI hands over what it has after Python's end: the stand-in aborts there, which is seen without our hook."""
    ending("")
    ending("raise SystemExit(3)", ends=3)
    ending("import atexit; atexit.unregister(attachment.detach)", ends=-6)


def test_a_forked_child_leaves_the_attachment_alone(ending):
    printed = ending(
        """
child = os.fork()
if not child:
    launch(made, 50)
    attachment.detach()
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
launch(made, 50)
attachment.detach()
print(len(attachment.records()))
"""
    )
    assert printed.split() == ["7", "100"]


def test_decoding_finds_runs_of_any_length():
    rng = np.random.default_rng(4)
    sizes = {KERNEL: 216, MEMCPY: 96, MEMSET: 88}
    kinds = np.concatenate([rng.choice([KERNEL, MEMCPY, MEMSET], 200), np.full(3000, KERNEL), [MEMCPY, KERNEL]])
    rows = []
    for at, kind in enumerate(kinds.tolist()):
        row = rng.integers(0, 256, sizes[kind], dtype=np.uint8)  # fields that mean nothing here
        row[:4].view("<u4")[0] = kind
        row[16:32].view("<u8")[:] = at, at + 1
        rows.append(row)
    starts = dict(zip(np.cumsum([0, *map(len, rows)]).tolist(), map(len, rows), strict=False))
    known: dict[int, int] = {}
    asked = []
    records = decode(np.concatenate(rows), known, lambda at: asked.append(at) or starts[at])
    assert records.dtype == RECORD
    assert np.array_equal(records["kind"], kinds)
    assert np.array_equal(records["start_ns"], np.arange(len(kinds)))
    assert (known, len(asked)) == (sizes, 3)
    with pytest.raises(ValueError, match="no record"):
        decode(np.concatenate(rows)[:-8], known, starts.__getitem__)


def test_time_side_by_side_counts_once():
    records = np.array([(KERNEL, 0, 10), (KERNEL, 5, 8), (MEMCPY, 30, 40), (KERNEL, 9, 20), (KERNEL, 50, 60)], RECORD)
    assert busy_ns(records) == 30
    assert busy_ns(records, (KERNEL, MEMCPY)) == 40
    assert busy_ns(records[:0]) == 0
