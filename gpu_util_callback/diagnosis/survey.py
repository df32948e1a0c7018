"""One small row a run, of all runs of log directories: read concurrently, or diagnosed."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gpu_util_callback.diagnosis.engine import RULES, RULES_VERSION, diagnose
from gpu_util_callback.diagnosis.rule import own_findings
from gpu_util_callback.diagnosis.run_reports import Recorded
from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.recording import manifest as manifests
from gpu_util_callback.recording.discovery import REQUESTS, Found, find_recordings, recording_id
from gpu_util_callback.recording.manifest import ManifestError, UnknownFormat
from gpu_util_callback.recording.manifest_facts import Facts
from gpu_util_callback.recording.problems import Problem, unopened
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.storage import Storage, is_remote, storage_for
from gpu_util_callback.redaction import without_secrets

# Runs a Ray task reads: enough that starting it costs little, few enough to spread.
TASK_RUNS = 50
IDLE_CAUSES = frozenset(rule.cause for rule in RULES if rule.unused)

Row = dict[str, Any]
Progress = Callable[[str, int, int | None], None]


@dataclass
class Survey:
    """The rows of all runs, and what could not be read.

    Attributes:
        read: how many manifests were read.
        diagnosed: how many runs had to be diagnosed from their rows of steps.
    """

    rows: list[Row] = field(default_factory=list)
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
    engine: str = "local",
    progress: Progress = lambda what, done, of: None,
) -> Survey:
    """Return a row for each recording below the log directories.

    What the recorder diagnosed is taken as it is, whatever its rules' version; recordings without
    a diagnosis are diagnosed from their rows of steps.

    Args:
        thresholds: overrides of the rules' thresholds; every run is diagnosed with them.
        recompute: diagnose every run by today's rules unless its diagnosis was made by them.
        engine: "local", or "ray" to spread the reading over the Ray cluster.
        progress: is called with a word, how many are done, and of how many (None = not known).
    Raises: UnusableInput where a log directory cannot be opened, or a threshold does not exist.
    """
    result = Survey()
    found: dict[str, tuple[Storage, Found]] = {}
    for logdir in logdirs:
        storage, places = find_recordings(logdir, result.problems, partial(_say_found, progress, len(found)))
        for place in places:
            found.setdefault(_key(place), (storage, place))
    unread = list(found.values())
    result.read = len(unread)
    rows: list[tuple[str, Row]] = []
    if unread:
        answers = (
            _by_ray(unread, thresholds, recompute) if engine == "ray" else _by_threads(unread, thresholds, recompute)
        )
        for count, (place, row, problems) in enumerate(answers, 1):
            result.problems += problems
            if row is not None:
                rows.append((place.path, row))
                result.diagnosed += row["diagnosed"]
            progress("read", count, len(unread))
    result.rows = [row for _, row in sorted(rows, key=lambda item: item[0])]
    return result


def _say_found(progress: Progress, before: int, count: int) -> None:
    progress("found", before + count, None)


Answer = tuple[Found, Row | None, list[Problem]]


def _by_threads(
    unread: Sequence[tuple[Storage, Found]], thresholds: Mapping | None, recompute: bool
) -> Iterable[Answer]:
    """Read rows here: several at a time from a remote store, which answers late."""
    remote = [item for item in unread if item[0].remote]
    with ThreadPoolExecutor(REQUESTS, "gpu-util-read") as pool:
        waiting = {pool.submit(row_of, *item, thresholds, recompute): item for item in remote}
        for future in as_completed(waiting):
            _, place = waiting.pop(future)
            yield (place, *future.result())
    for storage, place in unread:
        if not storage.remote:
            yield (place, *row_of(storage, place, thresholds, recompute))


def _by_ray(unread: Sequence[tuple[Storage, Found]], thresholds: Mapping | None, recompute: bool) -> Iterable[Answer]:
    """Have a Ray cluster read the rows; its nodes must reach the log directories."""
    import ray

    if not ray.is_initialized():
        ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level="error")
    task = ray.remote(num_cpus=1)(_rows_of_folders)
    parts = [unread[at : at + TASK_RUNS] for at in range(0, len(unread), TASK_RUNS)]
    waiting = {task.remote([place for _, place in part], dict(thresholds or {}), recompute): part for part in parts}
    while waiting:
        [ready], _ = ray.wait(list(waiting), num_returns=1)
        part = waiting.pop(ready)
        for (_, place), (row, problems) in zip(part, ray.get(ready), strict=True):
            yield place, row, problems


def _rows_of_folders(
    places: Sequence[Found], thresholds: Mapping, recompute: bool
) -> list[tuple[Row | None, list[Problem]]]:
    storages = {logdir: storage_for(logdir, within=logdir)[0] for logdir in {place.logdir for place in places}}
    return [row_of(storages[place.logdir], place, thresholds, recompute) for place in places]


def row_of(
    storage: Storage, place: Found, thresholds: Mapping | None = None, recompute: bool = False
) -> tuple[Row | None, list[Problem]]:
    """Return the row of one recording, and its problems; None = it cannot be read at all."""
    path = storage.join(place.path, "manifest.json")
    try:
        if not thresholds:
            row, problems = _from_manifest(storage, place, path, recompute)
            if row is not None:
                return row, problems
        folder = place.path.rstrip("/").rpartition("/")[2]
        recording = Recording(storage, place.path, place.run, recording_id(place.run, folder))
        judged = diagnose(recording, thresholds)  # from the rows of steps, by today's rules
        return _row(place, recording, recording.status, judged, diagnosed=True), recording.problems
    except UnusableInput:  # an unknown threshold
        raise
    except Exception as error:
        return None, [unopened(place.path, error)]


def _from_manifest(storage: Storage, place: Found, path: str, recompute: bool) -> tuple[Row | None, list[Problem]]:
    """Return the row from the manifest alone; None where it lacks something."""
    try:
        facts, left_out = manifests.parse(storage.read(path, manifests.MAX_BYTES))
    except UnknownFormat:
        raise
    except (FileNotFoundError, ManifestError):
        return None, []
    judged: Mapping[str, Any] = facts.get("diagnosis") or {}
    if recompute and judged.get("rules_version") != RULES_VERSION:
        return None, []
    status = facts.get("status") or "lost"
    if status == "live":
        age = None if storage.remote else storage.age_s(path, time.time())
        status = "lost" if manifests.lost(facts, age) else "live"
    row = _as_diagnosed(place, Recorded(facts), status)
    problems = [Problem(path, left_out[0])] if left_out and row is not None else []
    return row, problems


def _as_diagnosed(place: Found, recording: Recording | Recorded, status: str) -> Row | None:
    """Return the row from what a manifest says; None where it lacks something."""
    judged: Mapping = recording.stored or {}
    is_complete = all(recording.facts.get(name) is not None for name in ("started_ns", "account", "rows"))
    if "verdict" not in judged or not is_complete:
        return None
    return _row(place, recording, status, judged, diagnosed=False)


def row_of_open(recording: Recording, recompute: bool = False) -> Row:
    """Return the row of an open recording, from what its recorder diagnosed.

    Args:
        recompute: diagnose it where its recorder did not; without that it is not judged.
    """
    place = Found("", recording.run, recording.path)
    row = _as_diagnosed(place, recording, recording.status)
    if row is not None:
        return row | {"id": recording.id}
    judged: Mapping = diagnose(recording) if recompute else {"findings": [], "spans": []}
    row = _row(place, recording, recording.status, judged, diagnosed=recompute)
    return row | {"id": recording.id, "judged": row["judged"] and recompute}


def _row(place: Found, recording: Recording | Recorded, status: str, judged: Mapping, *, diagnosed: bool) -> Row:
    home, _, folder = place.path.rstrip("/").rpartition("/")
    facts, account, steps = recording.facts, recording.account, recording.step_count
    fit, model = facts.get("fit") or {}, facts.get("model") or {}
    times = account["time_s"]
    # The hours that are summed up do not include the time between fits.
    claims = own_findings(judged)
    gpus, idle = _gpus_held(facts, judged["findings"])
    active_pct = judged.get("gpu_active_pct") or {}
    return {
        "logdir": without_secrets(place.logdir),
        "run": place.run,
        "id": recording_id(place.run, folder),
        "home": home,
        "host": facts.get("host"),
        "user": facts.get("user"),
        "rank": facts.get("rank"),
        "world_size": facts.get("world_size") or 1,
        "job": facts.get("job"),
        "job_source": facts.get("job_source"),
        "fit_index": facts.get("fit_index"),
        "fits": facts.get("fits") or 1,
        "process": [facts.get("pid"), facts.get("process_started")],
        "scheduler": facts.get("scheduler"),
        "script": facts.get("script"),
        "trial": facts.get("trial"),
        "trial_of": facts.get("trial_of"),
        "parameters": model.get("parameters"),
        "backend": (facts.get("framework") or {}).get("backend"),
        "batch_size": fit.get("batch_size"),
        # The place in the whole training at which the fit begins.
        "begins": {
            "epoch": fit.get("first_epoch"),
            "iteration": fit.get("first_iteration"),
            "steps_per_epoch": fit.get("steps_per_epoch"),
        },
        "status": status,
        "start_ns": recording.start_ns,
        "end_ns": recording.end_ns,
        "wall_s": account["wall_s"],
        "time_s": dict(times),
        "steps": steps,
        "gpus": gpus,
        "idle_gpus": idle,
        "active": [active_pct[index] / 100 for index in gpus if active_pct.get(index) is not None],
        "lost": _lost(claims),
        "advice": _first_advice(claims),
        "rules_version": judged.get("rules_version"),
        "judged": bool(steps and times),
        "imported": "source" in facts,
        "diagnosed": diagnosed,
    }


def _gpus_held(facts: Facts, findings: Sequence[Mapping]) -> tuple[dict[str, str], dict[str, str]]:
    """Return index -> model of the GPUs that the run held, and index -> cause of the idle ones.

    GPUs that the framework did not use count where a scheduler had given them to the job:
    elsewhere, others may have used them.
    """
    idle_causes = {
        str(gpu): finding["cause"] for finding in findings if finding["cause"] in IDLE_CAUSES for gpu in finding["gpus"]
    }
    models: dict[str, str] = {}
    for gpu in facts.get("gpus") or ():
        index = str(gpu["index"])
        if gpu.get("used_by_framework") or (index in idle_causes and facts.get("scheduler")):
            models[index] = gpu.get("name") or "unknown GPU"
    return models, {index: cause for index, cause in idle_causes.items() if index in models}


def _lost(claims: Sequence[Mapping]) -> dict[str, Row]:
    """Return cause -> its title, and the run's time that it cost and that its advice saves at most.

    An answer of yes to each question is assumed. The times are None where none of its findings knows them.
    """
    costs: dict[str, Row] = {}
    for claim in claims:
        cost = costs.setdefault(claim["cause"], {"title": claim["title"], "lost_s": None, "saves_s": None})
        if claim["lost_s"] is not None:
            _, most_s = claim.get("saves_range_s") or (0.0, claim.get("saves_s") or 0.0)
            saves = claim["lost_s"] if most_s is None else min(most_s, claim["lost_s"])
            cost["lost_s"] = (cost["lost_s"] or 0.0) + claim["lost_s"]
            cost["saves_s"] = (cost["saves_s"] or 0.0) + saves
    return costs


def _first_advice(claims: Sequence[Mapping]) -> dict[str, Row]:
    """Return each cause's advice, that of its most costly finding."""
    first: dict[str, Row] = {}
    for claim in sorted(claims, key=lambda claim: -(claim["lost_s"] or 0)):
        first.setdefault(claim["cause"], dict(claim["advice"]))
    return first
