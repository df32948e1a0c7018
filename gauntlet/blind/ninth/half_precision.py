"""A notebook made for a card with tensor cores sets `mixed_float16`, "for twice the speed", and now trains on a machine
that has CPUs only; each epoch lasts a few times as long as before (tensorflow/tensorflow#45441).

Right: the policy `mixed_float16` on a CPU, which has no fast float16 and converts back and forth: leave the policy at
float32 (on a new CPU, bfloat16 at most); not the input, not the batch size, and above all not "use mixed precision".
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np

BACKEND, CAUSE, USES = "tensorflow", "mixed_float16 was set for a card and now runs on a CPU", "callback"


def train(run):
    keras.utils.set_random_seed(0)
    keras.mixed_precision.set_global_policy("float32" if run.does("without") else "mixed_float16")
    generator = np.random.default_rng(0)
    photos, kinds = generator.normal(size=(1280, 32, 32, 3)).astype("float32"), generator.integers(0, 10, 1280)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(24, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10, activation="softmax", dtype="float32"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(photos, kinds, batch_size=32, epochs=3, verbose=2, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
