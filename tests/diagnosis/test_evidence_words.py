"""Every number of a finding has words for people: in the terminal, and in the tab."""

import ast
from pathlib import Path

import pytest
from generated_runs import GPU, Generated, findings_of, write

import gpu_util_callback.diagnosis
from gpu_util_callback.diagnosis import RULES, run_report
from gpu_util_callback.diagnosis.total_time import REPEATED
from gpu_util_callback.recording import read_recordings
from gpu_util_callback.recording.schema import CATEGORIES
from gpu_util_callback.words import evidence_rows, evidence_words, label, quantity, unit_of
from tensorboard_plugin.replies import recording_reply, vocabulary

HERE = Path(gpu_util_callback.diagnosis.__file__).parent
MODULES = [*sorted(f"rules/{rule.cause}" for rule in RULES), "sessions"]
# Keys of the dictionaries around the evidence, and arguments beside it.
AROUND = {
    "advice",
    "before",
    "cause",
    "code",
    "confidence",
    "evidence",
    "finding",
    "gpus",
    "groups",
    "id",
    "ids",
    "lost_s",
    "rank",
    "ranks",
    "saves_s",
    "severity",
    "text",
    "threshold",
    "title",
    "wall_s",
}


def names_in(path: Path) -> set[str]:
    """Keys of all dictionaries of a rule's module, and what is added to its `evidence`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict) and not thresholds(tree, node):
            found |= {key.value for key in node.keys if isinstance(key, ast.Constant)}
        if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "evidence":
            found.add(getattr(node.slice, "value", None))
    return {name for name in found if isinstance(name, str)} - AROUND


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
    names = set().union(*map(names_in, [*HERE.glob(f"{module}.py"), *HERE.glob(f"{module}/*.py")]))
    assert names, "the rule's evidence was not found: this test looks in the wrong place"
    unknown = names - set(evidence_words())
    assert not unknown, f"add words for {sorted(unknown)} to evidence_words.json"


def test_a_name_without_words_is_shown_as_it_is():
    assert label("brand_new_pct") == "brand new pct" and "brand_new_pct" not in evidence_words()
    assert quantity("brand_new_pct", 12.0) == "12" and unit_of("brand_new_pct") == ""


def test_the_tab_gets_the_words_of_what_it_shows(tmp_path):
    run = Generated(seed=1, gpus=[GPU])
    run.steps(200, step_ms=8, wait_ms=30)
    write(run, tmp_path)
    (recording,) = read_recordings(tmp_path)
    report = run_report(recording)
    reply = recording_reply(recording, "1", report)
    findings = findings_of(report)
    sent = findings_of(reply["report"])
    assert findings and [one["rows"] for one in sent] == [evidence_rows(one) for one in findings]
    rows = {row["name"]: row for row in sent[0]["rows"]}
    assert set(rows) == {name for name, value in sent[0]["evidence"].items() if value is not None}
    assert rows["wait_pct"]["label"] == label("wait_pct")
    assert rows["wait_pct"]["rule"] == "≥ 7.5 %" and rows["wait_pct"]["bar"][1] == 7.5


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("gb_per_s", 27.7, "27.7 GB/s"),  # it ends like seconds
        ("stage_ms_per_batch", 31.24, "31.2 ms"),
        ("stage_ms_per_batch", 4321.0, "4.32 s"),
        ("wait_pct", 83.2, "83 %"),
        ("bytes", 3 << 30, "3 GiB"),
        ("faster_up_to", 3.97, "4×"),
        ("mean_kernel_us", 3.21, "3.21 µs"),
        ("parameters", 1234567, "1,234,567"),
        ("run_eagerly", True, "yes"),
        ("gpus_unused", [1, 2], "1, 2"),
    ],
)
def test_a_value_has_its_own_unit(name, value, text):
    assert quantity(name, value) == text


ENDINGS = {
    "_pct": "%",
    "_gib": "GiB",
    "_mib": "MiB",
    "_us": "µs",
    "_mhz": "MHz",
    "_c": "°C",
    "gb_per_s": "GB/s",
    "_ms": "ms",
    "per_step": "ms",
    "ms_per_batch": "ms",
}


def test_units_agree_with_the_names():
    for name in evidence_words():
        counted = name in ("kernels_per_step", "operations_per_step")
        wanted = [unit for ending, unit in ENDINGS.items() if name.endswith(ending) and not counted]
        assert unit_of(name) in (wanted or ["", "s", "B", "×"]), name


def test_the_tab_gets_a_title_for_every_cause_and_category():
    words = vocabulary()
    assert set(words["causes"]) == {REPEATED, *(rule.cause for rule in RULES)}
    glyphs = {cause["glyph"] for cause in words["causes"].values()}
    assert len(glyphs) == len(words["causes"]), "each has one of its own, so that a colour is never alone"
    assert set(words["gpu"]) >= {*CATEGORIES, "gpu_active", "idle", "outside_steps"}
    assert set(words["host"]) == {"step", "input_wait", "compile", "validation", "callbacks", "other"}
