"""Runs in the terminal: one screen of any width, with or without colour; several as a table."""

import textwrap
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from inspect import cleandoc

from gpu_util_callback.diagnosis import RULES
from gpu_util_callback.diagnosis.compare import comparison
from gpu_util_callback.diagnosis.memory_report import memory_sentence
from gpu_util_callback.diagnosis.report_types import RunReport
from gpu_util_callback.diagnosis.rule import all_findings
from gpu_util_callback.diagnosis.rules import title_of
from gpu_util_callback.diagnosis.thresholds import Constant, Count, constants, shared_constants
from gpu_util_callback.diagnosis.verdict import factors_text, named_gpus
from gpu_util_callback.report.energy_sentences import accelerator_sentence, energy_sentence
from gpu_util_callback.report.screen import (
    GPU_LOOK,
    SUMMARY,
    UNFINISHED,
    Detail,
    Group,
    Pen,
    account_lines,
    code_lines,
    cut,
    finding_lines,
    folded,
    grouped,
    missing_lines,
    not_checked_lines,
    step_time,
    table,
    thresholds_lines,
    without_escapes,
)
from gpu_util_callback.words import (
    GPU_TIME,
    counted,
    duration,
    gpu_names,
    percent,
    precise,
    rate,
    steps,
    times,
    what_to_do,
    workers,
)

_SHOWN_ROWS = 20  # of the table
_SHOWN_RUNS = 3  # in brief below the table; of more runs, the table alone
_MAX_GROUPS = 6  # of workers, of GPUs
_ALIKE_PCT, _ALIKE_BYTES = 5.0, 0.1  # GPUs that differ by less are shown as one


@dataclass(frozen=True, slots=True)
class _Unit:
    """A single run, or all workers of a job: `run` is the one to show, the worst of them."""

    run: RunReport
    runs: Sequence[RunReport]
    session: Mapping | None = None

    @property
    def verdict(self) -> str:
        return self.session["verdict"]["text"] if self.session else self.run["verdict"]

    @property
    def groups(self) -> list[Group]:
        """Findings across the workers, then those of the run itself."""
        across = self.session["findings"] if self.session else []
        return [*grouped(across), *grouped(all_findings(self.run))]

    @property
    def lost_s(self) -> float:
        """Seconds lost to the costliest finding."""
        return max(group.total("lost_s") or 0.0 for group in self.groups)

    @property
    def who(self) -> str:
        return f"rank {self.run['rank']}" if self.session else ""


_STATUS = {**UNFINISHED, "lost": "killed: its process ended without closing the recording"}


def render(
    report: Mapping, width: int = 80, color: bool = False, unicode: bool = True, detail: Detail = SUMMARY
) -> str:
    """Render a `logdir_report` as text: a summary that fits one screen.

    Args:
        report: `{"runs": [...], ...}`.
        width: columns to use, 40 at least.
        color: ANSI colours.
        unicode: False = ASCII characters only.
        detail: what to show beyond the summary.
    """
    pen = Pen(width, color, unicode)
    units = _units(without_escapes(report))
    if len(units) == 1:  # a single run, or one job
        return pen.finish(_in_full(units[0], pen, detail, {}))
    runs = [unit.run for unit in units]
    labels = namesake_labels(runs)
    compared = comparison(runs)
    summary = ": ".join(filter(None, [f"{len(runs):,} runs", headline(compared, labels)]))
    lines = [pen.bold(line) for line in pen.wrap(summary)]
    lines += comparison_table(compared, pen.width, labels, None if detail.all else _SHOWN_ROWS)
    rule = ["", pen.dim(("─" if unicode else "-") * pen.width)]
    in_full = detail.all or detail.evidence
    if detail.all or (in_full and len(units) <= _SHOWN_RUNS):  # a table, then every run in full
        return pen.finish(lines + [line for unit in units for line in [*rule, *_in_full(unit, pen, detail, labels)]])
    if len(units) <= _SHOWN_RUNS:  # a table, then each run in brief
        missing_in_all = [gap for gap in runs[0]["unavailable"] if all(gap in run["unavailable"] for run in runs[1:])]
        for unit in units:
            lines += [*rule, *_brief(unit, pen, labels)]
            lines += missing_lines([gap for gap in unit.run["unavailable"] if gap not in missing_in_all], pen, detail)
        if missing_in_all:
            lines += ["", *missing_lines(missing_in_all, pen, detail, "Not measured in any of these runs")]
        return pen.finish([*lines, "", "--all shows every run in full."])
    if len({run["run"] for run in runs}) == 1:  # --run cannot choose: the newest one is meant
        lines += [*rule, *_in_full(units[-1], pen, detail, labels)]
        lines += ["", "Only the newest is shown in full; --all shows every run."]
    else:
        costly = sorted((unit for unit in units if unit.groups), key=lambda unit: unit.lost_s, reverse=True)
        for unit in costly[:_SHOWN_RUNS]:
            lines += ["", *(_in_full(unit, pen, detail, labels) if in_full else _brief(unit, pen, labels))]
        names, others = _names(compared, labels), (unit.run for unit in units if unit not in costly[:_SHOWN_RUNS])
        since_lines = [line for run in others for line in _since_before(run, pen, labels, names[run["id"]])]
        lines += ["", *since_lines[-_SHOWN_RUNS:]] if since_lines else []
        lines += ["", "gpu-util report LOGDIR --run NAME shows one run in full, --all every run."]
    return pen.finish(lines)


def _units(report: Mapping) -> list[_Unit]:
    """Return single runs and whole jobs, in the order of their first runs; a job stands for all its workers."""
    units: list[_Unit] = []
    jobs = {session["session"]: session for session in report.get("sessions", ()) if session.get("verdict")}
    listed = set()
    for run in report["runs"]:
        session = jobs.get(run["session"])
        if session is None:
            units.append(_Unit(run, [run]))
        elif run["session"] not in listed:
            listed.add(run["session"])
            members = [member for member in report["runs"] if member["session"] == run["session"]]
            worst = next((member for member in members if member["id"] == session["verdict"]["id"]), None)
            if worst is None or len(members) < 2:  # --run chose among the workers
                units += [_Unit(member, [member]) for member in members]
            else:
                units.append(_Unit(worst, members, session))
    return units


def _in_full(unit: _Unit, pen: Pen, detail: Detail, labels: Mapping[str, str]) -> list[str]:
    """Return all lines on a run or a job: verdict, findings, time, GPUs, what is missing.

    Args:
        labels: id -> what distinguishes a run from others of its name.
    """
    run = unit.run
    lines = _heading(unit, pen, labels)
    lines += finding_lines(unit.groups, pen, detail, run, unit.who)
    lines += _account(run, pen, unit.who) + _script(run, pen)
    lines += _gpu_lines(run, pen, detail)
    benchmark = accelerator_sentence(run) if detail.evidence else ""
    for sentence in (memory_sentence(run), energy_sentence(run), benchmark):
        lines += pen.wrap(sentence, "  ", "")
    notes = missing_lines(run["unavailable"], pen, detail)
    if any(gpu["used_by_framework"] for gpu in run["gpus"]):  # most causes need a GPU in use
        notes += not_checked_lines(run.get("silent", ()), pen, detail)
    notes += _clocks(unit, pen, detail)
    notes += thresholds_lines(run.get("thresholds_set") or {}, pen) + _overhead(run, pen)
    lines += ["", *notes] if notes else []
    for problem in run.get("problems", ()):
        lines += [pen.paint(line, "33") for line in pen.wrap(f"{problem['path']}: {problem['message']}", "  ", "! ")]
    return lines


def _brief(unit: _Unit, pen: Pen, labels: Mapping[str, str]) -> list[str]:
    """Return a run's heading and what to do about its first finding."""
    lines = _heading(unit, pen, labels)
    for group in unit.groups[:1]:
        lines += code_lines(what_to_do(group.first["advice"]), pen)
    return lines


def _heading(unit: _Unit, pen: Pen, labels: Mapping[str, str]) -> list[str]:
    """Return the lines of a verdict, the run's facts, its workers, and what came of the previous run's promise."""
    run = unit.run
    lines = [pen.bold(line) for line in pen.wrap(unit.verdict)]
    facts = _subtitle(run, labels.get(run["id"], ""), len(unit.runs))
    lines += [pen.dim(line) for line in pen.wrap(facts)]
    return lines + _since_before(run, pen, labels) + _workers(unit, pen)


def _workers(unit: _Unit, pen: Pen) -> list[str]:
    """Return a line for each group of alike workers, the worst first; [] for a single process."""
    if unit.session is None:
        return []
    groups = unit.session["verdict"]["groups"]
    lines = []
    for group in groups[:_MAX_GROUPS]:
        alike = f" ({len(group['ranks']):,} alike)" if group["ranks"][1:] else ""
        lines.append(pen.cut(f"  {workers(group['ranks'])}{alike}: {group['text']}"))
    if len(groups) > _MAX_GROUPS:
        more = sum(len(group["ranks"]) for group in groups[_MAX_GROUPS:])
        lines.append(f"  … and {more:,} more workers")
    return lines


def _clocks(unit: _Unit, pen: Pen, detail: Detail) -> list[str]:
    """Return how far the workers' clocks were apart: in one line, or each with its accuracy; [] if not known."""
    clocks = (unit.session or {}).get("clocks")
    if not clocks:
        return []
    aligned = clocks["workers"]
    if detail.evidence:
        sentences = [clock["text"] for clock in aligned if clock["text"]]
        return [pen.dim(line) for text in sentences for line in pen.wrap(f"{text}.", "  ", "")]
    parts = []
    if aligned:
        most = max(abs(clock["offset_ms"]) for clock in aligned)
        parts.append(f"{len(aligned):,} aligned with rank {clocks['reference']}, at most {most:,.3g} ms apart")
    if clocks["unknown"]:
        parts.append(f"{len(clocks['unknown']):,} unknown")
    return folded("Workers' clocks", parts, pen)


def rules_text(width: int = 80, rules: Iterable = RULES, unicode: bool = True) -> str:
    """Describe each cause: its condition, its sources, and its thresholds with their reasons.

    Constants follow, which decide as well and cannot be set: a rule's own, then those of all rules.
    """
    pen = Pen(width, color=False, unicode=unicode)
    lines: list[str] = []
    for rule in rules:
        lines += ["", *pen.wrap(f"{rule.cause}: {rule.title}")]
        lines += pen.wrap(cleandoc(rule.__doc__ or "").partition("\n\n")[0], "  ")
        lines += pen.wrap(f"needs {'; '.join(rule.sources)}; else: {rule.unknown}", "  ")
        for name, threshold in rule.thresholds.items():
            lines += pen.wrap(f"{name}={threshold.default:g}  {threshold.reason}", "      ", "    ")
        lines += _constant_lines(constants(type(rule).__module__), pen)
    for module, defined in shared_constants().items():
        lines += ["", *pen.wrap(f"{module}: shared by the rules"), *_constant_lines(defined, pen)]
    return pen.finish(lines[1:])


def _constant_lines(defined: Mapping[str, Constant | Count], pen: Pen) -> list[str]:
    """Return a line for each constant, with its reason."""
    lines: list[str] = []
    for name, value in defined.items():
        number = f"{value:,}" if isinstance(value, Count) else f"{value:g}"
        lines += pen.wrap(f"{name.lower()}={number} (fixed)  {value.reason}", "      ", "    ")
    return lines


def _since_before(run: Mapping, pen: Pen, labels: Mapping[str, str], name: str = "") -> list[str]:
    """Return lines on what came of the saving that the previous run promised; [] without a promise.

    Args:
        labels: id -> what distinguishes a run from others of its name.
        name: of this run, if it is not shown itself.
    """
    since = run.get("since")
    if not since:
        return []
    label = labels.get(since["id"], "")
    run_name = (label or "the run before") if since["run"] == run["run"] else f"{since['run']} {label}".strip()
    text = f"{name}, since {run_name}: " if name else f"Since {run_name}: "
    slower = " This run is slower all the same." if since["slower"] else ""
    promised = factors_text(*since["estimated"])
    estimated = f"estimated gain {promised}, " if promised else ""
    text += f"{_titles(since['gone'])} gone; {estimated}measured {times(since['got'])}.{slower}"
    return pen.wrap(text)


def _subtitle(run: Mapping, label: str, workers_: int = 1) -> str:
    """Return a run's facts in a line: its name, fit, rank, steps, pace, framework and status.

    Args:
        label: what distinguishes it from others of its name, "" = its name does.
        workers_: number of workers in its job.
    """
    parts = [run["run"] if run["run"] != "." else "this log directory"]
    if label[:1].isdigit():  # its fit and rank follow below
        parts.append(f"began {label}")
    parts += [name for name in (run.get("trial"), run.get("trial_config")) if name and name not in run["run"]]
    if run.get("fit_index") or (run.get("fits") or 1) > 1:  # the first and only one: no word
        parts.append(_fits(run))
    if workers_ > 1:
        parts.append(f"{workers_:,} workers; rank {run['rank']} is shown")
    elif run.get("rank"):
        parts.append(f"rank {run['rank']}")
    parts.append(counted(run["steps"], "step"))
    if run.get("stopped_s"):
        parts.append(f"not counting {duration(run['stopped_s'])} in which its process was stopped")
    step = run["step_ms"]
    if step["p50"] is not None:
        parts.append(f"median {step_time(step['p50'])} a step, p95 {step_time(step['p95'])}")
    if run.get("samples_per_s"):
        parts.append(f"{rate(run['samples_per_s'])} samples/s")
    framework = run.get("framework") or {}
    if framework.get("name"):
        parts.append(f"{framework['name']} {framework.get('version') or ''}".strip())
    if (run.get("fit") or {}).get("run_eagerly"):
        parts.append("runs eagerly (run_eagerly=True)")
    if run["status"] != "ended":
        parts.append(_STATUS.get(run["status"], run["status"]))
    return " · ".join(parts)


def _fits(run: Mapping) -> str:
    """Return which fits of their log directory: "fit 2", "fits 1–1,000 (2.3 s between them)"."""
    first, between_s = run["fit_index"] + 1, run.get("between_fits_s")
    pauses = f" ({duration(between_s)} between them)" if between_s else ""
    return f"{steps(first, first + (run.get('fits') or 1), noun='fit')}{pauses}"


def _script(run: Mapping, pen: Pen) -> list[str]:
    """Return lines on where the time between the fits of a process went; [] where little did."""
    process = run.get("process")
    if not process:
        return []
    spent = sorted(process["between_s"].items(), key=lambda part: -part[1])
    parts = ", ".join(f"{name} {duration(seconds)}" for name, seconds in spent)
    text = (
        f"From the first of {process['fits']:,} fits of this script to the last: "
        f"{duration(process['wall_s'])}; fits {duration(process['fits_s'])}, between them {parts}."
    )
    return ["", *pen.wrap(text)]


def _account(run: Mapping, pen: Pen, who: str) -> list[str]:
    """Return a table of the training thread's time by category; [] if it is not known.

    Args:
        who: the worker whose thread it is, as it is printed; "" in a run of one process.
    """
    spent, wall = run["time_s"], run["wall_s"]
    if not spent or not wall:
        return []
    whose = f" of {who}" if who else ""
    head = f"Where the time of the training thread{whose} went ({duration(wall)})"
    return ["", *account_lines(head, spent, wall, pen)]


def _gpu_lines(run: Mapping, pen: Pen, detail: Detail) -> list[str]:
    """Return a line for each group of alike GPUs, and the account of time of the first in use (`--all`: of each)."""
    named = named_gpus(run)  # by findings
    groups: list[list[Mapping]] = []
    for gpu in run["gpus"]:
        is_named = gpu["index"] in named
        alike = (group for group in groups if (group[0]["index"] in named) == is_named and _are_alike(group[0], gpu))
        group = None if detail.all else next(alike, None)  # in full, each GPU has a line
        if group is None:
            groups.append([gpu])
        else:
            group.append(gpu)
    used = [group for group in groups if group[0]["used_by_framework"]]
    if len(used) > 1 and not detail.all:  # first those that findings name, then the least busy
        used.sort(key=lambda group: (group[0]["index"] not in named, _mean(group, "utilization_pct") or 0.0))
    shown = [*used, *(group for group in groups if not group[0]["used_by_framework"])]
    lines = []
    for group in shown if detail.all else shown[:_MAX_GROUPS]:
        lines += pen.wrap(_gpu_line(group), "  ", "")
    if len(shown) > _MAX_GROUPS and not detail.all:
        more = sum(len(group) for group in shown[_MAX_GROUPS:])
        lines.append(f"… and {more:,} more GPUs (--all)")
    for group in used if detail.all else used[:1]:
        lines += _gpu_account(run, group[0]["index"], pen)
    return lines if not lines or (run["time_s"] and run["wall_s"]) else ["", *lines]


def _gpu_account(run: Mapping, index: int, pen: Pen) -> list[str]:
    """Return the estimated time of a GPU by category."""
    account = run.get("gpu_time_est", {}).get(str(index)) or {}
    seconds = {key: value for key, value in account.items() if key in GPU_LOOK and value}
    basis = {"windows": "profiler windows", "nvml": "NVML"}.get(str(account.get("basis")), "")
    title = f"Where the time of gpu{index} went (estimated from {basis})"
    return account_lines(title, seconds, sum(seconds.values()), pen, gpu=True)


def _are_alike(gpu: Mapping, other_gpu: Mapping) -> bool:
    """Return True if two GPUs differ in nothing worth a line of their own: name, use, utilization, memory."""
    if any(gpu.get(name) != other_gpu.get(name) for name in ("name", "used_by_framework")):
        return False
    use = [gpu["utilization_pct"]["mean"] for gpu in (gpu, other_gpu)]
    memory = [gpu["memory_used_bytes"]["max"] for gpu in (gpu, other_gpu)]
    total = gpu.get("memory_total_bytes") or max(filter(None, memory), default=1)
    return _are_near(use, _ALIKE_PCT) and _are_near(memory, _ALIKE_BYTES * total)


def _are_near(values: Sequence[float | None], most: float) -> bool:
    """Return True if measured values differ by at most `most`, or none was measured; False if only some were."""
    measured = [value for value in values if value is not None]
    return not measured or (len(measured) == len(values) and max(measured) - min(measured) <= most)


def _mean(kind: Sequence[Mapping], name: str) -> float | None:
    """Return the mean over GPUs of a column's means; None if it was not measured."""
    means = [gpu[name]["mean"] for gpu in kind if gpu[name]["mean"] is not None]
    return sum(means) / len(means) if means else None


def _gpu_line(alike_gpus: Sequence[Mapping]) -> str:
    """Return one line about alike GPUs: their name, utilization, MFU, power and memory."""
    gpu = alike_gpus[0]
    alike = f" ({len(alike_gpus):,} alike)" if alike_gpus[1:] else ""
    text = f"{gpu_names([member['index'] for member in alike_gpus])} {gpu.get('name') or 'GPU'}{alike}:"
    if not gpu["used_by_framework"]:
        text += " not used by the framework;"
    active_pct = _mean(alike_gpus, "utilization_pct")
    if active_pct is None:
        text += " utilization not measured"
    else:
        text += f" GPU active {percent(active_pct)} (avg)"
        text += f"; {gpu['utilization_note']}" if gpu["utilization_note"] else ""
    mfu = [member["mfu_pct"] for member in alike_gpus if member["mfu_pct"] is not None]
    if mfu:
        text += f" · MFU {percent(sum(mfu) / len(mfu))} of {gpu['peak']['text']}"
    if gpu["power_mw"]["mean"]:
        text += f" · {sum(member['power_mw']['mean'] or 0 for member in alike_gpus) / len(alike_gpus) / 1e3:,.0f} W"
        text += " of the whole board" if gpu.get("mig") else ""
    peaks = [member["memory_used_bytes"]["max"] for member in alike_gpus]
    total = gpu.get("memory_total_bytes")
    process_bytes = [member["memory_process_bytes"]["max"] for member in alike_gpus]
    if gpu.get("unified_memory") and None not in process_bytes:
        text += f" · this process up to {max(process_bytes) / 2**30:.1f} GiB of the machine's memory"
    elif None not in peaks:
        text += f" · peak VRAM {max(peaks) / 2**30:.1f}" + (f" of {total / 2**30:.0f} GiB" if total else " GiB")
    return text


def _overhead(run: Mapping, pen: Pen) -> list[str]:
    """Return a line on what recording cost: shares of the run, or seconds; [] if it is not known."""
    cost, wall_s = run.get("overhead") or {}, run["wall_s"]
    windows_s = cost.get("windows_s") or 0.0
    parts = []

    def of_run(seconds: float) -> str:
        return f"{percent(100 * seconds / wall_s)} of the run" if wall_s else duration(seconds)

    own_us = cost.get("callback_us_per_step")
    if own_us is not None and windows_s:
        # To begin and end windows takes the training thread, too: no cost of each step.
        thread_share = of_run(own_us * run["steps"] / 1e6)
        parts.append(f"training thread {thread_share}, beginning and ending profiler windows included")
    elif own_us is not None:
        parts.append(f"{precise(own_us / 1e6)} a step on the training thread")
    if cost.get("sampler_cpu_pct") is not None:
        parts.append(f"sampler {percent(cost['sampler_cpu_pct'])} of a core")
    if windows_s:
        parts.append(f"profiler windows {duration(windows_s)}, {of_run(windows_s)}")
    if not parts:
        return []
    return [pen.dim(line) for line in pen.wrap(f"Recorder overhead: {', '.join(parts)}.")]


# Fewer steps say little about how fast a run is; runs closer than this are about as fast.
FEW_STEPS, ALIKE = 20, 1.05
_TEXTS = {"run": 14, "causes": 14}  # columns of the comparison, with the room for a short one


def namesake_labels(runs: Sequence[Mapping]) -> dict[str, str]:
    """Return labels for runs that share a name: id -> `rank 1`, `fit 3`, or local start time.

    They come from a script run again with the same log directory, or fitting several times.
    """
    runs_by_name = defaultdict(list)
    for run in runs:
        runs_by_name[run["run"]].append(run)
    label_of_run: dict[str, str] = {}
    for namesakes in runs_by_name.values():
        label_candidates = zip(*map(_possible_labels, namesakes), strict=True) if len(namesakes) > 1 else ()
        # The first kind of label that distinguishes all of them.
        labels = next((way for way in label_candidates if len({*way}) == len(namesakes) and None not in way), ())
        label_of_run.update(zip((run["id"] for run in namesakes), labels, strict=False))
    return label_of_run


def _possible_labels(run: Mapping) -> tuple[str | None, ...]:
    """Return labels that may distinguish a run from others of its name, best first: rank, fit, start.

    None = it has none.
    """
    fit, rank = run.get("fit_index"), run.get("rank")
    began = datetime.fromtimestamp((run["start_ns"] or 0) / 1e9)
    return (
        None if rank is None else f"rank {rank}",
        None if fit is None else f"fit {fit + 1}",
        f"{began:%m-%d %H:%M:%S}",
        f"{began:%m-%d %H:%M} {run['id'].rpartition('-')[2]}",  # and its process id
    )


def headline(comparison: Mapping, labels: Mapping[str, str] | None = None) -> str:
    """Return the comparison in a sentence: the fastest run, and which causes went away.

    "" where speeds cannot be compared: workers of one training, or batch sizes that only some runs know.
    """
    rows = comparison["runs"]
    comparable = [row for row in rows if row["speed"] and row["steps"] >= FEW_STEPS]
    together = len({row["session"] for row in rows}) < len(rows)
    if len(comparable) < 2 or together or _speed_unit(comparable) is None:
        return ""
    names = _names(comparison, labels)
    fastest, second = sorted(comparable, key=lambda row: -row["speed"])[:2]
    first = comparable[0]
    compared = second if fastest is first else first
    factor = fastest["speed"] / compared["speed"]
    slowest = min(row["speed"] for row in comparable)
    if fastest["speed"] < ALIKE * slowest:
        return f"{'both' if len(comparable) == 2 else 'all'} are about as fast"
    sentence = f"{names[fastest['id']]} is the fast{'er' if len(comparable) == 2 else 'est'}, "
    other = names[compared["id"]]
    sentence += f"{other} about as fast" if factor < ALIKE else f"{times(factor)} as fast as {other}"
    return f"{sentence}; without {_titles(fastest['gone'])}" if fastest["gone"] else sentence


def _speed_unit(rows: Sequence[Mapping]) -> str | None:
    """Return the unit of the speeds, a sample or a step; None if runs differ."""
    units = {"step" if row["batch_size"] is None else "sample" for row in rows}
    return units.pop() if len(units) == 1 else None


def _names(comparison: Mapping, labels: Mapping[str, str] | None) -> dict[str, str]:
    """Return what each run is called: by its label alone where it has no folder of its own."""
    names = {}
    for row in comparison["runs"]:
        folder, label = "" if row["run"] == "." else row["run"], (labels or {}).get(row["id"], "")
        names[row["id"]] = f"{folder} {label}".strip() or "log directory"
    return names


def _titles(causes: Sequence[str]) -> str:
    """Return the titles of causes, with commas."""
    return ", ".join(map(title_of, causes))


def comparison_table(
    comparison: Mapping, width: int, labels: Mapping[str, str] | None = None, most: int | None = None
) -> list[str]:
    """Return the comparison as lines of at most `width` columns; columns that do not fit are left out."""
    names_of = _names(comparison, labels)
    picked = _costliest(comparison["runs"], most)
    rows = [{"run": names_of[row["id"]], **_cells(row, row["id"] == comparison["baseline"])} for row in picked]
    columns = {name: [cells[name] for cells in rows] for name in rows[0]}
    lines = table(columns, width, _TEXTS, ("ms/sample", "stalls", "lost", "GPU", "ms/step"))
    more = len(comparison["runs"]) - len(picked)
    if more:
        lines.append(f"… and {more:,} more runs that lost less (--all lists them)")
    lines += textwrap.wrap("; ".join(_column_notes(lines[0].split(), picked)), width)
    for row in picked if not more else ():
        changes = "; ".join(filter(None, _changes(row)))
        if changes:
            lines.append(cut(f"{names_of[row['id']]}: {changes}", width))
    return lines


def _column_notes(names: Container[str], rows: Sequence[Mapping]) -> Iterator[str]:
    """Yield a note on each column that needs one: what it is a mean or a share of."""
    if "speed" in names:
        basis = _speed_unit([row for row in rows if row["speed"]])
        per = f"per {basis}" if basis else "per sample, or per step where a batch size is unknown"
        yield f"speed: times as fast as the first, {per}, without compilation"
    shown = [name for name in ("ms/step", "ms/sample") if name in names]
    if shown:
        yield f"{' and '.join(shown)}: {'means' if shown[1:] else 'the mean'} over all steps"
    if "GPU" in names:
        yield f"GPU: mean share of time in which {GPU_TIME['gpu_active'].explanation}"


def _changes(row: Mapping) -> Iterator[str]:
    """Yield the state of a run that is not finished, and the causes it lost and got."""
    yield UNFINISHED.get(row["status"], "")
    if row["gone"]:
        yield f"without {_titles(row['gone'])}"
    if row["new"]:
        yield f"new: {_titles(row['new'])}"


def _costliest(rows: Sequence[Mapping], most: int | None) -> Sequence[Mapping]:
    """Return the first row and the costliest others, at most `most` together."""
    if most is None or len(rows) <= most:
        return rows
    ordered = sorted(rows[1:], key=lambda row: -row["lost_s"])
    return [rows[0], *ordered[: most - 1]]


def _cells(row: Mapping, baseline: bool) -> dict[str, str]:
    """Return a run's cells of the comparison by column; "" = not known.

    Args:
        baseline: it is the run that the others are compared with.
    """

    def number(value: float | None, shape: str) -> str:
        return "" if value is None else format(value, shape)

    times = row["time_pct"]
    stalls = [times[name] for name in ("validation", "callbacks") if name in times]
    return {
        "speed": "1.00×" if baseline else number(row["speed"], ".2f") + "×" * bool(row["speed"]),
        "lost": duration(row["lost_s"]) if row["lost_s"] else "",
        "ms/step": number(row["ms_per_step"], ".3g"),
        "ms/sample": number(row["ms_per_sample"], ".3g"),
        "GPU": "" if row["gpu_active_pct"] is None else percent(row["gpu_active_pct"]),
        "input": percent(times["input_wait"]) if "input_wait" in times else "",
        "stalls": percent(sum(stalls)) if stalls else "",
        "causes": _titles(row["causes"]) or ("not readable" if row["unreadable"] else "none"),
    }
