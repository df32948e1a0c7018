"""Lines of advice become changes of calls, or say why they cannot be tried."""

import types

import pytest

from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.trying.changes import ONCE, REWRITTEN, TARGETS, Change, change_of, parse
from gpu_util_callback.trying.hooks import Hooks

LINES = {
    "model.compile(..., run_eagerly=False)": ("compile", {"run_eagerly": False}, ""),
    "net.compile(..., steps_per_execution=16)": ("compile", {"steps_per_execution": 16}, ""),
    "loader = DataLoader(dataset, ..., num_workers=8, persistent_workers=True)": (
        "DataLoader",
        {"num_workers": 8, "persistent_workers": True},
        "",
    ),
    'loader = DataLoader(data, ..., num_workers=2, multiprocessing_context="spawn")  # under if __name__': (
        "DataLoader",
        {"num_workers": 2, "multiprocessing_context": "spawn"},
        "",
    ),
    "loader = DataLoader(loader.dataset, sampler=loader.batch_sampler, batch_size=None)": (
        "DataLoader",
        {"whole_batches": True},
        "",
    ),
    "self.gen.workers = 4  # your PyDataset, before model.fit\nself.gen.use_multiprocessing = True": (
        "PyDataset",
        {"workers": 4, "use_multiprocessing": True},
        "",
    ),
    "options = tf.data.Options()\noptions.threading.private_threadpool_size = 24\n"
    "ds = ds.map(decode, num_parallel_calls=24)\nds = ds.with_options(options)": (
        "map",
        {"num_parallel_calls": 24, "options": {"threading.private_threadpool_size": 24}},
        "decode",
    ),
    "options = tf.data.Options()\noptions.autotune.enabled = False\nds = ds.with_options(options)": (
        "options",
        {"options": {"autotune.enabled": False}},
        "",
    ),
    "ds = files.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=4)": (
        "interleave",
        {"cycle_length": 4, "num_parallel_calls": 4},
        "TFRecordDataset",
    ),
    "ds = ds.cache()  # behind map(decode), before shuffle and repeat": ("cache", {}, "map(decode)"),
    "ds = ds.cache().shuffle(buffer_size)  # behind map(decode), before batch and repeat": (
        "cache",
        {"shuffle": True},
        "map(decode)",
    ),
    "ds = ds.cache()  # behind map(tokens) + batch, before shuffle and repeat": ("cache", {}, "map(tokens) + batch"),
    "held_out = held_out.cache()  # validation data, as its last step": ("cache", {}, "validation_data"),
    "val_dataset.workers = 4  # your PyDataset, before model.fit": ("PyDataset", {"workers": 4}, "validation_data"),
    "ds = ds.prefetch(tf.data.AUTOTUNE)  # as its last step": ("prefetch", {"buffer_size": -1}, ""),
    "model.fit(..., validation_freq=5)": ("fit", {"validation_freq": 5}, ""),
    "ds = ds.repeat(10)\nmodel.fit(ds, ..., epochs=20)": ("repeat", {"count": 10, "epochs": 20}, ""),
    "keras.callbacks.ModelCheckpoint(..., save_freq=5 * 200)  # in batches": (
        "class",
        {"save_freq": 1000},
        "ModelCheckpoint",
    ),
    "if batch % 100 == 0: ...  # in Watcher.on_train_batch_end": (
        "every",
        {"every": 100},
        "Watcher.on_train_batch_end",
    ),
    "def on_epoch_end(self, index, logs=None):\n    self.last = index, logs\ndef on_train_end(self, logs=None):\n"
    "    index, logs = self.last\n    ...  # what Watcher.on_epoch_end does": (
        "every",
        {"every": ONCE},
        "Watcher.on_epoch_end",
    ),
    "class RareDraws(Draws):\n    def on_epoch_end(self, epoch, logs=None):\n        self.last = epoch, logs\n"
    "    def on_train_end(self, logs=None):\n        super().on_train_end(logs)\n"
    "        super().on_epoch_end(*self.last)\ncallbacks = [RareDraws(...)]": (
        "every",
        {"every": ONCE},
        "Draws.on_epoch_end",
    ),
    "class RareLog(Log):\n    def on_train_batch_end(self, batch, logs=None):\n        if batch % 100 == 0:\n"
    "            super().on_train_batch_end(batch, logs)\ncallbacks = [RareLog(...)]": (
        "every",
        {"every": 100},
        "Log.on_train_batch_end",
    ),
    'model.save("model.keras")  # after fit, instead of ModelCheckpoint': ("without", {}, "ModelCheckpoint"),
    'keras.mixed_precision.set_global_policy("mixed_bfloat16")  # before the model is built': (
        "policy",
        {"name": "mixed_bfloat16"},
        "",
    ),
    'model = torch.compile(model, mode="reduce-overhead")': ("torch.compile", {"mode": "reduce-overhead"}, ""),
    "tf.config.run_functions_eagerly(False)": ("eager", {"on": True}, ""),
}
REWRITES = [
    "class Ahead:\n    def __iter__(self):\n        pass\ndataset = Ahead(dataset)",
    "ds = ds.batch(32).map(f, num_parallel_calls=tf.data.AUTOTUNE)",
    "ds = ds.map(your_function, num_parallel_calls=tf.data.AUTOTUNE)",
    "ds = ds.map(decode).cache()",
    "batch_size = 4 * batch_size",
    "loader = DataLoader(dataset, ..., batch_size=64)",  # other steps: no ratio of times a step
    "@tf.function  # the line to add\ndef train_step(...):",
    "with monitor.phase('x'): ...",
    "if step % 100 == 0: ...  # what is logged now",
    "if batch_idx % 100 == 0: ...  # what Plots does now",
    'torch.save([dataset[i] for i in range(len(dataset))], "data.pt")  # once',
]


@pytest.mark.parametrize("line", LINES)
def test_a_printed_line_is_a_change(line):
    change = change_of(line)
    assert isinstance(change, Change), change
    assert (change.target, change.args, change.of) == LINES[line]
    assert change.target in TARGETS and change.words and change.line == line


@pytest.mark.parametrize("line", REWRITES)
def test_a_line_that_rewrites_python_is_none(line):
    assert change_of(line) == REWRITTEN


@pytest.mark.parametrize(
    "words, target",
    [
        ("workers=8", "PyDataset"),
        ("num_workers=2, prefetch_factor=4", "DataLoader"),
        ("run_eagerly=False", "compile"),
        ("validation_freq=5", "fit"),
        ("without TensorBoard", "without"),
        ("Watcher.on_epoch_end every 5", "every"),
    ],
)
def test_short_words_are_a_change(words, target):
    assert parse(words).target == target


@pytest.mark.parametrize("words", ["speed=9", "workers=8, num_workers=2", "def f(): pass", "workers=many", ""])
def test_other_words_are_refused_in_a_line(words):
    with pytest.raises(UnusableInput):
        parse(words)


def test_whole_epochs_are_timed_where_a_change_works_at_their_ends():
    assert change_of("model.fit(..., validation_freq=5)").epochs == 3
    assert change_of("ds = ds.cache()  # behind map(decode), before shuffle and repeat").epochs == 3
    assert change_of("held_out.workers = 4  # your validation PyDataset, before model.fit").epochs == 3
    assert parse("Watcher.on_epoch_end every 10").epochs == 3
    assert parse("Watcher.on_train_batch_end every 10").epochs == 0
    once = "self.last = epoch, logs\n...  # what Watcher.on_epoch_end does"
    assert (change_of(once).epochs, change_of(once).words) == (3, "Watcher.on_epoch_end once")
    assert parse("workers=8").epochs == 0


@pytest.mark.parametrize(
    "names", [("TensorFlowTrainer",), ("BaseTrainer", "Trainer"), ("JAXTrainer", "JAXEpochIterator")]
)
def test_the_trainer_of_any_keras_is_changed(names):
    """Keras 3.16 calls each backend's `Trainer`; before it had the backend's name."""
    hooks, changed = Hooks.__new__(Hooks), []
    hooks._on_fit = changed.append
    hooks._on_trainer(types.SimpleNamespace(**{name: type(name, (), {}) for name in names}))
    assert [kind.__name__ for kind in changed] == [
        next(n for n in names if n not in ("BaseTrainer", "JAXEpochIterator"))
    ]


@pytest.mark.parametrize("words", ["validation_freq=5", "validation_steps=8"])
def test_a_fit_that_does_not_validate_is_not_what_a_change_of_validation_is_about(words):
    for arguments, applies in (({"x": 0}, False), ({"x": 0, "validation_split": 0.1}, True)):
        hooks = Hooks({"change": parse(words).for_child()}, types.SimpleNamespace())
        hooks.fit_args(types.SimpleNamespace(arguments=arguments))
        assert hooks.change.applied == applies
