"""Online learning: each new chunk is fitted, then the model is evaluated on all that is held out (streaming threads).

Right: `evaluate` between the short fits takes the time: on fewer samples or after every n-th chunk; no advice on a
fit's input.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import keras

BACKEND, CAUSE, USES = "tensorflow", "evaluate over all held-out samples after each chunk", "run"


def train(run):
    rng = np.random.default_rng(0)
    stream, held = rng.random((12, 640, 40), "float32"), rng.random((25600, 40), "float32")
    model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    run.start()
    for number, chunk in enumerate(stream):
        model.fit(chunk, chunk[:, :1], batch_size=32, verbose=0)
        if number == 11 or not run.does("without"):
            model.evaluate(held, held[:, :1], batch_size=32, verbose=0)


if __name__ == "__main__":
    main(train)
