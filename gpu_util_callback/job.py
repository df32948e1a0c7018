"""Job of this process and its rank in it, from the environment."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

__all__ = ["job_facts"]


def job_facts(
    job: str | None = None,
    environ: Mapping[str, str] = os.environ,
    framework: tuple[str, str, int, int] | None = None,
) -> dict[str, Any]:
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
        identity = identity or ":".join(
            environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT")
        )
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
