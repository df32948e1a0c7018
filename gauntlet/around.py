"""What stops training: validation, checkpoints, callbacks, a stopped process."""

from __future__ import annotations

import os
import subprocess
import sys

from gauntlet.helpers import compute, convnet, folder, images, jpegs, keras, mlp, np, rows, sleep_ms, tf
from gauntlet.registry import program
from gauntlet.vision import load_image

FREQ, STEPS, CACHED = r"validation_freq=(\d+)", r"validation_steps=(\d+)", r"\.cache\(\)"
VALIDATION = r"[Vv]alidation"


def _validated(run, validation, cached=False, steps=None, callbacks=()):
    data = tf.data.Dataset.from_tensor_slices((images(320, 64) / 255, np.arange(320) % 2))
    model = convnet(64)
    model.fit(
        data.cache().batch(32).prefetch(2),
        epochs=24,
        verbose=0,
        validation_data=validation.cache() if run.does("cached") else validation,
        validation_freq=run.number(2) if run.does("seldom") else 1,
        validation_steps=run.number(2) if run.does("steps") else None,
        callbacks=[*callbacks, *run.callbacks],
    )
    return model


def _files():
    return tf.data.Dataset.list_files(f"{jpegs()}/*/*.jpg", shuffle=False).map(load_image).batch(32)


@program(
    "validation decodes the same files every time",
    "without:cached",
    VALIDATION,
    cures={"cached": CACHED, "seldom": FREQ},
)
def validation_decoding(run):
    return _validated(run, _files())


@program(
    "a validation of many batches, whose data are in a cache",
    "without:none",
    VALIDATION,
    cures={"seldom": FREQ},
    harmful=f"{STEPS}|{CACHED}",
)
def validation_cached(run):
    data = tf.data.Dataset.from_tensor_slices((images(1600, 64) / 255, np.arange(1600) % 2))
    if run.does("none"):
        data = data.take(64)
    return _validated(run, data.batch(32).cache())


@program(
    "validation decodes the same files every time, and EarlyStopping needs its metric",
    "without:cached",
    VALIDATION,
    cures={"cached": CACHED},
    harmful=f"{STEPS}|{FREQ}",
)
def validation_early_stopping(run):
    stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=20)
    return _validated(run, _files(), callbacks=[stop])


@program(
    "validation computes in Python",
    "without:seldom",
    VALIDATION,
    cures={"seldom": FREQ, "steps": STEPS, "workers": r"workers = (\d+)"},
)
def validation_computing(run):
    x, y = rows(16 * 40, 8)

    class Rows(keras.utils.PyDataset):
        def __len__(self):
            return 20

        def __getitem__(self, i):
            compute(300_000)
            return x[16 * i : 16 * i + 16], y[16 * i : 16 * i + 16]

    validation = Rows()
    if run.does("workers"):
        validation.workers, validation.use_multiprocessing = run.number(4), True
    model = mlp(8, units=1024, layers=3)
    model.fit(
        x,
        y,
        batch_size=16,
        epochs=24,
        verbose=0,
        validation_data=validation,
        validation_freq=run.number(2) if run.does("seldom") else 1,
        validation_steps=run.number(2) if run.does("steps") else None,
        callbacks=run.callbacks,
    )
    return model


@program(
    "a checkpoint is written every five batches",
    "without:seldom",
    r"ModelCheckpoint",
    cures={"once": r"model\.save\(", "seldom": r"save_freq="},
)
def checkpoints(run):
    x, y = rows(16 * 100, 8)
    model = mlp(8, units=1024, layers=4)
    path = str(folder() / "model.keras")
    saves = [keras.callbacks.ModelCheckpoint(path, save_freq="epoch" if run.does("seldom") else 5)]
    model.fit(
        x, y, batch_size=16, epochs=2, verbose=0, callbacks=[*([] if run.does("once") else saves), *run.callbacks]
    )
    if run.does("once"):
        model.save(path)
    return model


def _with_callback(run, hook, work, epochs=30):
    """Train with a callback whose hook works each time, or every `run.value`th time."""
    every = run.number(10) if run.does("seldom") else 1

    class Watcher(keras.callbacks.Callback):
        """Draws samples of the model."""

    def works(self, index, logs=None):
        if index % every == 0:
            work(self.model)

    if run.does("once"):
        Watcher.on_train_end = lambda self, logs=None: work(self.model)
    else:
        setattr(Watcher, hook, works)
    x, y = rows(16 * 100, 8)
    model = mlp(8)
    model.fit(x, y, batch_size=16, epochs=epochs, verbose=0, callbacks=[Watcher(), *run.callbacks])
    return model


@program(
    "a callback draws samples at the end of every epoch",
    "without:once",
    r"Watcher\.on_epoch_end",
    cures={"once": "on_train_end", "seldom": r"epoch % (\d+)"},
)
def epoch_callback(run):
    return _with_callback(run, "on_epoch_end", lambda model: compute(8_000_000))


@program(
    "a callback logs to a server after every batch",
    "without:seldom",
    r"Watcher\.on_train_batch_end",
    cures={"seldom": r"batch % (\d+)", "once": r"on_epoch_end|on_train_end"},
)
def batch_callback(run):
    return _with_callback(run, "on_train_batch_end", lambda model: sleep_ms(5), epochs=18)


@program(
    "the process is stopped for four seconds from outside",
    "without:none",
    r"stopped|suspended|paused",
    nothing=True,
    harmful="callback|validation|workers|map",
)
def stopped(run):
    data = tf.data.Dataset.from_tensor_slices(rows(6400, 8)).batch(16).cache()
    model = mlp(8, units=512, layers=4)
    code = (
        "import os, signal, sys, time; time.sleep(2); pid = int(sys.argv[1]);"
        "os.kill(pid, signal.SIGSTOP); time.sleep(4); os.kill(pid, signal.SIGCONT)"
    )
    callbacks = run.callbacks
    if not run.does("none"):
        other = subprocess.Popen([sys.executable, "-c", code, str(os.getpid())])
    model.fit(data, epochs=12, verbose=0, callbacks=callbacks)
    if not run.does("none"):
        other.wait()
    return model


@program(
    "validation runs in small batches of arrays, as many as it has",
    "without:larger",
    VALIDATION,
    cures={"larger": r"validation_batch_size=(\d+)", "seldom": FREQ, "steps": STEPS},
)
def validation_small_batches(run):
    x, y = rows(20_000, 8)
    model = mlp(8)
    model.fit(
        x[:3000],
        y[:3000],
        batch_size=32,
        epochs=6,
        validation_data=(x[3000:], y[3000:]),
        validation_batch_size=run.number(256) if run.does("larger") else None,
        validation_freq=run.number(2) if run.does("seldom") else 1,
        validation_steps=run.number(40) if run.does("steps") else None,
        verbose=0,
        callbacks=run.callbacks,
    )
    return model
