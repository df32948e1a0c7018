"""Start programs that find their framework imported: each is forked from a process that did it once.

    subprocess.run([*python("keras"), "train.py", "--epochs", "2"], env=...)

runs the program as `python train.py --epochs 2` would, in a process of its own, without the seconds
that each import of TensorFlow, JAX or PyTorch takes. Of Python's own options, `-c` and `-m` work.
`python("tensorflow", "-keras")` forgets Keras again, which TensorFlow imports: the program imports it.
With `?tensorflow` TensorFlow is imported and put aside: for a program that imports it, it is there at once.

Three processes: the caller's child, which `subprocess` starts, hands its files, folder and variables
to the server and waits; the server, one for each framework and settings that an import reads, forks;
the fork runs the program. It ends where the caller's child is killed, and the servers with pytest, or
with the process that FORK_SERVERS_OF names: `make test`, for both of its parts.
"""

from __future__ import annotations

import builtins
import contextlib
import fcntl
import gc
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import CodeType, ModuleType

# What frameworks read while they are imported.
READ_AT_IMPORT = ("KERAS_", "JAX_", "XLA_", "OMP_", "LD_", "TF_USE", "PYTHONHASH", "PYTHONIO", "PYTHONUTF")
IDLE_S = 900  # those of the first part of `make test` are there in the second
# What our package imports once a training is recorded: half a second of CPU time.
IMPORTED_LATE = "tensorboard.summary", "pynvml"


def python(*modules: str, interpreter: str = sys.executable) -> list[str]:
    """The start of a command: Python with these modules imported, else a plain one."""
    if not hasattr(os, "pidfd_open") or Path("/dev/nvidiactl").exists():  # CUDA survives no fork
        return [interpreter]
    worker = "PYTEST_XDIST_WORKER" in os.environ
    owner = os.environ.get("FORK_SERVERS_OF") or str(os.getppid() if worker else os.getpid())
    return [interpreter, "-I", "-S", __file__, owner, ",".join(modules)]


# ---- the caller's child --------------------------------------------------------------------------


def ask(owner: str, modules: str, command: list[str]) -> int:
    """The exit status of a command that the server runs."""
    signals = [signal.SIGINT, signal.SIGTERM]
    ignored = [number for number in signals if signal.getsignal(number) == signal.SIG_IGN]
    request = {"command": command, "environment": dict(os.environ), "folder": str(Path.cwd()), "ignored": ignored}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    for _ in range(3):
        connection = _connected(owner, modules)
        with contextlib.suppress(ConnectionError):  # it was idle for too long: the next one
            socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
            if connection.recv(100) == b"started":
                break
        connection.close()
    else:
        sys.exit(f"the server for {modules} starts no program")
    for number in signals:
        if number not in ignored:
            signal.signal(number, lambda number, _: connection.send(str(number).encode()))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    return int(connection.recv(100) or -signal.SIGKILL)


def _connected(owner: str, modules: str) -> socket.socket:
    read = {name: value for name, value in os.environ.items() if name.startswith(READ_AT_IMPORT)}
    if modules == "tensorflow":  # which imports Keras, too
        modules = "keras"
        read["KERAS_BACKEND"] = "tensorflow"
    read["KERAS_BACKEND"] = read.get("KERAS_BACKEND", "tensorflow") if modules == "keras" else ""
    if modules == "keras" and read["KERAS_BACKEND"] != "tensorflow":  # `set_random_seed` imports it
        modules += ",?tensorflow"
    read["JAX_PLATFORMS"] = "cpu"  # without a GPU there is no other
    read["OMP_NUM_THREADS"] = "1"  # tests share two cores; threads of a pool would not be in the fork
    key = hashlib.sha256(json.dumps([sys.executable, modules, sorted(read.items())]).encode()).hexdigest()[:12]
    path = Path(f"/tmp/fork-servers-{os.getuid()}-{owner}", key)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(str(path))
        except OSError:
            _start(path, owner, modules)
            connection.connect(str(path))
    return connection


def _start(path: Path, owner: str, modules: str) -> None:
    path.unlink(missing_ok=True)
    here = str(Path(__file__).resolve().parent)
    code = f"import sys; sys.path.insert(0, {here!r}); import fork_server; exec(fork_server.serve(*sys.argv[1:]))"
    server = subprocess.Popen(
        [sys.executable, "-c", code, str(path), owner, modules],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert server.stdout is not None
    if server.stdout.read(5) != b"ready":
        sys.exit(f"no server for {modules}: {server.wait()}")


# ---- the server ----------------------------------------------------------------------------------


class PutAside(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A package that is imported, and that no program sees before it imports it."""

    def __init__(self, package: str):
        self.spec = sys.modules[package].__spec__
        self.modules = forgotten(package)

    def find_spec(self, name, path=None, target=None):
        if self.spec is None or name != self.spec.name:
            return None
        spec = importlib.machinery.ModuleSpec(name, self, origin=self.spec.origin, is_package=True)
        spec.submodule_search_locations = self.spec.submodule_search_locations
        return spec

    def create_module(self, spec):
        sys.meta_path.remove(self)
        sys.modules.update(self.modules)
        return self.modules[spec.name]

    def exec_module(self, module) -> None:
        module.__spec__ = self.spec


def forgotten(package: str) -> dict[str, ModuleType]:
    """The modules of a package, which are no longer known as imported."""
    return {name: sys.modules.pop(name) for name in [*sys.modules] if f"{name}.".startswith(f"{package}.")}


def imported(modules: str) -> None:
    """Import what `python` names, and what comes late in every program."""
    names = [name for name in modules.split(",") if name]
    for name in names:
        if name.startswith("-"):
            forgotten(name[1:])
        else:
            with contextlib.suppress(ImportError) if name.startswith("?") else contextlib.nullcontext():
                importlib.import_module(name.removeprefix("?"))
    for name in IMPORTED_LATE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    sys.meta_path[:0] = [PutAside(name[1:]) for name in names if name.startswith("?") and name[1:] in sys.modules]


def serve(path: str, owner: str, modules: str) -> CodeType:
    """Fork programs until pytest ends; what is returned, in a fork, is the program."""
    imported(modules)
    gc.collect()
    gc.freeze()  # each collection in a fork, the last one above all, would copy the pages of all that was imported
    selector = selectors.DefaultSelector()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen()
    selector.register(listener, selectors.EVENT_READ)
    alive = os.pidfd_open(int(owner))
    selector.register(alive, selectors.EVENT_READ)
    running: dict[int, tuple[int, socket.socket]] = {}  # by a program's pidfd
    os.write(1, b"ready")
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)
    while True:
        events = selector.select(None if running else IDLE_S)
        if not events:
            Path(path).unlink()
            os._exit(0)
        if any(key.fd == alive for key, _ in events):
            for pid, _ in running.values():
                os.kill(pid, signal.SIGKILL)
            shutil.rmtree(Path(path).parent, ignore_errors=True)
            os._exit(0)
        key = events[0][0]
        if key.fileobj is listener:
            connection, _ = listener.accept()
            message, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
            pid = os.fork()
            if not pid:
                for each in [*selector.get_map().values()]:
                    os.close(each.fileobj.detach() if isinstance(each.fileobj, socket.socket) else each.fd)
                for file in (connection.detach(), devnull):
                    os.close(file)
                selector.close()
                return _program(files, **json.loads(message))
            for file in files:
                os.close(file)
            watched = os.pidfd_open(pid)
            running[watched] = pid, connection
            selector.register(watched, selectors.EVENT_READ)
            selector.register(connection, selectors.EVENT_READ, watched)
            with contextlib.suppress(OSError):
                connection.send(b"started")
        elif key.fd in running:
            _report_end(selector, key.fd, *running.pop(key.fd))
        else:
            _pass_signal_on(selector, *running[key.data])


def _report_end(selector: selectors.BaseSelector, watched: int, pid: int, connection: socket.socket) -> None:
    """Send a program's exit status to its caller, and forget it."""
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):
        connection.send(str(status).encode())
    with contextlib.suppress(KeyError):  # its caller is gone
        selector.unregister(connection)
    selector.unregister(watched)
    connection.close()
    os.close(watched)


def _pass_signal_on(selector: selectors.BaseSelector, pid: int, connection: socket.socket) -> None:
    """Send a program the signal that its caller asks for; kill it where the caller is gone."""
    number = b""
    with contextlib.suppress(OSError):
        number = connection.recv(100)
    os.kill(pid, int(number or signal.SIGKILL))
    if not number:
        selector.unregister(connection)


# ---- the program ---------------------------------------------------------------------------------


def _program(
    files: list[int], command: list[str], environment: dict[str, str], folder: str, ignored: list[int]
) -> CodeType:
    """Put in place what `python` followed by a command begins with."""
    signal.signal(signal.SIGINT, signal.SIG_IGN if signal.SIGINT in ignored else signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if signal.SIGTERM in ignored else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # blocked while the caller's child began
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    tempfile.tempdir = None
    own_path = sys.path[2:]  # after this file's folder and that of `-c`
    sys.orig_argv = [sys.executable, *command]
    main = vars(sys.modules["__main__"])
    main.clear()
    main.update(__name__="__main__", __builtins__=builtins, __doc__=None, __package__=None, __spec__=None)
    main["__loader__"] = importlib.machinery.BuiltinImporter
    sys.argv, first = command, ""
    if command[0] == "-c":
        text, name = command[1].encode(), "<string>"
        sys.argv = ["-c", *command[2:]]
    elif command[0] == "-m":
        text, name = f"import runpy; runpy._run_module_as_main({command[1]!r})".encode(), "<string>"
        sys.argv, first = ["-m", *command[2:]], folder
    else:
        name = str(Path(command[0]).absolute())
        text = Path(name).read_bytes()
        first = str(Path(name).parent)
        main.update(__file__=name, __cached__=None)
        main["__loader__"] = importlib.machinery.SourceFileLoader("__main__", name)
    given_path = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:] = [first, *given_path, *own_path]
    if any(Path(part, "sitecustomize.py").exists() for part in given_path):
        _customize()
    return compile(text, name, "exec", dont_inherit=True)


def _customize() -> None:
    """Run `sitecustomize`, as Python does; what it changes in modules as they are imported, in those that are."""
    sys.modules.pop("sitecustomize", None)
    importlib.import_module("sitecustomize")
    for finder in [*sys.meta_path]:
        actions = getattr(finder, "actions", {})  # of the children of `gpu-util try`, by module
        for module in [name for name in actions if name in sys.modules]:
            actions.pop(module)(sys.modules[module])


if __name__ == "__main__":
    ended = ask(sys.argv[1], sys.argv[2], sys.argv[3:])
    if ended < 0:
        if -ended != signal.SIGKILL:
            signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    sys.exit(ended)
