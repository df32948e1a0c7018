"""The first finding of a recorded run, and whether it, its cure and its promise hold."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from statistics import median
from typing import Any

from gauntlet.registry import ANYWHERE, Program
from gpu_util_callback.cli import main
from gpu_util_callback.diagnosis.verdict import gain_of

PROMISED_BELOW = 0.65  # of the lower end of a promised range: the promise was wrong
SLOWER = 1.05
FASTER = 1.2  # without its declared cause a program is at least this many times as fast


@dataclass(frozen=True)
class First:
    """What a user reads first about a run. `gain` is None where nothing is promised."""

    cause: str = ""
    text: str = ""
    code: str = ""
    title: str = ""
    verdict: str = ""
    gain: tuple[float, float] | None = None
    question: bool = False
    changes: str = ""
    fixed_first: bool = False  # it is printed as the first thing to fix

    @property
    def all(self) -> str:
        return "\n".join((self.cause, self.title, self.verdict, self.code, self.text))


def first_of(log_dir: str, printed: str | None = None) -> First:
    """Return the first finding of the recordings in a folder, as `gpu-util report` has it.

    Args:
        printed: what the training printed; None = what the report prints of it now.
    """
    runs = json.loads(_report(log_dir, "--json"))["runs"]
    run = max(runs, key=lambda one: one["start_ns"] or 0)  # a tuner's fits have one each: what is said last
    return first_in(run, _report(log_dir) if printed is None else printed)


def _report(*arguments: str) -> str:
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = main(["report", *arguments])
    if code:
        raise RuntimeError(error.getvalue()[-2000:])
    return out.getvalue()


def first_in(run: Mapping[str, Any], printed: str) -> First:
    """Return the first finding of a run of the report."""
    findings = [*run["findings"], *run["spans"]]
    lead = run["headline"]
    by_id = {one["id"]: one for one in findings}
    ids = lead["ids"] if lead else []
    named = [by_id[one] for one in ids if one in by_id]
    remedies = re.findall(r"(?:Fix first|Ask first|To try)(?: \(.*?\))?: (.*)", printed)
    line = remedies[-1].strip() if remedies else ""
    if line and not findings:  # time between the fits is in the verdict alone
        fixed = "Fix first" in printed
        return First("outside", line, line, verdict=run["verdict"], fixed_first=fixed)
    if line:  # the printed remedy belongs to one of the findings
        named = [one for one in [*named, *findings] if _is_of(one, line)] or named or findings
    named = named or [one for one in findings if run["verdict"].startswith(one["title"])]
    if not named:
        return First(verdict=run["verdict"])
    finding = named[0]
    advice = finding.get("advice") or {}
    fix = not advice.get("question")
    whole = lead if lead and fix and finding["id"] in ids else finding  # a fix of all its spans
    saves_s = whole.get("saves_range_s") or ()
    wall_s = finding.get("of_s") or run["wall_s"] or 0.0  # of all fits of the script, for what holds them all up
    gain = [gain_of(wall_s, wall_s if saved is None else saved) or 1.0 for saved in saves_s]
    return First(
        cause=finding["cause"],
        title=finding["title"],
        text=advice.get("text", ""),
        code=advice.get("code", ""),
        verdict=run["verdict"],
        gain=(gain[0], gain[1]) if gain and gain[1] >= SLOWER else None,
        question=not fix,
        changes=advice.get("changes") or "",
        fixed_first="Fix first" in printed and fix,
    )


def _is_of(finding: Mapping[str, Any], line: str) -> bool:
    """Return whether a printed line is the remedy of a finding: its code or its text."""
    advice = finding.get("advice") or {}
    codes = [part.partition("  # ")[0].strip() for part in advice.get("code", "").splitlines()]
    return bool(codes and codes[0] and codes[0] in line) or line[:60] in advice.get("text", "")


def cure_of(program: Program, first: First) -> tuple[str, str]:
    """Return the variant that a printed cure asks for and the number in it; "" = none."""
    for variant, pattern in (dict(program.cures) | ANYWHERE).items():
        found = re.search(pattern, f"{first.code}\n{first.text}" if first.code else first.text)
        if found:
            return variant, next((group for group in found.groups() if group), "")
    return "", ""


@dataclass
class Result:
    """All that was measured of one program, over all rounds."""

    program: str
    truth: str
    bound: str
    firsts: list[First] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)  # by variant, "recorded"
    changed: dict[str, bool | None] = field(default_factory=dict)
    alone_ms: dict[str, float] = field(default_factory=dict)
    cure: str = ""
    value: str = ""
    right: bool | None = None
    harmful: bool = False
    error: str = ""

    def note_first(self, program: Program, first: First) -> None:
        """Add the first finding of a round; that of the first round is judged."""
        self.firsts.append(first)
        if len(self.firsts) > 1:
            return
        self.cure, self.value = cure_of(program, first)
        fix = first.code if not first.question else ""
        self.harmful = bool(program.harmful and re.search(program.harmful, fix))
        if not first.cause:
            self.right = program.first is None or program.nothing
        elif program.first is None:
            self.right = False
        else:
            self.right = bool(re.search(program.first, first.all)) and not self.harmful

    @property
    def confirmed(self) -> bool | None:
        """Return whether a measurement without our package agrees with the declared truth."""
        if self.bound.startswith("without:"):
            return self.gain_of(self.bound.removeprefix("without:"), FASTER)
        if self.bound == "any" or len(self.alone_ms) < 2:
            return None
        longer = max(self.alone_ms, key=lambda part: self.alone_ms[part])
        return longer == self.bound

    def gain_of(self, variant: str, least: float) -> bool | None:
        gain = self.gain(variant)
        return None if gain is None else gain >= least

    def gain(self, variant: str) -> float | None:
        """Return how many times as fast a variant is as the base; medians of all rounds."""
        base, cured = self.seconds.get("base"), self.seconds.get(variant)
        return median(base) / median(cured) if base and cured else None

    def run_gain(self, variant: str) -> float | None:
        """Return how many times as fast the recorded run were with what a variant saves.

        Each recorded run had a process of its own, and paid for its first calls, as a user's does.
        The others share a process, which has paid for them.
        """
        base, cured, recorded = (self.seconds.get(name) for name in ("base", variant, "recorded"))
        if not base or not cured or not recorded:
            return None
        run_s = median(recorded)
        return run_s / max(run_s - median(base) + median(cured), 1e-3)

    @property
    def followed(self) -> float | None:
        """The true gain of the printed cure, if it was given as a fix or asked for."""
        return self.run_gain(self.cure) if self.cure else None

    @property
    def promised(self) -> tuple[float, float] | None:
        return self.firsts[0].gain if self.firsts else None

    @property
    def slower(self) -> bool | None:
        gain = self.followed
        return None if gain is None else gain < 1 / SLOWER

    @property
    def inside(self) -> bool | None:
        """Return whether the true gain lies in the promised range."""
        if self.promised is None or self.followed is None:
            return None
        return self.promised[0] <= self.followed <= self.promised[1]

    @property
    def far_below(self) -> bool:
        return bool(self.promised and self.followed and self.followed < PROMISED_BELOW * self.promised[0])

    @property
    def changed_unsaid(self) -> bool | None:
        """Return whether the cure changed the results and its line does not say so."""
        changed = self.changed.get(self.cure) if self.changed.get("base") is False else None
        if not self.cure or changed is None:
            return None
        return changed and not self.firsts[0].changes

    @property
    def equal(self) -> int:
        """In how many rounds the first finding was that of the first round."""
        return sum(_key(first) == _key(self.firsts[0]) for first in self.firsts)

    def to_json(self) -> dict:
        more = ("confirmed", "followed", "promised", "slower", "inside", "far_below", "changed_unsaid", "equal")
        return asdict(self) | {name: getattr(self, name) for name in more}

    @classmethod
    def from_json(cls, measured: Mapping[str, Any]) -> Result:
        """Return the result that `to_json` wrote."""
        firsts = [First(**first | {"gain": first["gain"] and tuple(first["gain"])}) for first in measured["firsts"]]
        own = {one.name: measured[one.name] for one in fields(cls)}
        return cls(**own | {"firsts": firsts})


def _key(first: First) -> tuple[str, str]:
    """Return cause and cure without their numbers, which may differ."""
    return first.cause, re.sub(r"\d+", "N", first.code)


COLUMNS = (
    "program",
    "true cause",
    "confirmed",
    "first finding",
    "right",
    "cure",
    "promised",
    "true gain",
    "inside",
    "slower",
    "results",
    "equal",
)


def table(results: Sequence[Result]) -> str:
    """Return the results as a Markdown table with the summary below it."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"| {' | '.join('---' for _ in COLUMNS)} |"]
    lines += [f"| {' | '.join(_cells(result))} |" for result in results]
    return "\n".join([*lines, "", *summary(results), ""])


def _cells(result: Result) -> list[str]:
    first = result.firsts[0] if result.firsts else First()
    alone = ", ".join(f"{part} {ms:.3g} ms" for part, ms in result.alone_ms.items())
    if result.bound.startswith("without:") and (gain := result.gain(result.bound[8:])):
        alone = f"{result.bound.replace(':', ' or with ')}: {gain:.2f}×"
    promised = "–".join(f"{end:.2g}" for end in result.promised or ())
    cure = result.cure or ("not tried: " + first.code.partition("\n")[0][:60] if first.code else "")
    changed = result.changed.get(result.cure) if result.cure else None
    return [
        result.program,
        result.truth,
        f"{_mark(result.confirmed)} {alone}".strip(),
        result.error or first.title or "nothing",
        _mark(result.right),
        ("harmful: " if result.harmful else "")
        + ("asks: " if first.question and first.cause else "")
        + cure.replace("|", "\\|"),
        promised and f"{promised}×",
        "" if result.followed is None else f"{result.followed:.2f}×",
        _mark(result.inside),
        _mark(result.slower),
        ""
        if changed is None
        else ("changed" if changed else "equal")
        + (" (unsaid)" if result.changed_unsaid else f" ({first.changes or 'nothing said'})"),
        f"{result.equal} of {len(result.firsts)}",
    ]


def _mark(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def summary(results: Sequence[Result]) -> list[str]:
    """Return one line for each aim: what was reached, of how many, and the aim."""

    def share(values: list[bool]) -> str:
        percent = f", {100 * sum(values) / len(values):.0f} %" if values else ""
        return f"{sum(values)} of {len(values)}{percent}"

    judged = [one for one in results if one.right is not None]
    tried = [one for one in judged if one.followed is not None and not one.firsts[0].question]
    ranges = [one for one in tried if one.inside is not None]
    lines = {
        "First finding right (aim: 90 %)": share([bool(one.right) for one in judged]),
        "Printed fixes that make it at least 1.05× faster": share(
            [one.followed >= SLOWER for one in tried if one.followed]
        ),
        "Slower than 1.05× with the printed cure (aim: none)": share([bool(one.slower) for one in tried]),
        "True gain inside the promised range (aim: 80 %)": share([bool(one.inside) for one in ranges]),
        "Below 0.65 of the range's lower end (aim: none)": share([one.far_below for one in ranges]),
        "Equal first findings in all rounds (aim: all)": share([one.equal == len(one.firsts) for one in judged]),
        "Results changed without a word (aim: none)": share(
            [bool(one.changed_unsaid) for one in tried if one.changed_unsaid is not None]
        ),
        "Harmful cures (aim: none)": share([one.harmful for one in judged]),
        "Truths confirmed without our package": share([one.confirmed for one in results if one.confirmed is not None]),
    }
    return [f"- {name}: {value}" for name, value in lines.items()]
