"""GPU-hours by cause: sums over the rows of many runs.

Recordings of one training are put together first: the ranks of a job, its restarts and resumes.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from types import SimpleNamespace
from typing import Any, cast, get_args

import numpy as np

from gpu_util_callback.diagnosis.engine import RULES, RULES_VERSION
from gpu_util_callback.diagnosis.report_types import (
    CauseCost,
    Hours,
    Part,
    Restarts,
    Spent,
    TopCause,
    TotalCause,
    TotalSums,
    TrainingReport,
    Unit,
    Version,
)
from gpu_util_callback.diagnosis.survey import Stored, Survey
from gpu_util_callback.recording.discovery import CLOCKS_APART_NS, group_sessions
from gpu_util_callback.recording.problems import reported
from gpu_util_callback.redaction import hashed_script

TOTAL_VERSION: Version = 1
# What steps cost that were done again after a restart.
REPEATED = "repeated_steps"
REPEATED_TITLE = "Steps done again after a restart"
REPEATED_LOOK = "⟲", "slate"
PARTS = get_args(Part)
UNITS: tuple[Unit, ...] = get_args(Unit)  # gpu_hours, hours
# Most of a row's bytes, which say nothing of the training that it belongs to.
_APART = frozenset({"active", "advice", "gpus", "idle_gpus", "lost", "time_s"})
# All other causes lose time within the training steps.
_OUTSIDE_STEPS = frozenset(rule.cause for rule in RULES if rule.idling)
_HOUR = 3600.0

Row = Mapping[str, Any]


@dataclass(slots=True)
class Sums:
    """Seconds of trainings ("hours") and of their GPUs ("gpu_hours"), and what each cause cost of them.

    The parts are disjoint: "productive" = in training steps, and no cause of a loss was found;
    "lost" = to the causes with a known cost; "other" = around the steps (validation, compilation,
    callbacks, set-up), and none was found; "not_judged" = of runs without steps or an account.

    Attributes:
        parts: unit -> part -> seconds.
        lost: unit -> cause -> [lost, saved by fixing it].
    """

    parts: dict[Unit, dict[str, float]] = field(default_factory=lambda: {unit: defaultdict(float) for unit in UNITS})
    lost: dict[Unit, dict[str, list[float]]] = field(
        default_factory=lambda: {unit: defaultdict(lambda: [0.0, 0.0]) for unit in UNITS}
    )

    def add_to(
        self, unit: Unit, parts: Mapping[str, float], lost: Mapping[str, Sequence[float]], weight: float = 1.0
    ) -> None:
        """Add a run's seconds by account, and (lost, saved) seconds by cause, to a unit's sums.

        Args:
            weight: number of GPUs, for "gpu_hours".
        """
        for name, seconds in parts.items():
            self.parts[unit][name] += weight * seconds
        for cause, (cost, saves) in lost.items():
            sums = self.lost[unit][cause]
            sums[0] += weight * cost
            sums[1] += weight * saves

    def add(self, other: Sums) -> None:
        for unit in UNITS:
            self.add_to(unit, other.parts[unit], other.lost[unit])

    def to_json(self) -> Spent:
        return {"gpu_hours": self._hours("gpu_hours"), "hours": self._hours("hours")}

    def _hours(self, unit: Unit) -> Hours:
        parts = {part: self.parts[unit][part] for part in PARTS}
        return cast(Hours, {name: _hours(spent) for name, spent in {"total": sum(parts.values()), **parts}.items()})

    def saved_hours(self, unit: Unit) -> float:
        """Return the hours that fixing all causes saves."""
        return _hours(sum(saves for _, saves in self.lost[unit].values()))

    def cost(self, cause: str) -> CauseCost:
        """Return the hours that a cause cost, and that fixing it saves."""
        of_gpus, of_runs = (self.lost[unit][cause] for unit in UNITS)
        return {
            "gpu_hours": _hours(of_gpus[0]),
            "hours": _hours(of_runs[0]),
            "saves_gpu_hours": _hours(of_gpus[1]),
            "saves_hours": _hours(of_runs[1]),
        }

    def causes(self, unit: Unit) -> list[str]:
        """Return the causes, the most expensive first."""
        by = self.lost[unit]
        names = dict.fromkeys(cause for each in UNITS for cause in self.lost[each])
        return sorted(names, key=lambda cause: (-by[cause][0] if cause in by else 0.0, cause))


def sums_of(row: Row, again: float = 0.0) -> Sums:
    """Return the sums of one run.

    Args:
        again: share of its steps that a later start of the training did again.
    """
    sums = Sums()
    wall_s = row["wall_s"] or 0.0
    idle = Counter(row["idle_gpus"].values()) if row["idle_gpus"] else {}
    working_gpus = len(row["gpus"]) - sum(idle.values())
    lost = {
        cause: (loss["lost_s"], loss["saves_s"]) for cause, loss in row["lost"].items() if loss["lost_s"] is not None
    }
    lost_s = sum(cost for cost, _ in lost.values())
    not_lost_s = max(0.0, wall_s - lost_s)
    if not row["judged"]:  # without steps or an account
        parts = {"productive": 0.0, "other": 0.0, "not_judged": not_lost_s}
        again = 0.0
    else:
        lost_in_steps_s = sum(cost for name, (cost, _) in lost.items() if name not in _OUTSIDE_STEPS)
        productive_s = min(not_lost_s, max(0.0, (row["time_s"].get("step") or 0.0) - lost_in_steps_s))
        parts = {"productive": productive_s, "other": not_lost_s - productive_s, "not_judged": 0.0}
    if again:  # steps that a later start did again are lost, with what belongs to them
        # At the run's mean pace; it compiled only once.
        compiling = min(parts["other"], row["time_s"].get("compile") or 0.0)
        useful_s = parts["productive"]
        around_s = parts["other"] - compiling
        repeated_s = again * (useful_s + around_s)
        parts["productive"] -= again * useful_s
        parts["other"] -= again * around_s
        lost_s += repeated_s
        if repeated_s:
            lost[REPEATED] = repeated_s, repeated_s
    parts["lost"] = lost_s
    sums.add_to("hours", parts, lost)
    if working_gpus:
        sums.add_to("gpu_hours", parts, lost, working_gpus)
    for cause, count in idle.items():  # these GPUs did nothing all the time
        sums.add_to("gpu_hours", {"lost": wall_s}, {cause: (wall_s, wall_s)}, count)
    return sums


_TITLES = {REPEATED: REPEATED_TITLE} | {rule.cause: rule.title for rule in RULES}


def total(survey: Survey) -> TotalSums:
    """Return where the time of all runs went: hours of trainings, and of their GPUs.

    Trainings are made, summed and stored one after the other: `runs` is a `Stored`, ordered by what fixing its causes
    saves.
    """
    rows = _Fleet(survey.rows)
    unit: Unit = "gpu_hours" if rows.with_gpus else "hours"
    everything = _Everything()
    restarts: Restarts = {"trainings": 0, "restarts": 0, "steps_done_again": 0, "unknown": 0}
    runs, saves = Stored(), array("d")
    for training in rows.trainings():
        run = _run(training, everything.add(training), unit)
        if len(training.starts) > 1:
            restarts["trainings"] += 1
            restarts["restarts"] += len(training.starts) - 1
            restarts["steps_done_again"] += sum(start.again or 0 for start in training.starts)
            restarts["unknown"] += training.steps is None
        saves.append(run["saves_gpu_hours"] if unit == "gpu_hours" else run["saves_hours"])
        runs.append(run)
    runs.order = array("Q", sorted(range(len(runs)), key=lambda number: -saves[number]))
    return {
        "version": TOTAL_VERSION,
        "recordings": len(rows.numbers),
        "imported": len(survey.rows) - len(rows.numbers),
        "trainings": len(runs),
        "unit": unit,
        **everything.sums.to_json(),
        "without_gpu": {"recordings": len(rows.numbers) - rows.with_gpus, "hours": _hours(rows.without_gpus_s)},
        "gpu_active": {
            "gpu_hours": _hours(rows.active_s) if rows.measured_s else None,
            "of_gpu_hours": _hours(rows.measured_s),
        },
        "causes": everything.causes(unit),
        "unknown_cost": [
            {"cause": cause, "title": _TITLES.get(cause, cause), "trainings": count}
            for cause, count in everything.unknown.most_common()
        ],
        "runs": cast(list[TrainingReport], runs),
        "restarts": restarts,
        "read": {
            "manifests": survey.read,
            "diagnosed": survey.diagnosed,
            "older_rules": rows.older_rules,
            "problems": reported(survey.problems),
        },
    }


class _Fleet:
    """The rows of recordings, looked at once: their sums, and which of them may belong to one training.

    Attributes:
        numbers: of the rows in their store, without those of imported traces.
        with_gpus: how many held a GPU; `without_gpus_s`: seconds of the others.
        active_s, measured_s: seconds of GPUs in which a kernel or a copy ran, and in which that was measured.
    """

    def __init__(self, rows: Stored) -> None:
        self._rows = rows
        self.numbers, self._start_ns = array("Q"), array("q")  # of each row
        self._keys, self._key_of = array("q"), array("Q")  # hash of each key, and the place of its row in `numbers`
        self.with_gpus = self.older_rules = 0
        self.without_gpus_s = self.active_s = self.measured_s = 0.0
        for number, row in enumerate(rows):
            if not row["imported"]:
                self._add(number, row)

    def _add(self, number: int, row: Row) -> None:
        """Add a run to the sums that need no grouping, and note the keys by which it is grouped later.

        Args:
            number: of the row in its store.
        """
        wall_s = row["wall_s"] or 0.0
        self.older_rules += row["rules_version"] != RULES_VERSION
        self.active_s += sum(row["active"]) * wall_s
        self.measured_s += len(row["active"]) * wall_s
        self.with_gpus += bool(row["gpus"])
        self.without_gpus_s += 0.0 if row["gpus"] else wall_s
        of_job = ("job", row["job"], str(row["fit_index"])) if row["job"] else ("folder", row["run"], row["id"])
        for key in (of_job, *_lookup_keys(row)):
            self._keys.append(hash(key))
            self._key_of.append(len(self.numbers))
        self.numbers.append(number)
        self._start_ns.append(row["start_ns"])

    def trainings(self) -> Iterator[Training]:
        """Yield all trainings, oldest first. Only rows that share a key with others are compared."""
        heads = array("Q")  # the place of each training's first row
        joined: dict[int, list[tuple[list[int], str]]] = {}  # by head: its starts
        for places in self._sharing():
            if len(places) == 1:  # shares no key: a training of its own
                heads.extend(places)
                continue
            rows = [{name: value for name, value in self._row(place).items() if name not in _APART} for place in places]
            place_of = {id(row): place for row, place in zip(rows, places, strict=True)}
            for training in trainings(rows):
                starts = [[place_of[id(row)] for row in start.rows] for start in training.starts]
                head = min(starts[0], key=self._start_ns.__getitem__)
                heads.append(head)
                joined[head] = [(of, start.because) for of, start in zip(starts, training.starts, strict=True)]
        in_order = sorted(heads, key=self._start_ns.__getitem__)
        for _, same_start in groupby(in_order, key=self._start_ns.__getitem__):
            begun = [self._training(joined.get(head) or [([head], "")]) for head in same_start]
            yield from sorted(begun, key=lambda training: training.starts[0].first["id"])

    def _row(self, place: int) -> Row:
        return self._rows.numbered(self.numbers[place])

    def _training(self, starts: Iterable[tuple[list[int], str]]) -> Training:
        """Return the training of these starts: places of rows, and `because`, of each."""
        training = Training([Start([self._row(place) for place in of], because) for of, because in starts])
        _count_kept(training.starts)
        return training

    def _sharing(self) -> Iterator[list[int]]:
        """Yield the places of rows that share keys, directly or by others between them; each place once."""
        keys, key_of = np.array(self._keys), np.array(self._key_of)
        by_key = np.argsort(keys, kind="stable")
        alike = np.flatnonzero(keys[by_key][1:] == keys[by_key][:-1])  # neighbours with equal keys
        root = array("Q", range(len(self.numbers)))

        def root_of(place: int) -> int:
            """Return the place that stands for all that are joined with one."""
            while root[place] != place:
                root[place] = root[root[place]]
                place = root[place]
            return place

        for one, other in zip(key_of[by_key[alike]].tolist(), key_of[by_key[alike + 1]].tolist(), strict=True):
            first, second = sorted((root_of(one), root_of(other)))
            root[second] = first
        members: dict[int, list[int]] = {}
        for place in range(len(root)):
            if (first := root_of(place)) != place:
                members.setdefault(first, [first]).append(place)
        for place in range(len(root)):
            if root[place] == place:
                yield members.pop(place, [place])


@dataclass(slots=True)
class _Everything:
    """The sums of all trainings.

    Attributes:
        costly, unknown: cause -> trainings in which its cost is known, and is not.
    """

    sums: Sums = field(default_factory=Sums)
    costly: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)

    def add(self, training: Training) -> Sums:
        """Add a training; return its own sums."""
        sums = Sums()
        for start in training.starts:
            again = start.again
            for row in start.rows:
                sums.add(sums_of(row, (again or 0) / row["steps"] if row["steps"] else 0.0))
        self.sums.add(sums)
        costly = {cause for unit in UNITS for cause in sums.lost[unit]}
        self.costly.update(costly)
        self.unknown.update({cause for row in training.rows for cause in row["lost"]} - costly)
        return sums

    def causes(self, unit: Unit) -> list[TotalCause]:
        """Return what each cause cost, the costliest first."""
        return [
            {
                "cause": cause,
                "title": _TITLES.get(cause, cause),
                **self.sums.cost(cause),
                "trainings": self.costly[cause],
            }
            for cause in self.sums.causes(unit)
        ]


def _run(training: Training, sums: Sums, unit: Unit) -> TrainingReport:
    """Return a training with its ranks and restarts as one object of the report."""
    last, rows = training.starts[-1], training.rows
    first = last.first
    causes = sums.causes(unit)
    return {
        "run": first["run"],
        "logdir": first["logdir"],
        "id": first["id"],
        "recordings": [row["id"] for row in rows],
        "ranks": len({row["rank"] for row in rows}),
        "script": first["script"],
        "user": first["user"],
        "hosts": sorted({row["host"] for row in rows if row["host"]}),
        "scheduler": first["scheduler"],
        "status": first["status"],
        "start_ns": training.starts[0].start_ns,
        "end_ns": last.end_ns,
        "wall_s": round(sum(start.first["wall_s"] or 0.0 for start in training.starts), 6),
        "steps": training.steps,
        "restarts": [
            {"id": start.first["id"], "because": start.because, "begins": start.begins} for start in training.starts[1:]
        ],
        "gpus": sum(len(row["gpus"]) for row in last.rows),
        **sums.to_json(),
        "lost": [{"cause": cause, **sums.cost(cause)} for cause in causes],
        "unknown_cost": sorted({cause for row in rows for cause in row["lost"]} - set(causes)),
        "saves_gpu_hours": sums.saved_hours("gpu_hours"),
        "saves_hours": sums.saved_hours("hours"),
        "top": _top_cause(rows, causes, sums.lost[unit]),
    }


def _top_cause(rows: Sequence[Row], causes: Sequence[str], lost: Mapping[str, Sequence[float]]) -> TopCause | None:
    """Return the cause whose fix saves most, with the title and the advice of the run that it helps most.

    None without causes.
    """
    if not causes:
        return None
    cause = max(causes, key=lambda name: lost[name][1] if name in lost else 0.0)
    claims = [row for row in rows if cause in row["lost"]]
    if not claims:  # steps done again: no run has it as a finding
        return {"cause": cause, "title": REPEATED_TITLE, "advice": None}
    best = max(claims, key=lambda row: row["lost"][cause]["saves_s"] or 0.0)
    return {"cause": cause, "title": best["lost"][cause]["title"], "advice": best["advice"].get(cause)}


def _hours(seconds: float) -> float:
    return round(seconds / _HOUR, 9)


# A start may continue one of this many of the newest trainings that share something with it.
LOOK_BACK = 64


@dataclass
class Start:
    """One start of a training: its ranks' rows.

    Attributes:
        begins: the training's step it started at, None = not known.
        kept_steps: how many of its steps no later start did again, None = not known.
        because: why it belongs to the start before it, "" for the first.
    """

    rows: list[Row]
    because: str = ""
    kept_steps: int | None = None

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
        """The training's step at which this start began; None if it is not known."""
        begins = self.first["begins"]
        epoch, iteration = begins["epoch"], begins["iteration"]
        # A restored optimizer knows its steps, whatever the epochs are called.
        return epoch * begins["steps_per_epoch"] if epoch and begins["steps_per_epoch"] else iteration

    @property
    def resumed(self) -> bool:
        return _resumed(self.first)

    @property
    def again(self) -> int | None:
        """Its steps that a later start did again."""
        return None if self.kept_steps is None else self.steps - self.kept_steps


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
        steps = [start.kept_steps for start in self.starts]
        return None if None in steps else sum(filter(None, steps))


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
    by_key: dict[tuple, deque[Training]] = defaultdict(lambda: deque(maxlen=LOOK_BACK))
    for start in _sessions(rows):
        keys = list(_lookup_keys(start.first))  # under which a later start may continue this one
        continued = _continued(start, [list(by_key[key]) for key in keys if key in by_key])
        if continued is None:
            continued = Training()
            joined.append(continued)
        continued.starts.append(start)
        for key in keys:
            if continued not in by_key[key]:
                by_key[key].append(continued)
    for training in joined:
        _count_kept(training.starts)
    return joined


def _sessions(rows: Iterable[Row]) -> list[Start]:
    """Return the starts of trainings, oldest first: the rows of ranks that trained together are one start."""
    members = [
        SimpleNamespace(  # `group_sessions` takes recordings, and sets their session
            facts=row,
            run=row["run"],
            folder=row["id"],
            start_ns=row["start_ns"],
            end_ns=row["end_ns"],
            rank=row["rank"],
            session=row["id"],
            row=row,
        )
        for row in rows
    ]
    group_sessions(members)  # type: ignore[arg-type]
    sessions: dict[str, list[Row]] = {}
    for member in members:
        sessions.setdefault(member.session, []).append(member.row)
    starts = [Start(rows) for rows in sessions.values()]
    return sorted(starts, key=lambda start: (start.start_ns, start.first["id"]))


def _resumed(row: Row) -> bool:
    return bool(row["begins"]["epoch"] or row["begins"]["iteration"])


def _lookup_keys(row: Row) -> Iterator[tuple]:
    """Yield the keys under which starts that the one of this row may continue are looked up.

    The script alone is no key: thousands of starts may share it.
    """
    program = hashed_script(row["script"]), row["fit_index"], row["backend"]
    scheduler = row["scheduler"]
    yield "home", row["logdir"], row["home"], *program
    if scheduler:
        yield "scheduler", scheduler["name"], scheduler["job"], *program
    if row["trial"]:
        yield "trial", row["trial_of"], row["trial"], *program
    if _resumed(row) or row["status"] != "ended":
        yield "unfinished", row["parameters"], *program


def _continued(start: Start, earlier: Sequence[Sequence[Training]]) -> Training | None:
    """Return the training that a start continues, and set its `because`; None = it is the first start of a new one.

    Args:
        earlier: trainings that share a key with it, in a list for each key.
    """
    candidates = {id(training): training for trainings_of_key in earlier for training in trainings_of_key}.values()
    possible: list[Training] = []
    for training in sorted(candidates, key=lambda training: -training.starts[-1].start_ns):  # the newest first
        before = training.starts[-1]
        if not _may_follow(before.first, start.first, before.end_ns, start.start_ns):
            continue
        start.because = _evidence(before, start)
        if start.because:
            return training
        if _goes_on_within(before, start):
            possible.append(training)
    if len(possible) == 1:  # of several it is not known which
        start.because = "it begins within the steps that the one before did not end"
        return possible[0]
    return None


def _may_follow(before: Row, after: Row, end_ns: int, start_ns: int) -> bool:
    """Return True if a start may continue another one: it came later, with the same model, user and workers.

    Args:
        before, after: the rows of their lowest ranks.
        end_ns: when all ranks of the earlier start had ended.
        start_ns: when the later one began.
    """
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
    """Return why a start continues another one, as a clause; "" = nothing shows that it does."""
    old, new = before.first, after.first
    same_home = old["home"] == new["home"]
    cut_short = old["status"] != "ended"
    unfinished = cut_short or after.resumed
    old_job, new_job = old["scheduler"], new["scheduler"]
    if old_job and new_job:
        if (old_job["name"], old_job["job"]) != (new_job["name"], new_job["job"]):  # different jobs of the scheduler
            if not (same_home and unfinished):
                return ""
        elif (new_job.get("restarts") or 0) > (old_job.get("restarts") or 0):  # the scheduler counted a restart
            return f"{new_job['name']} restarted job {new_job['job']}"
        elif unfinished and (same_home or new_job.get("restarts") is None):
            return f"{new_job['name']} job {new_job['job']} ran again"
    if new["trial"] and old["trial"] == new["trial"] and unfinished:
        return f"{new['trial_of']} ran {new['trial']} again"
    if same_home and after.resumed:
        return "it resumes in the same log directory"
    return "the same script ran again in the same log directory" if same_home and cut_short and new["script"] else ""


def _goes_on_within(before: Start, after: Start) -> bool:
    """Return True if a resumed start begins within the steps of one that was cut short, in another log directory."""
    if before.first["status"] == "ended" or not after.resumed or not after.first["script"]:
        return False
    begins, began = after.begins, before.begins
    if begins is None or began is None or before.first["home"] == after.first["home"]:
        return False
    return began < begins <= began + before.steps


def _count_kept(starts: Sequence[Start]) -> None:
    """Set how many steps of each start were kept: those before all later starts; None where a beginning is unknown.

    Args:
        starts: in order.
    """
    if len(starts) == 1:
        starts[0].kept_steps = starts[0].steps
        return
    if any(start.begins is None for start in starts):
        return
    limit: int | None = None  # the earliest step at which a later start began
    for start in reversed(starts):
        begins = start.begins or 0
        end = begins + start.steps
        start.kept_steps = max(0, min(end, end if limit is None else limit) - begins)
        limit = begins if limit is None else min(limit, begins)
