"""`gpu-util trace FILE|DIR`: explain a profiler trace, whoever made it."""

import argparse
import json
import os
import sys

from gpu_util_callback.traces import analyse, read_trace
from gpu_util_callback.traces.view import render

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "trace",
        metavar="FILE|DIR",
        help="a *.xplane.pb of TensorFlow or JAX, or a folder with one file per host",
    )
    parser.add_argument("--json", action="store_true", help="everything, for programs")


def run(args: argparse.Namespace) -> int:
    analysis = analyse(read_trace(args.trace))
    if args.json:
        json.dump(analysis.to_json(), sys.stdout, allow_nan=False, indent=1)
        sys.stdout.write("\n")
    else:
        color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        sys.stdout.write(render(analysis, color=color))
    return 0
