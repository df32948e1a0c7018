"""`gpu-util look LOGDIR`: a profiler window of a training that runs now, here or elsewhere."""

import argparse
import json
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from gpu_util_callback.cli import trace
from gpu_util_callback.cli.report import length, open_recordings
from gpu_util_callback.errors import UnusableInput

POLL_S = 0.25


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("logdir", metavar="LOGDIR", help="a TensorBoard log directory")
    parser.add_argument(
        "--steps", type=int, default=5, metavar="N", help="steps to profile, at most 20 (default: %(default)s)"
    )
    parser.add_argument("--run", metavar="NAME", help="only this run")
    parser.add_argument("--rank", type=int, metavar="K", help="the worker (default: the first)")
    parser.add_argument(
        "--timeout", type=length, default=120, metavar="S", help="seconds to wait for the window (default: %(default)g)"
    )


def run(args: argparse.Namespace) -> int:
    """Request a window, wait, and print what it shows; return 1 where none came."""
    from gpu_util_callback.profiling.profiler_windows import MOST_LOOK_STEPS
    from gpu_util_callback.recording.storage import LocalStorage, is_remote
    from gpu_util_callback.recording.writer import LOOK_FILE

    if is_remote(args.logdir):
        raise UnusableInput(f"{args.logdir} is a URL; look works on a folder, shared or local")
    if not 1 <= args.steps <= MOST_LOOK_STEPS:
        raise UnusableInput(f"--steps {args.steps}: give 1 to {MOST_LOOK_STEPS}")
    recording = _live(args)
    look, storage = uuid.uuid4().hex, LocalStorage()
    request = storage.join(recording.path, LOOK_FILE)
    try:
        storage.write(request, json.dumps({"look": look, "steps": args.steps}).encode())
    except OSError as error:
        raise UnusableInput(f"cannot write to {recording.path}: {error.strerror}") from error
    try:
        window, refused = _answer(recording, look, args.timeout)
    finally:
        if storage.exists(request):  # nobody has taken it
            storage.remove(request)
    if window is None:
        print(f"no window: {refused}", file=sys.stderr)
        return 1
    first, stop = window["first_step"], window["stop_step"]
    print(f"steps {first}–{stop - 1} were profiled; cost {window['cost_s']:.2g} s")
    if window.get("profile"):
        folder = Path(recording.path).parents[2] / "plugins" / "profile" / window["profile"]
        parser = argparse.ArgumentParser()
        trace.add_arguments(parser)
        return trace.run(parser.parse_args([str(folder)]))
    return 0


def _live(args: argparse.Namespace) -> Any:
    """Return the newest recording that is live; of several workers, the first or the given one."""
    recordings = open_recordings([args.logdir], [args.run] if args.run else None, args.timeout)
    live = [
        recording for recording in recordings if recording.status == "live" and args.rank in (None, recording.rank or 0)
    ]
    if not live:
        states = ", ".join(sorted({recording.status for recording in recordings}))
        raise UnusableInput(f"nothing in {args.logdir} trains now (its recordings: {states})")
    return min(live, key=lambda recording: (recording.rank or 0, -recording.start_ns))


def _answer(recording: Any, look: str, timeout_s: float) -> tuple[dict[str, Any] | None, str]:
    """Wait for the window. Returns: its facts, or why there is none."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        time.sleep(POLL_S)
        recording.refresh()
        for window in recording.facts.get("windows", []):
            if window.get("look") == look:
                return window, ""
        refused = recording.facts.get("look_refused") or {}
        if refused.get("look") == look:
            return None, refused["reason"]
        if recording.status != "live":
            return None, f"the training is over ({recording.status})"
    return None, f"none came within {timeout_s:g} s; --timeout S waits longer"
