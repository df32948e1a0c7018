"""Records traces of loops with the frameworks' own profilers: `python profiled_program.py torch|tensorflow FOLDER`.

Each trace's name is followed by the number of batches that its loop took.
"""

import shutil
import sys
from pathlib import Path

import numpy as np

FRAMEWORK, FOLDER = sys.argv[1], Path(sys.argv[2])


def of_torch() -> None:
    import torch
    from torch.utils.data import DataLoader, Dataset, IterableDataset

    class Tensors(Dataset):
        def __len__(self) -> int:
            return 32

        def __getitem__(self, index):
            return torch.ones(16) * index

    class Arrays(Tensors):
        def __getitem__(self, index):
            return np.ones(16, np.float32)

    class Stream(IterableDataset):
        def __iter__(self):
            return iter([torch.ones(16)] * 32)

    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train(batch) -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    def record(name: str, batches, epochs: int, step=train, after=lambda: None) -> None:
        taken = 0
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            for _ in range(epochs):
                for batch in batches:
                    step(batch)
                    taken += 1
                after()
        profiler.export_chrome_trace(str(FOLDER / f"{name}-{taken}.json"))

    def validate() -> None:
        for _ in range(5):
            model(torch.ones(4, 16)).sum().item()

    def annotated(name: str):
        def step(batch) -> None:
            with torch.profiler.record_function(name.format(next(numbers))):
                train(batch)

        numbers = iter(range(100))
        return step

    record("one process", DataLoader(Tensors(), 8), 2)
    record("workers", DataLoader(Tensors(), 8, num_workers=2), 2)
    record("stream", DataLoader(Stream(), 8), 2)
    record("validated", DataLoader(Arrays(), 8), 3, after=validate)
    record("own collate", DataLoader(Arrays(), 8, collate_fn=lambda rows: torch.from_numpy(np.stack(rows))), 2)
    record("no step", DataLoader(Tensors(), 8), 2, step=lambda batch: None)
    for number, name in enumerate(("step[TRAIN bs={}]", "iteration {}", "execute_context_0(0)_generation_{0}({0})")):
        record(f"annotated {number}", [torch.ones(8, 16)] * 6, 1, step=annotated(name))


def of_tensorflow() -> None:
    import keras
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    model = keras.Sequential([keras.layers.Dense(16), keras.layers.Dense(1)])
    pairs = tf.data.Dataset.range(48).map(lambda _: (tf.ones(16), tf.ones(1)))
    unknown = pairs.filter(lambda *_: True).batch(8)  # its length is not known before its end
    arrays = np.ones((48, 16), np.float32), np.ones((48, 1), np.float32)

    def record(name: str, batches: int, loop) -> None:
        loop()  # once without the profiler: what is compiled first is no step
        scratch = FOLDER / "scratch"
        tf.profiler.experimental.start(str(scratch))
        loop()
        tf.profiler.experimental.stop()
        (file,) = scratch.rglob("*.xplane.pb")
        shutil.move(file, FOLDER / f"{name}-{batches}.xplane.pb")
        shutil.rmtree(scratch)

    def iterate(dataset) -> None:
        for _ in range(3):
            for _ in dataset:
                pass

    model.compile("sgd", "mse")
    record("fit", 12, lambda: model.fit(unknown, epochs=2, verbose=0))
    record("fit of arrays", 12, lambda: model.fit(*arrays, batch_size=8, epochs=2, verbose=0))
    record("iterated", 18, lambda: iterate(unknown.prefetch(2)))


FOLDER.mkdir(parents=True, exist_ok=True)
of_torch() if FRAMEWORK == "torch" else of_tensorflow()
