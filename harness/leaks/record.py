"""Record the corpus: real trainings, one forked process each; `python -m harness.leaks record`."""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from harness.leaks.held_out import HELD_OUT, HeldOut
from harness.leaks.programs import Case, cases

FILE = Path(__file__).with_name("runs.json.gz")
HELD_OUT_FILE = Path(__file__).with_name("held_out.json.gz")
ANY: dict[str, Case | HeldOut] = {**{case.name: case for case in cases()}, **HELD_OUT}
LIMIT_S = 90
STEP_COLUMNS = ("start_ns", "duration_ns", "compile_ns", "shape_id")
HOST = ("process_held_bytes", "workers_memory_bytes", "memory_available_bytes", "python_blocks", "workers")


def record(words: list[str]) -> int:
    """Record the cases with all the words, and keep what is recorded of the others."""
    wanted = [case for case in ANY.values() if all(word in case.name for word in words)]
    found: dict[str, Any] = {}
    for backend in dict.fromkeys(case.backend for case in wanted):
        found |= _in_processes(backend, [case for case in wanted if case.backend == backend])
    for file, names in ((FILE, ANY.keys() - HELD_OUT.keys()), (HELD_OUT_FILE, HELD_OUT.keys())):
        new = {name: run for name, run in found.items() if name in names}
        if new:
            known = load(file) if file.exists() else {}
            save({**known, **new}, file)
    return int(len(found) < len(wanted))


def load(path: Path = FILE) -> dict[str, Any]:
    """Return the recorded runs by name."""
    return json.loads(gzip.decompress(path.read_bytes()))


def save(runs: dict[str, Any], path: Path) -> None:
    """Write runs, one a line of JSON, so that a difference can be read."""
    text = json.dumps(dict(sorted(runs.items())), separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def _in_processes(backend: str, wanted: list[Case | HeldOut]) -> dict[str, Any]:
    """Return the runs of one backend, whose import one process shares with all it forks."""
    part = Path(tempfile.mkdtemp()) / "part.json.gz"
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.environ["KERAS_BACKEND"] = backend
            _import(backend, {case.kind for case in wanted})
            save({case.name: run for case in wanted if (run := _forked(case))}, part)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.waitpid(pid, 0)
    return load(part) if part.exists() else {}


def _import(backend: str, kinds: set[str]) -> None:
    import keras  # noqa: F401
    import psutil  # noqa: F401

    if backend == "tensorflow" or kinds & {"buffer", "cache_fits", "shuffle"}:
        import tensorflow  # noqa: F401
    if backend == "torch" or "workers" in kinds:
        import torch  # noqa: F401
    if backend == "jax":
        import jax.numpy  # noqa: F401
    from gpu_util_callback.gpus import _host, sampler
    from gpu_util_callback.recorder import memory_watch, recorder

    # The rates of a long training, for one of seconds.
    _host._TOO_SOON_S, _host._WORKERS_S, _host._WORKERS_SHARE = 0.0, 0.1, 1.0
    sampler.SLOW_S, sampler.WATCH_S = 0.03, 0.03
    recorder.FLUSH_S, recorder.LOOK_S = 0.4, 0.1
    memory_watch.LOOK_S, memory_watch.SHARE, memory_watch.MemoryWatch.COUNTED_S = 0.2, 1.0, 0.2


def _forked(case: Case | HeldOut) -> dict[str, Any] | None:
    folder = Path(tempfile.mkdtemp())
    began = time.monotonic()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            case.train(str(folder / "log"))
            (folder / "run.json").write_text(json.dumps(_thinned(folder / "log")))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() - began > LIMIT_S:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            break
        time.sleep(0.1)
    done = folder / "run.json"
    print(f"{case.name:<36}{time.monotonic() - began:6.1f} s  {'' if done.exists() else 'FAILED'}", flush=True)
    return json.loads(done.read_text()) if done.exists() else None


def _thinned(log_dir: Path) -> dict[str, Any]:
    """Return what the rule needs of a recording: times in ms, memory in KiB, as differences."""
    from gpu_util_callback.recording import read_recordings

    (one,) = read_recordings(log_dir)
    origin = int(one.steps["start_ns"][0])
    host = one.samples["host"]

    def apart(values: Any, unit: float) -> list[int]:
        whole = np.rint(np.nan_to_num(np.asarray(values, np.float64)) / unit).astype(np.int64)
        return np.diff(whole, prepend=0).tolist()

    facts = one.facts
    memory = dict(facts.get("memory") or {})
    for name in ("oom_kills", "control_group", "group_inode"):  # of the machine
        memory.pop(name, None)
    return {
        "facts": {
            "framework": {"backend": (facts.get("framework") or {}).get("backend")},
            "fit": {
                key: (facts.get("fit") or {}).get(key)
                for key in ("epochs", "steps_per_epoch", "batch_size", "loop", "input_kind")
            },
            "memory": memory,
        },
        "steps": {
            name: apart(one.steps[name] - (origin if name == "start_ns" else 0), 1 if name == "shape_id" else 1e5)
            for name in STEP_COLUMNS
        },
        "phases": [
            [kind, name, round((start - origin) / 1e5), round((end - origin) / 1e5), int(step)]
            for kind, name, start, end, step in zip(
                one.phases["kind"],
                one.phases["name"],
                one.phases["start_ns"].tolist(),
                one.phases["end_ns"].tolist(),
                one.phases["step"],
                strict=True,
            )
            if kind in ("epoch", "validation", "callback", "checkpoint") and end - start > 1e6
        ],
        "pipeline": sorted(
            {(str(stage), str(op)) for stage, op in zip(one.pipeline["stage"], one.pipeline["op"], strict=True)}
        ),
        "host": {
            "time": apart(host["time_ns"] - origin, 1e6),
            **{
                name: apart(host[name], 1 if name in ("python_blocks", "workers") else 16384)
                for name in HOST
                if name in host
            },
        },
    }
