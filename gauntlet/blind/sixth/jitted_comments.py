"""Comments padded to the longest of their batch, for a network whose compilation by XLA was switched on to make it fast
(tensorflow/tensorflow#62198: "it feels like XLA keeps recompiling").

Right: compiling: each batch has a length of its own, and XLA compiles the step for each that is new: pad to one length
or to a few (`bucket_by_sequence_length` with `pad_to_bucket_boundary`), or `jit_compile=False`; nothing about the time
that the input takes.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np, tf

BACKEND, CAUSE = "tensorflow", "each batch has a length of its own, and XLA compiles the step for each"


def train(run):
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    lengths = np.sort(rng.integers(12, 97, 416))
    comments = tf.ragged.constant([rng.integers(1, 3000, length).tolist() for length in lengths])
    data = tf.data.Dataset.from_tensor_slices((comments, lengths % 2)).map(lambda row, label: (row, label))
    data = data.padded_batch(32, ([96] if run.does("without") else [None], []))
    data = data.shuffle(24).prefetch(tf.data.AUTOTUNE)

    layers = keras.layers
    tokens = keras.Input((None,), dtype="int64")
    hidden = layers.Embedding(3000, 48)(tokens)
    for _ in range(2):
        hidden = layers.LayerNormalization()(layers.Conv1D(48, 5, padding="same", activation="gelu")(hidden))
    outputs = layers.Dense(1, activation="sigmoid")(layers.GlobalMaxPooling1D()(hidden))
    model = keras.Model(tokens, outputs)
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"], jit_compile=True)
    model.fit(data, epochs=3, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
