"""Print all text that people read: `python -m harness.texts [WORD]`, one line each with its place.

The terminal, `--help`, errors, the doctor, advice and the tab: every string of a sentence's length
in the two packages and the frontend, docstrings and comments left out. `{}` stands for a value.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# No text for people: patterns, queries, formats; and a protocol's own words.
_CODE = re.compile(r"\(\?|\\[bdswAZ]|^[\W\d_]*$|^(SELECT|PRAGMA|CREATE|INSERT) |^%\(")
_TEMPLATE = re.compile(r"`([^`\\]*)`|'((?:[^'\\\n]|\\.)*)'|\"((?:[^\"\\\n]|\\.)*)\"")
_JSX = re.compile(r">\s*([A-Z][^<>{}=;]*[a-z.?!])\s*[<{]")
_FEWEST = 2  # words


def texts() -> Iterator[tuple[str, str]]:
    """Yield `(place, text)` of all text, in the order of the files."""
    for package in ("gpu_util_callback", "tensorboard_plugin"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield from _of_python(path)
        for path in sorted((ROOT / package).glob("*_words.json")):
            yield from _of_words(path)
    for path in sorted((ROOT / "frontend" / "src").rglob("*.ts*")):
        if ".test" not in path.name and ".testing" not in path.name:
            yield from _of_typescript(path)


def _of_words(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the labels of a file of words, which has a line for each: `"name": ["label", "unit"],`."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        label = re.search(r'\["(.*?)", ', line)
        if label is not None and _for_people(label[1]):
            yield f"{path.relative_to(ROOT)}:{number}", label[1]


def _of_python(path: Path) -> Iterator[tuple[str, str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node
    }
    inner |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in inner or not isinstance(node, (ast.Constant, ast.JoinedStr)):
            continue
        text = _text(node)
        if _for_people(text):
            yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    assert isinstance(node, ast.JoinedStr)
    return "".join(
        part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "{}" for part in node.values
    )


def _of_typescript(path: Path) -> Iterator[tuple[str, str]]:
    source = re.sub(
        r"/\*.*?\*/", lambda found: "\n" * found[0].count("\n"), path.read_text(encoding="utf-8"), flags=re.S
    )
    lines = [re.sub(r"(^|\s)//.*", "", line) for line in source.splitlines()]
    source = "\n".join(lines)
    for pattern in (_TEMPLATE, _JSX):
        for found in pattern.finditer(source):
            text = next(part for part in found.groups() if part is not None)
            text = re.sub(r"\$\{[^}]*\}", "{}", " ".join(text.split()))
            if _for_people(text) and not re.search(r"[=;]|^\.|/\w+\.ts|var\(|^\d|--", text):
                place = source.count("\n", 0, found.start()) + 1
                yield f"{path.relative_to(ROOT)}:{place}", text


def _for_people(text: str) -> bool:
    words = re.findall(r"[A-Za-z][a-z']+", text)
    return len(words) >= _FEWEST and " " in text.strip() and not _CODE.search(text)


def main() -> None:
    """Print the list, or what matches a word."""
    wanted = re.compile(sys.argv[1] if sys.argv[1:] else "", re.IGNORECASE)
    for place, text in texts():
        if wanted.search(text):
            print(f"{place}: {' '.join(text.split())}")


if __name__ == "__main__":
    main()
