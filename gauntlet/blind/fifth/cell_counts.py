"""An autoencoder for counts of genes in cells, whose sparse matrix is stored by columns, as one file format has it
(YosefLab/scvi-tools#835: "CSC was slower for the row slicing used in minibatching").

Right: the input: `__getitem__` takes rows out of a matrix that is compressed by columns, for which scipy reads all of
it: `tocsr()` once, in `__init__`; not more workers, and not the densifying, which is cheap.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np

BACKEND, CAUSE = "torch", "rows are taken from a sparse matrix that is stored by columns (CSC)"


def train(run):
    from scipy import sparse

    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    places = rng.integers(0, 40000, 5000000), rng.integers(0, 1500, 5000000)
    counts = sparse.coo_array((np.ones(5000000, "float32"), places), (40000, 1500)).tocsc()

    class Cells(keras.utils.PyDataset):
        def __init__(self, counts, **options):
            super().__init__(**options)
            self.counts = counts.tocsr() if run.does("without") else counts
            self.order = rng.permutation(counts.shape[0])

        def __len__(self):
            return 80

        def __getitem__(self, i):
            rows = self.order[64 * i : 64 * i + 64]
            x = np.log1p(self.counts[rows].toarray())
            return x, x

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((1500,)),
            layers.Dense(64, activation="relu"),
            layers.BatchNormalization(),
            layers.Dense(16),
            layers.Dense(64, activation="relu"),
            layers.Dense(1500, activation="softplus"),
        ]
    )
    model.compile("adam", "mse")
    model.fit(Cells(counts), epochs=6, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
