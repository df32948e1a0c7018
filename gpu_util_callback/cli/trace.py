"""`gpu-util trace FILE|DIR`: explain a profiler trace, whoever made it."""

import argparse
import json
import sys

from gpu_util_callback.cli import options
from gpu_util_callback.cli import remote as _remote
from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.recording.manifest import plain
from gpu_util_callback.report.trace_screen import render
from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.imported import analyse, write_recordings
from gpu_util_callback.traces.output import trace_json

_BAR = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gpu-util trace`."""
    parser.add_argument(
        "trace",
        nargs="*",
        metavar="FILE|DIR",
        help="a trace of TensorFlow or JAX (*.xplane.pb), PyTorch (*.pt.trace.json[.gz]) or Nsight "
        "Systems (*.sqlite), recognized by content; several files of one job, one per rank, or a "
        "folder with them",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "--log-dir",
        metavar="LOGDIR",
        help="also write a recording there, so that TensorBoard's GPU Utilization tab shows it",
    )
    options.add_thresholds(parser)
    options.add_output(parser)


def _bar(read_bytes: int, total: int) -> str:
    share = min(read_bytes / max(total, 1), 1.0)
    return f"  reading {'█' * round(share * _BAR):<{_BAR}} {100 * share:3.0f} %"


def run(args: argparse.Namespace) -> int:
    """Explain a profiler trace; return 0.

    Raises:
        UnusableInput: it cannot be read, or its recording not be written.
    """
    if args.rules:
        return options.print_rules(of_traces=True)
    if not args.trace:
        raise UnusableInput("which trace? gpu-util trace FILE")
    thresholds = options.thresholds_given(args)
    line = options.StatusLine(after_s=1.0)
    try:
        trace = read_trace(
            args.trace if args.trace[1:] else args.trace[0],
            lambda read_bytes, total: line.show(_bar(read_bytes, total)),
        )
    finally:
        line.clear()
    analysis = analyse(trace, thresholds)
    if args.log_dir:
        _remote.wait_for_answer(args.log_dir)
        try:
            written = write_recordings(analysis, args.log_dir)
        except OSError as error:
            raise UnusableInput(f"{args.log_dir}: cannot be written ({error.strerror or error})") from None
        if not written:
            raise UnusableInput(f"{args.trace[0]}: nothing was recorded: no recording to write")
        for path in written:
            print(f"written: {path}", file=sys.stderr)
    if args.json:
        # Complete or not at all: a truncated document is of no use.
        text = json.dumps(plain(trace_json(analysis)), allow_nan=False, indent=1) + "\n"
    else:
        text = render(analysis, *options.terminal(), options.detail(args))
    sys.stdout.write(text)
    return 0
