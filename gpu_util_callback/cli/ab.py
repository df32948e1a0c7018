"""`gpu-util ab`: two commands in turns, for a merge."""

import argparse
import re
import shlex

from gpu_util_callback.cli import options
from gpu_util_callback.cli.try_ import add_engine, announce, progress
from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.report.ci import Case, Outcome, add_to_summary, junit
from gpu_util_callback.report.screen import strip_control
from gpu_util_callback.trying.children import Children, Side
from gpu_util_callback.trying.trial import Trial, measure
from gpu_util_callback.words import between

EPOCHS = 12  # a multiple of how seldom something may come: in each 2nd, 3rd, 4th or 6th epoch
SLOWER, NOT_COMPARABLE = 1, 3  # exit codes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("first", metavar="COMMAND", help='the one before: "python before.py --epochs 3"')
    parser.add_argument("second", metavar="COMMAND", help='the one after: "python after.py --epochs 3"')
    parser.add_argument("--max-slowdown", type=options.amount, default=5.0, metavar="PCT", help="default: 5")
    parser.add_argument(
        "--unresolved", choices=("pass", "fail"), default="pass", help="where the pairs prove neither (default: pass)"
    )
    parser.add_argument(
        "--allow-different", action="store_true", help="compare in spite of another GPU, framework, precision or batch"
    )
    parser.add_argument("--junit", metavar="FILE", help="write the outcome as JUnit XML")
    add_engine(parser)


def run(args: argparse.Namespace) -> int:
    """Measure both commands in turns; return the exit code.

    0 = the second is not slower, 1 = it is, 2 = one cannot be timed, 3 = their set-ups differ.
    """
    try:
        commands = [_words(args.first), _words(args.second)]
    except ValueError as error:
        raise UnusableInput(f"{args.first!r}, {args.second!r}: {error}") from error
    if not all(commands):
        raise UnusableInput("give two commands")

    def differences(trial: Trial) -> list[str]:
        return [] if args.allow_different else trial.set_up_differences()

    announce(args, [args.first, args.second], epochs=EPOCHS)
    trial, sides = Trial("", between=True), (Side(commands[0], name=args.first), Side(commands[1], name=args.second))
    with Children(args.steps, args.seconds, EPOCHS, args.copy, args.writable) as children:
        measure(trial, sides, children.run, args.pairs, progress, lambda trial: bool(differences(trial)))
    outcome, sentence = judged(trial, args.max_slowdown, differences(trial))
    if outcome == "skipped" and args.unresolved == "fail":
        outcome = "failure"
    case = Case(args.second, "slowdown", outcome, [sentence], trial.took_s)
    print(strip_control(f"{args.second}: {sentence}"))
    add_to_summary("ab", {"failure": "failed", "error": "not comparable"}.get(outcome, outcome), [case])
    if args.junit:
        options.write_text(args.junit, [junit([case])])
    return {"failure": SLOWER, "error": NOT_COMPARABLE}.get(outcome, 0)


def _words(text: str) -> list[str]:
    """Return a command's words; the shell has those with variables or several commands. Raises: ValueError."""
    return ["sh", "-c", text] if re.search(r"^\w+=|&&|[|;<>]", text) else shlex.split(text)


def judged(trial: Trial, limit_pct: float, differing: list[str]) -> tuple[Outcome, str]:
    """Return the outcome of a comparison as JUnit names it, and everything in one sentence.

    The second command is slower if a slowdown is proven, and one of `limit_pct` is not ruled out.

    Args:
        limit_pct: the slowdown that is allowed, %.
        differing: what differs between the set-ups; [] = comparable.
    """
    if differing:
        return "error", f"not comparable: {'; '.join(differing)} (--allow-different)"
    ratio = trial.estimate
    # Bounds of how much longer steps take, %.
    low_pct, high_pct = (100 * (1 / bound - 1) for bound in (ratio.high, ratio.low))
    sentence = f"{trial.sentence()} Its steps take {between(f'{low_pct:+.3g}', f'{high_pct:+.3g}')} %"
    if low_pct > 0 and high_pct >= limit_pct:
        return "failure", f"{sentence}: slower, at most {limit_pct:g} % allowed."
    if high_pct < limit_pct:
        return "passed", f"{sentence}: within {limit_pct:g} %."
    more = ratio.pairs_for(limit_pct / 100)
    return "skipped", f"{sentence}: {limit_pct:g} % is not resolved, {more} more pairs would."
