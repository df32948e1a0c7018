"""Batches most of which are padding: measured in the first of them, and asked about with the line for its kind."""

import numpy as np
import pytest
from generated_runs import GPU, Generated, findings_of

from gpu_util_callback import GpuUtilMonitor
from gpu_util_callback.backends.input_watch import FirstArrays
from gpu_util_callback.diagnosis import diagnose
from gpu_util_callback.recording import read_recordings

LENGTHS = np.r_[np.full(30, 10), 80, 100]


def texts(width=100, lengths=LENGTHS, at_end=True, fill=0, dtype="int64", most=500) -> np.ndarray:
    """Return rows of numbers of these lengths, filled up to a width."""
    generator = np.random.default_rng(0)
    rows = np.full((len(lengths), width), fill, dtype)
    for row, length in zip(rows, lengths, strict=True):
        row[slice(length) if at_end else slice(width - length, None)] = generator.integers(1, most, length)
    return rows


def padding_of(*batches):
    first = FirstArrays(lambda: 1)
    for batch in batches:
        first.note(batch)
    first.look()
    return first.padding()


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("kind", ["int64", "int32", "uint16"])
def test_the_share_that_rows_are_filled_up_with_is_measured(kind, at_end):
    rows = texts(at_end=at_end, dtype=kind)
    share = (rows == 0).mean()
    assert padding_of(rows) == {"rows": 32, "share": pytest.approx(share, abs=1e-3), "beyond": 0}
    wide = padding_of({"ids": texts(400, at_end=at_end, dtype=kind), "mask": (texts(400) > 0).astype(kind)})
    assert wide == {"rows": 32, "share": pytest.approx(1 - rows.size * (1 - share) / (32 * 400), abs=1e-3)} | {
        "beyond": 0.75
    }


def test_several_batches_and_other_fillers_are_measured():
    padding = padding_of(*[texts(fill=501) for _ in range(9)])
    assert padding["rows"] == 9 * 32
    assert padding["share"] > 0.5 and padding_of(texts(100, np.full(32, 100)))["share"] < 0.05


GENERATOR = np.random.default_rng(1)
OTHERS = {
    "floats": texts(dtype="float32"),
    "bytes": texts(dtype="uint8", most=250),
    "images": texts(28 * 28, np.full(32, 300)).reshape(32, 28, 28),
    "one-hot": np.eye(32, 100, dtype="int64"),
    "multi-hot": (GENERATOR.random((32, 100)) < 0.05).astype("int64"),
    "masks": (texts() > 0).astype("int64"),
    "counts": np.where(GENERATOR.random((32, 2000)) < 0.02, GENERATOR.integers(1, 9, (32, 2000)), 0),
    "tags": np.where(GENERATOR.random((32, 100)) < 0.1, GENERATOR.integers(1, 9, (32, 100)), 0),
    "left out": texts(fill=-100),
    "table": texts(12, np.full(32, 4)),
    "classes": np.arange(32),
    "nothing": np.zeros((32, 100), "int64"),
    "no rows": np.zeros((0, 100), "int64"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_holds_no_texts_has_none(name):
    assert padding_of(OTHERS[name]) is None


def padded(framework="torch", share=0.8, beyond=0.0, rows=128, wait_ms=0.0, gpus=(), **fit) -> list:
    fit = {"loop": "custom", "batch_size": 16, "input_padding": {"rows": rows, "share": share, "beyond": beyond}} | fit
    run = Generated(seed=3, framework={"name": framework, "backend": framework}, fit=fit, gpus=list(gpus))
    run.steps(100, step_ms=40, wait_ms=wait_ms, **({"gpu_share": 0.95} if gpus else {}))
    return [span for span in findings_of(run.diagnose(), cause="slow_steps") if "padding" in span["title"]]


@pytest.mark.parametrize(
    ("case", "code", "says"),
    [
        ({}, "batch_sampler=", "mix short and long"),
        ({"trainer": "transformers"}, 'train_sampling_strategy="group_by_length"', "group_by_length=True"),
        ({"framework": "tensorflow", "gpus": [GPU]}, "bucket_by_sequence_length", "length compiles"),
        ({"framework": "jax"}, "np.argsort", "length compiles"),
        ({"beyond": 0.6}, "x = x[:, (x != 0).any(0)]", "60 % are beyond the longest row"),
    ],
)
def test_padding_is_asked_about_with_the_line_for_its_kind(case, code, says):
    [finding] = padded(**case)
    assert finding["title"] == "80 % of the positions in its batches are padding"
    assert code in finding["advice"]["code"] and says in finding["advice"]["text"]
    assert finding["advice"]["question"] and finding["lost_s"] is None and not finding["saves_s"]


@pytest.mark.parametrize("case", [{"share": 0.4}, {"rows": 16}, {"wait_ms": 100.0}])
def test_less_of_it_few_rows_and_a_run_that_waits_for_its_input_have_no_finding(case):
    assert padded(**case) == []


@pytest.mark.parametrize("alike", [False, True])
def test_a_loop_whose_batches_are_padded_to_their_longest_text_is_asked(tmp_path, alike):
    """Seen: "Nothing held up training" of a run that batches of like lengths made 2.4 times as fast."""
    torch = pytest.importorskip("torch")
    lengths = np.where(np.arange(640) % 16, 20, 300)
    mails = [torch.randint(1, 90, (length,)) for length in (np.sort(lengths) if alike else lengths)]
    pad = torch.nn.utils.rnn.pad_sequence
    loader = torch.utils.data.DataLoader(mails, 16, collate_fn=lambda batch: pad(batch, batch_first=True))
    model = torch.nn.Sequential(torch.nn.Embedding(90, 64), torch.nn.Linear(64, 64))
    with GpuUtilMonitor(tmp_path, framework="torch", report=False, trace="off") as monitor:
        for batch in monitor.batches(loader):
            model(batch).mean().backward()
    [recording] = read_recordings(tmp_path)
    titles = [one["title"] for one in findings_of(diagnose(recording)) if "padding" in one["title"]]
    assert titles == ([] if alike else ["88 % of the positions in its batches are padding"])
