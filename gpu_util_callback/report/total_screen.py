"""The total of many runs in a terminal, and the sentences that the tab says as well."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from gpu_util_callback.diagnosis.report_types import Part, TotalCost, TotalSums
from gpu_util_callback.report.screen import UNFINISHED, Pen, stacked_bar, table, without_escapes
from gpu_util_callback.words import GPU_TIME, counted, duration, percent, what_to_do

# Part of the hours -> what it is called, its colour, and the letter of the bar without colours.
PARTS: tuple[tuple[Part, str, str, str], ...] = (
    ("productive", "training steps", "34", "#"),
    ("lost", "lost to causes that were found", "31", "-"),
    ("other", "outside steps, unexplained", "36", "."),
    ("not_judged", "not checked", "90", "?"),
)
_NAMED = 3  # of the runs that one fix helps
CHECKPOINTS = "Save checkpoints more often: keras.callbacks.BackupAndRestore(..., save_freq=500)"


def amount(hours: float) -> str:
    """Format hours: `1,234 h`, `12.3 h`; less than ten as a duration."""
    if hours >= 9.95:
        return f"{hours:,.0f} h" if hours >= 99.5 else f"{hours:.1f} h"
    return duration(3600 * hours) if hours > 0 else "0 s"


def render(report: Mapping, width: int = 80, color: bool = False, unicode: bool = True, top: int = 10) -> str:
    """Render a `total` as text.

    Args:
        top: how many runs to list.
        report: a `total`; width: columns to use.
    """
    pen, report = Pen(width, color, unicode), without_escapes(report)
    unit = report["unit"]
    word = "GPU-hours" if unit == "gpu_hours" else "hours of training"
    hours = report[unit]
    lines = [pen.bold(line) for line in pen.wrap(headline(report))]
    if hours["total"]:
        parts = [(label, hours[key], *look) for key, label, *look in PARTS if hours[key]]
        lines += ["", pen.bold(f"Where the {word} went"), *stacked_bar(parts, hours["total"], pen, amount)]
    lines += _causes(report, pen, unit)
    lines += _runs(report, pen, unit, top)
    dimmed = [line for note in notes(report) for line in pen.wrap(note)]
    lines += ["", *map(pen.dim, dimmed)] if dimmed else []
    return pen.finish(lines)


def headline(report: Mapping) -> str:
    """Return where the time of all runs went, in one sentence."""
    unit = report["unit"]
    hours = report[unit]
    all_hours = hours["total"]
    text = f"{counted(report['trainings'], 'training')}, {amount(all_hours)} of "
    text += "GPU time" if unit == "gpu_hours" else "training (no run held a GPU)"
    if all_hours and hours["lost"]:
        saves = sum(cause[f"saves_{unit}"] for cause in report["causes"])
        text += f": {percent(100 * hours['lost'] / all_hours)} lost"
        largest = report["causes"][0]
        text += ", most of it to " if len(report["causes"]) > 1 else " to "
        text += largest["title"]
        text += f"; fixing all of it saves up to {amount(saves)}" if saves else "; no fix for it is known"
    elif all_hours and not hours["not_judged"]:
        text += ": no cause of a loss was found"
    return f"{text}."


def _causes(report: Mapping, pen: Pen, unit: str) -> list[str]:
    """Return a table of causes by what they lost, and a line on those of unknown cost."""
    whole = report[unit]["total"]
    costly = [cause for cause in report["causes"] if whole and cause[unit]]
    columns = {
        "cause": [cause["title"] for cause in costly],
        "lost": [amount(cause[unit]) for cause in costly],
        "of all": [percent(100 * cause[unit] / whole) for cause in costly],
        "saves up to": [amount(cause[f"saves_{unit}"]) if cause[f"saves_{unit}"] else "–" for cause in costly],
        "trainings": [f"{cause['trainings']:,}" for cause in costly],
    }
    lines = []
    if costly:
        head, *rows = (f"  {line}" for line in table(columns, pen.width - 2, {"cause": 8}))
        lines = ["", pen.bold("Lost to"), pen.dim(head), *rows]
    if report["unknown_cost"]:
        causes = ", ".join(f"{cause['title']} ({cause['trainings']:,})" for cause in report["unknown_cost"])
        lines += pen.wrap(f"Found too, at a cost that is not known: {causes} trainings.", "  ")
    return lines


def _runs(report: Mapping, pen: Pen, unit: str, top: int) -> list[str]:
    """Return the fixes that save most, as numbered entries: runs that one fix helps are one entry.

    Args:
        unit: "gpu_hours" or "hours".
        top: number of entries.
    """
    saves = f"saves_{unit}"
    by_fix: dict[tuple[str, str], list[Mapping]] = {}
    for run in report["runs"]:
        if run[saves]:
            by_fix.setdefault((run["top"]["cause"], fix_of(run)), []).append(run)
    if not by_fix or not top:
        return []
    lines = ["", pen.bold("Fix first")]
    several_logdirs = len({run["logdir"] for run in report["runs"]}) > 1
    namesakes = Counter(name_of(run, several_logdirs) for run in report["runs"])
    entries = sorted(by_fix.items(), key=lambda entry: -sum(run[saves] for run in entry[1]))
    for place, ((_, fix), runs) in enumerate(entries[:top], 1):
        names = [
            name if namesakes[name] == 1 else f"{name} {datetime.fromtimestamp(run['start_ns'] / 1e9):%m-%d %H:%M:%S}"
            for run in runs
            for name in [name_of(run, several_logdirs)]
        ]
        name = names[0] if len(runs) == 1 else counted(len(runs), "run")
        lines += pen.wrap(f"{place}. {name}: {_savings(runs, unit)}", "     ", "  ")
        detail_lines = [f"{runs[0]['top']['title']}. {fix}"]
        if len(runs) > 1:
            more = [f"{len(runs) - _NAMED:,} more"] if len(runs) > _NAMED else []
            detail_lines.append(", ".join(names[:_NAMED] + more))
        lines += [pen.dim(line) for detail in detail_lines for line in pen.wrap(detail, "     ", "     ")]
    more_runs = sum(len(runs) for _, runs in entries[top:])
    if more_runs:
        lines.append(f"  … and {more_runs:,} more (--top N, --html and --json have them)")
    return lines


def _savings(runs: Sequence[Mapping], unit: str) -> str:
    """Return what one fix of these runs saves, and how often they were restarted, or how a single one ended."""
    saved, whole = sum(run[f"saves_{unit}"] for run in runs), sum(run[unit]["total"] for run in runs)
    text = f"saves up to {amount(saved)} of {amount(whole)}"
    restarts, status = sum(len(run["restarts"]) for run in runs), runs[0]["status"]
    if restarts:
        return f"{text}; {counted(restarts, 'restart')}"
    return f"{text}; {UNFINISHED[status]}" if len(runs) == 1 and status in UNFINISHED else text


def fix_of(run: Mapping) -> str:
    """Return what to do about the cause that costs a run most."""
    advice = run["top"]["advice"]
    return what_to_do(advice) if advice else CHECKPOINTS


def name_of(run: Mapping, several: bool) -> str:
    """Return a run's name, with its log directory's where there are several."""
    folder = run["logdir"].rstrip("/").replace("\\", "/").rpartition("/")[2] or run["logdir"]
    if run["run"] == ".":
        return folder
    return f"{folder}/{run['run']}" if several else run["run"]


def cost_of(report: TotalSums, per_gpu_hour: float) -> TotalCost:
    """Return what the GPU-hours cost: all, the lost ones, and those that fixing saves at most."""
    hours = report["gpu_hours"]
    saves = sum(cause["saves_gpu_hours"] for cause in report["causes"])
    total, lost, saves = (round(per_gpu_hour * amount, 6) for amount in (hours["total"], hours["lost"], saves))
    return {"per_gpu_hour": per_gpu_hour, "total": total, "lost": lost, "saves": saves}


def notes(report: Mapping) -> list[str]:
    """Return what else is known of all runs, a sentence or two each.

    Price, utilization, restarts, runs without a GPU.
    """
    notes = []
    unit = report["unit"]
    cost = report.get("cost")
    if cost:
        note = f"At {cost['per_gpu_hour']:,.2f} an hour of a GPU: {cost['total']:,.2f} in all, {cost['lost']:,.2f} lost"
        notes.append(f"{note}; fixing all of it saves up to {cost['saves']:,.2f}." if cost["saves"] else f"{note}.")
    active, again = report["gpu_active"], report["restarts"]
    if active["gpu_hours"] is not None and active["of_gpu_hours"]:
        share = percent(100 * active["gpu_hours"] / active["of_gpu_hours"])
        notes.append(f"The GPUs were active {share} of the time: {GPU_TIME['gpu_active'].explanation}.")
    if again["restarts"]:
        note = (
            f"{counted(again['trainings'], 'training')} continued after "
            f"{counted(again['restarts'], 'restart')}: "
            f"{again['steps_done_again']:,} steps were done again."
        )
        if again["unknown"]:
            note += f" Of {again['unknown']:,} it is not known how many."
        notes.append(note)
    bare = report["without_gpu"]
    if unit == "gpu_hours" and bare["recordings"]:
        lost = sum(run["hours"]["lost"] for run in report["runs"] if not run["gpus"])
        notes.append(
            f"{counted(bare['recordings'], 'recording')} held no GPU and {'is' if bare['recordings'] == 1 else 'are'} "
            f"not counted: {amount(bare['hours'])} of training, {amount(lost)} of it lost."
        )
    older = report["read"]["older_rules"]
    if older:
        notes.append(
            f"{counted(older, 'recording')} {'was' if older == 1 else 'were'} judged by other "
            "versions of the rules; gpu-util total --rejudge judges them by the current ones."
        )
    return notes
