"""Stand-ins for CUDA's libraries and for frameworks, for machines without a GPU.

folder = build_cuda(tmp_path, ["libcudart.so.12", "libcudnn.so.9"])   # + libcuda.so.1
env = {**environment(scenario, tmp_path), ...}; prepend(env, "LD_LIBRARY_PATH", folder)
prepend(env, "PYTHONPATH", fake_tensorflow(tmp_path, gpus=1))
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parent / "cuda_standin.c"
# Of a TensorFlow, as far as the doctor looks: its build, and how many GPUs it sees.
TENSORFLOW = """
import types
_BUILD = {build}
class _Gpu:
    def __init__(self, i):
        self.name = f"/physical_device:GPU:{{i}}"
_GPUS = [_Gpu(i) for i in range({gpus})]
sysconfig = types.SimpleNamespace(get_build_info=lambda: _BUILD)
config = types.SimpleNamespace(
    list_physical_devices=lambda kind: _GPUS,
    experimental=types.SimpleNamespace(
        get_memory_growth=lambda gpu: False,
        get_device_details=lambda gpu: {{"device_name": "H100", "compute_capability": (9, 0)}},
    ),
)
"""


@cache
def _compiled(source: str) -> bytes:
    """A shared library without a name of its own; skips without a compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        import pytest

        pytest.skip("no C compiler to build the stand-in CUDA libraries with")
    with tempfile.NamedTemporaryFile(suffix=".so") as built:
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-x", "c", "-o", built.name, "-"], input=source, text=True, check=True
        )
        return Path(built.name).read_bytes()


def build_cuda(folder: str | os.PathLike, libraries: Sequence[str] = (), driver: bool = True) -> Path:
    """A folder with libcuda.so.1 (unless driver=False) and empty `libraries`."""
    target = Path(folder) / "cuda-lib"
    target.mkdir(parents=True, exist_ok=True)
    for name in libraries:
        (target / name).write_bytes(_compiled("int standin;\n"))
    if driver:
        (target / "libcuda.so.1").write_bytes(_compiled(SOURCE.read_text()))
    return target


def fake_framework(folder: str | os.PathLike, name: str, version: str, code: str) -> Path:
    """A folder for PYTHONPATH in which `name` is installed; `code` is its module, "" = none."""
    root = Path(folder) / f"site-{name}"
    module = name.partition("-")[0]
    root.mkdir(parents=True, exist_ok=True)
    if code:
        (root / module).mkdir(exist_ok=True)
        (root / module / "__init__.py").write_text(f'__version__ = "{version}"\n' + code)
    info = root / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return root


def prepend(environment: dict[str, str], variable: str, path: str | os.PathLike) -> None:
    """Put a folder in front of a path variable."""
    known = environment.get(variable, "")
    environment[variable] = os.pathsep.join(filter(None, [str(path), known]))
