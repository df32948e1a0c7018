"""Gestures from skeletons, of which a camera's program wrote one file a gesture: "my card is at 4 %", and a network of
half the size is not faster (shahroudy/NTURGB-D#38).

Right: the input: `__getitem__` parses a JSON text of thousands of numbers for each gesture, and makes an array of the
lists, anew in each epoch: convert the files to arrays (`.npy`) once, or keep the parsed arrays in memory; workers help
by as many cores as are free; not the disk, as the files are small and in the cache, and not the network.
"""

import json

from gauntlet.blind import main
from gauntlet.helpers import folder, keras, np, torch

BACKEND, CAUSE = "torch", "the joints of each gesture are parsed from a JSON text in each epoch"


def train(run):
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    for i in range(320):
        joints = generator.normal(size=(150, 25, 3)).cumsum(0).round(5)
        frames = [{"frame": number, "joints": positions} for number, positions in enumerate(joints.tolist())]
        (folder() / f"{i:04}.json").write_text(json.dumps({"camera": 1, "frames": frames}))
        np.save(folder() / f"{i:04}.npy", joints.astype("float32"))

    class Gestures(torch.utils.data.Dataset):
        def __len__(self):
            return 320

        def __getitem__(self, i):
            if run.does("without"):
                joints = np.load(folder() / f"{i:04}.npy")
            else:
                recording = json.loads((folder() / f"{i:04}.json").read_text())
                joints = np.array([frame["joints"] for frame in recording["frames"]], "float32")
            return (joints - joints[:, :1]).reshape(150, 75), i % 12

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((150, 75)),
            layers.Conv1D(64, 5, strides=2, activation="relu"),
            layers.Conv1D(64, 5, strides=2, activation="relu"),
            layers.GlobalAveragePooling1D(),
            layers.Dense(12),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    loader = torch.utils.data.DataLoader(Gestures(), batch_size=16, shuffle=True)
    model.fit(loader, epochs=5, verbose=0, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
