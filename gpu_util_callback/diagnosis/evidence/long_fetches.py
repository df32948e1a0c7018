"""A few fetches that take long, where the others come at once: shards, refills, a network."""

import math
from dataclasses import dataclass, replace

import numpy as np

from gpu_util_callback.diagnosis.advice.input import InputWait, ahead_code, loader_workers
from gpu_util_callback.diagnosis.advice.snippets import batches_an_epoch
from gpu_util_callback.diagnosis.evidence.blocks import StepBlocks
from gpu_util_callback.diagnosis.evidence.run import Run
from gpu_util_callback.diagnosis.finding import Advice, Range
from gpu_util_callback.words import duration, percent

__all__ = ["LongFetches", "advise_fills", "advise_rare", "fills", "long_fetches"]

# They are rare up to this share of the steps, and the wait is theirs from this share of it.
RARE, MOST = 0.05, 0.8
# Waits of at least half the middle one of those count as their like; shorter ones than so many
# steps are no fetch that "takes long": a queue ahead of the loop evens them out.
ALIKE, LONG = 0.5, 10
# Two may have come by chance.
LEAST = 3
# More batches than this seldom fit into memory.
MOST_READY = 256
# Buffers that fill as each epoch begins are what the wait is about from this share of it.
MOSTLY, LEAST_FILLS = 0.6, 2


@dataclass(frozen=True, slots=True)
class LongFetches:
    """How many fetches hold which share (0-1) of the wait, and how long each took."""

    count: int
    each_ms: float
    share: float


def long_fetches(steps: StepBlocks, blocks: slice, rows: int) -> LongFetches | None:
    """The few fetches that hold most of the wait of these blocks; None where the wait is steady."""
    wait = int(steps["wait_ns"][blocks].sum())
    if wait <= 0:
        return None
    tops = np.sort(steps["top_wait_ns"][blocks])[::-1]
    reached = int(np.searchsorted(np.cumsum(tops), MOST * wait)) + 1
    if reached <= len(tops):
        count = int((tops >= ALIKE * np.median(tops[:reached])).sum())
        held = int(tops[:count].sum())
    else:  # several of them in a block
        count = int(steps["wait_events"][blocks].sum())
        held = int(steps["event_wait_ns"][blocks].sum())
    if not LEAST <= count <= RARE * rows or held < MOST * wait:
        return None
    work = int(steps["duration_ns"][blocks].sum() - steps["compile_ns"][blocks].sum()) - wait
    if held / count < LONG * max(0, work) / max(1, rows):
        return None
    return LongFetches(count, held / count / 1e6, held / wait)


def fills(run: Run, where: Range, wait_ns: int, step_ns: float) -> LongFetches | None:
    """The first fetches of epochs, where they take long and hold most of the wait.

    Args:
        step_ns: what a step takes without its wait.
    """
    first = run.phases.of("input_setup", account="").get("")
    if first is None or first.joined:
        return None
    inside = (first["start_ns"] >= where.start_ns) & (first["end_ns"] <= where.end_ns)
    spent = first["self_ns"][inside]
    count, held = len(spent), int(spent.sum())
    if count < LEAST_FILLS or held < MOSTLY * wait_ns or held / count < LONG * step_ns:
        return None
    return LongFetches(count, held / count / 1e6, min(1.0, held / wait_ns))


def advise_fills(wait: InputWait, filling: LongFetches) -> Advice | None:
    """What to do about a shuffle that fills its buffer as each epoch begins; None where there is
    none, or another stage is too slow all the time.
    """
    run, stage = wait.run, wait.stage
    shuffles = any(one.op.startswith("Shuffle") for one in wait.stages)
    in_time = stage is not None and stage.ms_per_batch < wait.needed_ms
    if not (shuffles and in_time) or run.fact("fit", "loop") == "custom":
        return None
    return Advice(
        f"The first batch of an epoch takes {duration(filling.each_ms / 1e3)}, and these hold "
        f"{percent(100 * filling.share)} of the wait: shuffle fills its buffer before it. Repeat "
        "before you shuffle, and the buffer stays full from one epoch into the next.",
        "ds = ds.repeat().shuffle(buffer_size)  # where it is shuffled now\n"
        f"model.fit(ds, ..., steps_per_epoch={batches_an_epoch(run)})",
        filling.share * (1 - 1 / filling.count),
    )


def advise_rare(wait: InputWait, long: LongFetches, usual: Advice) -> Advice:
    """What to do about them, `usual` being the advice for a steady wait: more workers alone do not
    make a rare long fetch shorter, but what is kept ready hides it.
    """
    run = wait.run
    says = (
        f"{long.count} fetches took {duration(long.each_ms / 1e3)} each and hold "
        f"{percent(100 * long.share)} of the wait; the others came at once. "
    )
    kind = str(run.fact("fit", "input_kind", default="")).lower()
    if wait.stage is not None or kind in ("", "numpy", "grain"):
        return replace(usual, text=says + usual.text)
    wanted = math.ceil(long.each_ms / max(0.1, wait.needed_ms))
    ready = max(2, min(MOST_READY, wanted))
    says += (
        "See what happens only then: a shard is opened, a shuffle buffer is filled again, a "
        f"network is asked. It takes as long as {wanted} steps: with {ready} batches ready (if "
        f"they fit into memory) {'it' if ready == wanted else 'part of it'} passes unnoticed."
    )
    # One that makes batches in turn keeps up as far as all of them together take less than steps.
    saves = wait.saves(wait.lost_ms) * min(1.0, ready / wanted)
    workers = int(run.fact("fit", "input_workers") or 0)
    if "dataloader" in kind:
        workers = max(2, workers)
        # What several of them meet at the same time is waited for once.
        shared = max(1, workers // max(1, int(run.fact("fit", "input_workers") or 0)))
        return loader_workers(
            says,
            f"loader = DataLoader(dataset, ..., num_workers={workers}, persistent_workers=True, "
            f"prefetch_factor={math.ceil(ready / workers)})",
            wait.saves(wait.lost_ms) * (1 - (1 - min(1.0, ready / wanted)) / shared),
        ).safe_on(run.framework, run.device)
    if "pydataset" in kind and run.fact("fit", "loop") != "custom":
        code = (
            f"dataset.workers = {max(2, workers)}  # your PyDataset, before model.fit(dataset)\n"
            f"dataset.max_queue_size = {ready}"
        )
    elif kind == "tf.data":
        code = f"ds = ds.prefetch({ready})  # as its last step"
    else:
        code = ahead_code(
            kind == "generator", str(run.fact("fit", "input_class") or "generate"), ready,
            fit=run.fact("fit", "loop") != "custom",
        )  # fmt: skip
    return Advice(says, code, saves)
