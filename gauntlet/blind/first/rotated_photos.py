"""An ImageDataGenerator-like sequence that rotates and shifts each photo with scipy (keras-team/keras#7168).

Right: the sequence augments in the training process: `workers=` of the PyDataset, or less per photo, at
`__getitem__`.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import keras

BACKEND, CAUSE = "torch", "a PyDataset without workers rotates photos with scipy"


def train(run):
    from scipy import ndimage

    photos = np.random.default_rng(0).random((480, 48, 48, 3), "float32")
    labels = np.arange(480) % 10

    class Augmented(keras.utils.PyDataset):
        def __len__(self):
            return 30

        def __getitem__(self, index):
            batch = photos[16 * index : 16 * index + 16]
            if not run.does("without"):
                angles = np.random.uniform(-90, 90, len(batch))
                batch = np.stack([ndimage.rotate(x, a, reshape=False) for x, a in zip(batch, angles, strict=True)])
            return batch, labels[16 * index : 16 * index + 16]

    model = keras.Sequential(
        [
            keras.layers.Conv2D(16, 3, 2, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(Augmented(), epochs=6, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
