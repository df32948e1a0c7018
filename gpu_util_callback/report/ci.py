"""The outcome of a check for CI: JUnit XML, and a summary in Markdown."""

import re
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from gpu_util_callback.diagnosis.regression import DIFFERENT, UNRESOLVED
from gpu_util_callback.report.screen import strip_control

# Characters that XML 1.0 cannot hold, not even as references.
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(runs: Sequence[Mapping], broken: Sequence[Mapping], verdicts: Sequence[Mapping] | None) -> str:
    """Return one test case a run for its limits, and one for its comparison with the baseline.

    A comparison that the runs' scatter does not resolve is a skipped test, one of runs that are not
    comparable an error.

    Args:
        runs: of the report.
        broken: what `failures` returned.
        verdicts: of `slowdowns`; None = nothing was compared.
    """
    suite = ElementTree.Element("testsuite", name="gpu-util")
    counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}

    def case(of: str, name: str, seconds: float | None) -> ElementTree.Element:
        counts["tests"] += 1
        return ElementTree.SubElement(suite, "testcase", classname=_xml(of), name=name, time=f"{seconds or 0:.3f}")

    def fail(test: ElementTree.Element, message: str) -> None:
        counts["failures"] += 1
        ElementTree.SubElement(test, "failure", message=_xml(message)).text = _xml(message)

    for run in runs:
        reasons = [failure["reason"] for failure in broken if failure["id"] == run["id"]]
        test = case(run["run"], "limits", run["wall_s"])
        if reasons:
            fail(test, "; ".join(reasons))
    for verdict in verdicts or ():
        test = case(verdict["run"], "slowdown", None)
        if verdict["failed"]:
            fail(test, verdict["sentence"])
        elif verdict["outcome"] == DIFFERENT:
            counts["errors"] += 1
            ElementTree.SubElement(test, "error", message=_xml(verdict["sentence"]))
        elif verdict["outcome"] == UNRESOLVED:
            counts["skipped"] += 1
            ElementTree.SubElement(test, "skipped", message=_xml(verdict["sentence"]))
    for name, count in counts.items():
        suite.set(name, str(count))
    ElementTree.indent(suite)
    text = ElementTree.tostring(suite, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _xml(text: str) -> str:
    return _NOT_IN_XML.sub("?", text)


def markdown(sentence: str, broken: Sequence[Mapping], verdicts: Sequence[Mapping] | None) -> str:
    """Return the outcome as Markdown, for the summary of a GitHub step.

    Args:
        sentence: the outcome in one sentence.
    """
    lines = [f"### gpu-util: {_md(sentence)}", ""]
    lines += [f"- ❌ {_md(failure['run'])}: {_md(failure['reason'])}" for failure in broken]
    for verdict in verdicts or ():
        mark = "❌" if verdict["failed"] else "⚠️" if verdict["outcome"] in (DIFFERENT, UNRESOLVED) else "✅"
        lines.append(f"- {mark} {_md(verdict['sentence'])}")
    return "\n".join(lines) + "\n"


def _md(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", strip_control(text))
