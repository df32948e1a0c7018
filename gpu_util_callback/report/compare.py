"""Several runs in a terminal: a table, and each run in brief."""

import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from gpu_util_callback.words import duration, percent, times

__all__ = ["comparison_table", "headline", "told_apart"]

# Fewer steps say little about how fast a run is; runs closer than this are about as fast.
FEW_STEPS, ALIKE = 20, 1.05
_UNFINISHED = {"live": "still running", "lost": "lost", "interrupted": "interrupted"}
_COLUMNS = ("run", "speed", "lost", "ms/step", "ms/sample", "GPU", "input", "stalls", "causes")


def told_apart(runs: Sequence[Mapping]) -> dict[str, str]:
    """Return labels for runs that share a name: id -> `rank 1`, `fit 3`, or local start time.

    They come from a script run again with the same log directory, or fitting several times.
    """
    named = defaultdict(list)
    for run in runs:
        named[run["run"]].append(run)
    apart: dict[str, str] = {}
    for same in named.values():
        ways = zip(*map(_ways, same), strict=True) if len(same) > 1 else ()
        labels = next((way for way in ways if len({*way}) == len(same) and None not in way), ())
        apart.update(zip((run["id"] for run in same), labels, strict=False))
    return apart


def _ways(run: Mapping) -> tuple[str | None, ...]:
    fit, rank = run.get("fit_index"), run.get("rank")
    began = datetime.fromtimestamp((run["start_ns"] or 0) / 1e9)
    return (
        None if rank is None else f"rank {rank}",
        None if fit is None else f"fit {fit + 1}",
        f"{began:%m-%d %H:%M:%S}",
        f"{began:%m-%d %H:%M} {run['id'].rpartition('-')[2]}",  # and its process id
    )


def headline(comparison: Mapping, apart: Mapping[str, str] | None = None) -> str:
    """Return the comparison in a sentence: the fastest run, and which causes went away.

    "" where speeds cannot be compared: workers of one training, or batch sizes that only some runs
    know.

    Args:
        apart: labels from `told_apart`.
    """
    rows = comparison["runs"]
    known = [row for row in rows if row["speed"] and row["steps"] >= FEW_STEPS]
    together = len({row["session"] for row in rows}) < len(rows)
    if len(known) < 2 or together or _basis(known) is None:
        return ""
    names = _names(comparison, apart)
    fastest, second = sorted(known, key=lambda row: -row["speed"])[:2]
    first = known[0]
    other = second if fastest is first else first
    factor = fastest["speed"] / other["speed"]
    slowest = min(row["speed"] for row in known)
    if fastest["speed"] < ALIKE * slowest:
        return f"{'both' if len(known) == 2 else 'all'} are about as fast"
    said = f"{names[fastest['id']]} is the fast{'er' if len(known) == 2 else 'est'}"
    near = factor < ALIKE
    said += f", {names[other['id']]} about as fast" if near else (
        f", {times(factor)} as fast as {names[other['id']]}"
    )  # fmt: skip
    changed = [f"without {', '.join(fastest['gone'])}"] if fastest["gone"] else []
    return "; ".join([said, *changed])


def _basis(rows: Sequence[Mapping]) -> str | None:
    """Return the unit of the speeds, a sample or a step; None if runs differ."""
    sized = {row["batch_size"] is not None for row in rows}
    return None if len(sized) > 1 else "sample" if True in sized else "step"


def _names(comparison: Mapping, apart: Mapping[str, str] | None) -> dict[str, str]:
    return {row["id"]: f"{row['run']} {(apart or {}).get(row['id'], '')}".rstrip()
            for row in comparison["runs"]}  # fmt: skip


def comparison_table(
    comparison: Mapping,
    width: int,
    apart: Mapping[str, str] | None = None,
    most: int | None = None,
) -> list[str]:
    """Return the comparison as lines of at most `width` columns, without those that do not fit.

    Args:
        apart: labels from `told_apart`.
        most: rows to show: the first run, and those that lost most; None = all, in their order.
    """
    names_of = _names(comparison, apart)
    picked = _costliest(comparison["runs"], most)
    rows = [
        {**_cells(row, row["id"] == comparison["baseline"]), "run": names_of[row["id"]]}
        for row in picked
    ]
    names = list(_COLUMNS)
    for dropped in ("ms/sample", "stalls", "lost", "GPU", "ms/step"):
        if _needed(names, rows) <= width:
            break
        if dropped in names and any(cells[dropped] for cells in rows):
            names.remove(dropped)
    names = [name for name in names if name == "run" or any(cells[name] for cells in rows)]
    sizes = {name: max(len(name), *(len(cells[name]) for cells in rows)) for name in names}
    rest = width - sum(sizes[name] + 2 for name in names if name not in ("run", "causes"))
    if "causes" in sizes:
        sizes["run"] = min(sizes["run"], max(8, rest // 2))
        sizes["causes"] = max(6, rest - sizes["run"] - 2)
    else:
        sizes["run"] = min(sizes["run"], max(8, rest))
    lines = [_line({name: name for name in names}, names, sizes)]
    for cells in rows:
        lines.append(_line(cells, names, sizes))
    rest = len(comparison["runs"]) - len(picked)
    if rest:
        lines.append(f"… and {rest:,} more runs that lost less (--all lists them)")
    notes = []
    if "speed" in names:
        basis = _basis([row for row in picked if row["speed"]])
        per = f"per {basis}" if basis else "per sample, or per step where a batch size is unknown"
        notes.append(f"speed: times as fast as the first, {per}, without compilation")
    shown = [name for name in ("ms/step", "ms/sample") if name in names]
    if shown:
        notes.append(
            f"{' and '.join(shown)}: {'means' if shown[1:] else 'the mean'} over all steps"
        )
    if "GPU" in names:
        notes.append("GPU: mean share of time in which a kernel ran")
    lines += textwrap.wrap("; ".join(notes), width)
    for row in picked if not rest else ():
        changes = [_UNFINISHED.get(row["status"], ""),
                   f"without {', '.join(row['gone'])}" if row["gone"] else "",
                   f"new: {', '.join(row['new'])}" if row["new"] else ""]  # fmt: skip
        said = "; ".join(change for change in changes if change)
        if said:
            lines.append(_cut(f"{names_of[row['id']]}: {said}", width))
    return lines


def _costliest(rows: Sequence[Mapping], most: int | None) -> Sequence[Mapping]:
    if most is None or len(rows) <= most:
        return rows
    ordered = sorted(rows[1:], key=lambda row: -row["lost_s"])
    return [rows[0], *ordered[: most - 1]]


def _cells(row: Mapping, baseline: bool) -> dict[str, str]:
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
        "causes": ", ".join(row["causes"]) or ("not readable" if row["unreadable"] else "none"),
    }


def _needed(names: Sequence[str], rows: Sequence[Mapping[str, str]]) -> int:
    """Return the columns needed, with room for a short name of the run and of a cause."""
    sizes = [max(len(name), *(len(cells[name]) for cells in rows)) for name in names]
    flexible = {"run": 14, "causes": 14}
    return sum(min(size, flexible.get(name, size)) + 2
               for name, size in zip(names, sizes, strict=True))  # fmt: skip


def _line(cells: Mapping[str, str], names: Sequence[str], sizes: Mapping[str, int]) -> str:
    parts = []
    for name in names:
        text = _cut(cells[name], sizes[name])
        left = name in ("run", "causes")
        parts.append(text.ljust(sizes[name]) if left else text.rjust(sizes[name]))
    return "  ".join(parts).rstrip()


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(1, width - 1)] + "…"
