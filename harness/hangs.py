"""Trainings that hang, and trainings that only take their time: which of them are called stuck, and how soon.

    python -m harness.hangs                          every way to hang, on every backend, scaled to seconds
    python -m harness.hangs lock socket --on loop    some of them, in a loop of one's own
    python -m harness.hangs --limit 30               with the limit that users have
    python -m harness.hangs --healthy 500            as many short fits of many kinds, none of which hangs

Each way trains in a process of its own that nobody waits for once it is named. `--limit` is the threshold
`stuck.no_step_s`; what only takes its time takes three times as long. Exits with 1 where a way is not named
within one and a half times the limit (and as long as the program's own steps delay the look), is named for
another line, or something healthy is called stuck. Linux.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import multiprocessing
import os
import queue
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

BACKENDS = ("tensorflow", "torch", "jax", "loop")
BATCHES, AT = 250, 200  # of an epoch; the batch that hangs
TIMEOUT_S = 180.0  # for imports and the steps before
SAID = re.compile(r"gpu-util: (no (?:validation )?step for .*)")


@dataclass(frozen=True)
class Way:
    """A way to hang.

    Attributes:
        hang: what is called; never returns, or takes its time.
        at: where: "fetch" of a batch, a "batch" or "epoch" callback's hook, a "worker" process, "validation", "step".
        named: what the line must hold; "" = it must not be named.
        on: the backends that have it.
    """

    hang: Callable[[float], object]
    at: str
    named: str = r"hang_\w+` at hangs.py"
    on: tuple[str, ...] = BACKENDS


def hang_lock(_: float) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def hang_queue(_: float) -> None:
    queue.Queue[int]().get()


def hang_polling(_: float) -> None:
    while not Path("/nowhere").exists():
        time.sleep(0.05)


def hang_pipe(_: float) -> None:
    _, end = os.pipe()
    while True:
        os.write(end, b"x" * 4096)


def hang_mount(_: float) -> None:
    with tempfile.TemporaryDirectory() as folder:  # opening it blocks in the kernel, as on a mount that hangs
        os.mkfifo(f"{folder}/file")
        Path(f"{folder}/file").read_bytes()


def hang_socket(_: float) -> None:
    ends = socket.socketpair()
    ends[0].recv(1)


def hang_input(_: float) -> None:
    input()


def hang_breakpoint(_: float) -> None:
    breakpoint()
    _ = 0.0


def hang_join(_: float) -> None:
    thread = threading.Thread(target=threading.Event().wait, daemon=True)
    thread.start()
    thread.join()


def hang_child(_: float) -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        child.wait()


def hang_pool(_: float) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(os._exit, (1,))  # the task of a worker that dies is lost


def hang_python_lock(limit_s: float) -> None:
    ctypes.PyDLL(None).usleep(int(2e6 * limit_s))


def hang_in_worker(_: float) -> None:
    time.sleep(600)


def stop_worker(_: float) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def take_time(limit_s: float) -> None:
    time.sleep(3 * limit_s)


def compute(limit_s: float) -> None:
    until, numbers = time.perf_counter() + 3 * limit_s, []
    while time.perf_counter() < until:
        numbers = sorted(random.random() for _ in range(1000))
        numbers = [number**2 for number in numbers]


def be_stopped(limit_s: float) -> None:
    subprocess.Popen(["sh", "-c", f"sleep {3 * limit_s}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


KERAS = ("tensorflow", "torch", "jax")
WAYS = {
    "lock": Way(hang_lock, "fetch"),
    "queue": Way(hang_queue, "fetch"),
    "mount": Way(hang_mount, "fetch"),
    "polling": Way(hang_polling, "fetch"),
    "pool": Way(hang_pool, "fetch"),
    "join": Way(hang_join, "batch"),
    "pipe": Way(hang_pipe, "batch"),
    "input": Way(hang_input, "batch"),
    "breakpoint": Way(hang_breakpoint, "batch"),
    "socket": Way(hang_socket, "epoch"),
    "child": Way(hang_child, "epoch"),
    "python-lock": Way(hang_python_lock, "batch", "C code held Python's lock"),
    "dataloader": Way(hang_in_worker, "worker", "waits for its input.*2 alive", ("torch", "loop")),
    "stopped-worker": Way(stop_worker, "worker", "waits for its input.*1 stopped", ("torch", "loop")),
    "collective": Way(hang_in_worker, "collective", "all_reduce", ("loop",)),
    "validation-hangs": Way(hang_lock, "validation batch", "validation step.*hang_lock", ("torch", "jax")),
    # These only take their time.
    "compiling": Way(take_time, "trace", "", ("tensorflow", "jax")),
    "validation": Way(take_time, "validation", ""),
    "checkpoint": Way(take_time, "checkpoint", ""),
    "predict": Way(take_time, "predict", "", KERAS),
    "computing": Way(compute, "epoch", ""),
    "stopped": Way(be_stopped, "batch", ""),
}


# ---- inside the process that trains --------------------------------------------------------------


def train(name: str, backend: str, logs: str, limit_s: float) -> None:
    """Train until the way hangs."""
    # On a busy machine a hundredth of a second's work takes tenths at times: of the scaled limit that is much.
    thresholds = {"stuck": {"no_step_s": limit_s, "times_p99": min(20.0, 2 * limit_s)}}
    (_train_loop if backend == "loop" else _train_keras)(WAYS[name], logs, limit_s, thresholds)


def _train_keras(way: Way, logs: str, limit_s: float, thresholds: dict) -> None:
    import keras
    import numpy as np

    from gpu_util_callback import GpuUtilCallback

    def here(*places: str) -> None:
        if way.at in places:
            way.hang(limit_s)

    class Data(keras.utils.PyDataset):
        def __init__(self, *places: str, at: int = AT):
            super().__init__()
            self.places, self.at = places, at

        def __len__(self) -> int:
            return BATCHES

        def __getitem__(self, index: int) -> tuple:
            if index == self.at:
                here(*self.places)
            time.sleep(0.01)
            return np.zeros((8, 4), "float32"), np.zeros((8, 1), "float32")

    class Layer(keras.layers.Dense):
        def save_own_variables(self, store: dict) -> None:
            here("checkpoint")
            super().save_own_variables(store)

    class Hooks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
            if batch == AT:
                here("batch")
                if way.at == "trace":
                    _traced(keras.backend.backend(), lambda: way.hang(limit_s))

        def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
            here("epoch")
            if way.at == "predict":
                self.model.predict(Data("predict"), verbose=0)

    data: object = Data("fetch")
    if way.at == "worker":
        data = _torch_loader(way, limit_s)
    model = keras.Sequential([keras.layers.Input((4,)), Layer(1)])
    model.compile("sgd", "mse")
    callbacks = [GpuUtilCallback(logs, thresholds=thresholds), Hooks()]
    if way.at == "checkpoint":
        callbacks.append(keras.callbacks.ModelCheckpoint(f"{logs}/model.keras"))
    validation = None
    if way.at.startswith("validation"):
        validation = Data("validation", at=5) if way.at == "validation" else Data("validation batch")
    model.fit(data, epochs=2, verbose=0, callbacks=callbacks, validation_data=validation)


def _traced(backend: str, waits: Callable[[], object]) -> None:
    if backend == "jax":
        import jax

        jax.jit(lambda x: waits() or x)(1.0)
    else:
        import tensorflow as tf

        tf.function(lambda x: waits() or x)(tf.zeros(()))


def _torch_loader(way: Way, limit_s: float) -> object:
    import torch

    class Items(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 8 * BATCHES

        def __getitem__(self, index: int) -> tuple:
            if index == 8 * AT:
                way.hang(limit_s)
            time.sleep(0.002)
            return torch.zeros(4), torch.zeros(1)

    return torch.utils.data.DataLoader(Items(), batch_size=8, num_workers=2)


def _train_loop(way: Way, logs: str, limit_s: float, thresholds: dict) -> None:
    import torch

    from gpu_util_callback import GpuUtilMonitor

    def here(place: str) -> None:
        if way.at == place:
            way.hang(limit_s)

    def batches(place: str, at: int = AT) -> Iterator:
        for index in range(BATCHES):
            if index == at:
                here(place)
            time.sleep(0.01)
            yield torch.zeros(8, 4)

    if way.at == "collective":
        torch.distributed.init_process_group("gloo")
    model = torch.nn.Linear(4, 1)
    with GpuUtilMonitor(logs, thresholds=thresholds, framework="torch") as monitor:
        for _ in range(2):
            data = _torch_loader(way, limit_s) if way.at == "worker" else batches("fetch")
            for number, batch in enumerate(monitor.batches(data)):
                model(batch[0] if isinstance(batch, list) else batch).sum().backward()
                if number == AT:
                    here("batch")
                if way.at == "collective":
                    if number == AT and torch.distributed.get_rank() == 1:
                        way.hang(limit_s)
                    torch.distributed.all_reduce(model.weight.grad)
            with monitor.phase("validation"):
                for batch in monitor.batches(batches("validation", at=5)):
                    model(batch)
            with monitor.phase("checkpoint"):
                here("checkpoint")
            here("epoch")


# ---- the trials ----------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What came of a way: seconds from the hang's beginning to the line; None = not named."""

    name: str
    backend: str
    named_s: float | None
    line: str
    right: bool


def attempt(name: str, backend: str, limit_s: float) -> Outcome:
    """Train in a process of its own until it is named, or is not for long enough."""
    way = WAYS[name]
    ranks = 2 if way.at == "collective" else 1
    with tempfile.TemporaryDirectory() as logs, contextlib.ExitStack() as ends:
        children = [_start(name, backend, logs, limit_s, rank, ranks) for rank in range(ranks)]
        for child in children:
            ends.callback(_kill, child)
        said = _said(children[0], TIMEOUT_S + 12 * limit_s)
    line = said or ""
    stood = re.search(r"for ([\d.]+) (m?s)", line)
    named_s = float(stood[1]) / (1000 if stood[2] == "ms" else 1) if stood is not None else None
    right = bool(re.search(way.named, line)) if way.named else not line
    patience = 10 if way.at == "validation batch" else 1
    late = named_s is not None and "held Python's lock" not in line and named_s > 1.5 * patience * limit_s + 2
    return Outcome(name, backend, named_s, line, right and not late)


def _start(name: str, backend: str, logs: str, limit_s: float, rank: int, ranks: int) -> subprocess.Popen:
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    if backend != "loop":
        environ["KERAS_BACKEND"] = backend
    if ranks > 1:
        environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29533"}
    command = [sys.executable, "-u", __file__, "--train", name, backend, logs, str(limit_s)]
    return subprocess.Popen(
        command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, process_group=0
    )


def _kill(child: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _said(child: subprocess.Popen, seconds: float) -> str | None:
    """Return the line about a training that is stuck; None where the process ends without one."""
    until, text = time.monotonic() + seconds, ""
    assert child.stderr is not None
    while (left_s := until - time.monotonic()) > 0:
        if not select.select([child.stderr], [], [], left_s)[0]:
            break
        part = os.read(child.stderr.fileno(), 1 << 16).decode(errors="replace")
        text += part
        if (line := SAID.search(text)) and "\n" in text[line.start() :]:
            return line[1]
        if not part:
            break
    if "Traceback" in text:
        print(text[-2000:], file=sys.stderr)
    return None


def main() -> int:
    """Run the trials, and print a line for each and their sum."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="beginnings of ways (default: all)")
    parser.add_argument("--on", nargs="*", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--limit", type=float, default=1.5, help="seconds without a step (default: %(default)g)")
    parser.add_argument("--healthy", type=int, default=0, metavar="N", help="short fits without a hang")
    parser.add_argument("--train", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        name, backend, logs, limit_s = args.train
        train(name, backend, logs, float(limit_s))
        return 0
    if args.healthy:
        return healthy(args.healthy, args.limit, args.on)
    wrong = 0
    for name, way in WAYS.items():
        for backend in [backend for backend in way.on if backend in args.on]:
            if args.names and not name.startswith(tuple(args.names)):
                continue
            outcome = attempt(name, backend, args.limit)
            wrong += not outcome.right
            verdict = "right" if outcome.right else "WRONG"
            print(f"{verdict}  {name:16} {backend:10} {outcome.line or 'not named'}", flush=True)
    print(f"{wrong} wrong")
    return bool(wrong)


# ---- trainings that do not hang ------------------------------------------------------------------


def healthy(fits: int, limit_s: float, backends: list[str]) -> int:
    """Train many short fits of many kinds, on each backend in turn; return 1 where one is called stuck."""
    each, false = -(-fits // len(backends)), 0
    for backend in backends:
        environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        if backend != "loop":
            environ["KERAS_BACKEND"] = backend
        code = f"from harness.hangs import healthy_fits; healthy_fits({each}, {limit_s}, {backend!r})"
        done = subprocess.run(
            [sys.executable, "-c", code], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        lines = SAID.findall(done.stderr)
        false += len(lines) + bool(done.returncode)
        print(f"{backend}: {each} fits, {len(lines)} called stuck", *lines, sep="\n  ", flush=True)
        if done.returncode:
            print(done.stderr[-2000:])
    return bool(false)


def healthy_fits(fits: int, limit_s: float, backend: str) -> None:
    """Train many times in this process: inputs, pauses at ends of epochs, validations and shapes vary."""
    vary = random.Random(7)
    with tempfile.TemporaryDirectory() as logs:
        for number in range(fits):
            fit = _healthy_loop if backend == "loop" else _healthy_fit
            fit(vary, f"{logs}/{number}", limit_s)


def _pause(vary: random.Random, limit_s: float) -> None:
    """Wait for up to 60 % of the limit, seldom; mostly for hundredths of a second."""
    time.sleep(0.6 * limit_s if vary.random() < 0.01 else 0.01 * vary.random())


def _healthy_fit(vary: random.Random, logs: str, limit_s: float) -> None:
    import keras
    import numpy as np

    from gpu_util_callback import GpuUtilCallback

    step_s, slow = vary.choice([0.0, 0.002, 0.01]), vary.random() < 0.3
    batches, length = vary.randint(3, 60), vary.choice([0, 0, 0, 7])

    class Data(keras.utils.PyDataset):
        def __len__(self) -> int:
            return batches

        def __getitem__(self, index: int) -> tuple:
            time.sleep(step_s)
            if slow:
                _pause(vary, limit_s)
            rows = 8 + (index % length if length else 0)
            return np.zeros((rows, 4), "float32"), np.zeros((rows, 1), "float32")

    class Hooks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
            _pause(vary, limit_s)

    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=vary.random() < 0.2)
    callback = GpuUtilCallback(logs, thresholds={"stuck": {"no_step_s": limit_s}})
    validation = Data() if vary.random() < 0.4 else None
    model.fit(
        Data(workers=vary.choice([1, 1, 3])),
        epochs=vary.randint(1, 3),
        verbose=0,
        callbacks=[callback, Hooks()],
        validation_data=validation,
    )


def _healthy_loop(vary: random.Random, logs: str, limit_s: float) -> None:
    import torch

    from gpu_util_callback import GpuUtilMonitor

    model, step_s = torch.nn.Linear(4, 1), vary.choice([0.0, 0.002, 0.01])

    def batches() -> Iterator:
        for _ in range(vary.randint(3, 60)):
            time.sleep(step_s)
            yield torch.zeros(8, 4)

    with GpuUtilMonitor(logs, thresholds={"stuck": {"no_step_s": limit_s}}, framework="torch") as monitor:
        for _ in range(vary.randint(1, 3)):
            for batch in monitor.batches(batches()):
                model(batch).sum().backward()
            _pause(vary, limit_s)
            if vary.random() < 0.5:
                with monitor.phase(vary.choice(["validation", "checkpoint", "logging"])):
                    _pause(vary, limit_s)


if __name__ == "__main__":
    sys.exit(main())
