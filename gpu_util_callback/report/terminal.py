"""The report in the terminal: one screen of any width, with or without colour."""

from collections.abc import Iterable, Mapping, Sequence
from inspect import cleandoc

from gpu_util_callback.diagnosis import RULES
from gpu_util_callback.diagnosis.compare import comparison
from gpu_util_callback.diagnosis.verdict import BLOCKING, NOTHING_LARGE, UNKNOWN
from gpu_util_callback.profiling.windows import SOURCE as WINDOWS
from gpu_util_callback.report.compare import comparison_table, headline, told_apart
from gpu_util_callback.report.findings import Pen, code_lines, finding_lines
from gpu_util_callback.words import duration, percent, times, what_to_do

__all__ = ["render", "rules_text", "two_lines"]

# Host account, in the order of the bar: key, label, colour, letter without Unicode.
_ACCOUNT = (
    ("step", "training steps", "34", "#"),
    ("input_wait", "waiting for input", "33", "~"),
    ("compile", "compiling", "36", "c"),
    ("validation", "validation", "35", "v"),
    ("callbacks", "callbacks", "32", "k"),
    ("other", "other", "90", "."),
)
_GPU_PARTS = (
    ("kernel", "kernels", "34", "#"),
    ("kernel_active", "kernel active", "34", "#"),
    ("copy_h2d", "copies to the GPU", "31", ">"),
    ("copy_d2h", "copies from the GPU", "31", "<"),
    ("copy_d2d", "copies on the GPU", "31", "="),
    ("collective", "communication", "35", "c"),
    ("idle_input", "idle: input", "33", "~"),
    ("idle_launch", "idle: launch", "33", "l"),
    ("idle_sync", "idle: sync", "33", "s"),
    ("idle_host", "idle: host", "33", "h"),
    ("idle", "idle", "33", "~"),
    ("other", "other", "90", "."),
    ("outside_steps", "outside steps", "90", " "),
)
_MAX_SHOWN = 6  # findings of a run
_MAX_FULL = 3  # runs shown in full; if there are more, each in brief
_MAX_BRIEF = 8  # of more, only those with findings


def render(report: Mapping, width: int = 80, color: bool = False, unicode: bool = True) -> str:
    """Render a `logdir_report` as text.

    Args:
        report: `{"runs": [...], ...}`.
        width: columns to use, 40 at least.
        color: ANSI colours.
        unicode: False = ASCII characters only.
    """
    pen = Pen(width, color, unicode)
    lines: list[str] = []
    runs = report["runs"]
    apart = told_apart(runs)
    if len(runs) > 1:
        compared = comparison(runs)
        said = ": ".join(filter(None, [f"{len(runs)} runs", headline(compared, apart)]))
        lines += [pen.bold(line) for line in pen.wrap(said)]
        lines += comparison_table(compared, pen.width, apart)
    shared = _missing_everywhere(runs)
    # --run cannot choose among runs that share a name: the newest one is meant.
    newest = runs[-1] if len(runs) > _MAX_FULL and len({run["run"] for run in runs}) == 1 else None
    for run in runs:
        if len(runs) > _MAX_BRIEF and not _findings(run) and run is not newest:
            continue  # the table shows that it has no cause
        if len(runs) > 1:
            lines += ["", pen.dim(("─" if unicode else "-") * pen.width)]
        if len(runs) <= _MAX_FULL or run is newest:
            lines += _run(run, pen, shared if run is not newest else (), apart)
        else:
            lines += _brief(run, pen, apart)
    if shared and len(runs) <= _MAX_FULL:
        lines += ["", pen.dim(("─" if unicode else "-") * pen.width)]
        lines += [pen.bold("Not measured in any of these runs"), *_missing_lines(shared, pen)]
    if newest is not None:
        lines += ["", "Only the newest is shown in full; --json has all of them."]
    elif len(runs) > _MAX_FULL:
        lines += ["", "gpu-util report LOGDIR --run NAME shows all of one run."]
    for session in report.get("sessions", ()):
        clocks = [one["text"] for one in (session.get("clocks") or {}).get("workers", ())]
        if not session["findings"] and not any(clocks):
            continue
        lines += ["", pen.bold(f"Session {session['session']}, {len(session['ranks'])} workers")]
        for place, finding in enumerate(session["findings"], 1):
            lines += finding_lines(finding, place, pen)
        for text in filter(None, clocks):
            lines += [pen.dim(line) for line in pen.wrap(f"{text}.", "  ", "")]
    return pen.finish(lines)


def two_lines(run: Mapping) -> str:
    """Return what `fit` prints at its end: the verdict, and the first remedy (or where to look)."""
    findings = _findings(run)
    named = (finding for finding in findings if run["verdict"].startswith(finding["title"]))
    first = next(named, next(iter(findings), None))
    verdict = f"gpu-util: {run['verdict']}"
    look = _where_to_look(run)
    small = run["verdict"].startswith((NOTHING_LARGE, UNKNOWN))
    if first is not None and not small:
        second = f"Do first: {what_to_do(first['advice'])}"
    elif look:
        second = f"To see what the GPU waits for: {look}"
    elif first is not None:
        second = f"Small: {first['title']}, {duration(first['lost_s'] or 0)}; the report lists it."
    else:
        step = run["step_ms"]["p50"]
        shown = f"median {_step_time(step)} a step" if step is not None else "no step recorded"
        fits = run.get("fits") or 1
        second = f"{_step_count(run)}{f' in {fits:,} fits' if fits > 1 else ''}, {shown}."
    return f"{verdict}\n          {second}"


def _where_to_look(run: Mapping) -> str:
    """Return a hint on profiling where only a profile shows why a GPU idles; "" elsewhere."""
    if not run["verdict"].startswith(UNKNOWN) or not any(
        gpu["used_by_framework"] for gpu in run["gpus"]
    ):
        return ""
    missing = (one for one in run["unavailable"] if one["source"] == WINDOWS)
    return next((one["cure"] for one in missing), "")


def rules_text(width: int = 80, rules: Iterable = RULES, unicode: bool = True) -> str:
    """Describe each cause: its condition, its sources, and its thresholds with their reasons."""
    pen = Pen(width, color=False, unicode=unicode)
    lines: list[str] = []
    for rule in rules:
        lines += ["", *pen.wrap(f"{rule.cause}: {rule.title}")]
        lines += pen.wrap(cleandoc(rule.__doc__ or "").partition("\n\n")[0], "  ")
        lines += pen.wrap(f"needs {'; '.join(rule.sources)}; else: {rule.unknown}", "  ")
        for name, threshold in rule.thresholds.items():
            lines += pen.wrap(f"{name}={threshold.default:g}  {threshold.reason}", "      ", "    ")
    return pen.finish(lines[1:])


def _run(run: Mapping, pen: Pen, shared: Sequence[Mapping], apart: Mapping[str, str]) -> list[str]:
    lines = pen.wrap(run["verdict"])
    lines = [pen.bold(line) for line in lines]
    lines += [pen.dim(line) for line in pen.wrap(_subtitle(run, apart.get(run["id"], "")))]
    lines += _since(run, pen, apart)
    lines += _account_bar(run, pen)
    lines += _gpu_cards(run, pen)
    lines += _gpu_account(run, pen)
    findings = _findings(run)
    if findings:
        lines += ["", pen.bold("What held it back, and what to do")]
        told: dict[tuple[str, str], int] = {}  # recurring findings are explained once
        for place, finding in enumerate(findings[:_MAX_SHOWN], 1):
            code = finding["advice"]["code"]
            first = told.setdefault((finding["title"], code), place) if code else place
            lines += finding_lines(finding, place, pen, run, first if first < place else None)
        if len(findings) > _MAX_SHOWN:
            rest = sum(finding["lost_s"] or 0 for finding in findings[_MAX_SHOWN:])
            lines += ["", f"  … and {len(findings) - _MAX_SHOWN} more, {duration(rest)} together "
                          "(--json has them all)"]  # fmt: skip
    lines += _not_seen(run, pen, shared)
    lines += _not_judged(run, pen)
    lines += _thresholds_set(run, pen)
    lines += _overhead(run, pen)
    for problem in run.get("problems", ()):
        lines += [pen.paint(line, "33") for line in
                  pen.wrap(f"{problem['path']}: {problem['message']}", "  ", "! ")]  # fmt: skip
    return lines


def _brief(run: Mapping, pen: Pen, apart: Mapping[str, str]) -> list[str]:
    lines = [pen.bold(line) for line in pen.wrap(run["verdict"])]
    lines += [pen.dim(line) for line in pen.wrap(_subtitle(run, apart.get(run["id"], "")))]
    lines += _since(run, pen, apart)
    for finding in _findings(run)[:1]:
        lines += code_lines(finding["advice"]["code"], pen)
    return lines


def _since(run: Mapping, pen: Pen, apart: Mapping[str, str]) -> list[str]:
    """Return whether the saving promised by the previous run was achieved."""
    since = run.get("since")
    if not since:
        return []
    called = since["run"]
    if called == run["run"]:
        called = apart.get(since["id"]) or "the run before"
    text = (
        f"Since {called}: {', '.join(since['gone'])} gone; "
        f"promised up to {times(since['promised_up_to'])}, got {times(since['got'])}."
    )
    return pen.wrap(text)


def _subtitle(run: Mapping, which: str) -> str:
    parts = [run["run"] if run["run"] != "." else "this log directory"]
    if which[:1].isdigit():  # its fit and rank follow below
        parts.append(f"began {which}")
    parts += [one for one in (run.get("trial"), run.get("trial_config"))
              if one and one not in run["run"]]  # fmt: skip
    if run.get("fit_index") is not None:
        parts.append(_fits(run))
    if run.get("rank"):
        parts.append(f"rank {run['rank']}")
    parts.append(_step_count(run))
    step = run["step_ms"]
    if step["p50"] is not None:
        parts.append(f"median {_step_time(step['p50'])} a step, p95 {_step_time(step['p95'])}")
    framework = run.get("framework") or {}
    if framework.get("name"):
        parts.append(f"{framework['name']} {framework.get('version') or ''}".strip())
    if (run.get("fit") or {}).get("run_eagerly"):
        parts.append("runs eagerly (run_eagerly=True)")
    if run["status"] != "ended":
        parts.append({"live": "still running", "lost": "lost: its process ended without a word",
                      "interrupted": "interrupted"}.get(run["status"], run["status"]))  # fmt: skip
    return " · ".join(parts)


def _fits(run: Mapping) -> str:
    """Return which fits of their log directory: "fit 2", "fits 1 to 1,000 (2.3 s between them)"."""
    first, fits = run["fit_index"] + 1, run.get("fits") or 1
    if fits == 1:
        return f"fit {first}"
    between = run.get("between_fits_s")
    apart = f" ({duration(between)} between them)" if between else ""
    return f"fits {first:,} to {first + fits - 1:,}{apart}"


def _step_count(run: Mapping) -> str:
    return f"{run['steps']:,} {'step' if run['steps'] == 1 else 'steps'}"


def _step_time(ms: float) -> str:
    return f"{ms:.3g} ms" if ms < 999.5 else duration(ms / 1e3)


def _account_bar(run: Mapping, pen: Pen) -> list[str]:
    spent, wall = run["time_s"], run["wall_s"]
    if not spent or not wall:
        return []
    parts = [(label, spent[key], code, letter) for key, label, code, letter in _ACCOUNT
             if spent.get(key)]  # fmt: skip
    head = f"Where the time of the training thread went ({duration(wall)})"
    return ["", *pen.wrap(head), *_bar(parts, wall, pen)]


def _gpu_account(run: Mapping, pen: Pen) -> list[str]:
    lines: list[str] = []
    for index, account in run.get("gpu_time_est", {}).items():
        parts = [(label, account[key], code, letter) for key, label, code, letter in _GPU_PARTS
                 if account.get(key)]  # fmt: skip
        total = sum(seconds for _, seconds, _, _ in parts)
        if total <= 0:
            continue
        basis = {"windows": "from profiler windows", "nvml": "from NVML"}.get(account["basis"], "")
        head = f"gpu{index}, estimate {basis}"
        lines += ["", *pen.wrap(head), *_bar(parts, total, pen)]
    return lines


def _bar(parts: Sequence[tuple[str, float, str, str]], total: float, pen: Pen) -> list[str]:
    """Return a stacked bar over the whole width, with its legend: part, duration, share."""
    width = pen.width
    bar, done, drawn = "", 0.0, 0
    for _, seconds, code, letter in parts:
        done += max(0.0, seconds)
        upto = min(width, round(width * done / total))
        cells = upto - drawn
        bar += pen.paint(("█" if pen.unicode and pen.color else letter) * cells, code)
        drawn = max(drawn, upto)
    entries = []
    for name, seconds, code, letter in parts:
        mark = pen.paint("■" if pen.unicode and pen.color else letter, code)
        text = f"{name} {duration(max(0.0, seconds))} ({percent(100 * seconds / total)})"
        entries.append((mark, text))
    rows, row, used = [], "", 0
    for mark, text in entries:
        size = 2 + len(text)
        if used and used + 3 + size > width:
            rows.append(row)
            row, used = "", 0
        row += ("   " if used else "") + f"{mark} {text}"
        used += (3 if used else 0) + size
    return [bar, *rows, row]


def _gpu_cards(run: Mapping, pen: Pen) -> list[str]:
    lines = []
    for gpu in run["gpus"]:
        name = gpu.get("name") or "GPU"
        text = f"gpu{gpu['index']} {name}:"
        if not gpu["used_by_framework"]:
            text += " not used by the framework;"
        use = gpu["utilization_pct"]
        if use["mean"] is None:
            text += " utilization not measured"
        else:
            text += (
                f" kernel active {percent(use['mean'])} (5–95 %: {use['p5']:.0f}–{use['p95']:.0f})"
            )
        peak, total = gpu["memory_used_bytes"]["max"], gpu.get("memory_total_bytes")
        if peak is not None:
            text += f" · VRAM peak {peak / 2**30:.1f}" + (
                f" of {total / 2**30:.0f} GiB" if total else " GiB"
            )
        lines += pen.wrap(text, "  ", "")
    return ["", *lines] if lines else []


def _findings(run: Mapping) -> list[Mapping]:
    """Return spans and findings together: blocking first, then by time lost."""
    ordered = sorted(
        [*run["findings"], *run["spans"]],
        key=lambda finding: (finding["lost_s"] is None, -(finding["lost_s"] or 0)),
    )
    return sorted(ordered, key=lambda finding: finding["cause"] not in BLOCKING)


def _missing_everywhere(runs: Sequence[Mapping]) -> list[Mapping]:
    """Return what no run could measure, for the same reason: printed once, below all runs."""
    if len(runs) < 2:
        return []
    return [one for one in runs[0]["unavailable"]
            if all(one in run["unavailable"] for run in runs[1:])]  # fmt: skip


def _not_seen(run: Mapping, pen: Pen, elsewhere: Sequence[Mapping] = ()) -> list[str]:
    missing = [one for one in run["unavailable"] if one not in elsewhere]
    return ["", pen.bold("Not measured"), *_missing_lines(missing, pen)] if missing else []


def _missing_lines(missing: Sequence[Mapping], pen: Pen) -> list[str]:
    lines: list[str] = []
    for gone in missing:
        text = f"{gone['source']}: {gone['reason']}"
        if gone.get("cure"):
            text += f" → {gone['cure']}"
        lines += pen.wrap(text, "    ", "  - ")
    return lines


def _not_judged(run: Mapping, pen: Pen) -> list[str]:
    """List the causes that could not be judged; none without a GPU in use (most of them)."""
    causes = [one["cause"] for one in run.get("silent", ())]
    if not causes or not any(gpu["used_by_framework"] for gpu in run["gpus"]):
        return []
    text = f"Could not be judged: {', '.join(causes)} (--json says why)."
    return ["", *(pen.dim(line) for line in pen.wrap(text))]


def _thresholds_set(run: Mapping, pen: Pen) -> list[str]:
    limits = run.get("thresholds_set") or {}
    said = ", ".join(f"{name}={value:g}" for name, value in limits.items())
    return ["", *(pen.dim(line) for line in pen.wrap(f"Thresholds set: {said}."))] if said else []


def _microseconds(us: float) -> str:
    return f"{us:.3g} µs" if us < 1000 else f"{us / 1000:.3g} ms"


def _overhead(run: Mapping, pen: Pen) -> list[str]:
    cost = run.get("overhead") or {}
    said = []
    own = cost.get("callback_us_per_step")
    if own is not None:
        waited = cost.get("lock_wait_us_per_step") or 0
        most = waited > 20 and waited > own / 2
        said.append(
            f"{_microseconds(own)} a step on the training thread"
            + (f" ({_microseconds(waited)} of it waiting for Python's lock, or for a core)"
               if most else "")
        )  # fmt: skip
    if cost.get("sampler_cpu_pct") is not None:
        said.append(f"sampler {percent(cost['sampler_cpu_pct'])} of a core")
    if cost.get("windows_s"):
        said.append(f"profiler windows {duration(cost['windows_s'])}")
    if not said:
        return []
    return ["", *(pen.dim(line) for line in pen.wrap("Our own cost: " + ", ".join(said) + "."))]
