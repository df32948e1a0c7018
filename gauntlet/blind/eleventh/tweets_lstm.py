"""Moods of tweets with an LSTM, as in many notebooks: `pad_sequences(numbers)` without a length, and somewhere among
the tweets is one that somebody pasted a whole thread into.

Right: all tweets are padded to the longest, 420 words, though hardly any has more than 30, and the LSTM goes through
the padding in each step: `maxlen=32` (longer ones are cut), or batches of like length; not the input, which is in
memory, not the batch size first of all, and not the LSTM as such.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np

BACKEND, CAUSE, USES = "tensorflow", "all texts are padded to the one of 420 words", "callback"


def train(run):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    lengths = generator.integers(6, 31, 1600)
    lengths[700] = 420
    tweets = [generator.integers(1, 5000, length).tolist() for length in lengths]
    moods = generator.integers(0, 2, len(tweets))
    words = keras.utils.pad_sequences(tweets, maxlen=32 if run.does("without") else None)
    print("padded:", words.shape)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(5000, 32),
            layers.LSTM(48),
            layers.Dropout(0.3),
            layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    model.fit(words, moods, batch_size=32, epochs=3, validation_split=0.1, verbose=2, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
