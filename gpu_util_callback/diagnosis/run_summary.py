"""`summary.json` beside a recording: the run as `gpu-util total` counts it, in at most 2 kB.

Written when the recording ends, so that a survey of thousands of runs reads one small file each. A recording
without it (live, killed, written again, by another version) is summarized from its manifest.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from gpu_util_callback.diagnosis.rule import own_findings
from gpu_util_callback.diagnosis.rules import RULES
from gpu_util_callback.recording.manifest_facts import AdviceFacts, Facts, RunLoss, RunSummary, as_declared
from gpu_util_callback.recording.work import stated_samples

MAX_BYTES = 2048
IDLE_CAUSES = frozenset(rule.cause for rule in RULES if rule.unused)

# Facts of the manifest that a summary has, too, most of them as they are.
_SHARED = frozenset(RunSummary.__annotations__).intersection(Facts.__annotations__)


def summary_of(recording: Any, status: str, judged: Mapping[str, Any]) -> RunSummary:
    """Return the summary of a run; None in it = not known.

    Args:
        recording: a `Recording`, or the `Recorded` of a manifest.
        status: "ended", "lost", "live", ...
        judged: its diagnosis.
    """
    facts, account, steps = recording.facts, recording.account, recording.step_count
    fit, model = facts.get("fit") or {}, facts.get("model") or {}
    times = account["time_s"]
    findings = own_findings(judged)  # the hours that are summed up do not include the time between fits
    gpus, idle = _gpus_held(facts, judged["findings"])
    active_pct = judged.get("gpu_active_pct") or {}
    summary = {
        **{name: facts.get(name) for name in _SHARED},
        "world_size": facts.get("world_size") or 1,
        "fits": facts.get("fits") or 1,
        "process": [facts.get("pid"), facts.get("process_started")],
        "parameters": model.get("parameters"),
        "backend": (facts.get("framework") or {}).get("backend"),
        "batch_size": stated_samples(facts),
        "begins": {
            "epoch": fit.get("first_epoch"),
            "iteration": fit.get("first_iteration"),
            "steps_per_epoch": fit.get("steps_per_epoch"),
        },
        "status": status,
        "start_ns": recording.start_ns,
        "end_ns": recording.end_ns,
        "wall_s": account["wall_s"],
        "time_s": dict(times),
        "steps": steps,
        "gpus": gpus,
        "idle_gpus": idle,
        "active": [round(active_pct[index] / 100, 6) for index in gpus if active_pct.get(index) is not None],
        "lost": _lost(findings),
        "advice": _first_advice(findings),
        "rules_version": judged.get("rules_version"),
        "judged": bool(steps and times),
        "imported": "source" in facts,
    }
    return cast(RunSummary, summary)


def summary_as_diagnosed(recording: Any, status: str) -> RunSummary | None:
    """Return the summary of a run from its stored diagnosis; None where its manifest lacks something."""
    judged: Mapping[str, Any] = recording.stored or {}
    is_complete = all(recording.facts.get(name) is not None for name in ("started_ns", "account", "rows"))
    return summary_of(recording, status, judged) if "verdict" in judged and is_complete else None


def written(summary: RunSummary) -> bytes | None:
    """Return the content of the file; None for a run that does not fit into it, such as one with 64 GPUs.

    Each cause's advice is kept as far as there is room, that which saves most first.
    """
    not_null = {name: value for name, value in summary.items() if value is not None}
    by_gain = sorted(summary["advice"], key=lambda cause: -(summary["lost"][cause]["saves_s"] or 0))
    for count in range(len(by_gain), -1, -1):  # advice on as many causes as fit, from all down to none
        advice = {cause: summary["advice"][cause] for cause in by_gain[:count]}
        data = json.dumps({**not_null, "advice": advice}, separators=(",", ":"), allow_nan=False).encode()
        if len(data) <= MAX_BYTES:
            return data if count or not by_gain else None
    return None


def read_summary(data: bytes) -> RunSummary | None:
    """Return the summary in a file; None where it is not one, whole and as declared (type by type)."""
    try:
        summary = as_declared(RunSummary, json.loads(data))
    except (ValueError, RecursionError):
        return None
    if summary is None or len(summary["process"]) != 2:
        return None
    return cast(RunSummary, dict.fromkeys(RunSummary.__annotations__) | summary)


def _gpus_held(facts: Facts, findings: Sequence[Mapping]) -> tuple[dict[str, str], dict[str, str]]:
    """Return index -> model of the GPUs that the run held, and index -> cause of those that idled all the time.

    GPUs that the framework did not use count where a scheduler had given them to the job: elsewhere, others may have
    used them.
    """
    idle_causes = {
        str(gpu): finding["cause"] for finding in findings if finding["cause"] in IDLE_CAUSES for gpu in finding["gpus"]
    }
    models: dict[str, str] = {}
    for gpu in facts.get("gpus") or ():
        index = str(gpu["index"])
        if gpu.get("used_by_framework") or (index in idle_causes and facts.get("scheduler")):
            models[index] = gpu.get("name") or "unknown GPU"
    return models, {index: cause for index, cause in idle_causes.items() if index in models}


def _lost(claims: Sequence[Mapping]) -> dict[str, RunLoss]:
    """Return each cause's title, the seconds of the run that it cost, and those that its advice saves at most.

    An answer of yes to each question is assumed. The times are None where none of its findings knows them.
    """
    costs: dict[str, RunLoss] = {}
    for claim in claims:
        cost = costs.setdefault(claim["cause"], {"title": claim["title"], "lost_s": None, "saves_s": None})
        if claim["lost_s"] is not None:
            _, most_s = claim.get("saves_range_s") or (0.0, claim.get("saves_s") or 0.0)
            # No upper end: no more than is lost.
            saves = claim["lost_s"] if most_s is None else min(most_s, claim["lost_s"])
            cost["lost_s"] = (cost["lost_s"] or 0.0) + claim["lost_s"]
            cost["saves_s"] = (cost["saves_s"] or 0.0) + saves
    return costs


def _first_advice(claims: Sequence[Mapping[str, Any]]) -> dict[str, AdviceFacts]:
    """Return each cause's advice, that of its most costly finding."""
    first: dict[str, AdviceFacts] = {}
    for claim in sorted(claims, key=lambda claim: -(claim["lost_s"] or 0)):
        first.setdefault(claim["cause"], cast(AdviceFacts, dict(claim["advice"])))
    return first
