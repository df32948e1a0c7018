"""Support tickets are sorted by department, Keras on JAX; a `PyDataset` pads each batch to its longest ticket, which
saves computing, and yet an epoch takes a minute.

Right: nearly each batch has a length of its own, for which JAX compiles the step anew: pad to one length, or to a few
(multiples of 64); not the input, whose batches take no time, not `jit_compile=False` first of all, and not that the
longest ticket is padded to.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np

BACKEND, CAUSE, USES = "jax", "each batch is padded to a length of its own, and compiled for it", "callback"


class Tickets(keras.utils.PyDataset):
    """Batches of tickets, padded to the longest of each."""

    def __init__(self, tickets, departments, to):
        super().__init__()
        self.tickets, self.departments, self.to = tickets, departments, to
        self.order = np.arange(len(tickets))

    def __len__(self):
        return len(self.tickets) // 16

    def on_epoch_end(self):
        np.random.shuffle(self.order)

    def __getitem__(self, number):
        rows = self.order[16 * number : 16 * number + 16]
        longest = max(len(self.tickets[row]) for row in rows)
        longest += -longest % self.to
        words = np.zeros((len(rows), longest), "int32")
        for place, row in enumerate(rows):
            words[place, : len(self.tickets[row])] = self.tickets[row]
        return words, self.departments[rows]


def train(run):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    tickets = [generator.integers(1, 3000, int(20 + generator.gamma(2, 50))) for _ in range(16 * 18)]
    departments = generator.integers(0, 9, len(tickets))
    layers = keras.layers
    words = keras.Input((None,), dtype="int32")
    hidden = layers.Embedding(3000, 48)(words)
    for _ in range(2):
        seen = layers.MultiHeadAttention(2, 24)(hidden, hidden)
        hidden = layers.LayerNormalization()(layers.Add()([hidden, seen]))
        hidden = layers.Conv1D(48, 3, padding="same", activation="relu")(hidden)
    outputs = layers.Dense(9, "softmax")(layers.GlobalMaxPooling1D()(hidden))
    model = keras.Model(words, outputs)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    data = Tickets(tickets, departments, 64 if run.does("without") else 1)
    model.fit(data, epochs=2, verbose=2, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
