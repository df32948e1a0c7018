"""What holds the GPUs of a trace back: one function per cause, thresholds in the open.

Each rule sees one process of the trace and returns findings in the contract's form. A source that
is missing makes a rule silent; "unknown" never counts as evidence. Idle time is judged only within
steps: around them a trace holds start-up, the profiler itself and whatever else was going on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from gpu_util_callback.traces.hostside import culprit
from gpu_util_callback.traces.model import PS_PER_MS, PS_PER_US

if TYPE_CHECKING:
    from gpu_util_callback.traces.analysis import Analysis, ProcessAnalysis

__all__ = ["THRESHOLDS", "find", "find_in"]

Finding = dict[str, Any]

# Shares are of the traced steps, mean over the GPUs at work. A trace times every gap exactly: some
# limits lie below those of the rules that judge a whole run by samples.
THRESHOLDS: dict[str, float] = {
    "input_wait_share": 0.05,  # XProf and torch-tb-profiler speak of 5 %
    "exposed_copy_share": 0.10,  # TraceLens flags 5 % a direction; two directions make ten
    "exposed_collective_share": 0.10,  # torch-tb-profiler warns at 10 %, XProf at 15 %
    "idle_launch_share": 0.15,  # XProf calls 15 % of kernel launch time high
    "launch_mean_kernel_us": 100.0,  # a launch costs 5-10 µs: a longer kernel hides ten of them
    "launch_kernels_per_step": 10.0,  # fewer: their launches are not what a step consists of
    "idle_sync_share": 0.10,  # reading metrics costs 0.2-1 ms: a tenth of a step of 2-10 ms
    "idle_host_share": 0.20,  # a profiler alone adds 10-20 % to the host's side of small steps
    "plain_matrix_share": 0.20,  # below, mixed precision gains less than it costs to try
    "imbalance_share": 0.20,  # of the busiest one's time: equal GPUs differ by less
    "linked_kernels_share": 0.5,  # of most kernels it must be known what started them
}

_MATRIX = re.compile(
    r"gemm|conv(?!er)|cudnn|winograd|matmul|wgrad|dgrad|fprop|Cijk_|attention", re.IGNORECASE
)
_HELPER = re.compile(
    r"computeOffsets|nchwToNhwc|nhwcToNchw|convertTensor|im2col|Im3d2Col|bn_(fw|bw)|bnorm|batchnorm"
    r"|pooling|reorder|transpose|splitKreduce|scalePackedTensor|gemv|depthwise",
    re.IGNORECASE,
)


def find(analysis: Analysis) -> list[Finding]:
    """All findings of a trace, the one that lost most time first."""
    findings = _merged(f for p in analysis.processes for f in find_in(p, analysis))
    findings.extend(_ranks_imbalance(analysis))
    return _in_order(findings)


def find_in(p: ProcessAnalysis, analysis: Analysis) -> list[Finding]:
    """What one process says of itself."""
    findings = [finding for rule in _RULES for finding in rule(p, analysis)]
    for finding in findings:
        finding["ranks"] = [] if p.process.rank is None else [p.process.rank]
    return _in_order(findings)


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """The same of several processes once, for all their GPUs; numbers are of the worst one.

    Processes run side by side: what each of them lost is lost once.
    """
    alike: dict[tuple[str, str, str], Finding] = {}
    for finding in _in_order(list(findings)):
        key = (finding["cause"], finding["title"], finding["advice"]["text"])
        first = alike.setdefault(key, finding)
        if first is not finding:
            for of in ("gpus", "ranks"):
                first[of] = sorted({*first[of], *finding[of]})
    return list(alike.values())


def _in_order(findings: list[Finding]) -> list[Finding]:
    """Sorted by time lost (unknown last), with ids that are unique and stable."""
    findings = sorted(findings, key=lambda f: (f["lost_s"] is None, -(f["lost_s"] or 0.0)))
    seen: dict[str, int] = {}
    result = []
    for finding in findings:
        cause = finding["cause"]
        seen[cause] = seen.get(cause, 0) + 1
        key = cause if seen[cause] == 1 else f"{cause}.{seen[cause]}"
        result.append({**finding, "id": key})
    return result


def _finding(
    cause: str,
    title: str,
    text: str,
    *,
    lost_ps: float | None,
    severity: float,
    threshold: tuple[str, ...],
    gpus: list[int],
    code: str = "",
    confidence: str = "measured",
    **evidence: Any,
) -> Finding:
    return {
        "cause": cause,
        "title": title,
        "lost_s": None if lost_ps is None else lost_ps / PS_PER_MS / 1000,
        "severity": severity,
        "confidence": confidence,
        "evidence": evidence,
        "threshold": {name: THRESHOLDS[name] for name in threshold},
        "advice": {"text": text, "code": code},
        "gpus": gpus,
        "ranks": [],
    }


def _total_ps(p: ProcessAnalysis) -> int:
    return int((p.steps.end_ps - p.steps.start_ps).sum())


def _whole(p: ProcessAnalysis) -> str:
    return "step" if p.has_steps else "trace"


def _gpus(p: ProcessAnalysis) -> list[int]:
    return [d.index for d in p.active]


# Calls of the host by which the framework shows that was traced.
_CALLS = {
    "jax": ("PjitFunction(",),  # first: it may take its input from tf.data
    "tensorflow": ("ExecutorState::", "IteratorGetNext"),
}


def _framework(analysis: Analysis) -> str:
    """ "torch", "jax", "tensorflow", or "" where the trace does not show it (Nsight)."""
    for framework, calls in _CALLS.items():
        if any(name.startswith(calls) for name in analysis.trace.names.strings):
            return framework
    return "torch" if analysis.trace.format == "kineto" else ""


def _input_bound(p: ProcessAnalysis, analysis: Analysis) -> Iterator[Finding]:
    total = _total_ps(p)
    lost = float(p.input_wait_ps().sum())
    if not p.has_steps or not total or lost / total < THRESHOLDS["input_wait_share"]:
        return
    slowest = next((s for s in p.stages if s.self_ps > 0 and s.name != "Root"), None)
    where = f"; its slowest stage is {slowest.name}" if slowest else ""
    code, framework = "", _framework(analysis)
    if framework == "torch":
        text = "Load batches in worker processes and copy from pinned memory."
        code = "DataLoader(..., num_workers=4, pin_memory=True, persistent_workers=True)"
    else:
        text = f"Make the input pipeline faster, or let it work ahead{where}."
        if framework == "tensorflow":
            code = (
                "ds = ds.map(your_function, num_parallel_calls=tf.data.AUTOTUNE)"
                ".prefetch(tf.data.AUTOTUNE)"
            )
    idle = "The GPU" if p.active else "Training"
    yield _finding(
        "input_bound",
        f"{idle} waits for input {100 * lost / total:.0f} % of the time",
        text,
        code=code,
        lost_ps=lost,
        severity=lost / total,
        threshold=("input_wait_share",),
        gpus=_gpus(p),
        input_wait_share=lost / total,
        host_input_share=float(p.host_input_ps().sum()) / total,
        slowest_stage=slowest.path if slowest else None,
        slowest_stage_self_ms=slowest.self_ps / PS_PER_MS if slowest else None,
    )


def _transfer_bound(p: ProcessAnalysis, analysis: Analysis) -> Iterator[Finding]:
    shares = {c: p.share(c) for c in ("copy_h2d", "copy_d2h")}
    share = sum(shares.values())
    if share < THRESHOLDS["exposed_copy_share"]:
        return
    copies = [c for d in p.active for c in d.copies if c.direction in ("h2d", "d2h")]
    pageable = sum(c.total_ps for c in copies if c.memory == "pageable")
    total = sum(c.total_ps for c in copies) or 1
    worst = max(copies, key=lambda c: c.total_ps, default=None)
    text = (
        "Copy from pinned memory, so that copies run beside kernels."
        if pageable > total / 2
        else "Copy the next batch while this one computes, and copy less: smaller types."
    )
    yield _finding(
        "transfer_bound",
        f"Copies that nothing hides take {100 * share:.0f} % of the {_whole(p)}",
        text,
        lost_ps=share * _total_ps(p),
        severity=share,
        threshold=("exposed_copy_share",),
        gpus=_gpus(p),
        exposed_h2d_share=shares["copy_h2d"],
        exposed_d2h_share=shares["copy_d2h"],
        pageable_share=pageable / total,
        gb_per_s=worst.gb_per_s if worst else None,
        bytes=sum(c.bytes or 0 for c in copies) or None,
    )


def _launch_bound(p: ProcessAnalysis, analysis: Analysis) -> Iterator[Finding]:
    share = p.share("idle_launch")
    kernels = sum(d.launches.kernels for d in p.active)
    linked = sum(d.launches.linked for d in p.active)
    if not p.idle_judged or share < THRESHOLDS["idle_launch_share"] or not kernels:
        return
    if linked / kernels < THRESHOLDS["linked_kernels_share"]:
        return
    mean_us = sum(k.total_ps for d in p.active for k in d.kernels) / kernels / PS_PER_US
    per_step = kernels / max(len(p.steps), 1) / len(p.active)
    if mean_us > THRESHOLDS["launch_mean_kernel_us"]:
        return
    if per_step < THRESHOLDS["launch_kernels_per_step"]:
        return
    framework = _framework(analysis)
    yield _finding(
        "launch_bound",
        f"The GPU waits {100 * share:.0f} % of the time between short kernels",
        "Give the GPU more per launch: make the batch larger."
        if framework == "jax"  # which compiles already
        else "Give the GPU more per launch: compile the step, or make the batch larger.",
        code={
            "torch": "model = torch.compile(model, mode='reduce-overhead')",
            "tensorflow": "model.compile(..., jit_compile=True)",
        }.get(framework, ""),
        lost_ps=share * _total_ps(p),
        severity=share,
        threshold=("idle_launch_share", "launch_mean_kernel_us", "launch_kernels_per_step"),
        gpus=_gpus(p),
        idle_launch_share=share,
        mean_kernel_us=mean_us,
        kernels_per_step=per_step,
        short_kernels_share=max((d.launches.short_share or 0.0) for d in p.active),
    )


def _sync_bound(p: ProcessAnalysis, analysis: Analysis) -> Iterator[Finding]:
    share = p.share("idle_sync")
    if not p.idle_judged or share < THRESHOLDS["idle_sync_share"]:
        return
    keras = _framework(analysis) == "tensorflow"
    yield _finding(
        "sync_bound",
        f"The GPU runs dry {100 * share:.0f} % of the time because the host waits for it",
        "Let several steps run between two readings of the metrics."
        if keras
        else "Read results from the GPU less often: fewer .item(), print and metrics in each step.",
        code="model.compile(..., steps_per_execution=8)" if keras else "",
        lost_ps=share * _total_ps(p),
        severity=share,
        threshold=("idle_sync_share",),
        gpus=_gpus(p),
        idle_sync_share=share,
    )


def _host_stall(p: ProcessAnalysis, analysis: Analysis) -> Iterator[Finding]:
    share = p.share("idle_host")
    if not p.idle_judged or share < THRESHOLDS["idle_host_share"]:
        return
    window = (int(p.steps.start_ps[0]), int(p.steps.end_ps[-1]))
    worst = max(p.active, key=lambda d: int(d.account.steps["idle_host"].sum()))
    name = culprit(p.process, analysis.trace.names, worst.account.sets["idle_host"].clip(*window))
    yield _finding(
        "host_stall",
        f"The GPU idles {100 * share:.0f} % of the time while the host does something else",
        f"Most of that time the host is in {name}: move it out of the step or make it faster."
        if name
        else "Look at what the host does between the launches: Python, logging, callbacks.",
        lost_ps=share * _total_ps(p),
        severity=share,
        threshold=("idle_host_share",),
        gpus=_gpus(p),
        idle_host_share=share,
        host_activity=name or None,
    )


def _communication_bound(p: ProcessAnalysis, analysis: Analysis) -> Iterator[Finding]:
    share = p.share("collective")
    if share < THRESHOLDS["exposed_collective_share"]:
        return
    yield _finding(
        "communication_bound",
        f"Communication that nothing hides takes {100 * share:.0f} % of the {_whole(p)}",
        "Overlap communication with the backward pass, or accumulate gradients over more batches.",
        lost_ps=share * _total_ps(p),
        severity=share,
        threshold=("exposed_collective_share",),
        gpus=_gpus(p),
        exposed_collective_share=share,
    )


def _no_tensor_cores(p: ProcessAnalysis, analysis: Analysis) -> Iterator[Finding]:
    for d in p.active:
        capability = d.device.facts.get("compute_capability")
        if d.device.facts.get("vendor", "Nvidia").lower() != "nvidia":
            continue
        if capability is not None and capability[0] < 7:
            continue
        kernels = [k for k in d.kernels if not k.collective]
        total = sum(k.total_ps for k in kernels) or 1
        used = sum(k.total_ps for k in kernels if k.tensor_core == "yes")
        unknown = sum(k.total_ps for k in kernels if k.tensor_core == "unknown")
        plain = [
            k
            for k in kernels
            if k.tensor_core == "no" and _MATRIX.search(k.name) and not _HELPER.search(k.name)
        ]
        share = sum(k.total_ps for k in plain) / total
        # Kernels that may be tensor-core kernels must not be outvoted by names alone.
        if capability is None or used or unknown / total >= share:
            continue
        if share < THRESHOLDS["plain_matrix_share"]:
            continue
        kind = "bfloat16" if capability[0] >= 8 else "float16"
        yield _finding(
            "no_tensor_cores",
            f"No kernel on GPU {d.index} uses the tensor cores",
            "Train in mixed precision.",
            code={
                "torch": f'with torch.autocast("cuda", dtype=torch.{kind}): ...',
                "tensorflow": f'keras.mixed_precision.set_global_policy("mixed_{kind}")',
                "jax": f"x = x.astype(jnp.{kind})  # and the parameters, inside the loss function",
            }.get(_framework(analysis), ""),
            lost_ps=None,
            severity=share,
            threshold=("plain_matrix_share",),
            gpus=[d.index],
            plain_matrix_share=share,
            unknown_share=unknown / total,
            compute_capability=capability,
            largest=plain[0].name,
        )


def _imbalance(p: ProcessAnalysis, analysis: Analysis) -> Iterator[Finding]:
    if len(p.active) < 2 or len(p.steps) == 0:
        return
    window = (int(p.steps.start_ps[0]), int(p.steps.end_ps[-1]))
    busy = {d.index: d.kernel_busy.clip(*window).total for d in p.active}
    most, least = max(busy.values()), min(busy.values())
    if not most or (most - least) / most < THRESHOLDS["imbalance_share"]:
        return
    share = (most - least) / max(_total_ps(p), 1)
    if share < THRESHOLDS["input_wait_share"]:  # a difference between two idle GPUs is none
        return
    yield _finding(
        "imbalance",
        f"GPUs do unequal work: {100 * least / most:.0f} % between the least and the most busy",
        "Give every GPU the same share of the batch.",
        lost_ps=float(most - least),
        severity=share,
        threshold=("imbalance_share",),
        gpus=sorted(busy, key=lambda i: busy[i]),
        kernel_busy_ms={str(i): v / PS_PER_MS for i, v in busy.items()},
    )


def _ranks_imbalance(analysis: Analysis) -> Iterator[Finding]:
    """The same between processes: every rank should compute as long as the others."""
    working = [p for p in analysis.processes if any(d.launches.kernels for d in p.devices)]
    if len(working) < 2:
        return
    busy, total = [], 0
    for p in working:
        window = (int(p.steps.start_ps[0]), int(p.steps.end_ps[-1]))
        work = [d.account.sets["kernel"].clip(*window).total for d in p.active]
        busy.append(sum(work) / len(work))
        total = max(total, _total_ps(p))
    most, least = max(busy), min(busy)
    if not most or (most - least) / most < THRESHOLDS["imbalance_share"]:
        return
    if (most - least) / max(total, 1) < THRESHOLDS["input_wait_share"]:
        return
    order = sorted(range(len(working)), key=lambda i: busy[i])
    finding = _finding(
        "imbalance",
        f"Ranks do unequal work: {100 * least / most:.0f} % between the least and the most busy",
        "Give every rank the same share of the work.",
        lost_ps=most - least,
        severity=(most - least) / max(total, 1),
        threshold=("imbalance_share",),
        gpus=[d.index for i in order for d in working[i].active],
        kernel_ms={working[i].process.host: busy[i] / PS_PER_MS for i in order},
    )
    ranks = [working[i].process.rank for i in order]
    finding["ranks"] = [r for r in ranks if r is not None]
    yield finding


_RULES: tuple[Callable[[Any, Any], Iterator[Finding]], ...] = (
    _input_bound,
    _transfer_bound,
    _launch_bound,
    _sync_bound,
    _host_stall,
    _communication_bound,
    _no_tensor_cores,
    _imbalance,
)
