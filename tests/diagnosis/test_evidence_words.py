"""Every number of a finding has words for people: in the terminal, and in the tab."""

import ast
from pathlib import Path

import pytest
from generated_runs import GPU, Generated, write

import gpu_util_callback.diagnosis
import gpu_util_callback.traces.rules
from gpu_util_callback.diagnosis import RULES, run_report
from gpu_util_callback.diagnosis.evidence.labels import _LABELS, label, labels_of
from gpu_util_callback.recording import read_recordings
from gpu_util_callback.traces.rules import RULES as OF_TRACES
from tensorboard_plugin.replies import recording_reply

HERE = Path(gpu_util_callback.diagnosis.__file__).parent
MODULES = [*sorted(f"rules/{rule.cause}" for rule in RULES), "sessions"]
TRACES = Path(gpu_util_callback.traces.rules.__file__).parent
# Keys of the dictionaries around the evidence, and arguments beside it.
AROUND = {"advice", "cause", "code", "confidence", "evidence", "gpus", "id", "lost_s", "lost_ps",
          "ranks", "saves_s", "severity", "text", "threshold", "title"}  # fmt: skip
# A rule's other dictionaries: by framework, what to write.
NOT_EVIDENCE = {"tensorflow", "jax", "torch"}


def names_in(path: Path) -> set[str]:
    """Keys of all dictionaries of a rule's module, and what is added to its `evidence`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict) and not thresholds(tree, node):
            found |= {key.value for key in node.keys if isinstance(key, ast.Constant)}
        if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "evidence":
            found.add(getattr(node.slice, "value", None))
    return {name for name in found if isinstance(name, str)} - AROUND - NOT_EVIDENCE


def thresholds(tree: ast.Module, node: ast.Dict) -> bool:
    """Whether a dictionary is the rule's list of thresholds, or a constant of its module."""
    for one in ast.walk(tree):
        if isinstance(one, (ast.Assign, ast.AnnAssign)) and one.value is node:
            target = one.targets[0] if isinstance(one, ast.Assign) else one.target
            name = getattr(target, "id", "")
            return name == "thresholds" or name.isupper() or name.startswith("_")
    return False


@pytest.mark.parametrize("module", MODULES)
def test_every_name_in_a_rules_evidence_has_words(module):
    names = names_in(HERE / f"{module}.py")
    assert names, "the rule's evidence was not found: this test looks in the wrong place"
    unknown = names - set(_LABELS)
    assert not unknown, f"add words for {sorted(unknown)} to diagnosis/_evidence.py"


@pytest.mark.parametrize("rule", OF_TRACES, ids=lambda rule: rule.cause)
def test_every_name_in_the_evidence_of_a_trace_has_words(rule):
    names = names_in(TRACES / f"{rule.cause}.py") | set(rule.thresholds)
    unknown = names - set(_LABELS)
    assert not unknown, f"add words for {sorted(unknown)} to diagnosis/_evidence.py"


def test_a_name_without_words_is_shown_as_it_is():
    assert label("brand_new_pct") == "brand new pct" and "brand_new_pct" not in _LABELS


def test_the_tab_gets_the_words_of_what_it_shows(tmp_path):
    run = Generated(seed=1, gpus=[GPU])
    run.steps(200, step_ms=8, wait_ms=30)
    write(run, tmp_path)
    (recording,) = read_recordings(tmp_path)
    report = run_report(recording)
    reply = recording_reply(recording, "1", report)
    findings = [*report["spans"], *report["findings"]]
    assert findings and reply["labels"] == labels_of(findings)
    for name in findings[0]["evidence"]:
        assert reply["labels"][name] == label(name)
