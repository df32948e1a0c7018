"""`gpu-util try`: what a change does to a program, measured in turns with the program as it is."""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_util_callback.cli import run as run_command
from gpu_util_callback.cli.options import amount, count
from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.redaction import hashed_script
from gpu_util_callback.trying.changes import Change, change_for, parse
from gpu_util_callback.trying.children import Children, Side, python
from gpu_util_callback.trying.estimate import FEWEST_PAIRS, MOST_PAIRS
from gpu_util_callback.trying.meter import WARM_STEPS
from gpu_util_callback.trying.outcomes import store
from gpu_util_callback.trying.trial import Trial, measure, sides_of
from gpu_util_callback.words import between, counted

USAGE = "gpu-util try [OPTIONS] SCRIPT [ARGS…] | gpu-util try [OPTIONS] -m MODULE [ARGS…]"
WHERE = "It runs in a copy of the working directory; nothing else can change but temporary files and caches."
RECORDED_S = 20.0  # of a program that was never recorded, to find what to fix
_Chosen = tuple[Change | None, tuple[str, str] | None]  # and the recording and finding that the change is for
VALUED = ("--fix", "--change", "--patch", "--steps", "--pairs", "--seconds", "--log-dir", "--writable")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = USAGE
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--fix", type=count, metavar="N", help="the Nth finding of the report (default: the first one)")
    what.add_argument("--change", metavar="LINE", help='what to change: "workers=8", or a line as the report prints it')
    what.add_argument("--patch", metavar="FILE", help="a Python file that is run before the changed program")
    parser.add_argument("--log-dir", default="logs", metavar="DIR", help="where recordings of it are (default: logs)")
    parser.epilog = 'What follows SCRIPT is its own. For example: gpu-util try --change "workers=8" train.py --epochs 3'
    add_engine(parser)
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add the options that `try` and `ab` share."""
    parser.add_argument("--steps", type=count, default=200, metavar="N", help="steps to time a run (default: 200)")
    usual = f"{FEWEST_PAIRS}-{MOST_PAIRS}"
    parser.add_argument("--pairs", type=_pairs, default=usual, metavar="N-M", help="fewest and most (default: 4-10)")
    parser.add_argument(
        "--seconds", type=amount, default=20.0, metavar="S", help="seconds to time at most in each run (default: 20)"
    )
    parser.add_argument("--copy", action="store_true", help="copy the working directory's files, do not link them")
    parser.add_argument("--writable", action="append", default=[], metavar="DIR", help="a folder it may change as well")
    parser.add_argument("--yes", action="store_true", help="begin without asking")


def run(args: argparse.Namespace, program: Sequence[str]) -> int:
    """Measure what a change does to a program; return the exit code.

    0 = measured, 1 = nothing can be tried, 2 = the program cannot be timed.
    """
    problem = run_command.unusable(program, USAGE)
    if problem:
        raise UnusableInput(problem)
    change, place = _change(args, program)
    if change is None:
        return 1
    sides = sides_of(change, python(program))
    if args.patch:
        sides = sides[0], Side(python(program), patch=str(Path(args.patch).resolve()), name=f"with {args.patch}")
    announce(args, [" ".join(["python", *program])], change.words, change.epochs)
    trial = Trial(change.words, change.line, bool(change.epochs))
    with Children(args.steps, args.seconds, change.epochs, args.copy, args.writable) as children:
        children.say = progress
        measure(trial, sides, children.run, args.pairs, progress)
    if args.json:
        print(json.dumps(trial.to_json(), indent=2))
    else:
        print(trial.sentence())
        if change.line and trial.estimate.resolved and trial.estimate.ratio > 1:
            print("\n".join(f"  + {line}" for line in change.line.splitlines()))
    try:
        store(*place, trial.to_json()) if place else None
    except OSError as error:
        raise UnusableInput(f"cannot write {error.filename}: {error.strerror}") from error
    return 0


def _pairs(text: str) -> tuple[int, int]:
    """Parse the fewest and the most pairs for argparse: `4-10`, `6` or `4…10`; from 2 to 200."""
    numbers = text.replace("…", "-").replace("..", "-").split("-")
    try:
        fewest, most = int(numbers[0]), int(numbers[-1])
    except ValueError:
        fewest = most = 0
    if not 2 <= fewest <= most <= 200:
        raise argparse.ArgumentTypeError(f"give N-M, from 2 to 200 pairs, not {text!r}")
    return fewest, most


def announce(args: argparse.Namespace, commands: Sequence[str], words: str = "", epochs: int = 0) -> None:
    """Print which commands will run, how often and how long, and ask whether to begin.

    Args:
        words: what is changed every other time; "" = two commands.
        epochs: number to time; 0 = steps are timed.
    """
    runs = between(*(str(2 * pair_count) for pair_count in args.pairs))
    unit = f"{counted(args.steps, 'step')} after {WARM_STEPS} to warm up"
    if epochs:
        unit = f"{counted(epochs, 'epoch')} after the first, or {unit} where none ends in time"
    ask(
        args,
        f"will run {' and '.join(f'`{command}`' for command in commands)} {runs} times in turns"
        f"{f', every other time with {words}' if words else ''}: for {unit}, {args.seconds:g} s at most, each. {WHERE}",
    )


def ask(args: argparse.Namespace, plan: str) -> None:
    """Print what will be run, and wait for an Enter, unless `--yes` was given.

    Raises:
        UnusableInput: nobody can answer.
    """
    print(f"gpu-util: {plan}", file=sys.stderr)
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise UnusableInput("give --yes to begin: nobody can be asked here")
    print("gpu-util: Enter begins, Ctrl+C ends at any time. ", end="", file=sys.stderr, flush=True)
    sys.stdin.readline()


def progress(text: str) -> None:
    """Print a line about a pair."""
    print(f"gpu-util: {text}", file=sys.stderr, flush=True)


# -- which change ----------------------------------------------------------------------------------


def _change(args: argparse.Namespace, program: Sequence[str]) -> _Chosen:
    """Return the change to try, and (recording, finding) that it is for; None each where there is none.

    A program that was never recorded is recorded first.
    """
    if args.patch:
        if not Path(args.patch).is_file():
            raise UnusableInput(f"--patch {args.patch}: no such file")
        return Change("environment", of=Path(args.patch).name), None
    if args.change is not None:
        return parse(args.change), None
    recording = recorded(args.log_dir, program)
    if recording is not None:
        return _chosen(args, *recording)
    ask(args, f"no recording of it in {args.log_dir}: will record {RECORDED_S:.0f} s of it first. {WHERE}")
    started = Children(args.steps, args.seconds, copy=args.copy, writable=args.writable)
    with tempfile.TemporaryDirectory(prefix="gpu-util-recorded-") as folder, started as children:
        children.say = progress
        children.record(program, Path(folder), RECORDED_S)
        recording = recorded(folder, None)
        if recording is None:
            raise UnusableInput("the recording of it cannot be read")
        return _chosen(args, *recording)[0], None


def recorded(log_dir: str, program: Sequence[str] | None) -> tuple[str, dict[str, Any]] | None:
    """Return the path of the newest recording of a program, and its report; None where there is none.

    Args:
        program: script or "-m", module, then arguments; None = of any program.
    """
    from gpu_util_callback.diagnosis import logdir_report
    from gpu_util_callback.recording import read_recordings

    if not Path(log_dir).is_dir():
        return None
    recordings = sorted(read_recordings(log_dir), key=lambda recording: recording.start_ns or 0)
    if program is not None:
        script = hashed_script(program[1] if program[0] == "-m" else Path(program[0]).name)
        recordings = [one for one in recordings if hashed_script(one.facts.get("script")) == script]
    if not recordings:
        return None
    newest = recordings[-1]
    report = logdir_report([newest])
    return (newest.path, dict(report["runs"][0])) if report["runs"] else None


def _chosen(args: argparse.Namespace, path: str, report: dict[str, Any]) -> _Chosen:
    """Return the change for the finding asked for, or for the first one that can be tried; None without any.

    Raises:
        UnusableInput: the report has fewer findings.
    """
    from gpu_util_callback.diagnosis.rule import all_findings
    from gpu_util_callback.report.screen import grouped

    findings = [group.first for group in grouped(all_findings(report))]
    if not findings:
        print(f"{report['verdict']} No finding, so nothing to try; --change tries what you name.")
        return None, None
    if args.fix is not None:
        if args.fix > len(findings):
            raise UnusableInput(f"--fix {args.fix}: the report has {counted(len(findings), 'finding')}")
        findings = findings[args.fix - 1 : args.fix]
    for finding in findings:
        change, lines = change_for(finding["advice"]), finding["advice"]["code"].splitlines()
        progress(f"{finding['title']}: {finding['advice']['text']}")
        if isinstance(change, Change):
            return change, (path, finding["id"])
        progress("\n".join([f"cannot be tried: {change}", *(f"  + {line}" for line in lines)]))
    progress("change a copy of the program, and `gpu-util ab` compares both; --change tries what you name")
    return None, None
