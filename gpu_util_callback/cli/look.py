"""`gpu-util look LOGDIR`: a profiler window of a training that runs now, here or elsewhere."""

import argparse
import json
import sys
import tempfile
import time
import uuid
from pathlib import Path

from gpu_util_callback.cli import trace
from gpu_util_callback.cli.options import amount
from gpu_util_callback.cli.report import open_recordings
from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.processes import STOPPED
from gpu_util_callback.profiling.profiler_windows import MOST_LOOK_STEPS
from gpu_util_callback.recording.manifest import writer_state
from gpu_util_callback.recording.manifest_facts import WindowFacts
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.storage import Storage, storage_for
from gpu_util_callback.recording.writer import LOOK_FILE
from gpu_util_callback.report.screen import UNFINISHED, strip_control
from gpu_util_callback.traces import limits
from gpu_util_callback.words import steps, stood_still

MOST_STACKS_BYTES = 4 << 20  # of a file that is printed
POLL_S, REMOTE_POLL_S = 0.25, 2.0  # between two reads of the recording; a store is asked less often


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("logdir", metavar="LOGDIR", help="a TensorBoard log directory, or the URL of one")
    parser.add_argument(
        "--steps", type=int, default=5, metavar="N", help="steps to profile, at most 20 (default: %(default)s)"
    )
    parser.add_argument("--run", metavar="NAME", help="only this run")
    parser.add_argument("--rank", type=int, metavar="K", help="the worker (default: the first)")
    parser.add_argument(
        "--timeout", type=amount, default=120, metavar="S", help="seconds to wait for the window (default: %(default)g)"
    )


def run(args: argparse.Namespace) -> int:
    """Request a profiler window, wait for it, and print what it shows, or where a training without steps waits.

    Returns:
        0, or 1 if no window came.
    """
    if not 1 <= args.steps <= MOST_LOOK_STEPS:
        raise UnusableInput(f"--steps {args.steps}: give 1 to {MOST_LOOK_STEPS}")
    recording = _live(args)
    look = uuid.uuid4().hex
    storage, _ = storage_for(args.logdir)
    if _stands_still(recording):  # no window can come
        return _say_where(storage, recording)
    request = storage.join(recording.path, LOOK_FILE)
    try:
        storage.write(request, json.dumps({"look": look, "steps": args.steps}).encode())
    except OSError as error:
        raise UnusableInput(f"cannot write to {recording.path}: {error.strerror or error}") from error
    try:
        window, refused = _answer(recording, look, args.timeout, REMOTE_POLL_S if storage.remote else POLL_S)
    finally:
        if storage.exists(request):  # nobody has taken it
            storage.remove(request)
    if window is None and _stands_still(recording):
        return _say_where(storage, recording)
    if window is None:
        print(f"no window: {refused}", file=sys.stderr)
        return 1
    first, stop = window["first_step"], window["stop_step"]
    print(f"profiled {steps(first, stop)}; cost {window['cost_s']:.2g} s")
    if window.get("profile"):  # it has a trace
        run_folder = Path(recording.path).parents[2].as_posix()
        return _explain(storage, storage.join(run_folder, "plugins", "profile", window["profile"]))
    return 0


def _stands_still(recording: Recording) -> bool:
    """Return whether no step has come for long, as the recorder says."""
    return recording.facts.get("step_watch", {}).get("still", False)


def _say_where(storage: Storage, recording: Recording) -> int:
    """Print where a training without steps waits, and the stacks of its threads; return 1."""
    newest = recording.facts["step_watch"]["standstills"][-1]
    print(strip_control(stood_still(newest)))
    stacks = storage.join(recording.path, newest.get("stacks") or "")
    if newest.get("stacks") and storage.exists(stacks):
        print(strip_control(f"\n{storage.read(stacks, MOST_STACKS_BYTES).decode(errors='replace')}"), end="")
    return 1


def _explain(storage: Storage, folder: str) -> int:
    """Print what the trace in a folder shows; one in a remote store is copied to this machine first."""
    parser = argparse.ArgumentParser()
    trace.add_arguments(parser)
    with tempfile.TemporaryDirectory() as folder_here:
        if storage.remote:
            for name in storage.names(folder):
                data = storage.read(storage.join(folder, name), limits.MAX_UNPACKED)
                (Path(folder_here) / Path(name).name).write_bytes(data)
            folder = folder_here
        return trace.run(parser.parse_args([folder]))


def _live(args: argparse.Namespace) -> Recording:
    """Return the newest recording that is live; of several workers, the first or the given one.

    Raises:
        UnusableInput: none is live.
    """
    recordings = open_recordings([args.logdir], [args.run] if args.run else None, args.timeout)
    live = [
        recording for recording in recordings if recording.status == "live" and args.rank in (None, recording.rank or 0)
    ]
    if not live:
        states = ", ".join(sorted({UNFINISHED.get(recording.status, recording.status) for recording in recordings}))
        silent = next(filter(None, map(_silent, recordings)), "")
        raise UnusableInput(f"nothing in {args.logdir} trains now (its recordings: {states}{silent})")
    return min(live, key=lambda recording: (recording.rank or 0, -recording.start_ns))


def _silent(recording: Recording) -> str:
    """Return why a training whose process lives writes nothing; "" for others."""
    state = writer_state(recording.facts) if recording.status == "lost" else ""
    if not state:
        return ""
    silent = "silent: C code holds Python's lock, or its storage hangs"
    return f"; the process of one is there, and {'stopped: kill -CONT lets it go on' if state in STOPPED else silent}"


def _answer(recording: Recording, look: str, timeout_s: float, poll_s: float) -> tuple[WindowFacts | None, str]:
    """Wait for the window that was asked for.

    Args:
        look: the id of the request.

    Returns:
        The window's facts and "", or None and why there is none.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        time.sleep(poll_s)
        recording.refresh()
        for window in recording.facts.get("windows", []):
            if window.get("look") == look:
                return window, ""
        refused = recording.facts.get("look_refused")
        if refused and refused.get("look") == look:
            return None, refused["reason"]
        if _stands_still(recording):
            return None, "no step comes"
        if recording.status != "live":
            over = f"the training is over ({UNFINISHED.get(recording.status, recording.status)})"
            return None, _silent(recording).removeprefix("; ") or over
    return None, f"none came within {timeout_s:g} s; --timeout S waits longer"
