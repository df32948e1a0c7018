"""Time between the fits of a script: predictions, evaluations, building; by name."""

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from gpu_util_callback.diagnosis.advice.host import PREDICT_ADVICE
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.script import Script
from gpu_util_callback.diagnosis.rule import ESTIMATED, LEAST_GAIN, Advice, Evidence, Finding, Rule
from gpu_util_callback.diagnosis.thresholds import LEAST_S, MOSTLY_PCT, Limits, chosen

OUTSIDE = "fit outside its callbacks"
# Name of the longest part -> what limits the script; the necessary share is not measured.
_LIMITS = {
    "predict": "Most of it is the computation of predict: predict less often, or more at a time.",
    "evaluate": "Most of it is in evaluate: evaluate less often, or on fewer batches.",
    "building": "Most of it builds and compiles models. Can one model serve all fits?",
    "loading and saving": "Most of it loads and saves models: do so less often.",
    "calls of the model": "Most of it is in calls of the model. Is the function that makes them compiled?",
    OUTSIDE: "Most of it is in fit, around what callbacks see: fewer, longer fits need it less often.",
}
_OTHER = "Most of it is the program's own code, which is not looked into."


class BetweenFits(Rule):
    """A script with several fits spends most of its time between them.

    What passes there is known by sampling the stack of the thread that trains; the time in which a
    notebook or a prompt waits for its user is not counted.
    """

    cause = "between_fits"
    title = "Time between the fits"
    look = "⋯", "mauve"
    between_fits = True
    sources = ("times of the fits of this process", "stack samples between them")
    thresholds: ClassVar = {"between_pct": MOSTLY_PCT, "least_s": LEAST_S}
    unknown = "the process fitted once, or the time between its fits was not recorded"

    def missing(self, run: Run) -> bool:
        return not run.manifest.get("process")

    def find(self, run: Run, limits: Limits) -> Iterable[Finding]:
        script = Script.from_process(run.manifest.get("process"))
        if script is None or script.between < limits["least_s"]:
            return
        pct = 100 * script.between / script.wall_s
        if pct < limits["between_pct"]:
            return
        longest = script.longest
        evidence: Evidence = {
            "between_pct": round(pct, 1),
            "fits": script.fits,
            "longest_part": longest,
            "longest_part_pct": round(100 * script.between_s[longest] / script.between, 1),
        }
        if longest == "predict":
            evidence["predict_set_up_s"] = round(script.predict_set_up_s, 3)
        yield self.finding(
            title=f"{self.title}: most of it in {longest}",
            lost_ns=round(1e9 * script.between),
            confidence=ESTIMATED,
            evidence=evidence,
            threshold=chosen(limits, "between_pct"),
            advice=_advice(run, script),
            gpus=run.used_gpus,
            of_ns=round(1e9 * script.wall_s),
        )


def _advice(run: Run, script: Script) -> Advice:
    outside = script.between_s.get(OUTSIDE, 0.0)
    left_s = script.wall_s - script.predict_set_up_s
    if script.longest == "predict" and script.wall_s >= LEAST_GAIN * left_s:
        return replace(PREDICT_ADVICE, saves=script.predict_set_up_s / script.between)
    if (
        script.longest == "evaluate"
        and run.fit.get("epochs") == 1
        and script.wall_s >= LEAST_GAIN * (script.wall_s - outside)
    ):
        return Advice(
            "Do the fits continue one training, with an evaluate after each? If so, make it one call of fit, which "
            "evaluates after each epoch and sets nothing up again.",
            f"model.fit(..., epochs={script.fits}, validation_data=...)  # in place of fit and evaluate in a loop",
            # 40 fits of 47 steps took 17 and 16 s, one of 40 epochs 9 and 11 s, measured.
            saves=outside / script.between,
            question=True,
        )
    return Advice(_LIMITS.get(script.longest, _OTHER), "", 0.0)
