"""Large photos opened from disk and scaled down at each read (AnimeGAN, YOLO and SSD threads on low utilization).

Right: the PyDataset decodes and resizes in the training process: `workers=`, or scale the files once, at
`__getitem__`.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import folder, images, keras

BACKEND, CAUSE = "torch", "a PyDataset without workers opens and scales large photos"


def train(run):
    from PIL import Image

    side = 48 if run.does("without") else 480
    for i, image in enumerate(images(96, 480)):
        Image.fromarray(image).resize((side, side)).save(folder() / f"{i}.bmp" if side == 48 else folder() / f"{i}.png")
    files = sorted(folder().glob("*.bmp" if side == 48 else "*.png"))

    class Photos(keras.utils.PyDataset):
        def __len__(self):
            return 12

        def __getitem__(self, index):
            opened = [Image.open(file).convert("RGB").resize((48, 48)) for file in files[8 * index : 8 * index + 8]]
            return np.stack([np.asarray(photo, "float32") / 255 for photo in opened]), np.arange(8) % 2

    layers = [
        keras.layers.Conv2D(16, 3, 2, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(2, "softmax"),
    ]
    model = keras.Sequential(layers)
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(Photos(), epochs=4, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
