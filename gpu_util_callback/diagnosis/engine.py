"""Diagnosis of a run: the rules over its evidence.

No second is counted for two findings: lost time is attributed once.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gpu_util_callback.diagnosis.advice.snippets import in_own_names
from gpu_util_callback.diagnosis.evidence.energy import energy
from gpu_util_callback.diagnosis.evidence.run_evidence import Evidence, Run
from gpu_util_callback.diagnosis.evidence.spans import MAX_SPANS, Range
from gpu_util_callback.diagnosis.memory_report import memory_use
from gpu_util_callback.diagnosis.rule import MEASURED, Advice, Finding, Findings, one_interruption
from gpu_util_callback.diagnosis.rules import RULE_OF, RULES
from gpu_util_callback.diagnosis.thresholds import A_TENTH, MOSTLY, NOTICEABLY, Count, Limits, meant
from gpu_util_callback.diagnosis.verdict import order, sentence, trace_sentence
from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.recording.manifest import killed_since
from gpu_util_callback.recording.manifest_facts import Claim, DiagnosisFacts, Piece, Silent, Span, Value

if TYPE_CHECKING:
    from gpu_util_callback.diagnosis.report_types import AnyFinding, Place, TraceDiagnosis
    from gpu_util_callback.recording.reader import Recording

# Increment whenever a rule or a default changes its result for a recording.
RULES_VERSION = 56

_PROMISED = frozenset({"faster_up_to", "promise_rests_on"})  # names of evidence

_NUMBER = re.compile(r"(?<![\w.])\d[\d.,]*")  # not a digit of a name

MOST_PIECES = Count(100, "of a span: a screen shows no more")

# Digits of a share, by whether it was measured exactly.
_SHARE_DIGITS = {False: 4, True: 9}


def judge(run: Run, limits: Mapping[str, Limits] | None = None) -> DiagnosisFacts:
    """Return what held the GPU back: the verdict, and the findings and spans, ordered by `order`."""
    limits = thresholds_in_force(None) if limits is None else limits
    findings_so_far: list[Finding] = []
    silent: list[Silent] = []
    for rule in RULES:
        if rule.missing(run):
            # A trace has reasons of its own for what it cannot show.
            of_trace = rule.unknown_in_trace if run.source is not None else ""
            silent.append({"cause": rule.cause, "reason": of_trace or rule.unknown})
        else:
            findings_so_far += _completed(rule.find(run, limits[rule.cause]), run, limits)
    findings_so_far = [finding for finding in findings_so_far if not one_interruption(run, finding)]
    suppress_duplicates(findings_so_far)
    of_script = [finding for finding in findings_so_far if finding.of_ns is not None]
    findings_so_far = [finding for finding in findings_so_far if finding.of_ns is None]
    findings_so_far = [*attribute_overlap(findings_so_far, (run.start_ns, run.end_ns)), *of_script]
    share_idle(findings_so_far, lambda where: idle.idle_ns if (idle := run.idle_in(where)) else None)
    # Parts of the account whose other findings wait for a fix.
    voided = {_part(finding) for finding in findings_so_far if RULE_OF[finding.cause].voids}
    for finding in findings_so_far:
        void = _part(finding) in voided and not RULE_OF[finding.cause].voids
        finding.advice = _VOID if void else _permitted(finding, run)
    findings_so_far.sort(key=lambda each: (each.where.start_ns if each.where else 0, each.cause, each.detail))
    objects = [_finding_json(finding, run) for finding in findings_so_far]
    finding_of = {id(claim): finding for claim, finding in zip(objects, findings_so_far, strict=True)}
    objects.sort(key=order)  # changes are promised in the order of the findings, which may alter that order
    promise_once(objects)
    objects.sort(key=order)
    findings = [claim for claim in objects if "start_step" not in claim]
    per_cause = Counter(claim["cause"] for claim in objects if "start_step" in claim)
    spans = [  # of each cause at most its share of `MAX_SPANS`
        span
        for claim in objects
        if "start_step" in claim
        for span in _spans(claim, finding_of[id(claim)], run, max(1, MAX_SPANS // per_cause[claim["cause"]]))
    ]
    _unique([*findings, *spans])
    return {
        "rules_version": RULES_VERSION,
        "thresholds_set": thresholds_set(limits),
        "verdict": sentence(run, objects),
        "gpu_active_pct": _active_pct(run),
        "memory": memory_use(run),
        "energy": energy(run),
        "au": run.accelerator.result(run.phases) if run.source is None else None,
        "traced": run.traced.facts(run.steps.total_rows),
        "findings": cast(list[Claim], findings),
        "spans": cast(list[Span], sorted(spans, key=order)),
        "silent": silent,
    }


def _completed(findings: Findings, run: Run, limits: Mapping[str, Limits]) -> Iterator[Finding]:
    """Yield findings with what their rules leave out: the thresholds of their evidence, and the GPUs in use."""
    for finding in findings:
        if finding.threshold is None:
            of_cause = limits[finding.cause]
            finding.threshold = {name: of_cause[name] for name in finding.evidence if name in of_cause}
        if finding.gpus is None:
            finding.gpus = run.used_gpus
        yield finding


def diagnose(recording: Recording, thresholds: Mapping | None = None) -> DiagnosisFacts:
    """Return the diagnosis of a recording: the stored one if it still holds, else a new one.

    The recorder stores its diagnosis at every flush, together with the rows it rests on; it holds if it was made by
    these rules with the same thresholds. The recording's own thresholds apply unless others are given, so that all
    readers see the same result as the person who trained.

    Args:
        thresholds: on top of the recording's own.
        thresholds: the user's, on top of the recording's own.
    """
    stored: DiagnosisFacts = recording.stored or cast(DiagnosisFacts, {})
    stored_limits = still_known(stored.get("thresholds_set"))
    limits = thresholds_in_force(thresholds, before=stored_limits)
    up_to_date = stored.get("rules_version") == RULES_VERSION and stored.get("thresholds_set") == thresholds_set(limits)
    lost = recording.status == "lost"  # its last moments were never judged
    if "verdict" in stored and up_to_date and not lost:  # the stored one holds
        return {"silent": [], "findings": [], "spans": [], "thresholds_set": {}, **stored}
    facts: Mapping = recording.facts
    if lost:
        facts = {**facts, "lost": {"oom_kills": killed_since(facts)}}
    if (result := _judged_by_sums(recording, facts, limits)) is not None:
        return result
    evidence = Evidence(facts.get("started_ns") or 0)
    result = _judged(recording, facts, limits, evidence)
    if not evidence.steps.total_rows and recording.step_count:  # no row of steps could be read
        # The manifest counts them: there were some.
        result["verdict"] = f"The {recording.step_count:,} steps of this run could not be read" + (
            f": {recording.problems[0].message}." if recording.problems else "."
        )
    return result


def _judged_by_sums(recording: Recording, facts: Mapping, limits: Mapping[str, Limits]) -> DiagnosisFacts | None:
    """Return the diagnosis by the sums that the recorder stored; None without usable ones."""
    stored = recording.stored_sums(Evidence)
    try:
        return None if stored is None else _judged(recording, facts, limits, stored)
    except Exception as error:  # the file is whole, but what is in it is none of our sums
        recording.distrust_sums(error)
        return None


def _judged(recording: Recording, facts: Mapping, limits: Mapping[str, Limits], evidence: Evidence) -> DiagnosisFacts:
    """Return the diagnosis by stored evidence and the rows of the segments that it does not cover yet."""
    for tables, samples in recording.parts(after=evidence.covered):
        evidence.add(tables, samples)
    if evidence.covered >= 0:  # as in the top, which a report need not read again for them
        recording.cached("distributions", lambda: evidence.summary)
    ended = recording.status in ("ended", "interrupted")
    # Rows that were dropped, or cannot be read, are in the stored account.
    return judge(Run(facts, evidence, recording.end_ns or None, ended, facts.get("account")), limits)


def judge_together(runs: Sequence[Run], limits: Mapping[str, Limits]) -> TraceDiagnosis:
    """Judge the processes of one trace, which run in parallel: time that several of them lose is lost once.

    Returns:
        One verdict; the findings of all processes, spans among them, where numbers and advice of a cause that several
        have are those of the process that loses most; the causes that no process could judge.
    """
    results = [judge(run, limits) for run in runs]
    merged: dict[tuple, AnyFinding] = {}
    for number, result in enumerate(results):
        for claim in cast("list[AnyFinding]", [*result["findings"], *result["spans"]]):
            # Spans of different processes stay apart.
            first = merged.setdefault((claim["id"], "start_step" in claim and number), claim)
            if first is not claim:
                worst = min(first, claim, key=lambda one: (one["lost_s"] is None, -(one["lost_s"] or 0.0)))
                worst["gpus"] = sorted({*first["gpus"], *claim["gpus"]})
                worst["ranks"] = sorted({*first["ranks"], *claim["ranks"]})
                merged[claim["id"], False] = worst
    findings = list(merged.values())
    for rule in RULES:
        for finding in _completed(rule.between(runs, limits[rule.cause]), runs[0], limits):
            findings.append(_finding_json(finding, runs[0]))
    findings.sort(key=order)
    causes = {claim["cause"] for claim in findings}
    return {
        "verdict": trace_sentence(runs, findings),
        "findings": _unique(findings),
        "silent": [
            {"cause": rule.cause, "reason": rule.unknown_in_trace}
            for rule in RULES
            if rule.unknown_in_trace and rule.cause not in causes and all(rule.missing(run) for run in runs)
        ],
    }


def _active_pct(run: Run) -> dict[str, float]:
    """Return each GPU's mean over the run's time, on which the verdict rests.

    Samples are denser while a GPU works than while it idles, so their plain mean differs.
    """
    means = {gpu["index"]: run.use(gpu["index"], run.start_ns, run.end_ns) for gpu in run.gpus}
    return {str(index): round(mean.value, 4) for index, mean in means.items() if mean is not None}


_VOID = Advice("First let the data begin again, then measure again: other batches may take other times.")


def _part(finding: Finding) -> str:
    """Return the part of the host account in which a finding is counted."""
    return RULE_OF[finding.cause].part_of(finding.detail)


def _permitted(finding: Finding, run: Run) -> Advice:
    """Return a finding's advice, or its alternative where it alters the training for little gain.

    If the gain of altering it is unknown, the advice stays. A small one justifies no other batch size or precision.
    """
    advice = finding.advice
    if finding.lost_ns is None or not advice.alters_training:
        return advice
    saved_ns = round(finding.lost_ns * advice.saves)
    if run.wall_ns >= NOTICEABLY * max(1, run.wall_ns - saved_ns):
        return advice
    return advice.otherwise or Advice(
        "What helps here is a change of the training itself, of its batch size or precision, "
        f"and gains less than {100 * (NOTICEABLY - 1):.0f} %: leave it as it is."
    )


def _id(finding: Finding, where: Range | None) -> str:
    """Return an id: spans of one cause are distinguished by their start."""
    name = f"{finding.cause}:{finding.detail}" if finding.detail else finding.cause
    return name if where is None else f"{name}@{where.start_step}"


def _piece_of(where: Range) -> Piece:
    """Return a range as JSON."""
    return {
        "start_step": where.start_step,
        "end_step": where.end_step,
        "start_ns": where.start_ns,
        "end_ns": where.end_ns,
    }


def _spans(claim: AnyFinding, finding: Finding, run: Run, most: int) -> list[AnyFinding]:
    """Return a finding about steps as spans that no longer pause interrupts, at most `most` of them.

    Each has its share of the loss. Where a span still has several pieces, they are listed.

    Args:
        claim: the finding as JSON.
    """
    assert finding.where is not None
    if finding.pieces:  # where its loss lies is known: one span
        pieces = tuple(run.range_of(*piece) for piece in sorted(finding.pieces))
        return [{**claim, **_pieces_of(replace(finding.where, parts=pieces))}]
    spans = []
    for part in finding.where.divided(most):
        span: AnyFinding = {**claim, **_piece_of(part), **_pieces_of(part)}
        if part.share < 1:  # a part of several
            span["id"] = _id(finding, part)
            span["evidence"] = {**claim["evidence"], **({"steps": part.steps} if "steps" in claim["evidence"] else {})}
            span["lost_s"], span["saves_s"], *bounds = [
                seconds and round(seconds * part.share, 6)
                for seconds in (claim["lost_s"], claim["saves_s"], *(claim["saves_range_s"] or ()))
            ]
            span["saves_range_s"] = bounds or None
            if finding.severity is None and span["lost_s"]:
                severity = 1e9 * span["lost_s"] / max(1, run.present_in(part))
                span["severity"] = round(min(1.0, severity), _SHARE_DIGITS[run.source is not None])
        spans.append(span)
    return spans


def _pieces_of(where: Range) -> Place:
    """Return the parts of a range as a field of its span; {} where it has no pauses."""
    return {"pieces": [_piece_of(piece) for piece in where.divided(MOST_PIECES)]} if where.parts else {}


def _finding_json(finding: Finding, run: Run) -> AnyFinding:
    """Return a finding as JSON: times in s, shares 0 to 1, the advice in the program's own names."""
    where = finding.where
    # What its loss is a share of: the script, the span, or the run.
    span_ns = finding.of_ns or (run.present_in(where) if where else run.wall_ns)
    lost_ns, is_exact, severity = finding.lost_ns, run.source is not None, finding.severity
    if severity is None and lost_ns is not None:
        severity = lost_ns / max(1, span_ns)
    saves_range_ns = finding.saves_range_ns(span_ns, run.device == "cpu")
    place: Place = {}
    if where is not None:
        place = {**_piece_of(where)}
    claim: AnyFinding = {
        "id": _id(finding, where),
        "cause": finding.cause,
        "title": finding.title,
        **place,
        "lost_s": None if lost_ns is None else _seconds(lost_ns, run),
        "saves_s": None if finding.saves_ns is None else _seconds(finding.saves_ns, run),
        "saves_range_s": saves_range_ns and [None if ns is None else _seconds(ns, run) for ns in saves_range_ns],
        "severity": None if severity is None else round(min(1.0, severity), _SHARE_DIGITS[is_exact]),
        "confidence": finding.confidence,
        "evidence": {
            name: float(f"{value:.6g}") if is_exact and isinstance(value, float) else cast(Value, value)
            for name, value in finding.evidence.items()
        },
        "threshold": cast(dict[str, float | None], finding.threshold),
        "advice": {
            "text": finding.advice.text,
            "code": in_own_names(run, finding.advice.code),
            "before": in_own_names(run, finding.advice.before or _as_given(finding.advice.code)),
            "question": finding.advice.question,
            "changes": finding.advice.changes,
        },
        "gpus": list(finding.gpus or ()) if is_exact else sorted(finding.gpus or ()),
        "ranks": _ranks(run) if finding.ranks is None else finding.ranks,
    }
    if finding.advice.untried:
        claim["advice"]["untried"] = finding.advice.untried
    if finding.of_ns is not None:
        claim["of_s"] = _seconds(finding.of_ns, run)
    return claim


def _ranks(run: Run) -> list[int]:
    """Return the rank of the run's process, 0 without a job; none for a trace that names no rank."""
    rank = run.manifest.get("rank")
    return [] if rank is None and run.source is not None else [int(rank or 0)]


def _seconds(ns: int, run: Run) -> float:
    """Return a time in seconds: a trace's few steps may last microseconds."""
    return round(ns / 1e9, 6 if run.source is None else 9)


# `name(..., what=1)`: what stands for `...` is there already.
_CALL = re.compile(r"((?:\w+ = )?[\w.]+\((?:\w+, )?\.\.\.), .*\)(?:  # .*)?")


def _as_given(code: str) -> str:
    """Return what a line of advice changes, if it is a call with other arguments; "" if not."""
    call = _CALL.fullmatch(code)
    return f"{call[1]})" if call is not None else ""


def _unique(objects: list[AnyFinding]) -> list[AnyFinding]:
    """Make ids unique."""
    counts: dict[str, int] = {}
    for claim in objects:
        counts[claim["id"]] = counts.get(claim["id"], 0) + 1
        if counts[claim["id"]] > 1:
            claim["id"] += f".{counts[claim['id']]}"
    return objects


def promise_once(objects: Sequence[AnyFinding]) -> None:
    """Name and promise each change once: later findings of other causes with the same code refer to the first.

    They promise nothing of their own: a batch 4 times as large, which spares 75 % of the launches' idle time
    alone, was predicted to gain 2.4 times and gained 1.8 (`small_batches_torch` of the gauntlet). Code that
    promises nothing is another change (a batch that fits into memory), and so is code for other steps.

    Args:
        objects: findings in their order.
    """
    first: dict[tuple, AnyFinding] = {}
    for finding in objects:
        advice = finding["advice"]
        if not advice["code"] or not (finding["saves_s"] or finding["saves_range_s"]):  # promises nothing
            continue
        named = first.setdefault((_NUMBER.sub("#", advice["code"]), advice["question"]), finding)
        if named["cause"] == finding["cause"] or _apart(named, finding):  # the first with this code, or one of its kind
            continue
        helps = "would help" if advice["question"] else "helps"
        text = f'{advice["text"]} The same change as for "{named["title"]}" {helps} here, too.'
        finding["advice"] = {**advice, "text": text, "code": "", "before": ""}
        finding["saves_s"], finding["saves_range_s"] = finding["saves_s"] and 0.0, None
        finding["evidence"] = {name: value for name, value in finding["evidence"].items() if name not in _PROMISED}


def _apart(finding: AnyFinding, other: AnyFinding) -> bool:
    """Return True if two findings hold for spans without a common step; a finding about the run overlaps all."""
    bounds: list[Any] = [each.get(name) for each in (finding, other) for name in ("start_step", "end_step")]
    if None in bounds:
        return False
    start, end, other_start, other_end = bounds
    return end <= other_start or other_end <= start


def attribute_overlap(findings: Sequence[Finding], wall: tuple[int, int]) -> list[Finding]:
    """Cut `lost_ns` so that findings on the same time never lose more than that time; return those that remain.

    A finding's loss is spread evenly over its pieces (by default its whole range). Where findings overlap, the more
    certain one is served first: those with known pieces, measured before estimated, spans before whole-run findings,
    then the larger share; later ones get the rest. Findings left with less than a tenth of their loss are dropped.

    Args:
        wall: start and end of the run, ns since the epoch.
    """
    pieces = [_pieces(finding, wall) for finding in findings]
    # Of all pieces: between two of them no finding begins or ends.
    edges = np.unique(np.concatenate([piece.ravel() for piece in pieces] or [np.zeros(0)]))
    free_ns = np.diff(edges).astype(np.float64)

    def rank(index: int) -> tuple:
        """Return the sort key of a finding: the more certain its loss is, the earlier it is served."""
        finding = findings[index]
        length = int((pieces[index][:, 1] - pieces[index][:, 0]).sum())
        share = (finding.lost_ns or 0) / max(1, length)
        return (not finding.pieces, finding.confidence != MEASURED, finding.where is None, -share, index)

    by_index: dict[int, Finding] = {}
    for index in sorted(range(len(findings)), key=rank):
        finding = findings[index]
        if finding.lost_ns is not None:
            granted = _serve(finding.lost_ns, pieces[index], edges, free_ns)
            if finding.lost_ns and granted < A_TENTH * finding.lost_ns:  # most of it was another finding's
                continue
            _cut(finding, round(granted))
        by_index[index] = finding
    return [by_index[index] for index in sorted(by_index)]


def suppress_duplicates(findings: Sequence[Finding]) -> None:
    """Remove the loss of an imbalance whose slow GPU is explained by throttling or contention.

    The others' waiting is the same time again: none of it is lost twice, and the cost of the imbalance itself is not
    known. The slow GPU is the first one of an imbalance.
    """

    def is_explained(finding: Finding, by: Finding) -> bool:
        """Return True if a cause that slows a GPU covers most of a finding that compares it with others."""
        slowed = RULE_OF[finding.cause].comparing and RULE_OF[by.cause].slowing
        if not slowed or not finding.gpus or finding.gpus[0] not in (by.gpus or ()):
            return False
        assert finding.where is not None and by.where is not None
        overlap_ns = min(finding.where.end_ns, by.where.end_ns) - max(finding.where.start_ns, by.where.start_ns)
        return overlap_ns >= MOSTLY * finding.where.length_ns

    for finding in findings:
        if any(is_explained(finding, by) for by in findings):
            finding.lost_ns = None


def share_idle(findings: Sequence[Finding], idle_ns: Callable[[Range], int | None]) -> None:
    """Cut `lost_ns` so that findings on one idle GPU never lose more than it idled.

    Each of them alone is within that limit already. Which of several causes a busy GPU hid cannot
    be determined, so each is cut by the same share, except those with known pieces, which were
    measured against the GPU just there.

    Args:
        findings: with overlaps attributed.
        idle_ns: how long the GPUs idled in a range; None = not sampled.
    """
    spans = [
        finding
        for finding in findings
        if RULE_OF[finding.cause].idling and finding.where is not None and finding.lost_ns
    ]
    cuts: list[tuple[Finding, float]] = []
    for finding in spans:
        assert finding.where is not None and finding.lost_ns is not None
        if finding.pieces:
            continue
        # What of the other findings' losses lies in this one's range.
        inside = [(other, _inside(other, finding)) for other in spans if other is not finding]
        others_ns = sum(part for other, part in inside if not other.pieces)
        # Of findings whose place is known: they keep all of it.
        pieces_ns = sum(part for other, part in inside if other.pieces)
        idled_ns = idle_ns(finding.where)
        claimed = finding.lost_ns + others_ns
        if others_ns + pieces_ns > 0 and idled_ns is not None and claimed + pieces_ns > idled_ns:
            cuts.append((finding, max(0.0, idled_ns - pieces_ns) / claimed))
    for finding, share in cuts:
        _cut(finding, max(1, round((finding.lost_ns or 0) * share)))


def _cut(finding: Finding, lost_ns: int) -> None:
    """Limit a finding's loss to `lost_ns`, and its saving accordingly; a smaller loss stays."""
    if finding.lost_ns is None or lost_ns >= finding.lost_ns:
        return
    noticed = lost_ns < 0.99 * finding.lost_ns
    finding.lost_ns = lost_ns
    if noticed and finding.where is not None and "faster_up_to" in finding.evidence:
        span = finding.where.length_ns
        faster = span / max(1, span - (finding.saves_ns or 0))
        finding.evidence["faster_up_to"] = round(faster, 2)
        finding.evidence["promise_rests_on"] = "what the other causes here leave of the time"


def _inside(finding: Finding, other: Finding) -> float:
    """Return the ns of a finding's loss that lie in the range of another one.

    The loss spreads evenly over its pieces.
    """
    a, b = finding.where, other.where
    assert a is not None and b is not None
    pieces = _pieces(finding, a.extent_ns)
    length_ns = int((pieces[:, 1] - pieces[:, 0]).sum())
    overlap_ns = sum(
        int(np.maximum(np.minimum(pieces[:, 1], end) - np.maximum(pieces[:, 0], start), 0).sum())
        for start, end in b.intervals
    )
    return (finding.lost_ns or 0) * overlap_ns / max(1, length_ns)


def _pieces(finding: Finding, wall: tuple[int, int]) -> np.ndarray:
    whole = finding.where.intervals if finding.where else [wall]
    return np.array(finding.pieces or whole, np.int64).reshape(-1, 2)


def _serve(claimed: int, pieces: np.ndarray, edges: np.ndarray, room: np.ndarray) -> float:
    """Take up to `claimed` ns out of `room`: evenly first, then wherever room is left; return the ns taken.

    Args:
        pieces: int64 (n, 2), start and end of each piece of the finding, ns.
        edges: int64 (m + 1,), ends of the intervals of `room`.
        room: float64 (m,), ns of each interval that are still free; what is taken is subtracted.
    """
    inside = np.zeros(len(room), bool)
    for first, end in np.searchsorted(edges, pieces):
        inside[first:end] = True
    length_ns = np.diff(edges)[inside].astype(np.float64)
    free_ns = room[inside]
    taken_ns = np.minimum(claimed * length_ns / max(1.0, length_ns.sum()), free_ns)
    missing_ns = claimed - taken_ns.sum()
    room_left = free_ns - taken_ns
    if missing_ns > 0 and room_left.sum() > 0:
        taken_ns += room_left * min(1.0, missing_ns / room_left.sum())
    room[inside] = free_ns - taken_ns
    return float(taken_ns.sum())


# -- thresholds in force ------------------------------------------------------------------------

DECLARED = {rule.cause: rule.thresholds for rule in RULES}


def thresholds_in_force(given: Mapping | None, before: Mapping | None = None) -> dict[str, dict[str, float]]:
    """Return the thresholds in force, cause -> name -> value: the defaults, overridden by the user's.

    Args:
        given: `{"input_bound": {"wait_pct": 10}}` or `{"input_bound.wait_pct": 10}`; None = none.
        before: thresholds that `given` overrides, in the same form.

    Raises:
        UnusableInput: an unknown cause or name (the nearest one is named), or not a number ≥ 0.
    """
    limits = {
        cause: {name: float(threshold.default) for name, threshold in names.items()}
        for cause, names in DECLARED.items()
    }
    for cause, key, value in chain(_flatten(before or {}), _flatten(given or {})):
        if cause not in limits:
            raise UnusableInput(f"no cause {cause!r} to set{meant(cause, limits)}")
        if key not in limits[cause]:
            raise UnusableInput(f"{cause} has no threshold {key!r}{meant(key, limits[cause])}")
        limits[cause][key] = _number(f"{cause}.{key}", value)
    return limits


def thresholds_set(limits: Mapping[str, Limits]) -> dict[str, float]:
    """Return the thresholds that are not the default: `{"input_bound.wait_pct": 10}`."""
    return {
        f"{cause}.{name}": value
        for cause, names in limits.items()
        for name, value in names.items()
        if value != DECLARED[cause][name].default
    }


def still_known(given: object) -> dict[str, float]:
    """Return the thresholds of a recording that still exist, in the form of `thresholds_set`; {} if it has none."""
    existing: dict[str, float] = {}
    for name, value in given.items() if isinstance(given, Mapping) else ():
        with suppress(UnusableInput):  # of other rules, or damaged
            thresholds_in_force({name: value})
            existing[str(name)] = float(value)
    return existing


def _flatten(given: Mapping) -> Iterable[tuple[str, str, object]]:
    """Yield (cause, name, value) of thresholds in either form.

    Args:
        given: {cause: {name: value}} or {"cause.name": value}.

    Raises:
        UnusableInput: a name without a cause.
    """
    for name, value in given.items():
        if isinstance(value, Mapping):
            yield from ((str(name), str(key), inner) for key, inner in value.items())
        else:
            cause, dot, key = str(name).partition(".")
            if not dot:
                raise UnusableInput(f"threshold {name!r}: name it CAUSE.NAME")
            yield cause, key, value


def _number(name: str, value: object) -> float:
    """Return a threshold as a finite number ≥ 0.

    Raises:
        UnusableInput: it is none.
    """
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise UnusableInput(f"threshold {name} must be a non-negative number, got {value!r}")
    return number
