"""Photos are told apart by a small network; TensorBoard is on, as always, the rate falls by a schedule, the network is
tried on other photos after every third epoch, and its weights are saved. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: the steps take the time, and what happens after an epoch
takes little.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, images, keras, np, tf

BACKEND, CAUSE = "tensorflow", ""
NOISE = "TensorBoard, a schedule and saved weights each epoch, a validation every third"


def train(run):
    keras.utils.set_random_seed(0)
    photos, labels = images(1900, 40), np.arange(1900) % 4
    layers, callbacks = keras.layers, keras.callbacks

    def data(start, end):
        return tf.data.Dataset.from_tensor_slices((photos[start:end], labels[start:end]))

    model = keras.Sequential(
        [
            keras.Input((40, 40, 3)),
            layers.Rescaling(1 / 255),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, strides=2, activation="relu"),
            layers.Conv2D(96, 3, strides=2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dropout(0.2),
            layers.Dense(4),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    extra, options = [], {}
    if not run.does("without"):
        options = {"validation_data": data(1800, 1900).batch(50), "validation_freq": 3}
        extra = [
            callbacks.TensorBoard(str(folder() / "board")),
            callbacks.LearningRateScheduler(lambda epoch, rate: 0.95 * rate),
            callbacks.ModelCheckpoint(str(folder() / "{epoch}.weights.h5"), save_weights_only=True),
        ]
    training = data(0, 1800).shuffle(1800).batch(40).prefetch(tf.data.AUTOTUNE)
    model.fit(training, epochs=6, verbose=0, callbacks=extra + run.callbacks, **options)


if __name__ == "__main__":
    main(train)
