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

HERE = Path(__file__).resolve().parent


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
    build_model().fit(
        dataset, shuffle=False, verbose=0, callbacks=[GpuUtilCallback(log_dir, report=False)]
    )
    tune.report({"log_dir": str(log_dir)})


def compare(trials: list[tuple[int, str]]) -> None:
    """Print a line for each (batch size, log directory)."""
    from gpu_util_callback import read_recordings
    from gpu_util_callback.diagnosis import run_report

    print(f"\n{'batch':>6} {'ms a step':>10} {'us a sample':>12} {'GPU':>8}  what held it back")
    for batch, log_dir in sorted(trials):
        (recording,) = read_recordings(log_dir)
        run = run_report(recording)
        used = [gpu for gpu in run["gpus"] if gpu["used_by_framework"]]
        means = [gpu["utilization_pct"]["mean"] for gpu in used]
        known = [mean for mean in means if mean is not None]
        utilization = f"{sum(known) / len(known):.0f} %" if known else "none"
        step_ms = run["step_ms"]["p50"]
        causes = [found["cause"] for found in run["findings"] + run["spans"]]
        held = ", ".join(dict.fromkeys(causes)) or "nothing"
        print(
            f"{batch:>6} {step_ms:>10.2f} {1e3 * step_ms / batch:>12.0f} {utilization:>8}  {held}"
        )


def main() -> int:
    args = arguments()
    try:
        import ray
        from ray import tune
    except ImportError:
        print('This demo needs Ray: pip install "ray[tune]"', file=sys.stderr)
        return 2
    sys.path.insert(0, str(HERE))
    from images import draw

    pictures = draw(HERE / "logs" / "pictures", count=2000)
    ray.init(include_dashboard=False, log_to_driver=False)
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
        tuner = tune.Tuner(tune.with_resources(trial, resources), param_space=space)
        results = tuner.fit()
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
