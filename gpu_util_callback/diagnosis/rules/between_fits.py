"""Time between the fits of a script: predictions, evaluations, building; by name."""

from dataclasses import replace

from gpu_util_callback.diagnosis.advice import host as host_advice
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.script import Script
from gpu_util_callback.diagnosis.rule import ESTIMATED, LEAST_GAIN, Advice, Evidence, Findings, Rule
from gpu_util_callback.diagnosis.thresholds import DOUBLE, LEAST_S, MOSTLY, MOSTLY_PCT, Limits
from gpu_util_callback.words import duration

OUTSIDE, OTHER = "fit outside its callbacks", "other code"
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
    thresholds = {"between_pct": MOSTLY_PCT, "least_s": LEAST_S}
    unknown = "the process fitted once, or the time between its fits was not recorded"

    def missing(self, run: Run) -> bool:
        return not run.manifest.get("process")

    def find(self, run: Run, limits: Limits) -> Findings:
        """Yield the finding about the time between the fits, if it is most of the script's."""
        script = Script.from_process(run.manifest.get("process"))
        if script is None or script.between < limits["least_s"]:
            return
        pct = 100 * script.between / script.wall_s
        if pct < limits["between_pct"]:
            return
        longest, (part, advice) = script.longest, _advice(run, script)
        evidence: Evidence = {
            "between_pct": round(pct, 1),
            "fits": script.fits,
            "longest_part": longest,
            "longest_part_pct": round(100 * script.between_s[longest] / script.between, 1),
            "predict_set_up_s": round(script.predict_set_up_s, 3) if longest == "predict" else None,
            "own_python_at": script.other_at if part == OTHER else None,
        }
        # The remedy may be about another part than the longest.
        share_words = "most" if part == longest else duration(script.between_s[part])
        yield self.finding(
            title=f"{self.title}: {share_words} of it in {part}",
            lost_ns=round(1e9 * script.between),
            confidence=ESTIMATED,
            evidence=evidence,
            advice=advice,
            of_ns=round(1e9 * script.wall_s),
        )


def _advice(run: Run, script: Script) -> tuple[str, Advice]:
    """Return the part of the time between fits whose remedy saves most, and that remedy.

    Where none gains enough, it is the longest part, with what limits it.
    """
    remedies = [
        ("predict", replace(host_advice.PREDICT_ADVICE, saves=script.predict_set_up_s / script.between)),
        ("evaluate", _one_fit_advice(run, script) or _evaluate_less_advice(script)),
        (OTHER, _load_ahead_advice(script)),
    ]
    remedies_that_help = [(part, advice) for part, advice in remedies if _saved_share(script, advice) >= LEAST_GAIN]
    limit = script.longest, Advice(_LIMITS.get(script.longest, _OTHER))
    return max(remedies_that_help, key=lambda remedy: remedy[1].saves, default=limit)


def _saved_share(script: Script, advice: Advice) -> float:
    return script.wall_s / max(1e-9, script.wall_s - advice.saves * script.between)


def _one_fit_advice(run: Run, script: Script) -> Advice | None:
    """Return the advice to make one fit of several fits on the same data, each followed by an evaluation.

    None if not.
    """
    outside_s = script.between_s.get(OUTSIDE, 0.0)
    is_same_data = run.fit.get("epochs") == 1 and script.longest == "evaluate" and script.inputs in (None, 1)
    advice = Advice(
        "Do the fits continue one training, with an evaluation after each? If so, make it one call of fit, which "
        "evaluates after each epoch and sets nothing up again.",
        f"model.fit(..., epochs={script.fits}, validation_data=...)  # in place of fit and evaluate in a loop",
        # 40 fits of 47 steps took 17 and 16 s, one of 40 epochs 9 and 11 s, measured.
        saves=outside_s / script.between,
        question=True,
        proof="fits_and_evaluates",
    )
    return advice if is_same_data and _saved_share(script, advice) >= LEAST_GAIN else None


def _evaluate_less_advice(script: Script) -> Advice:
    """Return the advice to evaluate on half of the data, or after every second fit.

    It saves half of evaluate's share (0-1) of the time between fits.
    """
    evaluate_s = script.between_s.get("evaluate", 0.0)
    return Advice(
        f"evaluate takes {duration(evaluate_s)} of {duration(script.wall_s)}. Is one after every second fit enough, or "
        "one on half of the data? If so, evaluate that much less.",
        "if number % 2 == 0:  # of the fit\n    model.evaluate(...)",
        saves=evaluate_s / DOUBLE / script.between,
        question=True,
        leaves_out=True,
        proof="evaluates_less",
    )


def _load_ahead_advice(script: Script) -> Advice:
    """Return the advice to load the next fit's data on a thread.

    It saves nothing if no line holds most of that code.
    """
    is_one_line = script.other_at_s >= MOSTLY * script.between_s.get(OTHER, 0.0)
    function = script.other_at.partition(" ")[0].rpartition(".")[2]
    load = function if function.isidentifier() else "load"
    return Advice(
        f"{duration(script.other_at_s)} pass at {script.other_at}. Does that make data for the next fit? If so, make "
        "what is alike for all fits once, before the first, or let a thread do it while this one trains.",
        "import concurrent.futures\npool = concurrent.futures.ThreadPoolExecutor(1)\n"
        f"coming = pool.submit({load}, ...)  # before the loop\n"
        f"data, coming = coming.result(), pool.submit({load}, ...)  # before each fit, for the next one",
        saves=min(script.other_at_s, script.fits_s) / script.between if is_one_line else 0.0,
        question=True,
        proof="next_data",
    )
