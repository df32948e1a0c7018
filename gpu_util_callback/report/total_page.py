"""The total of many runs as one HTML page that opens offline."""

import html
import json
from collections.abc import Mapping, Sequence

from gpu_util_callback._version import __version__
from gpu_util_callback.report.screen import tame
from gpu_util_callback.report.total import render

__all__ = ["page"]

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; base-uri 'none'"
)
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
        logdirs=html.escape(tame(", ".join(logdirs))),
        text=html.escape(render(report, 100, color=False, unicode=True)),
        heads="".join(map(_head, heads)),
        version=__version__,
        data=data.replace("<", "\\u003c"),
        script=_SCRIPT,
    )


def _head(head: Mapping) -> str:
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
    causes = [one["cause"] for one in run["lost"]] + run["unknown_cost"]
    said = (f"{cell['t']} {cell.get('s', '')}" for cell in cells if isinstance(cell["v"], str))
    words = [*said, *causes, run["logdir"]]
    return {"cells": cells, "text": " ".join(words).lower()}


def _cell(text: str, small: str = "") -> dict:
    shown = tame(str(text))
    return {"v": shown, "t": shown} | ({"s": tame(small)} if small else {})


def _number(value: float | None, unit: str = "", small: str = "", digits: int = 2) -> dict:
    if value is None:
        return {"v": None, "t": ""}
    cell = {"v": value, "t": f"{value:,.{digits}f}{unit}"}
    return cell | ({"s": tame(small)} if small else {})
