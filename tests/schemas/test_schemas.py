"""The JSON of `report`, `total` and `trace` follows its schema, whatever tests produce."""

import contextlib
import io
import json
import sys
from functools import cache
from pathlib import Path

import pytest
from make_recording import SCENARIOS, make_recording

from gpu_util_callback.cli import main

jsonschema = pytest.importorskip("jsonschema", reason='pip install -e ".[reach]"')

TESTS = Path(__file__).parents[1]
SCHEMAS = TESTS.parent / "gpu_util_callback" / "schemas"
SUFFIXES = (".pb", ".pb.gz", ".json", ".json.gz", ".sqlite")
sys.path.insert(0, str(TESTS / "scenarios"))


@cache
def validator(name: str):
    schema = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    return kind(schema)


def check(name: str, *command: str, status: int = 0) -> dict:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert main([name, *command, "--json"]) == status
    document = json.loads(out.getvalue())
    errors = validator(name).iter_errors(document)
    wrong = [f"{list(error.absolute_path)}: {error.message[:200]}" for error in errors]
    assert not wrong, "\n".join(wrong[:10])
    return document


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_reports_of_every_scenario(scenario, tmp_path):
    make_recording(tmp_path, scenario, steps=400, gpus=2, windows=[(50, 55)])
    check("report", str(tmp_path))


def test_a_comparison_with_limits(tmp_path):
    for name in ("healthy", "thirds"):
        make_recording(tmp_path / name, name, steps=300, gpus=1)
    report = check("report", str(tmp_path), "--forbid", "input_bound", status=1)
    assert report["comparison"] and not report["check"]["passed"]


def test_a_recording_that_has_only_begun_and_a_damaged_one(tmp_path):
    make_recording(tmp_path / "live", "healthy", steps=100, gpus=1, live=True)
    folder = make_recording(tmp_path / "damaged", "healthy", steps=100, gpus=1)
    for segment in Path(folder).rglob("segment-*.npz"):
        segment.write_bytes(b"PK\x03\x04damaged")
    check("report", str(tmp_path))


def made_up_cases() -> list:
    import test_made_up_jobs

    return test_made_up_jobs.CASES[::3]


@pytest.mark.parametrize("case", made_up_cases(), ids=lambda case: case.name)
def test_reports_of_made_up_runs(case, tmp_path):
    run, _ = case.build()
    run.write(tmp_path, case.status)
    check("report", str(tmp_path))


def test_traces(trace_data):
    files = [
        file for file in sorted(trace_data.rglob("*")) if file.name.endswith(SUFFIXES) and "hostile" not in file.parts
    ]
    assert len(files) > 15
    formats = {check("trace", str(file))["format"] for file in files}
    assert formats == {"xplane", "kineto", "nsys"}


def test_a_schema_refuses_what_breaks_a_promise(tmp_path):
    make_recording(tmp_path, "thirds", steps=300, gpus=1)
    report = check("report", str(tmp_path))
    for broken in (
        {**report, "version": 2},
        {**report, "runs": [{**report["runs"][0], "steps": "300"}]},
        {**report, "runs": [{k: v for k, v in report["runs"][0].items() if k != "verdict"}]},
        {**report, "runs": [{**report["runs"][0], "status": "done"}]},
    ):
        assert not validator("report").is_valid(broken)


def test_every_field_of_a_run_is_in_the_schema(tmp_path):
    make_recording(tmp_path, "thirds", steps=300, gpus=1)
    (run,) = check("report", str(tmp_path))["runs"]
    known = validator("report").schema["$defs"]["RunReport"]["properties"]
    assert set(run) <= set(known), set(run) - set(known)


def test_the_total_of_many_runs_and_a_check_of_limits(tmp_path):
    for scenario in SCENARIOS:
        make_recording(tmp_path / scenario, scenario, steps=300, gpus=2, scalars=False)
    (tmp_path / "damaged" / "plugins" / "gpu_utilization" / "x").mkdir(parents=True)
    found = check("total", str(tmp_path))
    assert found["recordings"] >= len(SCENARIOS)
    document = check("report", str(tmp_path / "slow"), "--check", status=1)
    assert document["check"]["failures"]
