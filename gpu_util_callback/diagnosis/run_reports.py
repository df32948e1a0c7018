"""The report JSON: one object per run, grouped into sessions. Unknown is None, never 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, cast

from gpu_util_callback.diagnosis.engine import diagnose, still_known, thresholds_in_force
from gpu_util_callback.diagnosis.evidence.script import Script
from gpu_util_callback.diagnosis.evidence.source import TracedGpu, explains_idle, extrapolated
from gpu_util_callback.diagnosis.rule import all_findings, own_findings
from gpu_util_callback.diagnosis.verdict import CLEAR, NOTHING, NOTHING_LARGE, gain_of, headline, is_unknown, of_script
from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.recording.manifest_facts import (
    AccountFacts,
    AsRecorded,
    Claim,
    DiagnosisFacts,
    Facts,
    Gpu,
    Span,
    Status,
    TracedFacts,
    TriedFacts,
)
from gpu_util_callback.recording.problems import Problem, reported, unexpected
from gpu_util_callback.recording.schema import CATEGORIES, IDLE_CATEGORIES
from gpu_util_callback.recording.work import batch_size, batches_a_step, full_rates, mfu_of, peak_text, samples_per_s
from gpu_util_callback.words import percent

if TYPE_CHECKING:
    from gpu_util_callback.diagnosis.report_types import (
        ClocksReport,
        GpuReport,
        Headline,
        LogdirReport,
        Mfu,
        ProcessReport,
        RunReport,
        SessionReport,
        Spread,
        StepMs,
        TracedSteps,
        Version,
    )
    from gpu_util_callback.recording.reader import Recording

AnyClaim = TypeVar("AnyClaim", Claim, Span)

REPORT_VERSION: Version = 1


def logdir_report(recordings: Iterable[Recording], thresholds: Mapping | None = None) -> LogdirReport:
    """Return the whole report.

    Recordings that no report can be made of are listed in `problems`; a run lists its own problems.

    Args:
        recordings: what `read_recordings` returned, or any recordings.
        thresholds: overrides of the rules' thresholds; see `thresholds_in_force`.
    """
    from gpu_util_callback.diagnosis.compare import add_promises

    runs: list[RunReport] = []
    problems: list[Problem] = []
    sessions: dict[str, list[tuple[RunReport, Recording]]] = {}
    for recording in sorted(recordings, key=lambda recording: (recording.start_ns or 0, recording.id)):
        try:
            runs.append(run_report(recording, thresholds))
            sessions.setdefault(runs[-1]["session"], []).append((runs[-1], recording))
        except UnusableInput:  # an unknown threshold
            raise
        except Exception as error:
            problems.append(unexpected(recording.path, error))
        recording.release()  # frees its rows
    add_promises(runs)
    report: LogdirReport = {
        "version": REPORT_VERSION,
        "runs": runs,
        "sessions": [_session(name, *map(list, zip(*members, strict=True))) for name, members in sessions.items()],
    }
    if problems:
        report["problems"] = reported(problems)
    return report


def _session(name: str, runs: list[RunReport], recordings: list[Recording]) -> SessionReport:
    """Return the report of a session: its ranks, and what they find side by side."""
    from gpu_util_callback.diagnosis.sessions import session_findings, session_verdict

    findings = session_findings(runs)
    return {
        "session": name,
        "ranks": sorted({run["rank"] for run in runs if run["rank"] is not None}),
        "verdict": session_verdict(runs, findings),
        "findings": findings,
        "clocks": _clocks(recordings),
    }


def _clocks(recordings: list[Recording]) -> ClocksReport | None:
    """Return the reference clock of a session and the other workers' offsets from it, ms; None for one process.

    Offsets are positive where the worker's clock is ahead, as `session_clocks` has them.
    """
    from gpu_util_callback.recording.alignment import session_clocks

    clocks = session_clocks(recordings)
    if not clocks.offsets and not clocks.unknown:
        return None
    return {
        "reference": clocks.reference,
        "workers": [
            {
                "rank": offset.rank,
                "offset_ms": round(offset.offset_ns / 1e6, 4),
                "steps": offset.steps,
                "text": clocks.sentence(offset),
            }
            for offset in clocks.offsets
            if offset.rank != clocks.reference
        ],
        "unknown": [{"rank": rank, "reason": reason} for rank, reason in clocks.unknown],
    }


@dataclass(frozen=True)
class Recorded:
    """A recording known by its manifest, and for a report by what its recorder holds in memory.

    Args:
        facts: its manifest, as a reader has it.
        summary: as of a `Recording`.
        path: its folder; None where it could not be made.
    """

    facts: Facts
    summary: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    path: str | None = None
    run: str = "."
    problems: tuple[Problem, ...] = ()

    @property
    def session(self) -> str:
        return str(self.facts["folder"])

    @property
    def id(self) -> str:
        return f"{self.run}/{self.facts['folder']}"

    @property
    def status(self) -> Status:
        return self.facts["status"]

    @property
    def stored(self) -> DiagnosisFacts | None:
        return self.facts.get("diagnosis")

    @property
    def account(self) -> AccountFacts:
        # Parts that take longer than the recording do not pass the manifest's reader.
        length_s = (self.end_ns - self.start_ns) / 1e9
        return self.facts.get("account") or {"wall_s": length_s, "time_s": {}}

    @property
    def step_count(self) -> int:
        return self.facts["rows"].get("steps", 0)

    @property
    def start_ns(self) -> int:
        return self.facts["started_ns"]

    @property
    def end_ns(self) -> int:
        return max(self.start_ns, self.facts.get("ended_ns") or self.facts.get("heartbeat_ns") or 0)


def run_report(recording: Recording | Recorded, thresholds: Mapping | None = None) -> RunReport:
    """Return one run of the report: its account, its GPUs, its findings and the advice; None = not measured.

    Args:
        thresholds: as for `diagnose`; a `Recorded` has been judged already.
    """
    facts = recording.facts
    if isinstance(recording, Recorded):
        diagnosis = facts["diagnosis"]
    else:
        diagnosis = diagnose(recording, thresholds)
    traced = diagnosis.get("traced") or []
    account = recording.account
    wall_s = account.get("wall_s")
    distributions = recording.summary  # distributions kept while recording: no rows need to be read
    gpus = _gpus(facts, distributions, diagnosis.get("gpu_active_pct") or {})
    mfu, accelerator_use = _mfu(facts, gpus), diagnosis.get("au")
    tried: Mapping[str, TriedFacts] = {}
    # Outcomes of `gpu-util try` lie beside a local recording.
    if not isinstance(recording, Recorded) and not recording.remote:
        from gpu_util_callback.trying.outcomes import outcomes

        tried = outcomes(str(recording.path))
    return {
        "run": recording.run,
        "id": recording.id,
        "session": recording.session,
        **cast(AsRecorded, {name: facts.get(name) for name in AsRecorded.__annotations__}),
        "fits": facts.get("fits") or 1,
        "status": recording.status,
        "start_ns": recording.start_ns or None,
        "end_ns": recording.end_ns or None,
        "wall_s": wall_s,
        "between_fits_s": account.get("between_fits_s"),
        "stopped_s": account.get("stopped_s"),
        "stuck_s": facts["step_watch"]["seconds"] if facts.get("step_watch") else None,
        "process": _process(facts),
        "steps": recording.step_count,
        "samples_per_s": _rounded(samples_per_s(facts)),
        "mfu": mfu,
        "step_ms": _step_ms(distributions.get("steps", {}).get("duration_ns", {})),
        "time_s": dict(account.get("time_s") or {}),
        "gpu_time_est": _gpu_times(facts, gpus, traced, account),
        "gpus": gpus,
        "traced": _traced(traced),
        "unavailable": list(facts.get("unavailable") or []),
        "overhead": facts.get("overhead") or {},
        "au_pct": accelerator_use and accelerator_use["pct"],
        "au_epochs": accelerator_use["epochs"] if accelerator_use else [],
        "memory": diagnosis.get("memory"),
        "energy": diagnosis.get("energy"),
        "energy_j_per_sample": _energy_per_sample(diagnosis, facts, recording.step_count),
        "verdict": _with_mfu(diagnosis["verdict"], mfu),
        "headline": _headline(diagnosis, wall_s, Script.from_process(facts.get("process"))),
        "rules_version": diagnosis["rules_version"],
        "thresholds": thresholds_in_force(None, before=still_known(diagnosis["thresholds_set"])),
        "thresholds_set": diagnosis["thresholds_set"],
        "silent": diagnosis["silent"],
        "findings": [_with_trial(finding, tried) for finding in diagnosis["findings"]],
        "spans": [_with_trial(span, tried) for span in diagnosis["spans"]],
        "problems": reported(recording.problems),
    }


def _with_trial(finding: AnyClaim, tried: Mapping[str, TriedFacts]) -> AnyClaim:
    """Return a finding with the outcome of trying its advice, as long as the advice is the same."""
    outcome = tried.get(finding["id"])
    is_same_code = outcome is not None and outcome["code"] == finding["advice"]["code"]
    return cast(AnyClaim, {**finding, "tried": outcome}) if is_same_code else finding


def _energy_per_sample(judged: DiagnosisFacts, facts: Facts, steps: int | None) -> float | None:
    """Return joules a sample over the whole run, validation and callbacks included; None if not known."""
    fit = facts.get("fit") or {}
    energy, size = judged.get("energy"), batch_size(fit)
    if not energy or not size or not steps:
        return None
    return float(f"{energy['total_j'] / (steps * size * batches_a_step(fit)):.6g}")


def _rounded(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.6g}")


def _mfu(facts: Facts, gpus: list[GpuReport]) -> Mfu | None:
    """Return the model FLOPs utilization over all GPUs at work, %; None where it is not known."""
    peaks = [gpu["peak"] for gpu in gpus if gpu["mfu_pct"] is not None and gpu["peak"] is not None]
    rate, work = samples_per_s(facts), facts.get("work")
    if not peaks or rate is None or work is None:
        return None
    tflops = rate * work["flops_per_sample"] / 1e12
    peak_tflops = sum(peak_tflops["tflops"] for peak_tflops in peaks)
    first = peaks[0]
    each = "this GPU's" if len(peaks) == 1 else "these GPUs'"
    alike = all(peak_tflops == first for peak_tflops in peaks)
    peak_note = f" ({peak_text(first)}{' each' if peaks[1:] else ''})" if alike else ""
    return {
        "pct": _rounded(100 * tflops / peak_tflops),
        "tflops": _rounded(tflops),
        "peak_tflops": _rounded(peak_tflops),
        "precision": first["precision"] if alike else None,
        "text": f"{percent(100 * tflops / peak_tflops)} of {each} peak{peak_note}",
    }


def _with_mfu(verdict: str, mfu: Mfu | None) -> str:
    """Return the verdict of a run that nothing held back with what it made of the GPU."""
    if mfu is not None and verdict.startswith(f"{NOTHING}:"):
        return f"{verdict.removesuffix('.')}, at {mfu['text']}."
    if mfu is not None and verdict.startswith((NOTHING, NOTHING_LARGE)):
        return f"{verdict} Training ran at {mfu['text']}."
    return verdict


def _headline(judged: DiagnosisFacts, wall_s: float | None, script: Script | None) -> Headline | None:
    """Return what the verdict is about, in numbers; None where it is about no finding with a known cost.

    Args:
        script: times of the whole script, if much of it went between its fits.
    """
    script_finding = of_script(all_findings(judged), wall_s, script)
    if script_finding is not None:  # the script's fits together lose most
        return headline([script_finding], script_finding["of_s"])
    verdict, own = judged["verdict"], own_findings(judged)
    of_unknown_cost = (f"{finding['title']}{end}" for finding in own if finding["lost_s"] is None for end in ";.")
    if verdict.startswith((*CLEAR, *of_unknown_cost)) or is_unknown(verdict):
        return None
    lead = headline(own, wall_s)
    if lead is not None and script is not None and wall_s:
        lead["faster_up_to"] = gain_of(script.wall_s, script.saves(wall_s, lead["all_saves_s"]))
    return lead


def _process(facts: Facts) -> ProcessReport | None:
    """Return the times from the first fit of the process to its last so far, s.

    None where little of it lay between fits.
    """
    script = Script.from_process(facts.get("process"))
    if script is None:
        return None
    return {
        "fits": script.fits,
        "wall_s": _rounded(script.wall_s),
        "fits_s": _rounded(script.fits_s),
        "compile_s": _rounded(script.compile_s),
        "between_s": dict(script.between_s),
        "predict_set_up_s": script.predict_set_up_s,
    }


Distributions = Mapping[str, Mapping[str, Mapping[str, float]]]


def _step_ms(durations: Mapping[str, float]) -> StepMs:
    """Return mean and percentiles of the step time in ms, from those in ns; None each without steps."""
    mean, p50, p95 = (
        round(durations[name] / 1e6, 4) if durations.get("count") else None for name in ("mean", "p50", "p95")
    )
    return {"mean": mean, "p50": p50, "p95": p95}


PARTLY_PCT = 10, 90  # a reading in between: the GPU both worked and idled in its window


def _alternates(median_pct: float | None, refresh_ms: int | None) -> str | None:
    """Return a note that a GPU works and idles within most windows of its readings, which cannot show it; None if not.

    Args:
        median_pct: of the utilization; None = not sampled.
        refresh_ms: the driver's window; None = not known.
    """
    if median_pct is None or not refresh_ms or not PARTLY_PCT[0] <= median_pct <= PARTLY_PCT[1]:
        return None
    return f"it alternates faster than the driver's readings of {refresh_ms / 1e3:.1f} s resolve"


def _gpus(facts: Facts, distributions: Distributions, active: Mapping[str, float]) -> list[GpuReport]:
    """Return the GPUs of a run with their distributions and model FLOPs utilization.

    Args:
        active: index -> mean utilization over the run's time, %.
    """
    gpus = [_gpu(gpu, distributions, active) for gpu in facts.get("gpus") or []]
    rates = full_rates(facts)
    for gpu in gpus:
        gpu["mfu_pct"] = _rounded(mfu_of(samples_per_s(facts), rates.get(gpu["index"])))
    return gpus


def _gpu(gpu: Gpu, distributions: Distributions, active: Mapping[str, float]) -> GpuReport:
    """Return a GPU's facts, and the distributions of its samples; each None = not measured.

    Its mean utilization is that over the run's time, as in the verdict (that of the samples for recordings without it).

    Args:
        active: index -> mean utilization over the run's time, %.
    """
    index = gpu["index"]
    # A column may be in any of the GPU's groups.
    groups = [distributions.get(group, {}) for group in (f"gpu{index}", f"gpu{index}/utilization", f"gpu{index}/gpm")]

    def distribution_of(column: str) -> Mapping[str, float]:
        return next((group[column] for group in groups if group.get(column, {}).get("count")), {})

    def spread(column: str) -> Spread:
        """Return the mean and percentiles of a column; None of each if it was not measured."""
        distribution = distribution_of(column)
        mean, p5, p50, p95 = (
            round(distribution[name], 2) if distribution else None for name in ("mean", "p5", "p50", "p95")
        )
        return {"mean": mean, "p5": p5, "p50": p50, "p95": p95}

    def highest(column: str) -> float | None:
        return distribution_of(column).get("max")

    def whole(number: float | None) -> int | None:
        return None if number is None else int(number)

    use = spread("utilization_pct")
    power = "power_mw" if distribution_of("power_mw") else "power_energy_mw"  # the same, by another source
    if use["mean"] is not None:
        use["mean"] = active.get(str(index), use["mean"])
    return {
        "index": index,
        "nvml_index": gpu.get("nvml_index"),
        "uuid": gpu.get("uuid"),
        "name": gpu.get("name"),
        "label": gpu.get("label"),
        "used_by_framework": bool(gpu.get("used_by_framework")),
        "compute_capability": gpu.get("compute_capability"),
        "peak": {**peak, "text": peak_text(peak)} if (peak := gpu.get("peak")) else None,
        "utilization_pct": use,
        "utilization_refresh_ms": gpu.get("utilization_refresh_ms"),
        "utilization_note": _alternates(use["p50"], gpu.get("utilization_refresh_ms")),
        "sm_active_pct": spread("sm_active_pct"),
        "throttled_pct": {why: spread(f"throttle_{why}_pct")["mean"] for why in ("thermal", "power", "other")},
        "memory_used_bytes": {"max": whole(highest("memory_used_bytes"))},
        "memory_total_bytes": gpu.get("memory_total_bytes"),
        "memory_process_bytes": {"max": whole(highest("memory_process_bytes"))},
        "unified_memory": bool(gpu.get("unified_memory")),
        "mig": bool(gpu.get("mig")),
        "power_mw": {"mean": spread(power)["mean"], "max": highest(power)},
        "temperature_c": {"max": highest("temperature_c")},
        "samples": whole(distribution_of("utilization_pct").get("count")),
    }


GpuTime = dict[str, float | str]


def _gpu_times(
    facts: Facts, gpus: Iterable[GpuReport], traced: Iterable[TracedFacts], account: AccountFacts
) -> dict[str, GpuTime]:
    """Return the estimated seconds by category for each GPU in use, by its index; see `_gpu_time`."""
    of_run = {windows["gpu"]: TracedGpu(**windows["of_run"]) for windows in traced}
    return {
        str(gpu["index"]): _gpu_time(gpu, of_run.get(gpu["index"]), account, explains_idle(facts))
        for gpu in gpus
        if gpu["used_by_framework"]
    }


def _gpu_time(gpu: GpuReport, traced: TracedGpu | None, account: AccountFacts, why_idle: bool) -> GpuTime:
    """Return the estimated seconds of the run per category of one GPU.

    They add up to the wall time. From profiler windows if there are any (traced steps extrapolated
    to all steps), else from NVML's utilization; empty if neither is known. Why a GPU idled is known
    only from traces that show steps (`why_idle`); without them all of it is "idle".
    """
    active, wall_s = gpu["utilization_pct"]["mean"], account.get("wall_s")
    seconds = extrapolated(traced, account.get("time_s") or {}, wall_s, active)
    if wall_s and seconds:  # its windows represent the run
        in_steps = sum(seconds.values())
        parts: GpuTime = {
            name: round(part, 6) for name, part in seconds.items() if why_idle or name not in IDLE_CATEGORIES
        }
        if not why_idle:
            parts["idle"] = round(sum(seconds[name] for name in IDLE_CATEGORIES), 6)
        return {"basis": "windows", **parts, "outside_steps": round(wall_s - in_steps, 6)}
    if active is not None and wall_s:  # utilization alone: active or idle
        busy = round(wall_s * active / 100, 6)
        return {"basis": "nvml", "gpu_active": busy, "idle": round(wall_s - busy, 6)}
    return {}


def _traced(traced: Iterable[TracedFacts]) -> TracedSteps:
    """Return what profiler windows measured: the number of steps, and for each GPU ms a step by category."""
    gpus = {windows["gpu"]: TracedGpu(**windows["sums"]) for windows in traced}
    per_gpu: dict[str, dict[str, float]] = {
        str(index): {
            "steps": gpu.steps,
            "step_ms": round(gpu.duration_ns / max(1, gpu.steps) / 1e6, 4),
            **{f"{name}_ms": round(gpu.per_step_ms(name), 4) for name in CATEGORIES},
            "kernels_per_step": round(gpu.kernels / max(1, gpu.steps), 1),
        }
        for index, gpu in gpus.items()
        if index >= 0
    }
    return {"steps": max((gpu.steps for gpu in gpus.values()), default=0), "per_gpu": per_gpu}
