"""Sweep the batch size with Ray Tune, then compare what held each trial back.

    pip install "ray[tune]"
    python demo/ray_tune.py

Every trial trains a small image model and records itself under its own name. What counts is the
time per sample: a bigger batch helps only as long as something other than the input is the limit.
"""

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # no hint at a log directory of Ray's own

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--log-dir", type=Path, default=HERE / "logs" / "ray")
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32, 128], metavar="SIZE")
    parser.add_argument("--samples", type=int, default=4096, help="samples of each trial")
    return parser.parse_args()


def trial(config: dict) -> None:
    """One trial; runs in a process of its own."""
    sys.path.insert(0, str(HERE))
    from images import pipeline
    from ray import tune
    from train import build_model

    from gpu_util_callback import GpuUtilCallback

    batch = config["batch_size"]
    log_dir = Path(config["log_dir"]) / tune.get_context().get_trial_name()
    dataset = pipeline(Path(config["pictures"]), batch, max(4, config["samples"] // batch))
    build_model().fit(dataset, shuffle=False, verbose=0, callbacks=[GpuUtilCallback(log_dir, report=False)])
    tune.report({"log_dir": str(log_dir)})


def compare(trials: list[tuple[int, str]]) -> None:
    """Print a line for each (batch size, log directory), and which one is the fastest."""
    from gpu_util_callback import read_recordings
    from gpu_util_callback.diagnosis import run_report
    from gpu_util_callback.diagnosis.compare import comparison

    trials = sorted(trials)
    runs = []
    for _, log_dir in trials:
        (recording,) = read_recordings(log_dir)
        runs.append(run_report(recording))
    rows = comparison(runs)["runs"]
    # Medians: the first step of each trial compiles.
    per_sample = [1e3 * run["step_ms"]["p50"] / batch for (batch, _), run in zip(trials, runs, strict=True)]
    print(
        f"\n{'batch':>6} {'us a sample':>12} {'ms a step':>10} {'GPU active':>11} {'input wait':>11}  what held it back"
    )
    for (batch, _), run, row, us in zip(trials, runs, rows, per_sample, strict=True):
        active = row["gpu_active_pct"]
        used = f"{active:.0f} %" if active is not None else "no GPU"
        waited = f"{row['time_pct'].get('input_wait', 0):.0f} %"
        titles = [found["title"] for found in run["spans"] + run["findings"]]
        held = ", ".join(dict.fromkeys(titles)) or "nothing"
        ms = run["step_ms"]["p50"]
        print(f"{batch:>6} {us:>12,.0f} {ms:>10.2f} {used:>11} {waited:>11}  {held}")
    best = min(range(len(trials)), key=lambda at: per_sample[at])
    print(f"\nThe least time per sample: batch {trials[best][0]}. {runs[best]['verdict']}")


def main() -> int:
    args = arguments()
    try:
        import ray
        from ray import tune
    except ImportError:
        print('This demo needs Ray: pip install "ray[tune]"', file=sys.stderr)
        return 2

    class Progress(tune.Callback):
        def on_trial_complete(self, iteration, trials, trial, **_):
            print(f"  {trial}: batch_size={trial.config['batch_size']}, done", flush=True)

    sys.path.insert(0, str(HERE))
    from images import draw

    pictures = draw(HERE / "logs" / "pictures", count=2000)
    # Trials are processes of their own: they find this checkout where it is not installed.
    paths = {"PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])}
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="warning", runtime_env={"env_vars": paths})
    try:
        space = {
            "batch_size": tune.grid_search(args.batches),
            "log_dir": str(args.log_dir.resolve()),
            "pictures": str(pictures),
            "samples": args.samples,
        }
        # One trial at a time: trials that share the processor would measure each other.
        resources = {"cpu": int(ray.cluster_resources().get("CPU", 1))}
        if ray.cluster_resources().get("GPU"):
            resources["gpu"] = 1
        print(f"{len(args.batches)} trials, one after the other:", flush=True)
        results = tune.Tuner(
            tune.with_resources(trial, resources),
            param_space=space,
            run_config=tune.RunConfig(
                storage_path=str(HERE / "logs" / "ray_results"), verbose=0, callbacks=[Progress()]
            ),
        ).fit()
    finally:
        ray.shutdown()
    failed = [result.error for result in results if result.error]
    if failed:
        print(f"{len(failed)} trials failed: {failed[0]}", file=sys.stderr)
        return 1
    compare([(r.config["batch_size"], r.metrics["log_dir"]) for r in results])
    print(f"\nSee them side by side: tensorboard --logdir {args.log_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
