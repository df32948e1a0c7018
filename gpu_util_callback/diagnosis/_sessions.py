"""Ranks of one job side by side: whose input or callbacks hold all the others back."""

from collections.abc import Mapping, Sequence
from statistics import median

__all__ = ["session_findings"]

# Where a worker's own time may be longer than the others', what it is called, and what to do.
_PARTS = {
    "input_wait": (
        "its input is slow",
        "Every step waits for the slowest worker. Worker {rank} waits {ms:.3g} ms a step for its "
        "input, the others {others:.3g} ms: look at its disk, its network and its share of the "
        "files.",
    ),
    "callbacks": (
        "its callbacks take long",
        "Every step waits for the slowest worker. Callbacks of worker {rank} take {ms:.3g} ms a "
        "step, of the others {others:.3g} ms: let another thread do that work.",
    ),
}


def session_findings(runs: Sequence[Mapping]) -> list[dict]:
    """Findings about the ranks of one session; empty for a process on its own.

    Args:
        runs: the run objects of the report, one per rank.
    """
    ranked = [run for run in runs if run["rank"] is not None and run["steps"] and run["wall_s"]]
    if len({run["rank"] for run in ranked}) < 2:
        return []
    limit = ranked[0]["thresholds"]["imbalance"]["worker_wait_pct"]
    found = []
    for part, (word, text) in _PARTS.items():
        spent = {run["rank"]: run["time_s"].get(part) for run in ranked}
        if any(seconds is None for seconds in spent.values()):
            continue
        worst = max(ranked, key=lambda run: spent[run["rank"]])
        rank = worst["rank"]
        others = median(seconds for other, seconds in spent.items() if other != rank)
        lost = spent[rank] - others
        severity = lost / worst["wall_s"]
        if 100 * severity < limit:
            continue
        ms, usual = 1e3 * spent[rank] / worst["steps"], 1e3 * others / worst["steps"]
        found.append({
            "id": f"imbalance:worker{rank}.{part}",
            "cause": "imbalance",
            "title": f"Worker {rank} holds the others back: {word}",
            "lost_s": round(lost, 6),
            "severity": round(min(1.0, severity), 4),
            "confidence": "measured",
            "evidence": {
                "worker": rank,
                "host": worst["host"],
                "worker_wait_pct": round(100 * severity, 1),
                "ms_per_step": round(ms, 3),
                "others_ms_per_step": round(usual, 3),
                "workers": len(ranked),
            },
            "threshold": {"worker_wait_pct": limit},
            "advice": {"text": text.format(rank=rank, ms=ms, others=usual), "code": ""},
            "gpus": [],
            "ranks": [rank],
        })  # fmt: skip
    return sorted(found, key=lambda finding: -finding["lost_s"])
