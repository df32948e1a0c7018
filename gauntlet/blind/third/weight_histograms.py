"""The TensorBoard callback draws histograms of a large embedding after each short epoch (tensorflow#24643).

Right: the `TensorBoard` callback's `on_epoch_end` holds training up: `histogram_freq=0`, or only every tenth epoch;
nothing about the input.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import folder, keras

BACKEND, CAUSE, USES = "tensorflow", "TensorBoard(histogram_freq=1) after each short epoch of a large embedding", "run"


def train(run):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 60000, (1600, 16)), rng.integers(0, 2, (1600, 1))
    model = keras.Sequential(
        [
            keras.layers.Embedding(60000, 64),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy")
    board = keras.callbacks.TensorBoard(str(folder() / "board"), histogram_freq=0 if run.does("without") else 1)
    run.start()
    model.fit(x, y, batch_size=160, epochs=28, verbose=0, callbacks=[board])


if __name__ == "__main__":
    main(train)
