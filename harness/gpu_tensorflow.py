"""TensorFlow on a GPU machine that is reached by small transfers alone, and has another CUDA: does it run?

    python harness/gpu_tensorflow.py cut pieces             # here: pieces/00 … pieces/NN, none above 48 MiB
    python harness/gpu_tensorflow.py take pieces/00         # there, once for each piece, in any order
    python harness/gpu_tensorflow.py run                    # there, when all are taken: joins, links, trains, measures

Where a machine takes all pieces at once, `run pieces/*` is the whole of it. A machine with a registry of packages
needs none of this: `pip install "tensorflow[and-cuda]"`, then `demo/gpu_evidence.py --backend tensorflow`.

`cut` downloads TensorFlow's wheel and what it needs, for the Python of that machine, leaves headers out, and compresses
the rest with xz in chunks of 32 MiB, which `take` restores side by side. `run` unpacks them, and gives the loader a
folder in which the names of CUDA 12's libraries that TensorFlow opens are links to this machine's own, of whatever
version they are: the runtime and CUPTI come along, cuDNN 9 is this machine's. That may fail, and the first thing
measured is whether it does. Six minutes after the first `take` it gives up, unless TensorFlow has computed by then.

Printed, and kept as `results.json`: versions, the driver, which libraries were linked; products, a convolution and a
compiled function on the GPU; two trainings with forty profiler windows each, one of them beside a thread that copies
to the GPU (on JAX stopping a window destroyed trainings): do they end, with a finite loss, and with how many windows;
their steps, waits and kernel time; then `demo/gpu_evidence.py --backend tensorflow`, and that with `--costs`.

Exit code: 0 = measured, 1 = TensorFlow does not run here, 2 = pieces are missing or damaged, 3 = given up.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

ROOT = Path(__file__).resolve().parents[1]
CHUNK = 32 << 20  # bytes of the archive that are compressed by themselves
WANTED = ["tensorflow==2.21.0", "keras", "nvidia-cuda-runtime-cu12", "nvidia-cuda-cupti-cu12"]
WANTED += ["nvidia-ml-py", "psutil", "fsspec", "tensorboard"]  # what the recorder itself needs
LEFT_OUT = re.compile(r"(tensorflow|nvidia/[^/]+|numpy/_core|google/protobuf)/include/|.*\.(a|h|hpp|pyi)$")
NOT_NEEDED = ("libclang", "pip")  # at run time
# What TensorFlow opens by name; the first two come along.
LIBRARIES = ("libcudart.so.12", "libcupti.so.12", "libcublas.so.12", "libcublasLt.so.12", "libcufft.so.11")
LIBRARIES += ("libcusolver.so.11", "libcusparse.so.12", "libcudnn.so.9", "libnccl.so.2")
FILTERS = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 6}]


class Failed(Exception):
    """Ends the script with a line and an exit code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


# -- cut --------------------------------------------------------------------------------------------


def download(wheels: Path, python: str) -> None:
    """Wheels of `WANTED` and what they need, for x86-64 Linux and that version of Python."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(28, 16, -1)]
    platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--dest", str(wheels)]
    command += ["--python-version", python, "--implementation", "cp"]
    command += [word for platform in platforms for word in ("--platform", platform)]
    subprocess.run([*command, *WANTED], check=True)


class Chunks:
    """Cuts what is written to it into chunks, each compressed on a thread and written as `NNNN.xz`."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.folder = folder
        self.made: list[Future] = []
        self._room = bytearray()
        self._pool = ThreadPoolExecutor(threads)
        self._threads = threads

    def write(self, data: bytes) -> int:
        self._room += data
        while len(self._room) >= CHUNK:
            self._compress(bytes(self._room[:CHUNK]))
            del self._room[:CHUNK]
        return len(data)

    def _compress(self, raw: bytes) -> None:
        if len(self.made) > self._threads:  # a few chunks wait in memory, not all
            self.made[-self._threads - 1].result()
        self.made.append(self._pool.submit(self._one, len(self.made), raw))

    def _one(self, number: int, raw: bytes) -> dict[str, Any]:
        packed = lzma.compress(raw, format=lzma.FORMAT_XZ, filters=FILTERS)
        (self.folder / f"{number:04}.xz").write_bytes(packed)
        return {"chunk": number, "bytes": len(packed), "raw": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}

    def close(self) -> list[dict[str, Any]]:
        if self._room:
            self._compress(bytes(self._room))
        with self._pool:
            return [future.result() for future in self.made]


def members(wheels: Iterable[Path]) -> Iterator[tuple[str, int, int, BinaryIO]]:
    """Each file of the wheels as it is installed, headers left out: name, size, mode, content."""
    for wheel in sorted(wheels):
        if wheel.name.startswith(NOT_NEEDED):
            continue
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                name = re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", entry.filename)
                if entry.is_dir() or ".data/" in name or LEFT_OUT.match(name):
                    continue
                with archive.open(entry) as content:
                    yield name, entry.file_size, entry.external_attr >> 16 & 0o777 or 0o644, content


def cut(out: Path, wheels: Path, most: int, threads: int) -> list[Path]:
    """Pieces of at most `most` bytes, as folders in `out`; each lists all chunks there are."""
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        chunks = Chunks(Path(scratch), threads)
        with tarfile.open(fileobj=chunks, mode="w|", format=tarfile.PAX_FORMAT, bufsize=1 << 20) as archive:  # type: ignore[call-overload]
            for name, size, mode, content in members(wheels.glob("*.whl")):
                info = tarfile.TarInfo(name)
                info.size, info.mode = size, mode
                archive.addfile(info, content)
        made = chunks.close()
        if len(made) == 1 and not any(wheels.glob("*.whl")):
            raise Failed(2, f"there are no wheels in {wheels}")
        listed = json.dumps({"chunk_bytes": CHUNK, "chunks": made}, indent=1)
        pieces: list[Path] = []
        room = 0
        for one in made:
            if one["bytes"] > room:
                pieces.append(out / f"{len(pieces):02}")
                pieces[-1].mkdir()
                (pieces[-1] / "chunks.json").write_text(listed)
                room = most - len(listed)
            if one["bytes"] > room:
                raise Failed(2, f"a chunk of {one['bytes']:,} bytes is larger than a piece may be")
            room -= one["bytes"]
            shutil.move(f"{scratch}/{one['chunk']:04}.xz", pieces[-1])
    return pieces


# -- take and join ------------------------------------------------------------------------------------


def take(pieces: Iterable[Path], into: Path) -> None:
    """Restore the chunks of these pieces at their place in the archive."""
    into.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError), (into / "began").open("x") as file:
        file.write(str(time.time()))
    archive = into / "site.tar"
    archive.touch()

    def restore(one: dict[str, Any], packed: Path, size: int) -> None:
        raw = lzma.decompress(packed.read_bytes())
        if hashlib.sha256(raw).hexdigest() != one["sha256"]:
            raise Failed(2, f"{packed} is damaged")
        with archive.open("r+b") as file:
            file.seek(one["chunk"] * size)
            file.write(raw)
        (into / f"{one['chunk']:04}.taken").touch()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        waiting = []
        for piece in pieces:
            listed = (piece / "chunks.json").read_text()
            (into / "chunks.json").write_text(listed)
            known = json.loads(listed)
            for one in known["chunks"]:
                packed = piece / f"{one['chunk']:04}.xz"
                if packed.exists():
                    waiting.append(pool.submit(restore, one, packed, known["chunk_bytes"]))
        try:
            for future in waiting:
                future.result()
        except (lzma.LZMAError, EOFError) as error:
            raise Failed(2, f"a piece is damaged: {error}") from error


def missing(into: Path) -> list[int]:
    """The chunks that no `take` has restored yet."""
    listed = into / "chunks.json"
    if not listed.exists():
        raise Failed(2, f"no piece was taken into {into}")
    return [
        one["chunk"]
        for one in json.loads(listed.read_text())["chunks"]
        if not (into / f"{one['chunk']:04}.taken").exists()
    ]


def join(into: Path) -> Path:
    """Unpack the archive, once; the folder for PYTHONPATH."""
    site = into / "site"
    if site.exists():
        return site
    lacking = missing(into)
    if lacking:
        raise Failed(2, f"{len(lacking)} chunks are missing: {', '.join(map(str, lacking))}")
    half = into / "site.part"
    shutil.rmtree(half, ignore_errors=True)
    with tarfile.open(into / "site.tar") as archive:
        archive.extractall(half, filter="data")
    half.rename(site)
    (into / "site.tar").unlink()
    return site


# -- link -------------------------------------------------------------------------------------------


def library_folders() -> list[Path]:
    """Where this machine may have CUDA's libraries: Python's packages, CUDA's own folders, the loader's."""
    patterns = [(Path(entry or "."), "nvidia/*/lib") for entry in sys.path]
    patterns += [(Path("/usr/local"), "cuda*/lib64"), (Path("/usr/local"), "cuda*/targets/*/lib")]
    folders = [folder for base, pattern in patterns for folder in sorted(base.glob(pattern), reverse=True)]
    with contextlib.suppress(OSError):
        known = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout
        folders += [Path(path).parent for path in re.findall(r"=> (/\S+)", known)]
    return list(dict.fromkeys(folder for folder in folders if folder.is_dir()))


def candidates(name: str, folders: Iterable[Path]) -> list[Path]:
    """Files that may stand for a library: of its very name first, then of other versions, newest first."""
    base = name.partition(".so")[0]
    found: list[tuple[bool, int, Path]] = []
    for folder in folders:
        for path in folder.glob(f"{base}.so.*"):
            version = path.name.removeprefix(f"{base}.so.")
            if version.isdigit():
                found.append((path.name != name, -int(version), path))
    return [path for _, _, path in sorted(found, key=lambda one: one[:2])]


def link(into: Path, site: Path, folders: Iterable[Path] | None = None) -> dict[str, str | None]:
    """Fill `into`/lib with the names that TensorFlow opens: name -> the file it stands for; None = there is none."""
    lib = into / "lib"
    shutil.rmtree(lib, ignore_errors=True)
    lib.mkdir(parents=True)
    own = sorted(site.glob("nvidia/*/lib"))
    searched = [*own, *(library_folders() if folders is None else folders)]
    linked: dict[str, str | None] = {}
    for name in LIBRARIES:
        path = next(iter(candidates(name, searched)), None)
        linked[name] = str(path) if path else None
        if path:
            (lib / name).symlink_to(path.resolve())
    return linked


def environment(into: Path, site: Path, linked: dict[str, str | None]) -> dict[str, str]:
    """For a Python that is to import TensorFlow from the joined folder."""
    # What a library of CUDA opens itself, by its own version's names, lies beside it.
    beside = [str(Path(path).parent) for path in linked.values() if path]
    environ = dict(os.environ)
    parts = [str(into / "lib"), *dict.fromkeys(beside), environ.get("LD_LIBRARY_PATH", "")]
    environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, parts))
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(site), str(ROOT), environ.get("PYTHONPATH", "")]))
    environ["KERAS_BACKEND"] = "tensorflow"
    cuda = next((path.parents[2] for path in Path("/usr/local").glob("cuda*/nvvm/libdevice/*.bc")), None)
    if cuda:  # XLA's compiler for the GPU needs NVIDIA's library of device functions
        environ["XLA_FLAGS"] = f"{environ.get('XLA_FLAGS', '')} --xla_gpu_cuda_data_dir={cuda}".strip()
    return environ


# -- run --------------------------------------------------------------------------------------------


def child(name: str, environ: dict[str, str], limit_s: float, into: Path) -> dict[str, Any]:
    """What `CHILDREN[name]` found in a process of its own; how it ended, where that was no good end."""
    answer = into / f"{name}.json"
    answer.unlink(missing_ok=True)
    command = [sys.executable, __file__, "child", name, "--into", str(into)]
    with (into / f"{name}.log").open("w+") as log:
        try:
            ended: int | str = subprocess.run(
                command, env=environ, stdout=log, stderr=subprocess.STDOUT, timeout=max(1.0, limit_s), cwd=into
            ).returncode
        except subprocess.TimeoutExpired:
            ended = f"ended after {limit_s:.0f} s"
        log.seek(0)
        tail = [line[:300] for line in log.read().splitlines() if line.strip()][-8:]
    found = json.loads(answer.read_text()) if answer.exists() else {}
    return found if ended == 0 and found else {**found, "ended": ended, "log": tail}


def computes() -> Iterator[dict[str, Any]]:
    """Whether TensorFlow computes on the GPU: each part by itself, and why not."""
    import keras
    import numpy as np
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    found: dict[str, Any] = {"tensorflow": tf.__version__, "keras": keras.__version__, "numpy": np.__version__}
    found |= {"python": sys.version.split()[0], "from": tf.__file__, "gpus": len(gpus)}
    found["build"] = {name: str(value) for name, value in tf.sysconfig.get_build_info().items()}
    yield found
    if not gpus:
        return
    found["device"] = {name: str(value) for name, value in tf.config.experimental.get_device_details(gpus[0]).items()}
    x = np.random.default_rng(1).standard_normal((512, 512)).astype("float32")
    image, kernel = x[:64, :64].reshape(1, 64, 64, 1), x[:3, :3].reshape(3, 3, 1, 1)
    compiled = tf.function(lambda y: tf.nn.relu(y @ y) + 1, jit_compile=True)
    parts = {
        "product (cuBLAS)": (lambda: tf.matmul(x, x), x @ x),
        "convolution (cuDNN)": (
            lambda: tf.nn.conv2d(image, kernel, 1, "VALID")[0, 0, 0, 0],
            (image[0, :3, :3, 0] * kernel[..., 0, 0]).sum(),
        ),
        "Fourier transform (cuFFT)": (lambda: tf.signal.rfft(x[0]), np.fft.rfft(x[0])),
        "inverse (cuSOLVER)": (lambda: tf.matmul(x, tf.linalg.inv(x)), np.eye(512)),
        "compiled by XLA": (lambda: compiled(x), np.maximum(x @ x, 0) + 1),
    }
    found["parts"] = {}
    for name, (compute, expected) in parts.items():
        try:
            with tf.device("GPU:0"):
                error = float(np.abs(compute().numpy() - expected).max())
            found["parts"][name] = f"largest difference from NumPy {error:.2g}"
        except Exception as error:
            found["parts"][name] = f"{type(error).__name__}: {str(error)[:200]}"
        yield found


def windows(beside: bool) -> Iterator[dict[str, Any]]:
    """A training with forty profiler windows of three steps; `beside`: a thread copies to the GPU meanwhile."""
    import threading

    import keras
    import numpy as np
    import tensorflow as tf

    from gpu_util_callback import GpuUtilCallback, read_recordings

    keras.utils.set_random_seed(3)
    device = "GPU:0" if tf.config.list_physical_devices("GPU") else "CPU:0"
    wide = 2048 if device == "GPU:0" else 32  # on a CPU only to see whether all this runs
    model = keras.Sequential([keras.layers.Dense(wide, "relu") for _ in range(6)] + [keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((512, wide)).astype("float32"), rng.standard_normal((512, 1)).astype("float32")
    data = tf.data.Dataset.from_tensors((x, y)).repeat(2000)
    model.fit(data.take(4), verbose=0)
    over = threading.Event()
    copied = 0

    def copy() -> None:
        nonlocal copied
        while not over.is_set():
            with tf.device(device):
                copied += int(tf.constant(x).shape[0] > 0)

    thread = threading.Thread(target=copy)
    if beside:
        thread.start()
    log_dir = tempfile.mkdtemp(prefix="windows-")
    callback = GpuUtilCallback(log_dir, trace=[(at, at + 3) for at in range(40, 2000, 49)][:40], report=False)
    try:
        history = model.fit(data, verbose=0, callbacks=[callback])
    finally:
        over.set()
    recording = next(iter(read_recordings(log_dir)))
    taken = int((recording.phases["kind"] == "profiler_window").sum())
    report = subprocess.run(
        [sys.executable, "-m", "gpu_util_callback", "report", log_dir, "--json"], capture_output=True, text=True
    )
    run = json.loads(report.stdout)["runs"][0]
    kept = ("steps", "step_ms", "time_s", "gpu_time_est", "gpus", "traced", "unavailable", "overhead")
    yield {
        "loss": history.history["loss"][-1],
        "finite": bool(np.isfinite(history.history["loss"][-1])),
        "windows": taken,
        "copies beside": copied,
        **{name: run.get(name) for name in kept},
    }


CHILDREN = {"computes": computes, "windows": lambda: windows(False), "windows-beside": lambda: windows(True)}


def run(into: Path, minutes: float, measure: bool = True) -> int:
    """Join, link, compute, measure; an exit code."""
    found: dict[str, Any] = {"seconds": {}}
    began = float((into / "began").read_text()) if (into / "began").exists() else time.time()

    def left() -> float:
        return began + 60 * minutes - time.time()

    def keep(name: str, value: Any, since: float) -> None:
        found[name] = value
        found["seconds"][name] = round(time.time() - since, 1)
        (into / "results.json").write_text(json.dumps(found, indent=1) + "\n")
        print(f"-- {name} ({found['seconds'][name]} s): {json.dumps(value, indent=1)[:6000]}", flush=True)

    since = time.time()
    site = join(into)
    keep("joined", str(site), since)
    since = time.time()
    linked = link(into, site)
    environ = environment(into, site, linked)
    keep("linked", linked, since)
    if left() <= 0:
        raise Failed(3, f"given up: {minutes:g} minutes have passed")
    since = time.time()
    answer = child("computes", environ, left(), into)
    keep("computes", answer, since)
    if "tensorflow" not in answer:
        raise Failed(3 if left() <= 0 else 1, "TensorFlow cannot be imported from the joined folder")
    if not answer["gpus"] or "parts" not in answer:
        raise Failed(1, f"TensorFlow {answer['tensorflow']} is imported, and sees no GPU it can compute on")
    if not measure:
        return 0
    for name in ("windows", "windows-beside"):
        since = time.time()
        keep(name, child(name, environ, 120, into), since)
    for name, options in {
        "evidence": ["--seconds", "5", "--minutes", "4"],
        "costs": ["--costs", "--minutes", "3"],
    }.items():
        since = time.time()
        command = [sys.executable, str(ROOT / "demo" / "gpu_evidence.py"), "--backend", "tensorflow", *options]
        done = subprocess.run([*command, "--out", str(into)], env=environ, capture_output=True, text=True)
        print(done.stdout + done.stderr[-2000:], flush=True)
        keep(name, {"exit": done.returncode}, since)
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    add = steps.add_parser("cut").add_argument
    add("out", type=Path)
    add("--wheels", type=Path, help="take the wheels in this folder instead of downloading them")
    add("--python", default="3.12", help="of the GPU machine (default %(default)s)")
    add("--piece-mib", type=float, default=48, help="the largest a piece may be (default %(default)s)")
    add("--threads", type=int, default=os.cpu_count())
    for name in ("take", "run"):
        add = steps.add_parser(name).add_argument
        add("pieces", type=Path, nargs="+" if name == "take" else "*")
        add("--into", type=Path, default=Path("/tmp/gpu-tensorflow"))
        add("--minutes", type=float, default=6, help="give up so long after the first piece (default %(default)s)")
    add("--only-computes", action="store_true", help="measure nothing")
    add = steps.add_parser("child").add_argument
    add("name", choices=CHILDREN)
    add("--into", type=Path)
    args = parser.parse_args(argv)
    try:
        return STEPS[args.step](args)
    except Failed as error:
        print(error, file=sys.stderr)
        return error.code


def _cut(args: argparse.Namespace) -> int:
    began = time.time()
    args.out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=args.out) as scratch:
        wheels = args.wheels or Path(scratch)
        if not args.wheels:
            download(wheels, args.python)
        pieces = cut(args.out, wheels, int(args.piece_mib * 2**20), args.threads)
    sizes = [sum(file.stat().st_size for file in piece.iterdir()) for piece in pieces]
    mib = [size / 2**20 for size in sizes]
    print(f"{len(pieces)} pieces, {sum(mib):.0f} MiB, the largest {max(mib):.1f} MiB, {time.time() - began:.0f} s")
    return 0


def _take(args: argparse.Namespace) -> int:
    began = time.time()
    take(args.pieces, args.into)
    print(f"{time.time() - began:.1f} s; chunks missing: {len(missing(args.into))}")
    return 0


def _run(args: argparse.Namespace) -> int:
    if args.pieces:
        take(args.pieces, args.into)
    return run(args.into, args.minutes, not args.only_computes)


def _child(args: argparse.Namespace) -> int:
    for found in CHILDREN[args.name]():
        (args.into / f"{args.name}.json").write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # Python's own end may hang on TensorFlow


STEPS = {"cut": _cut, "take": _take, "run": _run, "child": _child}

if __name__ == "__main__":
    sys.exit(main())
