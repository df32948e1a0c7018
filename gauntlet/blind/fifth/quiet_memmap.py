"""Spectra in one large file that NumPy maps into memory, read in pieces; the best weights are kept, a line is logged
after each epoch, and training would end early. Nothing is wrong.

Right: no finding, or nothing that would make it much faster.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, keras, np

BACKEND, CAUSE = "torch", ""
NOISE = "after each epoch a validation on 640 spectra, a checkpoint and a line in a log file"


def train(run):
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    rng.random((5760, 512), "float32").tofile(folder() / "spectra.bin")
    spectra = np.memmap(folder() / "spectra.bin", "float32", "r", shape=(5760, 512))
    kinds = rng.integers(0, 6, 5760)

    class Spectra(keras.utils.PyDataset):
        def __init__(self, first, count, **options):
            super().__init__(**options)
            self.first, self.count = first, count

        def __len__(self):
            return self.count // 64

        def __getitem__(self, i):
            part = slice(self.first + 64 * i, self.first + 64 * i + 64)
            return np.array(spectra[part])[:, :, None], kinds[part]

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((512, 1)),
            layers.Conv1D(24, 7, 2, activation="relu"),
            layers.Conv1D(48, 5, 2, activation="relu"),
            layers.Conv1D(48, 5, 2, activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(6, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    kept, held = [], None
    if not run.does("without"):
        held = Spectra(5120, 640)
        kept = [
            keras.callbacks.ModelCheckpoint(str(folder() / "best.keras"), save_best_only=True),
            keras.callbacks.EarlyStopping(patience=10),
            keras.callbacks.CSVLogger(str(folder() / "log.csv")),
        ]
    model.fit(Spectra(0, 5120), epochs=5, validation_data=held, verbose=0, callbacks=kept + run.callbacks)


if __name__ == "__main__":
    main(train)
