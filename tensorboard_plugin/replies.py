"""The tab's replies about recordings and their profiler windows, as plain objects for JSON."""

import re
from collections.abc import Collection, Mapping, Sequence
from importlib import resources
from pathlib import Path
from shlex import quote
from typing import Any, cast

import numpy as np

from gpu_util_callback._version import __version__
from gpu_util_callback.diagnosis import RULES
from gpu_util_callback.diagnosis.report_types import RunReport, ShownRun, TotalSums, TrainingReport, Unit
from gpu_util_callback.diagnosis.rule import all_findings
from gpu_util_callback.diagnosis.rules import RULE_OF
from gpu_util_callback.diagnosis.survey import Row
from gpu_util_callback.diagnosis.thresholds import A_TWENTIETH
from gpu_util_callback.diagnosis.total_time import REPEATED, REPEATED_LOOK, REPEATED_TITLE
from gpu_util_callback.diagnosis.verdict import calm, order, order_of_all, saves_range, sums
from gpu_util_callback.recording.manifest_facts import Claim, DiagnosisFacts, Status
from gpu_util_callback.recording.problems import ReportedProblem, reported
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.schema import ABSENT_INT, PLUGIN_NAME, TABLES
from gpu_util_callback.recording.segments import complete, concatenate
from gpu_util_callback.recording.storage import is_remote, storage_for
from gpu_util_callback.redaction import hashed_script
from gpu_util_callback.report.energy_sentences import accelerator_in_words
from gpu_util_callback.report.screen import grouped
from gpu_util_callback.report.total_screen import PARTS as PARTS_OF_TIME
from gpu_util_callback.report.total_screen import fix_of, headline, name_of, notes
from gpu_util_callback.trying.changes import Change, change_for
from gpu_util_callback.words import (
    GPU_TIME,
    HOST_STEP,
    HOST_TIME,
    capitalized,
    culprit,
    evidence_rows,
    percent,
    same_fix,
)
from tensorboard_plugin.gpu_time import PART_OF, PARTS, part_of, savers_of
from tensorboard_plugin.lanes import lanes_of
from tensorboard_plugin.reply_types import (
    CauseWords,
    FindingRow,
    LogDirectory,
    PhaseReply,
    RecordingReply,
    RecordingSummary,
    RunsHead,
    StepKernels,
    StoredFindings,
    TimeBudget,
    TotalReply,
    TrainingRow,
    WindowInfo,
    WindowReply,
    WordedFinding,
    Words,
)
from tensorboard_plugin.tiles.time_tiles import budgets

MAX_PHASES = 2000
# Titles of findings per line of the list: people search them.
MAX_TITLES = 12
# Runs that what to do is said of, in the sums of all.
FIXES = 3


def recording_reply(recording: Recording, revision: str, report: RunReport) -> RecordingReply:
    """Return one recording for the tab: report, extent, lanes, windows, and the phases between its steps.

    Args:
        revision: changes whenever the recording does.
    """
    first, last = recording.top.step_range
    lead_ids = report["headline"]["ids"] if report["headline"] else []
    savers, sums_of_time = savers_of(recording), budgets(recording)
    numbered = enumerate((group.first for group in grouped(all_findings(report))), 1)
    commands = {same_fix(item): _tried(report, f"--fix {n}", change_for(item["advice"])) for n, item in numbered}
    rows = rows_of(all_findings(report), lead_ids, commands)
    spans, findings = ([worded(item, savers) for item in kind] for kind in (report["spans"], report["findings"]))
    parts = {item["part"] for item in (*spans, *findings)}
    return {
        "id": recording.id,
        "revision": revision,
        "report": {
            **cast(ShownRun, report),  # all of it: the tab exports it
            "batch_size": (report["fit"] or {}).get("batch_size"),
            "spans": spans,
            "findings": findings,
            "rows": rows,
            "lead": _lead(report, rows, lead_ids),
            "calm": None if rows else calm(report["verdict"]),
            "not_counted": not_counted(report, sums_of_time[0], parts) if sums_of_time else {},
            "levers": {} if rows else levers(report),
            "au": accelerator_in_words(report),
        },
        "extent": {"start_ns": recording.start_ns, "end_ns": recording.end_ns, "first_step": first, "last_step": last},
        "lanes": lanes_of(recording),
        "budgets": sums_of_time,
        "phases": _phases(recording),
        "windows": windows_of(recording),
        "problems": reported(recording.problems),
    }


def worded(finding: Claim, savers: frozenset[str] = frozenset()) -> WordedFinding:
    """Return a finding with its words for the tab.

    Args:
        savers: names of the phases that save a checkpoint, as of `part_of`.
    """
    return {
        **finding,
        "rows": evidence_rows(finding),
        "culprit": culprit(finding),
        "fix": same_fix(finding),
        "part": part_of(finding, savers),
    }


# Part of the time -> the thread's category that holds it; the rule that counts it, and the limit from which on.
_COUNTED = {
    "input": ("input_wait", "input_bound", "wait_pct"),
    "launch": ("", "launch_bound", "idle_launch_pct"),
    "callbacks": ("", "host_stall", "callback_pct"),
    "compile": ("compile", "recompilation", "compile_pct"),
    "validation": ("validation", "host_stall", "validation_pct"),
}
# A parameter of the training, its value where something is not used; what that is, and the change.
_LEVERS = (
    ("mixed_precision", "float32", "No mixed precision", 'keras.mixed_precision.set_global_policy("mixed_float16")'),
    ("jit_compile", False, "Steps are not compiled by XLA or torch.compile", "jit_compile=True"),
    ("steps_per_execution", 1, "Each step is a call of its own", "steps_per_execution=16"),
)


def not_counted(report: RunReport, budget: TimeBudget, parts: Collection[str]) -> dict[str, str]:
    """Return large parts of a lane's time -> how much each took, and why no finding counts it.

    Args:
        budget: the lane's seconds by part.
        parts: that findings count; they are left out.
    """
    shares = {part["name"]: 100 * part["seconds"] / max(1e-9, budget["known_s"]) for part in budget["parts"]}
    reply = {}
    for name, (category, cause, limit) in _COUNTED.items():
        thread_pct = 100 * report["time_s"].get(category, 0.0) / max(1e-9, report["wall_s"] or 0.0)
        idle_pct, least_pct = shares.get(name, 0.0), report["thresholds"][cause][limit] or 0.0
        pct = max(thread_pct, idle_pct)
        reason = f"not all of what “{RULE_OF[cause].title}” asks for was seen"
        if idle_pct < pct / 2:  # the GPU worked while the thread spent that time
            reason = f"the GPU was busy in {percent(100 - 100 * idle_pct / pct)} of it"
        elif name == "compile":
            reason = "every training begins by compiling"
        elif pct < least_pct:
            reason = f"it begins to count at {percent(least_pct)}"
        if name not in parts and pct >= 100 * A_TWENTIETH:
            reply[name] = f"{capitalized(PARTS[name])} {percent(pct)}, not counted: {reason}."
    return reply


def _tried(report: RunReport, option: str, change: Change | str | None = None) -> str:
    """Return the command that measures a change; "" where it cannot, or the program was no script.

    Args:
        option: of `gpu-util try`.
        change: to measure, or a sentence on why there is none; None = the option names it.
    """
    script = report["script"] or ""
    program = quote(script) if script.endswith(".py") else f"-m {quote(script)}"
    is_known = script and script != hashed_script(script) and not isinstance(change, str)
    return f"gpu-util try {option} {program}" if is_known else ""


def levers(report: RunReport) -> dict[str, str]:
    """Return what a training does not use -> the change; the command that measures it, where it was a script."""
    unused = {text: code for name, value, text, code in _LEVERS if cast(dict, report["fit"] or {}).get(name) == value}
    return {text: _tried(report, f"--change {quote(code)}") or code for text, code in unused.items()}


def rows_of(
    findings: Sequence[Mapping], lead_ids: Collection[str] = (), commands: Mapping[str, str] | None = None
) -> list[FindingRow]:
    """Return findings as the tab lists them, a row for each cause.

    The verdict's first, then by what a fix surely saves.

    Args:
        lead_ids: of those that the verdict sums up, which are one row, whatever they are called.
        commands: that measure remedies, by the fix (`same_fix`).
    """
    kinds: dict[object, list[Mapping]] = {}
    for finding in findings:
        who = str(finding.get("gpus")), str(finding.get("ranks"))
        # Same cause, title (but for numbers), GPUs and workers.
        kind = (finding["cause"], re.sub(r"[0-9][0-9.,]*", "#", finding["title"]), *who)
        kinds.setdefault("lead" if finding["id"] in lead_ids else kind, []).append(finding)
    rows = sorted(((_costliest(members), members) for members in kinds.values()), key=lambda row: order_of_all(*row))
    rows[1:] = sorted(rows[1:], key=lambda row: -saves_range(row[1])[0])
    return [_row(*row, commands or {}) for row in rows]


def _row(first: Mapping, members: list[Mapping], commands: Mapping[str, str]) -> FindingRow:
    """Return the row of one cause's findings, with a remedy for each fix.

    Args:
        first: the finding that stands for them.
    """
    findings_by_fix: dict[str, list[Mapping]] = {}
    for finding in members:
        findings_by_fix.setdefault(same_fix(finding), []).append(finding)
    return {
        "ids": [finding["id"] for finding in sorted(members, key=lambda one: one.get("start_step", 0))],
        "first": first["id"],
        "lost_s": sums(members)["lost_s"],
        "remedies": {
            fix: {
                "id": _costliest([one for one in group if one.get("saves_s")] or group)["id"],
                "saves_range_s": sums(group)["saves_range_s"],
                "command": commands.get(fix, ""),
            }
            for fix, group in findings_by_fix.items()
        },
    }


def _costliest(findings: list[Mapping]) -> Mapping:
    return max(findings, key=lambda finding: -1.0 if finding["lost_s"] is None else finding["lost_s"])


def _lead(report: RunReport, rows: list[FindingRow], summed: Collection[str]) -> str | None:
    """Return the first finding of the row that the verdict names, or else sums up."""
    sentence, titles = report["verdict"], {one["id"]: one["title"] for one in (*report["spans"], *report["findings"])}
    named = [row["first"] for row in rows if sentence.startswith(titles[row["first"]])]
    about = [row["first"] for row in rows if not set(summed).isdisjoint(row["ids"])]
    # A larger loss without a fix stands in front of what the verdict sums up.
    return next(iter([one for one in about if titles[one] in sentence] + named + about), None)


def vocabulary() -> Words:
    """Return the words of the tab."""
    causes = {rule.cause: _cause(rule.cause, rule.title, rule.look, rule.between_steps, rule.part) for rule in RULES}
    causes = {REPEATED: _cause(REPEATED, REPEATED_TITLE, REPEATED_LOOK)} | causes
    return {"causes": causes, "host": HOST_TIME, "gpu": GPU_TIME, "host_step": HOST_STEP}


def _cause(cause: str, title: str, look: tuple[str, str], between_steps: bool = False, part: str = "") -> CauseWords:
    # A colour means a part of the time: a cause that takes none of its own is neutral.
    colour = PART_OF.get(cause, "slate")
    return {"title": title, "glyph": look[0], "colour": colour, "between_steps": between_steps, "part": part}


def runs_head(directory: LogDirectory, names: list[str], problems: list[ReportedProblem]) -> RunsHead:
    """Return the head of `./runs`: the log directory, the words of the tab, and what could not be read.

    Args:
        names: of the runs that TensorBoard knows.
    """
    return {
        "version": 1,
        "server_version": __version__,
        **directory,
        "tensorboard_runs": names,
        "looked_for": f"<run>/plugins/{PLUGIN_NAME}/*/manifest.json",
        "words": vocabulary(),
        "problems": problems,
    }


def listed(recording: Recording, status: Status | None = None, report: RunReport | None = None) -> RecordingSummary:
    """Return a recording's line of `./runs`; None in it = not known."""
    status = recording.status if status is None else status
    stored = recording.stored if report is None else report
    facts = ("fit_index", "fits", "host", "rank", "job_source", "trial", "trial_config")
    row: dict[str, Any] = {
        **{name: getattr(recording, name) for name in ("id", "run", "session", "start_ns", "end_ns")},
        **{name: cast(dict, recording.facts).get(name) for name in facts},
        "status": status,
        "steps": recording.step_count,
        "verdict": stored and stored.get("verdict"),
        **_stored_findings(stored),
        "revision": recording.revision_as(status),
    }
    return cast(RecordingSummary, row)


def listed_row(row: Row, several: bool) -> RecordingSummary:
    """Return a survey's row as a line of `./runs`.

    Args:
        several: whether there are rows of several log directories.
    """
    costs = row["lost"].values()
    titles = list(dict.fromkeys(cost["title"] for cost in costs))[:MAX_TITLES]
    same = ("id", "fit_index", "fits", "host", "rank", "status", "job_source", "start_ns", "end_ns", "trial", "steps")
    line: dict[str, Any] = {
        **{name: cast(dict, row)[name] for name in same},
        "run": name_of(row, several) if several else row["run"],
        "session": None,
        "verdict": ", ".join(titles) or None,
        "causes": list(row["lost"]),
        "titles": titles,
        "lost_s": round(sum(cost["lost_s"] or 0 for cost in costs), 3),
        "revision": 0,
    }
    return cast(RecordingSummary, line)


def _stored_findings(stored: DiagnosisFacts | RunReport | None) -> StoredFindings:
    """Return causes and titles of a diagnosis in the verdict's order, and the seconds lost in all.

    None = no diagnosis.
    """
    findings: list[Claim] = [] if stored is None else [*stored.get("spans", ()), *stored.get("findings", ())]
    findings.sort(key=order)
    of_this_fit = [finding for finding in findings if not finding.get("of_s")]
    lost_s = [finding["lost_s"] for finding in of_this_fit if finding["lost_s"] is not None]
    return {
        "causes": list(dict.fromkeys(finding["cause"] for finding in findings)),
        "titles": list(dict.fromkeys(finding["title"] for finding in findings))[:MAX_TITLES],
        "lost_s": round(sum(lost_s), 3) if lost_s or stored else None,
    }


def total_reply(report: TotalSums) -> TotalReply:
    """Return a `total` as the tab shows it: sums in words and numbers, and a row a training.

    The rows hold what `./runs` does not say of their recordings.
    """
    unit = report["unit"]
    return {
        "unit": unit,
        "headline": headline(report),
        "notes": notes(report),
        "hours": report[unit]["total"],
        "shares": [{"part": part, "title": title, "hours": report[unit][part]} for part, title, *_ in PARTS_OF_TIME],
        "causes": [
            {
                "cause": cause["cause"],
                "title": cause["title"],
                "hours": cause[unit],
                "saves": cast(dict, cause)[f"saves_{unit}"],
                "trainings": cause["trainings"],
            }
            for cause in report["causes"]
        ],
        "fixes": {run["id"]: fix_of(run) for run in report["runs"][:FIXES] if run["top"]},
        "runs": [_training(run, unit) for run in report["runs"]],
    }


def _training(run: TrainingReport, unit: Unit) -> TrainingRow:
    """Return a training's row of the table, in hours of its GPUs, or its own hours if it held none.

    None = not known.
    """
    if not run["gpus"]:
        unit = "hours"  # its own: it held none, and lost none of a GPU's
    hours_of = run[unit]
    is_judged = hours_of["not_judged"] < hours_of["total"] or not hours_of["total"]
    is_known = is_judged and bool(run["lost"] or not run["unknown_cost"])
    row: dict[str, Any] = {
        "id": run["id"],
        "recordings": run["recordings"] if len(run["recordings"]) > 1 else [],
        "restarts": len(run["restarts"]),
        **{name: cast(dict, run)[name] for name in ("ranks", "script", "user", "status", "start_ns", "wall_s", "gpus")},
        "hours": hours_of["total"],
        "lost": hours_of["lost"] if is_known else None,
        "saves": cast(dict, run)[f"saves_{unit}"] if is_known else None,
        "causes": [*(loss["cause"] for loss in run["lost"]), *run["unknown_cost"]],
        "top": run["top"] and run["top"]["cause"],
    }
    return cast(TrainingRow, row)


def looked_in(logdir: str, whole: bool) -> LogDirectory:
    """Return the log directory as shown to people: its full path, and whether it exists.

    Args:
        logdir: TensorBoard's argument.
        whole: True for one directory; False for a list (`--logdir_spec`), kept as it is.
    """
    if not whole or is_remote(logdir):
        return {"logdir": logdir, "logdir_exists": None}
    _, path = storage_for(logdir)
    return {"logdir": path, "logdir_exists": Path(path).is_dir()}


def static_file(name: str) -> bytes | None:
    """Return a file of the built frontend, None for anything else."""
    file = resources.files("tensorboard_plugin") / "static" / name
    return file.read_bytes() if re.fullmatch(r"\w[\w.-]{0,99}", name) and file.is_file() else None


def _phases(recording: Recording) -> list[PhaseReply]:
    phases = recording.longest_phases(MAX_PHASES)
    return _rows({name: phases[name].tolist() for name in PhaseReply.__annotations__})


def _rows(columns: dict[str, list]) -> list[Any]:
    """Return a row for each place of columns."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


# A long run's list is thinned to this many windows; one reply holds this much of one window.
MAX_WINDOWS = 1000
MAX_KERNELS = 1000
MAX_STEP_ROWS = 4096
MAX_STEP_KERNELS = 20_000
# Names of templated kernels run to kilobytes; longer ones are unreadable.
MAX_NAME = 1000


def windows_of(recording: Recording) -> list[WindowInfo]:
    """Return the recording's windows in the order of their steps: at most 1000, evenly chosen."""
    windows = sorted(_window_infos(recording).values(), key=lambda window: (window["first_step"], window["window"]))
    return windows[:: -(-len(windows) // MAX_WINDOWS) or 1]


def window_reply(recording: Recording, window: int, kernels: int = MAX_KERNELS) -> WindowReply | None:
    """Return what profiler window number `window` traced; None for an unknown window.

    Args:
        kernels: number of kernels that are listed at most, the longest first.
    """
    about = _window_infos(recording).get(window)
    if about is None:
        return None
    steps = _rows_of_window(recording, "traced_steps", window)
    rows = _rows_of_window(recording, "kernels", window)
    order = np.lexsort((steps["gpu"], steps["step"]))[:MAX_STEP_ROWS]
    top = np.argsort(-rows["total_ns"], kind="stable")
    totals = {
        str(gpu): int(rows["total_ns"][rows["gpu"] == gpu].clip(0).sum()) for gpu in np.unique(rows["gpu"]).tolist()
    }
    return {
        **about,
        "steps": _objects("traced_steps", steps, order),
        "kernels": _objects("kernels", rows, top[:kernels]),
        "kernels_left_out": max(0, len(top) - kernels),
        "kernel_total_ns": totals,
        "step_kernels": _kernels_by_step(_rows_of_window(recording, "step_kernels", window)),
    }


def _kernels_by_step(rows: dict[str, np.ndarray]) -> StepKernels:
    """Return the kernels of each traced step, with each name once: names are long, and repeat in every step."""
    rows = {name: values[:MAX_STEP_KERNELS] for name, values in rows.items()}
    names, name_number = np.unique([str(name)[:MAX_NAME] for name in rows["name"]], return_inverse=True)
    numbers = [rows[name].tolist() for name in ("count", "total_ns", "max_ns")]
    table = zip(rows["step"].tolist(), rows["gpu"].tolist(), name_number.tolist(), *numbers, strict=True)
    return {"names": names.tolist(), "rows": [list(row) for row in table]}


def _window_infos(recording: Recording) -> dict[int, WindowInfo]:
    """Return a recording's profiler windows by number; a profile whose name is no file name is left out."""
    windows: dict[int, WindowInfo] = {}
    for window in recording.facts.get("windows") or ():
        profile = window.get("profile")
        if not profile or len(profile) >= 300 or set(profile) & set("/\\"):
            profile = None
        fields = ("window", "first_step", "stop_step", "start_ns", "end_ns", "events", "cost_s")
        about: dict[str, Any] = {name: cast(dict, window).get(name) for name in fields}
        run = profile if recording.run == "." or not profile else f"{recording.run}/{profile}"
        windows[window["window"]] = cast(WindowInfo, {**about, "profile": profile, "profile_run": run})
    return windows


def _rows_of_window(recording: Recording, table: str, window: int) -> dict[str, np.ndarray]:
    """Return a window's rows of a table, gathered segment by segment: others' rows are not kept in memory."""
    parts = [complete(table, {})]
    for rows in recording.rows_of(table):
        in_window = rows["window"] == window
        if in_window.any():
            parts.append({name: values[in_window] for name, values in rows.items()})
    return concatenate(table, parts)


def _objects(table: str, rows: dict[str, np.ndarray], order: np.ndarray) -> list[Any]:
    """Return rows of a table as objects for JSON, for each place in `order`; what is absent is None."""
    columns = {}
    for name, kind in TABLES[table].items():
        values = rows[name][order].tolist()
        if kind == "int" and name != "gpu":  # -1 there is the host
            values = [None if value == ABSENT_INT else value for value in values]
        elif kind == "text":
            values = [str(value)[:MAX_NAME] or None for value in values]
        columns[name] = values
    return _rows(columns)
