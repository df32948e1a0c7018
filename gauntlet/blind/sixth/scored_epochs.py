"""Customers who leave, with a callback from a competition's notebooks that scores the training and the held-out rows by
the area under the ROC curve after each epoch, while others use the machine.

Right: the time between the epochs passes in `on_epoch_end` of the program's own callback, in `predict`, over all rows
that have just been learned too, 32 at a time: score the held-out rows alone, every n-th epoch or with a larger
`batch_size`, or let `compile(metrics=["AUC"])` do it; nothing about the input or the step.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np, rows

BACKEND, CAUSE = "jax", "a callback predicts all training rows after each epoch; two other processes are busy"
BUSY = "plain without"


def train(run):
    keras.utils.set_random_seed(0)
    x, y = rows(20000, 40)
    held = slice(16000, 20000)

    def area(true, scores):
        order = np.argsort(np.argsort(scores[:, 0]))
        ones = true[:, 0] == 1
        return (order[ones].sum() - ones.sum() * (ones.sum() - 1) / 2) / (ones.sum() * (~ones).sum())

    class RocScores(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if run.does("without"):
                return
            for name, part in (("train", slice(0, 16000)), ("held", held)):
                logs[f"{name}_auc"] = area(y[part], self.model.predict(x[part], verbose=0))

    layers = keras.layers
    model = keras.Sequential([keras.Input((40,))])
    for _ in range(2):
        model.add(layers.Dense(64, activation="relu"))
        model.add(layers.BatchNormalization())
        model.add(layers.Dropout(0.2))
    model.add(layers.Dense(1, activation="sigmoid"))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    model.fit(x[:16000], y[:16000], batch_size=512, epochs=40, verbose=0, callbacks=[RocScores(), *run.callbacks])


if __name__ == "__main__":
    main(train)
