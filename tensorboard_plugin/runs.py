"""Which recordings there are: TensorBoard's runs, looked at again when somebody asks."""

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpu_util_callback.recording.discovery import group_sessions, recording_id
from gpu_util_callback.recording.manifest import NewerFormat
from gpu_util_callback.recording.reader import Problem, Recording
from gpu_util_callback.recording.schema import PLUGIN_NAME
from gpu_util_callback.recording.storage import Storage, is_remote, storage_for

__all__ = ["RunIndex", "run_directories"]

# Requests come in bursts (a view asks for many tiles): look at the files at most this often.
FRESH_S = 0.5


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
class _Run:
    """What is open of one run."""

    storage: Storage
    folder: str
    recordings: dict[str, Recording]
    problems: dict[str, Problem]


class RunIndex:
    """The recordings of all runs, opened once and refreshed when asked.

    Args:
        directories: what gives the current runs: name -> directory.
    """

    def __init__(self, directories: Callable[[], dict[str, str]], clock=time.monotonic):
        self._directories = directories
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}
        self._by_id: dict[str, Recording] = {}
        self._looked_at = float("-inf")
        self.names: list[str] = []
        self.problems: list[Problem] = []

    def recordings(self) -> list[Recording]:
        """All recordings, oldest first."""
        self._look()
        return sorted(self._by_id.values(), key=lambda one: (one.start_ns, one.id))

    def find(self, id: str) -> Recording | None:
        """The recording with this id, refreshed; ids are only ever looked up."""
        known = self._by_id.get(id)
        if known is None:
            self._look()
            return self._by_id.get(id)
        with self._lock:
            if self._clock() - self._looked_at > FRESH_S:
                try:
                    known.refresh()
                except NewerFormat:
                    return None
        return known

    def _look(self) -> None:
        with self._lock:
            if self._clock() - self._looked_at <= FRESH_S:
                return
            directories = self._directories()
            self.names = sorted(directories)
            self.problems = []
            for gone in set(self._runs) - set(directories):
                del self._runs[gone]
            for name, path in directories.items():
                self._look_at_run(name, path)
            found = [one for run in self._runs.values() for one in run.recordings.values()]
            group_sessions(found)
            self._by_id = {one.id: one for one in found}
            self._looked_at = self._clock()

    def _look_at_run(self, name: str, path: str) -> None:
        run = self._runs.get(name)
        try:
            if run is None:
                storage, root = storage_for(path)
                run = _Run(storage, storage.join(root, "plugins", PLUGIN_NAME), {}, {})
                self._runs[name] = run
            folders = run.storage.folders(run.folder)
        except FileNotFoundError:
            folders = []
        except (OSError, ImportError) as error:
            self.problems.append(Problem(path, str(error)))
            return
        assert run is not None
        for gone in set(run.recordings) - set(folders):
            del run.recordings[gone]
        for folder in folders:
            place = run.storage.join(run.folder, folder)
            try:
                if folder in run.recordings:
                    run.recordings[folder].refresh()
                else:
                    id = recording_id(name, folder)
                    run.recordings[folder] = Recording(run.storage, place, name, id)
            except NewerFormat as error:
                run.recordings.pop(folder, None)
                self.problems.append(Problem(place, str(error)))
