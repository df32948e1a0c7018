"""`gpu-util export LOGDIR…`: recordings in the formats of other tools."""

import argparse
import sys

from gpu_util_callback.cli import options
from gpu_util_callback.cli.report import add_timeout, open_recordings
from gpu_util_callback.errors import UnusableInput


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "logdir", nargs="+", metavar="LOGDIR", help="a TensorBoard log directory, a run in it, or a URL"
    )
    parser.add_argument(
        "--perfetto",
        metavar="FILE",
        help="write steps, phases, findings and samples as Chrome trace JSON, "
        'for ui.perfetto.dev ("-" = standard output)',
    )
    parser.add_argument("--parquet", metavar="DIR", help="write each table into a Parquet file there (pyarrow)")
    parser.add_argument("--run", action="append", metavar="NAME", help="only this run (may be repeated)")
    add_timeout(parser)


def run(args: argparse.Namespace) -> int:
    """Write the files; return 0."""
    if not args.perfetto and not args.parquet:
        raise UnusableInput("into which format? --perfetto FILE, --parquet DIR, or both")
    recordings = open_recordings(args.logdir, args.run, args.timeout)
    if args.perfetto:
        from gpu_util_callback.report.tables import trace_text

        if args.perfetto == "-":
            sys.stdout.writelines(trace_text(recordings))
        else:
            options.write_file(args.perfetto, trace_text(recordings))
    if args.parquet:
        from gpu_util_callback.report.tables import write_parquet

        write_parquet(recordings, args.parquet)
        print(f"wrote {args.parquet}", file=sys.stderr)
    return 0
