"""The one part of the package's metadata that is computed: its page on a package index.

Everything else is in pyproject.toml. An index shows the README away from its repository, where
relative links and pictures lead nowhere: with the repository's address in `REPOSITORY_URL`
(`make dist REPOSITORY_URL=https://…`; the release workflow knows its own) they become absolute, and
the address is listed; without it, pictures are left out with their captions, and links are plain
text.
"""

import os
import re
from pathlib import Path

from setuptools import setup

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


if __name__ == "__main__":
    repository_url = os.environ.get("REPOSITORY_URL", "").rstrip("/")
    setup(
        long_description=description((HERE / "README.md").read_text(encoding="utf-8"), repository_url),
        long_description_content_type="text/markdown",
        project_urls=urls(repository_url),
    )
