"""A table in chunks that do not fit into memory together: for each the model is loaded, fitted and saved again
(keras-team/keras#4485, #13710: "I was creating a new object of the model in every iteration").

Right: most of the time passes between the fits and at the first step of each, for `load_model` and for compiling the
loaded model anew: keep one model and call `fit` on it for each chunk (or one fit of a generator over the chunks), save
at the end or now and then; nothing about the input or the steps.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, keras, np, rows

BACKEND, CAUSE, USES = (
    "tensorflow",
    "the model is loaded from its file before each chunk's fit and saved after it",
    "run",
)


def train(run):
    keras.utils.set_random_seed(0)
    for number, part in enumerate(np.split(rows(8000, 48)[0], 8)):
        np.save(folder() / f"chunk{number}.npy", part)

    layers = keras.layers
    inputs = keras.Input((48,))
    hidden = layers.Dense(96, activation="relu")(inputs)
    for _ in range(4):
        branch = layers.Dense(96, activation="relu")(layers.BatchNormalization()(hidden))
        hidden = hidden + layers.Dropout(0.1)(branch)
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(hidden))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    path = folder() / "model.keras"
    model.save(path)

    run.start()
    for number in range(8):
        x = np.load(folder() / f"chunk{number}.npy")
        y = (x.sum(1) > 0).astype("float32")
        if not run.does("without"):
            model = keras.models.load_model(path)
        model.fit(x, y, batch_size=32, epochs=4, verbose=0)
        if number == 7 or not run.does("without"):
            model.save(path)


if __name__ == "__main__":
    main(train)
