"""Real TensorBoard processes for tests, from a virtual environment without TensorFlow.

The environment is made once in `.venv-tensorboard` of the checkout (git-ignored) with the versions
that the tests themselves run with, and made again when those change. Our package is on its path
as it lies in the checkout, with the entry point that an installation would have.
"""

import atexit
import fcntl
import gzip
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from importlib.metadata import version
from pathlib import Path

import fork_server

REPOSITORY = Path(__file__).resolve().parents[2]
SHED = REPOSITORY / ".venv-tensorboard"
HOME = SHED / "env"
# setuptools: TensorBoard before 2.21 imports its pkg_resources.
PACKAGES = ("tensorboard", "setuptools", "numpy", "protobuf", "fsspec", "werkzeug")
IMPORTED = ("tensorboard.main", "tensorboard.data.grpc_provider", "tensorboard_plugin.plugin", "compressed_page")
ENTRY_POINTS = (
    "[console_scripts]\ngpu-util = gpu_util_callback.cli:main\n\n"
    "[tensorboard_plugins]\ngpu_utilization = tensorboard_plugin.loader:Loader\n"
)


def python_without_tensorflow() -> Path:
    """The interpreter of the environment, which is made if need be.

    Raises: RuntimeError with pip's own words when it cannot be made.
    """
    python = HOME / "bin" / "python"
    wanted = "\n".join(f"{name}=={version(name)}" for name in PACKAGES)
    made_of = HOME / "made-of.txt"
    SHED.mkdir(exist_ok=True)
    with (SHED / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test runs may want it at once
        if made_of.is_file() and made_of.read_text() == wanted and python.exists():
            return python
        shutil.rmtree(HOME, ignore_errors=True)
        _run([sys.executable, "-m", "venv", "--without-pip", str(HOME)])
        pip = [sys.executable, "-m", "pip", "--python", str(python)]
        _run([*pip, "install", "-q", "--disable-pip-version-check", *wanted.split("\n")])
        site = next((HOME / "lib").glob("python*/site-packages"))
        (site / "gpu_util_callback_checkout.pth").write_text(f"{REPOSITORY}\n")
        info = site / "gpu_util_callback-0.checkout.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gpu-util-callback\nVersion: 0+checkout\n")
        (info / "entry_points.txt").write_text(ENTRY_POINTS)
        for absent in ("tensorflow", "keras", "pynvml"):
            if (site / absent).exists():
                raise RuntimeError(f"{absent} got into {HOME}, which must be without it")
        made_of.write_text(wanted)
        return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} …: {done.stdout}{done.stderr}")


class TensorBoardServer:
    """One TensorBoard on loopback.

    Args:
        logdir: as for `--logdir`; None with `logdir_spec`.
        load_fast: True: the data server, False: the Python reader.
        path_prefix: e.g. "/tb/x".
        logdir_spec: as for `--logdir_spec`, e.g. "a:/logs/a,b:/logs/b".
        env: additional environment variables.
        python: interpreter of another environment, such as one with TensorFlow and the Profile tab.
        forked: from a process that has imported TensorBoard and our plugin, where `python` is not said.

    Attributes:
        url: where it serves, path prefix included, without a slash at the end.
    """

    def __init__(
        self, logdir, load_fast, path_prefix=None, logdir_spec=None, env=None, cwd=None, python=None, forked=True
    ):
        interpreter = str(python or python_without_tensorflow())
        begin = [interpreter]
        if forked and not python:
            begin = fork_server.python(*IMPORTED, interpreter=interpreter)
        command = [*begin, "-m", "tensorboard.main", "--host", "127.0.0.1", "--port", "0", "--reload_interval", "1"]
        if logdir_spec is not None:
            command += ["--logdir_spec", logdir_spec]
        else:
            command += ["--logdir", str(logdir), "--load_fast", "true" if load_fast else "false"]
        if path_prefix:
            command += ["--path_prefix", path_prefix]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        environment.update(PYTHONNOUSERSITE="1", PYTHONUNBUFFERED="1", **(env or {}))
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=cwd or Path(interpreter).parent,
        )
        self._lines: list[str] = []
        self._found = threading.Event()
        self.url = ""
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        if not self._found.wait(60) or not self.url:
            self.stop()
            raise RuntimeError("TensorBoard did not start:\n" + self.log)

    def _watch(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)
            found = re.search(r"TensorBoard \S+ at (http://\S+?)/? ", line)
            if found:
                self.url = found.group(1)
                self._found.set()
        self._found.set()

    @property
    def log(self) -> str:
        """What it printed so far."""
        return "".join(self._lines)

    def get(self, path: str, timeout: float = 30) -> tuple[int, dict[str, str], bytes]:
        """(status, headers in lower case, body unzipped) of `<url>/<path>`; errors are answers."""
        request = urllib.request.Request(f"{self.url}/{path}", headers={"Accept-Encoding": "gzip"})
        try:
            answer = urllib.request.urlopen(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            headers = {name.lower(): value for name, value in answer.headers.items()}
            body = answer.read()
            if headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            return answer.status, headers, body

    def wait_for(self, condition, timeout: float = 30):
        """Call `condition()` until it returns something true, and return that."""
        end = time.monotonic() + timeout
        while True:
            result = condition()
            if result or time.monotonic() > end:
                return result
            time.sleep(0.1)

    def stop(self) -> None:
        """End it, and its data server, which ends with its input."""
        self._process.kill()
        self._process.wait(10)
        self._watcher.join(10)  # until nobody has its output any more
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> "TensorBoardServer":
        return self

    def __exit__(self, *error) -> None:
        self.stop()


def tensorboard_factory():
    """The body of a fixture: yields `start_tensorboard(logdir, load_fast, …) -> server`.

    In a conftest.py:

        @pytest.fixture
        def start_tensorboard():
            yield from tensorboard_factory()

    Every server started is stopped at the end; `server.url` is where it serves.
    """
    servers: list[TensorBoardServer] = []

    def start(logdir=None, load_fast=True, path_prefix=None, logdir_spec=None, **options):
        server = TensorBoardServer(logdir, load_fast, path_prefix, logdir_spec, **options)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()


def start_tensorboard(logdir=None, load_fast=True, path_prefix=None, logdir_spec=None, **options):
    """Start a TensorBoard that lives until this process ends; returns its URL."""
    server = TensorBoardServer(logdir, load_fast, path_prefix, logdir_spec, **options)
    atexit.register(server.stop)
    return server.url
