"""Photos whose training set is cached, and whose validation set is decoded again after each epoch (the cache was added
where the tutorial has it).

Right: validation holds training up, by its input: `cache()` on the validation set too, or `validation_freq=`; nothing
about the training input, which is cached.
"""

from gauntlet.blind import main
from gauntlet.helpers import jpegs, keras, tf

BACKEND, CAUSE = "tensorflow", "the validation set decodes 512 x 512 JPEG files anew after each epoch"


def train(run):
    names = sorted(str(path) for path in jpegs().rglob("*.jpg"))
    labels = [int("/b/" in name) for name in names]

    def read(name, label):
        image = tf.io.decode_jpeg(tf.io.read_file(name), channels=3)
        return tf.image.resize(image, (64, 64)) / 255, label

    data = tf.data.Dataset.from_tensor_slices((names, labels)).shuffle(320, seed=1, reshuffle_each_iteration=False)
    training = data.skip(100).map(read, num_parallel_calls=tf.data.AUTOTUNE).cache()
    training = training.shuffle(220).batch(16).prefetch(tf.data.AUTOTUNE)
    validation = data.take(100).map(read, num_parallel_calls=tf.data.AUTOTUNE)
    if run.does("without"):
        validation = validation.cache()
    validation = validation.batch(16).prefetch(tf.data.AUTOTUNE)
    model = keras.Sequential(
        [
            keras.Input((64, 64, 3)),
            keras.layers.Conv2D(12, 3, strides=2, activation="relu"),
            keras.layers.Conv2D(24, 3, strides=2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(2, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    stop = keras.callbacks.EarlyStopping("val_loss", patience=30, restore_best_weights=True)
    model.fit(training, validation_data=validation, epochs=24, verbose=0, callbacks=[stop, *run.callbacks])


if __name__ == "__main__":
    main(train)
