"""Four breeds of dogs, as in a hundred notebooks: `ImageDataGenerator(rescale=1/255).flow_from_directory` with
`target_size=(64, 64)`, photos straight from the camera, a small network, and a GPU at 10 %.

Right: the input: each epoch decodes JPEGs of 1600 x 1200 pixels and scales them to 64 x 64: scale the files once and
read the small ones, or keep the decoded arrays; workers for the generator are half an answer (there are two cores);
not the network, not the batch size, and not the rescaling by 1/255.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, keras, np, tf

BACKEND, CAUSE, USES = "tensorflow", "flow_from_directory decodes and scales large photos in each epoch", "callback"


def photographed(path, count):
    """Write so many photos, one folder a breed."""
    from PIL import Image

    generator = np.random.default_rng(0)
    for number in range(count):
        breed = path / f"breed{number % 4}"
        breed.mkdir(parents=True, exist_ok=True)
        rough = generator.integers(0, 255, (60, 80, 3), "uint8")
        Image.fromarray(rough).resize((1600, 1200)).save(breed / f"{number}.jpg", quality=92)


def scaled(path, other):
    """Write small copies of all photos."""
    from PIL import Image

    for photo in path.glob("*/*.jpg"):
        (other / photo.parent.name).mkdir(parents=True, exist_ok=True)
        Image.open(photo).resize((64, 64), Image.Resampling.NEAREST).save(other / photo.parent.name / photo.name)


def train(run):
    keras.utils.set_random_seed(0)
    path = folder()
    photographed(path / "camera", 160)
    run.start()
    used = path / "camera"
    if run.does("without"):
        scaled(used, path / "small")
        used = path / "small"
    images = tf.keras.preprocessing.image.ImageDataGenerator(rescale=1 / 255)
    photos = images.flow_from_directory(str(used), target_size=(64, 64), batch_size=16, class_mode="sparse", seed=0)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((64, 64, 3)),
            *(layers.Conv2D(16, 3, activation="relu"), layers.MaxPooling2D(3)),
            *(layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D(3)),
            *(layers.Flatten(), layers.Dense(64, "relu"), layers.Dropout(0.3), layers.Dense(4, "softmax")),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(photos, epochs=5, verbose=2, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
