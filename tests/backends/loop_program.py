"""Training loops without Keras under GpuUtilMonitor, against injected truths."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from injected import PER_DELAY, Truth, close, mapped, medians, report, summary

from gpu_util_callback import GpuUtilMonitor, read_recordings

FRAMEWORK = sys.argv[1]
FOLDER = Path(tempfile.mkdtemp(prefix="loops-"))

if FRAMEWORK == "jax":
    import jax
    import jax.numpy as jnp

    @jax.jit
    def update(weights, x):
        return weights - 0.01 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(weights)

    state = {"weights": jnp.ones((16, 1))}

    def train_step(x) -> None:
        state["weights"] = update(state["weights"], np.asarray(x))

elif FRAMEWORK == "torch":
    import torch

    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def train_step(x) -> None:
        optimizer.zero_grad()
        (model(torch.as_tensor(x)) ** 2).mean().backward()
        optimizer.step()

else:
    import tensorflow as tf

    weights = tf.Variable(tf.ones((16, 1)))

    @tf.function
    def train_step(x) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weights) ** 2)
        weights.assign_sub(0.01 * tape.gradient(loss, weights))


def given(kind: str, truth: Truth):
    """A dataset of the framework's own, or a generator, over a truth's batches."""
    if kind == "generator":
        return (x for x, _ in truth.batches())
    if kind == "tf.data":
        return mapped(truth, labelled=False)
    from torch.utils.data import DataLoader, Dataset

    class Batches(Dataset):
        def __len__(self):
            return len(truth)

        def __getitem__(self, k):
            return truth.make(k)[0].copy()

    return DataLoader(Batches(), batch_size=None)


def recorded(name: str):
    (recording,) = read_recordings(FOLDER / name)
    return recording, summary(recording)


def monitor(name: str, **arguments) -> GpuUtilMonitor:
    return GpuUtilMonitor(FOLDER / name, report=False, **arguments)


def waits() -> None:
    """The injected-wait table."""
    own = {"tensorflow": ["tf.data"], "torch": ["DataLoader"]}.get(FRAMEWORK, [])
    for kind in ["generator", *own]:
        for work_ms in (0, 15):
            compiled = []  # by the first attempt, for all of them
            for attempt in range(3):
                result = _wait(kind, work_ms, f"{kind}-{work_ms}-{attempt}")
                compiled += result["compiled"]
                if result["good"]:
                    break  # else once more: a neighbour may have disturbed it
            result["compiled"] = compiled
            report(f"waits/{kind}/{work_ms}", **result)


def _wait(kind: str, work_ms: float, name: str) -> dict:
    truth, worked = Truth(), []
    with monitor(name) as watched:
        for x in watched.batches(given(kind, truth)):
            start = time.perf_counter_ns()
            train_step(x)
            time.sleep(work_ms / 1e3)
            worked.append((time.perf_counter_ns() - start) / 1e6)
    recording, result = recorded(name)
    wait, measured = truth.wait_ms(ahead=False), recording.steps["input_wait_ns"] / 1e6
    result["truth"], result["measured"] = medians(wait), medians(measured)
    result["good"] = close(measured, wait, handed=kind != "generator")
    off = recording.steps["body_ns"] / 1e6 - np.array(worked)
    result["body_off"] = float(np.median(off[2:]))
    return result


def stages() -> None:
    """The stages of a tf.data pipeline, iterated over as TensorFlow's and as numpy's."""
    import tensorflow as tf

    def decode(k):
        x = tf.numpy_function(lambda k: Truth([20.0]).make(0)[0], [k], tf.float32)
        return tf.ensure_shape(x, (8, 16))

    data = tf.data.Dataset.range(40).map(decode)
    with monitor("stages") as watched:
        for x in watched.batches(data if FRAMEWORK == "tensorflow" else data.as_numpy_iterator()):
            train_step(x)
    recording, result = recorded("stages")
    report("stages", **result, found=sorted(set(recording.pipeline["stage"])))


def xla() -> None:
    """A function that XLA compiles for each new length, without a new trace (TensorFlow)."""
    table = tf.Variable(tf.ones((20, 64)))

    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec((None,), tf.int32)])
    def step(ids) -> None:
        with tf.GradientTape() as tape:
            rows = tf.gather(table, ids)
            loss = tf.reduce_mean(tf.nn.softmax(rows @ tf.transpose(rows)))
        table.assign_sub(0.01 * tf.convert_to_tensor(tape.gradient(loss, table)))

    with monitor("xla") as watched:
        for ids in watched.batches([np.zeros(n, np.int32) for n in [8] * 12 + [9] * 4 + [8] * 4]):
            step(ids)
    _, result = recorded("xla")
    report("xla", **result)


def compiled() -> None:
    """`torch.compile` inside the monitored block (torch)."""
    with monitor("compiled") as watched:
        fast = torch.compile(lambda x: (x * 2).sum(), backend="eager")
        for n in (4, 4, 4, 8, 8):  # the first, and the first with another length
            for x in watched.batches([np.ones((n, 16), "f")] * 3):
                fast(torch.from_numpy(x))
    _, result = recorded("compiled")
    report("compiled", **result)


def parts() -> None:
    """Epochs, validation in and between them, checkpoints, a loop that is left."""
    truths: list[Truth] = []
    spent = {"before": 0.0, "step": 0.0, "callbacks": 0.0, "validation": 0.0}

    def sleep(kind: str, seconds: float) -> None:
        start = time.perf_counter()
        time.sleep(seconds)
        spent[kind] += time.perf_counter() - start

    with monitor("parts") as watched:
        sleep("before", 0.05)  # before the loop: nobody's
        for epoch in range(3):
            batches = watched.batches([np.ones((8, 16), "f")] * 20)
            for i, x in enumerate(batches):
                train_step(x)
                sleep("step", 0.002)
                with watched.phase("logging"):
                    sleep("callbacks", 0.003)
                if i == 9:
                    truths.append(Truth([4.0] * 5))
                    data = given("generator", truths[-1])
                    start = time.perf_counter()
                    with watched.phase("validation"):
                        for _ in watched.batches(data):
                            time.sleep(0.001)
                    spent["validation"] += time.perf_counter() - start
                if epoch == 2 and i == 14:
                    break
            with watched.phase("checkpoint"):
                sleep("callbacks", 0.02)
    recording, result = recorded("parts")
    phases = recording.phases
    report(
        "parts",
        **result,
        kinds={kind: int((phases["kind"] == kind).sum()) for kind in set(phases["kind"])},
        validation_off_ms=(
            recording.validation_steps["input_wait_ns"] / 1e6
            - np.concatenate([truth.wait_ms(ahead=False) for truth in truths])
        ).tolist(),
        spent=spent,
        logged=int(phases["count"][phases["name"] == "logging"].sum()),
        length=len(watched.batches([1, 2, 3])),
    )


def elsewhere() -> None:
    """Loops that fetch their batches themselves."""
    fetches, works = [], []

    def sleep(seconds: float, spent: list[float]) -> None:
        start = time.perf_counter()
        time.sleep(seconds)
        spent.append(1e3 * (time.perf_counter() - start))

    with monitor("elsewhere") as watched:
        for _ in range(10):
            with watched.fetch():
                sleep(0.006, fetches)
            with watched.step():
                sleep(0.004, works)
        for _ in range(10):
            time.sleep(0.003)
            with watched.step(input_wait_s=0.002):
                sleep(0.004, works)
        for _ in range(10):
            with watched.step():
                sleep(0.004, works)
    recording, result = recorded("elsewhere")
    waits = recording.steps["input_wait_ns"]
    report(
        "elsewhere",
        **result,
        fetched_off_ms=float(np.median(waits[:10] / 1e6 - fetches)),
        told_ms=float(np.median(waits[10:20]) / 1e6),
        unknown=int((waits[20:] == -1).sum()),
        body_off_ms=float(np.median(recording.steps["body_ns"] / 1e6 - works)),
    )


def failing() -> None:
    """An exception in the loop passes through; a fault of ours does not reach the loop."""
    try:
        with monitor("raised") as watched:
            for i, _ in enumerate(watched.batches(range(10))):
                if i == 4:
                    raise KeyError("theirs")
    except KeyError:
        pass
    _, result = recorded("raised")
    report("raised", **result)

    seen = []
    with monitor("ours") as watched:
        for i in watched.batches(range(10)):
            seen.append(i)
            if i == 4:
                watched._loop.step_begin = None  # what a fault of ours would do
    deadline = time.monotonic() + 10  # it is closed in the background
    while time.monotonic() < deadline:
        time.sleep(0.1)
        if (FOLDER / "ours").is_dir() and {r.status for r in read_recordings(FOLDER / "ours")} == {"interrupted"}:
            break
    _, result = recorded("ours")
    report("ours", seen=seen, **result)

    with GpuUtilMonitor("/proc/nowhere/logs", report=False) as watched:
        seen = list(watched.batches(range(3)))
    report("nowhere", seen=seen)


if __name__ == "__main__":
    assert len(Truth()) == 4 * PER_DELAY
    for chosen in sys.argv[2:]:
        globals()[chosen]()
