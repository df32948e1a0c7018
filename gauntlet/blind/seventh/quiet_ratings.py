"""Ratings of films from two towers, with all the callbacks a tutorial names: early stopping, a lower rate on
plateaus, a CSV log and the best weights, and a validation on 2 % of the ratings. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: the callbacks and the validation at the ends of epochs
take little, and the arrays are in memory.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, keras, np

BACKEND, CAUSE = "tensorflow", ""
NOISE = "four callbacks act after each epoch, and 2 % of the ratings are validated"


def train(run):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    users, films = generator.integers(0, 3000, 61_440), generator.integers(0, 1500, 61_440)
    ratings = generator.integers(1, 6, 61_440).astype("float32")
    held_out = tuple(part[:1228] for part in (users, films, ratings))

    layers, callbacks = keras.layers, keras.callbacks
    user, film = keras.Input((), dtype="int32"), keras.Input((), dtype="int32")
    towers = []
    for one, count in ((user, 3000), (film, 1500)):
        tower = layers.Embedding(count, 32)(one)
        for _ in range(2):
            tower = layers.Dense(384, activation="relu")(tower)
        towers.append(tower)
    hidden = layers.Dense(256, activation="relu")(layers.Concatenate()(towers))
    model = keras.Model([user, film], layers.Dense(1)(hidden))
    model.compile("adam", "mse", metrics=["mae"])

    options = {}
    extra = []
    if not run.does("without"):
        options["validation_data"] = (list(held_out[:2]), held_out[2])
        extra = [
            callbacks.EarlyStopping(patience=20),
            callbacks.ReduceLROnPlateau(patience=2),
            callbacks.CSVLogger(folder() / "log.csv"),
            callbacks.ModelCheckpoint(folder() / "best.weights.h5", save_best_only=True, save_weights_only=True),
        ]
    model.fit(
        [users[1228:], films[1228:]], ratings[1228:], batch_size=512, epochs=8, verbose=0,
        callbacks=extra + run.callbacks, **options
    )  # fmt: skip


if __name__ == "__main__":
    main(train)
