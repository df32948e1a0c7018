"""`gpu-util export --parquet`: every table, read back by the tools that people use."""

import re
from pathlib import Path

import numpy as np
import pytest
from make_recording import make_recording

from gpu_util_callback import read_recordings
from gpu_util_callback.cli import main
from gpu_util_callback.diagnosis.survey import survey
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


PAGE = Path(__file__).parents[2] / "docs" / "guides" / "gpu-hours.md"


def test_the_runs_of_a_total_answer_the_questions_of_the_page(tmp_path, monkeypatch):
    duckdb = pytest.importorskip("duckdb", reason="pip install duckdb")
    pytest.importorskip("pyarrow", reason='pip install -e ".[parquet]"')
    for name, scenario in (("a", "thirds"), ("b", "slow"), ("c", "host_stall"), ("d", "no_gpu")):
        make_recording(tmp_path / "logs" / name, scenario, steps=300, gpus=2, scalars=False)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # the second time replaces the first
        assert main(["total", "logs", "--parquet", "runs", "--json"]) == 0
    rows = survey(["logs"]).rows
    queries = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.S)
    assert len(queries) == 5
    by_cause, by_user, by_week, worst, fixes = (duckdb.sql(query).fetchall() for query in queries)
    lost: dict[str, float] = {}
    for row in rows:
        for loss in row["lost"].values():
            hours = (loss["lost_s"] or 0) * len(row["gpus"]) / 3600
            lost[loss["title"]] = lost.get(loss["title"], 0) + hours
    assert {title: hours for title, hours, _ in by_cause} == pytest.approx(lost)
    whole = sum(row["wall_s"] * len(row["gpus"]) for row in rows) / 3600
    for groups in (by_user, by_week):
        assert sum(group[1] for group in groups) == pytest.approx(whole)
    assert {name for name, *_ in worst} <= {"a", "b", "c", "d"} and worst[0][1] >= worst[-1][1]
    assert fixes and all(fix for fix, *_ in fixes)
