"""The recordings of TensorBoard's runs, looked at again on request."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field
from pathlib import Path

from gpu_util_callback import daemon
from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.recording.discovery import find_recordings, group_sessions
from gpu_util_callback.recording.manifest import UnknownFormat
from gpu_util_callback.recording.manifest_facts import Status
from gpu_util_callback.recording.problems import Problem, reason, remedy, unopened, unreadable
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.schema import PLUGIN_NAME
from gpu_util_callback.recording.storage import LeadsOutside, Storage, is_remote, storage_for

logger = logging.getLogger("gpu_util_callback")

# Requests come in bursts (a view asks for many tiles): look at the files at most this often.
FRESH_S = 0.5
# Recordings no longer being written, and remote folders, are looked at again after this.
SETTLED_S = 10.0
REMOTE_S = 30.0
# A folder that changed less than this ago may change again without a newer time of change.
GRANULARITY_S = 3.0
# A request waits this long for the look at all runs; it then answers with what is known so far.
PATIENCE_S = 2.0
# A store without an answer for this long is not waited for; its runs are shown once it answers.
SILENT_S = 5.0
# Looks at one local directory that may wait at a time, each for another mount below it.
MOST_SILENT = 8


def run_directories(logdir: str, names: list[str], multiplexer) -> dict[str, str]:
    """Return run name -> its directory.

    Under `--logdir_spec` only the multiplexer knows; otherwise a run's name is its path below the log directory, which
    itself is searched even when it is no run (no event file was written).

    Args:
        logdir: "" under `--logdir_spec`.
        names: of the runs that TensorBoard knows.
        multiplexer: TensorBoard's; None = it has none.
    """
    if logdir:
        join = "/".join if is_remote(logdir) else (lambda parts: os.path.join(*parts))  # noqa: PTH118
        paths = {name: logdir if name == "." else join([logdir, name]) for name in names}
        paths.setdefault(".", logdir)
        return paths
    paths_by_run: Mapping[str, str] = multiplexer.RunPaths() if multiplexer is not None else {}
    return {name: paths_by_run[name] for name in names if name in paths_by_run}


def _listed(spec: str) -> list[str]:
    """Return what may be the directories of `--logdir_spec`: `name:path` or `path`, separated by commas."""
    return [end for entry in spec.split(",") for end in (entry, entry.partition(":")[2]) if end]


def log_directory(logdir: str, spec: str, path: str) -> str:
    """Return the log directory that contains a run's directory `path`; `path` itself if none of a list does."""
    if logdir:
        return logdir
    logdirs = [os.path.realpath(os.path.expanduser(directory)) for directory in _listed(spec)]  # noqa: PTH111
    return max((directory for directory in logdirs if Path(path).is_relative_to(directory)), key=len, default=path)


def local_directories(logdir: str, spec: str) -> list[str]:
    """Return the local log directories as given, in full; nothing is read.

    Args:
        logdir, spec: as for `log_directory`.
    """
    directories = [logdir] if logdir else _listed(spec)
    return [
        os.path.abspath(os.path.expanduser(directory))  # noqa: PTH100, PTH111
        for directory in directories
        if not is_remote(directory)
    ]


@dataclass
class OpenedRecording:
    """A recording, and its status when it was last looked at.

    `row`: its row in the plugin's list, valid for (`looked_at`, another key).
    """

    recording: Recording
    looked_at: float
    status: Status
    row: tuple[tuple, str] | None = None
    opened_at: float = 0.0

    @property
    def revision(self) -> str:
        """The recording's revision as of that look; no file is read."""
        return self.recording.revision_as(self.status)

    def is_due(self, now: float) -> bool:
        """Return whether to open the recording again, whose files did not all answer the last time."""
        return self.recording.unanswered and now - self.opened_at > REMOTE_S


@dataclass
class _Run:
    """Open recordings of one run."""

    storage: Storage
    folder: str
    remote: bool
    entries: dict[str, OpenedRecording] = field(default_factory=dict)
    problems: dict[str, Problem] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    stamp: tuple | None = None  # the folder's, when `folders` was read and is reliable
    listed_at: float = float("-inf")


# (run, its directory, what to call at each answer) -> problems
_LookAtRun = Callable[[str, str, Callable[[], None]], list[Problem]]


class _Look:
    """A look at the runs of one store, on a thread of its own."""

    def __init__(self, runs: Mapping[str, str], look: _LookAtRun):
        self.at = ""  # the directory that it looks at
        self.replaced = False  # another look has the other runs: this one ends with its run
        self._problems: list[Problem] = []
        self._since = time.monotonic()
        self.outcome = daemon.begin(lambda: self._work(runs, look), "gpu-util-runs")

    @property
    def is_silent(self) -> bool:
        """Return whether there has been no answer for long."""
        return not self.outcome.done() and time.monotonic() - self._since > SILENT_S

    @property
    def problems(self) -> list[Problem]:
        """Return the problems found so far, and a missing answer."""
        problems = list(self._problems)
        if self.is_silent:
            message = "no answer; its recordings appear once there is one"
            problems.append(Problem(self.at, f"{message}: {remedy(OSError())}"))
        return problems

    def _note_answer(self) -> None:
        self._since = time.monotonic()

    def _work(self, runs: Mapping[str, str], look: _LookAtRun) -> None:
        """Search each run for recordings; a run that cannot be read is a problem, and hides no other."""
        for name, path in runs.items():
            if self.replaced:
                break
            self._note_answer()
            self.at = path
            try:
                self._problems += look(name, path, self._note_answer)
            except (OSError, ImportError) as error:
                self._problems.append(Problem(path, unreadable(error)))
            except Exception as error:  # whatever it contains, it must not hide the others
                logger.exception("looking for recordings in %s failed", path)
                self._problems.append(Problem(path, f"cannot be read: {reason(error)}"))


class RunIndex:
    """The recordings of all runs, opened once and refreshed when asked.

    Thousands of runs cost a look at one folder each: its time of change shows whether there is a
    new recording, and only those being written are read again each time. The looks run on
    threads of their own, one for each store and each local log directory, so that a slow or silent
    one holds up no request for long, and no other one at all. Where a mount below a local log
    directory is silent, another look goes on with the rest of it.

    Args:
        directories: returns the current runs: name -> directory.
        within: returns the directory outside of which nothing of a run is read; by default its
            own.
        homes: the local log directories.
    """

    def __init__(
        self,
        directories: Callable[[], dict[str, str]],
        clock=time.monotonic,
        within: Callable[[str], str] = lambda path: path,
        homes: Sequence[str] = (),
    ):
        self._homes = sorted(homes, key=len, reverse=True)
        self._directories = directories
        self._within = within
        self._clock = clock
        self._lock = threading.Lock()  # held while looks begin, and while their results are taken
        self._looks: dict[str, list[_Look]] = {}  # by store, those that are not over
        self._current: list[_Look] = []  # those at the runs of the last listing
        self._runs: dict[str, _Run] = {}
        self._count = 0  # of directories at the last look
        self._no_runs = False  # whether TensorBoard knows of none below its log directory
        # Runs without event files, which TensorBoard does not know.
        self._copied: dict[str, str] = {}  # what was found there then, as `directories` returns it
        self._by_id: dict[str, OpenedRecording] = {}
        self._ordered: list[OpenedRecording] = []
        self._looked_at = float("-inf")
        self._changed = False  # set where a recording has changed since `_publish`
        self.problems: list[Problem] = []
        self.complete = True  # whether all runs known at the last listing have been looked at

    @property
    def progress(self) -> tuple[int, int]:
        """Return how many runs have been looked at, and how many there are."""
        return len(self._runs), self._count

    def recordings(self) -> list[Recording]:
        """Return all recordings, oldest first."""
        return [entry.recording for entry in self.entries()]

    def entries(self) -> list[OpenedRecording]:
        """Return all recordings, oldest first, with when each was looked at."""
        self._look()
        return self._ordered

    def is_silent(self, entry: OpenedRecording) -> bool:
        """Return whether the local directory of a recording does not answer at the moment."""
        path = Path(entry.recording.path)
        return any(
            look.is_silent and path.is_relative_to(self._entry(look.at))
            for looks in list(self._looks.values())
            for look in looks
        )

    def find(self, id: str) -> Recording | None:
        """Return the recording with this id, refreshed; None if there is none.

        Ids are only ever looked up, never opened.
        """
        entry = self._by_id.get(id)
        if entry is None:  # not known yet: search for it
            self._look(id)
            entry = self._by_id.get(id)
            return entry.recording if entry else None
        now = self._clock()
        if now - entry.looked_at > FRESH_S:
            entry.looked_at = now
            try:
                # It may now belong to another session, which the next look finds out.
                if entry.recording.refresh():
                    self._changed = True
            except (UnknownFormat, LeadsOutside):
                return None
        return entry.recording

    def _look(self, id: str | None = None) -> None:
        """Search the log directories, unless that was just done; wait until all are searched, or `id` is found.

        The wait is at most `PATIENCE_S`.
        """
        with self._lock:
            if self.complete:
                if self._clock() - self._looked_at <= FRESH_S:
                    return
                self._begin()
        end = time.monotonic() + PATIENCE_S
        while (pending := self._gather()) and id not in self._by_id and time.monotonic() < end:
            wait([pending[0].outcome], 0.05 if id else PATIENCE_S / 4)

    def _gather(self) -> list[_Look]:
        """Publish what was found; return the searches to wait for.

        A silent store is not waited for: its runs are shown once it answers.
        """
        with self._lock:
            pending = [look for look in self._current if not look.outcome.done() and not look.is_silent]
            problems = [problem for look in self._current for problem in look.problems]
            if self._changed or (not pending and problems != self.problems):
                self._changed = False  # first: what changes from here on is published the next time
                self._publish(problems)
            if not pending and not self.complete:
                self.complete, self._looked_at = True, self._clock()
            return pending

    def _begin(self) -> None:
        """Start a thread for each store that searches its runs; searches that are under way continue.

        Where all searches of a local directory are silent, another one takes the runs that are not below their mounts.
        """
        directories = self._directories()
        self._no_runs = set(directories) == {"."}
        if self._no_runs:
            directories |= self._copied
        self._count = len(directories)
        for name in set(self._runs) - set(directories):
            del self._runs[name]
            self._changed = True
        stores: dict[str, dict[str, str]] = {}
        for name, path in directories.items():
            stores.setdefault(self._store(path), {})[name] = path
        for store, runs in stores.items():
            looks = self._looks[store] = [look for look in self._looks.get(store, []) if not look.outcome.done()]
            silent = [look for look in looks if look.is_silent]
            most = 1 if is_remote(store) else MOST_SILENT
            if len(silent) == len(looks) < most:
                waits = {self._entry(look.at) for look in silent}
                for look in silent:
                    look.replaced = True
                answering = {name: path for name, path in runs.items() if self._entry(path) not in waits}
                looks.append(_Look(answering, self._look_at_run))
        self._current = [look for store in stores for look in self._looks[store]]
        self.complete = False

    def _store(self, path: str) -> str:
        """Return what answers for a path: a URL's host or bucket, or a local log directory."""
        return "/".join(path.split("/")[:3]) if is_remote(path) else self._home(path)

    def _home(self, path: str) -> str:
        """Return the local log directory of a path, "" if it is in none."""
        return next((home for home in self._homes if Path(path).is_relative_to(home)), "")

    def _entry(self, path: str) -> str:
        """Return the entry of its log directory that a path is, or is below: it may be a mount."""
        home = self._home(path)
        if not home or path == home:
            return path
        return os.path.join(home, Path(path).relative_to(home).parts[0])  # noqa: PTH118

    def _publish(self, problems: list[Problem]) -> None:
        """Publish the recordings that are known now, by start, grouped into sessions, and the problems."""
        entries = [entry for run in list(self._runs.values()) for entry in list(run.entries.values())]
        group_sessions(entry.recording for entry in entries)
        entries.sort(key=lambda entry: (entry.recording.start_ns, entry.recording.id))
        self._by_id = {entry.recording.id: entry for entry in entries}
        self._ordered = entries
        self.problems = list(problems)

    def _look_at_run(self, name: str, path: str, note_answer: Callable[[], None]) -> list[Problem]:
        """Refresh one run; return its problems.

        Where TensorBoard knows of no run, those that were copied there without event files are refreshed, too.
        """
        problems = self._refreshed(name, path, note_answer)
        if name == "." and self._no_runs and not is_remote(path):
            with contextlib.suppress(UnusableInput):
                run_names = {place.run for place in find_recordings(path, [])[1]} - {"."}
                copied = {run: str(Path(path, run)) for run in sorted(run_names)}
                for run in copied.keys() - self._copied.keys():
                    problems += self._refreshed(run, copied[run], note_answer)
                self._copied = copied
                self._count = 1 + len(copied)
        return problems

    def _refreshed(self, name: str, path: str, note_answer: Callable[[], None]) -> list[Problem]:
        """Refresh one run; return its problems.

        Args:
            note_answer: called at each answer of the store.
        """
        run = self._runs.get(name)
        if run is None:
            storage, root = storage_for(path, within=self._within(path))
            folder = storage.join(root, "plugins", PLUGIN_NAME)
            run = self._runs[name] = _Run(storage, folder, is_remote(path))
        folders = self._folders(run)
        for vanished in set(run.entries) - set(folders):
            del run.entries[vanished]
            self._changed = True
        now = self._clock()
        for folder in folders:
            note_answer()
            entry = run.entries.get(folder)
            # It is not written any more: looked at again later.
            if entry is not None and entry.status != "live" and now - entry.looked_at < SETTLED_S:
                continue
            place = run.storage.join(run.folder, folder)
            try:
                if entry is None or entry.is_due(now):  # new, or not all of its files answered
                    recording = Recording(run.storage, place, name)
                    if run.remote and recording.unanswered and not recording.facts:
                        # Asking it for anything more would wait, too.
                        run.problems[folder] = Problem(place, unreadable(OSError("no answer")))
                        continue
                    run.entries[folder] = OpenedRecording(recording, now, recording.status, opened_at=now)
                    self._changed = True
                else:
                    changed = entry.recording.refresh()
                    entry.looked_at, entry.status = now, entry.recording.status
                    if changed:
                        self._changed = True
                run.problems.pop(folder, None)
            except Exception as error:
                run.problems[folder] = unopened(place, error)
                if run.entries.pop(folder, None) is not None:
                    self._changed = True
        return list(run.problems.values())

    def _folders(self, run: _Run) -> list[str]:
        """Return the folders of a run's recordings, listed again where they may have changed."""
        now = self._clock()
        try:
            if run.remote:  # a store is asked rarely, or while a recording is live
                if now - run.listed_at > REMOTE_S or any(entry.status == "live" for entry in run.entries.values()):
                    run.folders, run.listed_at = run.storage.folders(run.folder), now
                return run.folders
            stamp = run.storage.stamp(run.folder)
            if stamp != run.stamp:
                run.folders = run.storage.folders(run.folder)
                # Time stamps are coarse: a folder that changed just now may change again unnoticed.
                settled = time.time() - stamp[-1] / 1e9 > GRANULARITY_S
                run.stamp = stamp if settled else None
        except FileNotFoundError:
            run.folders, run.stamp, run.listed_at = [], None, now
        return run.folders
