"""Runs a program in a child that is timed, cut short and leaves nothing behind."""

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.redaction import printable
from gpu_util_callback.trying import working_copy
from gpu_util_callback.trying.child import KEPT
from gpu_util_callback.trying.hooks import RECORDINGS

HANG_S = 600.0  # a child without a result is given up after so long
_POLL_S, _GRACE_S = 0.05, 5.0  # between two looks at a child, and how long it may take to end when asked to
QUIET_S = 30.0  # without a training step, after which that is said
BARE_S = 120.0  # without the import of a framework, after which it is ended: slow disks take a minute for other imports
_TAIL_LINES = 12  # lines of a failed program's output that are shown
_SITECUSTOMIZE = """import importlib.machinery, importlib.util, os, sys
sys.path[:] = [path for path in sys.path if path != {site!r}]
try:
    _spec = importlib.util.spec_from_file_location(
        "gpu_util_trying", {package!r}, submodule_search_locations=[os.path.dirname({package!r})])
    sys.modules["gpu_util_trying"] = importlib.util.module_from_spec(_spec)
    from gpu_util_trying.child import activate
    activate({plan!r})
finally:
    _own = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if _own is not None:
        _own.loader.exec_module(importlib.util.module_from_spec(_own))
"""
_OFFLINE = {
    "WANDB_MODE": "disabled",
    "COMET_START_ONLINE": "0",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "MLFLOW_TRACKING_URI": "file:{folder}/mlruns",
}
_CAN_BE_TIMED = "`fit` of Keras, PyTorch loops and loops with GpuUtilMonitor can be tried"
_CAN_BE_RECORDED = (
    "`fit` of Keras, trainers of Hugging Face and Lightning and loops with GpuUtilMonitor can be recorded; "
    "of another loop of PyTorch's, say with --change what to try"
)
_CAN_CHANGE = "only temporary files, caches and its copy of the folder can change here: see --copy and --writable"
# What a failed program printed -> what it means.
_FAILURES = (
    (r"bootstrapping phase", 'it starts processes outside of `if __name__ == "__main__":`'),
    (r"[Aa]ddress already in use", "it needs a port that is in use: its own earlier start, or another program"),
    (
        r"CUDA_ERROR_OUT_OF_MEMORY|CUDA out of memory|RESOURCE_EXHAUSTED|devices? (is|are) (busy|unavailable)",
        "the GPU has no memory for it: does another process hold the GPU?",
    ),
    ("'get_ipython' is not defined", "it was a notebook: take out its lines with get_ipython (% and ! commands)"),
    (r"^EOFError", "it reads its standard input, which is empty here: give it what it asks for as arguments"),
    (rf"{KEPT}: '(.*)'", "it changes {}: " + _CAN_CHANGE),
    (r"(/\S+); Permission denied", "it changes {}: " + _CAN_CHANGE),  # TensorFlow's
    (r"[Pp]ermission ?[Dd]enied|cannot be opened", "it changes a file that it must not: " + _CAN_CHANGE),
    (r"^usage: .*", "its arguments are not accepted"),
)


class ChildFailed(UnusableInput):
    """A child gave no result: why, in one line, and the last of its output.

    Attributes:
        code: its exit code, negative = the signal that ended it; None where it was still running, and was ended.
    """

    def __init__(self, reason: str, output: str = "", code: int | None = None):
        super().__init__(reason, output)
        self.code = code


@dataclass(frozen=True)
class Side:
    """A program and what is changed in it.

    Attributes:
        command: what starts it.
        change: for `hooks.Change`; {} = it runs as it is.
        environment: variables to set.
        patch: a file that is run before the program; "" = none.
        name: before what is said of it; "" = none.
    """

    command: Sequence[str]
    change: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    patch: str = ""
    name: str = ""


@dataclass(frozen=True)
class Timed:
    """Measurement of one child.

    Attributes:
        seconds, between_s: without warm-up: of steps, and between epochs, validation included.
        steps, epochs: done in it; 0 epochs = none was timed as a whole.
        losses: of the first steps, by their number.
        host_bytes, gpu_bytes: the most memory used; None = not known.
        set_up: what it computed with, by name.
        wall_s: of the child, its start and warm-up included.
    """

    seconds: float
    between_s: float
    steps: int
    epochs: int
    losses: dict[int, float]
    host_bytes: int | None
    gpu_bytes: int | None
    set_up: Mapping[str, str]
    wall_s: float

    @classmethod
    def of(cls, result: Mapping[str, Any], began_s: float) -> "Timed":
        """Return what a `meter.Meter` saved of a training that began at a time by `time.monotonic`."""
        losses = {int(step): loss for step, loss in result["losses"].items()}
        return cls(**{**result, "losses": losses, "wall_s": time.monotonic() - began_s})

    def ms(self, between: bool = False) -> float:
        """Return milliseconds a step, with its part of what passes between epochs if `between`."""
        return 1e3 * (self.seconds + between * self.between_s) / self.steps


class Children:
    """Starts children one after the other; a block, at whose end none is left.

    Args:
        steps, epochs, seconds: as in the plan of `meter.Meter`.
        copy: files of the working directory are copied for each child, not linked.
        writable: further folders that the program may change.

    Attributes:
        say: is called with each line for whoever waits for a child.
        hang_s: seconds without a step after which a child is ended.

    Raises: UnusableInput on systems without process groups (Windows).
    """

    def __init__(self, steps: int, seconds: float, epochs: int = 0, copy: bool = False, writable: Sequence[str] = ()):
        if not hasattr(os, "killpg"):
            raise UnusableInput("programs are tried on Linux and macOS: nothing else ends all that a program started")
        self._plan = {"steps": steps, "seconds": seconds, "epochs": epochs}
        self._copy, self._writable = copy, [Path(folder) for folder in writable]
        self._process: subprocess.Popen | None = None  # the running child
        self._base: Path | None = None  # folder of all children; their temporary files are in there
        self._folder: Path | None = None  # of the running child: its plan, output and result
        self.say: Callable[[str], None] = lambda text: None
        self.hang_s = HANG_S
        self._handlers = contextlib.ExitStack()  # puts the signals' handlers before the block back

    def __enter__(self) -> "Children":
        self._handlers.enter_context(_handled_by(signal.default_int_handler))
        self._base = Path(tempfile.mkdtemp(prefix="gpu-try-")).resolve()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._end(self._base)
        self._handlers.close()
        if kind is KeyboardInterrupt:
            print("\ngpu-util: interrupted: all that it started is ended, and removed", file=sys.stderr)

    def run(self, side: Side) -> Timed:
        """Run a side once, and return its times. Raises: ChildFailed, with the side's name in front of the reason.

        After a child that timed no whole epoch the others are not asked for one: they would not end it in time either.
        """
        began = time.monotonic()
        try:
            result = self._wait_for_result(self._start(side))
        except ChildFailed as error:
            raise ChildFailed(f"{side.name}: {error}".removeprefix(": "), error.output, error.code) from error
        finally:
            self._end()
        timed = Timed.of(result, began)
        if not timed.epochs:  # nor would the others' end in time
            self._plan["epochs"] = 0
        self.hang_s = min(self.hang_s, 60 + 5 * timed.wall_s)
        return timed

    def record(self, program: Sequence[str], log_dir: Path, seconds: float) -> None:
        """Record a program for some seconds of training, or to its end. Raises: ChildFailed.

        Args:
            program: a script, or `-m` and a module, and its arguments.
            log_dir: gets the recordings.
        """
        run = ["-m", "gpu_util_callback", "run", "--quiet", "--log-dir", str(log_dir)]

        def is_recorded() -> bool:
            return any(log_dir.glob(RECORDINGS))

        try:
            output = self._start(Side(python([*run, *program])), {"record": str(log_dir), "until": seconds})
            process = self._wait_until(is_recorded, is_recorded, _CAN_BE_RECORDED)
            if not is_recorded():
                raise self._why_failed(output, _CAN_BE_RECORDED)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
            process.send_signal(signal.SIGINT)  # unless it ended
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(3 * _GRACE_S)
        finally:
            self._end()

    def _why_failed(self, output: Path, supported: str = _CAN_BE_TIMED) -> ChildFailed:
        """Return why the child has no result: the problem it reports, or what its exit code and last output mean.

        Args:
            supported: what kinds of programs could have had one.
        """
        assert self._folder is not None and self._process is not None
        result = self._folder / "result.json"
        if result.exists():  # its meter says what is wrong
            return ChildFailed(json.loads(result.read_text())["problem"], "", self._process.poll())
        code, shown = self._process.poll() or 0, tail(output)
        for pattern, meaning in _FAILURES:
            found = re.search(pattern, tail(output, 200), re.MULTILINE)
            if code and found:
                return ChildFailed(f"{meaning.format(*found.groups())} (exit code {code})", shown, code)
        if code in (-signal.SIGINT, 130):  # 130 = a shell's for the same
            return ChildFailed("it was interrupted", shown, code)
        if code == 0 and (self._folder / "claim").exists():  # a process had begun to train
            return ChildFailed("it ended, by os._exit or in the background, after too few steps", shown, code)
        if code == 0:
            return ChildFailed(f"it ended without a training step: {supported}", shown, code)
        return ChildFailed(f"it failed before it could be timed (exit code {code})", shown, code)

    def _start(self, side: Side, more: Mapping[str, Any] | None = None) -> Path:
        """Start a side in a working copy of its own; return the file that holds what it prints. Raises: ChildFailed.

        Args:
            more: further members of the plan: `record`, a folder that it may write into, and `until`, seconds.

        Raises: UnusableInput where nothing keeps it from changing files, and these are too many to copy unasked.
        """
        assert self._base is not None
        self._folder = folder = Path(tempfile.mkdtemp(dir=self._base))
        writable = working_copy.writable(self._base, Path((more or {}).get("record", self._base)), *self._writable)
        rules = working_copy.landlock_rules(writable)  # None = the kernel keeps nothing from being changed
        if rules is None and not self._copy and working_copy.folder_bytes() > working_copy.MOST_BYTES:
            raise UnusableInput("nothing here keeps programs from changing files (Linux 5.13 does): give --copy")
        where = working_copy.make(folder / "copy", self._copy or rules is None)
        site, output = folder / "site", folder / "output"
        site.mkdir()
        plan = {
            **self._plan,
            **(more or {}),
            "runner": os.getpid(),
            "change": dict(side.change),
            "patch": side.patch,
            "folder": str(folder),
            "writable": writable,
        }
        (folder / "plan.json").write_text(json.dumps(plan))
        package = str(Path(__file__).with_name("__init__.py"))
        text = _SITECUSTOMIZE.format(site=str(site), package=package, plan=str(folder / "plan.json"))
        (site / "sitecustomize.py").write_text(text)
        environment = {
            **os.environ,
            # Trackers of experiments write nothing and call nobody.
            **{name: value.format(folder=folder) for name, value in _OFFLINE.items()},
            **side.environment,
            "TMPDIR": str(self._base),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")])),
        }
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
        streams |= {"preexec_fn": rules and functools.partial(working_copy.restrict, rules), "start_new_session": True}
        program, *arguments = side.command
        self._is_python = Path(program).name.startswith("python")  # what another one starts may come to it later
        command = [program, *(argument.replace(f"{Path.cwd()}{os.sep}", f"{where}{os.sep}") for argument in arguments)]
        try:
            with output.open("wb") as file:
                self._process = subprocess.Popen(command, cwd=where, env=environment, stdout=file, **streams)
        except OSError as error:
            raise ChildFailed(f"{program} does not start: {error.strerror}") from error
        finally:
            if rules is not None:
                os.close(rules)
        return output

    def _wait_for_result(self, output: Path) -> dict[str, Any]:
        """Return what the child's meter saved (see `Timed`). Raises: ChildFailed."""
        result = output.with_name("result.json")
        self._wait_until(result.exists, output.with_name("claim").exists, _CAN_BE_TIMED)
        answer = json.loads(result.read_text()) if result.exists() else {}
        if "steps" in answer:
            return answer
        raise self._why_failed(output)

    def _wait_until(
        self, is_done: Callable[[], bool], has_begun: Callable[[], bool], supported: str
    ) -> subprocess.Popen:
        """Wait until something is done or the child ended; return the child. Raises: ChildFailed where it hangs.

        Args:
            has_begun: whether a training step was seen.
            supported: what kinds of programs have steps that can be seen.
        """
        assert self._process is not None and self._folder is not None
        until, quiet_until, bare_until = (time.monotonic() + s for s in (self.hang_s, QUIET_S, BARE_S))
        shown = functools.partial(tail, self._folder / "output")
        while not is_done() and self._process.poll() is None:
            if time.monotonic() > quiet_until and not has_begun():
                self.say(f"no training step so far, after {QUIET_S:.0f} s: {supported}. Ctrl+C ends it")
                self.say = lambda text: None  # once is enough
            if time.monotonic() > bare_until and self._is_python and not (self._folder / "framework").exists():
                raise ChildFailed(f"it imported no framework in {BARE_S:.0f} s: {supported}", shown())
            if time.monotonic() > until:
                steps = "it did no more steps" if has_begun() else f"it did no training step ({supported})"
                raise ChildFailed(f"{steps}, and was ended after {self.hang_s:.0f} s", shown())
            time.sleep(_POLL_S)
        return self._process

    def _end(self, folder: Path | None = None) -> None:
        """End the child with all that it started, and remove a folder with what it left.

        Args:
            folder: of all children; None = the child's own.

        Raises: KeyboardInterrupt for a Ctrl+C meanwhile, once all is removed.
        """
        presses: list[Any] = []  # of Ctrl+C, which wait until all is removed
        with _handled_by(lambda *signal_and_frame: presses.append(signal_and_frame)):
            if self._process is not None:
                _end_group(self._process)
                _end_escaped(f"{self._base}{os.sep}".encode())
                self._process = None
            removed = folder or self._folder
            if removed is not None:
                shutil.rmtree(removed, ignore_errors=True)
            self._folder = None
        if presses:
            raise KeyboardInterrupt


@contextlib.contextmanager
def _handled_by(handler: Any) -> Iterator[None]:
    """Handle what asks this process to end within a block: Ctrl+C, SIGTERM and a closed terminal, unless ignored."""
    replaced = {}
    with contextlib.suppress(ValueError):  # another thread, which no signal reaches
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                replaced[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before in replaced.items():
            signal.signal(number, before or signal.SIG_DFL)


def _end_group(process: subprocess.Popen) -> None:
    """Terminate a process group: SIGTERM, so that workers release what they share, then SIGKILL.

    Each has `_GRACE_S` seconds; `poll` takes the exit of the first process, which would count as a member until then.
    """
    for number, wait_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _GRACE_S)):
        until = time.monotonic() + wait_s
        while _signal_group(process.pid, number) and time.monotonic() < until:
            process.poll()
            time.sleep(_POLL_S)
    process.wait()


def _end_escaped(mark: bytes) -> None:
    """Kill what left the group, daemons: all processes with a mark in their environment (Linux)."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it ended, or is another user's
            if mark in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)


def _signal_group(group: int, number: int) -> bool:
    """Send a signal to the members of a group; return whether there are any."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def tail(output: Path, lines: int = _TAIL_LINES) -> str:
    """Return the last lines that a program printed."""
    text = output.read_text(errors="replace") if output.exists() else ""
    return printable("\n".join(text.replace("\r", "\n").rstrip().splitlines()[-lines:]))


def python(program: Sequence[str]) -> list[str]:
    """Return the command that runs a script or `-m MODULE` with this Python."""
    return [sys.executable, *program]
