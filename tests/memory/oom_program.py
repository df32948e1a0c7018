"""A training that runs out of host memory: `oom_program.py KIND LOG_DIR`.

KIND: "loop", "fit", "callback" and "validation" keep more and more; "tensorflow", "jax" and "torch"
get one batch that is too long, of which the framework's own allocator says so; "killed" ends by
SIGKILL as the memory of its container is full. "contained-loop", "contained-fit" (of TensorFlow)
and "contained-validation" are started in a container whose limit the kernel holds them to.
"""

import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

kind, log_dir = sys.argv[1:]
backend = "tensorflow" if kind == "contained-fit" else kind
os.environ["KERAS_BACKEND"] = backend if backend in ("tensorflow", "jax") else "torch"
contained, _, kind = kind.rpartition("-")

import numpy as np  # noqa: E402

MIB = 1 << 20
ROOM = 900 * MIB  # threads reserve addresses, too: an arena of 64 MiB and a stack each
LONG = 1 << 19
kept = []


def leave_little() -> None:
    """As `ulimit -v` does, with a little above what is in use now."""
    import psutil

    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))


def fill_container() -> None:
    """Be in a container of which this process is all, and be killed when it is full."""
    from gpu_util_callback import cgroup
    from gpu_util_callback.gpus import _host
    from gpu_util_callback.recorder import memory_watch

    root = Path(log_dir).parent
    group = root / "sys/fs/cgroup"
    group.mkdir(parents=True)
    limit = int(_host._held_bytes() or 0) + ROOM

    def account(kills: int = 0) -> int:
        held = int(_host._held_bytes() or 0)
        for name, text in (("max", limit), ("stat", f"anon {held}"), ("events", "oom_kill 0")):
            (group / f"new.{name}").write_text(f"{text}\n".replace("kill 0", f"kill {kills}"))
            (group / f"new.{name}").replace(group / f"memory.{name}")
        return held

    def kernel() -> None:
        while account() < limit:
            time.sleep(0.05)
        account(kills=1)
        os.kill(os.getpid(), signal.SIGKILL)

    account()
    _host.control_groups = lambda _: cgroup.control_groups(root)
    _host.MemoryGroup = lambda: cgroup.MemoryGroup(str(root))
    memory_watch.kill_count = lambda: cgroup.kill_count(str(root))
    threading.Thread(target=kernel, daemon=True).start()


def hurry() -> None:
    """The rates of a long training, for one of seconds."""
    from gpu_util_callback.gpus import _host, sampler
    from gpu_util_callback.recorder import memory_watch, recorder

    _host._TOO_SOON_S = 0.0
    sampler.SLOW_S = sampler.WATCH_S = 0.03
    recorder.FLUSH_S, recorder.LOOK_S = 0.4, 0.1
    memory_watch.LOOK_S, memory_watch.SHARE = 0.2, 0.01


def loop() -> None:
    """Keep an array of every step."""
    from gpu_util_callback import GpuUtilMonitor

    np.ones(4) @ np.ones(4)
    with GpuUtilMonitor(log_dir=log_dir, trace=None) as monitor:
        if not contained:
            leave_little()
        for _ in monitor.batches(range(1000)):
            kept.append(np.ones(4 << 20, np.uint8))
            time.sleep(0.04 if contained else 0.012)


def fit() -> None:
    """A model whose step, or validation, or a callback that, keeps more and more."""
    import keras

    from gpu_util_callback import GpuUtilCallback

    class Grows(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x, training=False):
            if kind == ("fit" if training else "validation") and not (contained and training):
                kept.append(np.ones(4 << 20, np.uint8))
                time.sleep(0.02 if contained else 0.0)
            return self.dense(x)

    class Keeps(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            if not contained:
                fill_container() if kind == "killed" else leave_little()

        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.0 if kind == "validation" else 0.03 if contained else 0.01)
            if kind == "callback" or (contained and kind == "fit"):
                kept.append(np.ones(4 << 20, np.uint8))
            elif kind == "killed":
                kept.append(np.ones(8 << 20, np.uint8))

    model = Grows()
    model.compile("sgd", "mse")
    data = np.ones((1600, 4), "float32"), np.ones((1600, 1), "float32")
    callback = GpuUtilCallback(log_dir=log_dir, trace=None)
    held = tuple(np.repeat(one, 4, 0) for one in data) if kind == "validation" else None
    model.fit(
        *data,
        batch_size=16,
        epochs=9,
        verbose=0,
        callbacks=[callback, Keeps()],
        validation_data=held,
        validation_batch_size=16,
    )


def long_batch() -> None:
    """Batches of one length, and one whose activations take 2 GiB each."""
    import keras

    from gpu_util_callback import GpuUtilCallback

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 60

        def __getitem__(self, index):
            length = 8 + index % 2 if index < 50 else LONG
            return np.ones((16, length), "float32"), np.zeros((16, 1), "float32")

    class Limits(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.02)
            float(logs["loss"])  # as a progress bar does; JAX says nothing before
            if batch == 30:
                leave_little()

    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((None,)),
            layers.Lambda(lambda x: keras.ops.expand_dims(x, -1)),
            layers.Dense(64, activation="tanh"),
            layers.Dense(64, activation="tanh"),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse", jit_compile=kind == "jax")
    callback = GpuUtilCallback(log_dir=log_dir, trace=None)
    model.fit(Batches(), verbose=0, shuffle=False, callbacks=[callback, Limits()])


if kind in ("tensorflow", "jax", "torch"):
    long_batch()
else:
    hurry()
    loop() if kind == "loop" else fit()
