"""Opens trace files: finds them in folders, detects their format by content, reads them."""

from __future__ import annotations

import codecs
import gzip
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from mmap import mmap
from pathlib import Path
from typing import BinaryIO

from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.traces import foreign, limits
from gpu_util_callback.traces.model import Trace

# (bytes read, total bytes) of the files on disk, compressed as they are.
Progress = Callable[[int, int], None]

_NAMES = re.compile(r"(\.xplane\.pb|\.trace\.json)(\.gz)?$|\.(sqlite|nsys-rep)$|\.pt\.trace\.json(\.gz)?$")
_OTHER_TOOLS = re.compile(
    r"\.(parquet|arrow|h5|qdrep|pftrace|perfetto-trace|pickle|ncu-rep|otf2|prof|speedscope\.json)$"
    r"|_results\.(db|json)$|_(kernel|api|copy)_trace\.csv$|^perfetto-trace.*\.proto$"
)
_GZIP = b"\x1f\x8b"
_HEAD = 4096  # bytes that tell a file's format


def read_trace(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], progress: Progress | None = None
) -> Trace:
    """Read a trace file, or the newest session in a folder (one file per host or rank).

    Args:
        path: an XPlane (`*.xplane.pb`), a Chrome trace of PyTorch (`*.trace.json`,
            also gzipped), an Nsight Systems export (`*.sqlite`; a `*.nsys-rep` where `nsys` is
            installed), a folder with such files, or several files of one job, one per host or rank.
            The format is detected by content.
        progress: called repeatedly while a large file is read.

    Returns: the trace in the event model of `gpu_util_callback.traces.model`.

    Raises: UnusableInput, with one line that states the problem and the remedy.
    """
    if not isinstance(path, str | os.PathLike):
        return _read([Path(file) for file in path], progress)
    files, skipped = find_traces(path)
    trace = _read(files, progress)
    if skipped:
        trace.problems.append(f"{skipped} older sessions in this folder were not read; name one to see it")
    return trace


def _read(files: list[Path], progress: Progress | None) -> Trace:
    """Read files of one format, at least one, as one trace. Raises: UnusableInput."""
    path = files[0].parent if len(files) > 1 else files[0]
    for file in files:
        if not file.is_file():
            raise UnusableInput(f"{file}: no such file")
    formats = {sniff(file) for file in files}
    if len(formats) > 1:  # such as XPlane and Chrome traces
        raise UnusableInput(f"{path}: holds {' and '.join(sorted(formats))} files; choose one")
    kind = formats.pop()
    if len(files) > 1 and kind.startswith("nsys"):  # a report is of all processes
        raise UnusableInput(f"{path}: name one Nsight Systems report; its processes are in it")
    try:
        trace = _READERS[kind](files, progress)
    except RecursionError:
        raise UnusableInput(f"{path}: nested too deeply to be a trace") from None
    except MemoryError:
        raise UnusableInput(f"{path}: needs more memory than is available; profile fewer steps") from None
    for process in trace.processes:
        if process.total_ps > limits.MAX_TOTAL_PS:
            raise UnusableInput(f"{path}: its events last longer than 50 days together, as in no profile")
    trace.problems = _shortened(trace.problems)
    return trace


def _shortened(problems: list[str]) -> list[str]:
    """Return problems as single lines, at most `MAX_PROBLEMS`, and how many more there are."""
    more = len(problems) - limits.MAX_PROBLEMS
    lines = [" ".join(problem.split())[: limits.MAX_TEXT] for problem in problems[: limits.MAX_PROBLEMS]]
    return lines if more <= 0 else [*lines, f"and {more:,} more problems like these"]


def sniff(path: Path) -> str:
    """Return "xplane", "kineto", "nsys" or "nsys-rep", by content.

    Raises: UnusableInput: it has none of these formats.
    """
    with _Stream(path).open() as file:
        head = file.read(_HEAD)
    if not head:
        raise UnusableInput(f"{path}: empty; the profiler may have been killed while writing")
    if head.startswith(b"SQLite format 3\0"):
        return "nsys"
    if path.suffix == ".nsys-rep":
        return "nsys-rep"
    if tool := foreign.by_beginning(path, head):
        raise UnusableInput(f"{path}: {tool}. {foreign.READABLE}")
    if head.removeprefix(codecs.BOM_UTF8).lstrip()[:1] in (b"{", b"["):
        return "kineto"
    if head[0] in (0x0A, 0x12, 0x1A, 0x22):  # a field of XSpace: planes, errors, warnings, hosts
        return "xplane"
    raise UnusableInput(f"{path}: unrecognized trace format. {foreign.READABLE}")


def find_traces(path: str | os.PathLike[str]) -> tuple[list[Path], int]:
    """Return the trace files at `path`: itself, or those of the newest session below it.

    A folder is a session; where a worker has several Chrome traces in it, or there are several reports, the newest is.

    Returns: (files, number of older sessions skipped).

    Raises: UnusableInput where there is none.
    """
    if "://" in os.fspath(path):
        raise UnusableInput(f"{path}: traces are read from this machine's files; copy it here")
    path = Path(path)
    if path.is_file():
        return [path], 0
    if not path.exists():
        raise UnusableInput(f"{path}: no such file or folder")
    files = [file for file in path.rglob("*") if file.is_file()]
    trace_files = [file for file in files if _NAMES.search(file.name)]
    if not trace_files:  # it is said what these are, by content
        trace_files = [file for file in files if _OTHER_TOOLS.search(file.name)]
    if not trace_files:
        for folder in filter(Path.is_dir, (path, *path.rglob("*"))):
            if tool := foreign.BUNDLES.get(folder.suffix):
                raise UnusableInput(f"{folder}: {tool}. {foreign.READABLE}")
        raise UnusableInput(
            f"{path}: no trace in this folder; looked for *.xplane.pb, *.trace.json[.gz], *.sqlite "
            "and *.nsys-rep in it and below"
        )
    # JAX writes the same window twice, the second time for the trace viewer.
    planes = [file for file in trace_files if ".xplane.pb" in file.name]
    if planes:
        trace_files = planes
    newest = max(trace_files, key=lambda file: file.stat().st_mtime).parent
    files = sorted(file for file in trace_files if file.parent == newest)
    older = len({file.parent for file in trace_files}) - 1
    newest_files = files if planes else _newest_of_each_worker(files)
    return newest_files, older + len(files) - len(newest_files)


def _newest_of_each_worker(files: list[Path]) -> list[Path]:
    """Return each worker's newest file, sorted, of `<worker>.<time>.pt.trace.json` by torch.profiler."""
    newest: dict[str, Path] = {}
    for file in files:
        if file.name.endswith((".sqlite", ".nsys-rep")):
            worker = "one report"  # reports are whole sessions: the newest alone
        else:
            worker = re.sub(r"(\.\d+)?(\.pt)?\.trace\.json(\.gz)?$", "", file.name)
        newest_so_far = newest.get(worker)
        if newest_so_far is None or file.stat().st_mtime >= newest_so_far.stat().st_mtime:
            newest[worker] = file
    return sorted(newest.values())


def _read_xplane(files: list[Path], progress: Progress | None) -> Trace:
    from gpu_util_callback.traces.xplane import read_xplane

    return read_xplane([(str(file), partial(_load, file)) for file in files])


def _load(path: Path) -> bytes | mmap:
    """Return a file's unpacked bytes, in memory that can be given back in parts where it is not compressed.

    Raises: UnusableInput for more than a trace of its size has.
    """
    with _Stream(path).open() as file:
        size = path.stat().st_size
        if size > limits.MAX_BYTES:
            raise UnusableInput(f"{path}: larger than {limits.MAX_BYTES >> 30} GB; profile fewer steps")
        if not isinstance(file, gzip.GzipFile):  # not compressed: its size is known
            memory = mmap(-1, size)
            file.readinto(memory)  # type: ignore[attr-defined]
            return memory
        most = max(size, limits.unpacked_limit(size))
        data = file.read(most + 1)
    if len(data) > most:
        raise UnusableInput(
            f"{path}: unpacks to more than {most >> 20:,} MB, which no trace of its size does; "
            "unpack it first if it is one"
        )
    return data


class _Stream:
    """A file on disk, decompressed if needed, that knows its read position."""

    def __init__(self, path: Path):
        self.path = path
        self._raw: BinaryIO | None = None  # the file as it is on disk; None = not opened yet

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the file. Raises: UnusableInput where it cannot be opened, or not be read within the block."""
        try:
            with self.path.open("rb") as raw:
                self._raw = raw
                packed = raw.read(2) == _GZIP
                raw.seek(0)
                yield gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[misc]
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise UnusableInput(f"{self.path}: cannot be read ({reason})") from None

    def tell(self) -> int:
        return 0 if self._raw is None or self._raw.closed else self._raw.tell()


def _read_kineto(files: list[Path], progress: Progress | None) -> Trace:
    """Read Chrome traces, one a worker. Raises: UnusableInput.

    Progress is counted in bytes of the files as they are on disk, over all of them.
    """
    from gpu_util_callback.traces.kineto import read_kineto

    streams = [_Stream(file) for file in files]
    total = sum(file.stat().st_size for file in files)

    def report() -> None:
        if progress:
            progress(sum(stream.tell() for stream in streams), total)

    most = limits.unpacked_limit(max(f.stat().st_size for f in files), limits.MAX_UNPACKED_JSON)
    return read_kineto([(str(s.path), s.open) for s in streams], report, most)


def _read_nsys(files: list[Path], progress: Progress | None, is_report: bool = False) -> Trace:
    from gpu_util_callback.traces.nsys import read_nsys

    return read_nsys(files[0], is_report)


_READERS: dict[str, Callable[[list[Path], Progress | None], Trace]] = {
    "xplane": _read_xplane,
    "kineto": _read_kineto,
    "nsys": _read_nsys,
    "nsys-rep": partial(_read_nsys, is_report=True),
}
