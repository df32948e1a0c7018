"""A callback from a blog notes the memory of the training after each batch, for which it starts `ps`, as others start
`nvidia-smi`; the plot is fine, and the card idles between the steps.

Right: a callback starts a process (`ps`) and waits for it after each batch: do so once an epoch or in a thread of its
own, or read `/proc/self/status` or psutil; not the input, which is one array in memory, and not the model.
"""

import os
import subprocess

from gauntlet.blind import main
from gauntlet.helpers import keras, np

BACKEND, CAUSE, USES = "jax", "a callback starts `ps` and waits for it after each batch", "callback"


class Memory(keras.callbacks.Callback):
    """Notes the memory of the training."""

    def __init__(self):
        super().__init__()
        self.noted = []

    def on_train_batch_end(self, batch, logs=None):
        command = ["ps", "-eo", "pid,rss,pcpu,args"]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[1:]
        mine = [line.split() for line in lines if line.split()[0] == str(os.getpid())]
        self.noted.append(int(mine[0][1]) // 1024)


def train(run):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(64 * 80, 96)).astype("float32"), generator.integers(0, 5, 64 * 80)
    layers = keras.layers
    model = keras.Sequential([keras.Input((96,)), *(layers.Dense(384, "relu") for _ in range(3)), layers.Dense(5)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    own = [] if run.does("without") else [Memory()]
    model.fit(x, y, batch_size=64, epochs=4, verbose=2, callbacks=own + run.callbacks)


if __name__ == "__main__":
    main(train)
