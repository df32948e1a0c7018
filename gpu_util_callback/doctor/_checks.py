"""The examination: all probes and checks, in the order of their dependencies.

Checks are pure functions from the probes' answers to lines of a `Report`.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

from gpu_util_callback.cgroup import text_of
from gpu_util_callback.doctor import probe
from gpu_util_callback.doctor.probe import MARK, ProbeAnswer
from gpu_util_callback.gpus import _gate
from gpu_util_callback.unused_gpu import INSTALL
from gpu_util_callback.words import counted

# framework -> the distributions that provide it
FRAMEWORKS = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tf-nightly", "tensorflow-intel"),
    "jax": ("jax",),
    "torch": ("torch",),
}
_STDERR_CHARS = 4_000  # of what a probe printed last, where a framework says why it skips a GPU


def _version(distribution: str) -> str:
    """Return the version of an installed distribution, from metadata alone; "" where it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def installed(framework: str) -> list[tuple[str, str]]:
    """Return (distribution, version) of all that provide a framework."""
    return [(name, version) for name in FRAMEWORKS[framework] if (version := _version(name))]


def run_probes(arguments: dict[str, list[str]], timeout_s: float) -> dict[str, ProbeAnswer]:
    """Run probes (name -> arguments); return name -> its answer, {"error"} if it failed or hung."""
    with ThreadPoolExecutor(max(len(arguments), 1)) as pool:
        running = {name: pool.submit(_run_probe, [name, *args], timeout_s) for name, args in arguments.items()}
        return {name: future.result() for name, future in running.items()}


def _run_probe(arguments: list[str], timeout_s: float) -> ProbeAnswer:
    """Run a probe (name, arguments) in a process of its own; return its answer, {"error"} if it failed or hung.

    The answer is the last line that begins with `MARK`, as JSON, with the end of what was printed as "stderr".
    """
    root = str(Path(__file__).resolve().parents[2])
    paths = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), root]
    try:
        process = subprocess.run(
            [sys.executable, "-P", probe.__file__, *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {timeout_s:g} s", "timeout": True}
    except OSError as error:
        return {"error": str(error)}
    answers = [line.removeprefix(MARK) for line in process.stdout.splitlines() if line.startswith(MARK)]
    failure = "no answer"
    if process.returncode < 0:
        failure = f"the process died of {signal.Signals(-process.returncode).name}"
    elif process.returncode:
        failure = f"the process failed: {(process.stderr.strip().splitlines() or ['no message'])[-1]}"
    answer = json.loads(answers[-1]) if answers else {"error": failure}
    return {**answer, "stderr": process.stderr[-_STDERR_CHARS:]}


def examine(framework: str | None = None, timeout_s: float = 60) -> Report:
    """Check driver, GPUs, environment, and each installed framework (or only the named one).

    Nothing is imported here: every probe runs in its own process and may fail, hang or crash.

    Args:
        framework: "tensorflow", "jax" or "torch"; None = all that are installed.
        timeout_s: for each probe.
    """
    names = [framework] if framework else list(FRAMEWORKS)
    installed_versions = {name: versions for name in names if (versions := installed(name))}
    answers = run_probes({"nvml": [], "cuda": [], **{name: [] for name in installed_versions}}, timeout_s)
    nvml, cuda = answers["nvml"], answers["cuda"]
    libraries: ProbeAnswer = {}
    if library_names := needed_libraries(answers.get("tensorflow", {}).get("build") or {}):
        libraries = run_probes({"libraries": [",".join(library_names)]}, timeout_s)["libraries"]
        libraries.pop("stderr", None)
    environ = dict(os.environ)
    chosen = environ.get("KERAS_BACKEND", "").lower()
    backend = chosen if chosen in ("tensorflow", "jax", "torch") else None
    lines = [
        *check_driver(nvml, cuda),
        *check_gpus(nvml),
        *check_environment(environ, nvml),
        *check_tensorboard(),
        *check_profiler(nvml, libraries),
    ]
    for name, distributions in installed_versions.items():
        needed = libraries if name == "tensorflow" else {}
        used = backend in (None, name)
        lines += FrameworkCheck(name, distributions, answers[name], nvml, cuda, environ, needed, used).check()
    if not installed_versions:
        lines.append(none_installed(names))
    facts = {
        "nvml": nvml,
        "cuda": cuda,
        "libraries": libraries,
        "backend": backend,
        "environment": relevant(environ),
        "frameworks": {name: answers[name] for name in installed_versions},
    }
    return Report(lines, facts)


_VARIABLES = (
    "CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING CUDA_MPS_ACTIVE_THREAD_PERCENTAGE "
    "NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES KERAS_BACKEND JAX_PLATFORMS JAX_PLATFORM_NAME XLA_FLAGS "
    "XLA_PYTHON_CLIENT_PREALLOCATE XLA_PYTHON_CLIENT_MEM_FRACTION XLA_CLIENT_MEM_FRACTION TF_FORCE_GPU_ALLOW_GROWTH "
    "TF_GPU_ALLOCATOR TF_DETERMINISTIC_OPS NVIDIA_TF32_OVERRIDE OMP_NUM_THREADS LD_LIBRARY_PATH"
)


def relevant(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are set and matter."""
    return {name: environ[name] for name in _VARIABLES.split() if name in environ}


def check_environment(environ: Mapping[str, str], nvml: ProbeAnswer) -> list[Line]:
    """Return one line per variable that is wrong or slow, and one for all the others."""
    lines = [*_check_visible(environ, nvml), *_check_settings(environ, bool(nvml.get("gpus")))]
    left_out = {"LD_LIBRARY_PATH", *(line.check for line in lines)}
    harmless = {name: value for name, value in relevant(environ).items() if name not in left_out}
    if harmless or not lines:
        text = ", ".join(f"{name}={value}" for name, value in harmless.items()) or "none that matter is set"
        lines.append(Line("environment", "variables", OK, text))
    if environ.get("CUDA_MPS_PIPE_DIRECTORY") or Path("/tmp/nvidia-mps").is_dir():
        lines.append(Line("environment", "MPS", OK, "a CUDA MPS server is configured: processes share GPUs"))
    return lines


def _check_visible(environ: Mapping[str, str], nvml: ProbeAnswer) -> Iterator[Line]:
    """Yield lines on CUDA_VISIBLE_DEVICES, and whether GPU numbers mean the same GPUs to CUDA and nvidia-smi."""
    line = partial(Line, "environment")
    gpus = nvml.get("gpus") or []
    visible = sum(gpu["visible"] for gpu in gpus)
    name = "CUDA_VISIBLE_DEVICES"
    value = environ.get(name)
    if nvml.get("visible_problem"):
        yield line(name, PROBLEM, nvml["visible_problem"], "name GPUs that exist, or unset it")
    elif value is not None and gpus and visible == 0:
        hidden = "the GPU" if len(gpus) == 1 else f"all {len(gpus)} GPUs"
        yield line(name, PROBLEM, f"{name}={value} hides {hidden}", f"unset {name}, or set it to the GPUs you want")
    elif value is not None and gpus:
        yield line(name, OK, f"{name}={value}: {visible} of {len(gpus)} GPUs")
    if not nvml.get("order_certain", True) and visible > 1:
        text = "these GPUs differ, and CUDA numbers them by speed while nvidia-smi goes by bus"
        yield line("CUDA_DEVICE_ORDER", WARNING, text, "export CUDA_DEVICE_ORDER=PCI_BUS_ID")


def _check_settings(environ: Mapping[str, str], has_gpus: bool) -> Iterator[Line]:
    """Yield a line for each variable that slows kernels, keeps a framework off the GPU, or limits it."""
    line = partial(Line, "environment")
    if environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        cure = "unset CUDA_LAUNCH_BLOCKING (it is for debugging)"
        yield line("CUDA_LAUNCH_BLOCKING", WARNING, "the host waits for every single kernel", cure)
    for name in ("JAX_PLATFORMS", "JAX_PLATFORM_NAME"):
        value = environ.get(name, "").lower()
        if has_gpus and value and not {"cuda", "gpu", "rocm"} & set(value.split(",")):
            yield line(name, PROBLEM, f"{name}={value} keeps JAX off the GPU", f"unset {name}")
    old, new = "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"
    if environ.get(old) and environ.get(new):
        status = PROBLEM if has_gpus else WARNING
        yield line(new, status, f"JAX does not start on a GPU while {old} is set, too", f"unset {old}")
    capabilities = environ.get("NVIDIA_DRIVER_CAPABILITIES", "all").split(",")
    if has_gpus and not {"all", "compute"} & set(capabilities):
        text = "this container may query GPUs but not compute on them"
        cure = "start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        yield line("NVIDIA_DRIVER_CAPABILITIES", PROBLEM, text, cure)
    percentage = environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
    if percentage and percentage != "100":
        text = f"MPS gives this process {percentage} % of each GPU"
        yield line("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", WARNING, text, "unset it")


def check_tensorboard() -> list[Line]:
    """Check that TensorBoard can start: before 2.21 it imports what setuptools dropped with 82."""
    tensorboard, setuptools = _version("tensorboard"), _version("setuptools")
    if not tensorboard or _major_minor(tensorboard) >= (2, 21) or find_spec("pkg_resources") is not None:
        return []
    lacking = f"setuptools {setuptools}" if setuptools else "no setuptools"
    text = f"TensorBoard {tensorboard} does not start: it imports pkg_resources, which is not here ({lacking})"
    return [Line("environment", "TensorBoard", WARNING, text, 'pip install "setuptools<82"')]


def check_profiler(nvml: ProbeAnswer, libraries: ProbeAnswer) -> list[Line]:
    """Check that this user may profile and that CUPTI loads: kernel time needs both. [] without a GPU."""
    if not nvml.get("gpus"):
        return []
    status, text, cure = OK, "profiling is allowed", ""
    cupti = next((library for name, library in libraries.items() if name.startswith("libcupti")), None)
    if cupti is not None and not cupti.get("loads"):
        status, text = WARNING, "CUPTI does not load: no kernel times"
        cure = 'pip install "tensorflow[and-cuda]"'
    elif _profiling_needs_admin() and not _is_admin():
        status, text = WARNING, "CUPTI: only administrators may profile here"
        cure = (
            "options nvidia NVreg_RestrictProfilingToAdminUsers=0 in /etc/modprobe.d, then "
            "reboot; in a container `--cap-add=SYS_ADMIN`"
        )
    return [Line("environment", "profiler", status, text, cure)]


def _profiling_needs_admin(path: str = "/proc/driver/nvidia/params") -> bool:
    """Return True if the driver lets administrators alone profile; False if unknown."""
    return "RmProfilingAdminOnly: 1" in text_of(Path(path))


def _is_admin() -> bool:
    """Return True if this process has CAP_SYS_ADMIN; without /proc, if it is the root user's."""
    try:
        status = Path("/proc/self/status").read_text()
        effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
        return bool(int(effective.split()[1], 16) >> 21 & 1)  # CAP_SYS_ADMIN
    except (OSError, StopIteration, ValueError):
        return hasattr(os, "geteuid") and os.geteuid() == 0


_GIB = 1 << 30
_PROHIBITED, _EXCLUSIVE = 2, 3  # compute modes
_SLOWED_DOWN = 0x8 | 0x20 | 0x40 | 0x80  # clock event reasons: heat or power, not a plain cap
# Codes of cuInit that occur in practice.
_CUDA_CODES = {
    3: ("CUDA was shut down", ""),
    34: ("the CUDA driver library is a stub", "remove the toolkit's stubs from LD_LIBRARY_PATH"),
    46: ("the GPU is in exclusive use by another process", "end that process"),
    100: ("the CUDA driver sees no GPU", ""),
    101: ("CUDA_VISIBLE_DEVICES names no GPU", "correct the variable"),
    803: (
        "driver and CUDA library do not fit (803)",
        "in a container: remove the cuda-compat libraries, or use an image for this driver",
    ),
    804: ("this GPU cannot use the cuda-compat libraries (804)", "update the driver"),
    802: (
        "the fabric manager is not running (802)",
        "systemctl start nvidia-fabricmanager (NVSwitch machines need it)",
    ),
    999: ("CUDA fails with an unknown error (999)", "modprobe nvidia_uvm; else reboot"),
}


def check_driver(nvml: ProbeAnswer, cuda: ProbeAnswer) -> Iterator[Line]:
    """Check that there is a driver and that both of its libraries work."""
    line = partial(Line, "driver")
    if "error" in nvml:
        cure = "see `dmesg`; `nvidia-smi` probably hangs as well" if nvml.get("timeout") else ""
        yield line("NVML", PROBLEM, nvml["error"], cure)
    elif problem := nvml.get("problem"):
        status = PROBLEM
        if problem["reason"] == _gate.NO_GPU[0]:
            status = OK
        elif "no NVIDIA driver library" in problem["reason"]:  # a machine without a GPU has none
            status = WARNING
        yield line("NVML", status, problem["reason"], problem["cure"])
    else:
        text = f"{nvml.get('driver_version')}, supports CUDA {nvml.get('cuda_version') or '?'}"
        yield line("NVIDIA driver", OK, text)
        yield line("CUDA driver library", *_cuda_state(cuda, nvml))


def _cuda_state(cuda: ProbeAnswer, nvml: ProbeAnswer) -> tuple[str, str, str]:
    """Return (status, text, cure) of CUDA's driver library.

    Args:
        cuda, nvml: answers of the driver's probes.
    """
    if "error" in cuda and "loads" not in cuda:
        return PROBLEM, cuda["error"], ""
    if not cuda.get("loads"):
        cure = "in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility and `--gpus all`; else reinstall the driver"
        return PROBLEM, "libcuda.so.1 does not load, though NVML works", cure
    code = cuda.get("init")
    hidden = nvml.get("gpus") and not any(gpu["visible"] for gpu in nvml["gpus"])
    if code in (100, 101) and hidden:
        return OK, "works; CUDA_VISIBLE_DEVICES hides every GPU from it", ""
    if code != 0:
        return PROBLEM, *_CUDA_CODES.get(code or -1, (f"cuInit fails with code {code}", "see `dmesg`"))
    count = len(cuda.get("gpus", ()))
    return OK, f"{cuda.get('library')}, {counted(count, 'GPU')}", ""


def check_gpus(nvml: ProbeAnswer) -> Iterator[Line]:
    """Yield a line for each kind of GPU that NVML sees, and one for each problem of a GPU."""
    gpus, line = nvml.get("gpus", ()), partial(Line, "GPUs")
    if "gpus" in nvml and not gpus:
        cure = "in a container start it with `--gpus all`; else see `lspci | grep -i nvidia`"
        yield line("NVML", WARNING, "the driver is installed but sees no GPU", cure)
    kinds: dict[tuple[str, int | None, str], list[ProbeAnswer]] = {}
    for gpu in gpus:
        kinds.setdefault((gpu["name"], gpu.get("memory_total_bytes"), gpu["mode"]), []).append(gpu)
    for (name, memory, mode), equal_gpus in kinds.items():
        size = f", {memory / _GIB:.0f} GiB" if memory else ""
        numbers = ", ".join(str(gpu["nvml_index"]) for gpu in equal_gpus)
        capability = equal_gpus[0].get("compute_capability")
        text = f"{len(equal_gpus)} × {name}{size}, compute capability {capability or 'unknown'}"
        text += f", {mode}" if mode else ""
        yield line(f"nvml {numbers}", OK, text)
    for gpu in gpus:
        for status, text, cure in _troubles(gpu, nvml):
            yield line(f"nvml {gpu['nvml_index']}", status, text, cure)


def _troubles(gpu: ProbeAnswer, nvml: ProbeAnswer) -> Iterator[tuple[str, str, str]]:
    """Yield (status, text, cure) of each trouble of a GPU.

    Args:
        gpu: an entry of the probe's "gpus".
    """
    number = gpu["nvml_index"]
    processes = gpu.get("processes") or []
    limit, default = gpu.get("power_limit_mw"), gpu.get("power_default_mw")
    width, full = gpu.get("pcie_width"), gpu.get("pcie_width_max")
    if gpu.get("lost"):
        yield PROBLEM, "does not answer (lost)", "see `dmesg | grep -i xid`; reboot"
    if gpu.get("compute_mode") == _PROHIBITED:
        yield PROBLEM, "compute mode is Prohibited", f"nvidia-smi -i {number} -c 0"
    if processes:
        yield WARNING, _processes_text(processes, nvml), "stop them, or choose another GPU"
        if gpu.get("compute_mode") == _EXCLUSIVE:
            yield PROBLEM, "compute mode is Exclusive, and taken", f"nvidia-smi -i {number} -c 0"
    if limit and default and limit < 0.95 * default:
        text = f"power limit {limit / 1000:.0f} W, the default is {default / 1000:.0f} W"
        yield WARNING, text, f"nvidia-smi -i {number} -pl {default // 1000}"
    if width and full and width < full:
        yield WARNING, f"PCIe link ×{width} of ×{full}", "reseat the card, or use a full slot"
    if gpu.get("ecc_uncorrected"):
        text = f"{gpu['ecc_uncorrected']} uncorrected ECC errors since the last reboot"
        yield WARNING, text, "see `nvidia-smi -q -d ECC,ROW_REMAPPER`; replace the GPU if they keep coming"
    if (gpu.get("event_reasons") or 0) & _SLOWED_DOWN:
        text = "the GPU slows itself down (heat or power) right now"
        yield WARNING, text, "check cooling and the power supply"
    if gpu.get("persistence_mode") is False:
        text = "persistence mode is off: the first use after a pause is slow"
        yield WARNING, text, f"nvidia-smi -i {number} -pm 1"
    if gpu["mode"] == "MIG" and not gpu.get("mig_devices"):
        text = "MIG mode is on and no MIG device exists"
        yield PROBLEM, text, f"nvidia-smi mig -i {number} -cgi … -C, or nvidia-smi -mig 0"


def _processes_text(processes: list[ProbeAnswer], nvml: ProbeAnswer) -> str:
    """Return how many processes use a GPU, their memory and the first names: "2 processes use it with 3.1 GiB (…)"."""
    sizes = [process["memory_bytes"] for process in processes if process["memory_bytes"]]
    used = f" with {sum(sizes) / _GIB:.1f} GiB" if sizes else ""
    if nvml.get("host_pids"):
        who = ", ".join(f"{p.get('name') or 'process'} {p['pid']}" for p in processes[:3])
        who += ", …" if len(processes) > 3 else ""
    else:
        who = "process ids are the host's"
    count = "1 process uses" if len(processes) == 1 else f"{len(processes)} processes use"
    return f"{count} it{used} ({who})"


# The libraries that TensorFlow loads before it accepts a GPU; CUDA's major version -> the versions of these, in order.
_CUDA_LIBRARIES = ("cudart", "cublasLt", "cublas", "cufft", "cusparse", "cusolver")
_LIBRARY_VERSIONS = {12: ("12", "12", "12", "11", "12", "11"), 13: ("13", "13", "13", "12", "12", "12")}
# Messages that frameworks print when they skip a GPU.
_SKIP_MESSAGE = re.compile(
    r"cannot dlopen|could not load dynamic library|dlerror|failed call to cuinit|"
    r"ignoring visible gpu|no kernel image|cuda_error|insufficient",
    re.I,
)


def needed_libraries(build: ProbeAnswer) -> list[str]:
    """Return the libraries a CUDA build of TensorFlow needs, CUPTI (for profiles) last."""
    version = str(build.get("cuda_version") or "")
    if not build.get("is_cuda_build") or not version[:2].isdigit():
        return []
    major = int(version[:2])
    versions = _LIBRARY_VERSIONS.get(major, ())
    names = [f"lib{name}.so.{number}" for name, number in zip(_CUDA_LIBRARIES, versions, strict=False)]
    if build.get("cudnn_version"):
        names.append(f"libcudnn.so.{str(build['cudnn_version']).split('.')[0]}")
    return [*names, f"libcupti.so.{major}"]


def none_installed(names: list[str]) -> Line:
    """Report that no framework is installed: a problem only where one was asked for."""
    missing = ", ".join(names)
    if len(names) > 1:
        text = (
            f"none of {missing}: this environment is for viewing only. Reports and the TensorBoard "
            "tab work; to record a training, install this package next to its framework"
        )
        return Line("framework", "installed", OK, text)
    cure = f"{INSTALL[names[0]]} in this Python environment"
    return Line("framework", "installed", PROBLEM, f"none of {missing} is installed here", cure)


@dataclass
class FrameworkCheck:
    """Checks of one framework.

    Args:
        name: "tensorflow", "jax" or "torch".
        distributions: (name, version) of all packages that provide it.
        answer: of its probe.
        nvml, cuda: of the driver's probes.
        environ: environment variables.
        libraries: those that it needs -> whether and whence each loads, as far as they were looked for.
        used: False where another Keras backend is chosen: its problems are warnings then.
    """

    name: str
    distributions: list[tuple[str, str]]
    answer: ProbeAnswer
    nvml: ProbeAnswer
    cuda: ProbeAnswer
    environ: Mapping[str, str]
    libraries: ProbeAnswer
    used: bool = True

    def __post_init__(self) -> None:
        self._build: ProbeAnswer = self.answer.get("build") or {}
        self._needed_libraries = {
            library: facts
            for library, facts in self.libraries.items()
            if isinstance(facts, dict) and not library.startswith("libcupti")
        }
        self._missing = [library for library, facts in self._needed_libraries.items() if not facts.get("loads")]
        self._visible_gpus = [gpu for gpu in self.nvml.get("gpus", ()) if gpu["visible"]]
        self._problem_status = PROBLEM if self.used else WARNING
        self._install = INSTALL[self.name]

    def check(self) -> Iterator[Line]:
        """Yield all lines about it."""
        line, (distribution, version) = partial(Line, self.name), self.distributions[0]
        if len(self.distributions) > 1:
            conflicting = " and ".join(f"{other} {number}" for other, number in self.distributions)
            names = " ".join(other for other, _ in self.distributions)
            cure = f"pip uninstall -y {names}; {self._install}"
            yield line("installed", self._problem_status, f"{conflicting} overwrite each other", cure)
        if "build" not in self.answer:
            text = f"{distribution} {version}: {self.answer.get('error')}"
            yield line("import", self._problem_status, text, f"pip install --force-reinstall {distribution}")
            return
        yield line("build", *self._build_state())
        if "error" in self.libraries:
            yield line("CUDA libraries", WARNING, f"could not be looked for: {self.libraries['error']}")
        elif self._needed_libraries:
            yield line("CUDA libraries", *self._libraries_state())
        if self._build.get("is_cuda_build"):
            yield from self._check_build_fits()
        yield line("GPUs", *self._gpus_state())
        if self.name == "tensorflow" and self.answer["gpus"]:
            yield line("memory growth", *self._growth_state())

    def _build_state(self) -> tuple[str, str, str]:
        """Return (status, text, cure) of its build: with CUDA, ROCm or neither."""
        build, text = self._build, " ".join(self.distributions[0])
        if build.get("is_rocm_build"):
            return OK, f"{text}, for ROCm", ""
        if build.get("is_cuda_build"):
            versions = [("CUDA", build.get("cuda_version")), ("cuDNN", build.get("cudnn_version"))]
            parts = [text, *(f"{part} {version}" for part, version in versions if version), *build.get("plugins", ())]
            return OK, ", ".join(parts), ""
        text += " was built without CUDA"
        if not self._visible_gpus:
            return OK, text + ", and there is no GPU for it to use", ""
        cure = self._install
        if stray := [other for other, _ in self.distributions if other != self.name]:
            cure = f"pip uninstall -y {' '.join(stray)}; {cure}"
        return self._problem_status, text + ": training runs on the CPU", cure

    def _libraries_state(self) -> tuple[str, str, str]:
        """Return (status, text, cure) of the CUDA libraries that it needs."""
        names, missing = list(self._needed_libraries), self._missing
        if not missing:
            folders = sorted({facts["path"].rsplit("/", 1)[0] for facts in self._needed_libraries.values()})
            where = folders[0] if len(folders) == 1 else f"{folders[0]} and {len(folders) - 1} more"
            return OK, f"all {len(names)} load, from {where}", ""
        text = f"{len(names) - len(missing)} of {len(names)} load; missing: {', '.join(missing)}"
        if not self._visible_gpus:
            return OK, text + " (no GPU would use them)", ""
        cure = self._install
        if all("cudnn" in library for library in missing):
            runtime = next((library for library in names if library.startswith("libcudart")), ".12")
            major = runtime.split(".so.")[-1].split(".")[0]
            cure = f"pip install nvidia-cudnn-cu{major}, or {cure}"
        return self._problem_status, text, cure

    def _check_build_fits(self) -> Iterator[Line]:
        """Check that the driver supports this CUDA and that the build has code for these GPUs."""
        build_cuda, driver_cuda = self._build.get("cuda_version"), self.nvml.get("cuda_version")
        if build_cuda and driver_cuda and _major_minor(build_cuda)[0] > _major_minor(driver_cuda)[0]:
            driver = f"driver {self.nvml.get('driver_version')} supports {driver_cuda}"
            text = f"this build needs CUDA {build_cuda}; {driver}"
            yield Line(self.name, "driver", self._problem_status, text, "update the NVIDIA driver")
        codes = self._build.get("cuda_compute_capabilities") or []
        for capability in sorted({gpu.get("compute_capability") for gpu in self._visible_gpus} - {None}):
            gpu_code = _major_minor(capability)
            native = [_capability(code) for code in codes if code.startswith("sm_")]
            portable = [_capability(code) for code in codes if code.startswith("compute_")]
            # Machine code runs on its own major version and newer minors; PTX on anything newer.
            if any(code[0] == gpu_code[0] and code <= gpu_code for code in native) or not codes:
                continue
            if any(code <= gpu_code for code in portable):
                status = WARNING
                text = f"no machine code for {capability}: kernels are compiled at the first start, which takes minutes"
                keep = "keep ~/.nv/ComputeCache (mount it into containers)"
                cure = f"it is done once: {keep}, with CUDA_CACHE_MAXSIZE=4294967296"
            else:
                status = self._problem_status
                text = f"this build has no code for compute capability {capability} (it has {', '.join(codes)})"
                cure = f"another version of {self.name}, or another GPU"
            yield Line(self.name, "compute capability", status, text, cure)

    def _gpus_state(self) -> tuple[str, str, str]:
        """Return (status, text, cure) of how many GPUs it sees, of those that there are."""
        seen, existing = len(self.answer["gpus"]), len(self.nvml.get("gpus", ()))
        text = f"{self.name} sees {seen} of {existing}"
        if seen and seen >= len(self._visible_gpus):
            return OK, text, ""
        if not existing and not seen:
            return OK, f"{self.name} sees none, like the driver", ""
        why, cure = self._why_fewer_gpus()
        return self._problem_status if seen == 0 else WARNING, f"{text}: {why}", cure

    def _why_fewer_gpus(self) -> tuple[str, str]:
        """Return the reason why it sees fewer GPUs than there are, and the cure; the first reason that holds."""
        answer, cuda = self.answer, self.cuda
        if not self._visible_gpus:
            return "CUDA_VISIBLE_DEVICES hides them", "unset CUDA_VISIBLE_DEVICES"
        if not self._build.get("is_cuda_build"):
            return "its build has no CUDA", self._install
        if self._missing:
            return f"{', '.join(self._missing)} cannot be loaded", self._install
        if not cuda.get("loads", True) or cuda.get("init", 0) != 0:
            return "the CUDA driver library does not work (above)", "see the driver's line"
        platforms = self.environ.get("JAX_PLATFORMS") or self.environ.get("JAX_PLATFORM_NAME")
        if self.name == "jax" and platforms:
            return f"JAX_PLATFORMS={platforms}", "unset JAX_PLATFORMS"
        if answer.get("init_error"):
            return answer["init_error"].splitlines()[0], self._install
        skip_lines = [line for line in answer.get("stderr", "").splitlines() if _SKIP_MESSAGE.search(line)]
        if skip_lines:
            return f"it says: {skip_lines[0].strip()[:200]}", ""
        return "for an unknown reason", f"see what `python -c 'import {self.name}'` prints"

    def _growth_state(self) -> tuple[str, str, str]:
        """Return (status, text, cure) of TensorFlow's memory growth."""
        if any(self.answer.get("memory_growth") or []):
            return OK, "on: memory is taken as it is needed", ""
        text = "off: TensorFlow reserves nearly all GPU memory at startup"
        if any(gpu.get("processes") for gpu in self._visible_gpus):
            return WARNING, text + "; others use these GPUs, too", "TF_FORCE_GPU_ALLOW_GROWTH=true"
        return OK, text, ""


def _major_minor(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version: (12, 4) of "12.4.1"; (0,) if it has none."""
    return tuple(int(part) for part in re.findall(r"\d+", str(version))[:2]) or (0,)


def _capability(code: str) -> tuple[int, ...]:
    """Return the compute capability that code of a build is for: (8, 6) of "sm_86"."""
    digits = re.sub(r"\D", "", code)
    return (int(digits[:-1] or 0), int(digits[-1:] or 0))


OK, WARNING, PROBLEM = "ok", "warning", "problem"
_ORDER = (OK, WARNING, PROBLEM)
# What stands in front of a line, and its colour.
_MARKS = {OK: ("  ok   ", "32"), WARNING: ("  warn ", "33"), PROBLEM: ("  FAIL ", "31")}


@dataclass(frozen=True)
class Line:
    """The result of one check.

    Attributes:
        section: "driver", "GPUs", "environment", "tensorflow", …
        check: what was checked: "NVML", a variable's name.
        status: `OK`, `WARNING` or `PROBLEM`.
        cure: what to do; "" = nothing.
    """

    section: str
    check: str
    status: str
    text: str
    cure: str = ""


@dataclass(frozen=True)
class Report:
    """All lines, and the facts they rest on."""

    lines: list[Line]
    facts: ProbeAnswer = field(default_factory=dict)

    @property
    def status(self) -> str:
        """The worst status of all lines."""
        return max((line.status for line in self.lines), key=_ORDER.index, default=OK)

    def to_json(self) -> ProbeAnswer:
        """Return {"version", "status", "lines": [a Line's fields], "facts": probes' answers}."""
        return {
            "version": 1,
            "status": self.status,
            "lines": [asdict(line) for line in self.lines],
            "facts": self.facts,
        }

    def render(self, color: bool = False, width: int | None = None) -> str:
        """Return one screen of text; the verdict is its last line."""
        width = width or min(shutil.get_terminal_size((100, 24)).columns, 120)
        out: list[str] = []

        def painted(text: str, code: str) -> str:
            return f"\033[{code}m{text}\033[0m" if color else text

        for section, lines in groupby(self.lines, lambda line: line.section):
            out.append(painted(section, "1"))
            for line in lines:
                first, *more = textwrap.wrap(f"{line.check}: {line.text}", width - 7)
                if line.cure and line.status != OK:
                    more += textwrap.wrap(f"→ {line.cure}", width - 9, subsequent_indent="  ")
                out += [painted(*_MARKS[line.status]) + first, *(" " * 9 + part for part in more)]
        statuses = [line.status for line in self.lines]
        counts = [counted(statuses.count(status), status) for status in (PROBLEM, WARNING) if status in statuses]
        verdict = f"{' and '.join(counts)}." if counts else "No problems found."
        return "\n".join([*out, verdict])
