"""Finding recordings below log directories, and grouping those that belong together.

`find_recordings` lists those of many log directories without opening any.
"""

# Paths may be URLs.
# ruff: noqa: PTH119

import glob
import html
import os
import posixpath
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.recording.problems import Problem, unopened, unreadable
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.schema import PLUGIN_NAME, SUMMARY_FILE
from gpu_util_callback.recording.storage import RemoteStorage, Storage, is_remote, storage_for
from gpu_util_callback.words import counted

# How far apart two hosts' clocks may be: milliseconds with NTP, more without it.
CLOCKS_APART_NS = 60_000_000_000


class Recordings(list[Recording]):
    """A list of `Recording`, oldest first; `problems` lists what could not be read.

    Attributes:
        unread: the problems of recordings that are not in the list at all.
    """

    def __init__(self, recordings: Iterable[Recording] = (), problems: Iterable[Problem] = ()):
        super().__init__(recordings)
        self.unread = list(problems)

    @property
    def problems(self) -> list[Problem]:
        """Everything that could not be read, also in the listed recordings."""
        return self.unread + [problem for recording in self for problem in recording.problems]

    def _repr_html_(self) -> str:
        runs = (f"{recording.run}: {recording.status}, {counted(recording.step_count, 'step')}" for recording in self)
        return "<pre>" + html.escape("\n".join([*runs, *map(str, self.problems)])) + "</pre>"


def read_recordings(logdir: str | os.PathLike) -> Recordings:
    """Find and open all recordings in `logdir` and its runs.

    Args:
        logdir: the directory given to TensorBoard, one run of it, or one recording's folder; a path
            or any fsspec URL.

    Returns: the recordings, oldest first; empty when there are none.
    Raises: UnusableInput when `logdir` is no directory or cannot be opened.
    """
    recordings: list[Recording] = []
    problems: list[Problem] = []
    storage, places = find_recordings(os.fspath(logdir), problems, requests=1)
    for place in places:
        try:
            recordings.append(Recording(storage, place.path, place.run))
        except Exception as error:
            problems.append(unopened(place.path, error))
    group_sessions(recordings)
    recordings.sort(key=lambda recording: (recording.start_ns, recording.rank or 0, recording.id))
    return Recordings(recordings, problems)


def group_sessions(recordings: Iterable[Recording]) -> None:
    """Set `session` on each recording: ranks of one job that ran their n-th fit together get the same value.

    The n-th fit of a restarted job is another session: its rank is present already, or it began
    after the others had ended. Since clocks of two hosts may differ, the latter alone splits only
    fits more than `CLOCKS_APART_NS` apart, or ranks with unequal numbers of fits.
    """
    jobs: dict[tuple[str, str], list[Recording]] = {}
    for recording in recordings:
        job = recording.facts.get("job")
        # without a job, each recording is its own session
        key = (job, str(recording.facts.get("fit_index"))) if job else (recording.run, recording.folder)
        jobs.setdefault(key, []).append(recording)
    for members in jobs.values():
        members.sort(key=lambda recording: (recording.start_ns, recording.folder))
        counts = Counter(member.rank for member in members)
        tolerance_ns = CLOCKS_APART_NS if len(set(counts.values())) == 1 else 0
        sessions: list[list[Recording]] = []
        for recording in members:
            session_members = next((present for present in sessions if _joins(recording, present, tolerance_ns)), None)
            if session_members is None:
                sessions.append([recording])
            else:
                session_members.append(recording)
        for session_members in sessions:
            for recording in session_members:
                recording.session = session_members[0].folder


def _joins(recording: Recording, members: list[Recording], apart_ns: int) -> bool:
    """Return whether a recording joins the ranks of one start of a job, all begun before it."""
    if any(recording.rank == other.rank for other in members):
        return False
    return recording.start_ns <= max(other.end_ns for other in members) + apart_ns


# Requests to a remote store at a time: each waits some 20 ms for its answer.
REQUESTS = 64
_DEEPEST = 32  # a cycle of links, or a generated tree


@dataclass(frozen=True, slots=True)
class Found:
    """A recording's folder.

    Attributes:
        logdir: the log directory it was found in, as given.
        run: name of the TensorBoard run, "." for the log directory itself.
        has_summary: False where a listing shows that the recorder's summary of it is missing.
    """

    logdir: str
    run: str
    path: str
    has_summary: bool = True


def expanded(patterns: Iterable[str]) -> list[str]:
    """Return log directories, each once, with globs replaced by the directories that match them.

    Raises: UnusableInput where nothing matches.
    """
    logdirs: list[str] = []
    for text in patterns:
        # a plain path, or a directory whose name has such characters
        if not glob.has_magic(text) or (not is_remote(text) and os.path.isdir(text)):  # noqa: PTH112
            logdirs.append(text)
            continue
        directories = _matches(text)
        if not directories:
            raise UnusableInput(f"no directory matches {text}")
        logdirs += directories
    return list(dict.fromkeys(logdirs))


def _matches(pattern: str) -> list[str]:
    """Return the directories that a pattern matches, sorted. Raises: UnusableInput."""
    if not is_remote(pattern):
        paths = glob.glob(os.path.expanduser(pattern), recursive=True)  # noqa: PTH111, PTH207
        return sorted(path for path in paths if os.path.isdir(path))  # noqa: PTH112
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(pattern)
        names = fs.glob(path, detail=True)
    except Exception as error:  # whatever the store's library raises
        raise UnusableInput(f"{pattern} cannot be opened: {error}") from None
    return sorted(fs.unstrip_protocol(name) for name, info in names.items() if info.get("type") == "directory")


def find_recordings(
    logdir: str, problems: list[Problem], progress: Callable[[int], None] = lambda found: None, requests: int = REQUESTS
) -> tuple[Storage, list[Found]]:
    """Return the storage of a log directory, and the recordings in it, in order of their folders.

    Args:
        logdir: a path or an fsspec URL.
        problems: folders that cannot be listed are appended.
        progress: is called with the number of recordings found so far.
        requests: to a remote store at a time.
    Raises: UnusableInput where `logdir` is no directory or cannot be opened.
    """
    try:
        storage, root = storage_for(logdir, within=logdir)
        names = storage.names(root)
        # all files by one listing; None = the folders have to be walked
        listed = storage.find(root) if isinstance(storage, RemoteStorage) else None
    except NotADirectoryError:
        raise UnusableInput(f"{logdir} is a file; give the log directory") from None
    except FileNotFoundError:
        raise UnusableInput(f"{logdir} does not exist") from None
    except (OSError, ImportError) as error:
        raise UnusableInput(f"{logdir} cannot be opened: {error}") from None
    places = _walked(storage, root, names, problems, requests) if listed is None else _listed_runs(root, listed)
    # folders with a summary; None = not known
    summarized = None if listed is None else {name.rpartition("/")[0] for name in listed if name.endswith(SUMMARY_FILE)}
    places_found = []
    for run, path in places:
        places_found.append(Found(logdir, run, path, summarized is None or path in summarized))
        progress(len(places_found))
    return storage, sorted(places_found, key=lambda place: place.path)


def _listed_runs(root: str, listed: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (run, folder) of the recordings among `listed`, the paths of all files below `root`."""
    paths = (name.rpartition("/") for name in listed)
    for folder in {folder for folder, _, file in paths if _is_recording_file(file)}:
        run = _run_of(root, folder)
        if run is not None:
            yield run, folder


def _is_recording_file(file: str) -> bool:
    """Return whether a file shows that its folder is a recording's."""
    return file == "manifest.json" or file.startswith("segment-")


def _run_of(root: str, folder: str) -> str | None:
    """Return the name of the run that a recording's folder belongs to; None if the folder is no recording's.

    "." is the log directory `root` itself. A run's recordings lie in `<run>/plugins/<plugin>/`.
    """
    if folder == root:  # `root` is a recording's folder
        return "."
    parent = posixpath.dirname(folder)
    if parent == root and posixpath.basename(root) == PLUGIN_NAME:  # `root` is the folder of a run's recordings
        return "."
    inside = parent.removeprefix(f"{root}/") if parent.startswith(f"{root}/") else ""
    if inside == f"plugins/{PLUGIN_NAME}":
        return "."
    run, marker, beyond = inside.rpartition(f"/plugins/{PLUGIN_NAME}")
    hidden = any(part.startswith(".") for part in run.split("/"))
    return run if marker and not beyond and not hidden else None


def _walked(
    storage: Storage, root: str, names: Sequence[str], problems: list[Problem], requests: int
) -> Iterator[tuple[str, str]]:
    """Yield (run, folder) of the recordings, walking the folders: those of a remote store several at a time.

    Args:
        names: what `root` contains: a log directory, one of its runs, or one recording's folder.
        problems: folders that cannot be listed are appended.
        requests: to a remote store at a time.
    """
    if any(map(_is_recording_file, names)):
        yield ".", root
        return

    def look(place: tuple[str, str, int]) -> tuple[list[tuple[str, str]], list[tuple[str, str, int]]]:
        """Return the recordings (run, folder) in one folder, and the folders to look into (run, folder, depth)."""
        run, path, depth = place
        home = path  # where the recordings lie: here, if this is the plugin's folder
        recordings = folders = _folders(storage, path, problems)
        below: list[str] = []
        if depth or os.path.basename(path) != PLUGIN_NAME:
            home = storage.join(path, "plugins", PLUGIN_NAME)
            recordings = _folders(storage, home, problems) if "plugins" in folders else []
            below = [name for name in folders if name != "plugins" and not name.startswith(".") and depth < _DEEPEST]
        return (
            [(run, storage.join(home, name)) for name in recordings],
            [(name if run == "." else f"{run}/{name}", storage.join(path, name), depth + 1) for name in below],
        )

    with ThreadPoolExecutor(requests, "gpu-util-list") as pool:
        each: Callable = pool.map if storage.remote and requests > 1 else map
        places = [(".", root, 0)]
        while places:
            looked, places = each(look, places), []
            for recordings, below in looked:
                yield from recordings
                places += below


def _folders(storage: Storage, path: str, problems: list[Problem]) -> list[str]:
    """Return the names of the folders in one; [] and a problem where it cannot be listed."""
    try:
        return storage.folders(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        problems.append(Problem(path, unreadable(error)))
        return []
