"""Stars of product reviews in JAX; the reviews come as a file of JSON lines under gzip, as they are handed out, and a
generator reads it in each epoch, splits the words by a regular expression and looks up their numbers.

Right: the input: each epoch unpacks the file, parses its JSON, splits the texts and numbers their words anew, in the
training's process: do so once and keep the arrays (or save them as .npy); a thread or process that reads ahead is half
an answer; not the step, which is compiled once, and not the batch size.
"""

import gzip
import json
import re

from gauntlet.blind import main
from gauntlet.helpers import folder, jax, np

BACKEND, CAUSE, USES = "jax", "gzipped JSON lines are parsed and split into words in each epoch", "monitor"
LENGTH = 80


def written(path, words):
    """Write so many reviews as JSON lines under gzip."""
    generator = np.random.default_rng(0)
    with gzip.open(path, "wt", 5) as file:
        for number in range(3200):
            text = " ".join(words[one] for one in generator.integers(0, len(words), generator.integers(90, 200)))
            row = {"id": number, "text": text.capitalize() + ".", "stars": int(generator.integers(1, 6))}
            file.write(json.dumps(row | {"votes": 0, "product": f"P{number % 97:05d}"}) + "\n")


def batches(path, places):
    """Yield the numbers of 64 reviews' words and their stars."""
    words, stars = [], []
    with gzip.open(path, "rt") as file:
        for line in file:
            row = json.loads(line)
            found = [places.get(word, 1) for word in re.findall(r"[a-z']+|[.,!?]", row["text"].lower())][:LENGTH]
            words.append(found + [0] * (LENGTH - len(found)))
            stars.append(row["stars"] - 1)
            if len(words) == 64:
                yield np.array(words, "int32"), np.array(stars, "int32")
                words, stars = [], []


def train(run):
    import optax

    generator, path = np.random.default_rng(1), folder() / "reviews.jsonl.gz"
    words = ["".join(chr(97 + letter) for letter in generator.integers(0, 26, 6)) for _ in range(4000)]
    written(path, words)
    places = {word: place for place, word in enumerate(words, 2)}
    weights = {
        "words": generator.normal(0, 0.1, (len(words) + 2, 32)).astype("float32"),
        "hidden": generator.normal(0, 0.2, (32, 48)).astype("float32"),
        "stars": generator.normal(0, 0.2, (48, 5)).astype("float32"),
    }
    optimizer = optax.sgd(0.1)
    state = optimizer.init(weights)

    @jax.jit
    def step(weights, state, word, star):
        def loss_of(weights):
            mean = (weights["words"][word] * (word > 0)[..., None]).mean(1)
            scores = jax.nn.relu(mean @ weights["hidden"]) @ weights["stars"]
            return optax.softmax_cross_entropy_with_integer_labels(scores, star).mean()

        loss, slopes = jax.value_and_grad(loss_of)(weights)
        changes, state = optimizer.update(slopes, state)
        return optax.apply_updates(weights, changes), state, loss

    run.start()
    kept = list(batches(path, places)) if run.does("without") else None
    with run.monitor() as monitor:
        for epoch in range(36):
            for word, star in monitor.batches(kept or batches(path, places)):
                weights, state, loss = step(weights, state, word, star)
            print(f"epoch {epoch}: {float(loss):.3f}")


if __name__ == "__main__":
    main(train)
