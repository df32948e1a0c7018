"""Makes the table of docs/measured.md from `figures.json`, which `--save` of the benchmarks keeps.

    python -m benchmarks step fits --save
    python -m benchmarks.table

With `--check` it changes nothing and fails where the page's table is another one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
FIGURES = FOLDER / "figures.json"
PAGE = FOLDER.parent / "docs" / "measured.md"
BEGIN, END = "<!-- figures: python -m benchmarks.table -->", "<!-- figures end -->"
OURS, BESIDE = "gpu-util-callback", ", beside another program"

Row = tuple[str, str]


def between(one: dict[str, float], digits: int = 0) -> str:
    """A median with its interval."""
    median, low, high = (round(one[name], digits) + 0.0 for name in ("median", "low", "high"))
    return f"{median:.{digits}f} [{low:.{digits}f} … {high:.{digits}f}]"  # and no "-0"


def step_table(figures: dict[str, Any]) -> list[str]:
    """Return the cost of a step under each recorder: CPU time added, and the wall's ratio."""
    lines = [
        "| a step of | under | training thread, µs of CPU | process, µs of CPU | wall "
        "| both, beside a program that copies memory |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, one in figures.items():
        if not isinstance(one, dict) or OURS not in one or name.endswith(BESIDE):
            continue
        busy = figures.get(name + BESIDE, {})
        training, what = name.rsplit(", ", 1)
        wall_ms = one["step"]["wall_us"]["median"] / 1e3
        where = f"{training}, {wall_ms:.1f} ms" + (", mostly waiting" if what == "paced" else "")
        for recorder, cost in one.items():
            if recorder in ("step", "no callback"):
                continue
            added = cost.get("within", cost["added"])
            lines.append(
                f"| {where if recorder == OURS else ''} "
                f"| {'**this callback**' if recorder == OURS else recorder} "
                f"| {between(added['thread_us'])} | {between(added['process_us'])} "
                f"| ×{between(cost['wall_ratio'], 2)} | {both(busy.get(recorder))} |"
            )
    return [*lines, ""] if len(lines) > 2 else []


def both(cost: dict[str, Any] | None) -> str:
    """Return the CPU time of the training thread and of the process, where there is any."""
    if cost is None:
        return ""
    added = cost.get("within", cost["added"])
    return " / ".join(f"{added[name]['median']:.0f}" for name in ("thread_us", "process_us"))


def fits(figures: dict[str, Any]) -> Iterator[Row]:
    """Many short fits."""
    cpu = figures["CPU time of the process"]
    yield (
        f"each of {figures['fits']:,} fits of {figures['steps']} steps, one callback",
        f"{cpu['added_ms']:.1f} ms of CPU (the fit itself {cpu['plain_ms']:.0f}); "
        f"{figures['recordings']} recording, {figures['files']} files, "
        f"{figures['bytes'] / 1e3:.0f} kB",
    )


def held_lock(figures: dict[str, Any]) -> Iterator[Row]:
    """A pipeline in Python."""
    threads = figures.get("threads_pct")  # not measured on every system
    share = f"our threads take {threads['median']:.2f} % of a core; " if threads else ""
    yield (
        "steps per second where the input pipeline holds Python's lock (`make demo`, act 2)",
        f"×{between(figures['ratio'], 3)} in {figures['pairs']} pairs of fits; {share}own cost as "
        f"reported {figures['own_us']['median']:.0f} µs a step",
    )


def long(figures: dict[str, Any]) -> Iterator[Row]:
    """A day."""
    hours = figures["steps"] * 8.64e-3 / 3600
    whole, resident = figures["whole"], figures["resident_mb"]
    yield (
        f"a made-up fit of {figures['steps']:,} steps on a clock that they move, {hours:.0f} h: a flush, every 15 s",
        f"{min(whole):.0f} to {max(whole):.0f} ms of CPU, resident {resident[0]:.0f} MB after a "
        f"tenth and {resident[-1]:.0f} at the end; "
        f"{figures['bytes'] / figures['steps']:.1f} bytes a step on disk, samples included",
    )


def sampler(figures: dict[str, Any]) -> Iterator[Row]:
    """Shares of a core."""
    shares = dict(figures["core_pct_at_10_hz"])
    ours = shares.pop(OURS)
    others = ", ".join(f"{name} {pct:.2f} %" for name, pct in shares.items())
    yield (
        "GPU sampling at 10 Hz over the stand-in driver",
        f"{ours:.2f} % of a core" + (f" ({others})" if others else ""),
    )


def trace(figures: dict[str, Any]) -> Iterator[Row]:
    """Reading a profiler's file."""
    yield (
        f"a trace of {figures['events']:,} events, read and analysed",
        f"{figures['whole_s']:.1f} s, {figures['peak_mb']:,} MB at most",
    )


def diagnosis(figures: dict[str, Any]) -> Iterator[Row]:
    """The rules."""
    yield (
        f"{figures['steps']:,} steps, 8 GPUs, diagnosed / {figures['more']:,} more",
        f"{figures['whole_s']:.2f} s / {figures['more_ms']:.0f} ms of CPU",
    )
    for steps, ms in figures.get("anew_ms", {}).items():
        yield (f"a recording of {int(steps):,} steps, judged anew from its stored sums", f"{ms:.0f} ms of CPU")


def start(figures: dict[str, Any]) -> Iterator[Row]:
    """What a process pays once."""
    added = figures["this checkout"]
    yield (
        f"import / a process' first fit ({figures['backend']}), beside Keras, which has fitted twice",
        f"{between(added['import, CPU s'], 3)} s / {between(added['fit, CPU s'], 3)} s of CPU; "
        f"{added['resident MB']['median']:.1f} MB, {added['new modules']['median']:.0f} modules",
    )


def browse(figures: dict[str, Any]) -> Iterator[Row]:
    """The server of the tab."""
    yield (
        f"{figures['steps']:,} steps, {figures['gpus']} GPUs × {figures['metrics']} metrics, "
        "opened in the tab / zoomed (p95)",
        f"{figures['first_ms']:.0f} ms / {figures['zoom_cpu_ms']['p95']:.0f} ms of CPU in the "
        f"server, {figures['rss_mb']:.0f} MB",
    )


def total(figures: dict[str, Any]) -> Iterator[Row]:
    """A log directory of thousands of runs."""
    for place in ("local", "store of 20 ms"):
        took = figures[place]
        yield (
            f"{figures['runs']:,} runs of 3 GPUs totalled ({place})",
            f"{took['wall_s']:.1f} s, {took['cpu_s']:.1f} s of CPU; {took['peak_mb']:.0f} MB at most",
        )
    yield ("a short run of them judged anew from its stored sums", f"{figures['anew_ms']:.1f} ms of CPU")


ROWS: dict[str, Callable[[dict[str, Any]], Iterator[Row]]] = {
    "held_lock": held_lock,
    "start": start,
    "fits": fits,
    "long": long,
    "sampler": sampler,
    "trace": trace,
    "diagnosis": diagnosis,
    "browse": browse,
    "total": total,
}


def table(figures: dict[str, dict[str, Any]]) -> str:
    """The tables, a line a row."""
    lines = [*step_table(figures.get("step", {})), "| | |", "| --- | --- |"]
    for name, rows in ROWS.items():
        if name in figures:
            lines += [f"| {what} | {cost} |" for what, cost in rows(figures[name])]
    days = sorted({one["date"] for one in figures.values()})
    loads = [one["load"] for one in figures.values()]
    taken = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    cpus = {one["cpus"] for one in figures.values()}
    lines += [
        "",
        f"Taken {taken} on {'/'.join(map(str, sorted(cpus)))} CPUs at a load average of "
        f"{min(loads):.0f} to {max(loads):.0f}; medians of rounds [95 % interval of the "
        "median; of fewer than six rounds, the lowest and the highest], over a no-op "
        "callback, in loops over none.",
    ]
    return "\n".join(lines)


def placed(page: str, made: str) -> str:
    """The page with this table between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{PAGE}: no lines {BEGIN} and {END}, between which the table goes")
    return f"{before}{BEGIN}\n{made}\n{END}{after}"


def main(arguments: list[str]) -> int:
    if not FIGURES.exists():
        raise SystemExit(f"no {FIGURES}: python -m benchmarks --save makes it")
    page = PAGE.read_text()
    wanted = placed(page, table(json.loads(FIGURES.read_text())))
    if arguments == ["--check"]:
        if wanted != page:
            print("The page's table is not made from figures.json: run this without --check")
        return int(wanted != page)
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
