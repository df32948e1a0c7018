"""The examination: all probes and checks, in the order of their dependencies."""

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpu_util_callback.doctor import _checks
from gpu_util_callback.doctor._report import Line, Report
from gpu_util_callback.doctor.probe import MARK
from gpu_util_callback.unused_gpu import why_unused

__all__ = ["examine", "quick_check"]

# framework -> the distributions that provide it
FRAMEWORKS = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tf-nightly", "tensorflow-intel"),
    "jax": ("jax",),
    "torch": ("torch",),
}
_KEPT_STDERR = 4_000


def installed(framework: str) -> list[tuple[str, str]]:
    """Return (distribution, version) of all that provide a framework, from metadata alone."""
    found = []
    for name in FRAMEWORKS[framework]:
        try:
            found.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def run_probes(wanted: dict[str, list[str]], timeout_s: float) -> dict[str, dict[str, Any]]:
    """Run probes (name -> arguments); return name -> its answer, {"error"} if it failed or hung."""
    with ThreadPoolExecutor(max(len(wanted), 1)) as pool:
        running = {
            name: pool.submit(_run, [name, *arguments], timeout_s)
            for name, arguments in wanted.items()
        }
        return {name: future.result() for name, future in running.items()}


def _run(arguments: list[str], timeout_s: float) -> dict[str, Any]:
    root = str(Path(__file__).resolve().parents[2])
    paths = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), root]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gpu_util_callback.doctor.probe", *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {timeout_s:g} s", "timeout": True}
    except OSError as error:
        return {"error": str(error)}
    answer: dict[str, Any] = {"error": "no answer"}
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(MARK):
            answer = json.loads(line[len(MARK) :])
            break
    else:
        if done.returncode < 0:
            answer = {"error": f"the process died of {signal.Signals(-done.returncode).name}"}
        elif done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            answer = {"error": f"the process failed: {last[0]}"}
    answer["stderr"] = done.stderr[-_KEPT_STDERR:]
    return answer


def examine(framework: str | None = None, timeout_s: float = 60) -> Report:
    """Check driver, GPUs, environment, and each installed framework (or only the named one).

    Nothing is imported here: every probe runs in its own process and may fail, hang or crash.
    """
    names = [framework] if framework else list(FRAMEWORKS)
    present = {name: found for name in names if (found := installed(name))}
    answers = run_probes({"nvml": [], "cuda": [], **{name: [] for name in present}}, timeout_s)
    nvml, cuda = answers["nvml"], answers["cuda"]
    libraries: dict[str, Any] = {}
    needed = _checks.needed_libraries(answers.get("tensorflow", {}).get("build") or {})
    if needed:
        libraries = run_probes({"libraries": [",".join(needed)]}, timeout_s)["libraries"]
        libraries.pop("stderr", None)
    environ = dict(os.environ)
    backend = _checks.backend(environ)
    lines: list[Line] = [
        *_checks.check_driver(nvml, cuda),
        *_checks.check_gpus(nvml),
        *_checks.check_environment(environ, nvml),
        *_checks.check_profiler(nvml, libraries),
    ]
    for name, distributions in present.items():
        answer = answers[name]
        lines += _checks.check_framework(
            name, distributions, answer, nvml, cuda, environ,
            libraries if name == "tensorflow" else {}, used=backend in (None, name),
        )  # fmt: skip
    if not present:
        lines.append(_checks.none_installed(names))
    facts = {
        "nvml": nvml, "cuda": cuda, "libraries": libraries, "backend": backend,
        "environment": _checks.relevant(environ),
        "frameworks": {name: answers[name] for name in present},
    }  # fmt: skip
    return Report(lines, facts)


def quick_check(
    framework_gpus: Sequence[Any] | None,
    nvml_gpus: Sequence[Mapping[str, Any]],
    build_info: Mapping[str, Any] | None,
    environ: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Return the problems with the GPUs this training uses.

    Args:
        framework_gpus: the framework's GPUs; None or empty = it has none.
        nvml_gpus: `Sampler.nvml_gpus`: all GPUs the driver sees, with "visible".
        build_info: {"framework", "is_cuda_build", …} of the framework, None = unknown.
        environ: os.environ of the training.

    Returns:
        [{"cause": "cpu_fallback" | "gpus_unused", "status": "problem" | "warning", "reason",
        "cure", "evidence"}] and, for the first, "code": the line to run; [] when all is well or
        there is no GPU.
    """
    environ = os.environ if environ is None else environ
    own = len(framework_gpus or ())
    visible = sum(bool(gpu.get("visible", True)) for gpu in nvml_gpus)
    build = dict(build_info or {})
    evidence = {
        "gpus": len(nvml_gpus),
        "visible_gpus": visible,
        "framework_gpus": own,
        "is_cuda_build": build.get("is_cuda_build"),
    }
    if not nvml_gpus:
        return []
    if own == 0:
        framework = str(build.get("framework") or "")
        why = why_unused(framework, len(nvml_gpus), visible, build.get("is_cuda_build"), environ)
        status = "warning" if why.chosen else "problem"
        found = _finding("cpu_fallback", status, why.reason, why.cure, evidence)
        return [found | {"code": why.code}]
    if own < visible:
        return [
            _finding(
                "gpus_unused", "warning", f"{visible} GPUs are free to use and {own} is used"
                if own == 1 else f"{visible} GPUs are free to use and {own} are used",
                "train on all of them with `tf.distribute.MirroredStrategy` (JAX, torch: "
                "`keras.distribution`), or set CUDA_VISIBLE_DEVICES to the one you want",
                evidence,
            )
        ]  # fmt: skip
    return []


def _finding(
    cause: str, status: str, reason: str, cure: str, evidence: dict[str, Any]
) -> dict[str, Any]:
    return {
        "cause": cause, "status": status, "reason": reason, "cure": cure, "evidence": evidence
    }  # fmt: skip
