"""The identity of the running script, by which its next run is recognised as the same."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import PurePath
from types import ModuleType

from gpu_util_callback.redaction import hashed_script


def script_name(*, redact: bool = False, main: object = None) -> str | None:
    """Return `"train.py"`, or `"package.train"` for `python -m package.train`, without a folder.

    Args:
        redact: return a stable stand-in for the name, by which it is still recognised as the same.
        main: the main module; None = this process's.

    Returns: None where there is no script: a notebook, a console, `python -c`.
    """
    main = sys.modules.get("__main__") if main is None else main
    spec = getattr(main, "__spec__", None)
    file = getattr(main, "__file__", None)
    if hasattr(main, "get_ipython"):
        return None
    if spec is not None and getattr(spec, "name", None):
        name = str(spec.name).removesuffix(".__main__")
    elif file:
        name = PurePath(file).name
    else:
        return None
    return hashed_script(name) if redact else name


@dataclass(frozen=True)
class RayContext:
    """A training as Ray knows it.

    Attributes:
        part: "Ray Tune" or "Ray Train".
        name: the trial's name, or the run's.
        config: what distinguishes a trial from the others, in Ray's form: "batch_size=8,lr=0.1".
        rank, world_size: among the workers of a Ray Train run; a trial is on its own (0, 1).
        identity: shared by the workers of one run and by no other run; "" for a trial.
    """

    part: str
    name: str
    config: str = ""
    rank: int = 0
    world_size: int = 1
    identity: str = ""

    def facts(self) -> dict[str, str]:
        """Return the manifest's `trial`, `trial_of` and `trial_config`."""
        facts = {"trial": self.name, "trial_of": self.part}
        return facts | ({"trial_config": self.config} if self.config else {})

    def rendezvous(self) -> tuple[str, str, int, int] | None:
        """Return (source, identity, rank, workers), as frameworks do; None for one process."""
        if self.world_size < 2:
            return None
        return self.part, self.identity, self.rank, self.world_size

    def home(self, log_dir: str) -> str:
        """Return where to record: trials given one `log_dir` get a run of their own each."""
        if self.part != "Ray Tune" or self.name in log_dir or self.lost_folder(log_dir):
            return log_dir
        return f"{log_dir.rstrip('/')}/{self.name}"

    def lost_folder(self, log_dir: str) -> str | None:
        """Return where a relative `log_dir` leads: Ray gives each process a folder of its own.

        Returns: the whole path, None where `log_dir` is not relative.
        """
        if "://" in log_dir or os.path.isabs(os.path.expanduser(log_dir)):  # noqa: PTH111, PTH117
            return None
        return os.path.abspath(log_dir)  # noqa: PTH100


def ray_context() -> RayContext | None:
    """Return what Ray knows of the training on this thread, None outside of Ray.

    Only those parts of Ray are queried that the process has imported.
    """
    if not _in_an_actor():
        return None
    for find in (_train_worker, _trial):
        try:
            context = find()
        except Exception:  # Ray is imported, but this is none of its processes
            continue
        if context is not None:
            return context
    return None


def _in_an_actor() -> bool:
    """Return whether this is a process in which Ray runs trials or workers.

    Elsewhere Ray warns before it answers. Silencing that would change the warning filters, after
    which Python shows again each warning that the program has already shown once.
    """
    ray = sys.modules.get("ray")
    try:
        return ray is not None and ray.is_initialized() and bool(_actor(ray))
    except Exception:
        return False


def _actor(ray: ModuleType) -> str | None:
    return ray.get_runtime_context().get_actor_id()


def _train_worker() -> RayContext | None:
    train = sys.modules.get("ray.train")
    if train is None:
        return None
    context = train.get_context()
    size = context.get_world_size()
    name = _first(context, "get_experiment_name", "get_trial_name")
    if not size or not name:
        return None
    runtime = sys.modules["ray"].get_runtime_context()
    trial = _first(context, "get_trial_id") or ""  # of a Ray before 2.50: a run in a sweep
    identity = f"{runtime.gcs_address} {runtime.get_job_id()} {name} {trial}"
    return RayContext(
        "Ray Train", name, rank=int(context.get_world_rank() or 0), world_size=int(size), identity=identity
    )


def _trial() -> RayContext | None:
    tune = sys.modules.get("ray.tune")
    if tune is None:
        return None
    context = tune.get_context()
    name = _first(context, "get_trial_name")
    if not name:
        return None
    return RayContext("Ray Tune", name, _config(_first(context, "get_trial_dir") or "", name))


def _first(context: object, *questions: str) -> str | None:
    """Return the first valid answer; Ray raises where a question is no longer supported."""
    for question in questions:
        try:
            answer = getattr(context, question)()
        except Exception:
            continue
        if answer:
            return str(answer)
    return None


def _config(folder: str, name: str) -> str:
    """Parse a trial's folder name: "trial_ab12_00000_0_batch_size=8_2026-01-31_12-00-00"."""
    tag = re.split(r"[/\\]", folder.rstrip("/\\"))[-1].removeprefix(f"{name}_")
    match = re.fullmatch(r"\d+_(.*?)(?:_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)?", tag)
    return match[1] if match and "=" in match[1] else ""
