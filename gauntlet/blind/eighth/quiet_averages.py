"""House numbers are read from photos; the optimizer averages the weights, which are swapped in for a short validation
after each epoch and saved if they are the best so far. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: the average is a few operations of the optimizer, and
validation and saving take little beside an epoch.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, images, keras, np

BACKEND, CAUSE = "torch", ""
NOISE = "the weights are averaged in each step, validated and saved after each epoch"


def train(run):
    keras.utils.set_random_seed(0)
    photos, labels = images(560, 48).astype("float32") / 255, np.arange(560) % 9
    layers, callbacks = keras.layers, keras.callbacks
    model = keras.Sequential([keras.Input((48, 48, 3))])
    for filters in (24, 48, 96):
        model.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        model.add(layers.MaxPooling2D())
    model.add(layers.Flatten())
    model.add(layers.Dense(9))
    average = not run.does("without")
    optimizer = keras.optimizers.Adam(1e-3, use_ema=average, ema_momentum=0.95)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    extra, options = [], {}
    if average:
        best = str(folder() / "best.weights.h5")
        extra = [
            callbacks.SwapEMAWeights(),
            callbacks.ModelCheckpoint(best, save_best_only=True, save_weights_only=True),
        ]
        options = {"validation_data": (photos[512:], labels[512:])}
    x, y = photos[:512], labels[:512]
    model.fit(x, y, batch_size=32, epochs=6, verbose=0, callbacks=extra + run.callbacks, **options)


if __name__ == "__main__":
    main(train)
