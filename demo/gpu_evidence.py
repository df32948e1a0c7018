"""Trainings with a known fault on this machine's GPU: is the right cause found for each?

    python demo/gpu_evidence.py --backend jax      # or torch, tensorflow; ends within 8 minutes
    python demo/gpu_evidence.py --backend jax --costs           # what recording costs there
    python demo/gpu_evidence.py --backend jax --only copies     # one scenario
    python demo/gpu_evidence.py --backend jax --record demo/recorded/h200-jax   # keep the runs
    python demo/gpu_evidence.py --backend jax --stand-in        # without a GPU: plays one

What it needs, beside a clone of this repository and an NVIDIA GPU (Hopper or newer for the "SM"
column; any that the framework supports for the rest); it downloads nothing by itself:

    pip install numpy protobuf nvidia-ml-py psutil fsspec tensorboard keras
    pip install "jax[cuda13]"   (or "jax[cuda12]", as the driver supports)
    pip install torch           (or)
    pip install "tensorflow[and-cuda]"

Each scenario trains in a process of its own for some 15 seconds: one that fails, hangs or crashes
loses no other. One GPU is used, the first of CUDA_VISIBLE_DEVICES; nobody else should. Printed are,
for each, the causes that must be found and those that were, and one activity by three instruments:
NVML's utilization, GPM's SM active, and from the profiler's trace kernels alone and with copies,
all in percent of the time; behind the table, why a verdict is wrong, and on which numbers. `results-<backend>.json`
(`costs-<backend>.json`) in the output folder holds everything that was measured, with the versions.

Exit code: 0 = every verdict is right (all costs were measured), 1 = one is wrong or did not run,
2 = something is not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from evidence import costs, standin, table  # noqa: E402
from evidence.job import Job  # noqa: E402
from evidence.machine import described, machine, missing, one_gpu  # noqa: E402
from evidence.process import UNKNOWN_FLAG, run_child  # noqa: E402
from evidence.scenarios import SCENARIOS, Scenario, named  # noqa: E402
from evidence.verdicts import Verdict, judge  # noqa: E402

CHILD_S = 150.0  # the longest one scenario may take: starting, compiling and training
PLAYED = ("healthy", "competitor")  # of these the driver's own answers are recorded as well
Result = tuple[Scenario, dict[str, Any], Verdict]


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="scenarios, and what must be found:\n"
        + "\n".join(
            f"  {one.name:<17} {', '.join(sorted(one.expected)) or 'nothing':<16} {one.wrong}" for one in SCENARIOS
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--backend", choices=("jax", "torch", "tensorflow"), required=True, help="of Keras")
    add(
        "--only",
        action="append",
        choices=[one.name for one in SCENARIOS],
        metavar="SCENARIO",
        help="only this one (may be given again)",
    )
    add("--costs", action="store_true", help="measure what recording costs instead")
    add("--record", type=Path, metavar="DIR", help="keep small, redacted copies of the runs there, and no others")
    add("--stand-in", action="store_true", help="no GPU: play one by a script")
    add("--seconds", type=float, metavar="S", help="of each recorded training (default 15; with --stand-in 5)")
    add(
        "--minutes",
        type=float,
        default=7.5,
        metavar="M",
        help="end after so many, with what there is by then (default %(default)s)",
    )
    add(
        "--out",
        type=Path,
        default=ROOT / "logs" / "gpu-evidence",
        metavar="DIR",
        help="for results, logs and recordings (default %(default)s)",
    )
    args = parser.parse_args(argv)
    args.seconds = args.seconds or (5.0 if args.stand_in else 15.0)
    return args


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    lacking = missing(args.backend)
    if lacking:
        print(f"not installed: pip install {' '.join(lacking)}", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    if args.stand_in:
        print(table.STAND_IN)
    facts = machine(dict(os.environ))
    print(described(facts), flush=True)
    # Somebody's time limit: still show what there is.
    before = signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        with tempfile.TemporaryDirectory(prefix="gpu-evidence-") as scratch:
            args.scratch = Path(scratch)
            code = measure_costs(args, facts) if args.costs else run_scenarios(args, facts)
    finally:
        signal.signal(signal.SIGTERM, before)
    if args.stand_in:
        print(table.STAND_IN)
    return code


def _as_interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def measure_costs(args: argparse.Namespace, facts: dict[str, Any]) -> int:
    """Measure, print and write what recording costs; returns an exit code."""
    print("This takes about 2 minutes on a GPU ...", flush=True)
    healthy = named("healthy")
    job = new_job(args, healthy, "costs")
    try:
        environ = child_environment(healthy, args)
        found = run_child("costs_child", job, folder_of(args, "costs"), environ, 60 * args.minutes)
    except KeyboardInterrupt:
        found = {**_read(Path(job.answer)), "error": "interrupted"}
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    write(args, facts, "costs", found)
    print(costs.report(found))
    return 0 if costs.whole(found) else 1


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text()) if file.exists() else {}


def run_scenarios(args: argparse.Namespace, facts: dict[str, Any]) -> int:
    """Train, judge and print each scenario; returns an exit code."""
    chosen = [one for one in SCENARIOS if not args.only or one.name in args.only]
    until = time.monotonic() + 60 * args.minutes
    results: list[Result] = []
    over = ""  # why nothing more can be run
    for number, scenario in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {scenario.name}: {scenario.wrong}", flush=True)
        began = time.monotonic()
        if not over and until - began < args.seconds:
            over = "the time was up (--only runs it alone)"
        if over:
            found: dict[str, Any] = {"error": f"not run: {over}"}
        else:
            found, over = attempt(scenario, args, until)
        verdict = judge(scenario, found, args.stand_in)
        results.append((scenario, found, verdict))
        print(table.line(found, verdict, time.monotonic() - began), flush=True)
        write(args, facts, "results", {"results": [_row(*result) for result in results]})
        if args.record is not None and "error" not in found:
            label(args, scenario, found)
    print(f"\n{described(facts)}\n\n{table.table(results)}\n\n{table.notes(results)}".rstrip())
    wrong = [scenario.name for scenario, _, verdict in results if not verdict.right]
    print(
        f"\n{len(results) - len(wrong)} of {len(results)} verdicts are right"
        + (f"; wrong: {', '.join(wrong)}" if wrong else ""),
        flush=True,
    )
    return 1 if wrong else 0


def attempt(scenario: Scenario, args: argparse.Namespace, until: float) -> tuple[dict[str, Any], str]:
    """What a scenario's child answered, and why nothing more can be run ("" = it can)."""
    try:
        found = train(scenario, args, until)
    except KeyboardInterrupt:
        return {"error": "interrupted"}, "interrupted"
    except Exception as error:  # of this script, or of the disk: others may still succeed
        return {"error": f"{type(error).__name__}: {error}"}, ""
    return found, found["error"] if found.get("no_gpu") else ""


def train(scenario: Scenario, args: argparse.Namespace, until: float) -> dict[str, Any]:
    """Run one scenario's child; once more where a part that it can do without has ended it."""
    environ = child_environment(scenario, args)
    job = new_job(args, scenario, scenario.name)
    player = nvml_recorder(args, scenario) if job.keep and not args.stand_in else None

    def run() -> dict[str, Any]:
        limit_s = max(1.0, min(CHILD_S, until - time.monotonic()))
        return run_child("child", job, folder_of(args, scenario.name), environ, limit_s)

    try:
        found = run()
        added = scenario.backend_env.get(args.backend)
        if added and any(UNKNOWN_FLAG.search(line) for line in found.get("log", ())):
            environ = child_environment(scenario, args, backend_env=False)
            found = {**run(), "left_out": added}
        elif "signal" in found:  # a profiler may crash a process: what is found without it?
            job.windows, job.log_dir, first = False, f"{job.log_dir}-again", found
            found = {**run(), **{key: first[key] for key in ("error", "log", "signal")}}
            found["error"] += "; what is shown is from a run without profiler windows"
        return found
    finally:
        if job.keep:  # the small copy is what is wanted
            for log_dir in {job.log_dir, job.log_dir.removesuffix("-again")}:
                shutil.rmtree(log_dir, ignore_errors=True)
        if player is not None:
            player.send_signal(signal.SIGTERM)
            try:
                player.wait(10)
            except subprocess.TimeoutExpired:
                player.kill()


def folder_of(args: argparse.Namespace, name: str) -> Path:
    folder = args.out / args.backend / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def new_job(args: argparse.Namespace, scenario: Scenario, name: str) -> Job:
    folder = folder_of(args, name)
    return Job(
        scenario=scenario.name,
        backend=args.backend,
        log_dir=str(folder / time.strftime("%Y%m%d-%H%M%S")),
        answer=str(folder / "answer.json"),
        seconds=args.seconds,
        stand_in=args.stand_in,
        keep=str(args.record / name) if args.record is not None and not args.costs else "",
    )


def child_environment(scenario: Scenario, args: argparse.Namespace, backend_env: bool = True) -> dict[str, str]:
    """os.environ with what the scenario needs.

    Args:
        backend_env: whether to add what only this backend needs.
    """
    environ = {**os.environ, **one_gpu(dict(os.environ))}
    if args.stand_in:
        played = standin.environment(scenario.name, args.out / "stand-in", os.getpid())
        environ = {**environ, **played, "CUDA_VISIBLE_DEVICES": "0"}
    more = dict(scenario.env)
    if backend_env and not args.stand_in:
        more.update(scenario.backend_env.get(args.backend, {}))
    for name, value in more.items():
        both = name == "XLA_FLAGS" and environ.get(name)
        environ[name] = f"{environ[name]} {value}" if both else value
    environ["KERAS_BACKEND"] = args.backend
    if args.backend == "jax":  # most scenarios train the same model: compile it once
        environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(args.scratch / "jax-cache"))
        environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    if args.backend != "tensorflow":  # Keras imports it where it is installed
        environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return environ


def nvml_recorder(args: argparse.Namespace, scenario: Scenario) -> subprocess.Popen | None:
    """Keep what the driver answers meanwhile, for the stand-in to replay in tests."""
    program = ROOT / "harness" / "nvml_recorder.py"
    if scenario.name not in PLAYED or not program.exists():
        return None
    args.record.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        [
            sys.executable,
            str(program),
            "--anonymous",
            "--seconds",
            "60",
            "--output",
            str(args.record / f"{scenario.name}.nvml"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _row(scenario: Scenario, found: dict[str, Any], verdict: Verdict) -> dict[str, Any]:
    return {
        "scenario": scenario.name,
        "expected": sorted(scenario.expected),
        "allowed": sorted(scenario.allowed),
        "right": verdict.right,
        "note": verdict.note,
        **found,
    }


def write(args: argparse.Namespace, facts: dict[str, Any], name: str, found: dict) -> None:
    """Into `<name>-<backend>.json` of the output folder."""
    text = json.dumps(
        {
            "version": 1,
            "backend": args.backend,
            "stand_in": args.stand_in,
            "date": time.strftime("%Y-%m-%d"),
            "machine": facts,
            **found,
        },
        indent=1,
    )
    (args.out / f"{name}-{args.backend}.json").write_text(text + "\n")


def label(args: argparse.Namespace, scenario: Scenario, found: dict[str, Any]) -> None:
    """What a kept run is evidence of, beside it."""
    known = {
        "scenario": scenario.name,
        "wrong": scenario.wrong,
        "backend": args.backend,
        "expected": sorted(scenario.expected),
        "allowed": sorted(scenario.allowed),
        "stand_in": args.stand_in,
        "date": time.strftime("%Y-%m-%d"),
        **{
            name: found.get(name)
            for name in (
                "causes",
                "driver",
                "framework",
                "keras",
                "nvml_pct",
                "sm_active_pct",
                "kernel_busy_pct",
                "any_busy_pct",
                "windows",
                "unavailable",
            )
        },
        "gpu": found.get("gpu") or found["device"]["name"],  # where NVML told nothing
    }
    folder = args.record / scenario.name
    (folder / "truth.json").write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
