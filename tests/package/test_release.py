"""What a release needs before anybody has an account: equal builds, one version everywhere, a recipe that agrees."""

import datetime
import gzip
import os
import re
import tarfile
from pathlib import Path

import pytest
from test_package import metadata

from gpu_util_callback import __version__
from harness.release import __main__ as release
from harness.versions.environments import Failed
from setup import _repack

REPOSITORY = Path(__file__).parents[2]


def packed(folder: Path, time_s: int, names: list[str], mode: int) -> Path:
    """A source distribution as setuptools makes one, at that time and with these permissions."""
    for name in names:
        path = folder / "it-1.0" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}")
        path.chmod(mode | (0o111 if name == "run" else 0))
        os.utime(path, (time_s, time_s))
    archive = folder / "it-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(folder / "it-1.0", "it-1.0")
    return archive


def test_two_builds_at_two_times_by_two_people_have_the_same_bytes(tmp_path, epoch_s):
    names = ["run", "a/b.py", "a/c.py"]
    one = packed(tmp_path / "one", 1_600_000_000, names, 0o644)
    other = packed(tmp_path / "other", 1_650_000_000, names[::-1], 0o664)
    assert one.read_bytes() != other.read_bytes()
    for archive in (one, other):
        _repack(archive, epoch_s)
    assert one.read_bytes() == other.read_bytes()
    with tarfile.open(one) as file:
        assert file.extractfile("it-1.0/a/b.py").read() == b"content of a/b.py"
        assert {member.name: member.mode for member in file if member.isfile()}["it-1.0/run"] == 0o755


def test_the_distribution_says_nothing_of_its_builder(dist, epoch_s):
    (sdist,) = dist.glob("*.tar.gz")
    with gzip.open(sdist) as file:
        file.read(1)
        assert file.mtime == epoch_s
    with tarfile.open(sdist) as file:
        found = {(member.mtime, member.uid, member.gid, member.uname, member.gname) for member in file}
    assert found == {(epoch_s, 0, 0, "", "")}


def test_the_recipe_needs_what_the_wheel_needs(dist):
    text = release.RECIPE.read_text(encoding="utf-8")
    release.compare_recipe(metadata(dist))
    for change in (
        ("    - psutil >=5.9\n", ""),
        ("psutil >=5.9", "psutil >=6"),
        ("python >=3.11", "python >=3.12"),
        (f'version: "{__version__}"', 'version: "0.0.1"'),
        ("cli:main", "cli:other"),
    ):
        assert change[0] in text
        with pytest.raises(Failed, match="recipe"):
            release.compare_recipe(metadata(dist), text.replace(*change))


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Copies of the files that name the version."""
    copies = {}
    for path, pattern in release.PLACES.items():
        copy = tmp_path / path.name
        copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        copies[copy] = pattern
    monkeypatch.setattr(release, "PLACES", copies)
    return tmp_path


def test_a_version_is_set_everywhere_and_the_next_one_begins_anew(places):
    release.set_version("0.1.0", datetime.date(2027, 1, 2))
    assert set(release.versions().values()) == {"0.1.0"}
    assert "\ndate-released: 2027-01-02\n" in (places / "CITATION.cff").read_text()
    assert "\n## [0.1.0] - 2027-01-02\n" in (places / "CHANGELOG.md").read_text()
    release.set_version("0.2.0.dev0", datetime.date(2027, 1, 3))
    assert set(release.versions().values()) == {"0.2.0.dev0", "Unreleased"}
    assert "date-released" not in (places / "CITATION.cff").read_text()
    assert "## [Unreleased]\n\n## [0.1.0] - 2027-01-02\n" in (places / "CHANGELOG.md").read_text()


def test_the_first_release_is_what_the_changelog_begins_with():
    """Nothing was released before 0.1.0: its heading is the last, whatever comes above it."""
    headings = re.findall(r"^## \[(.+?)\]", (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert headings[-1] in ("Unreleased", "0.1.0")


def test_ten_commands_remain():
    page = (REPOSITORY / "docs" / "releasing.md").read_text(encoding="utf-8")
    commands = re.search(r"```\n(.+?)```", page, re.S)[1].splitlines()
    assert len(commands) == 10
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = {word for line in commands if line.startswith("make ") for word in re.findall(r"[a-z-]{4,}", line)}
    assert all(
        re.search(rf"^{target}:", makefile, re.M) for target in targets & {"test-all", "matrix", "release-check"}
    )
    assert {"test-all", "matrix", "release-check"} <= targets


def test_a_page_with_a_dead_link_or_without_its_picture_is_wrong(dist, tmp_path):
    """The distributions of these tests were built without the repository's address."""
    looked = release.Release("https://example.org/us/it", tmp_path)
    looked.dist = dist
    with pytest.raises(Failed, match="shows no picture"):
        looked.page()
