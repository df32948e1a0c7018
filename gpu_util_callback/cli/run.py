"""`gpu-util run`: a program as Python runs it, with every training in it recorded."""

import argparse
import functools
import importlib.machinery
import io
import os
import pkgutil
import re
import runpy
import sys
import threading
import types
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any

from gpu_util_callback.trying.imports import put_first, spec_followed_by

USAGE = "gpu-util run [OPTIONS] SCRIPT [ARGS…] | gpu-util run [OPTIONS] -m MODULE [ARGS…]"
VALUED = {
    "--log-dir": "the TensorBoard run to record into (default: logs)",
    "--job": "a name that all workers of one job share, where it cannot be detected",
    "--trace": 'steps to profile: "auto", "off", or a range such as 100:105 (default: auto)',
}
NO_TRAINING = (
    "gpu-util run: no training was recorded. It records `fit` of Keras and the trainers of Hugging "
    "Face and Lightning, in this process. A loop of your own needs two lines: "
    "`with gpu_util_callback.GpuUtilMonitor() as monitor:` around it, and `for batch in monitor.batches(loader):`"
)


def split(argv: Sequence[str], valued: Container[str] = VALUED) -> tuple[list[str], list[str]]:
    """Return the options of a command, and the program with its own arguments.

    Args:
        valued: options that are followed by a value.
    """
    program_place = 0
    while program_place < len(argv) and argv[program_place].startswith("-") and argv[program_place] != "-m":
        program_place += 2 if argv[program_place] in valued else 1
    return list(argv[:program_place]), list(argv[program_place:])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = USAGE
    for option, text in VALUED.items():
        parser.add_argument(option, help=text)
    parser.add_argument("--redact", action="store_true", help="record no names of hosts, users and folders")
    parser.add_argument("--quiet", action="store_true", help="print no finding and no verdict")


def run(args: argparse.Namespace, program: Sequence[str]) -> int:
    """Run the program in this process, and record its trainings; return 2 where there is nothing to run.

    The program's own exit is an exception, as always; it reaches the interpreter.
    """
    problem = unusable(program)
    try:
        settings = {
            "log_dir": args.log_dir or "logs",
            "job": args.job,
            "trace": _trace_argument(args.trace),
            "redact": args.redact,
            "report": not args.quiet,
        }
    except ValueError:
        problem = f"--trace {args.trace}: give auto, off, or FIRST:STOP with FIRST < STOP"
    if problem:
        print(f"gpu-util run: {problem}", file=sys.stderr)
        return 2
    trainings = Trainings(settings)
    sys.meta_path.insert(0, trainings)
    try:
        _run(list(program))
    except BaseException as error:  # the traceback begins with the program's frames
        inner = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook = functools.partial(_show, sys.excepthook, inner)
        raise
    if not trainings.begun and not args.quiet:
        print(NO_TRAINING, file=sys.stderr)
    return 0


def _trace_argument(text: str | None) -> object:
    """Return `--trace` as the callback's argument: "auto", "off", or `first:stop` as a list of one range of steps.

    Raises:
        ValueError: it is none of these.
    """
    if text in (None, "auto", "off"):
        return text or "auto"
    first, stop = (int(step) for step in str(text).split(":"))
    if not 0 <= first < stop:
        raise ValueError(text)
    return [(first, stop)]


def unusable(program: Sequence[str], usage: str = USAGE) -> str | None:
    """Return why a program cannot be run, as a sentence; None where it can be tried."""
    if not program or (program[0] == "-m" and len(program) < 2):
        return f"nothing to run; usage: {usage}"
    path = Path(program[0])
    if path.suffix == ".ipynb":
        return f"{path} is a notebook: use GpuUtilCallback in it, or make a script of it: jupyter nbconvert --to script"
    if program[0] != "-m" and not path.exists():
        return f"there is no {path}: give the script itself, or -m and its module"
    if path.is_file() and (path.suffix == ".sh" or re.match(rb"#!.*\b(ba|da|z)?sh\b", path.read_bytes()[:99])):
        return f"{path} is a shell script: give the Python program that it starts, with its arguments"
    return None


# ---- the program --------------------------------------------------------------------------------


def _run(program: list[str]) -> None:
    """Run a program as Python does, in place of our own `__main__`.

    Args:
        program: a script, or a folder or archive with a `__main__`; or "-m" and a module; then its arguments.
    """
    main = sys.modules["__main__"] = types.ModuleType("__main__")  # so that the program does not see ours
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    if program[0] == "-m":  # a module
        sys.argv = ["-m", *program[2:]]
        _set_first_import_folder(str(Path.cwd()))
        runpy._run_module_as_main(program[1])  # type: ignore[attr-defined]
        return
    sys.argv = program
    path = os.path.abspath(program[0])  # noqa: PTH100 - `..` behind a link is kept, as Python does
    if pkgutil.get_importer(path) is not None:  # a folder or an archive
        _set_first_import_folder(path)
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
        return
    _set_first_import_folder(str(Path(path).resolve().parent))  # a script
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main.__dict__.update(__file__=path, __cached__=None, __loader__=loader)
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _set_first_import_folder(folder: str) -> None:
    """Put the program's folder where this command's own one is."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _show(
    hook: Callable[..., object], inner: types.TracebackType | None, kind: type, error: BaseException, _: object
) -> None:
    """Print an error as the program alone would have: without our frames around and within it.

    Args:
        hook: Python's own `sys.excepthook`, which prints.
        inner: the traceback from the program's first frame on.
    """
    chain: list[BaseException | None] = [error.with_traceback(inner)]
    shown: set[int] = set()
    while chain:
        link = chain.pop()
        if link is None or id(link) in shown:
            continue
        shown.add(id(link))
        link.with_traceback(_without_own_frames(link.__traceback__))
        chain += [link.__cause__, link.__context__]
    hook(kind, error, error.__traceback__)


def _without_own_frames(first: types.TracebackType | None) -> types.TracebackType | None:
    """Return a traceback without the frames of this package; None if nothing is left."""
    frames = []
    while first is not None:
        if not first.tb_frame.f_globals.get("__name__", "").startswith("gpu_util_callback."):
            frames.append(first)
        first = first.tb_next
    rest = None
    for frame in reversed(frames):
        frame.tb_next = rest
        rest = frame
    return rest


# ---- its trainings ------------------------------------------------------------------------------


class Trainings:
    """A finder of modules that has each training recorded, once the program imports its library.

    Args:
        settings: keyword arguments for `GpuUtilCallback` and the callbacks of other trainers.
    """

    def __init__(self, settings: dict[str, Any]):
        self.begun = False
        self._settings = settings
        self._of_thread = threading.local()  # a callback for each thread's fits
        self._hooks: dict[str, Callable[[types.ModuleType], None]] = {  # module -> what to do once it is imported
            "keras.src.callbacks.callback_list": self._watch_keras,
            "tf_keras.src.callbacks": self._watch_keras,
            "transformers.trainer_callback": lambda module: self._before(
                module.CallbackHandler, "on_train_begin", self._add_to_trainer
            ),
            "lightning.pytorch.trainer.trainer": self._watch_lightning,
            "pytorch_lightning.trainer.trainer": self._watch_lightning,
            # Of the program's own callbacks and monitors, which need nothing more than to be seen.
            "gpu_util_callback.recorder.recorder": lambda module: self._before(module.Recorder, "start", id),
        }

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find a trainer's module as the other finders do, to be watched once it is imported.

        None for other modules.
        """
        hook = self._hooks.get(name)
        if hook is None:
            return None

        def watch(module: types.ModuleType) -> None:
            if self._hooks.pop(name, None) is not None:
                self._guarded(hook, module)

        return spec_followed_by(watch, self, name, path, target)

    def _guarded(self, action: Callable[..., object], *args: object) -> None:
        """Call a function of ours; its error is printed, and the program goes on."""
        try:
            action(*args)
        except Exception as error:  # a library whose internals moved, or one that is missing
            from gpu_util_callback.recorder.messages import note
            from gpu_util_callback.redaction import error_text

            note(f"`gpu-util run` does not record this training: {error_text(error)}")

    def _before(self, owner: type, method: str, action: Callable[[object], object]) -> None:
        """Replace a method of a class so that `action` is called with the instance first."""
        original = getattr(owner, method)

        @functools.wraps(original)
        def first(instance: object, *args: object, **kwargs: object) -> object:
            self._guarded(self._begin)
            self._guarded(action, instance)
            return original(instance, *args, **kwargs)

        setattr(owner, method, first)

    def _begin(self) -> None:
        """Note that a training was found; stdout is left to the program from here on."""
        from gpu_util_callback.recorder.messages import leave_stdout_alone

        self.begun = True
        leave_stdout_alone()

    def _watch_keras(self, module: types.ModuleType) -> None:
        self._before(module.CallbackList, "on_train_begin", self._add_to_fit)

    def _add_to_fit(self, callbacks: Any) -> None:
        """Add this thread's callback to a fit that has none of ours."""
        from gpu_util_callback.callback import GpuUtilCallback

        if any(isinstance(callback, GpuUtilCallback) for callback in callbacks.callbacks):
            return
        callback = getattr(self._of_thread, "callback", None)
        if callback is None:
            callback = self._of_thread.callback = GpuUtilCallback(**self._settings)
        put_first(callbacks, callback)

    def _watch_lightning(self, module: types.ModuleType) -> None:
        self._before(module.Trainer, "fit", self._add_to_trainer)

    def _add_to_trainer(self, owner: Any) -> None:
        """Add our callback to a trainer that has none of ours."""
        from gpu_util_callback.trainers import TrainerHooks, lightning_callback, trainer_callback

        if any(isinstance(callback, TrainerHooks) for callback in owner.callbacks):
            return
        owner.callbacks.append((lightning_callback if hasattr(owner, "fit") else trainer_callback)(**self._settings))
