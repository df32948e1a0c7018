"""Job of this process and its rank in it, its scheduler and its user, from the environment."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
# What Kubernetes appends to the names of the pods it makes: five of these characters.
_OF_A_JOB = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{5}$")
_OF_A_DEPLOYMENT = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{6,10}$")


class JobFacts(TypedDict):
    """The process's place in a job: facts of the manifest."""

    job: str | None
    job_source: str | None
    rank: int
    world_size: int


def job_facts(
    job: str | None = None, environ: Mapping[str, str] = os.environ, framework: tuple[str, str, int, int] | None = None
) -> JobFacts:
    """Return {"job", "job_source", "rank", "world_size"}; all workers of a job agree on `job`.

    Args:
        job: a name given by the user; it overrides what is detected.
        environ: environment variables.
        framework: (source, identity, rank, workers) as reported by the framework itself.

    Returns: `job` is None for a process on its own.
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
    """Return (source, identity shared by all workers, rank, workers)."""

    def number(*names: str, default: int) -> int:
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
    if size > 1 and "RANK" in environ:
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
        redact: replace the job by a stable digest of it.
    """
    scheduler = _slurm(environ) or _ray_job(environ) or _kubernetes(environ, host, namespace_file)
    if scheduler is not None and redact:
        digest = hashlib.sha256(f"{scheduler['name']}:{scheduler['job']}".encode()).hexdigest()
        scheduler["job"] = f"job-{digest[:10]}"
    return scheduler


def _slurm(environ: Mapping[str, str]) -> dict[str, object] | None:
    job = environ.get("SLURM_JOB_ID")
    if not job:
        return None
    try:
        restarts = int(environ.get("SLURM_RESTART_COUNT", "0"))  # set by a requeue only
    except ValueError:
        restarts = 0
    return {"name": "SLURM", "job": job, "restarts": restarts}


def _kubernetes(environ: Mapping[str, str], host: str | None, namespace_file: str) -> dict[str, object] | None:
    if "KUBERNETES_SERVICE_HOST" not in environ:
        return None
    pod = socket.gethostname() if host is None else host
    try:
        namespace = Path(namespace_file).read_text().strip()
    except OSError:
        namespace = ""
    # A Job's new pod has a new name; one of a StatefulSet or of a training operator keeps its own.
    job, of_a_job = _OF_A_JOB.subn("", pod)
    if of_a_job:
        job = _OF_A_DEPLOYMENT.sub("", job)
    return {"name": "Kubernetes", "job": f"{namespace}/{job}" if namespace else job, "restarts": None}


def _ray_job(environ: Mapping[str, str]) -> dict[str, object] | None:
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
