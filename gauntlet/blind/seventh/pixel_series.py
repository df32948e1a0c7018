"""A year of weather maps in a Zarr array with a few days a chunk, as the maps arrived; the model learns from the
series of single places, each of which goes through all chunks (openclimatefix-archives/nowcasting_dataset#57).

Right: the input: `__getitem__` reads `maps[:, y, x]`, for which all 64 chunks are read and unpacked, for each place:
rechunk once along time (all days of a few places in a chunk), or read once into memory what is needed; not more or
fewer workers as the first thing, and not the model.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, keras, np

BACKEND, CAUSE = "jax", "Zarr chunks hold whole maps of few days: each place's series unpacks all 64 chunks"


def train(run):
    import tensorstore

    generator = np.random.default_rng(0)
    keras.utils.set_random_seed(0)
    days = np.sin(np.arange(256)[:, None, None] / 20 + np.arange(96)[:, None] / 9 + np.arange(96) / 11)
    chunk = [256, 8, 8] if run.does("without") else [4, 96, 96]
    maps = tensorstore.open(
        {"driver": "zarr", "kvstore": {"driver": "file", "path": str(folder() / "maps.zarr")},
         "metadata": {"shape": [256, 96, 96], "chunks": chunk, "dtype": "<f4"}},
        create=True,
    ).result()  # fmt: skip
    maps.write((days + generator.normal(0, 0.1, days.shape)).astype("float32")).result()

    class Places(keras.utils.PyDataset):
        def __len__(self):
            return 24

        def __getitem__(self, i):
            places = generator.integers(0, 96, (16, 2))
            series = np.stack([maps[:, y, x].read().result() for y, x in places])
            return series[:, :-8, None], series[:, -8:]

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((248, 1)),
            layers.Conv1D(32, 9, strides=2, activation="relu"),
            layers.Conv1D(64, 9, strides=2, activation="relu"),
            layers.GlobalAveragePooling1D(),
            layers.Dense(8),
        ]
    )
    model.compile("adam", "mse")
    model.fit(Places(), epochs=5, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
