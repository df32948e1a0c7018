"""`python -m harness.fuzz`: feed mutated inputs to the readers, and count what they make of them.

`python -m harness.fuzz --minutes 30 --format kineto --seed 7` works through numbered inputs; give
`--first` where an earlier part stopped. `--replay` checks the corpus of inputs that once failed, first.
Every `format_<name>.py` in this folder has a `FORMAT`; failing inputs are kept in tests/out/fuzz.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

from harness.fuzz import fuzzer

FOLDER = Path(__file__).resolve().parent
CORPUS = FOLDER / "corpus"
OUT = FOLDER.parents[1] / "tests" / "out" / "fuzz"
_PART = 2_000  # inputs between two lines about the progress


def names() -> list[str]:
    return [path.stem.removeprefix("format_") for path in sorted(FOLDER.glob("format_*.py"))]


def load(name: str) -> fuzzer.Format:
    return importlib.import_module(f"harness.fuzz.format_{name}").FORMAT


def replay(chosen: list[str], files: list[Path]) -> int:
    """Check the corpus, or the files named: one line of JSON for each."""
    failed = 0
    for name in chosen:
        format = load(name)
        fuzzer.warm_up(format)
        for path in files or sorted((CORPUS / name).glob("*")):
            outcome, failure = fuzzer.check_one(format, path.read_bytes())
            failed += failure is not None
            line = {"format": name, "file": path.name, "outcome": outcome}
            if failure is not None:
                line |= {"signature": failure.signature, "text": failure.text}
            print(json.dumps(line), flush=True)
    return 1 if failed else 0


def fuzz(args: argparse.Namespace, chosen: list[str]) -> int:
    failed = 0
    for name in chosen:
        format, report = load(name), fuzzer.Report()
        start = time.monotonic()
        until = start + 60 * args.minutes / len(chosen) if args.minutes else None
        stop = args.first + args.inputs if args.inputs else 1 << 60
        at = args.first
        while at < stop and (until is None or time.monotonic() < until):
            part = range(at, min(at + _PART, stop))
            before = report.inputs
            fuzzer.run(format, args.seed, part, until, report)
            at += report.inputs - before
            if args.verbose:
                print(f"{name}: {_counts(report)}", file=sys.stderr, flush=True)
            if report.inputs == before:
                break
        for failure in report.failures.values():
            small = failure if args.as_is else fuzzer.minimise(format, failure)
            path = fuzzer.save(small, args.out)
            times = report.failed[failure.signature]
            print(f"{name}: {failure.signature} ({times} inputs): {path}")
        rate = report.inputs / max(time.monotonic() - start, 1e-9)
        print(
            f"{name}: seed {args.seed}, inputs {args.first} to {at}: {_counts(report)}; {rate:.0f} a second", flush=True
        )
        failed += len(report.failures)
    return 1 if failed else 0


def _counts(report: fuzzer.Report) -> str:
    outcomes = ", ".join(f"{count:,} {word}" for word, count in sorted(report.outcomes.items()))
    return f"{report.inputs:,} inputs ({outcomes or 'none'})"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.fuzz", description=__doc__)
    parser.add_argument("--format", action="append", choices=names(), help="default: all")
    parser.add_argument("--minutes", type=float, help="for all formats together")
    parser.add_argument("--inputs", type=int, help="of each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for failing inputs")
    parser.add_argument("--as-is", action="store_true", help="do not look for smaller ones")
    parser.add_argument("--verbose", action="store_true", help="counts while it runs, on stderr")
    parser.add_argument("--replay", nargs="*", type=Path, metavar="FILE", help="check the corpus")
    args = parser.parse_args()
    chosen = args.format or names()
    new = bool(args.minutes or args.inputs)
    if args.replay is None and not new:
        parser.error("--minutes or --inputs: how much?")
    failed = replay(chosen, args.replay) if args.replay is not None else 0
    return fuzz(args, chosen) | failed if new else failed


if __name__ == "__main__":
    sys.exit(main())
