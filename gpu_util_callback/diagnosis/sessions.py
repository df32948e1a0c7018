"""Ranks of one job side by side: the slowest rank, for which the others wait, and its cause."""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from statistics import mean, median
from typing import NamedTuple, cast

from gpu_util_callback.diagnosis.evidence.source import LEAST_STEPS
from gpu_util_callback.diagnosis.report_types import JobVerdict
from gpu_util_callback.diagnosis.rule import ESTIMATED, MEASURED, Confidence, Evidence, own_findings
from gpu_util_callback.diagnosis.rules import part_of
from gpu_util_callback.diagnosis.rules.contention import Contention
from gpu_util_callback.diagnosis.rules.data_waste import DataWaste
from gpu_util_callback.diagnosis.rules.imbalance import Imbalance
from gpu_util_callback.diagnosis.rules.stuck import Stuck
from gpu_util_callback.diagnosis.thresholds import (
    A_TWENTIETH,
    DOUBLE,
    LEAST_S,
    MIN_SAMPLES,
    MOSTLY,
    THREE_QUARTERS,
    Constant,
)
from gpu_util_callback.diagnosis.verdict import BLOCKING, blocks, gain_of, is_unknown, promise
from gpu_util_callback.recording.manifest_facts import Claim, Value
from gpu_util_callback.words import between, duration, workers

STUCK = Stuck.cause
SAME_PACE = Constant(
    THREE_QUARTERS, "workers that wait for each other have steps of equal length; ranks of a sweep need not"
)
KINDS = Constant(1000, "whole numbers in a batch's range: of fewer, such as labels, two sums may be equal by chance")
WAITING_PCT = Constant(85.0, "NVML counts a GPU that waits in a collective as active: a waiting worker is throughout")


def session_findings(runs: Sequence[Mapping]) -> list[Claim]:
    """Return findings about ranks of one session that wait for each other; [] for others.

    Steps that wait for each other are equally long on every rank, so a straggler shows by its activity *while the
    others wait*: its input or its callbacks (measured); in profiler windows, by waiting least in collectives and
    working most; and by the GPUs' counters, which show who waits. The first of these that finds something decides.

    Args:
        runs: the run objects of the report, one per rank.
    """
    ranked = [run for run in runs if run["rank"] is not None and run["steps"] and run["wall_s"]]
    if len({run["rank"] for run in ranked}) < len(ranked) or len(ranked) < 2:  # a rank twice, or fewer than two
        return []
    stuck = _first_to_stop(ranked)
    if stuck is not None:
        return [stuck]
    pace_ms = _pace(ranked)
    if pace_ms is None:  # they do not wait for each other
        return []
    limits = ranked[0]["thresholds"][Imbalance.cause]
    if same := _same_batches(ranked):
        return [same]
    findings = list(_own_time(ranked, limits["worker_wait_pct"], pace_ms))
    findings = findings or list(_on_cpus(ranked, limits))
    findings = findings or list(_traced(ranked, limits["worker_wait_pct"]))
    findings = findings or list(_by_utilization(ranked, limits["gap_pct"]))
    return sorted(findings, key=lambda finding: -(finding["lost_s"] or 0.0))


def _first_to_stop(runs: Sequence[Mapping]) -> Claim | None:
    """Return the finding about the rank at which a job stands still; None where fewer than two ranks do.

    It made fewest steps; of equal ones, it waits for no other rank, and stopped first.
    """
    newest_span = {
        run["rank"]: spans[-1] for run in runs if (spans := [span for span in run["spans"] if span["cause"] == STUCK])
    }
    standing_still = {rank: span for rank, span in newest_span.items() if blocks(span)}
    if len(standing_still) < 2:
        return None

    def when(rank: int) -> tuple:
        span = standing_still[rank]
        return span["start_step"], bool(span["evidence"].get("waits_for_ranks")), span["start_ns"]

    rank = min(standing_still, key=when)
    span = standing_still[rank]
    where = span["title"].partition(": ")[2]  # what its thread does there
    title = f"No step for {duration(span['lost_s'] or 0.0)}: worker {rank} stopped first; there {where}"
    return cast(Claim, {**span, "id": f"{STUCK}:worker{rank}", "title": title, "ranks": [rank]})


def _pace(runs: Sequence[Mapping]) -> dict[int, float] | None:
    """Return rank -> step time in ms if steps are equally long on all ranks, else None.

    The mean suits hosts that run ahead of their devices by several steps and then wait; in a short run it includes the
    first step, which lasts until the last worker has arrived, so typical step times may agree where the means do not.
    """
    for figure in ("mean", "p50"):
        paces = {run["rank"]: run["step_ms"][figure] for run in runs}
        times = list(paces.values())
        if None not in times and min(times) >= SAME_PACE * max(times):
            return paces
    return None


# Phases in which a worker's own time may exceed the others': name and advice.
_PARTS = {
    "input_wait": (
        "its input is slow",
        "Every step waits for the slowest worker. Worker {rank} waits {ms:.3g} ms a step for its "
        "input, the others {others:.3g} ms: look at its disk, its network and its share of the "
        "files.",
    ),
    "callbacks": (
        "its callbacks are slow",
        "Every step waits for the slowest worker. Callbacks of worker {rank} take {ms:.3g} ms a "
        "step, of the others {others:.3g} ms: let another thread do that work.",
    ),
}


def _own_time(runs: Sequence[Mapping], limit: float, pace: Mapping[int, float]) -> Iterator[Claim]:
    """Yield stragglers by input and callbacks, outside of the step's work.

    The others' times are short while they wait. If they wait for the straggler, their steps are as long as its own; if
    nobody waits (a sweep, asynchronous training), its steps are longer by just its wait.

    Args:
        limit: least share of the straggler's wall time, %.
        pace: rank -> step time in ms.
    """
    for part, (word, text) in _PARTS.items():
        spent_s = {run["rank"]: run["time_s"].get(part) for run in runs}
        if any(seconds is None for seconds in spent_s.values()):
            continue
        worst = max(runs, key=lambda run: spent_s[run["rank"]])
        rank = worst["rank"]
        others_s = median(seconds for other, seconds in spent_s.items() if other != rank)
        lost_s = spent_s[rank] - others_s
        pct = 100 * lost_s / worst["wall_s"]
        if pct < limit or lost_s < LEAST_S.default:
            continue
        ms, usual_ms = 1e3 * spent_s[rank] / worst["steps"], 1e3 * others_s / worst["steps"]
        longer_ms = pace[rank] - median(ms_per_step for other, ms_per_step in pace.items() if other != rank)
        if longer_ms > MOSTLY * (ms - usual_ms):
            continue  # the others do not share its wait
        # What its own findings call lost is this time, too: one number for it.
        own_s = sum(claim["lost_s"] or 0.0 for claim in own_findings(worst) if part_of(claim) == part)
        lost_s = own_s if own_s > MOSTLY * lost_s else lost_s
        evidence = {"worker_wait_pct": round(pct, 1)} | _pair(ms, usual_ms)
        advice = text.format(rank=rank, ms=ms, others=usual_ms)
        yield _straggler(runs, rank, part, word, evidence, limit, advice, lost_s, MEASURED)


def _same_batches(runs: Sequence[Mapping]) -> Claim | None:
    """Return the finding that all ranks train on the same batches; None where their first two differ, or may not.

    The first two, as one on all ranks may be a warm-up. Ranks that exchange gradients for one batch compute the same
    ones. What may be equal by chance, such as labels and masks, does not decide: an array must have values between
    whole numbers, or of a thousand kinds.
    """
    fits = [run.get("fit") or {} for run in runs]
    first_rank, *others = [(fit.get("input_first") or [], fit.get("input_second") or []) for fit in fits]
    summed_arrays = (array for array in first_rank[0] if "sum" in array)
    varied = any(array["max"] - array["min"] > (KINDS if array["integers"] else 0) for array in summed_arrays)
    # Ranks differ, or a rank's second batch equals its first.
    differ = first_rank[1] in ([], first_rank[0]) or any(one != first_rank for one in others)
    if not varied or differ or not all(fit.get("exchanges") for fit in fits):
        return None
    text = (
        "Two batches of each worker have the same values, so that all compute the same gradients. Give each worker "
        "its own part of the samples, and a new order in each epoch."
    )
    code = (
        "sampler = torch.utils.data.DistributedSampler(dataset)\n"
        "loader = DataLoader(dataset, ..., sampler=sampler)  # without shuffle=True\n"
        "sampler.set_epoch(epoch)  # in each epoch"
    )
    ranks, title = [run["rank"] for run in runs], f"All {len(runs)} workers train on the same batches"
    return _finding(DataWaste.cause, "ranks", title, ranks, {"workers": len(runs)}, text, code)


class _Computed(NamedTuple):
    """Times of the training thread of a rank in a step on a CPU, computing and waiting, in ms.

    `backward` is the least and the most that it can be: the waits for other ranks may be in it, or beside it.
    """

    total: float
    waits: float
    forward: float
    backward: tuple[float, float]


def _computed_of(run: Mapping) -> _Computed | None:
    """Return what a rank computes in a step, ms, by core time and stack samples; None where these do not say it.

    With gloo a thread sleeps while it waits for ranks; other libraries poll. On a GPU the thread only starts the work.
    """
    framework, sampled_steps = run.get("framework") or {}, (run.get("fit") or {}).get("python_in_steps") or {}
    on_core, parts = sampled_steps.get("on_core"), sampled_steps.get("parts") or {}
    on_cpu = framework.get("device") == "cpu" and framework.get("collectives") == "gloo"
    if not on_cpu or on_core is None or (sampled_steps.get("samples") or 0) < MIN_SAMPLES.default:
        return None
    step_ms = 1e3 * run["time_s"]["step"] / run["steps"]
    forward, backward, waits = parts.get("forward", 0.0), parts.get("backward", 0.0), 1 - on_core
    other_share = max(0.0, 1 - forward - backward)
    # The waits for ranks lie in the backward pass as far as they can, or beside it.
    least, most = max(0.0, backward - waits), backward - max(0.0, waits - other_share)
    return _Computed(step_ms * on_core, step_ms * waits, step_ms * forward, (step_ms * least, step_ms * most))


def _batch_values(run: Mapping) -> tuple[int, int] | None:
    """Return how many values a rank's batches have, from the smallest to the largest; None = not known.

    A size that varies is [smallest, largest].
    """
    dims = (run.get("fit") or {}).get("input_dims") or [None]
    if any(shape is None or None in shape for shape in dims):
        return None
    ends = [[size if isinstance(size, list) else [size, size] for size in shape] for shape in dims]
    fewest, most = (sum(prod(size[end] for size in shape) for shape in ends) for end in (0, 1))
    return fewest, most


def _on_cpus(runs: Sequence[Mapping], limits: Mapping[str, float]) -> Iterator[Claim]:
    """Yield the rank whose batches are larger and compute longer than the others', which wait for its gradients.

    A rank that also evaluates is longer in the forward pass alone; one that saves checkpoints in neither.

    Args:
        limits: the thresholds of imbalance.
    """
    computed = {run["rank"]: passes for run in runs if (passes := _computed_of(run)) is not None}
    if len(computed) < len(runs):  # not known of all ranks
        return
    rank = max(computed, key=lambda worker: computed[worker].total)
    worst = next(run for run in runs if run["rank"] == rank)
    slowest, others = computed[rank], [passes for other, passes in computed.items() if other != rank]
    usual_ms, waits_ms = median(passes.total for passes in others), median(passes.waits for passes in others)
    longer_ms = slowest.total - usual_ms
    forward_ms = slowest.forward - median(passes.forward for passes in others)
    backward_ms = slowest.backward[0] - median(passes.backward[1] for passes in others)
    # If all had the mean of their work.
    lost_s = (slowest.total - mean(passes.total for passes in computed.values())) * worst["steps"] / 1e3
    pct, limit = 100 * lost_s / worst["wall_s"], limits["worker_wait_pct"]
    # Too little is lost, or the ranks compute about as long.
    if pct < limit or 100 * longer_ms < limits["work_gap_pct"] * slowest.total:
        return
    in_passes = forward_ms + backward_ms >= MOSTLY * longer_ms and backward_ms >= MOSTLY * forward_ms
    if not in_passes or waits_ms - slowest.waits < MOSTLY * longer_ms:
        return  # it does something else, or nobody waits for it
    values = {run["rank"]: _batch_values(run) for run in runs}
    own, of_others = values.pop(rank), max(value or (0, 0) for value in values.values())
    if own is None or None in values.values() or own[0] <= of_others[0] or own[1] <= of_others[1]:
        return  # core time alone differs by more between equal ranks of a full machine
    evidence: Evidence = {"worker_wait_pct": round(pct, 1)} | _pair(slowest.total, usual_ms)
    text = (
        f"Every step waits for the slowest worker. Worker {rank} computes {slowest.total:.3g} ms a step, the others "
        f"{usual_ms:.3g} ms, and they wait {waits_ms:.3g} ms for its gradients. Its batches have "
        f"{between(f'{own[0]:,}', f'{own[1]:,}')} values, others {between(f'{of_others[0]:,}', f'{of_others[1]:,}')}. "
        "Deal the samples out in turn, such as samples[rank::world_size], or take a sampler that gives all ranks "
        "batches of similar length in each step."
    )
    yield _straggler(runs, rank, "work", "its batches are larger", evidence, limit, text, lost_s)


# Categories of a traced step other than waiting for others: label and where to look. `idle_input`
# is found by the worker's own input wait, without windows.
_WORK = {
    "kernel": (
        "its GPU computes longer",
        "Compare its GPU's model, clocks and temperature with the others', and its share of the batch.",
    ),
    "idle_host": (
        "its host keeps the GPU waiting",
        "Check what else runs on its CPU, and at work that only this worker does.",
    ),
    "idle_launch": (
        "its host launches slowly",
        "Check what else runs on its CPU: kernels are launched later than the GPU asks.",
    ),
    "idle_sync": (
        "its host waits for its GPU",
        "Look for a device synchronization that only this worker does: logging, metrics.",
    ),
    "copy_h2d": ("its copies to the GPU are slow", "Compare its PCIe link with the others': gpu-util doctor shows it."),
}


def traced_workers(runs: Sequence[Mapping]) -> dict[int, Mapping]:
    """Return rank -> ms by category of its traced steps; {} unless all workers have such steps, of one pace."""
    traced = {}
    for run in runs:
        gpus = [gpu for gpu in run["traced"]["per_gpu"].values() if gpu["steps"] >= LEAST_STEPS]
        if not gpus:
            return {}
        # Of several GPUs in a process, the one that waits least is the one that the others wait
        # for.
        traced[run["rank"]] = min(gpus, key=lambda gpu: gpu["collective_ms"])
    steps = [gpu["step_ms"] for gpu in traced.values()]
    return traced if min(steps) >= SAME_PACE * max(steps) else {}


def _traced(runs: Sequence[Mapping], limit: float) -> Iterator[Claim]:
    """Yield the straggler in profiler windows: it waits least in collectives, and works most.

    Args:
        limit: least wait of the others, % of a step.
    """
    traced = traced_workers(runs)
    if not traced:
        return
    rank = min(traced, key=lambda worker: traced[worker]["collective_ms"])
    slowest = traced[rank]
    usual_ms = {
        name: median(gpu[f"{name}_ms"] for other, gpu in traced.items() if other != rank)
        for name in ("collective", *_WORK)
    }
    waited_ms = usual_ms["collective"] - slowest["collective_ms"]
    category = max(_WORK, key=lambda name: slowest[f"{name}_ms"] - usual_ms[name])
    longer_ms = slowest[f"{category}_ms"] - usual_ms[category]
    pct = 100 * waited_ms / slowest["step_ms"]
    if pct < limit or longer_ms < MOSTLY * waited_ms:
        return  # nobody waits, or the cause of the wait was not traced
    title_end, explanation = _WORK[category]
    run = next(run for run in runs if run["rank"] == rank)
    evidence: Evidence = {
        "worker_wait_pct": round(pct, 1),
        "collective_ms_per_step": round(slowest["collective_ms"], 3),
        "others_collective_ms_per_step": round(usual_ms["collective"], 3),
        "traced_steps": min(gpu["steps"] for gpu in traced.values()),
    } | _pair(slowest[f"{category}_ms"], usual_ms[category])
    text = (
        f"Every step waits for the slowest worker. The others wait {usual_ms['collective']:.3g} ms a "
        f"step for worker {rank}, whose own work takes {longer_ms:.3g} ms longer than theirs. {explanation}"
    )
    yield _straggler(runs, rank, category, title_end, evidence, limit, text, waited_ms * run["steps"] / 1e3)


def _by_utilization(runs: Sequence[Mapping], gap_pct: float) -> Iterator[Claim]:
    """Yield the worker that the others wait for, by its GPU's counters.

    NCCL keeps a waiting GPU active, on few multiprocessors.

    Args:
        gap_pct: by which its utilization or SM activity has to differ from all others', percentage points.
    """
    if any((run.get("framework") or {}).get("collectives") != "nccl" for run in runs):
        return
    if any(Contention.cause in _causes(run) for run in runs):
        return  # the counters include other processes
    utilization, sm_active = _means(runs, "utilization_pct"), _means(runs, "sm_active_pct")
    if not utilization:
        return
    rank = min(utilization, key=lambda worker: utilization[worker])
    other_pcts = [pct for other, pct in utilization.items() if other != rank]
    # All others are active throughout, this one is not: its host is late.
    if min(other_pcts) >= WAITING_PCT and min(other_pcts) - utilization[rank] >= gap_pct:
        part, word = "host", "its GPU idles while the others wait"
        evidence: Evidence = {
            "worker_gap_pct": round(min(other_pcts) - utilization[rank], 1),
            "worker_active_pct": round(utilization[rank], 1),
            "others_active_at_least_pct": round(min(other_pcts), 1),
        }
        text = (
            "Waiting in a collective counts as active, so workers that wait are active all the time: only worker "
            f"{rank} is not ({utilization[rank]:.0f} %). Its host is late: look at what else runs on its CPU, and at "
            "work that only this worker does."
        )
    elif min(utilization.values()) >= WAITING_PCT and sm_active:
        # All are active: most multiprocessors work where the others wait for.
        rank = max(sm_active, key=lambda worker: sm_active[worker])
        most = max(pct for other, pct in sm_active.items() if other != rank)
        if sm_active[rank] - most < gap_pct:
            return
        part, word = "gpu", "its GPU works longest"
        evidence = {
            "worker_gap_pct": round(sm_active[rank] - most, 1),
            "worker_sm_active_pct": round(sm_active[rank], 1),
            "others_sm_active_at_most_pct": round(most, 1),
        }
        text = (
            f"All GPUs are active all the time, but only on worker {rank} most multiprocessors work "
            f"({sm_active[rank]:.0f} %, elsewhere at most {most:.0f} %): the others wait in a collective. Compare its "
            "GPU's model, clocks and temperature with the others', and its share of the batch."
        )
    else:
        return
    yield _straggler(runs, rank, part, word, evidence, gap_pct, text)


def _pair(ms: float, others_ms: float) -> Evidence:
    return {"ms_per_step": round(ms, 3), "others_ms_per_step": round(others_ms, 3)}


def _causes(run: Mapping) -> set[str]:
    return {finding["cause"] for finding in own_findings(run)}


def _means(runs: Sequence[Mapping], column: str) -> dict[int, float]:
    """Return the mean over each rank's GPUs; {} if one was not measured or a rank has none."""
    means = {run["rank"]: [gpu[column]["mean"] for gpu in run["gpus"] if gpu["used_by_framework"]] for run in runs}
    if any(not of_gpus or None in of_gpus for of_gpus in means.values()):
        return {}
    return {rank: sum(of_gpus) / len(of_gpus) for rank, of_gpus in means.items()}


def _straggler(
    runs: Sequence[Mapping],
    rank: int,
    part: str,
    word: str,
    evidence: Evidence,
    limit: float,
    text: str,
    lost_s: float | None = None,
    confidence: Confidence = ESTIMATED,
) -> Claim:
    """Return the finding about a rank that the others wait for.

    Args:
        part: of its step that is slow; word: the same for the title.
        evidence: what exceeds the limit comes first.
        text: the advice.
        lost_s: seconds lost; None = unknown.
    """
    worst = next(run for run in runs if run["rank"] == rank)
    # Nothing shows what would make other parts as quick as they are elsewhere; an input has a finding of its own.
    code = ""
    if part == "callbacks":
        code = (
            f"if rank != {rank} or batch % 100 == 0: ...  "
            f"# in the slow callback: worker {rank} does it every 100th batch only"
        )
    title = f"Worker {rank} holds the others back: {word}"
    named = {"worker": rank, "host": worst["host"], **evidence, "workers": len(runs)}
    finding = _finding(Imbalance.cause, f"worker{rank}.{part}", title, [rank], named, text, code)
    finding["confidence"], finding["threshold"] = confidence, {next(iter(evidence)): limit}
    if lost_s is not None:
        finding["lost_s"] = round(lost_s, 6)
        finding["saves_s"] = finding["lost_s"] if code else 0.0
        finding["severity"] = round(min(1.0, lost_s / worst["wall_s"]), 4)
    return finding


def _finding(cause: str, what: str, title: str, ranks: list[int], evidence: Evidence, text: str, code: str) -> Claim:
    """Return a finding about ranks, `<cause>:<what>`, whose cost is unknown; `text` and `code` are its advice."""
    return {
        "id": f"{cause}:{what}",
        "cause": cause,
        "title": title,
        "lost_s": None,
        "saves_s": None,
        "severity": None,
        "confidence": ESTIMATED,
        "evidence": cast(dict[str, Value], evidence),
        "threshold": {},
        "advice": {"text": text, "code": code, "before": ""},
        "gpus": [],
        "ranks": ranks,
    }


def session_verdict(runs: Sequence[Mapping], findings: Sequence[Claim]) -> JobVerdict | None:
    """Return the verdict on a job of several workers; None for a single process.

    A job is as fast as its slowest worker, so a worker that holds the others back is the verdict if there is one, else
    the worker that lost most, with those that are like it.

    Args:
        runs: the run objects of the report, one per rank.
        findings: from `session_findings`.
    """
    ranked = [run for run in runs if run["rank"] is not None]
    if len({run["rank"] for run in ranked}) < 2:
        return None
    groups = _groups(ranked)
    first = groups[0][0]
    straggler = next(iter(findings), None)
    least_lost_s = min(_lost_s(run) for run in ranked)
    # Each worker by itself loses less than twice what the straggler costs the job.
    if straggler is not None and least_lost_s < DOUBLE * (straggler["lost_s"] or 0.0) + 1e-9:
        first = next(run for run in ranked if run["rank"] == straggler["ranks"][0])
        lead: Claim | None = straggler
        text = _holding(straggler, first)
        groups.sort(key=lambda group: first not in group)
    else:
        straggler, lead = None, _costliest(first)
        text = _of_group(groups[0], len(ranked))
    return {
        "text": text,
        "id": first["id"],
        "rank": first["rank"],
        "finding": straggler and straggler["id"],
        "lost_s": lead and lead["lost_s"],
        "saves_s": lead and lead.get("saves_s"),
        "wall_s": first["wall_s"],
        "faster_up_to": gain_of(first["wall_s"], straggler["saves_s"] if straggler else _saves(first)),
        "advice": lead and lead["advice"],
        "groups": [
            {
                "ids": [run["id"] for run in group],
                "ranks": sorted(run["rank"] for run in group),
                "text": group[0]["verdict"],
                "lost_s": round(_lost_s(group[0]), 6),
            }
            for group in groups
        ],
    }


def _holding(finding: Mapping, run: Mapping) -> str:
    """Return the verdict on a straggler: its title, and what it costs."""
    if finding["cause"] == STUCK:
        return f"{finding['title']}."
    if not finding["lost_s"]:
        return f"{finding['title']}; cost unknown."
    lost = f"{duration(finding['lost_s'])} of {duration(run['wall_s'])}"
    gains = promise(run["wall_s"], finding.get("saves_range_s"), finding["saves_s"], "job")
    return f"{finding['title']} ({lost} lost).{gains}"


def _of_group(group: Sequence[Mapping], worker_count: int) -> str:
    """Return the names of alike workers and the verdict of the worst one."""
    if len(group) < worker_count:
        who = f"{workers([run['rank'] for run in group])} of {worker_count}"
    else:
        who = "Both workers" if worker_count == 2 else f"All {worker_count} workers"
    return f"{who}: {group[0]['verdict']}"


def _groups(runs: Sequence[Mapping]) -> list[list[Mapping]]:
    """Return the workers in groups with the same causes and about the same cost.

    The worst group and worker in front.
    """

    def badness(run: Mapping) -> tuple:
        blocking = bool(BLOCKING & _causes(run))
        unknown = is_unknown(run["verdict"]) or bool(_causes(run))
        return not blocking, -_lost_s(run), not unknown, run["rank"]

    groups: list[list[Mapping]] = []
    for run in sorted(runs, key=badness):
        of = (group for group in groups if _alike(group[0], run))
        group = next(of, None)
        if group is None:
            groups.append([run])
        else:
            group.append(run)
    return groups


def _alike(worst: Mapping, run: Mapping) -> bool:
    """Return True if a worker has the causes of a worse one, at about the same cost."""
    if _causes(worst) != _causes(run) or is_unknown(worst["verdict"]) != is_unknown(run["verdict"]):
        return False
    more = _lost_s(worst) - _lost_s(run)
    return _lost_s(worst) <= DOUBLE * _lost_s(run) or more <= A_TWENTIETH * (worst["wall_s"] or 0)


def _lost_s(run: Mapping) -> float:
    return min(run["wall_s"] or 0.0, sum(claim["lost_s"] or 0.0 for claim in own_findings(run)))


def _saves(run: Mapping) -> float:
    """Return the seconds that a worker's remedies save together, its wall time at most."""
    return min(run["wall_s"] or 0.0, sum(claim.get("saves_s") or 0.0 for claim in own_findings(run)))


def _costliest(run: Mapping) -> Claim | None:
    return cast(Claim | None, max(own_findings(run), key=lambda claim: claim["lost_s"] or 0.0, default=None))
