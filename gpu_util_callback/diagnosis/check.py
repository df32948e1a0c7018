"""Limits for CI: the runs that break them, with reasons."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpu_util_callback.diagnosis.compare import active_pct, time_pct
from gpu_util_callback.diagnosis.report_types import Failure
from gpu_util_callback.diagnosis.rule import all_findings, own_findings
from gpu_util_callback.diagnosis.rules import cause_beside
from gpu_util_callback.diagnosis.verdict import together
from gpu_util_callback.words import duration, percent, steps


@dataclass(frozen=True, slots=True)
class Check:
    """Limits that runs must keep to; percentages of the wall time. None = not checked.

    Without any limit, a run fails on every cause that was found.
    """

    min_utilization: float | None = None
    max_input_wait: float | None = None
    max_stalls: float | None = None
    max_lost: float | None = None
    max_step_ms: float | None = None
    max_stuck_s: float | None = None
    forbid: list[str] = field(default_factory=list)

    @property
    def limited(self) -> bool:
        numbers = (self.min_utilization, self.max_input_wait, self.max_stalls, self.max_lost)
        times = (self.max_step_ms, self.max_stuck_s)
        return any(number is not None for number in numbers + times) or bool(self.forbid)

    def refuses(self, cause: str) -> bool:
        """Return whether this cause must not be found."""
        return cause in self.forbid or not self.limited


def failures(report: Mapping, check: Check) -> list[Failure]:
    """Return one failure per broken limit of a report.

    What was not measured breaks its limit. A run without steps, or with unreadable rows, breaks those on causes.
    Findings between the workers of a job are reported with the worker they are about.
    """
    broken_rules: list[Failure] = [
        {"run": run["run"], "id": run["id"], "reason": reason}
        for run in report["runs"]
        for broken_limits in (_low_utilization, _high_shares, _high_loss, _slow_steps, _stuck, _refused_causes)
        for reason in broken_limits(run, check)
    ]
    for session in report["sessions"]:
        members = [run for run in report["runs"] if run["session"] == session["session"]]
        for finding in session["findings"]:
            if check.refuses(finding["cause"]):
                # A worker that the finding is about.
                of = next((run for run in members if run["rank"] in finding["ranks"]), members[0])
                broken_rules.append({"run": of["run"], "id": of["id"], "reason": _finding_text(finding)})
    return broken_rules


def _unjudged(run: Mapping) -> str:
    """Return why causes cannot be judged in this run; "" if they can."""
    if not run["steps"]:
        return "no training step was recorded"
    problems = run.get("problems")
    return f"not all of it can be read: {problems[0]['message']}" if problems else ""


def _low_utilization(run: Mapping, check: Check) -> Iterable[str]:
    """Yield why a run breaks the limit on its GPUs' utilization, %."""
    if check.min_utilization is None:  # not checked
        return
    active = active_pct(run)
    needed = f"at least {percent(check.min_utilization)} required"
    if run["gpus"] and not any(gpu["used_by_framework"] for gpu in run["gpus"]):
        yield f"no GPU was in use, {needed}"
    elif active is None:
        yield f"GPU utilization was not measured, {needed}"
    elif active < check.min_utilization:
        yield f"GPU active {percent(active)} of the time, {needed}"


def _high_shares(run: Mapping, check: Check) -> Iterable[str]:
    """Yield why a run breaks the limits on shares of its time, %."""
    times = time_pct(run)
    for limit, names, word in (
        (check.max_input_wait, ("input_wait",), "waiting for input"),
        (check.max_stalls, ("validation", "callbacks"), "validation and callbacks"),
    ):
        if limit is None:
            continue
        if any(name not in times for name in names):  # not measured: it breaks the limit
            yield f"{word}: not measured, at most {percent(limit)} allowed"
            continue
        share = sum(times[name] for name in names)
        if share > limit:
            yield f"{word} {percent(share)} of the time, at most {percent(limit)} allowed"


def _high_loss(run: Mapping, check: Check) -> Iterable[str]:
    """Yield why a run breaks the limit on lost time, % of its wall time, or why its causes cannot be judged."""
    unjudged = _unjudged(run)
    asks_for_causes = check.max_lost is not None or check.forbid or not check.limited
    if unjudged and asks_for_causes:
        yield unjudged
    elif check.max_lost is not None:
        lost_s = sum(finding["lost_s"] or 0 for finding in own_findings(run))
        share = 100 * lost_s / max(1e-9, run["wall_s"] or 0)
        if share > check.max_lost:
            yield f"lost {percent(share)} of the time, at most {percent(check.max_lost)} allowed"


def _slow_steps(run: Mapping, check: Check) -> Iterable[str]:
    """Yield why a run breaks the limit on its median step, ms; without steps it does."""
    usual_ms, most_ms = run["step_ms"]["p50"], check.max_step_ms
    if most_ms is not None and usual_ms is None:
        yield "step time was not measured"
    elif most_ms is not None and usual_ms > most_ms:
        yield f"{usual_ms:.3g} ms a step, at most {most_ms:.3g} ms allowed"


def _stuck(run: Mapping, check: Check) -> Iterable[str]:
    """Yield why a run breaks the limit on the longest time without a step, s; not measured counts as broken."""
    stuck_s, most_s = run["stuck_s"], check.max_stuck_s
    if most_s is not None and (stuck_s is None or stuck_s > most_s):
        took = "time without a step was not measured" if stuck_s is None else f"no step for {duration(stuck_s)}"
        yield f"{took}, at most {duration(most_s)} allowed"


def _refused_causes(run: Mapping, check: Check) -> Iterable[str]:
    """Yield one reason for each finding of a run whose cause is refused, with its steps."""
    for finding in together(all_findings(run)):
        if check.refuses(finding["cause"]):
            spanned = "start_step" in finding
            where = f", {steps(finding['start_step'], finding['end_step'], run['steps'])}" if spanned else ""
            yield f"{_finding_text(finding)}{where}"


def _finding_text(finding: Mapping) -> str:
    """Return a finding's title behind the name of its cause, as `--forbid` takes it."""
    return ": ".join(filter(None, [cause_beside(finding), finding["title"]]))
