"""Keras Tuner tries three widths for a network on phonemes, with an early stop: each trial builds, compiles and saves
a model of its own, and the training pauses between the trials. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: the trials differ in their shapes, so that each must be
compiled, and most of the time passes in the steps; not "the model is compiled anew", not the saved weights, not the
validation on 256 rows, and not that the trials should be one fit.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, keras, np

BACKEND, CAUSE, USES = "jax", "", "callback"
NOISE = "each of three trials compiles a model of another width, validates and saves it"


def train(run):
    import keras_tuner

    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    sounds, phonemes = generator.normal(size=(1792, 100, 24)).astype("float32"), generator.integers(0, 40, 1792)
    layers = keras.layers

    def build(parameters):
        width = parameters.Choice("width", [48, 64, 80])
        model = keras.Sequential([keras.Input((100, 24))])
        for _ in range(3):
            model.add(layers.Conv1D(width, 7, padding="same", activation="relu"))
        model.add(layers.GlobalAveragePooling1D())
        model.add(layers.Dense(40, "softmax"))
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    validated = (sounds[1536:], phonemes[1536:])
    if run.does("without"):
        run.start()
        for width in (48, 64, 80):
            parameters = keras_tuner.HyperParameters()
            parameters.Fixed("width", width)
            build(parameters).fit(sounds[:1536], phonemes[:1536], batch_size=64, epochs=3, verbose=2)
        return
    tuner = keras_tuner.GridSearch(build, "val_accuracy", max_trials=3, directory=str(folder()), project_name="widths")
    stop = keras.callbacks.EarlyStopping(patience=3)
    tuner.search(
        sounds[:1536],
        phonemes[:1536],
        batch_size=64,
        epochs=3,
        validation_data=validated,
        verbose=2,
        callbacks=[stop, *run.callbacks],
    )


if __name__ == "__main__":
    main(train)
