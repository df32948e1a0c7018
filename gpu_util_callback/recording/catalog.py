"""The recordings below log directories, listed without being opened."""

import glob
import os
import posixpath
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.recording.discovery import recording_folders
from gpu_util_callback.recording.problems import Problem, unreadable
from gpu_util_callback.recording.schema import PLUGIN_NAME
from gpu_util_callback.recording.storage import RemoteStorage, Storage, is_remote, storage_for

__all__ = ["REQUESTS", "Found", "expanded", "find_recordings"]

# Requests to a remote store at a time: each waits some 20 ms for its answer.
REQUESTS = 32
_DEEPEST = 32  # a generated tree


@dataclass(frozen=True, slots=True)
class Found:
    """A recording's folder.

    Attributes:
        logdir: the log directory it was found in, as given.
        run: name of the TensorBoard run, "." for the log directory itself.
        stamp: changes with the manifest; () = it has none, or its stamp is not known.
    """

    logdir: str
    run: str
    path: str
    stamp: tuple


def expanded(patterns: Iterable[str]) -> list[str]:
    """Return log directories, with globs replaced by the directories that match them.

    Raises: UnusableInput where nothing matches.
    """
    logdirs: list[str] = []
    for text in patterns:
        if not glob.has_magic(text) or (not is_remote(text) and os.path.isdir(text)):  # noqa: PTH112
            logdirs.append(text)
            continue
        found = _matches(text)
        if not found:
            raise UnusableInput(f"no directory matches {text}")
        logdirs += found
    return list(dict.fromkeys(logdirs))


def _matches(pattern: str) -> list[str]:
    if not is_remote(pattern):
        found = glob.glob(os.path.expanduser(pattern), recursive=True)  # noqa: PTH111, PTH207
        return sorted(path for path in found if os.path.isdir(path))  # noqa: PTH112
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(pattern)
        names = fs.glob(path, detail=True)
    except Exception as error:  # whatever the store's library raises
        raise UnusableInput(f"{pattern} cannot be opened: {error}") from error
    return sorted(fs.unstrip_protocol(name) for name, info in names.items()
                  if info.get("type") == "directory")  # fmt: skip


def find_recordings(
    logdir: str, problems: list[Problem], progress: Callable[[int], None] = lambda found: None
) -> tuple[Storage, list[Found]]:
    """Return the storage of a log directory, and the recordings in it, in order of their folders.

    Args:
        problems: folders that cannot be listed are appended.
        progress: is called with the number of recordings found so far.
    Raises: UnusableInput where `logdir` is no directory or cannot be opened.
    """
    try:
        storage, root = storage_for(logdir, within=logdir)
        names = storage.names(root)
        listed = storage.find(root) if isinstance(storage, RemoteStorage) else None
    except NotADirectoryError as error:
        raise UnusableInput(f"{logdir} is a file; give the log directory") from error
    except FileNotFoundError as error:
        raise UnusableInput(f"{logdir} does not exist") from error
    except (OSError, ImportError) as error:
        raise UnusableInput(f"{logdir} cannot be opened: {error}") from error
    if listed is not None:
        places: Iterable[tuple[str, str, tuple]] = _in_listing(root, listed)
    elif storage.remote:
        places = _walked(storage, root, problems)
    else:
        folders = recording_folders(storage, root, names, problems)
        places = ((run, path, _stamp(storage, path)) for run, path in folders)
    found = []
    for run, path, stamp in places:
        found.append(Found(logdir, run, path, stamp))
        progress(len(found))
    return storage, sorted(found, key=lambda one: one.path)


def _stamp(storage: Storage, path: str) -> tuple:
    try:
        return storage.stamp(storage.join(path, "manifest.json"))
    except OSError:
        return ()


def _in_listing(root: str, listed: dict[str, tuple]) -> Iterator[tuple[str, str, tuple]]:
    """Yield run, folder and stamp of the recordings among all files below `root`."""
    folders: dict[str, tuple] = {}
    for name, stamp in listed.items():
        folder, _, file = name.rpartition("/")
        if file == "manifest.json":
            folders[folder] = stamp
        elif file.startswith("segment-"):
            folders.setdefault(folder, ())
    for folder, stamp in folders.items():
        run = _run_of(root, folder)
        if run is not None:
            yield run, folder, stamp


def _run_of(root: str, folder: str) -> str | None:
    """Return the name of the run that a recording's folder belongs to; None if it is none."""
    if folder == root:
        return "."
    home = posixpath.dirname(folder)
    if home == root and posixpath.basename(root) == PLUGIN_NAME:
        return "."
    inside = home.removeprefix(f"{root}/") if home.startswith(f"{root}/") else ""
    if inside == f"plugins/{PLUGIN_NAME}":
        return "."
    run, found, rest = inside.rpartition(f"/plugins/{PLUGIN_NAME}")
    hidden = any(part.startswith(".") for part in run.split("/"))
    return run if found and not rest and not hidden else None


def _walked(
    storage: Storage, root: str, problems: list[Problem]
) -> Iterator[tuple[str, str, tuple]]:
    """Walk a remote file system's folders, several at a time."""

    def look(run: str, path: str, depth: int) -> tuple[list, list]:
        """Return (recordings, folders to look into)."""
        below: list[tuple[str, str, int]] = []
        found: list[tuple[str, str, tuple]] = []
        try:
            folders = storage.folders(path)
            if run != "." or posixpath.basename(path) != PLUGIN_NAME:
                recordings = []
                if "plugins" in folders:
                    home = storage.join(path, "plugins", PLUGIN_NAME)
                    recordings = [storage.join(home, name) for name in _folders(storage, home)]
            else:
                recordings, folders = [storage.join(path, name) for name in folders], []
            if depth == 0 and "manifest.json" in storage.names(path):
                recordings, folders = [path], []
        except OSError as error:
            problems.append(Problem(path, unreadable(error)))
            return [], []
        found = [(run, one, _stamp(storage, one)) for one in recordings]
        for name in folders:
            if name != "plugins" and not name.startswith(".") and depth < _DEEPEST:
                inside = name if run == "." else f"{run}/{name}"
                below.append((inside, storage.join(path, name), depth + 1))
        return found, below

    with ThreadPoolExecutor(REQUESTS, "gpu-util-list") as pool:
        waiting: set[Future] = {pool.submit(look, ".", root, 0)}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                found, below = future.result()
                waiting |= {pool.submit(look, *place) for place in below}
                yield from found


def _folders(storage: Storage, path: str) -> list[str]:
    try:
        return storage.folders(path)
    except FileNotFoundError:
        return []
