"""Fits on PyTorch with profiler windows, as test_torch_windows.py wants them: argv = folder."""

import faulthandler
import json
import os
import sys
import threading
import time
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch

from gpu_util_callback import GpuUtilCallback, GpuUtilMonitor, read_recordings
from gpu_util_callback.backends.torch import profiler as torch_profiler
from gpu_util_callback.backends.torch.profiler import SESSION

faulthandler.enable()
FOLDER = Path(sys.argv[1])
DOORS = (torch.autograd.profiler._prepare_profiler, torch.autograd.profiler._enable_profiler)
SLOW_S = 0.03


class Data(torch.utils.data.Dataset):
    """48 items; those of every second batch of 4 take long."""

    def __init__(self, fails_at=None):
        self.fails_at = fails_at

    def __len__(self):
        return 48

    def __getitem__(self, item):
        if item % 8 == 0:
            time.sleep(SLOW_S)
        if item == self.fails_at:
            raise OSError("the disk is gone")
        return torch.zeros(8), torch.zeros(1)


def batches(fails_at=None):
    return torch.utils.data.DataLoader(Data(fails_at), batch_size=4)


def model():
    made = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


def fit(name, trace, *others, data=None, raises=None, redact=False, left=False, **kwargs):
    ours = GpuUtilCallback(str(FOLDER / name), trace=trace, report=False, redact=redact)
    try:
        model().fit(data or batches(), verbose=0, callbacks=[ours, *others], **kwargs)
        assert raises is None
    except BaseException as error:
        if raises is None or not isinstance(error, raises):
            raise
    return described(name, left)


def described(name, left=False):
    """What a run has recorded, once nothing of a window is there any more, or is `left` on purpose."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        (recording,) = read_recordings(FOLDER / name)
        # A window that was left open is read by and by, after the recording has ended.
        late = recording.status == "interrupted" and not len(recording.traced_steps["step"])
        if recording.status != "live" and not late:
            break
        time.sleep(0.05)
    deadline = time.monotonic() + 5
    while not left and profiling() and time.monotonic() < deadline:
        time.sleep(0.01)
    traced, steps = recording.traced_steps, recording.steps
    rows = np.searchsorted(steps["step"], traced["step"])
    return {
        "status": recording.status,
        "steps": traced["step"].tolist(),
        "window": traced["window"].tolist(),
        "idle_input_ns": traced["idle_input_ns"].tolist(),
        "traced_ns": traced["duration_ns"].tolist(),
        "late_ns": (traced["start_ns"] - steps["start_ns"][rows]).tolist(),
        "input_wait_ns": steps["input_wait_ns"][rows].tolist(),
        "trained": len(steps["step"]),
        "wall_s": (recording.end_ns - recording.start_ns) / 1e9,
        "windows": recording.facts.get("windows", []),
        "windows_s": recording.facts["overhead"]["windows_s"],
        "reasons": [
            entry["reason"] for entry in recording.facts["unavailable"] if entry["source"] == "profiler windows"
        ],
        "files": sorted(file.name for file in (FOLDER / name).glob("*.pt.trace.json.gz")),
        "left": profiling(),
    }


def profiling():
    """Whether anything of a window is still there."""
    now = (torch.autograd.profiler._prepare_profiler, torch.autograd.profiler._enable_profiler)
    return bool(torch.autograd._profiler_enabled() or SESSION._current() is not None or now != DOORS)


def profile(**kwargs):
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **kwargs)


def events(theirs):
    file = FOLDER / "theirs.json"
    theirs.export_chrome_trace(str(file))
    return sum(event.get("cat") == "cpu_op" for event in json.loads(file.read_text())["traceEvents"])


class Profiling(keras.callbacks.Callback):
    """Profiles two batches by itself."""

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 4:
            self.theirs = profile()
            self.theirs.start()
        if batch == 6:
            self.theirs.stop()


class OnThread(keras.callbacks.Callback):
    """Has another thread profile something, in the middle of a window."""

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 5:
            self.asking = threading.Event()
            self.thread = threading.Thread(target=self.profile)
            self.thread.start()
        if batch == 6:  # on a busy machine it may begin after the window otherwise
            self.asking.wait(30)
            time.sleep(0.1)

    def profile(self):
        self.asking.set()
        with profile() as self.theirs:
            for _ in range(10):
                torch.ones(8).sum()

    def on_train_end(self, logs=None):
        self.thread.join()


class Joined(OnThread):
    """The same, and the training waits for that thread, which waits for our window to end."""

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 5:
            about_to_wait = self.about_to_wait = threading.Event()
            super().on_train_batch_begin(batch)
            about_to_wait.set()
            self.thread.join()

    def profile(self):
        self.about_to_wait.wait()
        time.sleep(1)
        super().profile()


class Stepping(keras.callbacks.Callback):
    """Goes on with a profile whose warm-up the window would fall into."""

    def on_train_begin(self, logs=None):
        self.theirs = profile(schedule=torch.profiler.schedule(wait=2, warmup=5, active=2, repeat=1))
        self.theirs.start()

    def on_train_batch_end(self, batch, logs=None):
        self.theirs.step()

    def on_train_end(self, logs=None):
        self.theirs.stop()


class Leaving(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 5:
            assert profiling()
            raise KeyboardInterrupt


def on_another_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(fit("thread", [(3, 6)])))
    thread.start()
    thread.join()
    return found[0]


def loop():
    net = torch.nn.Linear(8, 1)
    with GpuUtilMonitor(FOLDER / "loop", framework="torch", trace=[(3, 6)], report=False) as ours:
        for x, _ in ours.batches(batches()):
            net(x).sum().backward()
    return described("loop")


def left_loop():
    try:
        with GpuUtilMonitor(FOLDER / "left", framework="torch", trace=[(3, 9)], report=False) as ours:
            for step, _ in enumerate(ours.batches(batches())):
                if step == 5:
                    raise ValueError("somebody's own fault")
    except ValueError:
        pass
    return described("left")


class AsksInBackward(torch.autograd.Function):
    """While it computes a gradient, on the main thread, another thread profiles something."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        thread = AsksInBackward.thread = threading.Thread(target=AsksInBackward.profile)
        thread.start()
        end = time.monotonic() + 0.3
        while time.monotonic() < end:  # it is in Python's hands all the time
            pass
        return gradient * 2

    @staticmethod
    def profile():
        with profile() as AsksInBackward.theirs:
            torch.ones(8).sum()


def in_backward():
    folder = FOLDER / "in_backward"
    folder.mkdir()
    yielded = []
    SESSION.start(folder, lambda: yielded.append(True))
    AsksInBackward.apply(torch.ones(8, requires_grad=True)).sum().backward()
    deadline = time.monotonic() + 10
    while not yielded and time.monotonic() < deadline:
        time.sleep(0.001)
    SESSION.halt(folder)
    AsksInBackward.thread.join()
    SESSION.end()
    SESSION.stop(folder)
    return {"yielded": yielded, "left": profiling(), "theirs": events(AsksInBackward.theirs)}


def main():
    result = {"plain": fit("plain", [(3, 6), (8, 9)])}
    result["epochs"] = fit("epochs", [(10, 14), (22, 30)], epochs=3, validation_data=batches(), validation_freq=2)
    beside, thread, stepping = Profiling(), OnThread(), Stepping()
    result["beside"] = {**fit("beside", [(3, 8)], beside), "theirs": events(beside.theirs)}
    result["beside_thread"] = {**fit("beside_thread", [(3, 10)], thread), "theirs": events(thread.theirs)}
    result["warm_up"] = {**fit("warm_up", [(3, 6)], stepping), "theirs": events(stepping.theirs)}
    with profile() as held:
        result["held"] = fit("held", [(3, 6)], left=True)
    result["held"]["theirs"] = events(held)
    result["interrupted"] = fit("interrupted", [(3, 10)], Leaving(), raises=KeyboardInterrupt)
    result["broken_input"] = fit("broken_input", [(3, 10)], data=batches(23), raises=OSError)
    result["again"] = fit("again", [(3, 6)], redact=True)
    result["unasked"] = fit("unasked", "auto")
    result["thread"] = on_another_thread()
    result["loop"] = loop()
    result["left_loop"] = left_loop()
    result["in_backward"] = in_backward()
    torch_profiler.THEIRS_S, joined = 0.2, Joined()
    result["joined"] = {**fit("joined", [(3, 10)], joined, left=True), "theirs": events(joined.theirs)}
    result["after_joined"] = fit("after_joined", [(3, 6)], left=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
