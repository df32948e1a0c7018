"""A classifier of reviews by their pairs of words, from a book: the network is one small layer, and yet an epoch takes
as long as that of a large one (fchollet/deep-learning-with-python-notebooks#190).

Right: the input: `vectorize` in `map` splits each review, joins its pairs of words and counts them into a vector of
4000 numbers, anew in each epoch: `cache()` behind the `map`, or vectorize once before training; not more parallel
calls alone, as both cores are busy, and not the model.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np, sentences, tf

BACKEND, CAUSE, USES = "tensorflow", "TextVectorization counts each review's pairs of words in each epoch", "run"


def train(run):
    keras.utils.set_random_seed(0)
    reviews, labels = sentences(4800, 400), np.arange(4800) % 2
    layers = keras.layers
    vectorization = layers.TextVectorization(max_tokens=4000, ngrams=2, output_mode="tf_idf")
    vectorization.adapt(tf.data.Dataset.from_tensor_slices(reviews[:480]).batch(64))

    run.start()

    def vectorize(review, label):
        return vectorization(review), label

    data = tf.data.Dataset.from_tensor_slices((reviews, labels)).batch(32).map(vectorize, tf.data.AUTOTUNE)
    if run.does("without"):
        data = data.cache()

    model = keras.Sequential(
        [
            keras.Input((4000,)),
            layers.Dense(16, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("rmsprop", "binary_crossentropy", metrics=["accuracy"])
    model.fit(data.prefetch(tf.data.AUTOTUNE), epochs=8, verbose=0)


if __name__ == "__main__":
    main(train)
