"""Patients' visits in one long table, from which a generator takes those of one patient after another (notebooks on
electronic records: "GPU at 3 %, pandas is at 100 %").

Right: the input: the generator compares the whole column of names with one name for each patient, in each epoch again:
group the table once (`groupby`, a dictionary, or a sorted index), before training; neither prefetching nor workers.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np

BACKEND, CAUSE, USES = "tensorflow", "a generator filters the whole table for each patient", "run"


def train(run):
    import pandas as pd

    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    labs = ["sodium", "potassium", "glucose", "urea", "lactate", "hemoglobin"]
    table = pd.DataFrame(rng.normal(size=(400000, 6)).astype("float32"), columns=labs)
    table["patient"] = [f"P-{number:05}" for number in rng.integers(0, 8000, 400000)]
    table["day"] = rng.integers(0, 365, 400000)
    patients = table["patient"].unique()[:640]
    ill = dict(zip(patients, rng.integers(0, 2, 640), strict=True))
    run.start()
    groups = dict(list(table.groupby("patient"))) if run.does("without") else None

    def visits_of(patient):
        visits = groups[patient] if groups else table[table["patient"] == patient]
        values = visits.sort_values("day")[labs].to_numpy()[-32:]
        return np.pad(values, ((0, 32 - len(values)), (0, 0)))

    def batches():
        while True:
            order = rng.permutation(patients)
            for at in range(0, 640, 16):
                some = order[at : at + 16]
                yield np.stack([visits_of(one) for one in some]), np.array([ill[one] for one in some])

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((32, 6)),
            layers.Conv1D(24, 5, activation="relu"),
            layers.GlobalMaxPooling1D(),
            layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["AUC"])
    model.fit(batches(), steps_per_epoch=40, epochs=4, verbose=0)


if __name__ == "__main__":
    main(train)
