"""Photos in an HDF5 file, a batch of neighbours at a time, the batches shuffled; two workers read ahead. Nothing is
wrong.

Right: no finding, or nothing that would make it much faster.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, images, keras, np

BACKEND, CAUSE = "tensorflow", ""
NOISE = "each batch is read from an uncompressed HDF5 file, in one piece"


def train(run):
    import h5py

    photos, labels = images(2560, 32), np.arange(2560) % 10
    with h5py.File(folder() / "photos.h5", "w") as file:
        file["x"], file["y"] = photos, labels

    class Photos(keras.utils.PyDataset):
        def __init__(self, **options):
            super().__init__(**options)
            self.file = h5py.File(folder() / "photos.h5")

        def __len__(self):
            return 40

        def __getitem__(self, index):
            part = slice(64 * index, 64 * index + 64)
            if run.does("without"):
                return photos[part].astype("float32") / 255, labels[part]
            return self.file["x"][part].astype("float32") / 255, self.file["y"][part]

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(24, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(48, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(Photos(workers=2), epochs=8, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
