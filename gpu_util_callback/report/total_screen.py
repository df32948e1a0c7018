"""The total of many runs: in a terminal, and as one HTML page that opens offline."""

import html
import json
from collections.abc import Mapping, Sequence

from gpu_util_callback._version import __version__
from gpu_util_callback.diagnosis.report_types import Part, TotalCost, TotalSums
from gpu_util_callback.diagnosis.total_time import DIMENSIONS
from gpu_util_callback.report.screen import UNFINISHED, Pen, cut, strip_control
from gpu_util_callback.words import duration, percent, what_to_do

# Part of the hours -> what it is called, and its colour.
PARTS: tuple[tuple[Part, str, str], ...] = (
    ("productive", "training steps", "34"),
    ("lost", "lost to causes that were found", "31"),
    ("other", "outside steps, unexplained", "36"),
    ("not_judged", "not checked", "90"),
)
_OF = {"script": "By script", "user": "By user", "host": "By host", "gpu_model": "By GPU model", "week": "By week"}
_SHOWN = 5  # values of a dimension; weeks: the newest ones
_WEEKS = 8
_CHECKPOINTS = "Save checkpoints more often: keras.callbacks.BackupAndRestore(..., save_freq=500)"


def amount(hours: float) -> str:
    """Format hours: `1,234 h`, `12.3 h`; less than ten as a duration."""
    if hours >= 9.95:
        return f"{hours:,.0f} h" if hours >= 99.5 else f"{hours:.1f} h"
    return duration(3600 * hours) if hours > 0 else "0 s"


def render(report: Mapping, width: int = 80, color: bool = False, unicode: bool = True, top: int = 10) -> str:
    """Render a `total` as text.

    Args:
        top: how many runs to list.
    """
    pen = Pen(width, color, unicode)
    unit = report["unit"]
    word = "GPU-hours" if unit == "gpu_hours" else "hours of training"
    hours = report[unit]
    lines = [pen.bold(line) for line in pen.wrap(headline(report))]
    lines += _parts(hours, pen, word)
    lines += _causes(report, pen, unit)
    lines += _runs(report, pen, unit, top)
    for name in DIMENSIONS:
        lines += _dimension(name, report["by"][name], pen, unit)
    dimmed = [line for note in notes(report) for line in pen.wrap(note)]
    lines += ["", *map(pen.dim, dimmed)] if dimmed else []
    return pen.finish(lines)


def _count(number: int, singular: str) -> str:
    return f"{number:,} {singular}{'' if number == 1 else 's'}"


def headline(report: Mapping) -> str:
    """Return where the time went in one sentence."""
    unit = report["unit"]
    hours = report[unit]
    whole = hours["total"]
    text = f"{_count(report['trainings'], 'training')}, {amount(whole)} of "
    text += "GPU time" if unit == "gpu_hours" else "training (no run held a GPU)"
    if whole and hours["lost"]:
        saves = sum(cause[f"saves_{unit}"] for cause in report["causes"])
        text += f": {percent(100 * hours['lost'] / whole)} lost"
        largest = report["causes"][0]
        text += ", most of it to " if len(report["causes"]) > 1 else " to "
        text += f"{largest['title']}; fixing all of it saves up to {amount(saves)}"
    elif whole and not hours["not_judged"]:
        text += ": no cause of a loss was found"
    return f"{text}."


def _parts(hours: Mapping[str, float], pen: Pen, word: str) -> list[str]:
    whole = hours["total"]
    if not whole:
        return []
    lines = ["", pen.bold(f"Where the {word} went")]
    size = max(len(label) for _, label, _ in PARTS)
    cells = max(8, min(30, pen.width - size - 24))
    for key, label, code in PARTS:
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
    first_width = pen.width - sum(size + 2 for size in sizes[1:]) - 2
    sizes[0] = max(8, min(sizes[0], first_width))

    def line(cells: Sequence[str]) -> str:
        shown = [cut(cells[0], sizes[0]).ljust(sizes[0])]
        shown += [cell.rjust(size) for cell, size in zip(cells[1:], sizes[1:], strict=True)]
        return "  " + "  ".join(shown).rstrip()

    return [pen.dim(line(heads)), *map(line, rows)]


def _causes(report: Mapping, pen: Pen, unit: str) -> list[str]:
    whole = report[unit]["total"]
    rows = [
        (
            cause["title"],
            cause["cause"],
            amount(cause[unit]),
            percent(100 * cause[unit] / whole),
            amount(cause[f"saves_{unit}"]),
            f"{cause['trainings']:,}",
        )
        for cause in report["causes"]
        if whole and cause[unit]
    ]
    lines = []
    if rows:
        lines = ["", pen.bold("Lost to")]
        heads = ("", "cause", "lost", "of all", "saves up to", "trainings")
        lines += _table(heads, rows, pen)
    if report["unknown_cost"]:
        causes = ", ".join(f"{cause['title']} ({cause['trainings']:,})" for cause in report["unknown_cost"])
        lines += pen.wrap(f"Found too, at a cost that is not known: {causes} trainings.", "  ")
    return lines


def _runs(report: Mapping, pen: Pen, unit: str, top: int) -> list[str]:
    worth = [run for run in report["runs"] if run[f"saves_{unit}"]]
    if not worth or not top:
        return []
    lines = ["", pen.bold("Fix first")]
    several = len({run["logdir"] for run in report["runs"]}) > 1
    first_places: dict[str, int] = {}  # a fix is written out once
    for place, run in enumerate(worth[:top], 1):
        name = _name(run, several)
        again = len(run["restarts"])
        about = [f"saves up to {amount(run[f'saves_{unit}'])} of {amount(run[unit]['total'])}"]
        about += [_count(again, "restart")] if again else []
        about += [UNFINISHED[run["status"]]] if run["status"] in UNFINISHED and not again else []
        cause = run["top"]
        lines += pen.wrap(f"{place}. {name}: {'; '.join(about)}", "     ", "  ")
        fix = what_to_do(cause["advice"]) if cause["advice"] else _CHECKPOINTS
        first = first_places.setdefault(fix, place)
        text = f"{cause['title']}. {fix if first == place else f'As in {first}.'}"
        lines += [pen.dim(line) for line in pen.wrap(text, "     ", "     ")]
    if len(worth) > top:
        lines.append(f"  … and {len(worth) - top:,} more (--top N, --html and --json have them)")
    return lines


def _name(run: Mapping, several: bool) -> str:
    home = run["logdir"].rstrip("/").replace("\\", "/").rpartition("/")[2] or run["logdir"]
    if run["run"] == ".":
        return home
    return f"{home}/{run['run']}" if several else run["run"]


def _dimension(name: str, groups: Sequence[Mapping], pen: Pen, unit: str) -> list[str]:
    known_groups = [group for group in groups if group["name"] != "unknown"]
    if len(groups) < 2 or not known_groups:
        return []
    shown = groups[-_WEEKS:] if name == "week" else groups[:_SHOWN]
    rows = [
        (
            group["name"],
            amount(group[unit]["total"]),
            percent(100 * group[unit]["lost"] / group[unit]["total"]) if group[unit]["total"] else "",
            group["top_cause"] or "",
            f"{group['trainings']:,}",
        )
        for group in shown
    ]
    lines = ["", pen.bold(_OF[name])]
    lines += _table(("", "in all", "lost", "most to", "trainings"), rows, pen)
    if len(groups) > len(shown):
        more = len(groups) - len(shown)
        older = "earlier ones" if name == "week" else "more"
        lines.append(f"  … and {more:,} {older}")
    return lines


def cost_of(report: TotalSums, per_gpu_hour: float) -> TotalCost:
    """Return what the GPU-hours cost: all, the lost ones, and those that fixing saves at most."""
    hours = report["gpu_hours"]
    saves = sum(cause["saves_gpu_hours"] for cause in report["causes"])
    total, lost, saves = (round(per_gpu_hour * amount, 6) for amount in (hours["total"], hours["lost"], saves))
    return {"per_gpu_hour": per_gpu_hour, "total": total, "lost": lost, "saves": saves}


def notes(report: Mapping) -> list[str]:
    """Return what else is known of all runs, a sentence or two each."""
    notes = []
    unit = report["unit"]
    cost = report.get("cost")
    if cost:
        notes.append(
            f"At {cost['per_gpu_hour']:,.2f} an hour of a GPU: {cost['total']:,.2f} in all, "
            f"{cost['lost']:,.2f} lost; fixing all of it saves up to {cost['saves']:,.2f}."
        )
    active, again = report["kernel_active"], report["restarts"]
    if active["gpu_hours"] is not None and active["of_gpu_hours"]:
        share = percent(100 * active["gpu_hours"] / active["of_gpu_hours"])
        notes.append(f"A kernel ran in {share} of the GPU time (NVML; not every kernel fills a GPU).")
    if again["restarts"]:
        note = (
            f"{_count(again['trainings'], 'training')} continued after "
            f"{_count(again['restarts'], 'restart')}: "
            f"{again['steps_done_again']:,} steps were done again."
        )
        if again["unknown"]:
            note += f" Of {again['unknown']:,} it is not known how many."
        notes.append(note)
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
            "versions of the rules; gpu-util total --rejudge judges them by the current ones."
        )
    return notes


_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; base-uri 'none'"
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #777; --bar: #d33; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 1.5rem auto; max-width: 82rem;
  padding: 0 1rem; }
pre { overflow-x: auto; font-size: 13px; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid var(--line);
  vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid; }
td small { color: var(--dim); display: block; }
input { font: inherit; padding: .3rem .5rem; width: 24rem; max-width: 100%; margin: .5rem 0; }
"""
# Draws the part of the table that fits a screen or two: ten thousand rows stay quick.
_SCRIPT = """
const { rows, heads } = JSON.parse(document.getElementById("runs").textContent);
const body = document.querySelector("tbody"), more = document.getElementById("more");
const filter = document.getElementById("filter");
let by = heads.findIndex((head) => head.first), down = true, shown = 200;
function draw() {
  const words = filter.value.toLowerCase().split(/\\s+/).filter(Boolean);
  const found = rows.filter((row) => words.every((word) => row.text.includes(word)));
  found.sort((a, b) => {
    const x = a.cells[by], y = b.cells[by];
    const order = typeof x.v === "number" && typeof y.v === "number" ? x.v - y.v
      : String(x.v ?? "").localeCompare(String(y.v ?? ""));
    return down ? -order : order;
  });
  body.replaceChildren(...found.slice(0, shown).map((row) => {
    const line = document.createElement("tr");
    row.cells.forEach((cell, at) => {
      const place = line.insertCell();
      place.className = heads[at].number ? "n" : "";
      place.textContent = cell.t;
      if (cell.s) {
        const small = document.createElement("small");
        small.textContent = cell.s;
        place.append(small);
      }
    });
    return line;
  }));
  more.hidden = found.length <= shown;
  more.textContent = `${(found.length - shown).toLocaleString()} more`;
  document.getElementById("count").textContent =
    `${found.length.toLocaleString()} of ${rows.length.toLocaleString()} trainings`;
  document.querySelectorAll("th").forEach((head, at) => {
    head.setAttribute("aria-sort", at !== by ? "none" : down ? "descending" : "ascending");
  });
}
document.querySelectorAll("th button").forEach((button, at) => {
  button.onclick = () => { down = at === by ? !down : heads[at].number; by = at; draw(); };
});
filter.oninput = () => { shown = 200; draw(); };
more.onclick = () => { shown += 500; draw(); };
draw();
"""
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>GPU-hours</title>
<style>{style}</style>
</head>
<body>
<h1>Where the GPU-hours went</h1>
<p>{logdirs}</p>
<pre>{text}</pre>
<h2>All trainings</h2>
<p><label>Filter <input id="filter" type="search"
  placeholder="run, cause, script, user, host, status"></label> <span id="count"></span></p>
<table><thead><tr>{heads}</tr></thead><tbody></tbody></table>
<p><button id="more" hidden></button></p>
<p><small>gpu-util-callback {version}</small></p>
<script type="application/json" id="runs">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def page(report: Mapping, logdirs: Sequence[str]) -> str:
    """Return the page: the terminal's text, and a table of all trainings to sort and filter."""
    unit = report["unit"]
    word = "GPU-hours" if unit == "gpu_hours" else "hours"
    heads: list[dict] = [
        {"title": "training"},
        {"title": "status"},
        {"title": word, "number": True},
        {"title": "lost", "number": True},
        {"title": "saves up to", "number": True, "first": True},
        {"title": "top cause"},
        {"title": "speed", "number": True},
        {"title": "steps", "number": True},
        {"title": "script"},
        {"title": "user"},
        {"title": "host"},
    ]
    rows = [_row(run, unit) for run in report["runs"]]
    data = json.dumps({"heads": heads, "rows": rows}, separators=(",", ":"), allow_nan=False)
    return _PAGE.format(
        policy=_POLICY,
        style=_STYLE,
        logdirs=html.escape(strip_control(", ".join(logdirs))),
        text=html.escape(render(report, 100, color=False, unicode=True)),
        heads="".join(map(_table_head, heads)),
        version=__version__,
        data=data.replace("<", "\\u003c"),
        script=_SCRIPT,
    )


def _table_head(head: Mapping) -> str:
    of_numbers = " class=n" if head.get("number") else ""
    return f"<th{of_numbers}><button>{html.escape(head['title'])}</button></th>"


def _row(run: Mapping, unit: str) -> dict:
    top = run["top"] or {}
    since = run["since"] or {}
    restarts = len(run["restarts"])
    cells = [
        _cell(run["run"], f"{restarts} restart{'' if restarts == 1 else 's'}" if restarts else ""),
        _cell(run["status"]),
        _number(run[unit]["total"]),
        _number(run[unit]["lost"]),
        _number(run[f"saves_{unit}"]),
        _cell(top.get("cause") or "", top.get("title") or ""),
        _number(since.get("speed"), "×", f"than {since['run']}" if since else ""),
        _number(run["steps"], digits=0),
        _cell(run["script"] or ""),
        _cell(run["user"] or ""),
        _cell(", ".join(run["hosts"])),
    ]
    causes = [cause["cause"] for cause in run["lost"]] + run["unknown_cost"]
    texts = (f"{cell['t']} {cell.get('s', '')}" for cell in cells if isinstance(cell["v"], str))
    words = [*texts, *causes, run["logdir"]]
    return {"cells": cells, "text": " ".join(words).lower()}


def _cell(text: str, small: str = "") -> dict:
    shown = strip_control(str(text))
    return {"v": shown, "t": shown} | ({"s": strip_control(small)} if small else {})


def _number(value: float | None, unit: str = "", small: str = "", digits: int = 2) -> dict:
    if value is None:
        return {"v": None, "t": ""}
    cell = {"v": value, "t": f"{value:,.{digits}f}{unit}"}
    return cell | ({"s": strip_control(small)} if small else {})
