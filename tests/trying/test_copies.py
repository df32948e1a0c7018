"""`try_fix`: both sides are trained on copies, in the process of the fit, which stays as it is."""

import threading

import numpy as np
import pytest

from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.report.notebook import Summary, try_fix
from gpu_util_callback.trying.copies import copied_input, copied_model, same_random_numbers
from gpu_util_callback.trying.outcomes import stored

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")
pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="made of tf.data")
PROGRAM = "train.py"
PLAN = {"steps": 8, "seconds": 0.1}


class Rows(keras.utils.PyDataset):
    """Batches whose order and count are its own."""

    def __init__(self):
        super().__init__()
        self.order, self.read = np.arange(30), 0

    def __len__(self):
        return len(self.order)

    def __getitem__(self, index):
        self.read += 1
        return np.full((8, 4), self.order[index], "float32"), np.zeros((8, 1), "float32")

    def on_epoch_end(self):
        np.random.shuffle(self.order)


def rows(x):
    noise = keras.random.uniform((4,), 0, 0.5, seed=SEEDS)
    return tf.fill([4], tf.cast(x, tf.float32)) + noise, tf.zeros([1])


def pipeline():
    return tf.data.Dataset.range(240).shuffle(240, seed=5).map(rows).batch(8)


def squares(y, y_pred):
    return keras.ops.mean((y - y_pred) ** 2)


SEEDS = None  # made once the interpreter's own objects are frozen


@pytest.fixture(scope="module")
def model():
    global SEEDS
    keras.utils.set_random_seed(2)
    SEEDS = keras.random.SeedGenerator(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.3), keras.layers.Dense(1)])
    model.compile("adam", squares, metrics=["mae"])
    model.fit(pipeline(), verbose=0)
    return model


def state(model, data):
    from harness.unchanged.fits import exact, random_states

    variables = [exact(variable) for variable in (*model.variables, *model.optimizer.variables, SEEDS.state)]
    settings = model.train_function, model.history, model.stop_training, model.steps_per_execution, model.run_eagerly
    own = (data.order.tolist(), data.read, data.workers) if isinstance(data, Rows) else ()
    return variables, settings, random_states(), own, vars(tf.data.Dataset)["map"], threading.active_count()


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (lambda: pipeline, "ds = ds.map(rows, num_parallel_calls=2)"),
        (lambda: pipeline, "ds = ds.cache()  # behind map(rows), before shuffle and repeat"),
        (Rows, "data.workers = 2"),
        (pipeline, "model.compile(..., steps_per_execution=4)"),
    ],
)
def test_model_input_and_random_numbers_stay_as_they_are(model, capsys, tmp_path, given, line):
    tf.random.set_seed(3)
    x = given()
    before = state(model, x)
    try_fix(summary_of(line, tmp_path), PROGRAM, model, x, {}, PLAN, (2, 2))
    assert state(model, x) == before
    if hasattr(x, "with_options"):
        assert order_of(x) == order_of(pipeline()), "as if it had not been read"
    assert "2 pairs of" in capsys.readouterr().out
    assert stored(tmp_path)["a"]["pairs"] == 2


def order_of(dataset):
    return [batch[0][:, 0].numpy().astype(int).tolist() for batch in dataset]


# -- what is printed ----------------------------------------------------------------------------------


def summary_of(code, path=None):
    summary = Summary(None)
    advice = {"code": code, "text": "Do it.", "untried": ""}
    finding = {"id": "a", "cause": "input_bound", "title": "Input-bound", "lost_s": 1.0, "saves_s": 1.0}
    summary._run = {"findings": [finding | {"advice": advice}] if code else [], "spans": []}
    summary._path = path
    return summary


class Unlike(keras.Sequential):
    """Cannot be made again from its configuration."""

    def get_config(self):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("code", "x", "says"),
    [
        ("", [], "nothing to try: Nothing was recorded"),
        ("class Ahead:\n    pass", [], "Input-bound: cannot be tried here: it changes the program's own Python code\n"),
        ("ds = ds.map(rows, num_parallel_calls=2)", pipeline(), "give a function that makes it. "),
        ("model.fit(..., validation_freq=5)", pipeline(), "more than model and input. "),
        ("val = val.cache()  # validation data, as its last step", pipeline(), "more than model and input. "),
        ("ds = ds.map(other, num_parallel_calls=2)", pipeline, "never makes the call that the change is about. "),
        ("ds = ds.prefetch(tf.data.AUTOTUNE)", iter([]), "a generator can be read once"),
        ("ds = ds.prefetch(tf.data.AUTOTUNE)", lambda: 1 / 0, "ZeroDivisionError: division by zero. "),
    ],
)
def test_what_cannot_be_tried_here_is_one_line_with_the_command(model, capsys, code, x, says):
    before = state(model, x)
    try_fix(summary_of(code), PROGRAM, model, x, {}, PLAN, (2, 2))
    printed = capsys.readouterr().out
    assert says in printed and (says[-2:] != ". " or "gpu-util try --fix 1 train.py" in printed)
    assert state(model, x) == before


class Own(keras.Model):
    """Its constructor takes less than Keras writes down of it."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x):
        return self.dense(x)


def test_a_model_of_a_class_of_its_own_is_copied_with_all_that_it_holds():
    model = Own()
    model.compile(keras.optimizers.SGD(0.5), squares, run_eagerly=True)
    model(np.zeros((1, 4)))
    twin = copied_model(model)
    assert (
        type(twin) is Own and twin.run_eagerly and twin.loss is squares and float(twin.optimizer.learning_rate) == 0.5
    )
    assert [weight.tobytes() for weight in twin.get_weights()] == [weight.tobytes() for weight in model.get_weights()]
    assert not {id(variable) for variable in twin.variables} & {id(variable) for variable in model.variables}


def test_large_arrays_are_not_copied(monkeypatch):
    monkeypatch.setattr("gpu_util_callback.trying.copies.LARGE_BYTES", 200)
    rows = Rows()
    assert copied_input(rows).order is rows.order
    with pytest.raises(UnusableInput, match="holds large arrays"):
        copied_input(tf.data.Dataset.from_tensor_slices(np.zeros((99, 4))).shuffle(9).batch(2))


def test_a_model_that_cannot_be_copied_is_left_alone(model, capsys):
    try_fix(summary_of("ds = ds.prefetch(2)"), PROGRAM, Unlike(model.layers), pipeline(), {}, PLAN, (2, 2))
    assert "the model cannot be copied" in capsys.readouterr().out


def test_a_program_that_never_sets_a_seed_is_tried_as_well(monkeypatch):
    from tensorflow.python.eager import context

    monkeypatch.delattr(context.context(), "_rng", raising=False)  # as it is until `tf.random.set_seed`
    with same_random_numbers():
        drawn = np.random.random()
    assert np.random.random() == drawn
