"""Samples that are made and dropped, epochs cut short, sets that are read several times: said with their numbers."""

import numpy as np
import pytest
from advised_runs import DATALOADER, DECODE, TENSORFLOW, TORCH, found, run_of, waits
from generated_runs import MS, findings_of

SKIP = {"stage": "skip", "which": "train", "count": 240, "samples": 16, "behind": "map(read)", "exact": True}
SET = {"input_set_batches": 75, "input_set_samples": 1200}
VALIDATION = {"validation_kind": "tf.data", "validation_set_batches": 20}


def skipped(first_s: float = 4.0, epochs: int = 2, every: bool = False, **facts):
    """A run of 2 epochs of 0.6 s, whose first batch takes `first_s`."""
    run = run_of(gpus=[], epochs=epochs, **({"input_drops": [SKIP], **SET} | facts))
    for number in range(epochs):
        wait = np.zeros(60)
        wait[0] = 1e3 * first_s if every or not number else 2.0
        start = run.now
        with run.epoch():
            run.steps(60, step_ms=10, wait_ms=wait)
        run.input_filled(start, wait[0] / 1e3)
    return run.diagnose()


def test_what_a_skip_behind_batch_drops_is_said_with_its_numbers():
    [finding] = findings_of(skipped(), "data_waste")
    assert finding["title"] == "skip(240) drops 3,840 samples that map(read) made"
    assert finding["lost_s"] == pytest.approx(4.0, rel=0.03)
    assert finding["saves_range_s"][0] > 3
    assert finding["advice"]["code"].startswith("ds = ds.skip(3840)  # before map(read)")
    assert "skip counts batches" in finding["advice"]["text"] and "1,200 samples" in finding["advice"]["text"]
    assert "were 240 samples meant?" in finding["advice"]["text"]


def test_a_skip_in_each_epoch():
    [finding] = findings_of(skipped(every=True), "data_waste")
    assert finding["title"].endswith("made in each epoch") and finding["lost_s"] == pytest.approx(8.0, rel=0.03)


def test_a_shuffle_between_makes_it_a_question():
    [finding] = findings_of(skipped(input_drops=[SKIP | {"exact": False}]), "data_waste")
    assert finding["advice"]["question"] and finding["saves_s"] == 0


@pytest.mark.parametrize(
    "facts", [{"first_s": 0.2}, {"input_drops": [SKIP | {"which": "validation"}]}, {"input_drops": []}]
)
def test_a_skip_that_costs_little_or_is_elsewhere_is_left_alone(facts):
    assert not findings_of(skipped(**facts), "data_waste")


def epochs_of(steps: list[int], **facts):
    run = run_of(gpus=[], epochs=len(steps), **facts)
    for count in steps:
        with run.epoch():
            run.steps(count, step_ms=5)
    return run.diagnose()


@pytest.mark.parametrize(
    ("steps", "facts", "said"),
    [
        ([20, 20, 10, 20, 20], {"input_batches": 50}, "Epoch 3 had 10 of 20 steps: a pass has 50 batches"),
        ([20, 20, 10], {"input_batches": 50}, "Epoch 3 had 10 of 20 steps: a pass has 50 batches"),
        ([20, 5, 20, 5, 20], {"input_batches": 25}, "Epochs 2 and 4 had 5 of 20 steps: a pass has 25 batches"),
        ([20, 20, 10, 20], {}, "Epoch 3 had 10 of 20 steps: the data ended"),
        ([20, 20, 10, 20], {"input_kind": "PyDataset", "input_batches": 50}, "Epoch 3 had 10 of 20 steps"),
    ],
)
def test_steps_per_epoch_that_do_not_divide(steps, facts, said):
    result = epochs_of(steps, steps_per_epoch=20, **facts)
    [finding] = findings_of(result, "data_waste")
    assert finding["title"].startswith(said) and finding["lost_s"] is None
    assert result["verdict"] == f"{finding['title']}.", "its cost is no time"


@pytest.mark.parametrize(
    ("steps", "facts"),
    [
        ([20, 20, 20], {"input_batches": 50}),
        ([20, 20, 7], {"input_batches": 50}),  # somebody stopped it
        ([20, 20, 7], {}),
        ([20, 20, 10, 2], {"input_kind": "generator"}),
    ],
)
def test_other_epochs_are_left_alone(steps, facts):
    assert not findings_of(epochs_of(steps, steps_per_epoch=20, **facts), "data_waste")


def test_steps_per_epoch_that_count_samples():
    result = epochs_of([320, 320], steps_per_epoch=320, input_set_batches=20, input_set_samples=320)
    [finding] = findings_of(result, "data_waste")
    said = "An epoch of 320 steps reads the 20 batches of its set 16 times: steps_per_epoch counts batches, not samples"
    assert finding["title"] == said and finding["advice"]["question"]
    longer = epochs_of([60, 60], steps_per_epoch=60, input_set_batches=20, input_set_samples=320)
    assert not findings_of(longer, "data_waste"), "an epoch may be several passes on purpose"


def validated(batches: int, wait_ms: float = 0.0, **facts):
    run = run_of(TENSORFLOW, gpus=[], epochs=5, **facts)
    for _ in range(5):
        with run.epoch():
            run.steps(100, step_ms=10)
            run.validated(batches, 6 * MS, round(wait_ms * MS), share=0.0)
    return found(run, "host_stall")


@pytest.mark.parametrize(
    ("batches", "facts", "said"),
    [
        (320, {"validation_set_samples": 320}, "it reads the set 16 times. validation_steps counts batches"),
        (200, {"validation_set_samples": 320}, "it reads the set 10 times. Read it once"),
        (200, {}, "has 200 batches of a set of 20: it reads the set 10 times"),
    ],
)
def test_a_validation_that_reads_its_set_several_times(batches, facts, said):
    advice = validated(batches, **VALIDATION, **facts)["advice"]
    assert said in advice["text"] and advice["code"] == "model.fit(..., validation_steps=20)"


def test_a_validation_that_reads_its_set_once_is_advised_as_before():
    code = validated(200, validation_kind="tf.data", validation_set_batches=200)["advice"]["code"]
    assert "validation_steps=200" not in code and code


def test_a_validation_that_makes_what_training_has_is_told_to_skip_earlier():
    drop = SKIP | {"which": "validation", "count": 3200, "samples": 1, "behind": "map(decode)"}
    advice = validated(100, wait_ms=5, validation_kind="tf.data", input_drops=[drop])["advice"]
    assert "drops 3,200 samples that map(decode) made" in advice["text"]
    assert advice["code"].startswith("val_ds = val_ds.skip(3200)  # before map(decode)")


CACHE = ("cache", "MemoryCache", 0.0, 1.0, "")


def test_a_shard_of_what_was_decoded():
    drop = {"stage": "shard", "which": "train", "count": 4, "samples": 1, "behind": "map(decode)", "exact": True}
    finding = found(waits(DECODE, input_drops=[drop]), "input_bound", {"process_cpu_pct": 90, "cpu_pct": 15})
    assert "shard drops all but one in 4 of its results" in finding["advice"]["text"]
    assert finding["advice"]["code"] == "ds = ds.shard(4, ...)  # before map(decode)"
    other = found(waits(DECODE, input_drops=[drop | {"exact": False}]), "input_bound")
    assert "shard" not in other["advice"]["text"]


def test_a_shard_is_said_where_no_stage_was_measured():
    drop = {"stage": "shard", "which": "train", "count": 4, "samples": 1, "behind": "map(decode)", "exact": True}
    advice = found(waits(input_drops=[drop]), "input_bound")["advice"]
    assert advice["question"] and "Does map(decode) take most of the time of a batch?" in advice["text"]
    assert "shard drops all but one in 4" in advice["text"]


def test_a_take_behind_the_cache_that_never_fills():
    drop = {"stage": "take", "which": "train", "count": 400, "samples": 1, "behind": "map(decode)", "exact": False}
    run = waits(DECODE, CACHE, epochs=4, input_drops=[drop], wait_ms=8.0)
    finding = found(run, "input_bound", {"process_cpu_pct": 90, "cpu_pct": 15})
    assert "before the cache is full" in finding["advice"]["text"], finding["advice"]
    assert finding["advice"]["code"].startswith("ds = ds.take(400).cache()")


AUTOTUNED, BATCHED = "autotuned,random,stateful", ("batch", "BatchV2", 0.2, 1.0, "", 1)
KEEP = ("filter(keep)", "Filter", 0.2, 1.0, "", 16)


def decoding(elements: float, ms: float = 240.0) -> tuple:
    return "map(decode)", "ParallelMapV2", ms, 8.0, AUTOTUNED, elements


@pytest.mark.parametrize(
    ("stages", "share"),
    [
        ([decoding(128), KEEP, BATCHED], "88 %"),
        ([decoding(160), ("map(resize)", "Map", 0.5, 1.0, "", 160), KEEP, BATCHED], "90 %"),
        ([decoding(8), ("batch", "BatchV2", 0.2, 1.0, "", 8), (*KEEP[:5], 1)], "88 %"),  # whole batches
        ([decoding(128), ("filter(first)", "Filter", 0.2, 1.0, "", 32), KEEP, BATCHED], "75 %"),
    ],
)
def test_a_filter_that_drops_most_of_what_was_decoded_is_asked_to_come_first(stages, share):
    """Seen: each of eight branches decoded all photos and kept those of its class."""
    finding = found(waits(*stages), "input_bound", {"process_cpu_pct": 620, "cpu_pct": 80})
    advice = finding["advice"]
    assert f"drops {share} of its results" in advice["text"] and "without map(decode)" in advice["text"]
    assert advice["question"] and advice["code"].endswith("  # before map(decode)")
    assert finding["advice"]["code"].startswith("ds = ds.filter(")


@pytest.mark.parametrize(
    "stages",
    [
        [decoding(128), CACHE, KEEP, BATCHED],  # it keeps what was decoded
        [decoding(20), KEEP, BATCHED],  # few
        [KEEP, decoding(16), BATCHED],
        [decoding(128), (*KEEP[:4], "library", 16), BATCHED],  # no line of the program's
    ],
)
def test_a_filter_that_saves_little_or_cannot_be_moved_is_left_where_it_is(stages):
    finding = found(waits(*stages, epochs=3), "input_bound", {"process_cpu_pct": 620, "cpu_pct": 80})
    assert "ds.filter(" not in finding["advice"]["code"]


def test_what_a_filter_drops_is_said_beside_a_remedy_that_was_observed():
    slow = ("map(decode)", "Map", 80.0, 1.0, "sequential", 128)
    advice = found(waits(slow, KEEP, BATCHED), "input_bound", {"process_cpu_pct": 90, "cpu_pct": 15})["advice"]
    assert "num_parallel_calls" in advice["code"] and "drops 88 % of its results" in advice["text"]


STREAM = DATALOADER | {"input_class": "Stream", "input_iterable": True, "input_workers": 3, "loop": "custom"}


def test_workers_that_each_decode_all_items_are_told_to_skip_first():
    """Seen: each of three workers decoded the whole stream and kept a third."""
    host = {"process_cpu_pct": 30, "children_cpu_pct": 160, "cpu_pct": 98}
    machine = {"cpus": 2, "cpus_allowed": 2}
    run = waits(framework=TORCH, epochs=3, gpus=[], machine=machine, **STREAM, input_sharing="strided")
    advice = found(run, "input_bound", host)["advice"]
    assert "goes through all of Stream for its part" in advice["text"] and advice["question"]
    assert "more workers gain nothing" in advice["text"] and "islice" in advice["code"]


@pytest.mark.parametrize(
    ("facts", "is_said"), [({}, True), ({"input_workers": 1}, False), ({"input_sharing": None}, False)]
)
def test_workers_that_each_yield_all_items_are_said(facts, is_said):
    run = waits(framework=TORCH, epochs=3, gpus=[], wait_ms=0, **STREAM | {"input_sharing": "none"} | facts)
    findings = run.findings("data_waste")
    assert bool(findings) == is_said
    if is_said:
        assert findings[0]["title"] == "Each of the 3 workers yields all items of Stream"
        assert findings[0]["advice"]["question"] and "get_worker_info" in findings[0]["advice"]["text"]
