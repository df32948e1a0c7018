"""Which recordings are one training: the ranks of a job, and its restarts and resumes."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from gpu_util_callback.recording.discovery import CLOCKS_APART_NS, group_sessions
from gpu_util_callback.recording.redaction import hashed_script

__all__ = ["Start", "Training", "trainings"]

Row = Mapping[str, Any]

# A start may continue one of this many of the newest trainings that share something with it.
LOOK_BACK = 64


@dataclass
class Start:
    """One start of a training: its ranks' rows.

    Attributes:
        begins: the training's step it started at, None = not known.
        kept: how many of its steps no later start did again, None = not known.
        because: why it belongs to the start before it, "" for the first.
    """

    rows: list[Row]
    because: str = ""
    kept: int | None = None

    @cached_property
    def first(self) -> Row:
        """The row of its lowest rank."""
        return min(self.rows, key=lambda row: (row["rank"] or 0, row["id"]))

    @cached_property
    def start_ns(self) -> int:
        return min(row["start_ns"] for row in self.rows)

    @cached_property
    def end_ns(self) -> int:
        return max(row["end_ns"] for row in self.rows)

    @property
    def steps(self) -> int:
        return self.first["steps"]

    @cached_property
    def begins(self) -> int | None:
        begins = self.first["begins"]
        epoch, iteration = begins["epoch"], begins["iteration"]
        if epoch and begins["steps_per_epoch"]:
            return epoch * begins["steps_per_epoch"]
        # A restored optimizer knows its steps, whatever the epochs are called.
        return iteration

    @property
    def resumed(self) -> bool:
        return bool(self.first["begins"]["epoch"] or self.first["begins"]["iteration"])

    @property
    def again(self) -> int | None:
        """Its steps that a later start did again."""
        return None if self.kept is None else self.steps - self.kept


@dataclass(eq=False)
class Training:
    """A training: all its starts, the first one first."""

    starts: list[Start] = field(default_factory=list)

    @property
    def rows(self) -> list[Row]:
        return [row for start in self.starts for row in start.rows]

    @property
    def steps(self) -> int | None:
        """Its steps, each counted once; None where it is not known which were done again."""
        kept = [start.kept for start in self.starts]
        return None if None in kept else sum(filter(None, kept))


def trainings(rows: Iterable[Row]) -> list[Training]:
    """Return trainings, oldest first.

    A start belongs to an earlier one that was over by then if both run the same script and model,
    and one of these shows that it continues it:

    * its scheduler started the same job once more (SLURM, Kubernetes, a Ray job), or Ray the same
      trial or run;
    * it begins at a later epoch or iteration (`BackupAndRestore`, `initial_epoch`, a restored
      optimizer), in the same log directory, or within the steps that just one earlier start did
      not end;
    * it runs in the same log directory, and the start before did not come to its end.
    """
    joined: list[Training] = []
    known: dict[tuple, deque[Training]] = defaultdict(lambda: deque(maxlen=LOOK_BACK))
    for start in _sessions(rows):
        shared = list(_shared(start))
        found = _continued(start, [list(known[key]) for key in shared if key in known])
        if found is None:
            found = Training()
            joined.append(found)
        found.starts.append(start)
        for key in shared:
            if found not in known[key]:
                known[key].append(found)
    for training in joined:
        _count_kept(training.starts)
    return joined


def _sessions(rows: Iterable[Row]) -> list[Start]:
    """Group the ranks of a job that trained together; oldest first."""
    members = [
        SimpleNamespace(
            facts=row, run=row["run"], folder=row["id"], start_ns=row["start_ns"],
            end_ns=row["end_ns"], rank=row["rank"], session=row["id"], row=row,
        ) for row in rows
    ]  # fmt: skip
    group_sessions(members)  # type: ignore[arg-type]
    sessions: dict[str, list[Row]] = {}
    for one in members:
        sessions.setdefault(one.session, []).append(one.row)
    starts = [Start(rows) for rows in sessions.values()]
    return sorted(starts, key=lambda start: (start.start_ns, start.first["id"]))


def _shared(start: Start) -> Iterator[tuple]:
    """Yield what a start shares with those that continue it; thousands may share their script."""
    row = start.first
    program = _script(row), row["fit_index"], row["backend"]
    scheduler = row["scheduler"]
    yield "home", row["logdir"], row["home"], *program
    if scheduler:
        yield "scheduler", scheduler["name"], scheduler["job"], *program
    if row["trial"]:
        yield "trial", row["trial_of"], row["trial"], *program
    if start.resumed or row["status"] != "ended":
        yield "unfinished", row["parameters"], *program


def _script(row: Row) -> str | None:
    return hashed_script(row["script"]) if row["script"] else None


def _continued(start: Start, known: Sequence[Sequence[Training]]) -> Training | None:
    """Return the training that a start continues; None = it is the first one of a new one.

    Args:
        known: trainings that share something with it, by what they share.
    """
    candidates = {id(one): one for some in known for one in some}.values()
    within: list[Training] = []
    for training in sorted(candidates, key=lambda one: -one.starts[-1].start_ns):
        before = training.starts[-1]
        if not _may_follow(before.first, start.first, before.end_ns, start.start_ns):
            continue
        start.because = _evidence(before, start)
        if start.because:
            return training
        if _goes_on_within(before, start):
            within.append(training)
    if len(within) == 1:
        start.because = "it begins within the steps that the one before did not end"
        return within[0]
    return None


def _may_follow(before: Row, after: Row, end_ns: int, start_ns: int) -> bool:
    same_host = before["host"] == after["host"]
    if start_ns < end_ns - (0 if same_host else CLOCKS_APART_NS):
        return False
    process = before["process"]
    if same_host and process[0] is not None and process == after["process"]:
        return False  # the next fit of the same program
    if after["fits"] > 1 or before["fits"] > 1:  # many short fits: nothing is resumed
        return False
    for name in ("parameters", "user", "world_size", "trial", "trial_of"):
        if name == "world_size" and after["scheduler"]:
            continue  # an elastic job may come back with fewer workers
        if before[name] != after[name] and None not in (before[name], after[name]):
            return False
    return True


def _evidence(before: Start, after: Start) -> str:
    """Return why a start continues another one; "" = nothing shows that it does."""
    old, new = before.first, after.first
    same_home = old["home"] == new["home"]
    cut_short = old["status"] != "ended"
    unfinished = cut_short or after.resumed
    one, two = old["scheduler"], new["scheduler"]
    if one and two:
        if (one["name"], one["job"]) != (two["name"], two["job"]):
            if not (same_home and unfinished):
                return ""
        elif (two.get("restarts") or 0) > (one.get("restarts") or 0):
            return f"{two['name']} restarted job {two['job']}"
        elif unfinished and (same_home or two.get("restarts") is None):
            return f"{two['name']} job {two['job']} ran again"
    if new["trial"] and old["trial"] == new["trial"] and unfinished:
        return f"{new['trial_of']} ran {new['trial']} again"
    if same_home and after.resumed:
        return "it resumes in the same log directory"
    if same_home and cut_short and new["script"]:
        return "the same script ran again in the same log directory"
    return ""


def _goes_on_within(before: Start, after: Start) -> bool:
    """Return whether a resumed start begins within the steps of one that was cut short."""
    if before.first["status"] == "ended" or not after.resumed or not after.first["script"]:
        return False
    begins, began = after.begins, before.begins
    if begins is None or began is None or before.first["home"] == after.first["home"]:
        return False
    return began < begins <= began + before.steps


def _count_kept(starts: Sequence[Start]) -> None:
    """Set how many steps of each start were kept: those before all later starts."""
    if len(starts) == 1:
        starts[0].kept = starts[0].steps
        return
    if any(start.begins is None for start in starts):
        return
    limit: int | None = None
    for start in reversed(starts):
        begins = start.begins or 0
        end = begins + start.steps
        start.kept = max(0, min(end, end if limit is None else limit) - begins)
        limit = begins if limit is None else min(limit, begins)
