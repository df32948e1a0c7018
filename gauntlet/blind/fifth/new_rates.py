"""A learning rate of one's own for each epoch, set by compiling the model again and fitting it for one epoch more.

Right: compiling, once in each epoch, as `compile` throws the compiled step away: compile once and change
`optimizer.learning_rate` (a LearningRateScheduler or a schedule), in one fit of all epochs; nothing about the input.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np, sentences

BACKEND, CAUSE, USES = "jax", "model.compile is called before each epoch to change the learning rate", "run"


def train(run):
    keras.utils.set_random_seed(0)
    numbers = {}
    texts = [[numbers.setdefault(word, len(numbers) + 1) for word in text.split()] for text in sentences(768, 40)]
    x = np.array([(text + [0] * 40)[:40] for text in texts])
    y = x[:, 0] % 2

    layers = keras.layers
    inputs = keras.Input((40,))
    hidden = layers.Embedding(len(numbers) + 1, 32)(inputs)
    for _ in range(2):
        attended = layers.MultiHeadAttention(2, 16)(hidden, hidden)
        hidden = layers.LayerNormalization()(hidden + attended)
        hidden = layers.LayerNormalization()(hidden + layers.Dense(32)(layers.Dense(64, activation="relu")(hidden)))
    outputs = layers.Dense(1, activation="sigmoid")(layers.GlobalAveragePooling1D()(hidden))
    model = keras.Model(inputs, outputs)

    run.start()
    for epoch in range(5):
        rate = 1e-3 * 0.6**epoch
        if epoch == 0 or not run.does("without"):
            model.compile(keras.optimizers.Adam(rate), "binary_crossentropy", metrics=["accuracy"])
        else:
            model.optimizer.learning_rate = rate
        model.fit(x, y, batch_size=32, epochs=1, verbose=0)


if __name__ == "__main__":
    main(train)
