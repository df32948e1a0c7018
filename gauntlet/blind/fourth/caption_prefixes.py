"""Captions of photos: a generator makes each prefix of each caption a row of its own, padded and one-hot, one at a time
(the best known tutorial on image captioning).

Right: the generator computes in Python in the training process, at `photos_and_words`: make the rows once, with word
numbers and a sparse loss; or a PyDataset with workers.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import keras

BACKEND, CAUSE = "jax", "a generator pads and one-hot encodes each prefix of each caption, again in each epoch"
WORDS, LENGTH = 2500, 20


def train(run):
    rng = np.random.default_rng(0)
    features = rng.random((300, 512), "float32")
    captions = [rng.integers(1, WORDS, 12).tolist() for _ in range(300)]
    pad, one_hot = keras.utils.pad_sequences, keras.utils.to_categorical

    def photos_and_words():
        while True:
            for start in range(0, 300, 10):
                seen, before, after = [], [], []
                for photo in range(start, start + 10):
                    words = captions[photo]
                    for i in range(1, len(words)):
                        prefix = pad([words[:i]], maxlen=LENGTH)[0]
                        word = one_hot([words[i]], num_classes=WORDS)[0]
                        seen.append(features[photo])
                        before.append(prefix)
                        after.append(word)
                yield (np.array(seen), np.array(before)), np.array(after)

    def made_once():
        seen, before, after = [], [], []
        for photo, words in enumerate(captions):
            seen += [features[photo]] * (len(words) - 1)
            before += [words[:i] for i in range(1, len(words))]
            after += words[1:]
        return (np.array(seen), pad(before, maxlen=LENGTH)), np.array(after)

    photo, words = keras.Input((512,)), keras.Input((LENGTH,), dtype="int32")
    left = keras.layers.Dense(32, activation="relu")(photo)
    right = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(WORDS, 32)(words))
    hidden = keras.layers.Dense(32, activation="relu")(keras.layers.add([left, right]))
    model = keras.Model([photo, words], keras.layers.Dense(WORDS, activation="softmax")(hidden))
    sparse = "sparse_" if run.does("without") else ""
    model.compile("sgd", f"{sparse}categorical_crossentropy")
    if run.does("without"):
        x, y = made_once()
        model.fit(x, y, batch_size=110, epochs=40, shuffle=False, verbose=0, callbacks=run.callbacks)
    else:
        model.fit(photos_and_words(), steps_per_epoch=30, epochs=40, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
