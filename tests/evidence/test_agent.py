"""The scripted agent: lines are pasted where they belong, and what it does follows from the commands' answers."""

import json
import subprocess
from pathlib import Path

import pytest

from gauntlet.agent import Agent, share, table
from gauntlet.pasting import monitored, pasted

PROGRAM = """
class Plot(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        draw(batch)

save = keras.callbacks.ModelCheckpoint("best.keras")
ds = tf.data.Dataset.from_tensor_slices(x).map(decode).map(lambda r: r).batch(16)
if ready:
    loader = DataLoader(rows, batch_size=8)
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(Files("é"), epochs=2, callbacks=[Plot(), save])
"""
DATASETS = """
rows = tf.data.Dataset.from_generator(make, output_signature=spec)
rows = rows.map(decode).shuffle(9)
rows = rows.batch(16)
other.batch(4)
def train():
    model.fit(rows, epochs=8, validation_data=held.batch(16))
"""
PASTED_DATASETS = [
    ("ds = ds.cache()  # behind generator, before shuffle and repeat", "signature=spec).cache()\n"),
    ("ds = ds.cache()  # behind map(decode) + batch, before shuffle and repeat", "rows.batch(16).cache()\n"),
    ("held = held.cache()  # validation data, as its last step", "validation_data=held.batch(16).cache())"),
    (
        "held.workers = 3  # your validation PyDataset, before model.fit",
        "    dataset = held.batch(16)\n    dataset.workers = 3\n    model.fit(rows, epochs=8, validation_data=dataset)",
    ),
    (
        "options = tf.data.Options()\noptions.autotune.enabled = False\nds = ds.with_options(options)",
        "    options.autotune.enabled = False\n    model.fit(rows.with_options(options), epochs=8",
    ),
    (
        "options = tf.data.Options()\noptions.threading.private_threadpool_size = 6\n"
        "ds = ds.map(decode, num_parallel_calls=6)\nds = ds.with_options(options)",
        "rows.map(decode, num_parallel_calls=6).shuffle",
    ),
    ("ds = ds.repeat(4)\nmodel.fit(ds, ..., epochs=2)", "model.fit(rows.repeat(4), epochs=2"),
]


@pytest.mark.parametrize(
    "code, there, gone",
    [
        ("model.compile(..., run_eagerly=False)", 'model.compile("sgd", "mse", run_eagerly=False)', "run_eagerly=True"),
        ("model.fit(..., validation_freq=4)", "callbacks=[Plot(), save], validation_freq=4)", ""),
        ("loader = DataLoader(..., num_workers=2)", "DataLoader(rows, batch_size=8, num_workers=2)", ""),
        (
            "dataset.workers = 4",
            '    dataset = Files("é")\n    dataset.workers = 4\n    model.fit(dataset, epochs=2',
            'fit(Files("é")',
        ),
        ("ds = ds.cache()  # behind map(decode), before shuffle and repeat", ".map(decode).cache().map(lambda", ""),
        ("ds = ds.map(decode, num_parallel_calls=tf.data.AUTOTUNE)", "map(decode, num_parallel_calls=tf.data.AUTO", ""),
        ("ds = ds.prefetch(tf.data.AUTOTUNE)  # as its last step", 'fit(Files("é").prefetch(-1), epochs', ""),
        (
            "if batch % 20 == 0: ...  # in Plot.on_train_batch_end",
            "        if self._calls % 20:\n            return\n        draw(batch)",
            "",
        ),
        (
            "def on_train_batch_end(self, batch, logs=None):\n    self.last = batch, logs\n"
            "def on_train_end(self, logs=None):\n    ...  # what Plot.on_train_batch_end does",
            "        self.work(*self.last)\n    def work(self, batch, logs=None):\n        draw(batch)",
            "",
        ),
        ('model.save("model.keras")  # after fit, instead of ModelCheckpoint', "callbacks=[Plot()])", ""),
        ("Plot(..., period=5)", "callbacks=[Plot(period=5), save]", ""),
    ],
)
def test_a_line_is_pasted_where_it_belongs(code, there, gone):
    after = pasted(PROGRAM, code)
    assert after is not None and there in after, after
    assert not gone or gone not in after


@pytest.mark.parametrize("code, there", PASTED_DATASETS)
def test_a_line_about_datasets_is_pasted_where_it_belongs(code, there):
    after = pasted(DATASETS, code)
    assert after is not None and there in after, after
    assert after.count("options=") == 0 and after.count(".cache()") <= 1


def test_a_loader_of_whole_batches_is_made_behind_the_first():
    code = "loader = DataLoader(loader.dataset, sampler=loader.batch_sampler, batch_size=None)"
    after = pasted(PROGRAM, code)
    assert f"loader = DataLoader(rows, batch_size=8)\n    {code}\n" in after
    unnamed = "if ready:\n    for x in monitor.batches(DataLoader(rows, batch_size=8)):\n        step(x)\n"
    assert pasted(unnamed, code) == (
        f"if ready:\n    loader = DataLoader(rows, batch_size=8)\n    {code}\n"
        "    for x in monitor.batches(loader):\n        step(x)\n"
    )


@pytest.mark.parametrize("code", ["", "x = prepared(x)  # once", "model.fit(ds, steps=call())", "Other(..., period=5)"])
def test_what_no_rule_pastes_stays_as_it_is(code):
    assert pasted(PROGRAM, code) is None


LOOP = """
import torch
data = make()
if __name__ == "__main__":
    loader = DataLoader(data, batch_size=4)
    for epoch in range(3):
        for x, y in loader:
            loss(model(x), y).backward()

        for x, y in DataLoader(held_out):
            check(x, y)
    print("done")
"""


MONITORED = """
import torch
data = make()
if __name__ == "__main__":
    loader = DataLoader(data, batch_size=4)
    import gpu_util_callback
    with gpu_util_callback.GpuUtilMonitor("logs") as monitor:
        for epoch in range(3):
            for x, y in monitor.batches(loader):
                loss(model(x), y).backward()

            for x, y in DataLoader(held_out):
                check(x, y)
    print("done")
"""


def test_a_loop_of_its_own_gets_the_monitors_two_lines():
    assert monitored(LOOP) == MONITORED
    assert monitored(PROGRAM) is None


FINDING = {"id": "f", "cause": "input_bound", "saves_range_s": [3.0, 4.0]}
FINDING["advice"] = {"code": "model.fit(..., validation_freq=4)", "question": False}
TRIED = {"ratio": 2.0, "low": 1.8, "high": 2.2, "resolved": True, "change": "validation_freq=4"}
TRIED["code"] = FINDING["advice"]["code"]


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """An agent whose commands answer as given; it works on a program of one line."""
    made = Agent("model.fit(x)\n", tmp_path)
    asked = []

    def answers(findings=(FINDING,), tried=TRIED, ab=(0, "train.py: 9 → 5 ms a step, ×1.9 [1.8 … 2.0], 4 pairs")):
        headline = {"ids": [findings[0]["id"]]} if findings else None
        run = {"verdict": "v", "headline": headline, "findings": list(findings), "spans": [], "wall_s": 10.0}

        def gpu_util(*words, limit_s=None):
            asked.append(words[0])
            code, out = {
                "run": (0, ""),
                "report": (0, json.dumps({"runs": [run]})),
                "try": (0, json.dumps(tried)) if tried else (1, "cannot be tried"),
                "ab": ab,
            }[words[0]]
            return subprocess.CompletedProcess(words, code, out, "")

        monkeypatch.setattr(made, "gpu_util", gpu_util)
        return made.work(), asked, Path(made.program).read_text()

    return answers


def test_three_rounds_at_most_each_proven(agent):
    row, asked, program = agent()
    assert asked == ["run", "report", "try", "ab"] * 3
    assert row["reached"] == round(1.9**3, 3)
    assert program == "model.fit(x, validation_freq=4)\n"


def test_a_change_that_makes_it_slower_is_taken_back(agent):
    row, _, program = agent(ab=(1, "train.py: ×0.8 [0.7 … 0.9]: slower"))
    assert (row["reached"], program) == (1.0, "model.fit(x)\n")
    assert row["stopped"].startswith("ab: ")


@pytest.mark.parametrize(
    "how, why",
    [
        ({"findings": ()}, "no finding with a line"),
        ({"tried": None}, "try: cannot be tried"),
        ({"tried": {**TRIED, "resolved": False}}, "proves no gain"),
        ({"tried": {**TRIED, "ratio": 0.5, "low": 0.4, "high": 0.6}}, "proves no gain"),
        ({"tried": {**TRIED, "code": "x = prepared(x)"}}, "no rule pastes"),
        ({"findings": ({**FINDING, "saves_range_s": [0.1, 0.2]},)}, "less than a twentieth"),
    ],
)
def test_it_stops_where_nothing_is_proven(agent, how, why):
    row, asked, program = agent(**how)
    assert why in row["stopped"]
    assert (row["reached"], program) == (1.0, "model.fit(x)\n")
    assert "ab" not in asked


def test_the_table_says_what_was_reached_of_what_is_reachable():
    rounds = [{"status": 0, "ab": [1.9, 1.8, 2.0], "code": "model.fit(..., a=1)"}]
    row = {"program": "p", "reached": 1.9, "rounds": rounds, "stopped": "v", "reachable": [2.0, 1.9, 2.1]}
    assert share(row) == pytest.approx((1 - 1 / 1.9) / 0.5)
    assert share({**row, "reachable": [1.0, 0.9, 1.1]}) is None
    assert "| p | ×2.00 [1.90 … 2.10] | ×1.90 | 95 % | 1 | `model.fit(..., a=1)` | v |" in table([row])
    assert "1 of 1" in table([row])
