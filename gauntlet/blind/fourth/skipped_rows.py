"""A table too large for memory, read in chunks by `read_csv(skiprows=..., nrows=...)`, which reads the file from its
start for each chunk (a frequent answer to "CSV does not fit in memory").

Right: the generator reads and throws away all rows before the chunk, in `chunks`, so that batches get slower through
each epoch: `read_csv(chunksize=)` reads the file once an epoch; or store the table as arrays.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, keras, np

BACKEND, CAUSE = "torch", "read_csv(skiprows=, nrows=) reads the file from its start for each batch"
REMEDY = "parse the table once into a .npy file, mapped into memory (parsing included)"


def train(run):
    import pandas as pd

    rng = np.random.default_rng(0)
    names = [f"f{i}" for i in range(12)] + ["target"]
    path = folder() / "meters.csv"
    pd.DataFrame(rng.normal(size=(40000, 13)).round(4), columns=names).to_csv(path, index=False)

    def split(frame):
        values = frame.to_numpy("float32")
        return values[:, :12], values[:, 12:]

    def chunks():
        while True:
            if run.does("without"):
                yield from map(split, pd.read_csv(path, chunksize=500))
                continue
            for start in range(0, 40000, 500):
                yield split(pd.read_csv(path, skiprows=range(1, start + 1), nrows=500))

    def mapped():
        np.save(folder() / "meters.npy", pd.read_csv(path).to_numpy("float32"))
        values = np.load(folder() / "meters.npy", mmap_mode="r")
        while True:
            for start in range(0, 40000, 500):
                part = np.array(values[start : start + 500])
                yield part[:, :12], part[:, 12:]

    model = keras.Sequential(
        [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    callbacks = run.callbacks
    data = mapped() if run.does("remedy") else chunks()
    model.fit(data, steps_per_epoch=80, epochs=8, verbose=0, callbacks=callbacks)


if __name__ == "__main__":
    main(train)
