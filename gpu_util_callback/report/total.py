"""The total of many runs in a terminal."""

from collections.abc import Mapping, Sequence

from gpu_util_callback.diagnosis.total import DIMENSIONS
from gpu_util_callback.report.screen import Pen
from gpu_util_callback.words import duration, percent, what_to_do

__all__ = ["amount", "render"]

_PARTS = (
    ("productive", "training steps", "34"),
    ("lost", "lost to causes that were found", "31"),
    ("other", "around the steps, no cause found", "36"),
    ("not_judged", "not judged", "90"),
)
_OF = {"script": "By script", "user": "By user", "host": "By host", "gpu_model": "By GPU model",
       "week": "By week"}  # fmt: skip
_SHOWN = 5  # values of a dimension; weeks: the newest ones
_WEEKS = 8
_CHECKPOINTS = "Save checkpoints more often: keras.callbacks.BackupAndRestore(..., save_freq=500)"
_STATUS = {"live": "still running", "lost": "lost", "interrupted": "interrupted"}


def amount(hours: float) -> str:
    """Format hours: `1,234 h`, `12.3 h`; less than ten as a duration."""
    if hours >= 9.95:
        return f"{hours:,.0f} h" if hours >= 99.5 else f"{hours:.1f} h"
    return duration(3600 * hours) if hours > 0 else "0 s"


def render(
    report: Mapping, width: int = 80, color: bool = False, unicode: bool = True, top: int = 10
) -> str:
    """Render a `total` as text.

    Args:
        top: how many runs to list.
    """
    pen = Pen(width, color, unicode)
    unit = report["unit"]
    word = "GPU-hours" if unit == "gpu_hours" else "hours of training"
    hours = report[unit]
    lines = _head(report, pen, word)
    lines += _parts(hours, pen, word)
    lines += _causes(report, pen, unit)
    lines += _runs(report, pen, unit, top)
    for name in DIMENSIONS:
        lines += _dimension(name, report["by"][name], pen, unit)
    lines += _notes(report, pen, unit)
    return pen.finish(lines)


def _count(number: int, one: str) -> str:
    return f"{number:,} {one}{'' if number == 1 else 's'}"


def _head(report: Mapping, pen: Pen, word: str) -> list[str]:
    unit = report["unit"]
    hours = report[unit]
    whole = hours["total"]
    said = f"{_count(report['trainings'], 'training')}, {amount(whole)} of "
    said += "GPU time" if unit == "gpu_hours" else "training (no run held a GPU)"
    if whole and hours["lost"]:
        saves = sum(cause[f"saves_{unit}"] for cause in report["causes"])
        said += f": {percent(100 * hours['lost'] / whole)} lost"
        largest = report["causes"][0]
        said += f", most of it to {largest['cause']}" if len(report["causes"]) > 1 else (
            f" to {largest['cause']}"
        )  # fmt: skip
        said += f"; mending all saves up to {amount(saves)}"
    elif whole and not hours["not_judged"]:
        said += ": no cause of a loss was found"
    return [pen.bold(line) for line in pen.wrap(f"{said}.")]


def _parts(hours: Mapping[str, float], pen: Pen, word: str) -> list[str]:
    whole = hours["total"]
    if not whole:
        return []
    lines = ["", pen.bold(f"Where the {word} went")]
    size = max(len(label) for _, label, _ in _PARTS)
    cells = max(8, min(30, pen.width - size - 24))
    for key, label, code in _PARTS:
        if not hours[key]:
            continue
        share = hours[key] / whole
        filled = round(cells * share)
        bar = ("█" if pen.unicode else "#") * filled
        text = f"{amount(hours[key]):>11} {percent(100 * share):>6}"
        lines.append(f"  {label.ljust(size)} {text}  {pen.paint(bar, code)}")
    return lines


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], pen: Pen) -> list[str]:
    """Return a table; its first column takes the rest of the width, the others what they need."""
    sizes = [max(len(head), *(len(row[at]) for row in rows)) for at, head in enumerate(heads)]
    rest = pen.width - sum(size + 2 for size in sizes[1:]) - 2
    sizes[0] = max(8, min(sizes[0], rest))

    def line(cells: Sequence[str]) -> str:
        shown = [_cut(cells[0], sizes[0]).ljust(sizes[0])]
        shown += [cell.rjust(size) for cell, size in zip(cells[1:], sizes[1:], strict=True)]
        return "  " + "  ".join(shown).rstrip()

    return [pen.dim(line(heads)), *map(line, rows)]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(1, width - 1)]}…"


def _causes(report: Mapping, pen: Pen, unit: str) -> list[str]:
    whole = report[unit]["total"]
    rows = [
        (one["title"], one["cause"], amount(one[unit]), percent(100 * one[unit] / whole),
         amount(one[f"saves_{unit}"]), f"{one['trainings']:,}")
        for one in report["causes"] if whole and one[unit]
    ]  # fmt: skip
    lines = []
    if rows:
        lines = ["", pen.bold("Lost to")]
        heads = ("", "cause", "lost", "of all", "saves up to", "trainings")
        lines += _table(heads, rows, pen)
    if report["unknown_cost"]:
        said = ", ".join(f"{one['cause']} ({one['trainings']:,})" for one in report["unknown_cost"])
        lines += pen.wrap(f"Found too, at a cost that is not known: {said} trainings.", "  ")
    return lines


def _runs(report: Mapping, pen: Pen, unit: str, top: int) -> list[str]:
    worth = [run for run in report["runs"] if run[f"saves_{unit}"]]
    if not worth or not top:
        return []
    lines = ["", pen.bold("Mend first")]
    several = len({run["logdir"] for run in report["runs"]}) > 1
    known: dict[str, int] = {}  # a fix is written out once
    for place, run in enumerate(worth[:top], 1):
        name = _name(run, several)
        again = len(run["restarts"])
        about = [f"saves up to {amount(run[f'saves_{unit}'])} of {amount(run[unit]['total'])}"]
        about += [_count(again, "restart")] if again else []
        about += [_STATUS[run["status"]]] if run["status"] in _STATUS and not again else []
        cause = run["top"]
        lines += pen.wrap(f"{place}. {name}: {'; '.join(about)}", "     ", "  ")
        fix = what_to_do(cause["advice"]) if cause["advice"] else _CHECKPOINTS
        first = known.setdefault(fix, place)
        said = f"{cause['title']}. {fix if first == place else f'As in {first}.'}"
        lines += [pen.dim(line) for line in pen.wrap(said, "     ", "     ")]
    if len(worth) > top:
        lines.append(f"  … and {len(worth) - top:,} more (--top N, --html and --json have them)")
    return lines


def _name(run: Mapping, several: bool) -> str:
    home = run["logdir"].rstrip("/").replace("\\", "/").rpartition("/")[2] or run["logdir"]
    if run["run"] == ".":
        return home
    return f"{home}/{run['run']}" if several else run["run"]


def _dimension(name: str, groups: Sequence[Mapping], pen: Pen, unit: str) -> list[str]:
    known = [group for group in groups if group["name"] != "unknown"]
    if len(groups) < 2 or not known:
        return []
    shown = groups[-_WEEKS:] if name == "week" else groups[:_SHOWN]
    rows = [
        (one["name"], amount(one[unit]["total"]),
         percent(100 * one[unit]["lost"] / one[unit]["total"]) if one[unit]["total"] else "",
         one["top_cause"] or "", f"{one['trainings']:,}")
        for one in shown
    ]  # fmt: skip
    lines = ["", pen.bold(_OF[name])]
    lines += _table(("", "in all", "lost", "most to", "trainings"), rows, pen)
    if len(groups) > len(shown):
        rest = len(groups) - len(shown)
        older = "earlier ones" if name == "week" else "more"
        lines.append(f"  … and {rest:,} {older}")
    return lines


def _notes(report: Mapping, pen: Pen, unit: str) -> list[str]:
    notes = []
    active, again = report["kernel_active"], report["restarts"]
    if active["gpu_hours"] is not None and active["of_gpu_hours"]:
        share = percent(100 * active["gpu_hours"] / active["of_gpu_hours"])
        notes.append(
            f"A kernel ran in {share} of the GPU time (NVML; not every kernel fills a GPU)."
        )
    if again["restarts"]:
        said = (
            f"{_count(again['trainings'], 'training')} continued after "
            f"{_count(again['restarts'], 'restart')}: "
            f"{again['steps_done_again']:,} steps were done again."
        )
        if again["unknown"]:
            said += f" Of {again['unknown']:,} it is not known how many."
        notes.append(said)
    bare = report["without_gpu"]
    if unit == "gpu_hours" and bare["recordings"]:
        notes.append(
            f"{_count(bare['recordings'], 'recording')} held no GPU and is not counted: "
            f"{amount(bare['hours'])} of training."
            if bare["recordings"] == 1
            else f"{bare['recordings']:,} recordings held no GPU and are not counted: "
            f"{amount(bare['hours'])} of training."
        )
    older = report["read"]["older_rules"]
    if older:
        notes.append(
            f"{_count(older, 'recording')} {'was' if older == 1 else 'were'} judged by other "
            "versions of the rules; --rejudge judges them by the current ones."
        )
    lines = [line for note in notes for line in pen.wrap(note)]
    return ["", *map(pen.dim, lines)] if lines else []
