"""The version matrix chooses what exists: its tests, its rows, our declared lower bounds."""

import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from harness.versions import matrix
from harness.versions.environments import REPOSITORY, Result, lower_bounds
from harness.versions.rows import ROWS, SUITES, groups


@pytest.mark.parametrize("name", SUITES)
def test_a_suites_tests_exist(name):
    """A test that was renamed would silently leave the matrix."""
    for argument in SUITES[name]:
        if not argument.startswith("tests/"):
            continue
        path, _, function = argument.partition("::")
        assert (REPOSITORY / path).exists(), argument
        if function:
            bare = function.partition("[")[0]
            assert f"def {bare}(" in (REPOSITORY / path).read_text(), argument


def test_every_row_has_a_name_of_its_own():
    assert len({row.title for row in ROWS}) == len({row.slug for row in ROWS}) == len(ROWS)
    assert {row.suite for row in ROWS} == set(SUITES)
    assert [row for group in groups(ROWS) for row in group] == ROWS


def test_rows_are_chosen_by_their_words():
    chosen = [row.title for row in ROWS if row.chosen(["3.11 tensorflow-2.18 keras-3.6", "jax-newest"])]
    assert chosen[0] == "3.11 tensorflow-2.18 keras-3.6"
    assert len(chosen) == 1 + sum(row.backend == "jax" for row in ROWS)
    assert all(row.chosen([]) for row in ROWS)


def test_a_python_that_is_missing_is_said_and_is_no_failure(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(matrix, "find_python", lambda version, given: None)
    monkeypatch.setattr(matrix, "snapshot", lambda folder: folder)
    monkeypatch.setattr(matrix, "wheel", lambda checkout, folder: folder / "ours.whl")
    monkeypatch.setattr(sys, "argv", ["matrix.py", "--only", "3.14", "--folder", str(tmp_path)])
    assert matrix.main() == 0
    said = capsys.readouterr().out
    assert said.count("not here no Python 3.14 on this machine") == 4  # two rows, and the table


def test_a_wheel_that_is_given_is_the_one_that_is_tested(tmp_path, monkeypatch):
    monkeypatch.setattr(matrix, "snapshot", lambda folder: folder)
    monkeypatch.setattr(matrix, "find_python", lambda version, given: sys.executable)
    installed = []
    monkeypatch.setattr(matrix.Environment, "install", lambda self, package, wanted: installed.append(package))
    monkeypatch.setattr(matrix.Matrix, "_row", lambda self, _, row: matrix.Outcome(row, "passed"))
    given = tmp_path / "built.whl"
    arguments = ["--only", "3.12 tensorflow-newest", "--folder", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["matrix.py", *arguments, "--wheel", str(given)])
    assert matrix.main() == 0 and installed == [given]


def test_classifiers_name_no_python_that_no_row_ran_on():
    """3.14 has rows that run where it is found; none has been seen to pass yet."""
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["classifiers"]
    minors = {one.rpartition(" ")[2] for one in declared if ":: Python :: 3." in one}
    rows = {row.python for row in ROWS}
    assert minors < rows and rows - minors == {"3.14"}


def test_what_pip_is_asked_for():
    asked = {row.title: row.requirements() for row in ROWS}
    # Keras is swapped later.
    assert asked["3.11 tensorflow-2.18 keras-3.6"] == ["tensorflow==2.18.*", "setuptools<82"]
    assert asked["3.11 tensorflow-newest keras-newest"] == ["tensorflow"]
    assert asked["3.11 jax-newest keras-newest"] == ["jax", "keras"]
    (oldest,) = (row for row in ROWS if row.oldest)
    assert oldest.requirements() == ["tensorflow==2.18.0", "keras==3.6.0", "setuptools<82"]


def test_lower_bounds_are_read_from_the_wheel(tmp_path: Path):
    wheel = tmp_path / "ours-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            "ours-1.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: ours\nRequires-Dist: numpy>=1.26\n"
            'Requires-Dist: keras>=3.6; extra == "keras"\nRequires-Dist: psutil>=5.9\n',
        )
    assert lower_bounds(wheel) == ["numpy==1.26", "psutil==5.9"]


def test_a_result_says_what_needed_a_second_try():
    assert Result(passed=61, late=2, skipped=1).summary == "63 (2 at the second try), 1 skipped"
    assert Result(passed=61, late=2).good
    failed = Result(passed=1, failures=["a", "b"])
    assert failed.summary == "1, 2 failed" and not failed.good
    assert Result().summary == "no test ran" and not Result().good
    assert not Result(problem="no end after 9 s").good
