"""A GAN of Keras trained by `train_on_batch` in a plain loop, which draws and saves a picture grid each few steps.

Right: the time goes into making pictures between the steps, at `save_grid`: more seldom; not "training steps".
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import folder, keras

BACKEND, CAUSE, USES = "tensorflow", "a grid of samples is drawn and saved every 25th step", "monitor"


def train(run):
    from PIL import Image

    rng = np.random.default_rng(0)
    real = rng.random((1024, 16, 16, 1), "float32")
    judge = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(1, "sigmoid")])
    maker = keras.Sequential(
        [keras.layers.Dense(64, "relu"), keras.layers.Dense(256), keras.layers.Reshape((16, 16, 1))]
    )
    judge.compile("adam", "binary_crossentropy")

    def save_grid(step):
        grid = np.concatenate(
            [np.concatenate(list(maker.predict(rng.random((8, 32)), verbose=0))) for _ in range(8)], 1
        )
        picture = Image.fromarray((grid[..., 0] * 255).astype("uint8")).resize((1600, 1600), Image.Resampling.LANCZOS)
        picture.save(folder() / f"{step}.png", optimize=True)

    def batches():
        for start in range(250):
            yield real[(32 * start) % 992 :][:32]

    with run.monitor() as monitor:
        for step, batch in enumerate(monitor.batches(batches())):
            fake = maker(rng.random((32, 32), "float32"))
            judge.train_on_batch(batch, np.ones((32, 1)))
            judge.train_on_batch(np.asarray(fake), np.zeros((32, 1)))
            if step % 25 == 0 and not run.does("without"):
                save_grid(step)


if __name__ == "__main__":
    main(train)
