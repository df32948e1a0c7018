"""`--threshold` and `--rules`, shared by all commands that diagnose."""

import argparse

__all__ = ["add_arguments", "given"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the two options."""
    parser.add_argument("--threshold", action="append", default=[], metavar="CAUSE.NAME=VALUE",
                        help="override a threshold of a rule (may be repeated)")  # fmt: skip
    parser.add_argument(
        "--rules", action="store_true", help="list the causes and their thresholds, with reasons"
    )


def given(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the thresholds of the command line, by cause and name.

    Raises:
        UnusableInput: one is malformed or not a number.
    """
    from gpu_util_callback.diagnosis import parse_threshold

    thresholds: dict[str, dict[str, float]] = {}
    for text in args.threshold:
        cause, name, value = parse_threshold(text)
        thresholds.setdefault(cause, {})[name] = value
    return thresholds
