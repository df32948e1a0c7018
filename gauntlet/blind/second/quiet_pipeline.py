"""A tf.data pipeline as the guides recommend: parallel map, cache, shuffle, prefetch. Nothing is wrong.

Right: no finding, or nothing that would make it much faster.
"""

from gauntlet.blind import main
from gauntlet.helpers import images, keras, np, tf

BACKEND, CAUSE, USES = "tensorflow", "", "run"


def train(run):
    x, y = images(1024, 32), np.arange(1024) % 10
    data = tf.data.Dataset.from_tensor_slices((x, y))
    data = data.map(lambda x, y: (tf.cast(x, tf.float32) / 255, y), num_parallel_calls=tf.data.AUTOTUNE)
    data = data.cache().shuffle(1024).batch(64).prefetch(tf.data.AUTOTUNE)
    layers = [
        keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(10, activation="softmax"),
    ]
    model = keras.Sequential(layers)
    model.compile("adam", "sparse_categorical_crossentropy")
    run.start()
    model.fit(data, epochs=6, verbose=0)


if __name__ == "__main__":
    main(train)
