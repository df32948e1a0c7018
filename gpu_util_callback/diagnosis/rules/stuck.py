"""Stuck: no step came for a long time in which one was due, and nothing computed."""

from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.spans import Range
from gpu_util_callback.diagnosis.rule import Advice, Finding, Findings, Rule
from gpu_util_callback.diagnosis.thresholds import Limits, Threshold
from gpu_util_callback.recording.manifest_facts import Standstill
from gpu_util_callback.words import duration, listed, waits_at


class Stuck(Rule):
    """The recorder saw no step for long, while the training thread waited outside validation and the like.

    It looks while the training runs, so the place is what it saw, and the time is measured. A process that
    computes is not stuck, however long its step takes.
    """

    cause = "stuck"
    title = "Stuck"
    look = "■", "red"
    sources = ("times of the steps", "stacks of the threads while no step comes")
    thresholds = {
        "no_step_s": Threshold(30, "fetching a shard or uploading a file takes seconds; who waits for longer looks up"),
        "times_p99": Threshold(20, "times the 99th percentile of the steps: slow ones among them are usual"),
    }
    unknown = "it was not watched for steps that do not come"
    halts = True

    def missing(self, run: Run) -> bool:
        return not run.manifest.get("step_watch")

    def find(self, run: Run, limits: Limits) -> Findings:
        facts = run.manifest["step_watch"]
        for number, standstill in enumerate(facts["standstills"]):
            newest = number == len(facts["standstills"]) - 1
            yield self._finding(run, standstill, still=newest and facts["still"])

    def _finding(self, run: Run, standstill: Standstill, still: bool) -> Finding:
        """Return the finding about one standstill; `still`: no step came after it yet.

        Its range, in ns since the epoch, ends with the run at the latest and is never empty. Evidence of None is not
        known.
        """
        start = min(standstill["start_ns"], run.end_ns - 1)
        end = max(start + 1, min(standstill.get("end_ns") or run.end_ns, run.end_ns))
        seconds, step = standstill["seconds"], standstill["step"]
        states = standstill.get("workers") or {}  # "alive", "stopped" or "dead" -> how many worker processes
        return self.finding(
            title=f"No step for {duration(seconds)}: {waits_at(standstill)}",
            where=Range(step, min(step + 1, max(step, run.end_step)), start, end),
            lost_ns=min(round(1e9 * seconds), end - start),
            evidence={
                "no_step_s": round(seconds, 1),
                "usual_step_ms": standstill.get("step_ms"),
                "standstill_at": standstill.get("place") or None,
                "gpu_active_meanwhile_pct": standstill.get("gpu_active_pct"),
                "worker_processes": ", ".join(f"{count} {state}" for state, count in states.items()) or None,
                "waits_for_ranks": standstill.get("collective") or None,
                "standstill_stacks": standstill.get("stacks"),
                "still_no_step": still or None,
            },
            threshold={"no_step_s": standstill.get("limit_s", 0.0)},
            advice=Advice(_advice(standstill)),
            pieces=[(start, end)],
            severity=min(1.0, 1e9 * seconds / max(1, run.wall_ns)),
        )


def _advice(standstill: Standstill) -> str:
    """Return the advice on a standstill, by what its threads and workers do."""
    states, stacks = standstill.get("workers") or {}, standstill.get("stacks")
    gone = [f"{states[state]} {state}" for state in ("stopped", "dead") if states.get(state)]
    text = "Look at what that line waits for."
    if standstill["thread"] == "lock":  # all threads wait for Python's lock
        text = "Let that C code give up Python's lock while it waits (ctypes.CDLL does, PyDLL does not)."
    elif gone:  # what is waited for will not come
        text = f"Of its worker processes {listed(gone)}: look at why; training waits for what they were to do."
    return f"{text} {stacks}, in the recording's folder, has the stacks of all threads." if stacks else text
