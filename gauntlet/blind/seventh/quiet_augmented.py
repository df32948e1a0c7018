"""Photos are flipped, cropped, and changed in colour in a parallel `map`, with a batch made ahead, for a network that
takes far longer. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: the augmentation goes on beside the step, which hardly
waits for it, and must be done anew in each epoch (it must not be cached).
"""

from gauntlet.blind import main
from gauntlet.helpers import images, keras, np, tf

BACKEND, CAUSE = "tensorflow", ""
NOISE = "each photo is flipped, cropped and recoloured in a parallel map"


def train(run):
    keras.utils.set_random_seed(0)
    photos, labels = images(640, 40), np.arange(640) % 5

    def augment(photo, label):
        photo = tf.cast(photo, tf.float32) / 255
        if run.does("without"):
            return photo[4:36, 4:36], label
        photo = tf.image.random_flip_left_right(tf.image.random_crop(photo, (32, 32, 3)))
        return tf.image.random_contrast(tf.image.random_brightness(photo, 0.1), 0.8, 1.2), label

    data = tf.data.Dataset.from_tensor_slices((photos, labels)).shuffle(640)
    data = data.map(augment, tf.data.AUTOTUNE).batch(32).prefetch(tf.data.AUTOTUNE)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(96, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(5),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.fit(data, epochs=10, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
