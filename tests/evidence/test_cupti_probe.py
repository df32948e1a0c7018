"""The probe for a GPU: each question is asked and answered, over a CUPTI that is played."""

import json
import os
from pathlib import Path

import pytest
from cupti import build_standin
from fork_server import python
from packages import need
from programs import ran

from harness import cupti_probe

REPOSITORY = Path(__file__).parents[2]
IN_ONE_PROCESS = """
import json, os, sys
from pathlib import Path
from harness.cupti_probe import Probe, attach, beside, cost, forks, versions
folder = Path(sys.argv[1])
probe = Probe("jax", str(folder / "libcupti.so.13"), 0.2)
found = {
    "versions": versions(probe),
    "we first": beside(probe, False, "we"),
    "window first": beside(probe, False, "window"),
    "both": beside(probe, True, "we"),
    "attach": attach(probe, False, 3, folder / "progress"),
    "forks": forks(probe, True),
    "cost": cost(probe, False)["large"],
}
print(json.dumps(found))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.slow
def test_the_questions_are_answered(tmp_path):
    """Trainings of a small model on the CPU; the kernels are the stand-in's: 156 a step of small layers, or 3."""
    need("keras", "jax")
    build_standin(tmp_path)
    folders = (REPOSITORY, REPOSITORY / "harness" / "support", REPOSITORY / "demo")
    environ = {**os.environ, "KERAS_BACKEND": "jax", "CUPTI_STANDIN": "version=130500"}
    environ["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    printed = ran(*python("jax", "keras"), "-c", IN_ONE_PROCESS, tmp_path, env=environ).stdout
    found = json.loads(printed.splitlines()[-1])
    assert found["versions"]["one subscriber"] == found["versions"]["several subscribers"] == "works"
    # The framework's window takes what there is from 13.3 on: several subscribers, which one alone does not let in.
    assert found["we first"]["attaching"] == "works"
    assert "MULTIPLE_SUBSCRIBERS" in found["we first"]["opening a window"]
    assert found["we first"]["our kernels"] == 156 * 50
    assert "held by CUPTI for gpu-util" in found["window first"]["attaching"]
    assert found["window first"]["kernels in the window"] == 156 * 20
    assert (found["both"]["our kernels"], found["both"]["kernels in the window"]) == (156 * 50, 156 * 10)
    assert (found["attach"]["attachments"], found["attach"]["kernels"]) == (3, 3 * 20 * 156)
    assert (tmp_path / "progress").read_text() == "3"
    assert (found["forks"]["children"], found["forks"]["kernels"]) == ([7, 8], 156 * 50)
    assert (found["cost"]["kernels_a_step"], found["cost"]["records_a_step"], found["cost"]["dropped"]) == (3, 4, 0)
    assert found["cost"]["pairs"] > 0


@pytest.fixture
def probe(tmp_path, monkeypatch, capsys):
    """Runs the script with answers as a function (question, how many attachments) gives them."""
    monkeypatch.setattr(cupti_probe, "missing", lambda backend: [])

    def run(give, *arguments):
        asked = []

        def ask(args, question, limit_s, count=0):
            asked.append(question)
            return give(question, count)

        monkeypatch.setattr(cupti_probe, "ask", ask)
        code = cupti_probe.main(["--backend", "jax", "--out", str(tmp_path), *arguments])
        assert "-- versions: " in capsys.readouterr().out
        return code, json.loads((tmp_path / "cupti-jax.json").read_text()), asked

    return run


def test_what_breaks_is_counted_and_the_rest_goes_on(probe):
    """The seventh attachment of each process ends it."""

    def give(question, count):
        if question == "versions":
            return {"version": 130001}
        if not question.startswith("attach"):
            return {}
        if count > 6:
            return {"attachments": 6, "ended": -11, "log": ["Segmentation fault"]}
        return {"attachments": count, "loss": 1.0}

    code, found, asked = probe(give, "--attachments", "20")
    assert code == 0
    assert (found["attach one"]["attachments"], found["attach one"]["broken"]) == (20, 2)
    assert asked.count("attach one") == 3
    assert [question for question in asked if "several" in question] == []  # CUPTI 13.0 has no such thing


def test_without_an_answer_the_script_says_so(probe):
    code, found, asked = probe(lambda question, count: {"version": "cuptiGetVersion: 999 (CUPTI_ERROR_UNKNOWN)"})
    assert (code, asked) == (1, ["versions"])
    code, found, _ = probe(lambda question, count: {"version": 130500} if question == "versions" else {"ended": -6})
    assert code == 1
    assert found["attach several"]["broken"] > 10  # it does not try 200 times
    code, found, asked = probe(lambda question, count: {"version": 130001}, "--minutes", "0")
    assert (code, asked) == (1, ["versions"])
    assert "not asked" in found["cost one"]["ended"]


def test_a_process_that_crashes_leaves_its_log(tmp_path):
    """The library is no library: the process of the question ends with a traceback."""
    (tmp_path / "broken.so").write_text("no library")
    args = cupti_probe.argparse.Namespace(backend="jax", out=tmp_path, library=str(tmp_path / "broken.so"), seconds=1.0)
    found = cupti_probe.ask(args, "versions", 120)
    assert found["ended"] == 1
    assert "broken.so" in found["log"][-1]
