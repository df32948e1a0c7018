"""`gpu-util skill`: how an agent makes a training faster with these commands, as a SKILL.md."""

import argparse
import contextlib
from importlib.resources import files
from pathlib import Path

from gpu_util_callback.cli import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the option of the command."""
    parser.add_argument("--install", metavar="DIR", help="write DIR/gpu-util/SKILL.md: the folder of an agent's skills")


def run(args: argparse.Namespace) -> int:
    """Print the page for agents, or write it into their folder of skills; return 0."""
    text = (files("gpu_util_callback") / "SKILL.md").read_text(encoding="utf-8")
    if args.install:
        place = Path(args.install).expanduser() / "gpu-util" / "SKILL.md"
        with contextlib.suppress(OSError):  # writing says why
            place.parent.mkdir(parents=True, exist_ok=True)
        options.write_text(str(place), [text])
        text = f"{place}\n"
    print(text, end="")
    return 0
