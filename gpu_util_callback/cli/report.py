"""`gpu-util report LOGDIR…`: where the time of a training run went, and what to do first."""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterable

from gpu_util_callback.errors import UnusableInput

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("logdir", nargs="+", metavar="LOGDIR",
                        help="a log directory of TensorBoard, a run in it, or a URL")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--run", action="append", metavar="NAME",
                        help="only this run (may be repeated)")  # fmt: skip
    parser.add_argument("--threshold", action="append", default=[], metavar="CAUSE.NAME=VALUE",
                        help="another threshold for a rule (may be repeated)")  # fmt: skip
    parser.add_argument("--width", type=int, metavar="COLUMNS", help="default: the terminal's")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")


def run(args: argparse.Namespace) -> int:
    """Print the report; returns the exit code."""
    from gpu_util_callback.diagnosis import logdir_report, parse_threshold
    from gpu_util_callback.terminal import render

    thresholds: dict[str, dict[str, float]] = {}
    for text in args.threshold:
        cause, name, value = parse_threshold(text)
        thresholds.setdefault(cause, {})[name] = value
    report = logdir_report(_recordings(args.logdir, args.run), thresholds)
    if args.json:
        json.dump(report, sys.stdout, indent=2, allow_nan=False)
        print()
    else:
        print(render(report, _width(args.width), _color(args.color), _unicode()), end="")
    return 0


def _recordings(logdirs: Iterable[str], only: list[str] | None) -> list:
    from gpu_util_callback.recording import read_recordings

    found = []
    for logdir in logdirs:
        recordings = read_recordings(logdir)
        for problem in recordings.problems:
            print(f"gpu-util report: {problem.path}: {problem.message}", file=sys.stderr)
        here = list(recordings)
        if not here:
            raise UnusableInput(
                f"no recording in {logdir}: looked for <run>/plugins/gpu_utilization/*/"
                "manifest.json; add callbacks=[GpuUtilCallback(log_dir)] to model.fit and train"
            )
        found += here
    if only:
        known = sorted({recording.run for recording in found})
        missing = [name for name in only if name not in known]
        if missing:
            raise UnusableInput(f"no run {missing[0]!r}; there is {', '.join(known)}")
        found = [recording for recording in found if recording.run in only]
    return found


def _width(given: int | None) -> int:
    return given if given and given > 0 else shutil.get_terminal_size((80, 24)).columns


def _color(wish: str) -> bool:
    if wish != "auto":
        return wish == "always"
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout.isatty()


def _unicode() -> bool:
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    try:
        "█■–×µ·".encode(encoding)
    except (UnicodeError, LookupError):
        return False
    return True
