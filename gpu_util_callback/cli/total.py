"""`gpu-util total LOGDIR…`: where the GPU-hours of all runs went, and which runs to fix first."""

import argparse
import json
import sys
from functools import partial

from gpu_util_callback.cli import options
from gpu_util_callback.cli import remote as _remote
from gpu_util_callback.cli.report import add_timeout, amount, nothing_in
from gpu_util_callback.diagnosis.survey import survey
from gpu_util_callback.diagnosis.total_time import total
from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.recording.discovery import expanded
from gpu_util_callback.redaction import cleaned
from gpu_util_callback.report.total_screen import cost_of, render

_SHOWN_PROBLEMS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "logdir", nargs="*", metavar="LOGDIR", help="a log directory, a run in it, a URL, or a glob of them"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--html", metavar="FILE", help="write one page, with a table of all runs")
    parser.add_argument("--parquet", metavar="DIR", help="write a row a recording there, by month (pyarrow)")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="how many runs to list (default: %(default)s)")
    parser.add_argument(
        "--rejudge", action="store_true", help="re-diagnose runs judged by older rules; reads all their steps"
    )
    options.add_thresholds(parser)
    parser.add_argument(
        "--price-per-gpu-hour",
        type=amount,
        metavar="P",
        help="price of an hour of each GPU, in your own currency; nothing is assumed",
    )
    add_timeout(parser)


def run(args: argparse.Namespace) -> int:
    """Print where the GPU-hours of all runs went; return 0.

    Raises:
        UnusableInput: no log directory, or no recording in any.
    """
    if args.rules:
        return options.print_rules()
    if not all(args.logdir) or not args.logdir:
        raise UnusableInput("which log directories? gpu-util total LOGDIR…")
    thresholds = options.thresholds_given(args)
    for logdir in args.logdir:
        # Of those that a glob stands for, nobody is asked: it must not be a web address.
        if logdir.startswith("http") or not any(mark in logdir for mark in "*?["):
            _remote.wait_for_answer(logdir, args.timeout, " --timeout S waits longer.")
    logdirs = expanded(args.logdir)
    line = options.StatusLine()
    show = partial(_progress, line)
    try:
        surveyed = survey(logdirs, thresholds=thresholds, recompute=args.rejudge, progress=show)
    finally:
        line.clear()
    for problem in surveyed.problems[:_SHOWN_PROBLEMS]:
        print(f"gpu-util total: {problem}", file=sys.stderr)
    if len(surveyed.problems) > _SHOWN_PROBLEMS:
        more = len(surveyed.problems) - _SHOWN_PROBLEMS
        print(f"gpu-util total: {more:,} more such problems (--json has all)", file=sys.stderr)
    if not surveyed.rows:
        raise nothing_in(*args.logdir)
    report = total(surveyed)
    if args.price_per_gpu_hour is not None:
        report["cost"] = cost_of(report, args.price_per_gpu_hour)
    if args.html:
        from tensorboard_plugin.downloads import total_page

        options.write_file(args.html, total_page(surveyed.rows, report, cleaned(logdirs)))
    if args.parquet:
        from gpu_util_callback.report.tables import write_runs

        print(f"wrote {args.parquet}: {write_runs(surveyed.rows, args.parquet):,} recordings", file=sys.stderr)
    if args.json:
        _print_json({"logdirs": cleaned(logdirs), **report})
    else:
        print(render(report, *options.terminal(), max(0, args.top)), end="")
    return 0


def _print_json(report: dict) -> None:
    """Print JSON with a line for each field and for each run: all of a large fleet at once takes gigabytes."""
    *_, last = report
    print("{")
    for name, value in report.items():
        comma = "," * (name != last)
        if name == "runs":
            print(f"{json.dumps(name)}: [")
            for number, run in enumerate(value, 1):
                print(json.dumps(run, allow_nan=False) + "," * (number < len(value)))
            print(f"]{comma}")
        else:
            print(f"{json.dumps(name)}: {json.dumps(value, allow_nan=False)}{comma}")
    print("}")


def _progress(line: options.StatusLine, activity: str, count: int, of: int | None) -> None:
    line.show(f"{activity} {count:,} of {of:,} runs" if of else f"{activity} {count:,} runs", count == of)
