"""How a run is judged, in figures: `python -m harness.judging [LOGDIR]`, before and after a change.

- Files of `diagnosis/` that hold sentences: strings of six words or more, no docstrings. The reasons of declared
  numbers stand beside these, so files that hold no others are counted apart.
- The way of a reader through the judgement of one run, by the rule of its first finding alone: each function is
  read once, when it is first called. A stay is a stretch in one file, a return a stay in a file that was left.
- Facts measured while something is said: functions of `evidence/` first called below `advice/` or `verdict`.
"""

import ast
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from gpu_util_callback.diagnosis import engine
from gpu_util_callback.diagnosis.rules import RULE_OF
from gpu_util_callback.recording import read_recordings

DIAGNOSIS = Path(engine.__file__).parent
LOGDIR = "demo/recorded/h200-jax/slow-input"
WORDS = 6  # of a sentence, at least
_REASONS = "Threshold", "Constant", "Count"


def main() -> None:
    """Print the figures."""
    texts = {path: path.read_text() for path in sorted(DIAGNOSIS.rglob("*.py"))}
    every = {path.relative_to(DIAGNOSIS): sentences(text) for path, text in texts.items()}
    said = [path for path, (count, _) in every.items() if count]
    reasons = [path for path, (count, of_numbers) in every.items() if of_numbers and not count]
    print("files with sentences", len(said), "of", len(texts), "and with reasons of numbers alone", len(reasons))
    print("sentences", sum(count for count, _ in every.values()), *(path for path in said if "-v" in sys.argv))
    stays, while_saying = walk(next((name for name in sys.argv[1:] if name != "-v"), LOGDIR))
    print("stays", len(stays), "files", len(set(stays)), "returns", len(stays) - len(set(stays)))
    print("most entered", *(f"{file} {count}" for file, count in Counter(stays).most_common(5)))
    print("measured while something is said", len(while_saying), *(while_saying if "-v" in sys.argv else ()))


def sentences(text: str) -> tuple[int, int]:
    """Return how many sentences a module holds, and how many reasons of declared numbers."""
    tree = ast.parse(text)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) in _REASONS]
    reasons = {id(inner) for call in calls for inner in ast.walk(call)}
    strings = [n for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) or isinstance(getattr(n, "value", 0), str)]
    parts = {id(part) for node in strings if isinstance(node, ast.JoinedStr) for part in node.values}
    long = [n for n in strings if id(n) not in docstrings | parts and len(_text(n).split()) >= WORDS]
    of_numbers = sum(id(node) in reasons for node in long)
    return len(long) - of_numbers, of_numbers


def _text(node: Any) -> str:
    """Return a string as its template: a word for each value in it."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return str(node.value)


def walk(logdir: str) -> tuple[list[str], list[str]]:
    """Return the stays in files of `diagnosis/` while a run is judged, and what is measured only to say something."""
    [recording] = read_recordings(logdir)
    engine.RULES_VERSION = 0  # the stored diagnosis is of other rules
    diagnosis = engine.diagnose(recording)  # also imports what is imported late
    leads = [*diagnosis["spans"], *diagnosis["findings"]] or [{"cause": "input_bound"}]
    engine.RULES = (RULE_OF[leads[0]["cause"]],)
    [recording] = read_recordings(logdir)
    read: set[object] = set()
    stays: list[str] = []
    while_saying: list[str] = []
    judging: list[FrameType] = []

    def called(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is engine.judge.__code__:
            judging.append(frame)
        if event != "call" or not judging or frame.f_code in read or not (file := _file(frame)):
            return
        read.add(frame.f_code)
        if stays[-1:] != [file]:
            stays.append(file)
        if file.startswith("evidence/") and any(map(_says, _callers(frame))):
            while_saying.append(f"{file}:{frame.f_code.co_name}")

    sys.setprofile(called)
    try:
        engine.diagnose(recording)
    finally:
        sys.setprofile(None)
    return stays, while_saying


def _file(frame: FrameType) -> str:
    """Return a frame's file within `diagnosis/`; "" elsewhere."""
    path = Path(frame.f_code.co_filename)
    return path.relative_to(DIAGNOSIS).as_posix() if path.is_relative_to(DIAGNOSIS) else ""


def _says(frame: FrameType) -> bool:
    return _file(frame).startswith(("advice/", "verdict"))


def _callers(frame: FrameType) -> list[FrameType]:
    """Return a frame's callers, the nearest first."""
    callers: list[FrameType] = []
    at = frame.f_back
    while at is not None:
        callers.append(at)
        at = at.f_back
    return callers


if __name__ == "__main__":
    main()
