"""The doctor is right in the set-ups that people have."""

import contextlib
import fnmatch
import io
import json
import os
import sys

import pytest
from cuda import TENSORFLOW, build_cuda, fake_framework, prepend
from nvml import GIB, Scenario, environment
from programs import ran

from gpu_util_callback.cli import main
from gpu_util_callback.doctor import Line, Report, _checks
from gpu_util_callback.gpus._gate import nvidia_gpus

LIBRARIES = [
    "libcudart.so.12",
    "libcublasLt.so.12",
    "libcublas.so.12",
    "libcufft.so.11",
    "libcusparse.so.12",
    "libcusolver.so.11",
    "libcupti.so.12",
]

CUDA_BUILD = {
    "is_cuda_build": True,
    "cuda_version": "12.5.1",
    "cudnn_version": "9",
    "cuda_compute_capabilities": ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"],
}
UUID = "1a2b3c4d-1a2b-3c4d-5e6f-000068313030"


def doctor(env, *arguments):
    """The report of `gpu-util doctor --json`; its probes are processes with these variables."""
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(io.StringIO()) as shown,
        contextlib.redirect_stderr(io.StringIO()) as said,
    ):
        patch.setattr(os, "environ", env)
        patch.setattr(sys, "path", [*env.get("PYTHONPATH", "").split(os.pathsep), *sys.path])
        assert main(["doctor", "--json", *arguments]) == 0
    assert said.getvalue() == ""
    return json.loads(shown.getvalue())


def line(report, section, check):
    found = [entry for entry in report["lines"] if (entry["section"], entry["check"]) == (section, check)]
    assert found, [(entry["section"], entry["check"]) for entry in report["lines"]]
    return found[0]


@pytest.fixture
def machine(tmp_path, standin_folder, monkeypatch):
    """machine(...): the environment of a machine with one H100 and a TensorFlow."""
    for name in (
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "KERAS_BACKEND",
        "LD_LIBRARY_PATH",
        "JAX_PLATFORMS",
        "NVIDIA_DRIVER_CAPABILITIES",
    ):
        monkeypatch.delenv(name, raising=False)

    def build(
        scenario=None,
        libraries=(*LIBRARIES, "libcudnn.so.9"),
        gpus=1,
        build=CUDA_BUILD,
        name="tensorflow",
        code=None,
        driver=True,
        beside="",
        **extra,
    ):
        if scenario is None:
            scenario = Scenario("h100")
        env = environment(scenario, standin_folder, CUDA_STANDIN=f"0000:17:00.0={UUID}", **extra)
        prepend(env, "LD_LIBRARY_PATH", build_cuda(tmp_path, libraries, driver))
        code = TENSORFLOW.format(build=build, gpus=gpus) if code is None else code
        prepend(env, "PYTHONPATH", fake_framework(tmp_path, name, "2.21.0", code))
        if beside:
            prepend(env, "PYTHONPATH", fake_framework(tmp_path, beside, "2.21.0", ""))
        return env

    return build


def test_all_well(machine):
    report = doctor(machine(), "--framework", "tensorflow")
    (only,) = [entry for entry in report["lines"] if entry["status"] != "ok"]
    assert only["check"] == "compute capability"  # TensorFlow's wheels hold PTX alone for it
    assert "CUDA_CACHE_MAXSIZE" in only["cure"]
    assert "580.95.05, supports CUDA 13.0" in line(report, "driver", "NVIDIA driver")["text"]
    assert "1 × NVIDIA H100" in line(report, "GPUs", "nvml 0")["text"]
    assert line(report, "tensorflow", "GPUs")["text"] == "tensorflow sees 1 of 1"
    assert "all 7 load, from" in line(report, "tensorflow", "CUDA libraries")["text"]
    assert "memory growth" in [entry["check"] for entry in report["lines"]]


def test_no_driver(tmp_path, monkeypatch):
    """This machine, or any other, without the driver's libraries: the real TensorFlow's facts."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    # Where there is a driver, this file of its name stands in for none.
    (tmp_path / "libnvidia-ml.so.1").write_text("")
    (tmp_path / "libcuda.so.1").write_text("")
    env = dict(os.environ)
    prepend(
        env, "PYTHONPATH", fake_framework(tmp_path, "tensorflow", "2.21.0", TENSORFLOW.format(build=CUDA_BUILD, gpus=0))
    )
    report = doctor(env, "--framework", "tensorflow")
    driver = line(report, "driver", "NVML")
    if nvidia_gpus() == 0:
        assert report["status"] == "ok"
        assert driver["text"] == "no NVIDIA GPU in this machine" and driver["cure"] == ""
    else:
        assert report["status"] == "warning"
        assert "no NVIDIA driver library" in driver["text"]
        assert "install the NVIDIA driver" in driver["cure"]
    assert line(report, "tensorflow", "GPUs")["text"] == "tensorflow sees none, like the driver"


@pytest.mark.parametrize(
    ("devices", "files", "expected"),
    [
        ({"0000:00:01.0": ("0x8086", "0x030000")}, [], 0),
        ({"0000:00:01.0": ("0x8086", "0x030000"), "0000:65:00.0": ("0x10de", "0x030200")}, [], 1),
        ({"0000:65:00.1": ("0x10de", "0x040300")}, [], 0),  # an NVIDIA sound device
        ({}, [], None),  # a sandbox's empty bus
        (None, [], None),
        ({"0000:00:01.0": ("0x8086", "0x030000")}, ["dxg"], None),  # WSL
        ({"0000:00:01.0": ("0x8086", "0x030000")}, ["nvidia0"], None),  # passed on by other means
    ],
)
def test_whether_the_machine_has_a_gpu_at_all(tmp_path, devices, files, expected):
    (tmp_path / "dev").mkdir()
    for file in files:
        (tmp_path / "dev" / file).touch()
    if devices is not None:
        (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    for name, (vendor, kind) in (devices or {}).items():
        folder = tmp_path / "sys/bus/pci/devices" / name
        folder.mkdir()
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "class").write_text(kind + "\n")
    assert nvidia_gpus(str(tmp_path)) == expected


def test_a_machine_without_a_gpu_is_told_of_no_driver():
    problem = {"source": "NVML", "reason": "no NVIDIA GPU in this machine", "cure": ""}
    [found] = _checks.check_driver({"problem": problem}, {})
    assert (found.status, found.cure) == ("ok", "")


def test_a_probe_prints_its_answer_alone():
    answer = _checks.run_probes({"cuda": []}, 60)["cuda"]
    assert answer.pop("stderr") == "" and answer


def test_two_memory_fractions_keep_jax_from_starting():
    both = {"XLA_CLIENT_MEM_FRACTION": "0.9", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5"}
    found = _checks.check_environment(both, {"gpus": [{"visible": True}]})
    [wrong] = [line for line in found if line.status == "problem"]
    assert wrong.cure == "unset XLA_PYTHON_CLIENT_MEM_FRACTION"
    one = {"XLA_CLIENT_MEM_FRACTION": "0.9"}
    [found] = _checks.check_environment(one, {"gpus": [{"visible": True}]})
    assert found.status == "ok" and "XLA_CLIENT_MEM_FRACTION=0.9" in found.text


@pytest.mark.parametrize(
    ("tensorboard", "pkg_resources", "says"),
    [
        ("2.20.0", False, "TensorBoard 2.20.0 does not start: it imports pkg_resources"),
        ("2.20.0", True, None),
        ("2.21.0", False, None),
    ],
)
def test_a_tensorboard_that_does_not_start(tensorboard, pkg_resources, says, tmp_path, monkeypatch):
    for name, version in (("tensorboard", tensorboard), ("setuptools", "84.2.1")):
        (tmp_path / f"{name}-{version}.dist-info").mkdir()
        (tmp_path / f"{name}-{version}.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
    if pkg_resources:
        (tmp_path / "pkg_resources.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    found = _checks.check_tensorboard()
    assert [line.text.partition(", ")[0] for line in found] == ([says] if says else [])
    assert all(line.cure == 'pip install "setuptools<82"' for line in found)


def test_without_any_framework_it_is_an_environment_for_looking():
    found = _checks.none_installed(["tensorflow", "jax", "torch"])
    assert found.status == "ok" and "for viewing only" in found.text
    named = _checks.none_installed(["jax"])
    assert named.status == "problem" and named.cure.startswith("pip install")


JAX_CODE = """
import types
class _Device:
    platform, device_kind = {platform!r}, "NVIDIA H100"
def devices():
    return [_Device()]
"""
TORCH_CODE = """
import types
version = types.SimpleNamespace(cuda={cuda!r})
cuda = types.SimpleNamespace(
    is_available=lambda: {count} > 0, device_count=lambda: {count},
    get_arch_list=lambda: ["sm_80", "sm_90"], get_device_name=lambda i: "NVIDIA H100",
)
"""
JAX = {"name": "jax", "code": JAX_CODE.format(platform="cpu"), "beside": "jax-cuda12-plugin"}
TORCH = {"name": "torch", "code": TORCH_CODE.format(cuda=None, count=0)}
CPU_BUILD = {"name": "tensorflow-cpu", "gpus": 0, "build": {"is_cuda_build": False}}
NO_CUDNN = {"libraries": LIBRARIES, "gpus": 0}
HIDDEN = {"gpus": 0, "CUDA_STANDIN_INIT": "100", "CUDA_VISIBLE_DEVICES": ""}
HIDES = (
    "CUDA_VISIBLE_DEVICES problem: *hides the GPU*unset CUDA_VISIBLE_DEVICES*",
    "GPUs *: *CUDA_VISIBLE_DEVICES hides them*",
    "CUDA driver library ok: *",
)
OLD = {"scenario": Scenario("h100", cuda=11040, driver="470.1"), "gpus": 0}
LOOKS = {"gpus": 0, "driver": False, "NVIDIA_DRIVER_CAPABILITIES": "utility"}  # a container that may not compute
MISMATCH = {"scenario": Scenario("h100").call("nvmlInitWithFlags", code=18), "gpus": 0}  # after a driver's update
HANGS = {"scenario": Scenario().call("nvmlInitWithFlags", latency_s=60), "code": "import time; time.sleep(60)"}
# What the machine is like, the status of all, and lines "check status: text cure".
MACHINES = [
    ({"build": CUDA_BUILD | {"cuda_compute_capabilities": ["sm_80", "sm_90"]}}, "ok"),
    (
        CPU_BUILD,
        "problem",
        "build problem: *without CUDA: training runs on the CPU*pip uninstall -y tensorflow-cpu; pip*",
        "GPUs problem: *",
    ),
    ({"beside": "tensorflow-cpu"}, "problem", "installed problem: *tensorflow-cpu 2.21.0*"),
    (
        NO_CUDNN,
        "problem",
        "CUDA libraries problem: 6 of 7 load; missing: libcudnn.so.9 *nvidia-cudnn-cu12*",
        "GPUs problem: *libcudnn.so.9 cannot be loaded*",
    ),
    (HIDDEN, "problem", *HIDES),
    (OLD, "problem", "driver problem: this build needs CUDA 12.5.1; driver 470.1 supports 11.4 *"),
    (LOOKS, "problem", "CUDA driver library problem: *", "NVIDIA_DRIVER_CAPABILITIES problem: *"),
    (MISMATCH, "problem", "NVML problem: *reboot*"),
    (HANGS, "problem", "NVML *: no answer within 1 s*", "import problem: *no answer within 1 s*"),
    ({"code": "raise ImportError('libfoo.so.1: cannot open')"}, "problem", "import problem: *libfoo.so.1*"),
    ({"code": "import os; os.abort()"}, "problem", "import problem: *SIGABRT*"),
    ({"code": "import os; os._exit(3)"}, "problem", "import problem: *failed*"),
    ({"code": "print('{}'); x = 1"}, "problem", "import problem: *AttributeError*"),
    (
        JAX | {"code": JAX_CODE.format(platform="gpu")},
        "ok",
        "GPUs ok: jax sees 1 of 1 *",
        "build ok: *jax-cuda12-plugin*",
    ),
    (JAX | {"beside": ""}, "problem", 'build problem: *pip install "jax[[]cuda12]"'),
    (JAX | {"JAX_PLATFORMS": "cpu"}, "problem", "JAX_PLATFORMS problem: *", "GPUs *: *JAX_PLATFORMS=cpu*"),
    (TORCH | {"code": TORCH_CODE.format(cuda="12.8", count=1)}, "ok", "GPUs ok: torch sees 1 of 1 *"),
    (TORCH, "problem", "build *: *without CUDA*"),
    (TORCH | {"KERAS_BACKEND": "tensorflow"}, "warning"),  # another backend is the chosen one
]


@pytest.mark.parametrize("row", MACHINES, ids=lambda row: " ".join(row[1:]))
def test_what_is_wrong_with_a_machine_is_named_with_its_cure(machine, row):
    options, status, *patterns = row
    framework = options.get("name", "tensorflow").partition("-")[0]
    timeout = "1" if options is HANGS else "60"
    report = doctor(machine(**options), "--framework", framework, "--timeout", timeout)
    said = ["{check} {status}: {text} {cure}".format(**entry) for entry in report["lines"]]
    assert report["status"] == status, said
    assert all(fnmatch.filter(said, pattern) for pattern in patterns), said


def test_libraries_of_the_wheels_are_found(machine, tmp_path):
    env = machine(libraries=LIBRARIES)
    build_cuda(tmp_path / "wheel", ["libcudnn.so.9"], driver=False)
    wheel = tmp_path / "site-tensorflow/nvidia/cudnn/lib"
    wheel.mkdir(parents=True)
    (tmp_path / "wheel/cuda-lib/libcudnn.so.9").rename(wheel / "libcudnn.so.9")
    report = doctor(env, "--framework", "tensorflow")
    assert line(report, "tensorflow", "CUDA libraries")["status"] == "ok"
    assert report["facts"]["libraries"]["libcudnn.so.9"]["path"] == str(wheel / "libcudnn.so.9")


def test_the_text_is_one_screen_and_ends_with_the_verdict(machine):
    env = machine(gpus=0, CUDA_VISIBLE_DEVICES="-1", CUDA_STANDIN_INIT="100", COLUMNS="100")
    command = [sys.executable, "-m", "gpu_util_callback", "doctor", "--framework", "tensorflow"]
    done = ran(*command, env=env, timeout=90)
    shown = done.stdout.splitlines()
    assert len(shown) < 40
    assert max(map(len, shown)) <= 100
    assert "FAIL CUDA_VISIBLE_DEVICES" in done.stdout
    assert shown[-1].endswith("problems.")


# The lines as functions of what the probes answered.

BOARD = {
    "nvml_index": 0,
    "name": "X",
    "memory_total_bytes": 80 * GIB,
    "compute_capability": "9.0",
    "mode": "",
    "visible": True,
    "processes": [],
    "compute_mode": 0,
    "persistence_mode": True,
    "power_limit_mw": 700_000,
    "power_default_mw": 700_000,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "ecc_uncorrected": 0,
    "event_reasons": 1,
    "mig_devices": [],
}


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({}, "ok", ""),
        ({"persistence_mode": False}, "warning", "persistence"),
        ({"power_limit_mw": 300_000}, "warning", "300 W"),
        ({"pcie_width": 4}, "warning", "×4 of ×16"),
        ({"ecc_uncorrected": 3}, "warning", "ECC"),
        ({"event_reasons": 0x40}, "warning", "slows itself"),
        ({"event_reasons": 0x4}, "ok", ""),  # a power cap under load is normal
        ({"lost": True}, "problem", "lost"),
        ({"compute_mode": 2}, "problem", "Prohibited"),
        ({"mode": "MIG"}, "problem", "no MIG device"),
        ({"mode": "MIG", "mig_devices": ["MIG-1"]}, "ok", ""),
        (
            {"processes": [{"pid": 7, "memory_bytes": 3 * GIB, "name": "python"}]},
            "warning",
            "1 process uses it with 3.0 GiB (python 7)",
        ),
        (
            {"processes": [{"pid": 7, "memory_bytes": None, "name": None}] * 5, "compute_mode": 3},
            "problem",
            "Exclusive",
        ),
        ({"power_limit_mw": None, "pcie_width": None, "event_reasons": None}, "ok", ""),
    ],
)
def test_each_trouble_of_a_gpu(change, status, words):
    report = Report([*_checks.check_gpus({"gpus": [{**BOARD, **change}], "host_pids": True})])
    assert report.status == status
    assert words in " ".join(entry.text for entry in report.lines)
    assert all(entry.cure for entry in report.lines if entry.status != "ok")


def test_equal_gpus_share_a_line():
    gpus = [{**BOARD, "nvml_index": i} for i in range(8)]
    (only,) = _checks.check_gpus({"gpus": gpus})
    assert only.text.startswith("8 × X, 80 GiB")


@pytest.mark.parametrize(
    ("capability", "codes", "status"),
    [
        ("8.6", ["sm_80"], None),  # newer minor of the same major
        ("8.0", ["sm_86"], "problem"),
        ("9.0", ["sm_80", "compute_80"], "warning"),  # by PTX, compiled at the first start
        ("3.5", ["sm_60", "compute_90"], "problem"),
        ("12.0", ["sm_90", "sm_120"], None),
        ("9.0", [], None),  # unknown
    ],
)
def test_compute_capabilities(capability, codes, status):
    answer = {"build": {"is_cuda_build": True, "cuda_compute_capabilities": codes}, "gpus": [{}]}
    nvml = {"gpus": [{"visible": True, "compute_capability": capability}]}
    lines = _checks.FrameworkCheck("jax", [("jax", "0.10")], answer, nvml, {}, {}, {}).check()
    found = [entry for entry in lines if entry.check == "compute capability"]
    assert [entry.status for entry in found] == ([status] if status else [])


def test_needed_libraries_follow_the_build():
    assert "libcudnn.so.9" in _checks.needed_libraries(
        {"is_cuda_build": True, "cuda_version": "12.5.1", "cudnn_version": "9"}
    )
    assert "libcublas.so.13" in _checks.needed_libraries(
        {"is_cuda_build": True, "cuda_version": "13.0", "cudnn_version": "9"}
    )
    assert _checks.needed_libraries({"is_cuda_build": False}) == []


def test_report_status_is_the_worst():
    ok, bad = Line("a", "b", "ok", ""), Line("a", "b", "problem", "")
    assert Report([ok]).status == "ok"
    assert Report([ok, bad, ok]).status == "problem"
    assert Report([]).status == "ok"
    assert Report([bad]).render().endswith("1 problem.")


def test_libraries_that_could_not_be_looked_for_are_said_to_be_unknown():
    answer = {"build": CUDA_BUILD, "gpus": []}
    libraries = {"error": "no answer within 60 s", "timeout": True}
    found = _checks.FrameworkCheck("tensorflow", [("tensorflow", "2.21")], answer, {}, {}, {}, libraries).check()
    (line,) = [line for line in found if line.check == "CUDA libraries"]
    assert line.status == "warning"
    assert line.text == "could not be looked for: no answer within 60 s"
