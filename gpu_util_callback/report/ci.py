"""The outcome of a check for CI: JUnit XML, and a summary in Markdown."""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from gpu_util_callback.report.screen import strip_control

# Characters that XML 1.0 cannot hold, not even as references.
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
Outcome = Literal["passed", "failure", "error", "skipped"]
_MARKS = {"passed": "✅", "failure": "❌", "error": "⚠️", "skipped": "⚠️"}


@dataclass(frozen=True, slots=True)
class Case:
    """One test of a check.

    Attributes:
        run: the run or command.
        name: what was tested: "limits", "slowdown".
        outcome: as JUnit has them: an error is what cannot be compared, skipped what is not resolved.
        reasons: sentences.
        seconds: it took.
    """

    run: str
    name: str
    outcome: Outcome
    reasons: Sequence[str] = ()
    seconds: float = 0.0


def junit(cases: Sequence[Case]) -> str:
    """Return the cases as a JUnit test suite in XML, for CI."""
    suite = ElementTree.Element("testsuite", name="gpu-util", tests=str(len(cases)))
    for name, outcome in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(sum(case.outcome == outcome for case in cases)))
    for case in cases:
        attributes = {"classname": _xml(case.run), "name": case.name, "time": f"{case.seconds:.3f}"}
        test = ElementTree.SubElement(suite, "testcase", attributes)
        if case.outcome != "passed":  # what did not pass has an element with its reasons
            message = _xml("; ".join(case.reasons))
            ElementTree.SubElement(test, case.outcome, message=message).text = message
    ElementTree.indent(suite)
    text = ElementTree.tostring(suite, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _xml(text: str) -> str:
    return _NOT_IN_XML.sub("?", text)


def add_to_summary(command: str, sentence: str, cases: Sequence[Case]) -> None:
    """Append an outcome to the summary of a GitHub step, where one is wanted.

    Args:
        command: which writes it, for a message about a file that cannot be written.
        sentence: the outcome in one sentence.
    """
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary:  # not in a GitHub step
        return
    lines = [f"### gpu-util: {_md(sentence)}", ""]
    lines += [f"- {_MARKS[case.outcome]} {_md(f'{case.run}: {reason}')}" for case in cases for reason in case.reasons]
    try:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    except OSError as error:  # the check itself was made
        print(f"gpu-util {command}: {summary}: {error.strerror}", file=sys.stderr)


def _md(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", strip_control(text))
