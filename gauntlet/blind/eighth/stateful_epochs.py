"""Sales are forecast by a stateful LSTM, in the loop of a tutorial that everybody copies; 80 epochs of four batches
take far longer than they should, and the card is hardly used (keras-team/keras#3154, NNPDF/nnpdf#1939).

Right: between the fits: `fit` is called for each epoch of four batches, and sets itself up (its data, its iterator,
its callbacks) each time for longer than it trains: one `fit(epochs=80)` with a callback that resets the states, or
`train_on_batch`; not that the input is slow to read, as it is in memory, and not a larger network or batch.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np

BACKEND, CAUSE = "tensorflow", "fit(epochs=1) is called 80 times, for four batches each"


def train(run):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    sales = np.sin(np.arange(2048) / 9) + generator.normal(0, 0.1, 2048)
    starts = np.arange(2032).reshape(508, 4).T.ravel()
    x = sales[starts[:, None] + np.arange(6)][..., None].astype("float32")
    y = sales[starts + 6].astype("float32")
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input(batch_shape=(508, 6, 1)), layers.LSTM(4, stateful=True, unroll=True), layers.Dense(1)]
    )
    model.compile("adam", "mse")
    options = {"batch_size": 508, "shuffle": False, "verbose": 0}
    if run.does("without"):
        reset = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: model.layers[0].reset_states())
        model.fit(x, y, epochs=80, callbacks=[reset, *run.callbacks], **options)
        return
    for _ in range(80):
        model.fit(x, y, epochs=1, callbacks=run.callbacks, **options)
        model.layers[0].reset_states()


if __name__ == "__main__":
    main(train)
