"""`gpu-util run`: programs of others, run as Python runs them."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from fork_server import python
from packages import need
from programs import ran

from gpu_util_callback import read_recordings
from gpu_util_callback.recorder.messages import drain
from gpu_util_callback.trainers import _Reported

PYTHON = [sys.executable]
RUN = ["-m", "gpu_util_callback", "run"]
# What Keras needs, on each backend; `run` waits for the import of Keras itself.
FRAMEWORKS = [*filter(find_spec, ("tensorflow", "jax", "torch"))]

# What a program can see of how it is run, in one.
SEEN = """# -*- coding: latin-1 -*-
'''Documented.'''
import inspect, os, pickle, random, sys
print('numpy' in sys.modules, 'keras' in sys.modules)
x: int = 1
def f(): return 1
class A: pass
print(sorted(globals()), __annotations__)
print(__name__, __spec__, __package__, __file__, __cached__, __doc__, __loader__.path)
print(sys.argv, sys.path[0], os.getcwd())
print(inspect.getsource(f), pickle.loads(pickle.dumps(A)))
random.seed(3)
print(random.random(), '\xe4')
"""
# name -> (files, what follows `python`); the first file is the program.
PROGRAMS = {
    "seen": (SEEN, "sub/t.py --log-dir x -m --redact -- y"),
    "argparse": (
        "import argparse; p = argparse.ArgumentParser(); p.add_argument('--lr', type=float)\nprint(p.parse_args())",
        "t.py --lr nonsense",
    ),
    "help": ("import argparse; argparse.ArgumentParser().parse_args()", "t.py --help"),
    "sibling": ("import sub.helper, helper; print(helper.__name__)", "sub/t.py"),
    "ends": (  # its input is read, its thread is waited for, its last function is called
        "import atexit, sys, threading, time\nprint(sys.stdin.read().upper())\n"
        "atexit.register(lambda: print('bye', x))\nx = 1\n"
        "threading.Thread(target=lambda: (time.sleep(.2), print('late'))).start()\nsys.exit(3)",
        "t.py",
    ),
    "exit text": ("import sys; sys.exit('no data')", "t.py"),
    "error": (
        "def f():\n    raise KeyError('x')\ntry:\n    f()\nexcept KeyError as e:\n    raise RuntimeError('y') from e",
        "t.py",
    ),
    "syntax": ("x = (\n", "t.py"),
    "recursion": ("def f(n):\n    return f(n - 1) if n else 1 / n\nf(400)", "t.py"),
    "excepthook": (
        "import sys, traceback\nsys.excepthook = lambda k, e, t: print(len(traceback.extract_tb(t)), e)\n1 / 0",
        "t.py",
    ),
    "os._exit": ("import os; os._exit(5)", "t.py"),
    "interrupted": (  # in a background job it is ignored
        "import os, signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)",
        "t.py",
    ),
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "t.py"),
    "spawn": (
        "import multiprocessing as m\nimport sub.helper\ndef f(x): return x * 2, __name__\n"
        "if __name__ == '__main__':\n    print(m.get_context('spawn').Pool(1).map(f, [1]))",
        "t.py",
    ),
    "module": ("import sys; print(__name__, __package__, __spec__.name, sys.argv, sys.path[0])", "-m sub.t -m --x"),
    "no module": ("", "-m sub.absent"),
    "package": ("", "-m package --x"),
    "folder": ("", "package"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part in ("sub", "package"):
        (tmp_path / part).mkdir()
    (tmp_path / "sub" / "helper.py").write_text("")
    (tmp_path / "package" / "__main__.py").write_text("import sys; print(sys.argv, __spec__.name)")
    return tmp_path


def outcome(command: list[str], folder: Path, **environment: str) -> tuple[int, str, str]:
    done = ran(*command, ends=None, cwd=folder, input="abc", env=os.environ | environment)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_as_under_python(name, folder):
    text, command = PROGRAMS[name]
    for home in (folder, folder / "sub"):
        (home / "t.py").write_text(text, encoding="latin-1")
    alone = outcome([*PYTHON, *command.split()], folder)
    under = outcome([*PYTHON, *RUN, "--quiet", "--log-dir", "logs", *command.split()], folder)
    assert under == alone


def run() -> list[str]:
    """`gpu-util run`, where only Keras itself is still to be imported."""
    return [*python(*FRAMEWORKS, "-keras"), *RUN]


FIT = """
import os, signal, sys, keras, numpy as np
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
model.compile("adam", "mse")
x = np.random.rand(64, 3)
def fit(**given):
    model.fit(x, x[:, :1], epochs=2, batch_size=8, verbose=0, validation_split=0.25, **given)
"""
# Two fits, and what is left of them; fits with the callback, below the folder of the argument; one that fails.
FITS = f"""{FIT}
fit()
fit()
print(np.concatenate([w.ravel() for w in model.get_weights()]).tobytes().hex())
from gpu_util_callback import GpuUtilCallback
mine, listed = (GpuUtilCallback(f"{{sys.argv[1]}}/{{name}}", report=False) for name in ("mine", "list"))
fit(callbacks=[mine])
fit(callbacks=keras.callbacks.CallbackList([listed], True, model=model, epochs=2))
class Fails(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs):
        1 / 0
fit(callbacks=[Fails()])
"""


@pytest.fixture(scope="module", params=["tensorflow", "jax", "torch"])
def fits(request, tmp_path_factory):
    """The folder of a program that fits, and its outcomes: alone, and under `gpu-util run`."""
    need(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "t.py").write_text(FITS)
    environment = {"KERAS_BACKEND": request.param, "OMP_NUM_THREADS": "1"}
    alone = outcome([*python("keras"), "t.py", "alone"], folder, **environment)
    under = outcome([*run(), "--log-dir", "logs/a", "t.py", "under"], folder, **environment)
    return folder, alone, under


def test_fits_are_recorded_and_end_with_the_same_bits(fits):
    folder, alone, under = fits
    assert alone[1] and under[1] == alone[1]
    assert "this run" not in alone[2]
    (recording,) = read_recordings(folder / "logs")  # a series of short fits
    assert recording.facts["fits"] == 3
    assert recording.facts["script"] == "t.py"
    assert len(recording.steps["duration_ns"]) == 24, "without the one that failed"


def test_fits_with_the_callback_are_recorded_once(fits):
    folder, _, _ = fits
    for name in ("mine", "list"):
        assert len(read_recordings(folder / "under" / name)) == 1
    (others,) = read_recordings(folder / "logs")
    assert others.facts["fits"] == 3


def test_an_error_in_fit_is_shown_as_without_us(fits):
    folder, alone, under = fits
    assert "ZeroDivisionError" in alone[2]
    assert (under[0], traceback_in(under[2])) == (alone[0], traceback_in(alone[2]))
    (recording,) = read_recordings(folder / "logs")
    assert recording.status == "interrupted"


def traceback_in(text: str) -> str:
    """Return the traceback; what TensorFlow's own threads log around it comes sooner or later."""
    end = text.index("\nZeroDivisionError")
    shown = text[text.index("Traceback") : text.index("\n", end + 1)]
    return shown.replace('  File "<string>", line 1, in <module>\n', "")  # of the fork server


def test_a_fit_of_tf_keras_is_recorded(folder):
    need("tf_keras")
    asked = "import importlib.util\nimportlib.util.find_spec('tf_keras.src.callbacks')\n"
    (folder / "t.py").write_text(asked + FIT.replace("keras,", "tf_keras as keras,") + "fit()")
    assert outcome([*run(), "--quiet", "t.py"], folder)[0] == 0
    (recording,) = read_recordings(folder / "logs")
    assert len(recording.steps["duration_ns"]) == 12


def test_what_is_no_script_gets_one_line(folder):
    (folder / "t.ipynb").write_text("{}")
    (folder / "t.sh").write_text("python t.py")
    (folder / "job").write_text("#!/bin/bash -l\npython t.py")
    for command, words in {
        "t.ipynb": "is a notebook",
        "t.sh": "is a shell script",
        "job --epochs 3": "is a shell script",
        "absent.py": "there is no absent.py",
        "": "nothing to run",
        "--trace 9:3 t.py": "FIRST:STOP",
    }.items():
        code, out, err = outcome([*PYTHON, *RUN, *command.split()], folder)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert words in err


def test_a_program_without_training_is_told_so(folder):
    (folder / "t.py").write_text("print(1)")
    code, out, err = outcome([*PYTHON, *RUN, "t.py"], folder)
    assert (code, out) == (0, "1\n")
    assert "no training was recorded" in err


def test_a_loop_with_a_monitor_is_not_told_that_it_needs_one(folder):
    (folder / "t.py").write_text(
        "import gpu_util_callback\n"
        "with gpu_util_callback.GpuUtilMonitor('logs') as monitor:\n"
        "    for batch in monitor.batches(range(5)):\n"
        "        print(batch)\n"
    )
    code, out, err = outcome([*PYTHON, *RUN, "t.py"], folder)
    assert (code, out.split()) == (0, list("01234"))
    assert "no training was recorded" not in err
    assert len(read_recordings(folder / "logs")) == 1


# As transformers 5 and Lightning 2 call their callbacks.
HUGGING_FACE = """
from types import SimpleNamespace
class TrainerCallback: pass
class CallbackHandler:
    def __init__(self): self.callbacks = []
    def on_train_begin(self, args, state, control): self.call("on_train_begin", control)
    def call(self, event, control):
        args = SimpleNamespace(gradient_accumulation_steps=4)
        for one in self.callbacks:
            if hasattr(one, event):
                getattr(one, event)(args, None, control, model=None, train_dataloader=[1] * 30)
"""
TRAINER = """
import time
from types import SimpleNamespace
from transformers.trainer_callback import CallbackHandler, TrainerCallback
class Texts(TrainerCallback):
    def on_step_end(self, args, state, control, **more):
        time.sleep(0.03)
    def on_log(self, args, state, control, **more):
        time.sleep(0.04)
class Trainer:
    def train(self):
        handler = CallbackHandler()
        handler.callbacks.insert(0, texts := Texts())
        control = SimpleNamespace(should_evaluate=False, should_save=False)
        handler.on_train_begin(None, None, control)
        handler.call("on_epoch_begin", control)
        for step in range(8):
            time.sleep(0.02)
            handler.call("on_step_begin", control)
            time.sleep(0.01)
            control.should_evaluate = step == 3
            handler.call("on_step_end", control)
            handler.call("on_log", control)
            if control.should_evaluate:
                time.sleep(0.05)
                control.should_evaluate = False
                handler.call("on_evaluate", control)
        handler.call("on_epoch_end", control)
        handler.call("on_train_end", control)
        assert not vars(texts), "its hooks are its own again"
"""
LIGHTNING = """
import time
from types import SimpleNamespace
class Callback: pass
class ModelCheckpoint(Callback):
    def on_train_batch_end(self, *_): time.sleep(0.03)
    def on_train_epoch_end(self, *_): time.sleep(0.3)
class Trainer:
    train_dataloader = [1] * 8
    accumulate_grad_batches = 4
    def __init__(self, callbacks=()):
        self.callbacks = list(callbacks)
        self.profiler = SimpleNamespace(start=lambda action: None, stop=lambda action: None)
    def profiled(self, action, work):
        self.profiler.start(action)
        work()
        self.profiler.stop(action)
    def call(self, event, *given):
        for one in [*self.callbacks, ModelCheckpoint()]:
            if hasattr(one, event):
                self.profiled(f"[Callback]{type(one).__name__}{{}}.{event}",
                              lambda: getattr(one, event)(self, None, *given))
    def fit(self):
        self.call("on_train_start")
        self.call("on_train_epoch_start")
        for step in range(8):
            self.profiled("[_TrainingEpochLoop].train_dataloader_next", lambda: time.sleep(0.02))
            self.call("on_train_batch_start", None, step)
            time.sleep(0.01)
            self.call("on_train_batch_end", None, None, step)
            if step == 3:
                self.call("on_validation_start")
                time.sleep(0.05)
                self.call("on_validation_end")
        self.profiled("run_training_epoch", lambda: None)
        self.call("on_train_epoch_end")
        self.call("on_train_end")
"""
LIGHTNING_PROGRAM = """
import time, torch, lightning.pytorch as L
from lightning.pytorch.trainer.trainer import Callback
class Plots(Callback):
    def on_train_batch_end(self, *_): time.sleep(0.03)
L.Trainer([Plots()]).fit()
"""


@pytest.fixture
def trainers(folder):
    """The folder of two programs that train with stand-ins of such libraries."""
    need("torch")
    files = {
        "transformers/__init__.py": TRAINER,
        "transformers/trainer_callback.py": HUGGING_FACE,
        "lightning/pytorch/__init__.py": "from lightning.pytorch.trainer.trainer import *",
        "lightning/pytorch/trainer/trainer.py": LIGHTNING,
        "transformers.t.py": "import torch, transformers; transformers.Trainer().train()",
        "lightning.t.py": LIGHTNING_PROGRAM,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("library", ["transformers", "lightning"])
def test_other_trainers_are_recorded_by_their_callbacks(library, trainers):
    code, out, err = outcome([*run(), f"{library}.t.py"], trainers)
    assert (code, out) == (0, "")
    assert "does not record" not in err
    (recording,) = read_recordings(trainers / "logs")
    waits = recording.steps["input_wait_ns"] / 1e6
    assert len(waits) == recording.facts["fit"]["steps_per_epoch"] == 8, "a step of transformers is an update"
    assert recording.facts["fit"]["gradient_accumulation_steps"] == 4
    assert 18 < sorted(waits)[4] < 40
    phases = recording.phases
    (validation,) = phases["self_ns"][phases["kind"] == "validation"] / 1e6
    assert validation > 45
    places = recording.facts["fit"]["callbacks"]["Texts" if library == "transformers" else "Plots"]["places"]
    if library == "transformers":
        assert places == {
            "on_step_end": "Texts.on_step_end (__init__.py, line 6)",
            "on_log": "Texts.on_log (__init__.py, line 8)",
        }
        texts = recording.steps["callbacks_ns"].sum() + phases["self_ns"][phases["name"] == "Texts"].sum()
        assert texts / 1e6 > 8 * (29 + 39), "hooks of other callbacks are no part of the steps' own work"
    if library == "lightning":
        assert places == {"on_train_batch_end": "Plots.on_train_batch_end (lightning.t.py, line 5)"}
        checkpoints = phases["self_ns"][phases["kind"] == "checkpoint"].sum() / 1e6
        assert checkpoints > 8 * 29 + 290, "Lightning calls it after each other callback: no wait for input"
        assert max(recording.steps["duration_ns"]) < 0.25e9, "what follows an epoch is no part of its last step"


class Profiler:
    def __init__(self):
        self.actions = []

    def start(self, action_name):
        self.actions.append(action_name)


def test_a_profiler_has_its_methods_back_in_whatever_order_callbacks_end():
    profiler, seen = Profiler(), []
    for fit in range(2):
        first = _Reported(profiler, "start", lambda action: seen.append(("first", action)))
        second = _Reported(profiler, "start", lambda action: seen.append(("second", action)))
        profiler.start(action_name=f"step {fit}")
        first.end()
        profiler.start(f"last {fit}")
        second.end()
    assert profiler.actions == ["step 0", "last 0", "step 1", "last 1"]
    assert seen == [
        (who, action)
        for fit in range(2)
        for who, action in (("second", f"step {fit}"), ("first", f"step {fit}"), ("second", f"last {fit}"))
    ]


def test_an_error_of_ours_never_reaches_the_trainer(caplog):
    profiler = Profiler()
    reported = _Reported(profiler, "start", lambda action: 1 / 0)
    profiler.start("a")
    profiler.start("b")
    reported.end()
    assert profiler.actions == ["a", "b"] and vars(profiler) == {"actions": ["a", "b"]}
    drain()
    assert caplog.text.count("training continues") == 1


def test_each_process_of_a_launcher_records_its_rank(trainers):
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python"]
    done = outcome([*python("torch"), *launcher, *run(), "lightning.t.py"], trainers)
    assert done[0] == 0, done[2]
    recordings = read_recordings(trainers / "logs")
    assert sorted(one.rank for one in recordings) == [0, 1]
    assert len({one.session for one in recordings}) == 1
