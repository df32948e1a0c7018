"""A network for electrocardiograms: each epoch takes minutes though the network is a few convolutions, and it was not
better on a larger card; the records are in memory.

Right: the input: `clean` in `__getitem__` filters each record's leads anew in each epoch, and nothing of it is random:
filter all records once, before training, and keep them (or their file); more workers help by as many cores as are
free; of the filters the moving median takes the most and may be replaced; not the network, not the reading.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np

BACKEND, CAUSE = "jax", "each record is filtered (moving median, notch, band-pass) anew in each epoch"


def train(run):
    from scipy import signal

    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    seconds = np.arange(5000) / 500
    beats = np.sin(2 * np.pi * seconds * generator.uniform(0.9, 1.8, (320, 12, 1))) ** 15
    records = beats + np.sin(seconds) + generator.normal(0, 0.05, beats.shape)
    band, notch = signal.butter(3, (0.5, 40), "band", fs=500), signal.iirnotch(50, 30, 500)

    def clean(record):
        baseline = np.stack([signal.medfilt(lead, 301) for lead in record])
        record = signal.filtfilt(*band, signal.filtfilt(*notch, record - baseline))
        record = signal.resample_poly(record, 1, 5, axis=1)
        return (record / record.std()).T.astype("float32")

    cleaned = [clean(record) for record in records] if run.does("without") else []

    class Heartbeats(keras.utils.PyDataset):
        def __init__(self):
            super().__init__()
            self.order = generator.permutation(320)

        def __len__(self):
            return 20

        def __getitem__(self, i):
            chosen = self.order[16 * i : 16 * i + 16]
            if cleaned:
                return np.stack([cleaned[j] for j in chosen]), chosen % 5
            return np.stack([clean(records[j]) for j in chosen]), chosen % 5

        def on_epoch_end(self):
            self.order = generator.permutation(320)

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((1000, 12)),
            layers.Conv1D(32, 9, strides=4, activation="relu"),
            layers.Conv1D(64, 9, strides=4, activation="relu"),
            layers.GlobalAveragePooling1D(),
            layers.Dense(5),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.fit(Heartbeats(), epochs=5, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
