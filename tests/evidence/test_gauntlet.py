"""The gauntlet's own judgement: what it reads as the first finding, and how a cure is scored."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

from gauntlet.child import windows  # noqa: E402
from gauntlet.judging import Result, first_in, first_of, summary  # noqa: E402
from gauntlet.registry import Program, load  # noqa: E402

PROGRAMS = Path(__file__).parent / "h200" / "programs"  # recorded on an H200, without their traces
MEASURED = REPOSITORY / "gauntlet" / "measured_h200.json"


def run_of(code="", saves_range_s=None, **advice):
    """A run of 9 s of a report whose only finding has this advice."""
    finding = {
        "id": "input_bound@1",
        "cause": "input_bound",
        "title": "Input-bound",
        "saves_range_s": saves_range_s,
        "advice": {"code": code, "text": "", **advice},
    }
    headline = {"ids": ["input_bound@1"], "saves_range_s": saves_range_s}
    return {"findings": [], "spans": [finding], "headline": headline, "wall_s": 9.0, "verdict": "Training waits."}


def train(run):
    raise AssertionError("judging trains nothing")


MAP = Program(
    train, "a map waits", "input", "input_bound", harmful=r"\.cache\(\)", cures={"calls": r"num_parallel_calls=(\d+)"}
)
CODE = "ds = ds.map(read, num_parallel_calls=8)"


def judged(program, code=CODE, printed="", base=4.0, cured=2.0, **advice):
    """The result of one round."""
    result = Result(program.name, program.truth, program.bound)
    result.note_first(program, first_in(run_of(code, **advice), printed or f"Fix first: {code}"))
    result.seconds = {"recorded": [base], "base": [base], result.cure or "none": [cured]}
    return result


def test_a_printed_cure_is_followed_with_its_number():
    result = judged(MAP)
    assert (result.cure, result.value, result.right) == ("calls", "8", True)


@pytest.mark.parametrize(
    ("cured", "inside", "far_below", "slower"),
    [(2.0, True, False, False), (3.5, False, True, False), (4.4, False, True, True)],
)
def test_a_promise_is_held_against_the_true_gain(cured, inside, far_below, slower):
    result = judged(MAP, cured=cured, saves_range_s=[4.0, 5.7])
    assert (result.inside, result.far_below, result.slower) == (inside, far_below, slower)


def test_the_first_calls_that_a_recorded_run_pays_for_stay_in_its_gain():
    result = judged(MAP, cured=2.0, saves_range_s=[4.0, 5.7])
    result.seconds["recorded"] = [10.0]
    assert result.gain("calls") == 2 and result.followed == pytest.approx(10 / 8)


def test_a_remedy_of_no_finding_is_read_as_it_is_printed():
    run = run_of() | {"spans": [], "headline": None, "verdict": "9 s in predict."}
    first = first_in(run, "gpu-util: 9 s in predict.\n  Fix first: model.predict_on_batch(batch)")
    assert first.fixed_first and "predict" in first.verdict and "predict_on_batch" in first.code


def test_a_harmful_cure_is_wrong_whatever_its_cause():
    result = judged(MAP, code="ds = ds.cache()")
    assert result.harmful and result.right is False


def test_a_changed_result_must_be_announced():
    for changes, unsaid in (("order of samples", False), ("", True)):
        result = judged(MAP, changes=changes)
        result.changed = {"base": False, "calls": True}
        assert result.changed_unsaid is unsaid


def test_a_healthy_program_must_have_no_first_finding():
    healthy = Program(train, "nothing", "any", None)
    assert judged(healthy).right is False
    result = Result("healthy", "nothing", "any")
    result.note_first(healthy, first_in(run_of() | {"headline": None}, "Nothing held it back."))
    assert result.right is True


def test_the_summary_counts_what_was_wrong():
    lines = "\n".join(summary([judged(MAP), judged(MAP, code="ds = ds.cache()")]))
    assert "First finding right (aim: 90 %): 1 of 2, 50 %" in lines


def test_windows_lie_within_the_training():
    assert windows(200) == [(60, 63), (130, 133)]
    assert windows(0) == "auto"


@pytest.mark.parametrize("name", sorted(folder.name for folder in PROGRAMS.iterdir()))
def test_the_first_finding_of_a_program_on_a_gpu_is_right_and_its_cure_helped(name):
    """What was measured there is judged again by today's rules."""
    program = load()[name]
    measured = next(one for one in json.loads(MEASURED.read_text()) if one["program"] == name)
    result = Result.from_json(measured | {"firsts": []})
    result.note_first(program, first_of(str(PROGRAMS / name)))
    assert result.right
    assert (result.cure, result.value) == (measured["cure"], measured["value"])
    gain = result.followed
    assert gain is None or gain > 1.05
    assert not result.changed_unsaid
    if result.promised and gain:
        assert 0.65 * result.promised[0] < gain
        assert result.promised[1] is None or gain < 1.5 * result.promised[1]


def test_all_programs_are_listed_without_a_framework():
    frameworks = {"keras", "tensorflow", "torch", "jax"}
    code = (
        f"import sys; from gauntlet.registry import load; assert len(load()) >= 40; "
        f"assert not {frameworks} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True)
