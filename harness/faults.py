"""Faults that CI cannot make: mounts that hang, full pipes, processes that are stopped or killed.

    python harness/faults.py                 all trials, about four minutes
    python harness/faults.py hang kill       those whose names contain one of the words
    python harness/faults.py --fit           in Keras' `fit` instead of a loop of one's own

Each trial trains in a process of its own while something is broken, and prints what was broken, the
longest wait on our account (one step, the ends of the trainings and of the process), what of the
recording was lost, and how many bytes were searched for the secrets of the environment. A table
sums up. Of the end of the process, what runs before the interpreter is taken down is on our
account; the rest stands beside that of a process without us, whose own thread writes to the same
place. The limit of each wait grows with how long this machine kept a thread waiting, that of a loss
with how late a thread beside ours woke up.
Linux, with a C compiler: `faults.c` stands between the process and its file system; an object
store needs `moto[server]` and `s3fs`. Exits with 1 where a training waited longer than its trial
allows, lost what could be kept, or a secret was found.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import errno
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

HERE = Path(__file__).resolve().parent
STEP_S = 0.005
END_S = 5.5  # what hung storage may cost, once a process: 5 s, and a last look at it
SLOW_S = 15.0  # of storage that answers, however slowly: 5 s, and 10 s at the end of the process
STEP_WAIT_S = 0.5  # a step that waits longer was held up
KILLED_S = 2.0  # what a killed training may lose
FLUSH_S = 1.5  # how often a thread beside ours wakes up
BUSY = 10  # by so many of the machine's own longest delays may a limit be exceeded
TIMEOUT_S = 90
SECRETS = {"DB_PASSWORD": "HUNTER2", "AWS_SECRET_ACCESS_KEY": "PASSW0RD", "API_TOKEN": "TOKEN99"}
BUCKET = "faults"


@dataclass
class Trial:
    """Something that is broken while a process trains.

    Attributes:
        broken: said of it.
        events: (seconds since the training began, what then happens): "hang", "fail ERRNO", "slow
            MS", "ok" are states of the file system; the others are in `HAPPENINGS`.
        seconds: how long each training takes.
        end_s: how long the ends of all of them, and of the process, may wait together.
        store: whether they record into an object store, which the events then concern.
        trainings: how many there are, each with a folder of its own.
        recordable: the share of the steps that can be recorded.
        reads_stderr: whether anybody does.
    """

    name: str
    broken: str
    events: Sequence[tuple[float, str]] = ()
    seconds: float = 4.0
    end_s: float = 2.0
    trainings: int = 1
    reads_stderr: bool = True
    recordable: float = 0.0
    store: bool = False

    @property
    def state(self) -> str:
        """The state of the file system or the store as the process ends."""
        states = [what for _, what in self.events if happening(what) is None]
        return states[-1] if states else "ok"


TRIALS = [
    Trial("healthy", "nothing", recordable=1),
    Trial("hang-start", "the mount hangs from the start", [(0, "hang")], end_s=END_S),
    Trial("hang-middle", "the mount hangs from the 4th second on", [(3, "hang")], 5.0, END_S),
    Trial("hang-over", "the mount hangs for 3 s", [(1, "hang"), (4, "ok")], seconds=7, recordable=1),
    Trial("hang-twice", "the mount hangs for three trainings", [(0, "hang")], 2.0, END_S, 3),
    Trial("hang-end", "the mount hangs just before the end", [(3.9, "hang")], end_s=END_S),
    Trial("slow", "each operation takes 200 ms", [(0, "slow 200")], end_s=END_S, recordable=1),
    Trial(
        "eio-first", "nothing can be written in the 1st second", [(0, f"fail {errno.EIO}"), (1, "ok")], recordable=0.7
    ),
    Trial(
        "eio-middle",
        "nothing can be written in the 3rd second",
        [(2, f"fail {errno.EIO}"), (3, "ok")],
        seconds=6,
        recordable=1,
    ),
    Trial("full", "the disk is full from the 3rd second on", [(2, f"fail {errno.ENOSPC}")], end_s=END_S),
    Trial("removed", "rm -rf of the log directory in the 3rd second", [(2, "remove")], seconds=6, recordable=0.3),
    Trial(
        "pipe-full",
        "stderr is a full pipe that nobody reads",
        [(0, "fill stderr"), (1, f"fail {errno.EIO}"), (2, "ok")],
        reads_stderr=False,
        recordable=1,
    ),
    Trial("pipe-closed", "stderr is closed", [(0, "close stderr"), (1, f"fail {errno.EIO}"), (2, "ok")], recordable=1),
    Trial("stopped", "the process is stopped for 3 s", [(2, "stop 3")], recordable=1),
    Trial("killed", "kill -9 in the 7th second", [(6, "kill")], seconds=8, recordable=0.5),
    Trial("fork", "a forked child leaves the training", [(2, "fork")], recordable=1),
    Trial("fork-hang", "a forked child leaves it, and the mount hangs", [(2, "fork"), (2.5, "hang")], end_s=END_S),
    Trial("s3", "nothing, in an object store", end_s=END_S, recordable=1, store=True),
    Trial("s3-slow", "each answer of the store takes 300 ms", [(0, "slow 300")], 8.0, SLOW_S, recordable=1, store=True),
    Trial(
        "s3-500",
        "the store answers with 500 in the 2nd and 3rd second",
        [(1, "fail 500"), (3, "ok")],
        8.0,
        SLOW_S,
        recordable=1,
        store=True,
    ),
    Trial(
        "s3-500-end",
        "the store answers with 500 from the 6th second on",
        [(5, "fail 500")],
        seconds=6,
        end_s=END_S,
        store=True,
    ),
    Trial("s3-hang-start", "the store answers nothing", [(0, "hang")], end_s=END_S, store=True),
    Trial(
        "s3-hang", "the store answers nothing from the 6th second on", [(5, "hang")], seconds=6, end_s=END_S, store=True
    ),
]
TAB = ("tab-hang", "the mount of one of two runs hangs under TensorBoard")


# ---- inside the process that trains --------------------------------------------------------------


def _fill(_: str) -> None:
    os.set_blocking(2, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(2, b"x" * 512)
    os.set_blocking(2, True)


def _stop(seconds: str) -> None:
    subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


def _fork(_: str) -> None:
    if os.fork() == 0:
        raise SystemExit  # leaves the training's block, as a worker's error does


HAPPENINGS: dict[str, Callable[[str], None]] = {
    "remove": lambda _: shutil.rmtree(os.environ["FAULT_DIR"], ignore_errors=True),
    "fill stderr": _fill,
    "close stderr": lambda _: os.close(2),
    "stop": _stop,
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "fork": _fork,
}


def happening(what: str) -> str | None:
    """Return the name in `HAPPENINGS` of an event, None of a state."""
    return next((name for name in HAPPENINGS if what.startswith(name)), None)


class Measured:
    """Longest waits of a training, written to a file as they come, since it may be killed."""

    def __init__(self, path: Path, events: Sequence[tuple[float, str]]):
        self.path, self.events = path, list(events)
        self.steps, self.longest_s, self.ends_s, self.late_s = 0, 0.0, [], 0.0
        self.exit_s = 0.0
        self._since = self._began = self._ended = time.perf_counter()
        atexit.register(self._leave, os.getpid())  # the first one: called after all others
        threading.Thread(target=self._be_late, daemon=True).start()

    def _leave(self, pid: int) -> None:
        if os.getpid() == pid:
            self.exit_s = time.perf_counter() - self._ended
            self.write()

    def _be_late(self) -> None:
        """Wake up as often as rows are written, with as much to do, and note how late that is."""
        while True:
            due = time.perf_counter() + FLUSH_S
            time.sleep(FLUSH_S)
            until = time.thread_time() + 0.02
            while time.thread_time() < until:
                pass
            self.late_s = max(self.late_s, time.perf_counter() - due)

    def body(self) -> None:
        """Take a step; what passed since the last one is on our account."""
        begun = time.perf_counter()
        if self.steps and self._since:
            self.longest_s = max(self.longest_s, begun - self._since)
        self.happen(begun - self._began)
        time.sleep(STEP_S)
        self.steps += 1
        if not self.steps % 20:
            self.write()
        self._since = time.perf_counter()

    def happen(self, now_s: float) -> None:
        while self.events and self.events[0][0] <= now_s:
            what = self.events.pop(0)[1]
            name = happening(what)
            if name is None:
                Path(os.environ["FAULT_STATE"]).write_text(what)
            else:
                HAPPENINGS[name](what.removeprefix(name).strip())

    def end(self, since: float) -> None:
        self._ended = time.perf_counter()
        self.ends_s.append(self._ended - since)
        self.write()

    def write(self) -> None:
        facts = {
            "steps": self.steps,
            "longest_s": self.longest_s,
            "ends_s": self.ends_s,
            "exit_s": self.exit_s,
            "late_s": self.late_s,
            "at": time.time(),
            "took_s": self._since - self._began,
        }
        partial = self.path.with_suffix(".part")
        partial.write_text(json.dumps(facts))
        partial.replace(self.path)


def write_elsewhere(log_dir: str) -> None:
    """Write files beside a log directory, again and again."""
    import fsspec

    while True:
        with contextlib.suppress(OSError), fsspec.open(f"{log_dir}-other", "wb") as file:
            file.write(b"x")
        time.sleep(0.1)


def train_in_a_loop(log_dir: str, seconds: float, measured: Measured, ours: bool) -> None:
    """Train in a loop of one's own, recorded if it is `ours`."""
    from gpu_util_callback import GpuUtilMonitor

    with GpuUtilMonitor(log_dir) if ours else contextlib.nullcontext() as monitor:
        until = time.perf_counter() + seconds
        measured._since = time.perf_counter()
        for _ in monitor.batches(iter(int, 1)) if monitor else iter(int, 1):
            measured.body()
            if time.perf_counter() > until:
                break
        ending = time.perf_counter()
    measured.end(ending)


def train_in_fit(log_dir: str, seconds: float, measured: Measured, ours: bool) -> None:
    """Train in Keras' `fit`; the waits of a step include Keras' own, but for the first, a trace."""
    import keras
    import numpy as np

    from gpu_util_callback import GpuUtilCallback

    class Body(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            measured.body()
            self.model.stop_training = time.perf_counter() > until

        def on_train_end(self, logs=None):
            nonlocal ending
            ending = time.perf_counter()

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.zeros((64, 4), "float32"), np.zeros((64, 1), "float32")
    model.fit(x, y, verbose=0)  # builds
    ending = until = time.perf_counter() + seconds
    measured._began = time.perf_counter()  # what is broken counts from here
    measured._since = 0.0
    callbacks = [Body(), *([GpuUtilCallback(log_dir)] if ours else [])]
    model.fit(x, y, batch_size=1, epochs=10**6, verbose=0, callbacks=callbacks)
    measured.end(ending)


def train(trial: Trial, folder: Path, fit: bool, without_us: bool) -> None:
    """Train as a trial says; the process that `main` starts."""
    if without_us:
        trial = replace(trial, events=[(0.5, trial.state)], seconds=2.0, trainings=1)
    if fit:
        import keras

        keras.ops.zeros(1)  # TensorFlow prints lines of its own, while somebody reads them
    measured = Measured(folder / "measured.json", trial.events)
    measured.happen(0.0)
    method = train_in_fit if fit else train_in_a_loop
    for number in range(trial.trainings):
        where = f"s3://{BUCKET}/{number}" if trial.store else str(folder / "logs" / str(number))
        if without_us:
            threading.Thread(target=write_elsewhere, args=(where,), daemon=True).start()
        method(where, trial.seconds, measured, not without_us)


# ---- outside of it -------------------------------------------------------------------------------


@dataclass
class Outcome:
    """The outcome of a trial."""

    step_s: float
    ends_s: list[float]
    exit_s: float  # until the interpreter is taken down
    gone_s: float  # from then on until the process is gone
    steps: int
    recorded: int
    statuses: list[str]
    messages: list[str]
    problem: str = ""
    took_s: float = 0.0  # the training, as far as it was seen
    delay_s: float = 0.0  # the longest that this machine kept a thread waiting
    late_s: float = 0.0  # of a thread beside ours
    plain_s: float = 0.0  # the same of a process without us
    searched: int = 0  # bytes

    @property
    def waited_s(self) -> float:
        """Return how long the ends of the trainings and of the process took on our account."""
        return sum(self.ends_s) + self.exit_s

    @property
    def lost(self) -> int:
        """Return how many steps have no row."""
        return self.steps - self.recorded

    @property
    def lost_s(self) -> float:
        """Return how much training has no row."""
        return self.lost * self.took_s / max(self.steps, 1)

    def judge(self, trial: Trial) -> str:
        """Return what is wrong; "" where the trial holds."""
        busy_s = BUSY * self.delay_s
        killed = "kill" in [what for _, what in trial.events]
        if self.problem:
            return self.problem
        if self.step_s > STEP_WAIT_S + busy_s:
            return f"a step waited longer than {STEP_WAIT_S:g} + {busy_s:.1f} s"
        if self.waited_s > trial.end_s + busy_s:
            return f"the end took {self.waited_s:.1f} s, more than {trial.end_s:g} + {busy_s:.1f} s"
        if killed and self.lost_s > KILLED_S + self.late_s:
            return f"more than {KILLED_S:g} + {self.late_s:.1f} s were lost"
        if self.recorded < trial.recordable * self.steps:
            return "lost what could be kept"
        return ""


class Delays:
    """The longest that this machine keeps a thread waiting that computes for 2 ms now and then."""

    def __init__(self) -> None:
        self.longest_s, self._over = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._over.is_set():
            began = time.perf_counter()
            time.sleep(0.05)
            until = time.thread_time() + 0.002
            while time.thread_time() < until:
                pass
            self.longest_s = max(self.longest_s, time.perf_counter() - began - 0.052)

    def end(self) -> float:
        self._over.set()
        self._thread.join()
        return self.longest_s


class ObjectStore:
    """An S3 server on loopback whose answers fail, take long or never come, as a file says."""

    def __init__(self, state: Path):
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server

        self._state, self._plain = state, DomainDispatcherApplication(create_backend_app)
        quiet = type("Quiet", (WSGIRequestHandler,), {"log": lambda *_: None})
        self._server = make_server("127.0.0.1", 0, self._answer, True, request_handler=quiet)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.environment = SECRETS | {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._server.port}",
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        os.environ.update(self.environment)
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()
        self.files = s3fs.S3FileSystem(use_listings_cache=False)
        self.files.mkdir(BUCKET)

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        while (state := self._state.read_text()) == "hang":
            time.sleep(0.05)
        if state.startswith("fail"):
            start(f"{state.split()[1]} Broken", [("Content-Type", "application/xml")])
            return [b"<Error><Code>InternalError</Code></Error>"]
        if state.startswith("slow"):
            time.sleep(int(state.split()[1]) / 1e3)
        return self._plain(environ, start)

    def close(self) -> None:
        self.files.rm(BUCKET, recursive=True)  # buckets outlive the server
        self._server.shutdown()


def searched(data: Sequence[bytes]) -> tuple[int, str]:
    """Return the number of bytes searched, archives unpacked, and a secret found in them."""
    texts = list(data)
    for part in data:
        if zipfile.is_zipfile(io.BytesIO(part)):
            archive = zipfile.ZipFile(io.BytesIO(part))
            texts += [archive.read(name) for name in archive.namelist()]
    leaked = [name for name, value in SECRETS.items() if any(value.encode() in text for text in texts)]
    return sum(map(len, texts)), f"found {leaked[0]}" if leaked else ""


_without_us: dict[tuple[bool, str], float] = {}  # seconds, by whether in a store and by its state


def end_without_us(trial: Trial, command: list[str], environment: dict, folder: Path) -> float:
    """Return how long a process that does not record takes to be gone, as the trial leaves it."""
    case = trial.store, trial.state
    if case not in _without_us:
        subprocess.run(
            [*command, "--without-us"],
            env=environment,
            cwd=folder,
            timeout=TIMEOUT_S,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        ended = time.time()
        _without_us[case] = ended - json.loads((folder / "measured.json").read_text())["at"]
        (folder / "state").write_text("ok")
    return _without_us[case]


def attempt(trial: Trial, shim: Path, fit: bool) -> Outcome:
    """Run one trial."""
    with tempfile.TemporaryDirectory(prefix="gpu-util-faults-") as name:
        folder = Path(name)
        (folder / "logs").mkdir()
        (folder / "state").write_text("ok")
        environment = os.environ | SECRETS | _broken_folder(shim, folder / "logs", folder / "state")
        environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
        store = ObjectStore(folder / "state") if trial.store else None
        if store is not None:
            environment |= store.environment
        command = [sys.executable, __file__, "--inside", trial.name, "--folder", name]
        command += ["--fit"] * fit
        delays = Delays()
        printed, problem = _run(command, environment, folder, trial.reads_stderr)
        ended, delay_s = time.time(), delays.end()
        (folder / "state").write_text("ok")
        try:
            measured = json.loads((folder / "measured.json").read_text())
        except (OSError, ValueError):
            return Outcome(0, [], 0, 0, 0, 0, [], printed[1].splitlines(), problem or "no step was taken")
        steps, statuses, files = _recorded(folder / "logs", store)
        count, secret = searched([*files, *(text.encode() for text in printed)])
        outcome = Outcome(
            measured["longest_s"],
            measured["ends_s"],
            measured["exit_s"],
            ended - measured["at"],
            measured["steps"],
            steps,
            statuses,
            [line for line in printed[1].splitlines() if "gpu" in line.lower()],
            problem or secret,
            measured["took_s"],
            delay_s,
            measured["late_s"],
            end_without_us(trial, command, environment, folder),
            count,
        )
        if store is not None:
            store.close()
        return outcome


def _broken_folder(shim: Path, folder: Path, state: Path) -> dict[str, str]:
    """Return the environment of a process for which a folder breaks as a file says."""
    return {"LD_PRELOAD": str(shim), "FAULT_DIR": str(folder), "FAULT_STATE": str(state)}


def _run(command: list[str], environment: dict[str, str], folder: Path, reads_output: bool) -> tuple[list[str], str]:
    """Run a process until its end; return its output and errors, and what went wrong."""
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=folder,
        text=True,
        errors="replace",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        if reads_output:
            return list(process.communicate(timeout=TIMEOUT_S)), ""
        process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return ["", ""], f"did not end within {TIMEOUT_S} s"
    return ["", ""], ""


def _recorded(logs: Path, store: ObjectStore | None) -> tuple[int, list[str], list[bytes]]:
    """Return the recorded steps, the recordings' statuses, and the contents of all files."""
    from gpu_util_callback import read_recordings
    from gpu_util_callback.errors import UnusableInput

    try:
        recordings = read_recordings(f"s3://{BUCKET}" if store else logs)
    except UnusableInput:
        recordings = []
    if store is not None:
        files = [store.files.cat_file(path) for path in store.files.find(BUCKET)]
    else:
        files = [path.read_bytes() for path in logs.rglob("*") if path.is_file()]
    steps = sum(len(recording.steps["step"]) for recording in recordings)
    return steps, [recording.status for recording in recordings], files


def attempt_tab(shim: Path) -> str:
    """Let the mount of one of two runs hang under TensorBoard; return what went wrong."""
    sys.path.insert(0, str(HERE / "support"))
    from tensorboard_server import TensorBoardServer

    from gpu_util_callback import GpuUtilMonitor

    with tempfile.TemporaryDirectory(prefix="gpu-util-faults-") as name:
        folder, state = Path(name) / "logs", Path(name) / "state"
        state.write_text("ok")
        for run in ("here", "mount/there"):
            with GpuUtilMonitor(folder / run, report=False) as monitor:
                for _ in monitor.batches(range(100)):
                    time.sleep(STEP_S)
        broken = _broken_folder(shim, folder / "mount", state)
        with TensorBoardServer(folder, load_fast=False, env=broken, forked=False) as server:
            try:
                return _problem_of(server, state)
            except TimeoutError:
                return f"no answer within {TIMEOUT_S} s"
            finally:
                state.write_text("ok")


def _problem_of(server: Any, state: Path) -> str:
    """Let the mount hang and come back; return which request was not answered as it should be.

    Raises: TimeoutError.
    """

    def ask(route: str, **query: object) -> tuple[int, bytes]:
        status, _, body = server.get(f"data/plugin/gpu_utilization/{route}?{urlencode(query)}", TIMEOUT_S)
        return status, body

    def runs_once(true: Callable[[dict], Any]) -> dict:
        """Return the list of runs as soon as something is true of it."""
        ends = time.monotonic() + TIMEOUT_S
        while not true(listing := json.loads(ask("runs")[1])):
            if time.monotonic() > ends:
                raise TimeoutError
            time.sleep(0.2)
        return listing

    view = {"level": 0, "first": 0, "count": 64, "lanes": "steps"}
    listing = runs_once(lambda reply: len(reply["recordings"]) == 2)
    ids = {recording["run"]: recording["id"] for recording in listing["recordings"]}
    problem = ""
    state.write_text("hang")
    time.sleep(12)  # recordings that ended are looked at again after 10 s
    for route, run, expected in (
        ("recording", "mount/there", 504),
        ("runs", "", 200),
        ("recording", "here", 200),
        ("tiles", "here", 200),
        ("total", "", 200),
    ):
        began = time.monotonic()
        status, _ = ask(route, id=ids.get(run, ""), **view)
        print(f"  waited   {time.monotonic() - began:.2f} s for /{route} {run}: {status}")
        if status != expected:
            problem = f"/{route} {run} was answered with {status}, not {expected}"
    listing = runs_once(lambda reply: reply["problems"])
    print(f"  said     {listing['problems'][0]['message']}")
    state.write_text("ok")
    runs_once(lambda reply: not reply["problems"])
    return problem


def build(folder: Path) -> Path:
    """Compile the shim; return its library."""
    library = folder / "faults.so"
    compiler = os.environ.get("CC", "cc")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / "faults.c"), "-ldl"], check=True
    )
    return library


def print_outcome(trial: Trial, outcome: Outcome) -> None:
    """Print what a trial showed, in sentences."""
    ends = " + ".join(f"{seconds:.2f}" for seconds in outcome.ends_s) or "(no end)"
    print(f"{trial.name}: {trial.broken}")
    print(
        f"  waited   {1e3 * outcome.step_s:.0f} ms in a step, {ends} s at the end, "
        f"{outcome.exit_s:.2f} s as the process ended, {outcome.gone_s:.2f} s until it "
        f"was gone ({outcome.plain_s:.2f} s without us); "
        f"the machine's own delays: up to {1e3 * outcome.delay_s:.0f} ms"
    )
    print(
        f"  lost     {outcome.lost} of {outcome.steps} steps, {outcome.lost_s:.1f} s; "
        f"recordings: {', '.join(outcome.statuses) or 'none'}"
    )
    for line in outcome.messages[:4]:
        print(f"  said     {line[:160]}")
    if outcome.problem:
        print(f"  FAILED   {outcome.problem}")


def table_line(trial: Trial, outcome: Outcome) -> str:
    """Return a trial's line of the table."""
    return (
        f"{trial.name:14}{1e3 * outcome.step_s:9.0f}{sum(outcome.ends_s):8.2f}"
        f"{outcome.exit_s:8.2f}{outcome.waited_s:8.2f}{trial.end_s:7.1f}"
        f"{outcome.gone_s:8.2f}{outcome.plain_s:8.2f}{1e3 * outcome.delay_s:10.0f}"
        f"{outcome.lost:6}{outcome.lost_s:8.1f}{outcome.late_s:8.1f}"
        f"{outcome.searched:12,}  {outcome.problem or 'held'}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the trials; return 1 where a training waited too long."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="run the trials whose names contain one of these")
    parser.add_argument("--fit", action="store_true", help="train in Keras' fit")
    parser.add_argument("--list", action="store_true", help="list the trials")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--without-us", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.inside:
        trial = next(trial for trial in TRIALS if trial.name == args.inside)
        train(trial, args.folder, args.fit, args.without_us)
        return 0
    trials = [trial for trial in TRIALS if not args.words or any(word in trial.name for word in args.words)]
    if not all(map(importlib.util.find_spec, ("moto", "s3fs"))):
        print("without object stores: pip install 'moto[server]' s3fs")
        trials = [trial for trial in trials if not trial.store]
    if args.list:
        print("\n".join(f"{trial.name:12} {trial.broken}" for trial in trials))
        print(f"{TAB[0]:12} {TAB[1]}")
        return 0
    sys.path.insert(0, str(HERE.parent))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH", "")]))
    failed: list[str] = []
    lines = [
        f"{'trial':14}{'step ms':>9}{'fits s':>8}{'exit s':>8}{'ours s':>8}{'limit':>7}"
        f"{'gone s':>8}{'without':>8}{'delay ms':>10}{'lost':>6}{'lost s':>8}{'late s':>8}"
        f"{'searched':>12}"
    ]
    with tempfile.TemporaryDirectory() as folder:
        shim = build(Path(folder))
        for trial in trials:
            outcome = attempt(trial, shim, args.fit)
            outcome.problem = outcome.judge(trial)
            print_outcome(trial, outcome)
            if outcome.problem:
                failed.append(trial.name)
            lines.append(table_line(trial, outcome))
            sys.stdout.flush()
        tab = not args.words or any(word in TAB[0] for word in args.words)
        if tab:
            print(f"{TAB[0]}: {TAB[1]}")
            problem = attempt_tab(shim)
            if problem:
                print(f"  FAILED   {problem}")
                failed.append(TAB[0])
    count = len(trials) + tab
    print(*lines, sep="\n")
    print(f"{count - len(failed)} of {count} trials held", *failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
