"""The recorded corpus through the real rule, flush by flush, as a recorder would see it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpu_util_callback import diagnosis
from harness.leaks.held_out import HeldOut
from harness.leaks.programs import Case
from harness.leaks.record import ANY, FILE, HELD_OUT_FILE, load

ORIGIN_NS = 1_700_000_000_000_000_000
FLUSHES = 10  # moments at which a run is judged
MACHINE = 24 << 30


@dataclass
class Outcome:
    """What was said of one run.

    Attributes:
        said_at: the share of the run after which it was first reported, None = never.
        onset_error: of the onset at the end of the run, as a share of the run.
        projected_error: of the step at which memory is full, as seen half-way.
        kind: of the growth, from the advice.
        title: of the finding.
    """

    case: Case | HeldOut
    said_at: float | None = None
    onset_error: float | None = None
    projected_error: float | None = None
    grows_with: str = ""
    title: str = ""
    findings: list[dict[str, Any]] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return (self.said_at is not None) == self.case.leaks


class Replay:
    """One recorded run as tables, cut into flushes.

    Args:
        name, run: as `record.load` has them.
    """

    def __init__(self, name: str, run: dict[str, Any]):
        self.name = name
        self.case = ANY[name]
        steps = {key: np.cumsum(values) for key, values in run["steps"].items()}
        self.steps = {
            "step": np.arange(len(steps["start_ns"])),
            **{key: values * (1 if key == "shape_id" else 100_000) for key, values in steps.items()},
        }
        self.steps["start_ns"] = self.steps["start_ns"] + ORIGIN_NS
        self.steps |= {
            key: np.full(len(self.steps["step"]), -1, np.int64) for key in ("input_wait_ns", "body_ns", "callbacks_ns")
        }
        self.phases = run["phases"]
        host = {key: np.cumsum(values).astype(np.float64) for key, values in run["host"].items()}
        self.host_ns = (host.pop("time") * 1e6).astype(np.int64) + ORIGIN_NS
        self.host = {
            key: values * (1 if key in ("python_blocks", "workers") else 16384) for key, values in host.items()
        }
        self.pipeline = run["pipeline"]
        self.facts = run["facts"]
        self.end_ns = int(self.steps["start_ns"][-1] + self.steps["duration_ns"][-1])
        self.end_ns = ORIGIN_NS + int(self.case.ends * (self.end_ns - ORIGIN_NS))

    @property
    def held(self) -> np.ndarray:
        """What the process and its workers hold, while it trains."""
        inside = (self.host_ns >= ORIGIN_NS) & (self.host_ns <= self.end_ns)
        workers = self.host.get("workers_memory_bytes")
        total = self.host["process_held_bytes"] + (0 if workers is None else workers)
        return total[inside]

    def limit(self) -> int:
        """The memory there is: a leak meets it as the run ends; twice what others need."""
        return int(self.held.max() * (1 if self.case.leaks else 2))

    def result_at(self, limit: int) -> Iterator[tuple[float, dict[str, Any]]]:
        """Yield the share of the run and the diagnosis after each flush."""
        facts = {
            **self.facts,
            "started_ns": ORIGIN_NS,
            "gpus": [],
            "machine": {"memory_total_bytes": MACHINE, "memory_limit_bytes": limit},
        }
        evidence = diagnosis.Evidence(ORIGIN_NS)
        before = 0
        for flush in range(1, FLUSHES + 1):
            now = ORIGIN_NS + (self.end_ns - ORIGIN_NS) * flush // FLUSHES
            evidence.add(*self._between(before, now))
            before = now
            yield flush / FLUSHES, diagnosis.judge(diagnosis.Run(facts, evidence, now, ended=flush == FLUSHES))

    def _between(self, before: int, now: int) -> tuple[dict[str, Any], dict[str, Any]]:
        ends = self.steps["start_ns"] + self.steps["duration_ns"]
        inside = (ends > before) & (ends <= now)
        tables = {"steps": {key: values[inside] for key, values in self.steps.items()}}
        phases = [row for row in self.phases if before < ORIGIN_NS + row[3] * 100_000 <= now]
        if phases:
            tables["phases"] = {
                "kind": np.array([row[0] for row in phases], object),
                "name": np.array([row[1] for row in phases], object),
                "start_ns": ORIGIN_NS + np.array([row[2] for row in phases]) * 100_000,
                "end_ns": ORIGIN_NS + np.array([row[3] for row in phases]) * 100_000,
                "step": np.array([row[4] for row in phases]),
                "self_ns": np.array([(row[3] - row[2]) * 100_000 for row in phases]),
                "account": np.array(["" for row in phases], object),
            }
        if self.pipeline and not before:
            tables["pipeline"] = self._stages(now)
        at = (self.host_ns > before) & (self.host_ns <= now)
        samples = {key: values[at] for key, values in self.host.items()}
        return tables, {"host": {"time_ns": self.host_ns[at], **samples}}

    def _stages(self, now: int) -> dict[str, Any]:
        count = len(self.pipeline)
        numbers = {
            "elements": 100,
            "processing_ns": 1000,
            "parallelism": 1.0,
            "buffered": np.nan,
            "buffer_limit": np.nan,
        }
        return {
            "time_ns": np.full(count, now),
            "step": np.full(count, 10),
            "which": np.array(["train"] * count, object),
            "node": np.arange(count),
            "parent": np.arange(count) - 1,
            "stage": np.array([stage for stage, _ in self.pipeline], object),
            "op": np.array([op for _, op in self.pipeline], object),
            "flags": np.array([""] * count, object),
            **{name: np.full(count, value) for name, value in numbers.items()},
        }


def judge(name: str, run: dict[str, Any], limit: int | None = None) -> Outcome:
    """Return what is said of a recorded run."""
    replay = Replay(name, run)
    case = replay.case
    outcome = Outcome(case)
    full_at = _full_at(replay)
    for share, result in replay.result_at(limit or replay.limit()):
        found = [one for one in result["findings"] if one["cause"] == "memory_growth"]
        if not found:
            continue
        evidence = found[0]["evidence"]
        outcome.findings, outcome.title = found, found[0]["title"]
        outcome.grows_with = evidence.get("grows_with") or ""
        outcome.said_at = share if outcome.said_at is None else outcome.said_at
        steps = len(replay.steps["step"])
        if case.leaks:
            outcome.onset_error = abs(evidence["since_step"] - case.onset) / steps
            if outcome.projected_error is None and share >= (1 + case.onset / steps) / 2:
                projected = evidence.get("full_at_step")
                if projected is not None and full_at:
                    outcome.projected_error = abs(projected - full_at) / full_at
    return outcome


def _full_at(replay: Replay) -> float | None:
    """The step at which the limit was met, by the readings themselves."""
    if not replay.case.leaks:
        return None
    inside = (replay.host_ns >= ORIGIN_NS) & (replay.host_ns <= replay.end_ns)
    at = replay.host_ns[inside][int(np.argmax(replay.held >= 0.995 * replay.held.max()))]
    return float(np.searchsorted(replay.steps["start_ns"], at))


def outcomes(file: Path = FILE) -> list[Outcome]:
    """Judge all runs of a file; healthy ones twice, with little memory and with much."""
    found = []
    for name, run in load(file).items():
        one = judge(name, run)
        if not one.case.leaks and one.right:
            one = judge(name, run, MACHINE)
        found.append(one)
    return found


def table() -> int:
    """Print the outcomes, and the shares that count, of the corpus and of what is held out."""
    held_out = outcomes(HELD_OUT_FILE)
    parts: dict[int, list[Outcome]] = {}
    for one in sorted(held_out, key=lambda one: one.case.part):
        parts.setdefault(one.case.part, []).append(one)
    return max(
        _table("corpus", outcomes()), *(_table(f"held out, part {part}", found) for part, found in parts.items())
    )


def _table(title: str, found: list[Outcome]) -> int:
    print(f"{title + ': run':<48}{'said at':>8}{'onset off':>11}{'full off':>10}  grows with")
    for one in found:
        print(
            f"{one.case.name:<48}{_pct(one.said_at):>8}{_pct(one.onset_error):>11}"
            f"{_pct(one.projected_error):>10}  {one.grows_with or '-'}"
            f"{'' if one.right else '  WRONG'}"
        )
    leaks = [one for one in found if one.case.leaks]
    healthy = [one for one in found if not one.case.leaks]
    seen = [one for one in leaks if one.right]
    recall = len(seen) / max(1, len(leaks))
    alarms = sum(not one.right for one in healthy)
    onset = [one.onset_error for one in seen if one.onset_error is not None]
    full = [one.projected_error for one in seen if one.projected_error is not None]
    print(
        f"\n{len(leaks)} leaks, recall {recall:.3f}; {len(healthy)} healthy, {alarms} false "
        f"alarms; onset within 5 % of the run: {_within(onset, 0.05)}; full step within 15 % "
        f"half-way: {_within(full, 0.15)}\n"
    )
    return int(recall < 0.95 or alarms > 0)


def _pct(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _within(errors: list[float], most: float) -> str:
    return f"{sum(error <= most for error in errors)} of {len(errors)}"
