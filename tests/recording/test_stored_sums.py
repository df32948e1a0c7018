"""What a recording is judged by is stored beside its rows: equal to them, whole, or not used."""

import contextlib
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from generated_runs import GPU, Generated
from made_up_run import restored
from scripted_runs import Killed, killed_at, step_rows

from gpu_util_callback.diagnosis import Evidence, Run, diagnose, engine, judge
from gpu_util_callback.recording import Recording, read_recordings
from gpu_util_callback.recording.container import Container, Damaged, pack
from gpu_util_callback.recording.top import packed

ROOT = Path(__file__).resolve().parents[2]
CORPUS = "tests/evidence/h200/programs/*", "demo/recorded/*/*", "docs/try/*"
LOGDIRS = [path for pattern in CORPUS for path in sorted(ROOT.glob(pattern)) if path.is_dir()]


def stalled():
    """A run with an input that is slow for a while, validations, a heavy callback and a reading of its pipeline."""
    run = Generated(seed=3, gpus=[GPU])
    for number in range(4):
        run.steps(400, step_ms=10, wait_ms=30 if number == 2 else 0)
        run.phase("validation", 2)
        run.phase("callback", 1, name="Heavy.on_epoch_end")
        run.reading(
            ("map(decode)", "MapDataset", 20.0, 1.0, "py_function"), ("batch", "Batch", 1.0, 1.0, ""), batches=400
        )
    return run


@pytest.fixture
def older(monkeypatch):
    """Newer rules than those that judged what is stored."""
    monkeypatch.setattr(engine, "RULES_VERSION", engine.RULES_VERSION + 1)


def stored_run(tmp_path):
    """The folder of an ended recording, and the recording."""
    path = Path(stalled().write(tmp_path))
    (recording,) = read_recordings(tmp_path)
    return path, recording


def by_rows(recording):
    evidence = Evidence(recording.facts["started_ns"])
    for rows in recording.parts():
        evidence.add(*rows)
    facts = recording.facts
    return judge(Run(facts, evidence, recording.end_ns, True, facts.get("account")))


def of_recording(recording):
    """The stored sums, with newer rows."""
    sums = recording.stored_sums(Evidence)
    for rows in recording.parts(after=sums.covered):
        sums.add(*rows)
    return sums


@pytest.mark.parametrize("logdir", LOGDIRS, ids=[str(path.relative_to(ROOT)) for path in LOGDIRS])
def test_recorded_trainings_are_judged_alike_by_stored_sums(logdir):
    """Also where the last rows came after the sums were stored."""
    recordings = read_recordings(str(logdir))
    assert recordings
    for recording in recordings:
        evidence = Evidence(recording.start_ns)
        parts = list(recording.parts())
        for number, rows in enumerate(parts):
            evidence.add(*rows)
            if number in (0, len(parts) // 2, len(parts) - 1):
                evidence = restored(evidence)
        whole = Evidence(recording.start_ns)
        for rows in parts:
            whole.add(*rows)
        one, other = (judge(Run(recording.facts, sums, recording.end_ns, True)) for sums in (evidence, whole))
        assert json.dumps(one) == json.dumps(other)
        assert evidence.summary.result() == whole.summary.result()


@pytest.mark.usefixtures("older")
def test_newer_rules_read_no_rows(tmp_path, monkeypatch):
    _, recording = stored_run(tmp_path)
    expected = by_rows(recording)
    assert len(expected["spans"]) > 1
    monkeypatch.setattr(Recording, "open_segment", lambda *_: pytest.fail("a segment was opened"))
    assert json.dumps(diagnose(recording)) == json.dumps(expected)
    assert recording.problems == []


def spoiled(data: bytes, member: str, change) -> bytes:
    """A container whose member is another one, whole."""
    container = Container(data)
    arrays = {name: container.array(name) for name in container.names}
    arrays[member] = change(arrays[member])
    return pack(container.index, arrays)


def with_state(change):
    """A change of what stands in the sums' JSON: of the attributes by name."""

    def changed(octets):
        versions, about = json.loads(octets.tobytes())
        change(about)
        return np.frombuffer(json.dumps([versions, about]).encode(), np.uint8)

    return lambda data: spoiled(data, "state/state", changed)


DAMAGE = {
    "cut": lambda data: data[: len(data) // 2],
    "a byte flipped": lambda data: flipped(data, "state/<i8.npy"),
    "a byte of samples flipped": lambda data: flipped(data, "gpu0/<f8.npy"),
    "shorter arrays": lambda data: spoiled(data, "state/<i8", lambda planes: planes[:, : planes.shape[1] // 2]),
    "arrays of another kind": lambda data: spoiled(data, "state/<i8", lambda planes: planes.astype(np.float32)),
    "no JSON": lambda data: spoiled(data, "state/state", lambda octets: octets[:-9]),
    "a text as number": with_state(lambda about: about["phases"].update(end_ns="9")),
    "no end of a number": with_state(lambda about: about["account"].update(_between_ns=10**30)),
    "a sum less": with_state(lambda about: about.pop("accelerator")),
    "a column less": with_state(lambda about: about["phases"]["_groups"][0][1]["_fold"][4].pop("sum")),
}


def flipped(data: bytes, member: str) -> bytes:
    """The file with one byte of a member's packed content changed."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        info = archive.getinfo(member)
    at = info.header_offset + 30 + len(member) + info.compress_size // 2
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


@pytest.mark.usefixtures("older")
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_sums_are_named_and_the_rows_are_judged(damage, tmp_path):
    path, recording = stored_run(tmp_path)
    expected = json.dumps(by_rows(recording))
    file = path / "top.npz"
    file.write_bytes(DAMAGE[damage](file.read_bytes()))
    (found,) = read_recordings(tmp_path)
    assert json.dumps(diagnose(found)) == expected
    assert [problem.path for problem in found.problems] == [str(file)]


@pytest.mark.usefixtures("older")
@pytest.mark.parametrize("way", ["another version", "other attributes", "none"])
def test_sums_of_another_version_are_left_alone(way, tmp_path, monkeypatch):
    _, recording = stored_run(tmp_path)
    expected = json.dumps(by_rows(recording))
    if way == "another version":
        monkeypatch.setattr(Evidence, "VERSION", Evidence.VERSION + 1)
    elif way == "other attributes":
        monkeypatch.setattr("gpu_util_callback.recording.saved._version", lambda kind: "1-0")
    else:
        monkeypatch.setattr("gpu_util_callback.recording.top.STATE", "no")
    opened = []
    open_segment = Recording.open_segment
    monkeypatch.setattr(Recording, "open_segment", lambda one, info: opened.append(info) or open_segment(one, info))
    assert json.dumps(diagnose(recording)) == expected
    assert opened and recording.problems == []


@pytest.mark.usefixtures("older")
@pytest.mark.parametrize("call", range(1, 12))
def test_a_kill_at_any_write_judges_each_row_once(make_writer, tmp_path, scripted_time, call):
    """Sums and rows change at different moments: no row counts twice, and none is left out."""
    writer = make_writer()
    writer.sums = Evidence(writer.facts["started_ns"])
    for flush in range(3):
        writer.append("steps", step_rows(10, first=10 * flush))
        writer.flush()
        scripted_time.advance(2 if flush else 61)
    killed_at(writer, call)
    scripted_time.advance(61)
    writer.append("steps", step_rows(10, first=30))
    with contextlib.suppress(Killed):
        writer.flush()
        writer.append("steps", step_rows(10, first=40))
        writer.flush()
        writer.close("ended")
    (found,) = read_recordings(tmp_path / "run")
    sums = of_recording(found)
    assert sums.steps.total_rows == len(found.steps["step"]) in (30, 40, 50)
    assert sums.steps.total("duration_ns") == found.steps["duration_ns"].sum()


def test_rows_appended_during_a_flush_are_in_the_next_sums(make_writer, tmp_path, scripted_time):
    """A recorder appends and judges while storage takes its time."""
    writer = make_writer()
    writer.sums = Evidence(writer.facts["started_ns"])
    write, number = writer._storage.write, iter(range(10, 1000, 10))

    def slow(path, data):
        writer.append("steps", step_rows(10, first=next(number)))
        with writer.summed() as sums:
            assert sums.steps.total_rows % 10 == 0
        write(path, data)

    writer._storage.write = slow
    writer.append("steps", step_rows(10))
    writer.flush()
    for _ in range(3):
        scripted_time.advance(61)
        writer.flush()
        (found,) = read_recordings(tmp_path / "run")
        assert of_recording(found).steps.total_rows == len(found.steps["step"])


def test_rows_appended_while_a_flush_sums_up_count_once(make_writer, tmp_path, scripted_time):
    class Busy(Evidence):
        def add(self, tables, samples=None):
            if appended:
                writer.append("steps", step_rows(10, first=appended.pop()))
            super().add(tables, samples)

    writer = make_writer()
    appended = [30, 20, 10]
    writer.sums = Busy(writer.facts["started_ns"])
    writer.append("steps", step_rows(10))
    for _ in range(5):
        writer.flush()
        scripted_time.advance(61)
        (found,) = read_recordings(tmp_path / "run")
        sums = found.stored_sums(Evidence) or Evidence(found.start_ns)
        for rows in found.parts(after=sums.covered):
            sums.add(*rows)
        assert sums.steps.total_rows == len(found.steps["step"])
    assert len(appended) < 3 and sums.covered >= 0


def test_a_failure_to_sum_up_is_told_once_and_leaves_the_rows(make_writer, tmp_path, scripted_time):
    class Broken(Evidence):
        def add(self, tables, samples=None):
            raise ZeroDivisionError("of ours")

    writer = make_writer()
    writer.sums = Broken(writer.facts["started_ns"])
    writer.append("steps", step_rows(10))
    scripted_time.advance(61)
    writer.flush()
    with pytest.raises(ZeroDivisionError), writer.summed():
        pass
    writer.close("ended")
    (found,) = read_recordings(tmp_path / "run")
    assert len(found.steps["step"]) == 10 and found.stored_sums(Evidence) is None and found.problems == []


def test_empty_cells_are_not_stored_and_come_back():
    """Ten samples a second leave most cells of a short run without one."""
    times = np.arange(100) * 10**8
    rows = {"gpu0": {"time_ns": times, "power_mw": np.where(times % 3, times / 1e6, np.nan)}}
    whole = Evidence(0)
    whole.add({}, rows)
    half, data = restored(whole), packed(whole.saved())
    assert Container(data).array("gpu0/<f8").shape[1] == 100 < whole.samples["gpu0"].fold.used / 2
    for evidence in (whole, half):
        evidence.add({}, {"gpu0": {"time_ns": times + 10**10, "power_mw": times / 1e6}})
    one, other = (evidence.samples["gpu0"].fold for evidence in (whole, half))
    for part in ("low", "high", "total", "count", "first", "last"):
        np.testing.assert_array_equal(one.matrix(part), other.matrix(part))


def test_a_file_that_claims_huge_cells_is_refused():
    evidence = Evidence(0)
    evidence.add({"steps": step_rows(10)})
    data = packed(evidence.saved())
    for change in (
        lambda fold: [2**40, *fold[1:]],
        lambda fold: [fold[0], -1, *fold[2:]],
        lambda fold: [*fold[:3], 10**9, fold[4]],
        lambda fold: [*fold[:2], 2**70, *fold[3:]],
        lambda fold: [*fold[:2], None, *fold[3:]],
        lambda fold: [*fold, [*range(9), 10]],
        lambda fold: [*fold, [*range(9), -1]],
        lambda fold: [*fold, [*range(9), "9"]],
        lambda fold: [*fold, 10],
    ):

        def spoil(about, change=change):
            about["steps"]["fold"] = change(about["steps"]["fold"])

        with pytest.raises(Damaged):
            Evidence.unpack(Container(with_state(spoil)(data)), pytest.fail)
