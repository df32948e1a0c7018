"""Answers to questions are rated on thirty scales, and a contest scores by Spearman's rank correlation; a metric
computes it with scipy, so that the bar shows the contest's score.

Right: the metric: `tf.numpy_function` calls `scipy.stats.spearmanr` for each of 30 columns in each training step:
compute it once an epoch on the held-out answers (a callback), or leave it out of `metrics`; not the input (an array in
memory), not the network, and not the batch size first of all.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np, tf

BACKEND, CAUSE, USES = "tensorflow", "a metric calls scipy's spearmanr for 30 columns in each step", "callback"


def mean_rank_correlation(truth, guess):
    """Return the mean of Spearman's correlations of all columns."""
    from scipy.stats import spearmanr

    columns = range(truth.shape[1])
    return np.float32(np.nanmean([spearmanr(truth[:, one], guess[:, one]).statistic for one in columns]))


def spearman(truth, guess):
    mean = tf.numpy_function(mean_rank_correlation, [truth, guess], tf.float32)
    mean.set_shape(())
    return mean


class Scores(keras.callbacks.Callback):
    """Prints the contest's score after each epoch."""

    def __init__(self, answers, ratings):
        super().__init__()
        self.answers, self.ratings = answers, ratings

    def on_epoch_end(self, epoch, logs=None):
        guess = self.model.predict(self.answers, verbose=0)
        print(f"spearman {mean_rank_correlation(self.ratings, guess):.4f}")


def train(run):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    answers = generator.normal(size=(32 * 160, 256)).astype("float32")
    ratings = generator.random((len(answers), 30), "float32").round(1)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((256,)), layers.Dense(256, "relu"), layers.Dropout(0.2), layers.Dense(30, "sigmoid")]
    )
    without = run.does("without")
    model.compile("adam", "binary_crossentropy", metrics=[] if without else [spearman], jit_compile=False)
    own = [Scores(answers[:512], ratings[:512])] if without else []
    model.fit(answers[512:], ratings[512:], batch_size=32, epochs=6, verbose=2, callbacks=[*own, *run.callbacks])


if __name__ == "__main__":
    main(train)
