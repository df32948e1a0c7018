"""Input-bound: the GPU idles because the next batch is not there yet."""

import re
from collections.abc import Iterable
from typing import ClassVar

from gpu_util_callback.diagnosis.advice.input import InputWait, advise_kind, loader_workers
from gpu_util_callback.diagnosis.finding import Advice
from gpu_util_callback.diagnosis.rules.input_bound import InputBound as OfRuns
from gpu_util_callback.diagnosis.thresholds import Limits, Threshold
from gpu_util_callback.traces.hostside import Stage
from gpu_util_callback.traces.model import PS_PER_MS
from gpu_util_callback.traces.rules._rule import Finding, Scene, TraceRule

__all__ = ["InputBound"]


class InputBound(TraceRule):
    """GPUs idle for a batch for a good part of the steps; without a GPU, the host waits for it."""

    cause = "input_bound"
    title = OfRuns.title
    sources = ("steps", "calls of the host that fetch a batch")
    thresholds: ClassVar = {
        "wait_pct": Threshold(
            5, "XProf and torch-tb-profiler speak of 5 %; a trace times every wait exactly"
        ),
    }
    unknown = "the trace shows no steps, or no fetching of batches"

    def missing(self, scene: Scene) -> bool:
        return not scene.p.has_steps or not len(scene.p.waits)

    def find(self, scene: Scene, limits: Limits) -> Iterable[Finding]:
        p = scene.p
        total, lost = max(1, scene.total_ps), float(p.input_wait_ps().sum())
        pct = 100 * lost / total
        if pct < limits["wait_pct"]:
            return
        slowest = next((s for s in p.stages if s.self_ps > 0 and s.name != "Root"), None)
        yield self.finding(
            f"{'The GPU' if p.active else 'Training'} waits for input {pct:.0f} % of the time",
            _advice(scene, lost, slowest),
            lost_ps=lost,
            severity=lost / total,
            gpus=scene.gpus,
            threshold={"wait_pct": limits["wait_pct"]},
            evidence={
                "wait_pct": pct,
                "host_input_pct": 100 * float(p.host_input_ps().sum()) / total,
                "slowest_stage": slowest.path if slowest else None,
                "slowest_stage_self_ms": slowest.self_ps / PS_PER_MS if slowest else None,
            },
        )


def _advice(scene: Scene, lost_ps: float, slowest: Stage | None) -> Advice:
    run = scene.run
    if slowest is not None:
        return _stage_advice(slowest)
    if run.framework == "torch" and "input_workers" not in run.facts["fit"]:
        return loader_workers(
            "Batches come too late. Let worker processes of a DataLoader make them ahead of time; "
            "where some do so already, let more of them, or make each sample cheaper.",
            "loader = DataLoader(dataset, ..., num_workers=8, persistent_workers=True)",
            1.0,
        )
    steps = len(scene.p.steps)
    lost_ms = lost_ps / steps / PS_PER_MS
    needed_ms = scene.total_ps / steps / PS_PER_MS - lost_ms
    known = advise_kind(InputWait(run, run.whole, lost_ms, needed_ms)) if run.framework else None
    return known or Advice("Make the input pipeline faster, or let it work ahead of the training.")


def _stage_advice(stage: Stage) -> Advice:
    """Return advice by the kind of the slowest tf.data stage: its function is not known."""
    name = stage.name
    says = f"The input pipeline is too slow; most of its own work is in the stage {name}. "
    if re.fullmatch(r"Map(V\d+)?", name):
        return Advice(
            f"{says}Let several of its calls run at a time, unless its function is Python "
            "(py_function), which runs one at a time: write that with TensorFlow operations.",
            "ds = ds.map(your_function, num_parallel_calls=tf.data.AUTOTUNE)",
        )
    if name.startswith("Generator"):
        return Advice(
            f"{says}A Python generator makes one element after the other: read and prepare them "
            "with tf.data stages instead, which run in parallel.",
        )
    if re.fullmatch(r"(Padded)?Batch(V\d+)?", name):
        return Advice(
            f"{says}One thread copies its elements together. Let several do it.",
            "ds = ds.batch(batch_size, num_parallel_calls=tf.data.AUTOTUNE)"
            if name.startswith("Batch")
            else "",
        )
    if name.startswith(("TFRecord", "TextLine", "FixedLengthRecord")):
        return Advice(
            f"{says}Read several files at a time.",
            "ds = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)"
            if name.startswith("TFRecord") else "",
        )  # fmt: skip
    return Advice(
        f"{says}Do less in it, or store its result once and read that.",
        'ds.save("prepared")  # once; then ds = tf.data.Dataset.load("prepared")',
    )
