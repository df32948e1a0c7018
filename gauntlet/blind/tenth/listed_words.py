"""Recipes are sorted by cuisine; a `PyDataset` turns their words into numbers by their place in the list of all words,
and the step waits for it.

Right: the input: `numbered` (called in `__getitem__`) searches a list of 8,000 words from its start for each word, by
`vocabulary.index(word)`: a dictionary from word to number, or number all recipes once before training; more workers
only spread the waste; not the model, not the batch size, and not the memory.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np

BACKEND, CAUSE, USES = "jax", "list.index searches a list of 8,000 words for each word", "callback"


class Recipes(keras.utils.PyDataset):
    """Recipes as numbers of their words."""

    def __init__(self, recipes, cuisines, vocabulary, places):
        super().__init__()
        self.recipes, self.cuisines, self.vocabulary, self.places = recipes, cuisines, vocabulary, places

    def __len__(self):
        return len(self.recipes) // 32

    def numbered(self, recipe):
        words = recipe.split()[:60]
        if self.places:
            numbers = [self.places[word] for word in words]
        else:
            numbers = [self.vocabulary.index(word) for word in words]
        return numbers + [0] * (60 - len(numbers))

    def __getitem__(self, number):
        rows = slice(32 * number, 32 * number + 32)
        return np.array([self.numbered(recipe) for recipe in self.recipes[rows]]), self.cuisines[rows]


def train(run):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    vocabulary = ["<pad>", *(f"word{number}" for number in range(8000))]
    recipes = [
        " ".join(vocabulary[1 + word] for word in generator.integers(0, 8000, generator.integers(40, 60)))
        for _ in range(960)
    ]
    cuisines = generator.integers(0, 12, 960)
    places = {word: place for place, word in enumerate(vocabulary)} if run.does("without") else None

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((60,), dtype="int32"),
            layers.Embedding(len(vocabulary), 32),
            layers.Conv1D(48, 5, activation="relu"),
            layers.GlobalMaxPooling1D(),
            layers.Dense(12, "softmax"),
        ]
    )
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(Recipes(recipes, cuisines, vocabulary, places), epochs=3, verbose=2, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
