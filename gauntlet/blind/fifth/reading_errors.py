"""A reader of handwriting, whose share of wrong letters a callback counts after each epoch: an edit distance in Python,
for each line of the held-out data.

Right: the time between the epochs passes in `on_epoch_end` of the program's own callback, in the Python loops of
`distance` (and not in the prediction): count it on fewer lines or every n-th epoch, at the end only, or with a library
in C; nothing about the input or the step.
"""

from gauntlet.blind import main
from gauntlet.helpers import images, keras, np

BACKEND, CAUSE = "torch", "a callback counts edit distances in Python after each epoch"


def train(run):
    keras.utils.set_random_seed(0)
    lines = images(720, 64).mean(3).astype("float32") / 255
    letters = np.random.default_rng(0).integers(0, 26, (720, 64))
    held = slice(480, 720)

    def distance(read, true):
        before = list(range(len(true) + 1))
        for i, letter in enumerate(read, 1):
            row = [i]
            for j, other in enumerate(true, 1):
                row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != other)))
            before = row
        return before[-1]

    class Errors(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            read = self.model.predict(lines[held], batch_size=240, verbose=0).argmax(-1)
            if not run.does("without") or epoch == 14:
                wrong = [distance(one, true) / len(true) for one, true in zip(read, letters[held], strict=True)]
                self.share = sum(wrong) / len(wrong)

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((64, 64)),
            layers.Conv1D(48, 3, padding="same", activation="relu"),
            layers.Conv1D(48, 3, padding="same", activation="relu"),
            layers.Bidirectional(layers.GRU(24, return_sequences=True)),
            layers.Dense(26, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(lines[:480], letters[:480], batch_size=64, epochs=15, verbose=0, callbacks=[Errors(), *run.callbacks])


if __name__ == "__main__":
    main(train)
