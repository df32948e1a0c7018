"""What a function of the input spends its time in: the line, the library, and what helps against that."""

import pytest
from advised_runs import DATALOADER, JAX, KERAS_TORCH, TENSORFLOW, found, waits

CALL = {"name": "Samples.__getitem__", "calls": 400, "timed": 100, "wall_ms": 38.0, "cpu_ms": 37.0}
LINE = "Samples.__getitem__ (data.py, line 34)"
READS = CALL | {"samples": 20, "line": LINE, "in_line": 18, "library": "h5py", "in_library": 18}
DATASET = {"input_kind": "PyDataset", "input_class": "Samples", "input_workers": 0}
CHUNKED = {"name": "self.x", "chunk_rows": 64, "compression": "gzip", "bytes": 3_000_000}
MACHINE = {"cpus": 2, "cpus_allowed": 2, "memory_total_bytes": 2**34}
BUSY = {"process_cpu_pct": 90, "cpu_pct": 60}


def advised(call=READS, framework=TENSORFLOW, epochs=2, gpus=(), **facts) -> dict:
    given = DATASET | {"input_calls": [call]} | facts
    return found(
        waits(framework=framework, epochs=epochs, gpus=list(gpus), machine=MACHINE, **given), "input_bound", BUSY
    )


@pytest.mark.parametrize(
    ("framework", "facts"),
    [
        (TENSORFLOW, {}),
        (JAX, {"input_reorders": True}),
        (KERAS_TORCH, {**DATALOADER, "input_workers": 0}),
        (KERAS_TORCH, {"input_kind": "generator", "input_class": "samples"}),
    ],
)
def test_an_array_of_a_file_that_fits_is_read_once(framework, facts):
    finding = advised(framework=framework, input_files=[CHUNKED], **facts)
    advice = finding["advice"]
    said = f"spends 90 % of its time at {LINE}, in h5py: each access decompresses a chunk of 64 rows (gzip)."
    assert said in advice["text"] and not advice["question"]
    assert advice["code"].startswith("self.x = self.x[:]  # once, in __init__: 3 MB")
    assert 0.8 * finding["lost_s"] <= finding["saves_s"] <= 0.9 * finding["lost_s"]


def test_of_a_file_whose_size_is_not_known_it_is_asked():
    advice = advised()["advice"]
    assert advice["question"] and "Does what is read fit into memory?" in advice["text"] and "h5py" in advice["text"]


def test_a_file_too_large_for_the_memory_is_to_be_read_in_order():
    advice = advised(input_files=[CHUNKED | {"bytes": 2**40}])["advice"]
    assert "read ranges of neighbouring rows" in advice["text"] and not advice["code"]


@pytest.mark.parametrize("few", [{"samples": 2, "in_line": 2, "in_library": 2}, {"in_library": 8}])
def test_a_library_that_few_samples_met_is_no_cause(few):
    assert "self.x[:]" not in advised(READS | few, input_files=[CHUNKED])["advice"]["code"]


@pytest.mark.parametrize(("framework", "library"), [(JAX, "jax"), (TENSORFLOW, "tensorflow")])
def test_arrays_on_the_device_that_python_indexes_batch_by_batch(framework, library):
    call = READS | {"name": "batches", "library": library}
    given = {"framework": framework, "input_kind": "generator", "input_class": "batches"}
    advice = advised(call, **given)["advice"]
    assert advice["question"] and advice["code"].startswith("x, y = np.asarray(x), np.asarray(y)")
    assert f"operations of {library}, at {LINE}" in advice["text"]


def test_the_line_is_said_whatever_the_remedy():
    call = {key: value for key, value in READS.items() if "library" not in key}
    assert f"Samples.__getitem__ is mostly at {LINE}." in advised(call)["advice"]["text"]


def test_of_batches_that_are_put_together_anew_the_samples_are_asked_about():
    anew = advised(CALL, input_reorders=True)["advice"]
    assert "Is each sample the same in every epoch" in anew["text"] and "the same batches" not in anew["text"]
    assert "made[i] = make_sample(i)" in anew["code"]
    as_before = advised(CALL)["advice"]
    assert "return the same batches in every epoch" in as_before["text"]
