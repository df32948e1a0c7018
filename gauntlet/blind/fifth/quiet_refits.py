"""A forecast that is trained a little further whenever a season has passed, with the same model. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: the fits are short but train all the time, and the model
is compiled once.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np, rows

BACKEND, CAUSE, USES = "tensorflow", "", "run"
NOISE = "a short fit and an evaluation on the next season, six times"


def train(run):
    keras.utils.set_random_seed(0)
    x, y = rows(25200, 64)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((64,)),
            layers.Dense(512, activation="relu"),
            layers.Dense(512, activation="relu"),
            layers.Dense(256, activation="relu"),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    run.start()
    if run.does("without"):
        model.fit(x[:21600], y[:21600], batch_size=128, epochs=10, shuffle=False, verbose=0)
        return
    scores = []
    for season in range(6):
        now, after = slice(3600 * season, 3600 * season + 3600), slice(3600 * season + 3600, 3600 * season + 7200)
        model.fit(x[now], y[now], batch_size=128, epochs=10, verbose=0)
        scores.append(model.evaluate(x[after], y[after], batch_size=400, verbose=0))
    assert np.isfinite(scores).all()


if __name__ == "__main__":
    main(train)
