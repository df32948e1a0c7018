"""`--threshold` and `--rules`: the same words, and the same errors, in each command that judges."""

import argparse

__all__ = ["add_arguments", "given"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The two options."""
    parser.add_argument("--threshold", action="append", default=[], metavar="CAUSE.NAME=VALUE",
                        help="another threshold for a rule (may be repeated)")  # fmt: skip
    parser.add_argument(
        "--rules", action="store_true", help="list the causes and their thresholds, with reasons"
    )


def given(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The thresholds on the command line, by cause and name.

    Raises:
        UnusableInput: one has another form, or is no number.
    """
    from gpu_util_callback.diagnosis import parse_threshold

    thresholds: dict[str, dict[str, float]] = {}
    for text in args.threshold:
        cause, name, value = parse_threshold(text)
        thresholds.setdefault(cause, {})[name] = value
    return thresholds
