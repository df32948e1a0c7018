"""`gpu-util doctor`: a check that this machine's GPUs, driver and framework work together."""

import argparse
import json

from gpu_util_callback.cli import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--framework",
        choices=("tensorflow", "jax", "torch"),
        help="check this framework only (default: all that are installed)",
    )
    parser.add_argument("--timeout", type=float, default=60, metavar="S", help="seconds to wait for each check")


def run(args: argparse.Namespace) -> int:
    """Print the report; return 0 whatever it finds."""
    from gpu_util_callback.doctor import examine

    report = examine(framework=args.framework, timeout_s=args.timeout)
    print(json.dumps(report.to_json(), indent=1) if args.json else report.render(color=options.color()))
    return 0
