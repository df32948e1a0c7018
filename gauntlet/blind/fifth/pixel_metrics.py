"""A network that marks vessels in pictures of the eye, watched by precision and recall at 199 thresholds, over all
pixels, to find the best one.

Right: the step itself, for its metrics: `Precision` and `Recall` compare each pixel of each batch with each threshold.
Take them out of `compile` for training (compute them on the validation data, now and then, or at one threshold), keep
cheap ones; nothing about the input.
"""

from gauntlet.blind import main
from gauntlet.helpers import images, keras, np

BACKEND, CAUSE = "tensorflow", "two metrics compare each pixel with 199 thresholds in each step"


def train(run):
    keras.utils.set_random_seed(0)
    photos = images(320, 64).astype("float32") / 255
    masks = (photos.mean(3, keepdims=True) > 0.5).astype("float32")

    def block(x, filters):
        return keras.layers.Conv2D(filters, 3, padding="same", activation="relu")(x)

    photo = keras.Input((64, 64, 3))
    fine = block(photo, 8)
    coarse = block(keras.layers.MaxPooling2D()(fine), 16)
    joined = keras.layers.Concatenate()([fine, keras.layers.UpSampling2D()(coarse)])
    model = keras.Model(photo, keras.layers.Conv2D(1, 1, activation="sigmoid")(block(joined, 8)))

    metrics = [keras.metrics.BinaryAccuracy()]
    if not run.does("without"):
        thresholds = [i / 200 for i in range(1, 200)]
        metrics += [keras.metrics.Precision(thresholds), keras.metrics.Recall(thresholds)]
    model.compile("adam", "binary_crossentropy", metrics=metrics)
    order = np.random.default_rng(0).permutation(len(photos))
    model.fit(photos[order], masks[order], batch_size=16, epochs=12, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
