"""A framework's build, its libraries, and the reasons for the GPUs it sees."""

import re
from collections.abc import Mapping
from typing import Any

from gpu_util_callback.doctor._report import OK, PROBLEM, WARNING, Line
from gpu_util_callback.unused_gpu import INSTALL

__all__ = ["check_framework", "needed_libraries", "none_installed"]

# CUDA major version -> the libraries TensorFlow loads before it accepts a GPU.
_CUDA_LIBRARIES = {
    11: ("libcudart.so.11.0", "libcublasLt.so.11", "libcublas.so.11", "libcufft.so.10",
         "libcusparse.so.11", "libcusolver.so.11"),
    12: ("libcudart.so.12", "libcublasLt.so.12", "libcublas.so.12", "libcufft.so.11",
         "libcusparse.so.12", "libcusolver.so.11"),
    13: ("libcudart.so.13", "libcublasLt.so.13", "libcublas.so.13", "libcufft.so.12",
         "libcusparse.so.12", "libcusolver.so.12"),
}  # fmt: skip
# Messages that frameworks print when they skip a GPU.
_TELLING = re.compile(
    r"cannot dlopen|could not load dynamic library|dlerror|failed call to cuinit|"
    r"ignoring visible gpu|no kernel image|cuda_error|insufficient",
    re.I,
)


def needed_libraries(build: Mapping[str, Any]) -> list[str]:
    """Return the libraries a CUDA build of TensorFlow needs, CUPTI (for profiles) last."""
    version = str(build.get("cuda_version") or "")
    if not build.get("is_cuda_build") or not version[:2].isdigit():
        return []
    major = int(version[:2])
    names = list(_CUDA_LIBRARIES.get(major, ()))
    if build.get("cudnn_version"):
        names.append(f"libcudnn.so.{str(build['cudnn_version']).split('.')[0]}")
    cupti = ".".join(version.split(".")[:2]) if major == 11 else str(major)
    return [*names, f"libcupti.so.{cupti}"]


def none_installed(names: list[str]) -> Line:
    """Report that no framework is installed: a problem only where one was asked for."""
    wanted = ", ".join(names)
    if len(names) > 1:
        return Line(
            "framework", "installed", OK,
            f"none of {wanted}: this is a viewer's environment. Reports and the TensorBoard tab "
            "work; to record a training, install this package beside its framework",
        )  # fmt: skip
    return Line("framework", "installed", PROBLEM, f"none of {wanted} is installed here",
                f"{INSTALL[names[0]]} in this Python environment")  # fmt: skip


def check_framework(
    name: str,
    distributions: list[tuple[str, str]],
    answer: dict[str, Any],
    nvml: dict[str, Any],
    cuda: dict[str, Any],
    environ: Mapping[str, str],
    libraries: dict[str, Any],
    used: bool = True,
) -> list[Line]:
    """Return all lines about one framework.

    Args:
        distributions: (name, version) of all packages that provide it.
        used: False where another Keras backend is chosen.
    """
    visible = [gpu for gpu in nvml.get("gpus", ()) if gpu["visible"]]
    severe = PROBLEM if used else WARNING
    distribution, version = distributions[0]
    lines: list[Line] = []
    if len(distributions) > 1:
        both = " and ".join(f"{other} {number}" for other, number in distributions)
        names = " ".join(other for other, _ in distributions)
        lines.append(
            Line(name, "installed", severe, f"{both} overwrite each other",
                 f"pip uninstall -y {names}; {INSTALL[name]}")
        )  # fmt: skip
    if "build" not in answer:
        return [
            *lines,
            Line(name, "import", severe, f"{distribution} {version}: {answer.get('error')}",
                 f"pip install --force-reinstall {distribution}")
        ]  # fmt: skip
    build = answer["build"]
    lines.append(_build_line(name, distributions, build, visible, severe))
    missing = _missing(libraries)
    if libraries:
        lines.append(_libraries_line(name, libraries, missing, visible, severe))
    if build.get("is_cuda_build"):
        lines += _fits(name, build, nvml, visible, severe)
    lines.append(_gpus_line(name, answer, nvml, cuda, visible, missing, environ, severe))
    if name == "tensorflow" and answer["gpus"]:
        lines.append(_growth_line(answer, visible))
    return lines


def _build_line(
    name: str,
    distributions: list[tuple[str, str]],
    build: dict[str, Any],
    visible: list[Any],
    severe: str,
) -> Line:
    distribution, version = distributions[0]
    if build.get("is_rocm_build"):
        return Line(name, "build", OK, f"{distribution} {version}, for ROCm")
    if build.get("is_cuda_build"):
        parts = [f"{distribution} {version}"]
        if build.get("cuda_version"):
            parts.append(f"CUDA {build['cuda_version']}")
        if build.get("cudnn_version"):
            parts.append(f"cuDNN {build['cudnn_version']}")
        if build.get("plugins"):
            parts.append(", ".join(build["plugins"]))
        return Line(name, "build", OK, ", ".join(parts))
    text = f"{distribution} {version} was built without CUDA"
    if not visible:
        return Line(name, "build", OK, text + ", and there is no GPU for it to use")
    cure = INSTALL[name]
    if stray := [other for other, _ in distributions if other != name]:
        cure = f"pip uninstall -y {' '.join(stray)}; {cure}"
    return Line(name, "build", severe, text + ": training runs on the CPU", cure)


def _missing(libraries: dict[str, Any]) -> list[str]:
    return [
        library
        for library, found in libraries.items()
        if not found.get("loads") and not library.startswith("libcupti")
    ]


def _libraries_line(
    name: str, libraries: dict[str, Any], missing: list[str], visible: list[Any], severe: str
) -> Line:
    needed = [library for library in libraries if not library.startswith("libcupti")]
    if not missing:
        folders = sorted({libraries[library]["path"].rsplit("/", 1)[0] for library in needed})
        where = folders[0] if len(folders) == 1 else f"{folders[0]} and {len(folders) - 1} more"
        return Line(name, "CUDA libraries", OK, f"all {len(needed)} load, from {where}")
    text = f"{len(needed) - len(missing)} of {len(needed)} load; missing: {', '.join(missing)}"
    if not visible:
        return Line(name, "CUDA libraries", OK, text + " (no GPU would use them)")
    cure = INSTALL[name]
    if missing == [library for library in missing if "cudnn" in library]:
        cure = f"pip install nvidia-cudnn-cu{_major(needed)}, or {cure}"
    return Line(name, "CUDA libraries", severe, text, cure)


def _major(needed: list[str]) -> str:
    runtime = next((library for library in needed if library.startswith("libcudart")), ".12")
    return runtime.split(".so.")[-1].split(".")[0]


def _fits(
    name: str, build: dict[str, Any], nvml: dict[str, Any], visible: list[Any], severe: str
) -> list[Line]:
    """Check that the driver supports this CUDA and that the build has code for these GPUs."""
    lines = []
    wanted, offered = build.get("cuda_version"), nvml.get("cuda_version")
    if wanted and offered and _numbers(wanted)[0] > _numbers(offered)[0]:
        lines.append(
            Line(name, "driver", severe,
                 f"this build needs CUDA {wanted}; driver {nvml.get('driver_version')} supports "
                 f"{offered}", "update the NVIDIA driver")
        )  # fmt: skip
    codes = build.get("cuda_compute_capabilities") or []
    for capability in sorted({gpu.get("compute_capability") for gpu in visible} - {None}):
        own = _numbers(capability)
        native = [_code(code) for code in codes if code.startswith("sm_")]
        portable = [_code(code) for code in codes if code.startswith("compute_")]
        # Machine code runs on its own major version and newer minors; PTX on anything newer.
        if any(code[0] == own[0] and code <= own for code in native) or not codes:
            continue
        if any(code <= own for code in portable):
            lines.append(
                Line(name, "compute capability", WARNING,
                     f"no machine code for {capability}: kernels are compiled at the first start, "
                     "which takes minutes",
                     "it is done once: keep ~/.nv/ComputeCache (mount it into containers), with "
                     "CUDA_CACHE_MAXSIZE=4294967296")
            )  # fmt: skip
        else:
            lines.append(
                Line(name, "compute capability", severe,
                     f"this build has no code for compute capability {capability} (it has "
                     f"{', '.join(codes)})", f"another version of {name}, or another GPU")
            )  # fmt: skip
    return lines


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", str(version))[:2]) or (0,)


def _code(code: str) -> tuple[int, ...]:
    digits = re.sub(r"\D", "", code)
    return (int(digits[:-1] or 0), int(digits[-1:] or 0))


def _gpus_line(
    name: str,
    answer: dict[str, Any],
    nvml: dict[str, Any],
    cuda: dict[str, Any],
    visible: list[Any],
    missing: list[str],
    environ: Mapping[str, str],
    severe: str,
) -> Line:
    own, every = len(answer["gpus"]), len(nvml.get("gpus", ()))
    text = f"{name} sees {own} of {every}"
    if own and own >= len(visible):
        return Line(name, "GPUs", OK, text)
    if not every and not own:
        return Line(name, "GPUs", OK, f"{name} sees none, as the driver does")
    why, cure = _why(name, answer, cuda, visible, missing, environ)
    return Line(name, "GPUs", severe if own == 0 else WARNING, f"{text}: {why}", cure)


def _why(
    name: str,
    answer: dict[str, Any],
    cuda: dict[str, Any],
    visible: list[Any],
    missing: list[str],
    environ: Mapping[str, str],
) -> tuple[str, str]:
    """Return the reason why a framework sees fewer GPUs than there are, and the cure."""
    if not visible:
        return "CUDA_VISIBLE_DEVICES hides them", "unset CUDA_VISIBLE_DEVICES"
    if not answer["build"].get("is_cuda_build"):
        return "its build has no CUDA", INSTALL[name]
    if missing:
        return f"{', '.join(missing)} cannot be loaded", INSTALL[name]
    if not cuda.get("loads", True) or cuda.get("init", 0) != 0:
        return "the CUDA driver library does not work (above)", "see the driver's line"
    platforms = environ.get("JAX_PLATFORMS") or environ.get("JAX_PLATFORM_NAME")
    if name == "jax" and platforms:
        return f"JAX_PLATFORMS={platforms}", "unset JAX_PLATFORMS"
    if answer.get("init_error"):
        return answer["init_error"].splitlines()[0], INSTALL[name]
    said = [line for line in answer.get("stderr", "").splitlines() if _TELLING.search(line)]
    if said:
        return f"it says: {said[0].strip()[:200]}", ""
    return "for a reason it does not tell", f"see what `python -c 'import {name}'` prints"


def _growth_line(answer: dict[str, Any], visible: list[Any]) -> Line:
    grows = answer.get("memory_growth") or []
    if any(grows):
        return Line("tensorflow", "memory growth", OK, "on: memory is taken as it is needed")
    text = "off: TensorFlow takes nearly all GPU memory at start, whatever it needs"
    if any(gpu.get("processes") for gpu in visible):
        return Line("tensorflow", "memory growth", WARNING, text + "; others use these GPUs, too",
                    "TF_FORCE_GPU_ALLOW_GROWTH=true")  # fmt: skip
    return Line("tensorflow", "memory growth", OK, text)
