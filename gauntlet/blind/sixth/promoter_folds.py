"""Pieces of DNA for three folds, letter by letter turned into numbers by a PyDataset with four workers, which are
threads (keras-team/keras#4763).

Right: the input: the Python loops of `encoded` hold the GIL, so that the four threads take turns: encode with NumPy
(`frombuffer` and a table), or once before training; `use_multiprocessing=True` is right by halves; more workers of the
same kind gain nothing.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np

BACKEND, CAUSE = "jax", "four threads of a PyDataset encode DNA letter by letter in Python"


def train(run):
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    pieces = ["".join(row) for row in rng.choice(list("ACGT"), (960, 800))]
    kinds = rng.integers(0, 2, 960)
    number = {"A": 0, "C": 1, "G": 2, "T": 3}
    table = np.zeros((256, 4), "float32")
    table[[ord(letter) for letter in number]] = np.eye(4)

    def encoded(piece):
        if run.does("without"):
            return table[np.frombuffer(piece.encode(), "uint8")]
        matrix = np.zeros((len(piece), 4), "float32")
        for place, letter in enumerate(piece):
            if letter in number:
                matrix[place, number[letter]] = 1.0
        return matrix

    class Promoters(keras.utils.PyDataset):
        def __init__(self, chosen, **options):
            super().__init__(**options)
            self.chosen = chosen

        def __len__(self):
            return len(self.chosen) // 32

        def __getitem__(self, i):
            chosen = self.chosen[32 * i : 32 * i + 32]
            return np.stack([encoded(pieces[one]) for one in chosen]), kinds[chosen]

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((800, 4)),
            layers.Conv1D(12, 9, 4, activation="relu"),
            layers.GlobalMaxPooling1D(),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    start = model.get_weights()
    for fold in np.split(rng.permutation(960), 3):
        model.set_weights(start)
        others = np.setdiff1d(np.arange(960), fold)
        held = Promoters(fold, workers=4)
        model.fit(Promoters(others, workers=4), epochs=20, validation_data=held, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
