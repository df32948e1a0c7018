"""One row a run, of all runs of log directories: from its summary, its manifest, or diagnosed from its rows."""

import marshal
import tempfile
import time
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import groupby
from typing import Any

from gpu_util_callback.diagnosis.engine import RULES_VERSION, diagnose
from gpu_util_callback.diagnosis.run_reports import Recorded
from gpu_util_callback.diagnosis.run_summary import MAX_BYTES, read_summary, summary_as_diagnosed, summary_of
from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.recording import manifest as manifests
from gpu_util_callback.recording.discovery import REQUESTS, Found, find_recordings
from gpu_util_callback.recording.manifest import ManifestError, UnknownFormat
from gpu_util_callback.recording.manifest_facts import RunSummary
from gpu_util_callback.recording.problems import Problem, unopened
from gpu_util_callback.recording.reader import Recording, recording_id
from gpu_util_callback.recording.schema import SUMMARY_FILE
from gpu_util_callback.recording.storage import Storage, is_remote
from gpu_util_callback.redaction import without_secrets

MOST_WAITING = 64 * REQUESTS  # requests and their answers in memory
MOST_IN_MEMORY = 8 << 20  # bytes of rows

Row = dict[str, Any]
Progress = Callable[[str, int, int | None], None]


class Stored(Sequence[Any]):
    """Objects of JSON in a temporary file, read one by one: those of 10⁵ runs took 700 MB.

    Attributes:
        order: their numbers in the order in which they are read; None = as they were added.
    """

    def __init__(self, objects: Iterable[Any] = ()):
        self.order: Sequence[int] | None = None
        self._file = tempfile.SpooledTemporaryFile(MOST_IN_MEMORY)  # noqa: SIM115 - open as long as this is
        weakref.finalize(self, self._file.close)
        self._starts = array("Q", [0])  # bytes[objects + 1]
        for each in objects:
            self.append(each)

    def append(self, value: Any) -> None:
        """Write a value behind the others."""
        data = marshal.dumps(value)
        self._file.seek(self._starts[-1])
        self._file.write(data)
        self._starts.append(self._starts[-1] + len(data))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __iter__(self) -> Iterator[Any]:
        return map(self.numbered, range(len(self)) if self.order is None else self.order)

    def __getitem__(self, at: Any) -> Any:
        numbers = (range(len(self)) if self.order is None else self.order)[at]
        return list(map(self.numbered, numbers)) if isinstance(at, slice) else self.numbered(numbers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def numbered(self, number: int) -> Any:
        """Return the object that was added after this many others."""
        start, end = self._starts[number : number + 2]
        self._file.seek(start)
        return marshal.loads(self._file.read(end - start))


@dataclass
class Survey:
    """The rows of all runs, and what could not be read.

    Attributes:
        read: how many recordings were read.
        diagnosed: how many runs had to be diagnosed from their rows of steps.
    """

    rows: Stored = field(default_factory=Stored)
    problems: list[Problem] = field(default_factory=list)
    read: int = 0
    diagnosed: int = 0


def _key(place: Found) -> str:
    """Return what distinguishes a folder from those in other stores: its scheme and its path."""
    scheme = place.logdir.partition("://")[0] if is_remote(place.logdir) else ""
    return f"{scheme}:{place.path}".encode("utf-8", "backslashreplace").decode()


def survey(
    logdirs: Sequence[str],
    *,
    thresholds: Mapping | None = None,
    recompute: bool = False,
    progress: Progress = lambda what, done, of: None,
) -> Survey:
    """Return a row for each recording below the log directories.

    What the recorder diagnosed is taken as it is, whatever its rules' version; recordings without a diagnosis are
    diagnosed from their rows of steps.

    Args:
        thresholds: overrides of the rules' thresholds; every run is diagnosed with them.
        recompute: diagnose every run by today's rules unless its diagnosis was made by them.
        progress: is called with a word, how many are done, and of how many (None = not known).

    Raises:
        UnusableInput: a log directory cannot be opened, or a threshold does not exist.
    """
    result = Survey()
    unread: list[tuple[Storage, Found]] = []
    for logdir in logdirs:
        report_found = partial(lambda before, count: progress("found", before + count, None), len(unread))
        storage, places = find_recordings(logdir, result.problems, report_found)
        unread += [(storage, place) for place in places]
    if len(logdirs) > 1:  # one may lie in another
        unread = list({_key(place): (storage, place) for storage, place in reversed(unread)}.values())[::-1]
        unread.sort(key=lambda item: item[1].path)
    result.read = len(unread)
    if unread:
        for count, (row, problems) in enumerate(_read(unread, thresholds, recompute), 1):
            result.problems += problems
            if row is not None:
                result.rows.append(row)
                result.diagnosed += row["diagnosed"]
            progress("read", count, len(unread))
    return result


Answer = tuple[Row | None, list[Problem]]


def _read(unread: Sequence[tuple[Storage, Found]], thresholds: Mapping | None, recompute: bool) -> Iterable[Answer]:
    """Yield each recording's row and problems, in order.

    Several are read at a time from a remote store, which answers late.
    """

    def read(item: tuple[Storage, Found]) -> Answer:
        return row_of(*item, thresholds, recompute)

    with ThreadPoolExecutor(REQUESTS, "gpu-util-read") as pool:
        for at in range(0, len(unread), MOST_WAITING):
            for remote, items in groupby(unread[at : at + MOST_WAITING], lambda item: item[0].remote):
                yield from (pool.map if remote else map)(read, items)


def row_of(storage: Storage, place: Found, thresholds: Mapping | None = None, recompute: bool = False) -> Answer:
    """Return the row of one recording, and its problems; a row of None = it cannot be read at all.

    The summary is the cheapest to read, then the manifest; the rows of steps are read where neither is enough.
    """
    try:
        if not thresholds:  # with other thresholds what was stored does not hold
            row = _from_summary(storage, place, recompute) if place.has_summary else None
            if row is not None:
                return row, []
        if not (thresholds or recompute):
            row, problems = _from_manifest(storage, place)
            if row is not None:
                return row, problems
        recording = Recording(storage, place.path, place.run)
        judged = diagnose(recording, thresholds)
        is_stored = recording.stored is not None and judged["findings"] is recording.stored.get("findings")
        summary = summary_of(recording, recording.status, judged)
        return _row(place, summary, diagnosed=not is_stored), recording.problems
    except UnusableInput:  # an unknown threshold
        raise
    except Exception as error:
        return None, [unopened(place.path, error)]


def _from_summary(storage: Storage, place: Found, recompute: bool) -> Row | None:
    """Return the row from the summary that was written at the run's end; None without a usable one."""
    try:
        summary = read_summary(storage.read(storage.join(place.path, SUMMARY_FILE), MAX_BYTES))
    except OSError:
        return None
    # Damaged, or made by other rules than asked for.
    if summary is None or (recompute and summary["rules_version"] != RULES_VERSION):
        return None
    return _row(place, summary, diagnosed=False)


def _from_manifest(storage: Storage, place: Found) -> Answer:
    """Return the row and problems from the manifest alone; a row of None where it lacks something."""
    path = storage.join(place.path, "manifest.json")
    try:
        facts, left_out = manifests.parse(storage.read(path, manifests.MAX_BYTES))
    except UnknownFormat:
        raise
    except (FileNotFoundError, ManifestError):
        return None, []
    status = facts.get("status") or "lost"
    if status == "live":  # a manifest that has not changed for long is of a lost run
        age = None if storage.remote else storage.age_s(path, time.time())
        status = "lost" if manifests.lost(facts, age) else "live"
    summary = summary_as_diagnosed(Recorded(facts), status)
    if summary is None:
        return None, []
    return _row(place, summary, diagnosed=False), [Problem(path, left_out[0])] if left_out else []


def row_of_open(recording: Recording, judged: Mapping | None = None) -> Row:
    """Return the row of an open recording.

    Args:
        judged: its diagnosis; None = what its recorder diagnosed, without which it is not judged.
    """
    place, status = Found("", recording.run, recording.path), recording.status
    summary = None if judged else summary_as_diagnosed(recording, status)
    diagnosed = bool(judged or summary)
    summary = summary or summary_of(recording, status, judged or {"findings": [], "spans": []})
    row = _row(place, summary, diagnosed=judged is not None)
    return row | {"id": recording.id, "judged": row["judged"] and diagnosed}


_shown = lru_cache(16)(without_secrets)  # the address of a log directory, of thousands of runs


def _row(place: Found, summary: RunSummary, *, diagnosed: bool) -> Row:
    """Return the row of a run: where it is, and its summary."""
    parent, _, folder = place.path.rstrip("/").rpartition("/")
    return {
        "logdir": _shown(place.logdir),
        "run": place.run,
        "id": recording_id(place.run, folder),
        "home": parent,
        **summary,
        "diagnosed": diagnosed,
    }
