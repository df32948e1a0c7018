"""Transfer learning as in the guides: a frozen backbone and a new head of one layer, on 480 photos in memory, without
augmentation; the step takes long for the few weights that it trains.

Right: the frozen backbone computes the same features of the same photos anew in each of 12 epochs: compute them once
(`backbone.predict(photos)`), keep them, and train the head on them; not the input, which is in memory, not a smaller
backbone first of all, not the batch size, and not mixed precision on a CPU.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np

BACKEND, CAUSE, USES = "tensorflow", "the frozen backbone computes the same features in each epoch", "callback"


def train(run):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    photos, kinds = generator.random((480, 64, 64, 3), "float32"), generator.integers(0, 6, 480)
    backbone = keras.applications.MobileNetV2(
        input_shape=(64, 64, 3), include_top=False, weights=None, pooling="avg", alpha=0.5
    )
    backbone.trainable = False
    layers = keras.layers
    head = keras.Sequential([layers.Dropout(0.2), layers.Dense(6, "softmax")])
    if run.does("without"):
        run.start()
        inputs = keras.Input((backbone.output_shape[1],))
        outputs, photos = head(inputs), backbone.predict(photos, verbose=0)
    else:
        inputs = keras.Input((64, 64, 3))
        outputs = head(backbone(inputs, training=False))
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(photos, kinds, batch_size=32, epochs=12, verbose=2, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
