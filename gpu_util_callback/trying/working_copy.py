"""All that a program in a child can change: a copy of its working directory, temporary files and caches.

Linux keeps it, and all that it starts, from changing anything else, whatever language writes (Landlock, from 5.13 on).
"""

import ctypes
import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate, islice
from pathlib import Path

MOST_FILES = 50_000  # to link for each child: a second or two, and half a minute on a slow disk (0.6 ms each)
# Of the newest files, copied for each child in a third of a second: among them is what each run writes over in place.
NEWEST_FILES, NEWEST_BYTES = 1_000, 2**28
MOST_BYTES = 2**30  # to copy for each child without being asked, where nothing keeps links from being written through
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # system calls of all architectures
_VERSION, _PATH_BENEATH, _NO_NEW_PRIVILEGES = 1, 1, 38
# LANDLOCK_ACCESS_FS_*: WRITE_FILE, REMOVE_* and MAKE_*; REFER from version 2 on, TRUNCATE from 3 on.
_CHANGES, _REFER, _TRUNCATE = 0x1FF2, 1 << 13, 1 << 14
_CACHE_VARIABLES = ("HF_HOME", "TORCH_HOME", "KERAS_HOME", "MPLCONFIGDIR", "TFDS_DATA_DIR")
_SOURCES = (".py", ".sh")  # by whose real place programs find their own folder


def writable(*own: Path) -> list[str]:
    """Return the folders in which a program may change files: a trial's own, temporary ones, caches.

    None of the latter two contains the working directory.
    """
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - no home is no error
    caches = [value for name, value in os.environ.items() if "CACHE" in name or name in _CACHE_VARIABLES]
    shared = [tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev", "/proc", "/sys", sys.prefix, sys.base_prefix]
    folders = {Path(folder).resolve() for folder in (*shared, *caches, *map(str, home.glob(".*"))) if folder}
    kept = [folder for folder in folders if folder.is_dir() and not Path.cwd().is_relative_to(folder)]
    return [str(folder.resolve()) for folder in (*own, *kept)]


def landlock_rules(folders: Sequence[str]) -> int | None:
    """Return a file descriptor of rules by which files below some folders alone can change; None = no Landlock."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    version = call(_CREATE_RULESET, None, 0, _VERSION) if sys.platform == "linux" else 0  # -1 = it is off
    if version < 1:
        return None
    changes = _CHANGES | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    handled = struct.pack("=Q", changes)
    rules = int(call(_CREATE_RULESET, handled, len(handled), 0))
    for folder in folders:
        opened = os.open(folder, os.O_PATH)
        call(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", changes, opened), 0)
        os.close(opened)
    return rules


def restrict(rules: int) -> None:
    """Restrict this process, and all that it starts, to rules, a file descriptor. Raises: OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or library.syscall(_RESTRICT_SELF, rules, 0):
        raise OSError(ctypes.get_errno(), "Landlock refuses its rules")


def make(root: Path, whole: bool) -> Path:
    """Make a copy of the working directory, below `root` where it is below `/`; return it.

    Folders are made anew. Files are links to the real ones, but for sources and the newest ones, which are copied;
    so are all if `whole`.
    What lies in the two folders around it are links, for `../data`.

    Returns the working directory itself where it has too many files to link: nothing in it can be changed then.
    """
    cwd = Path.cwd()
    where = root / cwd.relative_to(cwd.anchor)
    folders: list[Path] = []
    paths: list[Path] = []
    for folder, names, files in os.walk(cwd):
        links = [name for name in names if _stays_a_link(Path(folder, name))]
        names[:] = [name for name in names if name not in links]
        folders.append(Path(folder))
        paths += [Path(folder, name) for name in (*links, *files)]
        if not whole and len(paths) > MOST_FILES:
            return cwd
    for made in folders:
        (where / made.relative_to(cwd)).mkdir(parents=True, exist_ok=True)
    copied = set(paths) if whole else _newest(paths)
    for path in paths:
        place = where / path.relative_to(cwd)
        if (path in copied or path.suffix in _SOURCES) and path.is_file() and not path.is_symlink():
            with suppress(FileNotFoundError, PermissionError):  # it went meanwhile, or cannot be read
                shutil.copy2(path, place)
        _link(path, place)  # where it is not copied
    for around in cwd.parents[:2]:
        with suppress(OSError):  # a folder that cannot be listed
            for path in islice(around.iterdir(), MOST_FILES // 100):  # a temporary one may hold thousands
                _link(path, root / path.relative_to(path.anchor))
    return where


def _newest(paths: Sequence[Path]) -> set[Path]:
    """Return the newest files, few enough to be copied soon: at most `NEWEST_FILES`, of `NEWEST_BYTES` together."""
    stats = {path: path.lstat() for path in paths if os.path.lexists(path)}
    newest = sorted(stats, key=lambda path: stats[path].st_mtime, reverse=True)[:NEWEST_FILES]
    sums = accumulate(stats[path].st_size for path in newest)
    return {path for path, size in zip(newest, sums, strict=True) if size <= NEWEST_BYTES}


def folder_bytes() -> int:
    """Return the size of the files in the working directory."""
    return sum(path.lstat().st_size for path in Path.cwd().rglob("*"))


def _stays_a_link(folder: Path) -> bool:
    """Return True for a folder that no program makes files in: a repository, an environment, a mount, a link."""
    return folder.name == ".git" or folder.is_symlink() or folder.is_mount() or (folder / "pyvenv.cfg").exists()


def _link(path: Path, place: Path) -> None:
    """Make a link to a file or folder, the same one where it is a link, unless something is there."""
    with suppress(FileExistsError):
        place.symlink_to(path.readlink() if path.is_symlink() else path)
