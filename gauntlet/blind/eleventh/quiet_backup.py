"""Tides at harbours, Keras on PyTorch: `BackupAndRestore` saves after each epoch, for a machine that may be taken away,
`CSVLogger` writes a line, the rate is lowered on a plateau, and a tenth is validated. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: the network has 60,000 weights, which are saved within
milliseconds seven times, and the validation is small; not the backups, not the callbacks, not the validation, and not
the `PyDataset`, which takes windows from an array in memory.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, keras, np

BACKEND, CAUSE, USES = "torch", "", "callback"
NOISE = "a backup, a line of a log and a validation on a tenth of the windows after each epoch"


class Windows(keras.utils.PyDataset):
    """Windows of a long series, and the tide an hour later."""

    def __init__(self, series, first, last):
        super().__init__()
        self.series = np.lib.stride_tricks.sliding_window_view(series, 96, axis=0)
        self.starts = np.random.default_rng(0).permutation(np.arange(first, last))

    def __len__(self):
        return len(self.starts) // 32

    def __getitem__(self, number):
        rows = self.starts[32 * number : 32 * number + 32]
        return self.series[rows].swapaxes(1, 2), self.series[rows + 6, 0, -1]


def train(run):
    keras.utils.set_random_seed(0)
    series = np.random.default_rng(0).normal(size=(4000, 8)).astype("float32").cumsum(0) / 30
    path, layers = folder(), keras.layers
    model = keras.Sequential(
        [
            keras.Input((96, 8)),
            layers.Conv1D(64, 5, activation="relu"),
            layers.Conv1D(96, 5, activation="relu"),
            layers.MaxPooling1D(2),
            layers.Conv1D(96, 3, activation="relu"),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(1e-3, momentum=0.9), "mae")
    callbacks = keras.callbacks
    own = [
        callbacks.BackupAndRestore(str(path / "backup")),
        callbacks.CSVLogger(str(path / "log.csv")),
        callbacks.ReduceLROnPlateau(patience=2),
    ]
    without = run.does("without")
    model.fit(
        Windows(series, 0, 2880),
        validation_data=None if without else Windows(series, 3200, 3488),
        epochs=7,
        verbose=2,
        callbacks=[*([] if without else own), *run.callbacks],
    )


if __name__ == "__main__":
    main(train)
