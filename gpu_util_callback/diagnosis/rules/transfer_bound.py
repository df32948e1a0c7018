"""Transfer-bound: copies between host and GPU that no kernels hide, or a link that is too slow."""

from typing import NamedTuple

import numpy as np

from gpu_util_callback.diagnosis.advice import host as host_advice
from gpu_util_callback.diagnosis.advice.snippets import (
    ALL_BYTES,
    AS_FLOATS,
    TO_BYTES,
    WRAPPED,
    has_keras_fit,
    idioms,
    images_as_floats,
)
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.samples import (
    RARE_NS,
    Sampled,
    link_bytes_per_s,
    mean_of,
    sampled,
    shared_spans,
)
from gpu_util_callback.diagnosis.evidence.windows import Share, share_of, stretches_of, traced_gpus
from gpu_util_callback.diagnosis.rule import Advice, Evidence, Finding, Findings, Rule, significant
from gpu_util_callback.diagnosis.thresholds import MATTERS_PCT, MIN_S, SIGNIFICANT, TRACED_PCT, Limits, Threshold
from gpu_util_callback.recording.manifest_facts import SourceFacts
from gpu_util_callback.words import gpu_names


class TransferBound(Rule):
    """Profiler windows show exposed copies; or PCIe traffic fills the link for a while.

    A link below its best generation or width is normal at idle, and irrelevant while little is
    copied: it is reported only if the traffic fills it. NVML's utilization counts copies as it
    counts kernels, so time at a full link is lost while hardly any SM has work (GPM). Otherwise, or
    where that was not sampled, it is lost only while not even copies run: GPM's mean over all SMs
    does not show for how long kernels ran.
    """

    cause = "transfer_bound"
    title = "Transfer-bound"
    look = "⇄", "orange"
    sources = ("profiler windows", "or: PCIe traffic and link of the GPU, and GPM SM active or GPU utilization")
    thresholds = {
        "exposed_copy_pct": TRACED_PCT,
        "link_used_pct": Threshold(70, "a PCIe link delivers 75-85 % of its nominal rate: from 70 % on it is full"),
        "copies_alone_sm_pct": Threshold(
            5, "copies alone keep up to 2.6 % of an H200's SMs active; where more are, kernels run for an unknown time"
        ),
        "idle_pct": Threshold(MATTERS_PCT.default, "of the time, with a full link: as much matters anywhere"),
        "min_s": MIN_S,
        **SIGNIFICANT,
    }
    unknown = "neither profiler windows nor PCIe traffic were recorded"
    unknown_in_trace = "the trace has no GPU events"

    def missing(self, run: Run) -> bool:
        return not traced_gpus(run) and not any(run.column(gpu, "pcie_rx_bytes_per_s") for gpu in run.used_gpus)

    def find(self, run: Run, limits: Limits) -> Findings:
        yield from self._traced(run, limits)
        if not traced_gpus(run):
            yield from significant(self._full_links(run, limits), run.present_ns, limits)

    def _traced(self, run: Run, limits: Limits) -> Findings:
        """Yield the findings about copies that no kernel hides, of profiler windows or a trace."""
        limit = limits["exposed_copy_pct"]
        uploaded = run.source["uploaded_ns"] if run.source is not None else 0
        for share in stretches_of(run, limit, "copy_h2d", "copy_d2h"):
            # Most of it is copied once: the model, in a trace that began too early.
            if uploaded and 2 * uploaded >= share.lost_ns:
                yield self._upload(run, share.limited_to(uploaded))
                share = share.without(uploaded)
            if share.pct < limit:  # little is left beside the upload
                continue
            # To the GPU, and back.
            down, up = (share_of(run, way, where=share.where) for way in ("copy_h2d", "copy_d2h"))
            assert down is not None and up is not None
            evidence: Evidence = {"exposed_copy_pct": run.rounded(share.pct, 1)}
            degraded = next((text for gpu in share.gpus if (text := _degraded(run, gpu))), None)
            evidence |= (
                {"exposed_h2d_pct": down.pct, "exposed_d2h_pct": up.pct, **_copied(run.source)}
                if run.source is not None
                else {
                    "to_gpu_ms_per_step": round(down.ms_per_step, 3),
                    "from_gpu_ms_per_step": round(up.ms_per_step, 3),
                    "pcie_link": degraded,
                }
            )
            yield self.loss(
                share,
                _advice(run, degraded, up.ms_per_step > down.ms_per_step),
                evidence=evidence,
                of_trace=f"Copies that nothing hides take {share.pct:.0f} % of the {share.whole}",
            )

    def _upload(self, run: Run, share: Share) -> Finding:
        """Return the finding about copying the model to the GPUs, in a trace that began too early."""
        return self.loss(
            share,
            host_advice.traced_too_early(run, "The upload before the kernels", share.lost_ns),
            evidence={"exposed_copy_pct": share.pct},
            of_trace=f"The upload before the kernels takes {share.pct:.0f} % of the {share.whole}",
            detail="upload",
        )

    def _full_links(self, run: Run, limits: Limits) -> Findings:
        """Yield the findings about PCIe links that are full while the GPU idles, from samples.

        Of the GPUs of a stretch the first one gives the evidence.
        """
        links = {gpu: link for gpu in run.working_gpus if (link := _link(run, limits, gpu))}
        losses_by_gpu = {gpu: (link.samples, link.lost) for gpu, link in links.items()}
        enter = limits["idle_pct"] / 100
        for span in shared_spans(losses_by_gpu, enter=enter, min_s=limits["min_s"]):
            link, mask = links[span.gpus[0]], span.inside
            full = mask & link.full
            degraded = _degraded(run, span.gpus[0])
            yield self.of_stretch(
                span,
                title=f"{self.title} ({gpu_names(span.gpus)}: PCIe is full)",
                evidence={
                    "link_used_pct": mean_of(link.use[full]),
                    "gb_per_s": mean_of(link.rate[full] / 1e9, 2),
                    "link_gb_per_s": mean_of(link.limit[mask] / 1e9, 2),
                    "gpu_active_pct": mean_of(link.active[mask]),
                    "sm_active_pct": mean_of(link.sm_active[mask]),
                    "pcie_link": degraded,
                },
                advice=_advice(run, degraded, False, full=True),
            )


def _copied(source: SourceFacts) -> Evidence:
    """Return the kind, rate and size of a trace's copies, unknown = None.

    `pageable_pct` is of the copies' time, `gb_per_s` the rate of the copies that took longest, `bytes` of all.
    """
    total = sum(copy["total_ns"] for copy in source["copies"])
    pageable = sum(copy["total_ns"] for copy in source["copies"] if copy.get("memory") == "pageable")
    longest = max(source["copies"], key=lambda copy: copy["total_ns"], default=None)
    copied_bytes, took_ns = (longest.get("bytes"), longest["total_ns"]) if longest else (None, 0)
    return {
        "pageable_pct": 100 * pageable / total if total else None,
        "gb_per_s": copied_bytes / took_ns if copied_bytes and took_ns else None,
        "bytes": sum(copy.get("bytes") or 0 for copy in source["copies"]) or None,
    }


class _Link(NamedTuple):
    """A GPU's PCIe link per sample: in use (%), actual and possible traffic (bytes per second).

    Attributes:
        active: NVML's utilization, kernels and copies alike, %.
        sm_active: mean share of the SMs with work, %, which is no share of time; NaN = not sampled.
        full: mask of the samples at which traffic filled the link.
        lost: time lost in each sample, ns.
    """

    samples: Sampled
    use: np.ndarray
    rate: np.ndarray
    limit: np.ndarray
    active: np.ndarray
    sm_active: np.ndarray
    full: np.ndarray
    lost: np.ndarray


def _or(values: np.ndarray, best: float | None) -> np.ndarray:
    """Return values, the unknown ones replaced by the link's best: only traffic at that rate certainly fills it."""
    return values if best is None else np.where(np.isnan(values), best, values)


def _link(run: Run, limits: Limits, gpu: int) -> _Link | None:
    """Return a GPU's link per sample of its traffic; None if it was never full, or that is not known.

    In use is the direction with more traffic. Where utilization was not sampled, the GPU counts as active.
    """
    samples = sampled(run, gpu, "pcie_rx_bytes_per_s")
    if samples is None:
        return None
    rate = np.fmax(samples.at("pcie_rx_bytes_per_s"), samples.at("pcie_tx_bytes_per_s"))
    facts = run.gpu(gpu)
    generation = _or(samples.at("pcie_generation", RARE_NS), facts.get("pcie_generation_max"))
    width = _or(samples.at("pcie_width", RARE_NS), facts.get("pcie_width_max"))
    limit = link_bytes_per_s(generation, width)
    use = 100 * rate / limit
    full = np.nan_to_num(use) >= limits["link_used_pct"]
    if not full.any():
        return None
    active = np.nan_to_num(samples.at("utilization_pct"), nan=100.0)
    sm_active = samples.at("sm_active_pct")
    # Copies run concurrently with kernels: only time without kernels can have been lost to them.
    at_work = np.where(sm_active < limits["copies_alone_sm_pct"], 0, np.clip(active, 0, 100))
    lost = np.where(full, samples.length_ns * (1 - at_work / 100), 0)
    return _Link(samples, use, rate, limit, active, sm_active, full, lost)


def _degraded(run: Run, gpu: int) -> str | None:
    """Return the link under load compared with its best state, if it is below that; None = it is not, or not known."""
    facts = run.gpu(gpu)
    best_generation, best_width = facts.get("pcie_generation_max"), facts.get("pcie_width_max")
    generation, width = (run.highest(gpu, name) for name in ("pcie_generation", "pcie_width"))
    if not (best_generation and best_width and generation and width):
        return None
    if generation >= best_generation and width >= best_width:
        return None
    return f"generation {generation:.0f} x{width:.0f}, could be generation {best_generation} x{best_width}"


def _advice(run: Run, degraded: str | None, from_gpu: bool, full: bool = False) -> Advice:
    """Return advice on copies, by the state of the link, their direction and the framework.

    Args:
        degraded: the link below its best state, as `_degraded` says it; None = it is not.
        from_gpu: most of the time goes to copies back to the host.
        full: the copies fill the link.
    """
    if degraded:
        return Advice(
            f"The PCIe link runs below what it could ({degraded}). Reseat the card, use another "
            "slot, or look for a riser cable and a BIOS setting.",
            "nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.gen.max,"
            "pcie.link.width.current,pcie.link.width.max --format=csv  # while it trains",
        )
    if from_gpu:
        return Advice(
            "Results are copied back from the GPU in every step. Return fewer of them from the "
            "step, and keep metrics on the GPU."
        )
    if run.other_program:
        return Advice(
            "Data is copied to the GPU while it computes nothing. Keep there what is used again, "
            "and copy the rest from pinned memory, on a stream of its own, while kernels run."
        )
    says = "Batches are made ready and copied to the GPU while it has nothing else to do. "
    kind = run.input_kind
    unpinned = run.fit.get("input_pin_memory") is not True
    if full:  # larger copies do not help a full link
        says = "The copies to the GPU fill the link, and the GPU waits for them. "
    elif run.framework == "" and run.fit.get("input_pin_memory") is False:
        return Advice(f"{says}From pinned memory the copy overlaps with compute.")
    elif run.framework == "torch" and unpinned and ("dataloader" in kind or not kind):
        more = "" if has_keras_fit(run) else "\nx = x.to(device, non_blocking=True)"
        return Advice(
            f"{says}From pinned memory the copy overlaps with compute.",
            f"loader = DataLoader(dataset, ..., pin_memory=True){more}",
        )
    elif (
        run.framework == "tensorflow"
        and has_keras_fit(run)
        and kind == "tf.data"
        and not run.fit.get("strategy")
        and len(run.used_gpus) < 2
    ):
        return Advice(
            f"{says}Copy the next one while this one computes.",
            'ds = ds.apply(tf.data.experimental.prefetch_to_device("/GPU:0"))  # as its last step',
        )
    if not images_as_floats(run):  # it is not known what could be sent smaller
        return Advice(f"{says}Send fewer bytes: smaller types, converted on the GPU.")
    changes = WRAPPED if has_keras_fit(run) else ""
    return Advice(
        f"{says}The first images hold whole numbers from 0 to 255 as floats. {ALL_BYTES} If so, send them as "
        f"uint8, a quarter of the bytes, and convert them on the GPU{changes and f'; this changes {changes}'}.",
        _as_uint8(run, kind),
        0.75,  # the images are nearly all of the bytes
        question=True,
        changes=changes,
        proof="float_images_jax",
    )


def _as_uint8(run: Run, kind: str) -> str:
    """Return both halves: the line where batches are made, and the one where they are used."""
    words = idioms(run)
    if not has_keras_fit(run):
        return f"{words.to_uint8}  # before the copy\n{words.from_uint8}" if words.to_uint8 else ""
    conversion = TO_BYTES  # of arrays
    if kind == "tf.data":
        conversion = "ds = ds.map(lambda x, y: (tf.cast(x, tf.uint8), y), num_parallel_calls=tf.data.AUTOTUNE)"
    elif "dataloader" in kind:
        conversion = f"{words.to_uint8}  # where batches are made"
    return f"{conversion}\n{AS_FLOATS}"
