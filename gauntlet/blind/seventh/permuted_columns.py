"""Four folds of a table of customers; after each the importance of each column is found by shuffling it and
predicting the held-out rows, with `predict` for each of 48 columns.

Right: the time between the fits: `importance` calls `predict` 48 times after each fold, which takes longer than the
fit: do it once, for the last or the best model, or predict all shuffled copies in one call (or call the model itself,
as `predict` sets itself up each time); not the fits' input, not their compilation (the model is the same one).
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np

BACKEND, CAUSE = "tensorflow", "after each fold predict is called for each of 48 shuffled columns"


def train(run):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    table = generator.normal(size=(4000, 48)).astype("float32")
    churn = (table[:, :5].sum(1) > 0).astype("float32")
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((48,)), *(layers.Dense(256, activation="relu") for _ in range(3)), layers.Dense(1, "sigmoid")]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    fresh = model.get_weights()

    def importance(rows, labels):
        def accuracy(rows):
            return ((model.predict(rows, verbose=0)[:, 0] > 0.5) == labels).mean()

        base, lost = accuracy(rows), []
        for column in range(48):
            shuffled = rows.copy()
            generator.shuffle(shuffled[:, column])
            lost.append(base - accuracy(shuffled))
        return lost

    weights = []
    for held_out in np.array_split(generator.permutation(4000), 4):
        others = np.setdiff1d(np.arange(4000), held_out)
        model.set_weights(fresh)
        model.fit(table[others], churn[others], batch_size=32, epochs=6, verbose=0, callbacks=run.callbacks)
        if not run.does("without"):
            weights.append(importance(table[held_out], churn[held_out]))
    return weights


if __name__ == "__main__":
    main(train)
