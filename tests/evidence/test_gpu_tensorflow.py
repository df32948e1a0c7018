"""TensorFlow for a GPU machine: cut into pieces here, joined and linked there. With a small made-up wheel."""

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from cuda import build_cuda, prepend

from harness import gpu_tensorflow
from harness.gpu_tensorflow import LIBRARIES, candidates, environment, join, link, main, missing

# What the real one does: opens CUDA's libraries by their names of one version, at run time.
MODULE = """
import ctypes
__version__ = "2.21.0"
opened = {name: ctypes.CDLL(name) for name in %r}
"""
CHUNK = 50_000


@pytest.fixture
def pieces(tmp_path, monkeypatch):
    """The pieces of two wheels: a module with noise of 300 kB, headers, and CUDA's runtime; 100 kB a piece."""
    monkeypatch.setattr(gpu_tensorflow, "CHUNK", CHUNK)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    runtime = build_cuda(tmp_path, ["libcudart.so.12", "libcupti.so.12"], driver=False)
    with zipfile.ZipFile(wheels / "tensorflow-2.21.0-cp312.whl", "w") as wheel:
        wheel.writestr("tensorflow/__init__.py", MODULE % (LIBRARIES,))
        wheel.writestr("tensorflow/libtensorflow_cc.so.2", os.urandom(300_000) + bytes(500_000))
        wheel.writestr("tensorflow/test/__init__.py", "")
        wheel.writestr("tensorflow/include/eigen/Core.h", "a header")
        wheel.writestr("tensorflow-2.21.0.data/purelib/beside.py", "there = True")
        wheel.writestr("tensorflow-2.21.0.data/scripts/saved_model_cli", "no module")
        wheel.writestr("tensorflow-2.21.0.dist-info/METADATA", "Name: tensorflow\nVersion: 2.21.0\n")
    with zipfile.ZipFile(wheels / "nvidia_cuda_runtime_cu12-12.9.whl", "w") as wheel:
        for name in ("libcudart.so.12", "libcupti.so.12"):
            wheel.write(runtime / name, f"nvidia/cuda_runtime/lib/{name}")
    with zipfile.ZipFile(wheels / "libclang-18.whl", "w") as wheel:
        wheel.writestr("clang/needless.py", "")
    assert main(["cut", str(tmp_path / "pieces"), "--wheels", str(wheels), "--piece-mib", str(100_000 / 2**20)]) == 0
    return sorted((tmp_path / "pieces").iterdir())


def test_no_piece_is_larger_than_asked_and_all_of_them_give_the_files(pieces, tmp_path, capsys):
    sizes = [sum(file.stat().st_size for file in piece.iterdir()) for piece in pieces]
    assert len(pieces) > 3
    assert max(sizes) <= 100_000
    into = tmp_path / "there"
    for number, piece in enumerate(reversed(pieces)):  # in any order, one at a time
        if number:
            with pytest.raises(gpu_tensorflow.Failed, match="missing"):
                join(into)
        assert main(["take", str(piece), "--into", str(into)]) == 0
    assert missing(into) == []
    site = join(into)
    assert (site / "tensorflow" / "libtensorflow_cc.so.2").stat().st_size == 800_000
    assert (site / "beside.py").read_text() == "there = True"
    names = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
    assert names == {
        "tensorflow/__init__.py",
        "tensorflow/libtensorflow_cc.so.2",
        "tensorflow/test/__init__.py",
        "tensorflow-2.21.0.dist-info/METADATA",
        "beside.py",
        "nvidia/cuda_runtime/lib/libcudart.so.12",
        "nvidia/cuda_runtime/lib/libcupti.so.12",
    }
    assert not (into / "site.tar").exists()
    assert join(into) == site  # once


def test_a_damaged_piece_is_named(pieces, tmp_path, capsys):
    for change in (lambda data: data[:-40], lambda data: bytes([data[0] ^ 1]) + data[1:]):
        chunk = next(iter(sorted(pieces[1].glob("*.xz"))))
        whole = chunk.read_bytes()
        chunk.write_bytes(change(whole))
        assert main(["take", *map(str, pieces), "--into", str(tmp_path / "there")]) == 2
        assert "damaged" in capsys.readouterr().err
        chunk.write_bytes(whole)
    # xz finds what is not its own; another chunk in the place of one, the sum does.
    first, second = sorted(path for piece in pieces for path in piece.glob("*.xz"))[:2]
    second.write_bytes(first.read_bytes())
    assert main(["take", *map(str, pieces), "--into", str(tmp_path / "other")]) == 2
    assert f"{second} is damaged" in capsys.readouterr().err


def cuda_13(tmp_path) -> Path:
    """A machine's libraries, of another version than TensorFlow asks for; of one, two versions."""
    names = ["libcublas.so.13", "libcublasLt.so.13", "libcufft.so.12", "libcusolver.so.12", "libcusparse.so.12"]
    return build_cuda(tmp_path / "machine", [*names, "libcudnn.so.9", "libcufft.so.11", "libnccl.so.2"], driver=False)


def test_the_names_that_are_opened_are_linked_to_what_there_is(pieces, tmp_path):
    into = tmp_path / "there"
    main(["take", *map(str, pieces), "--into", str(into)])
    site, machine = join(into), cuda_13(tmp_path)
    linked = link(into, site, [machine])
    assert {name: Path(path).name for name, path in linked.items()} == {
        "libcudart.so.12": "libcudart.so.12",
        "libcupti.so.12": "libcupti.so.12",
        "libcublas.so.12": "libcublas.so.13",
        "libcublasLt.so.12": "libcublasLt.so.13",
        "libcufft.so.11": "libcufft.so.11",  # its own, beside a newer one
        "libcusolver.so.11": "libcusolver.so.12",
        "libcusparse.so.12": "libcusparse.so.12",
        "libcudnn.so.9": "libcudnn.so.9",
        "libnccl.so.2": "libnccl.so.2",
    }
    assert linked["libcudart.so.12"].startswith(str(site))
    opened = "import tensorflow; print(len(tensorflow.opened), tensorflow.__version__)"
    environ = environment(into, site, linked)
    run = subprocess.run([sys.executable, "-c", opened], env=environ, capture_output=True, text=True)
    assert run.stdout.split() == [str(len(LIBRARIES)), "2.21.0"], run.stderr
    without = {**environ, "LD_LIBRARY_PATH": ""}
    run = subprocess.run([sys.executable, "-c", opened], env=without, capture_output=True, text=True)
    assert "cannot open shared object file" in run.stderr


def test_the_newest_of_other_versions_stands_in(tmp_path):
    folder = build_cuda(tmp_path, ["libcublas.so.9", "libcublas.so.13", "libcublasLt.so.14"], driver=False)
    (folder / "libcublas.so.13.1.0").touch()  # the file behind a name
    found = candidates("libcublas.so.12", [folder])
    assert [path.name for path in found] == ["libcublas.so.13", "libcublas.so.9"]
    assert link(tmp_path, tmp_path, [folder])["libnccl.so.2"] is None


@pytest.fixture
def ran_with(pieces, tmp_path, monkeypatch):
    """Runs the script with answers of the processes as given; its exit code and what it kept."""
    machine = cuda_13(tmp_path)
    monkeypatch.setattr(gpu_tensorflow, "library_folders", lambda: [machine])
    into = tmp_path / "there"

    def run(answer, *arguments):
        monkeypatch.setattr(gpu_tensorflow, "child", lambda name, environ, limit_s, into: answer)
        code = main(["run", *map(str, pieces), "--into", str(into), "--only-computes", *arguments])
        kept = into / "results.json"
        return code, json.loads(kept.read_text()) if kept.exists() else {}

    return run


def test_how_it_ends(ran_with, capsys):
    assert ran_with({"tensorflow": "2.21.0", "gpus": 1, "parts": {}})[0] == 0
    assert ran_with({"tensorflow": "2.21.0", "gpus": 0})[0] == 1
    assert "sees no GPU" in capsys.readouterr().err
    code, kept = ran_with({"ended": -11, "log": ["Segmentation fault"]})
    assert (code, kept["computes"]["log"]) == (1, ["Segmentation fault"])
    assert ran_with({"tensorflow": "2.21.0", "gpus": 1}, "--minutes", "0")[0] == 3
    assert "given up" in capsys.readouterr().err


def test_no_wheels_and_no_pieces(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["cut", str(tmp_path / "pieces"), "--wheels", str(tmp_path / "empty")]) == 2
    assert main(["run", "--into", str(tmp_path / "there")]) == 2
    assert "no piece was taken" in capsys.readouterr().err


def test_the_joined_folder_is_what_a_process_imports(tmp_path):
    """`child` runs this very file with the environment that it is given, and reads what it answered."""
    assert importlib.util.find_spec("harness.gpu_tensorflow")
    fake = tmp_path / "site" / "tensorflow"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text('raise ImportError("libtensorflow_cc.so.2: file too short")')
    environ = dict(os.environ)
    prepend(environ, "PYTHONPATH", fake.parent)
    found = gpu_tensorflow.child("computes", environ, 60, tmp_path)
    assert found["ended"] == 1
    assert "file too short" in found["log"][-1]
