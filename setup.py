"""The one part of the package's metadata that is computed: its page on a package index.

Everything else is in pyproject.toml. An index shows the README away from its repository, where
relative links and pictures lead nowhere: with the repository's address in `REPOSITORY_URL`
(`make dist REPOSITORY_URL=https://…`; the release workflow knows its own) they become absolute, and
the address is listed; without it, pictures are left out with their captions, and links are plain
text.

With SOURCE_DATE_EPOCH (`make dist` sets it to the commit's time) two builds of one commit give the
same bytes: wheels do so by themselves, source distributions have the builder's times and names
taken out.
"""

import gzip
import os
import re
import tarfile
from pathlib import Path

from setuptools import setup
from setuptools.command.sdist import sdist

HERE = Path(__file__).parent
# A picture that is alone on its line, and the paragraph in italics below it.
PICTURE = re.compile(r"^!\[[^\]]*\]\((?!https?://)[^)]+\)\n+(?:\*[^*\s][^*]*\*\n+)?", re.M)
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")


def description(readme: str, repository: str) -> str:
    """Return the README for a page away from the repository."""

    def elsewhere(link: re.Match) -> str:
        picture, text, path = link.groups()
        if repository:
            return f"{picture}[{text}]({repository}/{'raw' if picture else 'blob'}/main/{path})"
        return text

    return LINK.sub(elsewhere, readme if repository else PICTURE.sub("", readme))


def urls(repository: str) -> dict[str, str]:
    """Return the links that an index shows beside the page."""
    if not repository:
        return {}
    return {
        "Source": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Documentation": f"{repository}/blob/main/docs/index.md",
    }


class RepeatableSdist(sdist):
    """A source distribution that says nothing of when, where and by whom it was built."""

    def make_archive(self, *args, **kwargs) -> str:
        """Write the archive; where SOURCE_DATE_EPOCH is set, once more with that time, and without users."""
        made = super().make_archive(*args, **kwargs)
        if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
            _repack(Path(made), int(epoch))
        return made


def _repack(archive: Path, time_s: int) -> None:
    half = archive.with_suffix(".part")
    with (
        tarfile.open(archive) as given,
        gzip.GzipFile(filename="", fileobj=half.open("wb"), mode="wb", mtime=time_s) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as written,
    ):
        for member in sorted(given, key=lambda one: one.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = time_s, 0, 0, "", ""
            member.pax_headers = {}
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            written.addfile(member, given.extractfile(member) if member.isfile() else None)
    half.replace(archive)


if __name__ == "__main__":
    repository_url = os.environ.get("REPOSITORY_URL", "").rstrip("/")
    setup(
        long_description=description((HERE / "README.md").read_text(encoding="utf-8"), repository_url),
        long_description_content_type="text/markdown",
        project_urls=urls(repository_url),
        cmdclass={"sdist": RepeatableSdist},
    )
