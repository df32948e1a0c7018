"""`gpu-util run | try | ab | look | report | total | doctor | trace | export | skill`: the command line."""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import NoReturn

from gpu_util_callback._version import __version__
from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.redaction import CleanStream

__all__ = ["main"]

# name -> its line in `gpu-util --help`; the module gpu_util_callback.cli.<name> has
# `add_arguments(parser)` and `run(args) -> int`, and is imported only for its own command.
COMMANDS = {
    "run": "run a program as Python does, and record every training in it",
    "try": "measure what a fix does to a program, in turns with the program as it is",
    "ab": "compare the speed of two commands in turns, for a merge",
    "look": "take a profiler window of a training that runs now",
    "report": "show where a training run spent its time and what to fix first",
    "total": "show where the GPU-hours of all runs in log directories went",
    "doctor": "check whether this machine's GPUs, driver and framework work together",
    "trace": "analyze a profiler trace",
    "export": "write recordings in formats of other tools: Perfetto, Parquet",
    "skill": "print a page for coding agents: how to make a training faster with these commands",
}


class _Parser(argparse.ArgumentParser):
    """Parser that reports invalid arguments in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command of `gpu-util`.

    Returns:
        0 = done, 1 = a `--check` failed, 2 = unusable input (one line on stderr), 130 = interrupted.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["run"]:  # what the program writes is its own
        from gpu_util_callback.cli import run

        options, program = run.split(argv[1:])
        return run.run(_parsed(["run", *options])[1], program)
    out, err = CleanStream(sys.stdout), CleanStream(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        rest: list[str] | None = None
        if argv[:1] == ["try"]:  # what follows the script is the program's own
            from gpu_util_callback.cli import run, try_

            options, rest = run.split(argv[1:], try_.VALUED)
            argv = ["try", *options]
        return _run(argv, rest)


def _parsed(argv: list[str]) -> tuple[ModuleType, argparse.Namespace]:
    """Return a command's module and its parsed arguments; exits on an error, `--help` and `--version`."""
    parser = _Parser(prog="gpu-util", description="Why is my GPU idle?")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    command = next((word for word in argv if not word.startswith("-")), None)
    parsers = {
        name: commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        for name, text in COMMANDS.items()
    }
    if command not in parsers or argv[0] != command:
        parser.parse_args(argv)  # exits by itself on an error, --help or --version
        parser.exit(2)
    assert command is not None
    module = import_module(f"gpu_util_callback.cli.{'try_' if command == 'try' else command}")
    module.add_arguments(parsers[command])
    # Options may stand before, after and between the paths, in any command.
    return module, parsers[command].parse_intermixed_args(argv[1:])


def _run(argv: list[str], program: list[str] | None = None) -> int:
    """Run a command; return its exit code.

    Args:
        program: of `gpu-util try`: the script and its arguments; None = another command.
    """
    module, args = _parsed(argv)
    if hasattr(sys.stdout, "reconfigure"):  # names in a recording may hold any character
        sys.stdout.reconfigure(errors="replace")
    try:
        return module.run(args) if program is None else module.run(args, program)
    except UnusableInput as error:
        shown = (f"  | {line}" for line in error.output.splitlines())
        print(f"gpu-util {argv[0]}: {error}", *shown, sep="\n", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `gpu-util report | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
