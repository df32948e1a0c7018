"""Characters in a compressed `.npz`, which `np.load` seems to have loaded: its arrays are read whenever they are named.

Right: the input: `self.file["photos"]` in `__getitem__` unpacks the whole array for each batch: name it once, in
`__init__` (`self.photos = file["photos"]`), or save it as `.npy` and map that; not more workers, each of which would
unpack everything too.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, images, keras, np

BACKEND, CAUSE = "jax", "__getitem__ names an array of an npz file, which unpacks all of it for each batch"


def train(run):
    keras.utils.set_random_seed(0)
    photos = np.tile(images(400, 32).mean(3).astype("uint8"), (10, 1, 1))
    np.savez_compressed(folder() / "characters.npz", photos=photos, labels=np.arange(4000) % 46)

    class Characters(keras.utils.PyDataset):
        def __init__(self, path, **options):
            super().__init__(**options)
            self.file = np.load(path)
            if run.does("without"):
                self.file = dict(self.file)
            self.order = np.random.default_rng(0).permutation(4000)

        def __len__(self):
            return 4000 // 50

        def __getitem__(self, i):
            rows = self.order[50 * i : 50 * i + 50]
            return self.file["photos"][rows, :, :, None].astype("float32") / 255, self.file["labels"][rows]

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((32, 32, 1)),
            layers.Conv2D(8, 3, 2, activation="relu"),
            layers.Conv2D(16, 3, 2, activation="relu"),
            layers.Flatten(),
            layers.Dense(46, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(Characters(folder() / "characters.npz"), epochs=5, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
