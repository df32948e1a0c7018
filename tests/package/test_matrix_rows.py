"""The version matrix chooses what exists: its tests, its rows, our declared lower bounds."""

import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from programs import ran

from harness.versions.environments import REPOSITORY, lower_bounds
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


@pytest.mark.slow
def test_all_that_the_suites_name_is_collected():
    """pytest runs nothing at all where a case that it is given has gone, or a file finds no `harness` beside itself."""
    named = sorted({one for suite in SUITES.values() for one in suite if one.startswith("tests/")})
    collect = [sys.executable, "-P", "-m", "pytest", "--collect-only", "-q", "-n", "0", "-p", "no:cacheprovider"]
    listed = ran(*collect, *named, cwd=REPOSITORY).stdout
    assert all(case in listed for case in named if "[" in case), listed


def test_every_row_has_a_name_of_its_own():
    assert len({row.title for row in ROWS}) == len({row.slug for row in ROWS}) == len(ROWS)
    assert {row.suite for row in ROWS} == set(SUITES)
    assert [row for group in groups(ROWS) for row in group] == ROWS


def test_classifiers_name_no_python_that_no_row_ran_on():
    """3.14 has rows that run where it is found; none has been seen to pass yet."""
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["classifiers"]
    minors = {one.rpartition(" ")[2] for one in declared if ":: Python :: 3." in one}
    rows = {row.python for row in ROWS}
    assert minors < rows and rows - minors == {"3.14"}


def test_lower_bounds_are_read_from_the_wheel(tmp_path: Path):
    wheel = tmp_path / "ours-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            "ours-1.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: ours\nRequires-Dist: numpy>=1.26\n"
            'Requires-Dist: keras>=3.6; extra == "keras"\nRequires-Dist: psutil>=5.9\n',
        )
    assert lower_bounds(wheel) == ["numpy==1.26", "psutil==5.9"]
