"""Tabular data: arrays, rows, CSV files."""

from __future__ import annotations

from gauntlet.helpers import folder, gathered, keras, mlp, np, rows, tf
from gauntlet.registry import INPUT, program
from gauntlet.vision import CACHE


@program(
    "small arrays, a small model: autotuning holds up each epoch's set-up of the arrays",
    "without:gathered",  # 1.30, 1.33 and 1.36 times as fast, 15 epochs each, beside others' work
    "each epoch sets up its input again",
    cures={"gathered": r"tf\.gather\(features"},
    harmful="from_tensor_slices|cache",
)
def tabular_arrays(run):
    x, y = rows(8000, 20)
    model = mlp(20)
    if run.does("gathered"):
        model.fit(gathered(x, y, 32), epochs=36, verbose=0, callbacks=run.callbacks)
        return model
    model.fit(x, y, batch_size=32, epochs=36, verbose=0, callbacks=run.callbacks)
    return model


@program(
    "small arrays, a small model: the thread that starts the steps works for most of each",
    "any",  # 16 steps in a call are 1.8 to 2.4 times as fast (three pairs beside others' work, CPU seconds 1.8 to 2.4)
    "steps_per_execution",
    nothing=True,  # where steps take longer, as they do on older machines
    backend="jax",
    harmful="from_tensor_slices|workers|cache",
)
def tabular_arrays_jax(run):
    return tabular_arrays(run)


@program(
    "nothing: small arrays, a small model", "any", None, backend="torch", harmful="from_tensor_slices|workers|cache"
)
def tabular_arrays_torch(run):
    return tabular_arrays(run)


@program(
    "rows of ten columns are put together one by one, from memory",
    "input",
    INPUT,
    cures={"batched": r"\.batch\([^)]*\)\.(unbatch|map|shuffle)|gather"},
    harmful=CACHE,
)
def tabular_columns(run):
    x, y = rows(8192, 10)
    columns = {f"c{i}": x[:, i : i + 1] for i in range(10)}
    data = tf.data.Dataset.from_tensor_slices((columns, y))
    data = data.batch(256).shuffle(32) if run.does("batched") else data.shuffle(8192).batch(256)
    inputs = {name: keras.Input((1,), name=name) for name in columns}
    hidden = keras.layers.Dense(32, "relu")(keras.layers.Concatenate()(list(inputs.values())))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
    model.fit(data, epochs=30, verbose=0, callbacks=run.callbacks)
    return model


@program(
    "lines of a CSV file are parsed again in every epoch",
    "input",
    INPUT,
    cures={"cached": CACHE},
    harmful="num_parallel_reads",
)
def csv_lines(run):
    x, y = rows(6000, 30)
    path = folder() / "rows.csv"
    if not path.exists():
        np.savetxt(path, np.hstack([x, y]), delimiter=",", fmt="%.6f")

    def parse(line):
        values = tf.stack(tf.io.decode_csv(line, [0.0] * 31))
        return values[:30], values[30:]

    data = tf.data.TextLineDataset(str(path)).map(parse)
    data = (data.cache() if run.does("cached") else data).batch(64)
    model = mlp(30)
    model.fit(data, epochs=60, verbose=0, callbacks=run.callbacks)
    return model


@program(
    "two batches an epoch: setting the input up takes longer than training",
    "without:passes",
    r"sets up its input",
    cures={"passes": r"np\.concatenate\(\[array\] \* (\d+)\)"},
)
def tiny_epochs(run):
    x, y = rows(64, 8)
    model = mlp(8)
    epochs, passes = 300, run.number(30) if run.does("passes") else 1
    arrays = [np.concatenate([array] * passes) for array in (x, y)]
    model.fit(*arrays, batch_size=32, epochs=round(epochs / passes), verbose=0, callbacks=run.callbacks)
    return model
