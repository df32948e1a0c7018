"""Host callback: the compiled step calls code of the host, and the device waits for it."""

from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.source import base_of
from gpu_util_callback.diagnosis.rule import Advice, Findings, Rule
from gpu_util_callback.diagnosis.thresholds import MATTERS_PCT, Limits


class HostCallback(Rule):
    """A trace shows prints, `py_function` or JAX callbacks inside the compiled steps.

    Lost is the time in which no GPU worked meanwhile; without a GPU in the trace, all of it.
    """

    cause = "host_callback"
    title = "The compiled step calls the host"
    look = "↩", "mauve"
    sources = ("host activity of a trace",)
    thresholds = {"host_callback_pct": MATTERS_PCT}
    unknown = "only a profiler trace shows calls from inside the compiled step"
    unknown_in_trace = "the trace shows nothing of the host"

    def missing(self, run: Run) -> bool:
        return run.source is None or not (len(run.steps) and run.source["host_traced"])

    def find(self, run: Run, limits: Limits) -> Findings:
        if run.source is None or (calls := run.source["host_calls"]) is None:
            return
        lost = calls["idle_ns"] if run.source["gpus"] else calls["total_ns"]
        pct = 100 * lost / max(1, run.steps.total("duration_ns"))
        if pct < limits["host_callback_pct"]:
            return
        yield self.finding(
            title=f"Calls to the host inside the compiled step take {pct:.0f} % of the {base_of(run.source)}",
            lost_ns=lost,
            evidence={"host_callback_pct": pct, "host_activity": calls["name"]},
            advice=_advice(run, calls["name"]),
            gpus=run.source["gpus"],
            severity=pct / 100,
        )


def _advice(run: Run, name: str) -> Advice:
    """Return the advice to leave out calls to the host; `name`: one that a trace shows."""
    of_jax, others = "jax.debug.print, pure_callback and io_callback", "tf.print, tf.py_function and tf.numpy_function"
    calls = of_jax if run.framework == "jax" else others
    return Advice(
        f"The compiled step waits for code on the host ({name}). Remove what is left from "
        f"debugging ({calls}), or return the value from the step and print it every hundredth time."
    )
