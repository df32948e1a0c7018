"""Files of a recording: plain ones locally, any fsspec URL otherwise.

Three operations matter: read a whole small file, replace one as a whole, list a folder. Nothing
is ever appended, because object stores cannot.
"""

# Paths are strings here, local and remote ones alike.
# ruff: noqa: PTH100, PTH103, PTH105, PTH108, PTH110, PTH111, PTH114, PTH116, PTH118, PTH120
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
import time
from typing import Any

from gpu_util_callback.redaction import without_secrets

# Stores that replace an object as a whole by themselves; elsewhere a temporary name is renamed.
_ATOMIC_PUT = {"abfs", "abfss", "az", "adl", "gcs", "gs", "memory", "oci", "s3", "s3a", "r2"}


_AT_ONCE = getattr(os, "O_NONBLOCK", 0)
# Windows refuses to replace a file that somebody has open: a reader, for milliseconds.
_OPEN_FILES_STAY = os.name == "nt"
_PAUSES_S = (0.01, 0.03, 0.1)


class LeadsOutside(OSError):
    """A link leads out of the log directory: its target may not be meant to be shown."""


def is_remote(path: str | os.PathLike) -> bool:
    """Return whether `path` is a URL of another file system than the local one."""
    text = os.fspath(path)
    return "://" in text and not text.startswith(("file://", "local://"))


def storage_for(path: str | os.PathLike, within: str | os.PathLike | None = None) -> tuple[Storage, str]:
    """Return the storage that holds `path`, and `path` as that storage writes it.

    Args:
        within: the directory outside of which nothing is read, wherever links lead; it may be a
            link itself. Local ones only: object stores have no links. None = everything is read.

    Raises: OSError or ImportError (with what to install) for a URL that cannot be opened.
    """
    text = os.fspath(path)
    if not is_remote(text):
        return LocalStorage(within), _absolute(text)
    import fsspec

    try:
        fs, root = fsspec.core.url_to_fs(text)
    except (ImportError, OSError):
        raise
    except Exception as error:  # an unknown protocol, or the error of a library
        raise _oserror(f"{text}: {error}") from None
    return RemoteStorage(fs), root.rstrip("/")


def put(folder: str | os.PathLike, name: str, data: bytes) -> None:
    """Write a file into a folder, which is made where it is missing. Raises: OSError."""
    storage, root = storage_for(folder)
    with contextlib.suppress(FileExistsError):
        storage.make_folder(root)
    storage.write(storage.join(root, name), data)


class LocalStorage:
    """Plain files, every failure an OSError; a file is replaced under a temporary name, so readers see old or new."""

    remote = False

    def __init__(self, within: str | os.PathLike | None = None):
        self._within = None if within is None else _absolute(os.fspath(within))

    def _check(self, path: str) -> None:
        """Raise LeadsOutside for a path outside `within`."""
        if self._within is None or _holds_no_link(self._within, path):
            return
        within = os.path.realpath(self._within)
        if os.path.commonpath([within, os.path.realpath(path)]) != within:
            raise LeadsOutside("a link that leads out of the log directory; refused")

    def join(self, *parts: str) -> str:
        return os.path.join(*parts)

    def make_folder(self, path: str) -> None:
        os.makedirs(path)

    def names(self, path: str) -> list[str]:
        self._check(path)
        return sorted(os.listdir(path))

    def folders(self, path: str) -> list[str]:
        self._check(path)
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if _is_folder(entry))

    def read(self, path: str, limit: int) -> bytes:
        """Return a file's bytes. Raises: OSError, also for one of more than `limit` bytes, and LeadsOutside."""
        self._check(path)
        # Do not wait for the writer of a pipe: a log directory may hold anything.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _AT_ONCE)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError("not a regular file; refused")
            data = file.read(limit + 1)
        if len(data) > limit:
            raise OSError(f"larger than {limit >> 20} MiB; refused")
        return data

    def write(self, path: str, data: bytes) -> None:
        """Replace a file as a whole: readers see the old or the new one. Raises: OSError."""
        folder, name = os.path.split(path)
        temporary = os.path.join(folder, f".{name}.tmp")
        try:
            with open(temporary, "wb") as file:
                file.write(data)
            _replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):  # report the original error
                os.unlink(temporary)
            raise

    def remove(self, path: str) -> None:
        os.unlink(path)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def stamp(self, path: str) -> tuple:
        status = os.stat(path)
        return (status.st_ino, status.st_size, status.st_mtime_ns)

    def age_s(self, path: str, now_s: float) -> float | None:
        return now_s - os.stat(path).st_mtime


def _replace(temporary: str, path: str) -> None:
    """Put the file `temporary` in the place of `path`; on Windows, wait for a reader to close that one."""
    for pause_s in _PAUSES_S if _OPEN_FILES_STAY else ():
        try:
            os.replace(temporary, path)
            return
        except PermissionError:
            time.sleep(pause_s)
    os.replace(temporary, path)


def _holds_no_link(folder: str, path: str) -> bool:
    """Return True if no part of the path from a folder to an entry below it is a link."""
    while len(path) > len(folder):
        if os.path.islink(path):
            return False
        path = os.path.dirname(path)
    return path == folder


def _absolute(path: str) -> str:
    for prefix in ("file://", "local://"):
        path = path.removeprefix(prefix)
    return os.path.abspath(os.path.expanduser(path))


def _is_folder(entry: os.DirEntry) -> bool:
    """Return True for a folder; False for anything else, and for a link to itself."""
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


class RemoteStorage:
    """Any fsspec file system, which may be slow or never answer; every failure is an OSError."""

    remote = True

    def __init__(self, fs: Any):
        self._fs = fs
        protocol = fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]
        self._atomic = protocol in _ATOMIC_PUT

    def join(self, *parts: str) -> str:
        return posixpath.join(*parts)

    def make_folder(self, path: str) -> None:
        with _as_oserror():
            self._fs.makedirs(path, exist_ok=True)

    def _list(self, path: str) -> list[dict[str, Any]]:
        with _as_oserror():
            self._fs.invalidate_cache(path)
            return self._fs.ls(path, detail=True)

    def names(self, path: str) -> list[str]:
        return sorted(posixpath.basename(e["name"].rstrip("/")) for e in self._list(path))

    def folders(self, path: str) -> list[str]:
        entries = [e for e in self._list(path) if e.get("type") == "directory"]
        return sorted(posixpath.basename(e["name"].rstrip("/")) for e in entries)

    def read(self, path: str, limit: int) -> bytes:
        """Return a file's bytes. Raises: OSError, also for one of more than `limit` bytes."""
        with _as_oserror():
            self._fs.invalidate_cache(posixpath.dirname(path))
            data = self._fs.cat_file(path, start=0, end=limit + 1)
        if len(data) > limit:
            raise OSError(f"larger than {limit >> 20} MiB; refused")
        return data

    def write(self, path: str, data: bytes) -> None:
        """Replace a file as a whole, under a temporary name where the store does not do so by itself.

        Raises: OSError.
        """
        with _as_oserror():
            if self._atomic:
                self._fs.pipe_file(path, data)
            else:
                temporary = f"{path}.tmp"
                self._fs.pipe_file(temporary, data)
                self._fs.mv(temporary, path)

    def remove(self, path: str) -> None:
        with _as_oserror():
            self._fs.rm_file(path)

    def exists(self, path: str) -> bool:
        with _as_oserror():
            self._fs.invalidate_cache(posixpath.dirname(path))
            return self._fs.exists(path)

    def stamp(self, path: str) -> tuple:
        with _as_oserror():
            self._fs.invalidate_cache(posixpath.dirname(path))
            info = self._fs.info(path)
        keys = ("size", "etag", "ETag", "generation", "mtime", "LastModified", "updated", "created")
        return tuple(str(info[key]) for key in keys if key in info)

    def find(self, path: str) -> list[str] | None:
        """Return the paths of all files below `path`, where one listing names them all; None where it does not.

        Object stores list a thousand names a request, whatever their folders.
        """
        if not self._atomic:
            return None
        with _as_oserror():
            self._fs.invalidate_cache(path)
            return list(self._fs.find(path))

    def age_s(self, path: str, now_s: float) -> float | None:
        return None  # stores name it differently; rely on the heartbeat itself


Storage = LocalStorage | RemoteStorage


class _as_oserror:
    """Turn errors of a remote library (botocore, google.api_core, aiohttp…) into OSError."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, OSError):
            raise _oserror(f"{type(error).__name__}: {error}") from None


def _oserror(text: str) -> OSError:
    """Return an error without the secrets of a URL; what caused it may hold them."""
    return OSError(without_secrets(text))
