"""Which recordings there are: TensorBoard's runs, looked at again when somebody asks."""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpu_util_callback.recording.discovery import group_sessions, recording_id
from gpu_util_callback.recording.manifest import NewerFormat
from gpu_util_callback.recording.reader import Problem, Recording
from gpu_util_callback.recording.schema import PLUGIN_NAME
from gpu_util_callback.recording.storage import Storage, is_remote, storage_for

__all__ = ["Known", "RunIndex", "run_directories"]

logger = logging.getLogger("gpu_util_callback")

# Requests come in bursts (a view asks for many tiles): look at the files at most this often.
FRESH_S = 0.5
# Recordings that nobody writes any more, and remote folders, are looked at again after this.
SETTLED_S = 10.0
REMOTE_S = 30.0
# A folder that changed less than this ago may change again without a newer time of change.
GRANULARITY_S = 3.0
# A request waits this long for the look at all runs; it then answers with what is known so far.
PATIENCE_S = 2.0


def run_directories(logdir: str, names: list[str], multiplexer) -> dict[str, str]:
    """Run name -> its directory.

    Under `--logdir_spec` only the multiplexer knows; otherwise a run's name is its path below the
    log directory, which itself is looked at even when it is no run (no event file was written).
    """
    if logdir:
        join = "/".join if is_remote(logdir) else (lambda parts: os.path.join(*parts))  # noqa: PTH118
        paths = {name: logdir if name == "." else join([logdir, name]) for name in names}
        paths.setdefault(".", logdir)
        return paths
    known: Mapping[str, str] = multiplexer.RunPaths() if multiplexer is not None else {}
    return {name: known[name] for name in names if name in known}


@dataclass
class Known:
    """A recording and when it was last looked at.

    `row`: what the plugin made of it for its list, valid for (`looked_at`, another key).
    """

    recording: Recording
    looked_at: float
    live: bool
    row: tuple[tuple, str] | None = None


@dataclass
class _Run:
    """What is open of one run."""

    storage: Storage
    folder: str
    remote: bool
    known: dict[str, Known] = field(default_factory=dict)
    problems: dict[str, Problem] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    stamp: tuple | None = None  # the folder's, when `folders` was read and can be relied upon
    listed_at: float = float("-inf")


class RunIndex:
    """The recordings of all runs, opened once and refreshed when asked.

    Thousands of runs cost a look at one folder each: its time of change tells whether there is a
    new recording, and only those being written are read again each time. The look is taken on a
    thread of its own, so that a slow file system holds up no request for long.

    Args:
        directories: what gives the current runs: name -> directory.
    """

    def __init__(self, directories: Callable[[], dict[str, str]], clock=time.monotonic):
        self._directories = directories
        self._clock = clock
        self._lock = threading.Lock()  # who looks; and the state below
        self._looking: threading.Event | None = None
        self._runs: dict[str, _Run] = {}
        self._by_id: dict[str, Known] = {}
        self._ordered: list[Known] = []
        self._looked_at = float("-inf")
        self._changed = False  # whether `find` saw a recording change since the last look
        self.problems: list[Problem] = []

    @property
    def complete(self) -> bool:
        """Whether all runs have been looked at, of those there were when it was last asked."""
        return self._looking is None

    def recordings(self) -> list[Recording]:
        """All recordings, oldest first."""
        return [one.recording for one in self.known()]

    def known(self) -> list[Known]:
        """The same, with when each was looked at."""
        self._look()
        return self._ordered

    def find(self, id: str) -> Recording | None:
        """The recording with this id, refreshed; ids are only ever looked up."""
        known = self._by_id.get(id)
        if known is None:
            self._look(id)
            known = self._by_id.get(id)
            return known.recording if known else None
        now = self._clock()
        if now - known.looked_at > FRESH_S:
            known.looked_at = now
            try:
                # What it says now may put it into another session, which the next look finds out.
                self._changed |= known.recording.refresh()
            except NewerFormat:
                return None
        return known.recording

    def _look(self, id: str | None = None) -> None:
        """Have a look taken unless there was one just now; wait for it, or until `id` is found."""
        with self._lock:
            if self._looking is None:
                if self._clock() - self._looked_at <= FRESH_S:
                    return
                self._looking = threading.Event()
                threading.Thread(target=self._work, name="gpu-util-runs", daemon=True).start()
            looking = self._looking
        end = time.monotonic() + PATIENCE_S
        while not looking.wait(0.05 if id else PATIENCE_S):
            if id in self._by_id or time.monotonic() > end:
                return

    def _work(self) -> None:
        try:
            self._look_at_all()
        except Exception:
            logger.exception("looking for recordings failed")
        finally:
            with self._lock:
                looking, self._looking = self._looking, None
                self._looked_at = self._clock()
            if looking is not None:
                looking.set()

    def _look_at_all(self) -> None:
        directories = self._directories()
        changed, self._changed = self._changed, False
        for gone in set(self._runs) - set(directories):
            del self._runs[gone]
            changed = True
        problems: list[Problem] = []
        published = time.monotonic()
        for name, path in directories.items():
            try:
                changed |= self._look_at_run(name, path)
                problems += self._runs[name].problems.values()
            except (OSError, ImportError) as error:
                problems.append(Problem(path, str(error)))
            if changed and time.monotonic() - published > PATIENCE_S / 4:
                self._publish(problems)
                published = time.monotonic()
        if changed or problems != self.problems:
            self._publish(problems)

    def _publish(self, problems: list[Problem]) -> None:
        found = [one for run in list(self._runs.values()) for one in run.known.values()]
        group_sessions(one.recording for one in found)
        found.sort(key=lambda one: (one.recording.start_ns, one.recording.id))
        self._by_id = {one.recording.id: one for one in found}
        self._ordered = found
        self.problems = list(problems)

    def _look_at_run(self, name: str, path: str) -> bool:
        """Refresh one run; True if its list of recordings, or what one says, changed."""
        run = self._runs.get(name)
        if run is None:
            storage, root = storage_for(path)
            folder = storage.join(root, "plugins", PLUGIN_NAME)
            run = self._runs[name] = _Run(storage, folder, is_remote(path))
        folders = self._folders(run)
        changed = False
        for gone in set(run.known) - set(folders):
            del run.known[gone]
            changed = True
        now = self._clock()
        for folder in folders:
            known = run.known.get(folder)
            if known is not None and not known.live and now - known.looked_at < SETTLED_S:
                continue
            place = run.storage.join(run.folder, folder)
            try:
                if known is None:
                    one = Recording(run.storage, place, name, recording_id(name, folder))
                    run.known[folder] = Known(one, now, one.status == "live")
                    changed = True
                else:
                    changed |= known.recording.refresh()
                    known.looked_at, known.live = now, known.recording.status == "live"
                run.problems.pop(folder, None)
            except NewerFormat as error:
                changed |= run.known.pop(folder, None) is not None
                run.problems[folder] = Problem(place, str(error))
        return changed

    def _folders(self, run: _Run) -> list[str]:
        """The folders of a run's recordings, listed again where they may have changed."""
        now = self._clock()
        try:
            if run.remote:
                if now - run.listed_at > REMOTE_S or any(one.live for one in run.known.values()):
                    run.folders, run.listed_at = run.storage.folders(run.folder), now
                return run.folders
            stamp = run.storage.stamp(run.folder)
            if stamp != run.stamp:
                run.folders = run.storage.folders(run.folder)
                # Time stamps are coarse: what changed just now may do so once more unseen.
                settled = time.time() - stamp[-1] / 1e9 > GRANULARITY_S
                run.stamp = stamp if settled else None
        except FileNotFoundError:
            run.folders, run.stamp, run.listed_at = [], None, now
        return run.folders
