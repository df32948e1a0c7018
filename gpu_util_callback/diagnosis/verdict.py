"""The verdict: the run in one sentence, and what is worth a message while it trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpu_util_callback.diagnosis.evidence.cores import WHO_ELSE, measure_cores
from gpu_util_callback.diagnosis.evidence.run_evidence import Idle, Run
from gpu_util_callback.diagnosis.evidence.script import Script
from gpu_util_callback.diagnosis.evidence.source import TracedGpu, explains_idle, extrapolated
from gpu_util_callback.diagnosis.evidence.windows import fill, traced_gpus
from gpu_util_callback.diagnosis.rule import LEAST_GAIN, all_findings, shows
from gpu_util_callback.diagnosis.rules import RULE_OF, RULES
from gpu_util_callback.diagnosis.thresholds import (
    A_FEW,
    A_FIFTH,
    A_TENTH,
    A_TWENTIETH,
    BUSY_PCT,
    FOUR_FIFTHS,
    MIN_SAMPLES,
    MOSTLY,
)
from gpu_util_callback.recording.manifest_facts import SourceFacts
from gpu_util_callback.words import capitalized, duration, gpu_names, percent, times, times_between, what_to_do

if TYPE_CHECKING:
    from gpu_util_callback.diagnosis.report_types import Calm, Headline, LossSums

# Causes next to which nothing else is worth fixing first.
BLOCKING = frozenset(rule.cause for rule in RULES if rule.blocking)
# Causes whose titles say all of a finding without a known cost.
_FORECASTS = frozenset(rule.cause for rule in RULES if rule.forecast)
_HALTS = frozenset(rule.cause for rule in RULES if rule.halts)
# The rest of the sentence is about one recording: of all fits of a script, or of a single fit.
IN_FITS, IN_THIS = "In the fits", "In this one"
UNKNOWN = "No bottleneck found"  # how such a verdict begins, or in its midst:
UNEXPLAINED = "no single cause"
NOTHING = "Nothing held up training"
NOTHING_IN_TRACE = "Nothing held up the GPU"
NOTHING_LARGE = "Nothing large held up training"  # ... if small findings are listed
UNCHECKED = "the inside of steps"  # what an all-clear without a GPU's samples says it did not check
# How a verdict begins where others kept the cores from a run without findings.
OTHERS_USED = tuple(f"{capitalized(others)} used" for others in WHO_ELSE)
COMPILING = "but compiling"  # what follows NOTHING where the GPU was busy otherwise
NO_STEP = "No training step was recorded yet."
NOT_TRACED = "No findings"  # a trace without what the device did
TOO_LITTLE = f"{UNKNOWN}: too little GPU work to judge"  # in a trace
# part of the account -> label of the time outside steps
_WENT_INTO = {
    "input_wait": "waiting for input",
    "compile": "compiling",
    "validation": "in validation",
    "callbacks": "in callbacks",
    "other": "between the steps",
    "unkept": "in steps that came too fast to be recorded",  # a part of "other"
}
# Part of the account -> beginning of the verdict where it took more than the steps, and no cause was found in it.
_TOOK = {
    part: f"{capitalized(_WENT_INTO[part].removeprefix('in '))} took"
    for part in ("input_wait", "compile", "validation", "callbacks")
}
SMALL = (NOTHING_LARGE, *OTHERS_USED, *_TOOK.values())  # verdicts without a cause, beside small findings
CLEAR = (NOTHING, *SMALL)  # how verdicts without a cause begin, but those of UNKNOWN
# Beginning of a verdict on a run without findings -> what it says; any other one: that the loss has no single cause.
_CALM: dict[str, Calm] = {
    f"{NOTHING} {COMPILING}": "compiling",
    _TOOK["compile"]: "compiling",
    NOTHING: "healthy",
    NOTHING_IN_TRACE: "healthy",
    NO_STEP: "empty",
    NOT_TRACED: "unjudged",
    TOO_LITTLE: "unjudged",
}
_UNNAMED = tuple(f"{rule.cause}:{rule.unnamed}" for rule in RULES if rule.unnamed)  # beginnings of ids


def is_unknown(verdict: str) -> bool:
    """Return whether a verdict says that time was lost to a cause that was not found."""
    return verdict.startswith(UNKNOWN) or UNEXPLAINED in verdict


def calm(verdict: str) -> Calm:
    """Return what the verdict on a run without findings says."""
    if verdict.startswith(NOTHING) and UNCHECKED in verdict:
        return "outside"
    return next((says for beginning, says in _CALM.items() if verdict.startswith(beginning)), "unexplained")


def sentence(run: Run, findings: Sequence[Mapping]) -> str:
    """Return the verdict: the largest cost in proportion to the run, and the gain of fixing it.

    What a script with several fits loses comes first where that is more than the fits lose.

    Args:
        findings: of the report, attributed and ordered: the first to fix in front.
    """
    of_fits = _of_fits(run, [finding for finding in findings if not finding.get("of_s")])
    script = Script.from_process(run.manifest.get("process"))
    lead = of_script(findings, run.wall_ns / 1e9, script)
    if lead is None or script is None or not len(run.steps):  # the recording alone
        return of_fits
    opening, colon, remainder = of_fits.partition(": ")
    clear = opening.startswith((*CLEAR, UNKNOWN))
    gains = promise(lead["of_s"], lead["saves_range_s"], lead["saves_s"], "script")
    between = RULE_OF[lead["cause"]].between_fits
    inside = IN_FITS if between else IN_THIS
    return f"{_lost_to(script, between)}{gains} {inside}: {remainder if clear and colon else of_fits}"


def _lost_to(script: Script, between: bool) -> str:
    """Return what passed between the fits of a script, or else went into compiling each of them, as a sentence."""
    if between:
        passed, part = (duration(s) for s in (script.between, script.between_s[script.longest]))
        return f"{passed} of {duration(script.wall_s)} passed between the fits, {part} in {script.longest}."
    spent = f"{duration(script.compile_s)} of the {duration(script.fits_s)} in them"
    return f"All {script.fits:,} fits compiled, each for itself: {spent}."


def of_script(findings: Sequence[Mapping], wall_s: float | None, script: Script | None) -> Mapping | None:
    """Return the finding about all fits of a script, if it costs more than a finding of one fit; None if not.

    Args:
        wall_s: duration in seconds of the recording, which the other findings are about.
    """
    of_this_fit = [finding for finding in findings if not finding.get("of_s")]
    script_finding = max((finding for finding in findings if finding.get("of_s")), key=_lost_s, default=None)
    if script_finding is None or script is None or any(map(blocks, findings)):
        return None
    lead = headline(of_this_fit, None)
    lost_s = script.saves(wall_s or 0.0, lead["lost_s"]) if lead is not None else 0.0
    return script_finding if _lost_s(script_finding) >= (lost_s or 0.0) else None


def _lost_s(finding: Mapping) -> float:
    return float(finding["lost_s"] or 0.0)


def _of_fits(run: Run, findings: Sequence[Mapping]) -> str:
    """Return the verdict on one recording, without what passes between the fits of its script."""
    blocking = next((finding for finding in findings if blocks(finding)), None)
    if not len(run.steps) and (blocking is None or blocking["cause"] not in _HALTS):  # nothing to judge yet
        return NO_STEP
    if run.source is not None:
        return trace_sentence([run], findings)
    if blocking is not None:
        return f"{blocking['title']}."
    wall_s = run.wall_ns / 1e9
    lead = headline(findings, wall_s)
    if lead is None:  # no finding has a known cost
        return _of_unknown_cost(findings[0]) if findings else _healthy(run)
    lost_s = min(lead["lost_s"] or 0.0, wall_s)
    named = _lost_by_title([finding for finding in findings if not is_unnamed(finding)])
    largest_s = min(max([lost_s, *named.values()]), wall_s)
    if is_unnamed(lead) or not shows(run, round(1e9 * largest_s)):  # no named loss shows above the run's scatter
        return _of_small_costs(run, findings)
    rule = RULE_OF[lead["cause"]]
    opening = rule.opening if run.used_gpus else rule.opening_without_gpu
    if run.used_gpus and lost_s >= A_FIFTH * wall_s:
        opening = rule.opening_if_large
    if not lead["title"].startswith(rule.title):  # a title of its own says more
        opening = ""
    where = "" if opening else _on_gpus(lead, findings, len(run.gpus))
    larger = _larger(named, lost_s)
    loss = f"{larger}{opening or lead['title']}{where}: {duration(lost_s)} of {duration(wall_s)}."
    script = Script.from_process(run.manifest.get("process"))
    it = {"": "it"}.get(larger, subject_of(lead))  # by name behind another loss
    gains = _promise_or_limit(lead, findings, wall_s, script, it)
    compile_s = run.account["time_s"].get("compile", 0.0)
    compiling = rule.part != "compile" and compile_s > max(lost_s, A_TENTH * wall_s)
    also = f" {duration(compile_s)} went into compiling." * compiling
    others = _cores_of_others(run) if rule.between_steps else ""
    return f"{loss}{gains}{also}{f' {others}.' * bool(others)}{_unknown_too(findings)}"


def _of_small_costs(run: Run, findings: Sequence[Mapping]) -> str:
    """Return the verdict where no cause with a name costs enough to show."""
    unknown = next((finding for finding in findings if finding["lost_s"] is None), None)
    if unknown is not None:  # a finding without a known cost
        return _of_unknown_cost(unknown)
    lost_s = sum(finding["lost_s"] for finding in findings if is_unnamed(finding))
    wall_s = run.wall_ns / 1e9
    if shows(run, round(1e9 * min(lost_s, wall_s))):  # time that nothing names shows
        return f"{UNKNOWN}: {duration(lost_s)} of {duration(wall_s)} passed outside steps and phases, without a name."
    return _healthy(run, NOTHING_LARGE)


def named_gpus(report: Mapping) -> set[int]:
    """Return the indices of the GPUs that findings are about, without findings about all GPUs."""
    return {
        int(gpu)
        for finding in all_findings(report)
        if len(finding["gpus"] or ()) < len(report["gpus"])
        for gpu in finding["gpus"] or ()
    }


def _on_gpus(lead: Mapping, findings: Sequence[Mapping], count: int) -> str:
    """Return " on gpu37" where all that the verdict is about concerns some of `count` GPUs."""
    about = [finding.get("gpus") or () for finding in findings if finding["id"] in lead["ids"]]
    gpus = {int(gpu) for indices in about for gpu in indices}
    return f" on {gpu_names(sorted(gpus))}" if all(about) and 0 < len(gpus) < count else ""


def is_unnamed(finding: Mapping) -> bool:
    """Return whether a finding, or a headline, is about time that nothing names: never a fix."""
    return any(id_.startswith(_UNNAMED) for id_ in finding.get("ids") or [finding.get("id", "")])


def _of_unknown_cost(finding: Mapping) -> str:
    return f"{finding['title']}{'' if finding['cause'] in _FORECASTS else '; cost unknown'}."


def blocks(finding: Mapping) -> bool:
    """Return whether nothing else is worth fixing before this finding."""
    stands = finding["cause"] in _HALTS and (finding["evidence"].get("still_no_step") or finding["severity"] >= MOSTLY)
    return finding["cause"] in BLOCKING or bool(stands)


def order(finding: Mapping) -> tuple:
    """Return the sort key of findings: what blocks first, then by the time that is saved.

    A fix counts with its prediction, a question with the least that a yes saves: it comes before a fix
    only if it surely saves more. Then by the time lost; unknown costs and unnamed time come last.
    """
    lost_s, saves_s = finding.get("lost_s"), finding.get("saves_s")
    least_s, most_s = saves_range([finding])
    asks = not saves_s and most_s != 0.0  # a question: its saving depends on the answer
    return (
        not blocks(finding),
        is_unnamed(finding),
        lost_s is None,
        -(least_s if asks else saves_s or 0.0),
        not saves_s,
        -least_s,
        -(most_s or lost_s or 0.0) if asks else 0.0,
        -(lost_s or 0.0),
    )


def headline(findings: Sequence[Mapping], wall_s: float | None) -> Headline | None:
    """Return the finding that the verdict is about, or None if no cost is known.

    It is that whose advice saves most, or the costliest one where no advice saves anything: the first of `findings`,
    with the others of its cause.

    Args:
        wall_s: the run's duration in seconds; None = the gain stays unknown.
    """
    findings_by_kind: dict[tuple[str, str], list[Mapping]] = {}
    for finding in sorted(findings, key=order):
        if finding["lost_s"]:
            rule = RULE_OF.get(finding["cause"])
            # Findings of some causes count together whatever their title.
            shares = rule is not None and rule.opening and finding["title"].startswith(rule.title)
            title = "" if shares else finding["title"]
            findings_by_kind.setdefault((finding["cause"], title), []).append(finding)
    if not findings_by_kind:
        return None

    lead = min(findings_by_kind.values(), key=lambda kind: order_of_all(kind[0], kind))
    titles: dict[str, list[Mapping]] = {}
    for finding in lead:
        titles.setdefault(finding["title"], []).append(finding)
    groups = sorted(titles.values(), key=lambda group: order_of_all(group[0], group))
    lead = [finding for group in groups for finding in group]
    together = sums(lead)
    return {
        "cause": lead[0]["cause"],
        "title": lead[0]["title"],
        "ids": [finding["id"] for finding in lead],
        **together,
        "all_saves_s": sums(findings)["saves_s"],
        "faster_up_to": gain_of(wall_s, together["saves_range_s"][1] if together["saves_s"] else 0.0),
    }


def order_of_all(first: Mapping, members: Sequence[Mapping]) -> tuple:
    """Return the sort key of findings that are listed as one; `first` stands for them."""
    return order({**first, **sums(members)})


def sums(findings: Sequence[Mapping]) -> LossSums:
    """Return what findings cost and what their advice saves, in seconds; a cost of None = unknown."""
    lost = [finding["lost_s"] for finding in findings if finding.get("lost_s") is not None]
    return {
        "lost_s": round(sum(lost), 6) if lost else None,
        "saves_s": round(sum(finding.get("saves_s") or 0.0 for finding in findings), 6),
        "saves_range_s": list(saves_range(findings)),
    }


def saves_range(findings: Sequence[Mapping]) -> tuple[float, float | None]:
    """Return the least and the most that the advice of findings saves together, in seconds.

    Fixes alone count, if there are any; else what questions save if the answer to each is yes. There is
    no upper end where one of them has none.
    """
    fixes = [finding for finding in findings if finding.get("saves_s")]
    ranges = [finding.get("saves_range_s") or [finding.get("saves_s") or 0.0] * 2 for finding in fixes or findings]
    least_s = sum(least for least, _ in ranges)
    open_ended = any(most is None for _, most in ranges)
    return round(least_s, 6), None if open_ended else round(sum(most for _, most in ranges), 6)


def subject_of(finding: Mapping) -> str:
    """Return what a finding is about, by the beginning of its title: "Sync-bound", "ContactSheet", "Validation"."""
    return str(finding["title"]).partition(":")[0].removesuffix(" stalls training")


def _promise_or_limit(lead: Mapping, findings: Sequence[Mapping], wall_s: float, script: Script | None, it: str) -> str:
    """Return the sentence on what following the advice gains, or else what limits the run; "" where neither is known.

    Args:
        lead: the headline.
        findings: all of them.
        wall_s: seconds of the run.
        script: of several fits: then the gain is that of the whole script.
        it: as in `promise`.
    """
    subject, saves_s, span_s = "run", lead["saves_s"], lead["saves_range_s"]
    if script is not None:
        subject, saves_s = "script", script.saves(wall_s, saves_s)
        span_s = [script.saves(wall_s, bound) for bound in span_s]
        wall_s = script.wall_s
    first = next(finding for finding in findings if finding["id"] == lead["ids"][0])
    limit = str(first["evidence"].get("held_up_by") or "")
    return promise(wall_s, span_s, saves_s, subject, it) or (f" {capitalized(limit)}." if limit else "")


def _larger(lost: Mapping[str, float], lead_s: float) -> str:
    """Return the loss in front of a smaller one that has a fix: "Launch-bound: 9.0 s. "; "" where there is none."""
    title = max(lost, key=lambda name: lost[name], default="")
    return f"{title}: {duration(lost[title])}. " if lost.get(title, 0.0) > (1 + A_TENTH) * lead_s else ""


def _lost_by_title(findings: Sequence[Mapping]) -> dict[str, float]:
    """Return title -> seconds lost; 0.0 where that is not known."""
    lost: dict[str, float] = {}
    for finding in findings:
        lost[finding["title"]] = lost.get(finding["title"], 0.0) + _lost_s(finding)
    return lost


def _unknown_too(findings: Sequence[Mapping]) -> str:
    """Return a note on what may cost more than the largest known loss, and can be tried."""
    unknown = next((finding for finding in findings if finding["lost_s"] is None and finding["advice"]["code"]), None)
    return f" {_of_unknown_cost(unknown)}" if unknown and unknown["cause"] not in _FORECASTS else ""


def gain_of(wall_s: float | None, saves_s: float | None) -> float | None:
    """Return how many times faster a run is without `saves_s`, at most; None if unknown."""
    if not wall_s or saves_s is None:
        return None
    # Printed with two digits: rounding to those here, too, would round twice.
    return round(wall_s / max(1e-9, wall_s - min(saves_s, 0.999 * wall_s)), 4)


def gain_text(wall_s: float | None, span_s: Sequence[float | None] | None) -> str:
    """Format the gain of a saving: `1.5 to 2.7×`, `up to 1.6×`, `at least 7×`; "" where it is little or unknown.

    Args:
        span_s: the least and the most that is saved, in seconds; the most is None where it has no upper end.
    """
    least, most = (gain_of(wall_s, saved) for saved in span_s or (None, None))
    return "" if least is None else factors_text(least, most)


def factors_text(least: float, most: float | None) -> str:
    """Format a gain between two factors as `gain_text` does."""
    if most is None:
        return f"at least {times(least)}" if least >= LEAST_GAIN else ""
    range_text = times_between(least, most) if least >= LEAST_GAIN else f"up to {times(most)}"
    return range_text if most >= LEAST_GAIN else ""


def promise(
    wall_s: float, span_s: Sequence[float | None] | None, saves_s: float | None, what: str = "run", it: str = "it"
) -> str:
    """Return the sentence on what fixing a cause gains, after a space; "" if that is little.

    Args:
        wall_s: seconds of the run, before the fix.
        span_s: the least and the most seconds that it saves; None = not known, the most of None = no upper end.
        saves_s: the predicted seconds between them.
        what: gets faster, "run", "script", "step", ...
        it: what is fixed, by name where another loss stands before the sentence.
    """
    expected = gain_of(wall_s, saves_s)
    gain = gain_text(wall_s, span_s or (saves_s and [saves_s, saves_s]) or None)
    is_large = gain and expected is not None and expected >= LEAST_GAIN
    return f" Fixing {it} could make this {what} {gain} faster." if is_large else ""


def trace_sentence(runs: Sequence[Run], findings: Sequence[Mapping]) -> str:
    """Return the verdict on the processes of one trace, in a sentence or two.

    Args:
        findings: of all processes together.
    """
    kernels = " ".join(_activity(runs, findings))
    if not findings:
        return _nothing_in(runs)
    lead = findings[0]
    if not lead["lost_s"]:  # its cost is not known
        return f"{lead['title']}. {kernels}".strip()
    total_s = max(run.steps.total("duration_ns") for run in runs) / 1e9
    verdict = f"{lead['title']}: {duration(lead['lost_s'])} of {duration(total_s)}."
    subject = "step" if any(run.steps.total_rows > 1 for run in runs) else "trace"
    verdict += promise(total_s, lead.get("saves_range_s"), lead.get("saves_s"), subject)
    return f"{verdict} {kernels}".strip()


def _at_work(runs: Sequence[Run]) -> list[tuple[Run, TracedGpu]]:
    """Return the GPUs at work in traces, each with its process."""
    return [(run, run.traced.gpus[gpu]) for run in runs for gpu in traced_gpus(run) if gpu in run.traced.gpus]


def _kernel_pct(runs: Sequence[Run]) -> float | None:
    """Return the share of the traced time in which kernels ran, mean over the GPUs at work."""
    shares = [100 * gpu.kernel_busy_ns / max(1, run.steps.total("duration_ns")) for run, gpu in _at_work(runs)]
    return min(100.0, sum(shares) / len(shares)) if shares else None


def _sources(runs: Sequence[Run]) -> list[SourceFacts]:
    """Return the traces of processes with GPUs at work."""
    return [run.source for run in runs if run.source is not None and run.source["gpus"]]


def _traced_time(runs: Sequence[Run]) -> str:
    """Return the name of the time that a trace is judged by."""
    sources = _sources(runs)
    if not all(source["steps_judged"] for source in sources):
        judged = all(source["idle_judged"] for source in sources)
        return "the time between the first and the last GPU work" if judged else "the trace"
    steps = max(run.steps.total_rows for run in runs)
    return "the one traced step" if steps == 1 else f"the {steps:,} traced steps"


def _activity(runs: Sequence[Run], findings: Sequence[Mapping]) -> list[str]:
    """Return a sentence on how long kernels ran, in a list.

    [] where findings explain half of the other time, or more.
    """
    pct = _kernel_pct(runs)
    if pct is None:
        return []
    total_s = max(run.steps.total("duration_ns") for run in runs) / 1e9
    lost_s = sum(finding["lost_s"] or 0.0 for finding in findings)
    is_explained = lost_s and 2 * lost_s >= (1 - pct / 100) * total_s
    return [] if is_explained else [f"Kernels ran {percent(pct)} of {_traced_time(runs)}."]


def _nothing_in(runs: Sequence[Run]) -> str:
    """Return the verdict on a trace without findings: the share of its time in which kernels ran."""
    pct = _kernel_pct(runs)
    if pct is None:  # no GPU's work is in it
        of_tpu = any(run.source is not None and run.source["tpu"] for run in runs)
        return (
            f"{NOT_TRACED}: what {'the TPU did is not read from its' if of_tpu else 'a GPU did is not in this'} trace."
        )
    of = f"of {_traced_time(runs)}"
    if not all(source["idle_judged"] for source in _sources(runs)):  # too little work to judge idle time
        return f"{TOO_LITTLE}, kernels ran {percent(pct)} {of}."
    if pct < BUSY_PCT.default:
        return f"Kernels ran only {percent(pct)} {of}, {UNEXPLAINED}{_idle_parts(runs)}."
    return f"{NOTHING_IN_TRACE}: kernels ran {percent(pct)} {of}."


# Category of a GPU's account -> name in a sentence, of what is not kernels.
_NOT_KERNELS = {
    "copy_h2d": "copies to the GPU",
    "copy_d2h": "copies to the host",
    "collective": "collectives",
    "idle_input": "waiting for input",
    "idle_launch": "idle between launches",
    "idle_sync": "at syncs",
    "idle_host": "other work of the host",
    "other": "reasons that the trace does not show",
}


def _idle_parts(runs: Sequence[Run]) -> str:
    """Return what the rest of a trace's time went into, after a colon; "" where no part is large."""
    gpus = [gpu for _, gpu in _at_work(runs)]
    total = sum(gpu.duration_ns for gpu in gpus)
    return _listed({category: sum(gpu.ns[category] for gpu in gpus) / max(1, total) for category in _NOT_KERNELS})


def _idle_parts_of_run(run: Run, idle: Idle) -> str:
    """Return the large parts of a run's idle time, after a colon; "" without any.

    They are the shares of its profiler windows, scaled to its account.
    """
    if not explains_idle(run.manifest):
        return ""
    times, wall_s, steps = run.account["time_s"], run.wall_ns / 1e9, run.steps.total_rows
    parts = [
        extrapolated(run.traced.for_all(gpu, steps), times, wall_s, idle.active_pct)
        for gpu in traced_gpus(run)
        if gpu in idle.gpus
    ]
    known_s = [seconds for seconds in parts if seconds]
    shares = {name: sum(seconds[name] for seconds in known_s) / max(1, len(known_s)) / wall_s for name in _NOT_KERNELS}
    return _listed(shares)


def _listed(shares: Mapping[str, float]) -> str:
    """Return the large shares (0-1) of what is not kernels, the largest first, after a colon."""
    parts = {name: 100 * shares[category] for category, name in _NOT_KERNELS.items()}
    shown = sorted((name for name in parts if parts[name] >= 100 * A_TWENTIETH), key=lambda n: -parts[n])
    return ": " + ", ".join(f"{percent(parts[name])} {name}" for name in shown) if shown else ""


def _healthy(run: Run, nothing: str = NOTHING) -> str:
    """Return the verdict on a run without a cause: where the time went, and what was not checked.

    Args:
        nothing: how an all-clear begins.
    """
    times = run.account["time_s"]
    steps_s = times["step"] if times else (run.steps.total("body_ns") + run.steps.total("gpu_wait_ns")) / 1e9
    wall_s = run.wall_ns / 1e9
    share = percent(min(100.0, 100 * steps_s / max(1e-9, wall_s)))
    share_text = f"{share} of {duration(wall_s)} in steps"
    unkept = sum(gap.self_ns for gap in run.phases.of("gap", account="other").values()) / 1e9
    mostly = steps_s >= FOUR_FIFTHS * (wall_s - times.get("compile", 0.0))  # every run begins by compiling
    small_parts = {**times, "unkept": unkept, "other": times.get("other", 0.0) - unkept}
    small_parts = small_parts if steps_s < FOUR_FIFTHS * wall_s else {}
    unclear = share_text + _largest(small_parts, wall_s)
    # Compiling alone does not contradict "nothing held it up" about all the rest.
    clear = share_text + _largest({"compile": small_parts.get("compile")}, wall_s) if mostly else unclear
    idle = run.idle(run.start_ns, run.end_ns) if run.used_gpus else None
    took, others = _took(times, steps_s, wall_s), _cores_of_others(run)
    if idle is None:  # no GPU, or its utilization was not sampled
        if took and not others:
            return f"{took}, training steps {share}."
        return f"{others or (nothing if mostly else UNKNOWN)}: {clear}. {_unchecked(run)}"
    is_plural = len(idle.gpus) > 1
    gpu = "the GPUs were" if is_plural else "the GPU was"
    basis = " on average" * is_plural + " (not counting other processes)" * (_others_pct(run, idle) >= 1)
    active = f"{percent(idle.active_pct)} of the time{basis}"
    if idle.active_pct < BUSY_PCT.default:  # the GPU idled, and no cause is known
        otherwise = ""
        if times.get("compile", 0.0) > A_TENTH * wall_s:
            otherwise_pct = _active_but_for_compiling(run, idle)
            if otherwise_pct >= BUSY_PCT.default:
                share_text += _largest({"compile": times["compile"]}, wall_s)
                return f"{nothing} {COMPILING}: {share_text}, {gpu} active {active}."
            otherwise = f", {percent(otherwise_pct)} without compiling"
        if took:
            return f"{took}, training steps {share}; {gpu} active {active}{otherwise}."
        gpus_active = f"{'GPUs' if is_plural else 'GPU'} active {percent(idle.active_pct)}{basis}{otherwise}"
        parts = _idle_parts_of_run(run, idle) + f". {others}" * bool(others)
        return f"{gpus_active}, {UNEXPLAINED}{parts}. {capitalized(unclear)}."
    # On the GPU with fewest; None where GPM did not measure it.
    kernels = min((part.kernels_pct for gpu in idle.gpus if (part := fill(run, gpu, A_FEW)) is not None), default=None)
    if kernels is not None and kernels < BUSY_PCT.default:  # active, but maybe with copies
        ran = f"kernels ran for at least {percent(kernels)}, the rest may be copies"
        return f"{UNKNOWN}: {clear}, {gpu} active {active}; {ran}."
    return f"{nothing}: {clear}, {gpu} active {active}."


def _took(times: Mapping[str, float | None], steps_s: float, wall_s: float) -> str:
    """Return the beginning of the verdict on a part of the time that is longer than the steps'; "" without one.

    Args:
        times: seconds by account; None = not known.
    """
    part = max(_TOOK, key=lambda name: times.get(name) or 0.0)
    part_s = times.get(part) or 0.0
    took = f"{_TOOK[part]} {percent(min(100.0, 100 * part_s / max(1e-9, wall_s)))} of {duration(wall_s)}"
    return took if part_s > steps_s else ""


def _active_but_for_compiling(run: Run, idle: Idle) -> float:
    """Return the share of the time without compiling in which the GPUs were active, %.

    They may be active while the framework compiles, which tries out kernels: at most the compiling time counts as idle.
    """
    steps = run.steps
    idle_share, _ = run.idle_each(steps["start_ns"], steps["end_ns"])
    compiling_ns = steps["compile_ns"]
    idle_ns = np.minimum(np.nan_to_num(idle_share) * (steps["end_ns"] - steps["start_ns"]), compiling_ns).sum()
    otherwise_ns = run.present_ns - compiling_ns.sum()
    return float(np.clip(100 * (1 - (idle.idle_ns - idle_ns) / max(1, otherwise_ns)), 0, 100))


def _cores_of_others(run: Run) -> str:
    """Return which part of the cores other programs used, as a clause.

    "" where not all were busy, or it is not known.
    """
    cores = measure_cores(run, run.whole)
    used = f"{capitalized(cores.others)} used {min(cores.allowed, cores.of_others):.1f} of the {cores.allowed} cores"
    if cores.queued is not None:
        used += f", and this one's threads waited for one {percent(100 * cores.queued)} of their time"
    return used if cores.full and cores.others_compute else ""


def _unchecked(run: Run) -> str:
    """Return the sentence on what an all-clear without GPU samples did not check."""
    why = "GPU utilization was not measured" if run.used_gpus else "No GPU"
    waits = "" if run.steps.total("wait_known") else "waits for input and "
    calls = run.fit.get("python_in_steps") or {}
    parts = sorted((calls.get("parts") or {}).items(), key=lambda item: -item[1])
    # On a CPU the thread computes or waits for what does; where most of a step is in no known part, they say little.
    is_known = (calls.get("samples") or 0) >= MIN_SAMPLES.default and sum(share for _, share in parts) >= MOSTLY
    # Stack samples show the parts of a step.
    if is_known and not waits and not run.used_gpus and run.framework_facts.get("device") == "cpu":
        shares = ", ".join(f"{part} {percent(100 * share)}" for part, share in parts)
        return f"{why}, so only stack samples show {UNCHECKED}: {shares}."
    return f"{why}, so {waits}{UNCHECKED} {'were' if waits else 'was'} not checked."


def _others_pct(run: Run, idle: Idle) -> float:
    """Return how much more active the GPUs were over the run than they were for this training."""
    measured = [mean.value for gpu in idle.gpus if (mean := run.use(gpu, run.start_ns, run.end_ns)) is not None]
    return sum(measured) / len(measured) - idle.active_pct if measured else 0.0


def _largest(times: Mapping[str, float | None], wall: float) -> str:
    """Return the largest of these times as a clause with its share of `wall` seconds; "" if it is under a tenth."""
    seconds = {part: float(times.get(part) or 0) for part in _WENT_INTO}
    part = max(seconds, key=lambda name: seconds[name])
    clause = f", {percent(min(100.0, 100 * seconds[part] / max(1e-9, wall)))} {_WENT_INTO[part]}"
    return clause if seconds[part] > A_TENTH * wall else ""


def together(findings: Sequence[Mapping]) -> list[Mapping]:
    """Return findings of one title as one each: their losses added up, from the first step of them to the last."""
    kinds: dict[tuple[str, str], list[Mapping]] = {}
    for finding in findings:
        kinds.setdefault((finding["cause"], finding["title"]), []).append(finding)
    return [kind[0] if len(kind) == 1 or "start_step" not in kind[0] else _as_one(kind) for kind in kinds.values()]


def _as_one(spans: Sequence[Mapping]) -> Mapping:
    """Return spans of one title as a span from the first step to the last, with their losses added up.

    The severity (share 0-1) is the loss over the spans' time alone.
    """
    lost_s = sums(spans)["lost_s"]
    length_s = sum(span["lost_s"] / span["severity"] for span in spans if span["lost_s"] and span["severity"])
    return {
        **spans[0],
        "lost_s": lost_s,
        "severity": None if lost_s is None else round(lost_s / max(1e-9, length_s, lost_s), 4),
        "start_step": min(span["start_step"] for span in spans),
        "end_step": max(span["end_step"] for span in spans),
    }


class Announcer:
    """Decides which causes are established, and reports each once.

    A cause is established when it was present in `IN_A_ROW` consecutive results and has lost at
    least `LEAST_S` seconds and a tenth of the time it spans: symptoms of a run's first seconds
    (compilation, first fills) must not be reported. A cause of unknown cost (a GPU without work, a
    full memory) must persist for about as long: for `UNKNOWN_IN_A_ROW` results, 2 s apart or more.
    """

    IN_A_ROW = 3
    UNKNOWN_IN_A_ROW = 6
    LEAST_S = 10.0
    LEAST_SEVERITY = 0.1
    SOON_S = 60.0

    def __init__(self) -> None:
        self._streaks: dict[str, int] = {}
        self._announced: set[str] = set()

    def new(self, result: Mapping) -> list[Mapping]:
        """Return a finding of each cause that is established by one diagnosis and was not announced yet.

        Usually none.
        """
        candidates: dict[str, Mapping] = {}
        for finding in together([*result["spans"], *result["findings"]]):
            if finding.get("of_s") or finding["cause"] in _HALTS:  # said between fits, or at once
                continue
            enough = (finding["lost_s"] or 0) >= self.LEAST_S
            if finding["lost_s"] is None or (enough and finding["severity"] >= self.LEAST_SEVERITY):
                candidates.setdefault(finding["cause"], finding)
        self._streaks = {cause: self._streaks.get(cause, 0) + 1 for cause in candidates}
        new = [
            cause
            for cause, streak in self._streaks.items()
            if streak >= self._results_needed(candidates[cause]) and cause not in self._announced
        ]
        self._announced.update(new)
        return [candidates[cause] for cause in new]

    def _results_needed(self, finding: Mapping) -> int:
        """Return in how many results in a row a finding's cause must be present to be established."""
        unknown = finding["lost_s"] is None and finding["cause"] not in BLOCKING
        if finding["cause"] in _FORECASTS:  # memory is full soon: once is enough
            soon = (finding["evidence"].get("full_in_s") or self.SOON_S) < self.SOON_S
            return 1 if soon else self.IN_A_ROW  # a warning after the end is none
        return self.UNKNOWN_IN_A_ROW if unknown else self.IN_A_ROW


def news(finding: Mapping) -> str:
    """Return the line about a finding that is established while training continues: its cost, and what to do."""
    line = str(finding["title"])
    if finding["lost_s"]:
        line += f": {duration(finding['lost_s'])} lost so far"
        if "start_step" in finding:
            line += f", {percent(100 * finding['severity'])} of the time since step {finding['start_step']:,}"
    return f"{line}. {what_to_do(finding['advice'])}"
