"""Job of this process: its rank in it, its scheduler, user and script, and Ray's trial or run."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from gpu_util_callback.redaction import hashed_script

_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
# What Kubernetes appends to the names of the pods it makes: five of these characters.
_POD_SUFFIX = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{5}$")
_REPLICA_SET_SUFFIX = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{6,10}$")


def job_facts(
    job: str | None = None, environ: Mapping[str, str] = os.environ, framework: tuple[str, str, int, int] | None = None
) -> dict[str, str | int | None]:
    """Return {"job", "job_source", "rank", "world_size"}; all workers of a job agree on `job`.

    Args:
        job: a name given by the user; it overrides what is detected.
        environ: environment variables.
        framework: (source, identity, rank, workers) as reported by the framework itself.

    Returns: `job` is a digest of the identity, None for a process on its own.
    """
    source, identity, rank, size = _rendezvous(environ)
    if framework is not None:
        # The framework's view is authoritative, but the name must be the same in all workers of a
        # job.
        source, rank, size = source or framework[0], framework[2], framework[3]
        identity = identity or framework[1]
    if job is not None:
        source, identity = "argument", job
    digest = None
    if identity:
        digest = hashlib.sha256(f"{source}:{identity}".encode()).hexdigest()[:12]
    return {"job": digest, "job_source": source, "rank": rank, "world_size": size}


def _rendezvous(environ: Mapping[str, str]) -> tuple[str | None, str | None, int, int]:
    """Return (source, identity shared by all workers, rank, workers) from what a launcher set in the environment.

    (None, None, 0, 1) where no launcher is recognised.
    """

    def number(*names: str, default: int) -> int:
        """Return the first of these variables that is a whole number, else `default`."""
        for name in names:
            try:
                return int(environ[name])
            except (KeyError, ValueError):
                continue
        return default

    try:
        config = json.loads(environ["TF_CONFIG"])
        cluster, task = config["cluster"], config["task"]
        workers = list(cluster.get("chief", [])) + list(cluster.get("worker", []))
        index = int(task["index"])
        if task["type"] == "worker":
            index += len(cluster.get("chief", []))
        if len(workers) > 1:
            return "TF_CONFIG", json.dumps(cluster, sort_keys=True), index, len(workers)
    except (KeyError, TypeError, ValueError, AttributeError):
        pass
    size = number("WORLD_SIZE", default=1)
    if size > 1 and "RANK" in environ:  # torchrun, or a script that sets the same variables
        run = environ.get("TORCHELASTIC_RUN_ID")
        identity = run if run and run != "none" else None
        identity = identity or ":".join(environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
        return "torchelastic", identity, number("RANK", default=0), size
    size = number("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", default=1)
    if size > 1 and "SLURM_JOB_ID" in environ and "SLURM_PROCID" in environ:
        identity = f"{environ['SLURM_JOB_ID']}.{environ.get('SLURM_STEP_ID', '')}"
        return "SLURM", identity, number("SLURM_PROCID", default=0), size
    coordinator = environ.get("JAX_COORDINATOR_ADDRESS")
    size = number("JAX_NUM_PROCESSES", default=1)
    if coordinator and size > 1:
        return "JAX coordinator", coordinator, number("JAX_PROCESS_ID", default=0), size
    size = number("OMPI_COMM_WORLD_SIZE", default=1)
    if size > 1:
        identity = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid")
        return "Open MPI", identity, number("OMPI_COMM_WORLD_RANK", default=0), size
    return None, None, 0, 1


def scheduler_facts(
    environ: Mapping[str, str] = os.environ,
    host: str | None = None,
    namespace_file: str = _NAMESPACE,
    redact: bool = False,
) -> dict[str, object] | None:
    """Return {"name", "job", "restarts"} of the scheduler that started this process, else None.

    `job` stays the same when the scheduler starts the job again; `restarts` counts how often it
    has, None where the scheduler does not say.

    Args:
        host: the host name, by which Kubernetes names its pods; None = this machine's.
        namespace_file: where Kubernetes writes the pod's namespace.
        redact: replace the job by a stable digest of it.
    """
    scheduler = _slurm_job(environ) or _ray_job(environ) or _kubernetes(environ, host, namespace_file)
    if scheduler is not None and redact:
        digest = hashlib.sha256(f"{scheduler['name']}:{scheduler['job']}".encode()).hexdigest()
        scheduler["job"] = f"job-{digest[:10]}"
    return scheduler


def _slurm_job(environ: Mapping[str, str]) -> dict[str, object] | None:
    """Return the SLURM job of this process; None outside SLURM."""
    job = environ.get("SLURM_JOB_ID")
    if not job:
        return None
    try:
        restarts = int(environ.get("SLURM_RESTART_COUNT", "0"))  # set by a requeue only
    except ValueError:
        restarts = 0
    return {"name": "SLURM", "job": job, "restarts": restarts}


def _kubernetes(environ: Mapping[str, str], host: str | None, namespace_file: str) -> dict[str, object] | None:
    """Return the job that a pod belongs to: its name without random suffixes; None outside Kubernetes."""
    if "KUBERNETES_SERVICE_HOST" not in environ:
        return None
    pod = socket.gethostname() if host is None else host
    try:
        namespace = Path(namespace_file).read_text().strip()
    except OSError:
        namespace = ""
    # A Job's new pod has a new name; one of a StatefulSet or of a training operator keeps its own.
    job, had_suffix = _POD_SUFFIX.subn("", pod)
    if had_suffix:  # a Deployment's pod has its replica set's, too
        job = _REPLICA_SET_SUFFIX.sub("", job)
    return {"name": "Kubernetes", "job": f"{namespace}/{job}" if namespace else job, "restarts": None}


def _ray_job(environ: Mapping[str, str]) -> dict[str, object] | None:
    """Return the job that `ray job submit` runs; None outside one."""
    try:  # where `ray job submit` keeps what it knows of the job it runs
        job = json.loads(environ["RAY_JOB_CONFIG_JSON_ENV_VAR"])["metadata"]["job_submission_id"]
    except (KeyError, TypeError, ValueError):
        return None
    return {"name": "Ray", "job": str(job), "restarts": None} if job else None


def user_name() -> str | None:
    """Return the name of the user who trains, None where the system knows none."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # a container's user without an entry
        return None


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


def program_to_try(log_dir: str, main: object = None) -> str | None:
    """Return this program as one types it behind `gpu-util try`: `train.py`, `--log-dir runs/a -m package.train`.

    Args:
        log_dir: where its recordings are.
        main: the main module; None = this process's.

    Returns: None where there is no script: a notebook, a console, `python -c`.
    """
    main = sys.modules.get("__main__") if main is None else main
    name = script_name(main=main)
    if name is None:
        return None
    is_module = getattr(main, "__spec__", None) is not None
    words = ["-m", name] if is_module else [_path_for_shell(str(getattr(main, "__file__", name)))]
    place = log_dir if "://" in log_dir else _path_for_shell(log_dir)
    return shlex.join([*(["--log-dir", place] if place != "logs" else []), *words])


def _path_for_shell(path: str) -> str:
    """Return a path for the shell that started this program: relative where both work in one folder, else absolute."""
    here, absolute = Path.cwd().resolve(), Path(path).resolve()
    shell = os.environ.get("PWD")
    in_one_folder = shell is None or Path(shell).resolve() == here
    return str(absolute.relative_to(here) if in_one_folder and absolute.is_relative_to(here) else absolute)


def hashed_arguments(argv: Sequence[str] | None = None) -> str:
    """Return a stand-in for the command line's arguments, by which equal ones are recognised; they may hold secrets.

    Args:
        argv: of the process, the script first; None = this one's.
    """
    arguments = list(sys.argv if argv is None else argv)[1:]
    return hashlib.sha256(json.dumps(arguments).encode(errors="surrogateescape")).hexdigest()[:12]


# ---- Ray -------------------------------------------------------------------------------------------


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
        """Return (source, identity, rank, workers), in the form of the other launchers; None for one process."""
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
    for find in (_train_worker, _tune_trial):
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
        return ray is not None and ray.is_initialized() and bool(ray.get_runtime_context().get_actor_id())
    except Exception:
        return False


def ray_gives_no_gpu() -> bool:
    """Return whether Ray gave this task or actor no GPU.

    Its process may see all of them: since 2.60 Ray leaves CUDA_VISIBLE_DEVICES as it was for those.
    """
    ray = sys.modules.get("ray")
    try:
        if ray is None or not ray.is_initialized():
            return False
        context = ray.get_runtime_context()
        is_worker = context.worker.mode == ray.WORKER_MODE  # not the program that started the tasks
        return is_worker and not context.get_accelerator_ids().get("GPU")
    except Exception:  # a Ray without these, or one that ends
        return False


def _train_worker() -> RayContext | None:
    """Return what Ray Train reports of this worker; None outside one."""
    train = sys.modules.get("ray.train")
    if train is None:
        return None
    context = train.get_context()
    size = context.get_world_size()
    name = _answer(context, "get_experiment_name")
    if not size or not name:
        return None
    runtime = sys.modules["ray"].get_runtime_context()
    identity = f"{runtime.gcs_address} {runtime.get_job_id()} {name}"
    rank = int(context.get_world_rank() or 0)
    return RayContext("Ray Train", name, rank=rank, world_size=int(size), identity=identity)


def _tune_trial() -> RayContext | None:
    """Return the trial of Ray Tune that this process runs; None outside one."""
    tune = sys.modules.get("ray.tune")
    if tune is None:
        return None
    context = tune.get_context()
    name = _answer(context, "get_trial_name")
    if not name:
        return None
    return RayContext("Ray Tune", name, _config_in_name(_answer(context, "get_trial_dir") or "", name))


def _answer(context: object, question: str) -> str | None:
    """Return what Ray answers; None for nothing, and where it raises because it no longer takes the question."""
    try:
        answer = getattr(context, question)()
    except Exception:
        return None
    return str(answer) if answer else None


def _config_in_name(folder: str, name: str) -> str:
    """Parse a trial's folder name: "trial_ab12_00000_0_batch_size=8_2026-01-31_12-00-00"."""
    tag = re.split(r"[/\\]", folder.rstrip("/\\"))[-1].removeprefix(f"{name}_")
    match = re.fullmatch(r"\d+_(.*?)(?:_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)?", tag)
    return match[1] if match and "=" in match[1] else ""
