"""Runs side by side: changes, causes that went away, and promises kept."""

import re
from collections.abc import Mapping, Sequence

from gpu_util_callback.diagnosis.report_types import ComparedRun, Comparison, RunReport, Since
from gpu_util_callback.diagnosis.rule import all_findings, own_findings
from gpu_util_callback.diagnosis.rules import RULE_OF, part_of
from gpu_util_callback.diagnosis.thresholds import A_TWENTIETH, LEAST_S, MOSTLY
from gpu_util_callback.diagnosis.verdict import gain_of, saves_range
from gpu_util_callback.recording.work import stated_samples
from gpu_util_callback.redaction import hashed_script


def comparison(runs: Sequence[Mapping]) -> Comparison:
    """Compare the first run, the baseline, with each of the runs (itself included): its times, causes and speed."""
    base = runs[0]
    before = _causes(base)
    rows: list[ComparedRun] = []
    for run in runs:
        causes = _causes(run)
        rows.append(
            {
                "id": run["id"],
                "run": run["run"],
                "session": run["session"],
                "status": run["status"],
                "steps": run["steps"],
                "ms_per_step": run["step_ms"]["mean"],
                "batch_size": stated_samples(run),
                "ms_per_sample": ms_per_sample(run),
                "speed": _speed(base, run),
                "gpu_active_pct": active_pct(run),
                "time_pct": time_pct(run),
                "lost_s": round(sum(finding["lost_s"] or 0 for finding in own_findings(run)), 6),
                "causes": causes,
                "unreadable": bool(run.get("problems")),
                "gone": [cause for cause in before if cause not in causes],
                "new": [cause for cause in causes if cause not in before],
            }
        )
    return {"baseline": base["id"], "runs": rows}


def add_promises(runs: Sequence[RunReport]) -> None:
    """Set each run's `since`: the previous run of the same job, the promised and the actual gain.

    Runs belong to the same job if model size (parameters), framework, script and arguments agree, whatever
    run and model are called; if runs have one name, scripts may be unknown, and model names must agree (but for the
    number Keras appends). Jobs with different user-given names, numbers of workers or GPUs are different jobs.
    `since` stays None for the first run, where no cause with a known cost went away, and where the
    run is too short to judge. Both numbers are about the whole run, as its verdict is.

    Args:
        runs: of one report, oldest first.
    """
    latest: dict[tuple, dict[_Job, RunReport]] = {}  # the newest run of each job
    for run in runs:
        run["since"] = None
        key = _job_identity(run)
        if key is None:  # the model is not known
            continue
        script = hashed_script(run.get("script"))
        name = re.sub(r"_\d+$", "", str((run.get("model") or {}).get("name") or ""))
        by_job = latest.setdefault(key, {})
        # Older recordings and notebooks do not record a script.
        gpus = frozenset(gpu.get("name") for gpu in run.get("gpus") or () if gpu["used_by_framework"])
        job = script, name, gpus
        alike = [
            candidate
            for its_job, candidate in by_job.items()
            if _same_job(its_job, job) and _may_follow(candidate, run) and _same_program(candidate, run)
        ]
        previous = max(alike, key=lambda candidate: candidate["start_ns"] or 0, default=None)
        if previous is not None and previous["session"] != run["session"]:  # not a rank of the same training
            run["since"] = _outcome_of_promise(previous, run)
        if run["steps"]:
            by_job[job] = run


_Job = tuple[str | None, str, frozenset]  # script (None = not recorded), the model's name, the GPUs' names


def _same_job(one: _Job, other: _Job) -> bool:
    """Return True if two jobs have the same script and GPUs as far as these are known, else the same model."""
    if None in (one[0], other[0]):  # a script is unknown: the models' names
        same_program = one[1] == other[1]
    else:
        same_program = one[0] == other[0]
    same_gpus = one[2] == other[2] or not one[2] or not other[2]  # unknown GPUs count as the same
    return same_program and same_gpus


def _same_program(previous: Mapping, run: Mapping) -> bool:
    """Return True if a run may be a changed version of another, and not its neighbour in a sweep.

    Runs of one name are; others only as the same fit of one script with the same arguments: else they may be the next
    seed or learning rate, as may those of a notebook.
    """
    if previous["run"] == run["run"]:
        return True
    are_known = all(one.get(name) for one in (previous, run) for name in ("script", "arguments"))
    return are_known and all(previous.get(name) == run.get(name) for name in ("arguments", "fit_index"))


def _may_follow(previous: Mapping, run: Mapping) -> bool:
    """Return whether a run may be a changed version of another: no other trial, nor at once."""
    trials = [(member.get("trial_of"), member.get("trial")) for member in (previous, run)]
    ended_ns = (previous["start_ns"] or 0) + 1e9 * (previous["wall_s"] or 0)
    return trials[0] == trials[1] and ended_ns <= (run["start_ns"] or ended_ns)


def _outcome_of_promise(previous: Mapping, run: Mapping) -> Since | None:
    """Return the promised and the actual gain between two runs of one job; None if it cannot be judged.

    Only the parts of the run that lost time count: the steps, and the stalls if some of them went away. Changes
    elsewhere (a longer validation) do not matter.
    """
    now = _causes(run)
    resolved = [
        finding
        for finding in own_findings(previous)
        if finding["cause"] not in now and _would_show(finding, previous, run) and _cost_fell(finding, previous, run)
    ]
    stalls = any(_between_steps(finding) for finding in resolved)
    old_s, new_s = _training_s(previous, stalls), _training_s(run, stalls)
    if not resolved or not old_s or not new_s:  # no cause with a known cost went away, or a time is not known
        return None
    # The old run at the new pace: only the parts that were promised to change are replaced.
    replaced_s = new_s * _samples(previous, run) / _samples(run, previous)
    whole_s = max(previous["wall_s"] or 0.0, old_s)
    gains = (gain_of(whole_s, bound) for bound in saves_range(resolved))
    actual_gain = round(whole_s / max(1e-9, whole_s - old_s + replaced_s), 2)
    return {
        "id": previous["id"],
        "run": previous["run"],
        "gone": sorted({finding["cause"] for finding in resolved}),
        "estimated": [None if gain is None else round(gain, 2) for gain in gains],
        "got": actual_gain,
        "slower": actual_gain < 1 - A_TWENTIETH,
    }


def _between_steps(finding: Mapping) -> bool:
    rule = RULE_OF.get(finding["cause"])
    return rule is not None and rule.between_steps


def _would_show(finding: Mapping, previous: Mapping, run: Mapping) -> bool:
    """Return True if a run is long enough to show a cause of the previous run, had it continued at the old rate."""
    relative_samples = _samples(run, previous) / max(1.0, _samples(previous, run))
    if (finding["lost_s"] or 0) * relative_samples < LEAST_S.default:
        return False
    # Causes at the ends of epochs show only in a run with such an end.
    epochs = (run.get("fit") or {}).get("epochs") or 0
    at_epoch_ends = _between_steps(finding) or "setup" in finding.get("id", "")
    return not at_epoch_ends or relative_samples >= MOSTLY or (run["status"] == "ended" and epochs > 1)


def _cost_fell(finding: Mapping, previous: Mapping, run: Mapping) -> bool:
    """Return True if most of a finding's cost is also gone from the training thread's account, or that is unknown.

    A cause just above its threshold may fall just below it with nothing changed.
    """
    part = part_of(finding)
    before_s, after_s = ((member["time_s"] or {}).get(part) for member in (previous, run))
    if before_s is None or after_s is None:
        return True
    relative_samples = _samples(run, previous) / max(1.0, _samples(previous, run))
    return after_s < relative_samples * (before_s - MOSTLY * (finding["lost_s"] or 0))


def _training_s(run: Mapping, stalls: bool) -> float:
    """Return the seconds in steps without compilation, plus the stalls between them if `stalls`."""
    times = run["time_s"]
    seconds = (run["step_ms"]["mean"] or 0.0) * run["steps"] / 1e3 - (times.get("compile") or 0.0)
    if stalls:
        seconds += (times.get("validation") or 0.0) + (times.get("callbacks") or 0.0)
    return max(0.0, seconds)


def _samples(run: Mapping, other: Mapping) -> float:
    """Return the samples of a run, or its steps unless both runs know their batch size."""
    size = stated_samples(run)
    return run["steps"] * (size if size and stated_samples(other) else 1)


def _job_identity(run: Mapping) -> tuple | None:
    """Return what runs of one job have in common, as a key; None if the model is not known."""
    model, framework = run.get("model") or {}, run.get("framework") or {}
    if model.get("parameters") is None:
        return None
    # Only a user-given name is stable: launchers give another one at each start.
    job_name = run.get("job") if run.get("job_source") == "argument" else None
    backend = framework.get("backend") or framework.get("name")
    return backend, model["parameters"], run.get("rank"), run.get("world_size") or 1, job_name


def _speed(base: Mapping, run: Mapping) -> float | None:
    """Return the speedup over the baseline, over the whole time except compilation; None if a time is unknown."""
    old, new = _seconds_per_step(base), _seconds_per_step(run)
    if not old or not new:
        return None
    before, after = stated_samples(base), stated_samples(run)
    if before and after:  # both batch sizes are known: by sample
        old, new = old / before, new / after
    return round(old / new, 3)


def _seconds_per_step(run: Mapping) -> float | None:
    if not run["wall_s"] or not run["steps"]:
        return None
    return (run["wall_s"] - (run["time_s"].get("compile") or 0.0)) / run["steps"]


def ms_per_sample(run: Mapping) -> float | None:
    """Return the mean step time over the batch size; None if either is unknown."""
    mean, batch = run["step_ms"]["mean"], stated_samples(run)
    return round(mean / batch, 6) if mean is not None and batch else None


def active_pct(run: Mapping) -> float | None:
    """Return NVML's mean utilization over the GPUs in use by the framework; None if not measured."""
    means = [gpu["utilization_pct"]["mean"] for gpu in run["gpus"] if gpu["used_by_framework"]]
    measured = [mean for mean in means if mean is not None]
    return round(sum(measured) / len(measured), 2) if measured else None


def time_pct(run: Mapping) -> dict[str, float]:
    """Return the host account in percent of the wall time; empty if unknown."""
    wall = run["wall_s"]
    return {name: round(100 * own_s / wall, 2) for name, own_s in run["time_s"].items() if wall and own_s is not None}


def _causes(run: Mapping) -> list[str]:
    return sorted({finding["cause"] for finding in all_findings(run)})
