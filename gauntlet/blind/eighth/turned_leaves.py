"""Photos of leaves with the `ImageDataGenerator` of every older tutorial: an epoch takes as long on the new card as
on the old one (keras-team/keras#5436, BIMCV-CSUSP/BIMCV-COVID-19#6).

Right: the input: the generator turns, shears and zooms each photo by scipy, one after another, in the training process:
random layers of Keras, in the model or in a parallel `map` on batches, or several workers with
`use_multiprocessing=True`; not `cache`, as each epoch must draw anew, and not the network.
"""

from gauntlet.blind import main
from gauntlet.helpers import images, keras, np, tf

BACKEND, CAUSE = "tensorflow", "ImageDataGenerator turns, shears and zooms each photo by scipy"


def train(run):
    keras.utils.set_random_seed(0)
    photos, labels = images(640, 96).astype("float32"), np.arange(640) % 6
    turning = {"rotation_range": 30, "shear_range": 10, "zoom_range": 0.2, "fill_mode": "reflect"}
    generator = tf.keras.preprocessing.image.ImageDataGenerator(
        rescale=1 / 255, horizontal_flip=True, **({} if run.does("without") else turning)
    )

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((96, 96, 3)),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(6),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.fit(generator.flow(photos, labels, batch_size=32), epochs=5, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
