"""The few long fetches that hold much of a wait: which batches they are, and what hides them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpu_util_callback.diagnosis.advice.input import PERSISTENT_WORKERS, SetUp, advise, ahead_code, at_line, made_once
from gpu_util_callback.diagnosis.advice.input_wait import InputWait, brief
from gpu_util_callback.diagnosis.advice.loaders import HANDING_OVER_MS, loader_line, spawned_text
from gpu_util_callback.diagnosis.evidence.pipeline import chain_ms
from gpu_util_callback.diagnosis.read_ahead import LongFetches
from gpu_util_callback.diagnosis.rule import EQUAL_RUNS, LEAST_GAIN, Advice
from gpu_util_callback.diagnosis.thresholds import (
    A_FEW,
    A_FIFTH,
    A_TENTH,
    A_TWENTIETH,
    AGAIN,
    FOUR_FIFTHS,
    MOSTLY,
    Count,
)
from gpu_util_callback.recording.manifest_facts import LongCall
from gpu_util_callback.words import duration, listed, ordinal, percent, steps

MOST_READY = Count(256, "more batches than this rarely fit into memory")
SAMPLED = Count(64, "long fetches show what the processes did meanwhile")
NAMED = Count(4, "batches or items that are listed by number; of more only the distance")


# -- words -----------------------------------------------------------------------------------------


def places(wait: InputWait, long: LongFetches) -> str:
    """Return which fetches were long: "batches 100, 200 and 300, in each epoch", "each 50th batch".

    Batches are numbered within a pass over the input where its length is known, else steps are numbered.
    """
    pass_steps, steps_done = wait.passes.steps, wait.run.steps.total_rows
    # No length, or a second pass too short to compare.
    if not pass_steps or pass_steps < steps_done < AGAIN * pass_steps:
        return _numbered(long.steps, "step", "steps")
    batch = long.steps % pass_steps
    if steps_done <= pass_steps:  # still the first pass
        return _of_pass(wait, batch)
    unit = "pass" if wait.run.custom_loop or wait.run.fit.get("input_batches") else "epoch"
    if _only_at_first(wait, long):
        return f"{_of_pass(wait, batch)}, all in the first {unit}: later ones found it in memory (the page cache)"
    if batch.max() < max(1, wait.workers):
        return f"the first batch {'of each worker ' if wait.workers > 1 else ''}in each {unit}"
    batches, counts = np.unique(batch, return_counts=True)
    is_repeated = counts >= max(AGAIN, MOSTLY * steps_done / pass_steps)  # batches that are long in most passes
    if counts[is_repeated].sum() >= FOUR_FIFTHS * counts.sum():
        return f"{_of_pass(wait, batches[is_repeated])}, in each {unit}"
    return _numbered(long.steps, "step", "steps")


def _only_at_first(wait: InputWait, long: LongFetches) -> bool:
    """Return True if all long fetches lie in the first of several passes, which is hardly by chance (under 1 in 10)."""
    pass_steps, steps_done = wait.passes.steps, wait.run.steps.total_rows
    if not pass_steps or steps_done < AGAIN * pass_steps or int(long.steps[-1]) >= pass_steps:
        return False
    # The chance that all of them fall into the first pass.
    return (steps_done / pass_steps) ** -len(long.steps) <= A_TENTH


def _of_pass(wait: InputWait, batches: np.ndarray) -> str:
    """Return batches of a pass by number, with the samples of a single one in the order of the loader."""
    words, size = _numbered(batches, "batch", "batches"), wait.run.fit.get("batch_size")
    if len(batches) == 1 and size and wait.workers and "dataloader" in wait.kind:
        first = int(batches[0]) * size
        return f"{words} ({steps(first, first + size, noun='sample')} in the order of its sampler)"
    return words


def _numbered(numbers: np.ndarray, name: str = "", several: str = "") -> str:
    """Return a few numbers as they are; of many only their distance if they are evenly spaced, else how many they are.

    Args:
        numbers: int64 (n,), ascending.
        name, several: the noun for one of them, and its plural.
    """
    if len(numbers) <= NAMED:
        numbers_text = listed([f"{number:,}" for number in numbers.tolist()])
        return f"{name if len(numbers) == 1 else several} {numbers_text}".strip()
    gaps = np.diff(numbers)
    group_starts = numbers[np.append(True, gaps > AGAIN)]  # each worker's, one after the other
    distances = np.diff(group_starts)
    if len(group_starts) >= A_FEW:  # evenly spaced, if most distances are about the median
        distance = int(np.median(distances))
        if np.mean(np.abs(distances - distance) <= max(AGAIN, A_TWENTIETH * distance)) >= FOUR_FIFTHS:
            in_a_row = round(len(numbers) / len(group_starts))
            row = f", {in_a_row} in a row" if in_a_row > 1 else ""
            return f"each {ordinal(distance)} {name}".strip() + row
    first = [f"{number:,}" for number in numbers[: NAMED - 1].tolist()]
    return f"{several} {listed([*first, f'{len(numbers) - len(first):,} more'])}".strip()


def _items(wait: InputWait) -> str:
    """Return which calls of the input's slowest function were long: "D.__getitem__(200)"; "" if none was noted."""
    calls: Sequence[LongCall] = wait.calls.slowest.get("long", ()) if wait.calls.slowest else ()
    calls = [call for call in calls if call["ms"] >= A_FIFTH * max(other["ms"] for other in calls)]
    if wait.calls.slowest is None or not calls:
        return ""
    name = wait.calls.slowest["name"]
    items = np.unique([call["at"] for call in calls if "at" in call])
    if len(items) == 1:  # items are known by their index, other calls by their number
        return f"{name}({items[0]})"
    if len(items):
        return f"{name} of {_numbered(items)}"
    return f"{name}, {_numbered(np.unique([call['call'] for call in calls]), 'call', 'calls')}"


def _waited(wait: InputWait, long: LongFetches) -> bool | None:
    """Return True if this process and its workers hardly computed during the long fetches; None = not sampled."""
    columns = ("process_cpu_pct", "children_cpu_pct")[: 1 + bool(wait.workers)]
    used_pct = []
    for start_ns, ms in zip(long.starts_ns[:SAMPLED].tolist(), long.waits_ms[:SAMPLED].tolist(), strict=True):
        cpu_pct = [wait.run.host_mean(column, start_ns, start_ns + round(ms * 1e6)) for column in columns]
        used_pct += [sum(pct for pct in cpu_pct if pct is not None)] if None not in cpu_pct else []
    return float(np.mean(used_pct)) < 100 * MOSTLY if used_pct else None


def which(wait: InputWait, long: LongFetches) -> str:
    """Return which fetches took how long, as a sentence without its full stop.

    Of fetches of very different length, those of the longest kind.
    """
    long = long.largest
    items = _items(wait)
    if not items and long.stage:
        items = f"in the stage {long.stage}"
    took = f"took {duration(long.each_ms / 1e3)}"
    fetches = f"1 fetch {took}" if long.count == 1 else f"{long.count:,} fetches {took} each"
    return f"{fetches}: {places(wait, long)}{f' ({items})' if items else ''}"


def observed(wait: InputWait, long: LongFetches) -> str:
    """Return the observation on long fetches as sentences: which took how long, and whether they waited."""
    long = long.largest
    who = "It" if long.count == 1 else "They"
    hold = f"{who} {'holds' if long.count == 1 else 'hold'} {percent(100 * long.share)} of the wait"
    rest = "; the others came at once" if wait.lost_ms < A_TENTH * wait.needed_ms else ""
    waited = _waited(wait, long)
    meanwhile = {True: f" {who} waited, for a file, a network or a lock.", False: f" {who} computed.", None: ""}[waited]
    return f"{which(wait, long)}. {hold}{rest}.{meanwhile}"


# -- advice ----------------------------------------------------------------------------------------


def advise_long(wait: InputWait, long: LongFetches) -> Advice:
    """Return advice where a few long fetches hold much of the wait.

    It is about them if they hold most of it, else about the usual fetches. Its gain is a share (0-1) of the whole wait,
    of long fetches and others.
    """
    usual_advice, usual_share = advise(wait), wait.lost_ms / (wait.lost_ms + wait.rare_ms)
    saves = min(1.0, usual_advice.saves * usual_share)
    of_others = replace(usual_advice, saves=saves, most=max(usual_share, saves))
    if long.share < MOSTLY:  # the usual fetches hold most of the wait
        return of_others
    says = observed(wait, long)
    of_others = replace(of_others, text=f"{says} {usual_advice.text}")
    hiding = _kept_workers(wait, long, says) or _hidden(wait, long, says)
    if long.share < FOUR_FIFTHS:
        is_enough = wait.gain(usual_advice.saves) >= LEAST_GAIN
    else:
        is_enough = wait.gain(usual_advice.saves) >= EQUAL_RUNS and not usual_advice.question
        is_enough = is_enough and (hiding is None or hiding.saves <= saves)
    if usual_advice.saves and is_enough:  # a remedy for all fetches gains enough by itself
        return of_others
    if hiding is not None:  # make batches ahead of the long fetches
        return hiding
    if kept := made_once(wait):
        return replace(kept, text=f"{says} {kept.remedy}", saves=min(1.0, kept.saves * usual_share))
    if _only_at_first(wait, long.largest):  # no remedy was found: say what would help
        rest = "A local copy, or reading all of it in order once, before training, makes the first pass shorter."
    else:
        rest = (
            f"Each batch made ahead hides {brief(wait.needed_ms)} of it. "
            f"Look for what is special about {'it' if long.largest.count == 1 else 'them'}."
        )
    return at_line(wait, Advice(f"{says} {rest}", name="long fetches"))


def _usual_ms(wait: InputWait) -> float:
    """Return the time in ms that one worker needs at most for a batch that is not among the long ones."""
    call = wait.calls.slowest
    if call is not None and wait.run.steps.total_rows:  # timed
        return call["calls"] * call["wall_ms"] / wait.run.steps.total_rows
    if wait.stages:
        return max(chain_ms(wait.stages))
    # Neither is known.
    return MOSTLY * wait.workers * wait.arrives_ms if wait.workers else wait.lost_ms  # between nothing and keeping up


def _can_be_ready(wait: InputWait, long: LongFetches) -> bool:
    """Return True if something could work ahead of the long fetches.

    It cannot at the beginning of a pass, before which nothing is asked for, nor where making batches computes and no
    core is free.
    """
    a_pass = wait.passes.steps if wait.run.custom_loop or wait.run.fit.get("input_batches") else None
    if a_pass and not (long.steps % a_pass).any():
        return False
    computes = wait.waits is False and _usual_ms(wait) >= A_TENTH * wait.needed_ms
    return not computes or bool(_waited(wait, long)) or wait.cores.own is None or wait.cores.has_room


def _hidden(wait: InputWait, long: LongFetches, says: str) -> Advice | None:
    """Return the advice to keep more batches ready; None if that hides too little, or nothing can make them ahead.

    Args:
        says: the observation, to which the advice is appended.
    """
    kind = wait.kind
    if kind in ("", "numpy", "grain") or not _can_be_ready(wait, long):
        return None
    covered_steps = max(1, int(np.ceil(long.each_ms / max(0.1, wait.needed_ms))))  # steps that one long fetch lasts
    limit, size = wait.run.host_limit, wait.pass_bytes
    in_memory = A_TENTH * limit[0] / size * wait.batches_a_pass if limit and size else MOST_READY
    ready = int(max(2, min(MOST_READY, covered_steps, in_memory)))
    workers = max(2, wait.workers) if "dataloader" in kind or "pydataset" in kind else 1
    # Share of the long wait that stays.
    left_share = long.left(_usual_ms(wait), wait.needed_ms, workers=workers, ahead=ready)
    wait_ms = wait.lost_ms + wait.rare_ms
    handover_ms = HANDING_OVER_MS if "dataloader" in kind and not wait.workers else 0.0
    saves = max(0.0, wait.rare_ms * (1 - left_share) - handover_ms) / wait_ms
    if wait.gain(saves * wait_ms / wait.lost_ms) < LEAST_GAIN:
        return None
    says += (
        f" One takes as long as {covered_steps:,} steps: with {ready} batches ready (if they fit into memory) "
        f"{'it' if ready == covered_steps else 'part of it'} passes unnoticed."
    )
    if "dataloader" in kind:
        code = loader_line(wait, workers, f", prefetch_factor={-(-ready // workers)}")
        says += spawned_text(wait)
    elif "pydataset" in kind and not wait.run.custom_loop:
        code = f"dataset.workers = {workers}  # before model.fit(dataset)\ndataset.max_queue_size = {ready}"
    elif kind == "tf.data":
        code = f"ds = ds.prefetch({ready})  # as its last step"
    else:
        code = ahead_code(kind == "generator", wait.input_class or "generate", ready, fit=not wait.run.custom_loop)
    most = max(saves, wait.rare_ms / wait_ms)
    return Advice(says, code, saves, name="long fetches, ready", most=most, proof="long_fetch_ready")


def _kept_workers(wait: InputWait, long: LongFetches, says: str) -> Advice | None:
    """Return the advice to keep a DataLoader's workers between passes.

    None unless the long fetches are each worker's first batch of every pass.
    """
    pass_steps = wait.passes.steps
    # No workers, or they are kept already.
    if "dataloader" not in wait.kind or not wait.workers or wait.run.fit.get("input_persistent_workers"):
        return None
    # Not the first batches.
    if not pass_steps or len(long.steps) < AGAIN or (long.steps % pass_steps).max() >= wait.workers:
        return None
    whole_ms = wait.lost_ms + wait.rare_ms
    saves = (1 - 1 / long.count) * wait.rare_ms / whole_ms  # the first pass starts them anyway
    if wait.gain(saves * whole_ms / wait.lost_ms) < LEAST_GAIN:
        return None
    return PERSISTENT_WORKERS.advice(SetUp(wait.run, says, 0.0, saves))
