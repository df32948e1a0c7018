"""Knowledge distillation: a generator of batches asks a large model for its opinion, in each epoch again.

Right: the input: `__getitem__` calls the teacher's `predict` for each batch, of which nothing changes: predict once,
before training, and hand the opinions over as targets; not more workers, and nothing about the reading of data.
"""

from gauntlet.blind import main
from gauntlet.helpers import images, keras, np

BACKEND, CAUSE = "jax", "a PyDataset calls the teacher's predict for each batch in each epoch"


def train(run):
    keras.utils.set_random_seed(0)
    photos = images(960, 32).astype("float32") / 255

    def network(filters, depth):
        layers = keras.layers
        model = keras.Sequential([keras.Input((32, 32, 3)), layers.Conv2D(filters, 3, 2, "same", activation="relu")])
        for _ in range(depth):
            model.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        model.add(layers.GlobalAveragePooling2D())
        model.add(layers.Dense(10))
        return model

    teacher, student = network(32, 4), network(8, 2)
    known = teacher.predict(photos, batch_size=32, verbose=0) if run.does("without") else None

    class Distilled(keras.utils.PyDataset):
        def __len__(self):
            return len(photos) // 32

        def __getitem__(self, i):
            batch = photos[32 * i : 32 * i + 32]
            if known is not None:
                return batch, known[32 * i : 32 * i + 32]
            return batch, np.asarray(teacher.predict(batch, verbose=0))

    student.compile(keras.optimizers.Adam(2e-3), "mse")
    student.fit(Distilled(), epochs=30, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
