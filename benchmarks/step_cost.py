"""What recording adds to a step, in processor time, on every framework and beside other tools.

Short fits under each recorder take turns in one process, and what is compared is neighbours in
time. Two fits of one program differ by more than what recording adds: so there are many rounds, and
fits also take our hooks away and put them back in turns, to which the time of our own threads is
added as it is once a fit is under way. The processor time of the training thread and of the whole
process is steadier than any wall time, which is given as a ratio alone. On a busy machine they
scatter as well: there, the time of all other Python threads (the recorder's, the samplers'), which
nothing else is part of, says most.

With `BENCH_BESIDE=1` another program copies memory meanwhile: the cost on a busy machine, kept
beside that of a quiet one.

A whole run takes a quarter of an hour. `BENCH_KINDS=tensorflow,loop` takes some of the trainings
(`--save` keeps the figures of the others), `BENCH_ROUNDS` more or fewer rounds.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from neighbour import neighbour
from nvml import Scenario, environment
from peers import install, with_path
from rounds import spread
from table import BESIDE

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BUDGET_US = {"thread_us": 15, "process_us": 30}
PACES = ("back-to-back", "paced")
# (name, the program's first argument, KERAS_BACKEND, what has to be there)
KINDS = (
    ("TensorFlow, fit", "fit", "tensorflow", "tensorflow"),
    ("JAX, fit", "fit", "jax", "jax"),
    ("PyTorch, fit", "fit", "torch", "torch"),
    ("PyTorch, loop", "loop", "torch", "torch"),
)
OURS, NO_OP, NOTHING = "gpu-util-callback", "no-op callback", "no callback"
LABELS = {
    "thread_us": "training thread, CPU",
    "process_us": "process, CPU",
    "others_us": "other Python threads, CPU",
    "instructions": "training thread, instructions",
}


def wanted(names: str) -> list[tuple[str, str, str, str]]:
    """The kinds of training that one of these words, separated by commas, is in the name of."""
    words = [word.strip().lower() for word in names.split(",") if word.strip()]
    found = [one for one in KINDS if not words or any(word in one[0].lower() for word in words)]
    if not found:
        raise ValueError(f"BENCH_KINDS={names}: none of {', '.join(one[0] for one in KINDS)}")
    return found


def measured(what: str, backend: str, pace: str, rounds: int, env: dict[str, str]) -> dict:
    """What the program printed."""
    env = {
        **env,
        "KERAS_BACKEND": backend,
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    }
    command = [sys.executable, "-W", "ignore", str(HERE / "step_program.py"), what, pace]
    done = subprocess.run([*command, str(rounds)], env=env, text=True, capture_output=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(next(x for x in done.stdout.splitlines() if x.startswith("JSON "))[5:])


def compared(taken: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """What each recorder adds to the steps of the same round under one that does nothing."""
    taken = dict(taken)
    within = taken.pop("within", [])
    threads_us = [one["others_us"] for one in taken.pop("own threads", [])]
    base = taken.get(NO_OP) or taken[NOTHING]
    found: dict[str, Any] = {"step": {name: spread([one[name] for one in base]) for name in base[0]}}
    for recorder, rounds in taken.items():
        if rounds is base:
            continue
        pairs = list(zip(rounds, base, strict=True))
        added = {
            name: spread([ours[name] - plain[name] for ours, plain in pairs]) for name in base[0] if name != "wall_us"
        }
        wall = [ours["wall_us"] / plain["wall_us"] for ours, plain in pairs]
        found[recorder] = {"added": added, "wall_ratio": spread(wall)}
    if threads_us:
        threads = spread(threads_us)
        found[OURS]["own_threads_us"] = threads
        if within:
            parts = {name: [one[name] for one in within] for name in base[0]}
        else:  # a loop's hooks stay: what two runs differ by, without their other threads
            parts = {
                name: [ours[name] - plain[name] for ours, plain in zip(rounds, base, strict=True)]
                for rounds in [taken[OURS]]
                for name in base[0]
            }
            parts["process_us"] = [
                whole - others for whole, others in zip(parts["process_us"], parts["others_us"], strict=True)
            ]
        parts["process_us"] = [one + threads["median"] for one in parts["process_us"]]
        found[OURS]["within"] = {
            name: spread(values) for name, values in parts.items() if name not in ("wall_us", "others_us")
        }
    return found


def _cells(added: dict[str, dict[str, float]]) -> list[str]:
    return [
        f"{LABELS[name]} {value['median']:+8.1f} [{value['low']:+.1f} … {value['high']:+.1f}]"
        for name, value in added.items()
    ]


def show(title: str, found: dict[str, Any]) -> None:
    step = found["step"]
    print(
        f"\n{title}: a step of {step['wall_us']['median'] / 1e3:.2f} ms, of it "
        f"{step['thread_us']['median']:.0f} µs of CPU on the training thread, "
        f"{step['process_us']['median']:.0f} in the process"
    )
    for recorder, one in found.items():
        if recorder == "step":
            continue
        cells = _cells(one["added"])
        wall = one["wall_ratio"]
        cells.append(f"wall ×{wall['median']:.3f} [{wall['low']:.3f} … {wall['high']:.3f}]")
        print(f"  {recorder:34}" + ", ".join(cells), flush=True)
        if "within" in one:
            threads = _cells({"others_us": one["own_threads_us"]})
            within = ", ".join(_cells(one["within"]) + threads)
            print(f"  {'  once it is under way':34}{within}", flush=True)


def main(rounds: int | None = None) -> dict[str, Any]:
    rounds = rounds or int(os.environ.get("BENCH_ROUNDS", "12"))
    kinds = wanted(os.environ.get("BENCH_KINDS", ""))
    beside = bool(os.environ.get("BENCH_BESIDE"))
    figures: dict[str, Any] = {} if beside else {"rounds": rounds}
    skipped: dict[str, str] = {}
    print(
        f"µs a step over a no-op callback (in loops: over none), median of {rounds} rounds "
        f"[{'its 95 % interval' if rounds >= 6 else 'lowest … highest'}]"
    )
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        # A driver to ask, so that samplers have something to do.
        driver = Scenario()
        driver.gpu("h100").process("self", 6 << 30, sm=50).curve("fan", 30)
        env = environment(driver, folder)
        env = with_path(env, ROOT, HERE, ROOT / "harness" / "support")
        for package in ("nvitop", "traceml-ai"):
            problem = install(folder / package, package)
            if problem is None:
                env = with_path(env, folder / package)
            else:
                skipped[package] = problem
        for name, what, backend, needed in kinds:
            if importlib.util.find_spec(needed) is None:
                skipped[name] = f"{needed} is not installed"
                continue
            for pace in PACES[:1] if beside else PACES:
                with neighbour(beside):
                    found = measured(what, backend, pace, rounds, env)
                title = f"{name}, {pace}" + BESIDE * beside
                figures[title] = compared(found["taken"])
                show(title, figures[title])
    if found["no_instructions"]:
        skipped["instructions"] = found["no_instructions"]
    for name, reason in skipped.items():
        print(f"{name}: skipped, {reason}")
    for clock, budget in BUDGET_US.items():
        over = [
            f"{name} {added['median']:.1f}"
            for name, one in figures.items()
            if name != "rounds" and (added := one[OURS].get("within", one[OURS]["added"])[clock])["median"] > budget
        ]
        met = "met" if not over else "MISSED: " + ", ".join(over)
        print(f"budget {budget} µs, {LABELS[clock]}: {met}")
    return {**figures, "skipped": skipped}


if __name__ == "__main__":
    main()
