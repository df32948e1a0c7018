"""`gpu-util export --parquet`: every table, read back by the tools that people use."""

import numpy as np
import pytest
from make_recording import make_recording

from gpu_util_callback import read_recordings
from gpu_util_callback.cli import main
from gpu_util_callback.recording.schema import TABLES


@pytest.fixture
def exported(tmp_path):
    pytest.importorskip("pyarrow", reason='pip install -e ".[parquet]"')
    for name, scenario in (("a", "thirds"), ("b", "no_gpu")):
        make_recording(tmp_path / "logs" / name, scenario, steps=300, gpus=1, windows=[(50, 53)])
    out = tmp_path / "tables"
    assert main(["export", str(tmp_path / "logs"), "--parquet", str(out)]) == 0
    return {one.run: one for one in read_recordings(tmp_path / "logs")}, out


def test_pandas_reads_every_table(exported):
    pandas = pytest.importorskip("pandas", reason="pip install pandas")
    recordings, out = exported
    assert {path.stem for path in out.iterdir()} == {*TABLES, "samples"}
    for table, columns in TABLES.items():
        frame = pandas.read_parquet(out / f"{table}.parquet")
        assert list(frame)[3:] == list(columns)
        for run, recording in recordings.items():
            rows = frame[frame["run"] == run]
            truth = recording.table(table)
            for name in columns:
                told = rows[name].to_numpy()
                expected = truth[name]
                if columns[name] == "text":
                    assert list(told) == list(expected), (table, name)
                    continue
                absent = rows[name].isna().to_numpy()
                assert np.array_equal(told[~absent].astype(float), expected[~absent].astype(float))
                unknown = expected[absent]
                assert np.isnan(unknown.astype(float)).all() or (unknown == -1).all()
    steps = pandas.read_parquet(out / "steps.parquet")
    assert len(steps) == 600 and set(steps["recording"]) == {r.id for r in recordings.values()}


def test_duckdb_answers_a_question_about_them(exported):
    duckdb = pytest.importorskip("duckdb", reason="pip install duckdb")
    recordings, out = exported
    [(mean,)] = duckdb.sql(
        f"select avg(value) from '{out}/samples.parquet' "
        "where run = 'a' and \"group\" = 'gpu0' and \"column\" = 'utilization_pct'"
    ).fetchall()
    truth = recordings["a"].samples["gpu0"]["utilization_pct"]
    assert mean == pytest.approx(np.nanmean(truth))
    waited = dict(
        duckdb.sql(
            f"select run, sum(input_wait_ns) / sum(duration_ns) from '{out}/steps.parquet' group by run"
        ).fetchall()
    )
    for run, share in waited.items():
        steps = recordings[run].steps
        assert share == pytest.approx(steps["input_wait_ns"].sum() / steps["duration_ns"].sum())
