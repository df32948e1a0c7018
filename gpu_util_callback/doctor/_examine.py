"""Asking everything, in the order that one answer needs another."""

import os
from typing import Any

from gpu_util_callback.doctor import _driver, _environment, _framework
from gpu_util_callback.doctor._report import Line, Report
from gpu_util_callback.doctor._run import FRAMEWORKS, installed, run_probes

__all__ = ["examine"]


def examine(framework: str | None = None, timeout_s: float = 60) -> Report:
    """Check driver, GPUs, environment, and each installed framework (or only the named one).

    Nothing is imported here: every probe runs in a process of its own and may fail, hang or crash.
    """
    names = [framework] if framework else list(FRAMEWORKS)
    present = {name: found for name in names if (found := installed(name))}
    answers = run_probes({"nvml": [], "cuda": [], **{name: [] for name in present}}, timeout_s)
    nvml, cuda = answers["nvml"], answers["cuda"]
    libraries: dict[str, Any] = {}
    needed = _framework.needed_libraries(answers.get("tensorflow", {}).get("build") or {})
    if needed:
        libraries = run_probes({"libraries": [",".join(needed)]}, timeout_s)["libraries"]
        libraries.pop("stderr", None)
    environ = dict(os.environ)
    backend = _environment.backend(environ)
    lines: list[Line] = [
        *_driver.check_driver(nvml, cuda),
        *_driver.check_gpus(nvml),
        *_environment.check_environment(environ, nvml),
        *_environment.check_profiler(nvml, libraries),
    ]
    for name, distributions in present.items():
        answer = answers[name]
        lines += _framework.check_framework(
            name, distributions, answer, nvml, cuda, environ,
            libraries if name == "tensorflow" else {}, used=backend in (None, name),
        )  # fmt: skip
    if not present:
        lines.append(_framework.none_installed(names))
    facts = {
        "nvml": nvml, "cuda": cuda, "libraries": libraries, "backend": backend,
        "environment": _environment.relevant(environ),
        "frameworks": {name: answers[name] for name in present},
    }  # fmt: skip
    return Report(lines, facts)
