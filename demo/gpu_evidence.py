"""Trainings with a known fault on this machine's GPU: is the right cause found for each?

    python demo/gpu_evidence.py --backend jax      # or torch, tensorflow; under 8 minutes
    python demo/gpu_evidence.py --backend jax --costs           # what recording costs there
    python demo/gpu_evidence.py --backend jax --record demo/recorded/h200-jax   # keep the runs
    python demo/gpu_evidence.py --backend jax --stand-in        # without a GPU: plays one

What it needs, beside a clone of this repository and an NVIDIA GPU (Hopper or newer for the "SM"
column; any that the framework supports for the rest):

    pip install numpy protobuf nvidia-ml-py psutil fsspec tensorboard keras
    pip install "jax[cuda13]"   (or "jax[cuda12]", as the driver supports)
    pip install torch           (or)
    pip install "tensorflow[and-cuda]"

Each scenario trains in a process of its own for some 20 seconds: one that fails loses no other.
Printed are, for each, the causes that must be found and those that were, and one activity by three
instruments: NVML's kernel active, GPM's SM active, and kernel busy from the profiler's trace, all
in percent of the time. `results.json` in the output folder holds everything that was measured.

Exit code: 0 = every verdict is right, 1 = one is wrong or did not run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [path for path in (str(HERE), str(ROOT)) if path not in sys.path]

from evidence import standin, table  # noqa: E402
from evidence.child import Job  # noqa: E402
from evidence.scenarios import SCENARIOS, Scenario  # noqa: E402
from evidence.verdicts import judge  # noqa: E402

CHILD_S = 150.0  # the longest one scenario may take: starting, compiling and training
PLAYED = ("healthy", "competitor")  # of these the driver's own answers are recorded as well


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=("jax", "torch", "tensorflow"), required=True)
    parser.add_argument("--stand-in", action="store_true", help="no GPU: play one by a script")
    parser.add_argument("--costs", action="store_true", help="measure what recording costs instead")
    parser.add_argument("--record", type=Path, metavar="DIR", help="keep small copies of the runs")
    parser.add_argument("--scenario", action="append", choices=[one.name for one in SCENARIOS],
                        metavar="NAME", help="only this one (may be given again)")  # fmt: skip
    parser.add_argument("--seconds", type=float, help="of each recorded fit (20; stand-in: 5)")
    parser.add_argument("--minutes", type=float, default=7.5, help="after which nothing is begun")
    parser.add_argument("--out", type=Path, default=HERE / "logs" / "gpu-evidence")
    args = parser.parse_args(argv)
    args.seconds = args.seconds or (5.0 if args.stand_in else 20.0)
    return args


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.stand_in:
        print(table.STAND_IN)
    if args.costs:
        from evidence.costs import measure

        return measure(args, child_environment)
    until = time.monotonic() + 60 * args.minutes
    results = []
    for scenario in SCENARIOS:
        if args.scenario and scenario.name not in args.scenario:
            continue
        left_s = until - time.monotonic()
        if left_s < args.seconds:
            found: dict[str, Any] = {"error": "not run: the time was up"}
        else:
            found = train(scenario, args, min(CHILD_S, left_s))
        verdict = judge(scenario, found, args.stand_in)
        results.append((scenario, found, verdict))
        print(table.line(scenario, found, verdict), flush=True)
        write(args, results)
        if args.record is not None and "error" not in found:
            label(args, scenario, found)
    print("\n" + table.table(results))
    if args.stand_in:
        print(table.STAND_IN)
    wrong = [scenario.name for scenario, _, verdict in results if not verdict.right]
    print(f"{len(results) - len(wrong)} of {len(results)} verdicts are right"
          + (f"; wrong: {', '.join(wrong)}" if wrong else ""))  # fmt: skip
    return 1 if wrong else 0


def train(scenario: Scenario, args: argparse.Namespace, limit_s: float) -> dict[str, Any]:
    """Run one scenario's child to its end, or to the limit."""
    folder = args.out / args.backend / scenario.name
    log_dir = folder / time.strftime("%Y%m%d-%H%M%S")
    log_dir.mkdir(parents=True, exist_ok=True)
    answer, job_file = folder / "answer.json", folder / "job.json"
    answer.unlink(missing_ok=True)
    kept = str(args.record / scenario.name) if args.record is not None else ""
    job = Job(scenario.name, args.backend, str(log_dir), str(answer), args.seconds,
              args.stand_in, kept)  # fmt: skip
    job_file.write_text(json.dumps(dataclasses.asdict(job)))
    environ = child_environment(scenario, args)
    player = nvml_recorder(args, scenario) if kept and not args.stand_in else None
    try:
        return run_child("child.py", job_file, answer, environ, limit_s)
    finally:
        if player is not None:
            player.send_signal(signal.SIGTERM)
            player.wait()


def run_child(
    program: str, job_file: Path, answer: Path, environ: dict[str, str], limit_s: float
) -> dict[str, Any]:
    """What the program answered; {"error": …} where it did not. Its output goes beside the job."""
    log = job_file.with_name("output.txt")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "evidence" / program), str(job_file)],
            env=environ, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGUSR1)  # where does it hang? Into its output
            time.sleep(1)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return {"error": f"no end within {limit_s:.0f} s; see {log}"}
        except BaseException:  # Ctrl-C: the child is in a session of its own
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if answer.exists():
        return json.loads(answer.read_text())
    return {"error": f"died with exit code {process.returncode}; see {log}"}


def child_environment(scenario: Scenario, args: argparse.Namespace) -> dict[str, str]:
    environ = dict(os.environ)
    if args.stand_in:
        environ = standin.environment(scenario.name, args.out / "stand-in", os.getpid())
        environ["CUDA_VISIBLE_DEVICES"] = "0"
    for more in (scenario.env, {} if args.stand_in else scenario.backend_env.get(args.backend, {})):
        for name, value in more.items():
            both = name == "XLA_FLAGS" and environ.get(name)
            environ[name] = f"{environ[name]} {value}" if both else value
    environ["KERAS_BACKEND"] = args.backend
    if args.backend == "jax":  # most scenarios train the same model: compile it once
        environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(args.out.resolve() / "jax-cache"))
        environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return environ


def nvml_recorder(args: argparse.Namespace, scenario: Scenario) -> subprocess.Popen | None:
    """Keep what the driver answers meanwhile, for the stand-in to replay in tests."""
    program = ROOT / "tests" / "support" / "nvml_recorder.py"
    if scenario.name not in PLAYED or not program.exists():
        return None
    args.record.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        [sys.executable, str(program), "--anonymous", "--seconds", "60",
         "--output", str(args.record / f"{scenario.name}.nvml")],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def write(args: argparse.Namespace, results: list) -> None:
    rows = [
        {"scenario": scenario.name, "expected": sorted(scenario.expected),
         "allowed": sorted(scenario.allowed), "right": verdict.right, "note": verdict.note, **found}
        for scenario, found, verdict in results
    ]  # fmt: skip
    text = json.dumps({"version": 1, "backend": args.backend, "stand_in": args.stand_in,
                       "date": time.strftime("%Y-%m-%d"), "results": rows}, indent=1)  # fmt: skip
    (args.out / f"results-{args.backend}.json").write_text(text + "\n")


def label(args: argparse.Namespace, scenario: Scenario, found: dict[str, Any]) -> None:
    """What a kept run is evidence of, beside it."""
    known = {
        "scenario": scenario.name, "wrong": scenario.wrong, "backend": args.backend,
        "expected": sorted(scenario.expected), "allowed": sorted(scenario.allowed),
        "stand_in": args.stand_in, "date": time.strftime("%Y-%m-%d"),
        **{name: found.get(name) for name in (
            "causes", "gpu", "driver", "framework", "keras", "nvml_pct", "sm_active_pct",
            "kernel_busy_pct", "windows", "unavailable")},
    }  # fmt: skip
    folder = args.record / scenario.name
    (folder / "truth.json").write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
