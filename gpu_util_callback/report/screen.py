"""One screen of a terminal, for runs and traces alike.

Findings in a line each, with evidence and fix as far as there is room, accounts of time as bars, and folded notes.
"""

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gpu_util_callback.diagnosis.evidence.script import Script
from gpu_util_callback.diagnosis.rule import LEAST_GAIN, all_findings
from gpu_util_callback.diagnosis.rules import RULE_OF, RULES, cause_beside, part_of
from gpu_util_callback.diagnosis.verdict import (
    BLOCKING,
    SMALL,
    blocks,
    gain_text,
    is_unknown,
    is_unnamed,
    order_of_all,
    saves_range,
    subject_of,
)
from gpu_util_callback.profiling.profiler_windows import SOURCE as WINDOWS
from gpu_util_callback.words import (
    GPU_TIME,
    HOST_TIME,
    Category,
    capitalized,
    counted,
    culprit,
    duration,
    evidence_rows,
    gpu_names,
    percent,
    same_fix,
    steps,
    times,
    what_to_do,
)

TITLE = "Bottlenecks and fixes"
# category -> colour, and the letter of the bar without Unicode or colours.
HOST_LOOK = {
    "step": ("34", "#"),
    "input_wait": ("33", "~"),
    "compile": ("36", "c"),
    "validation": ("35", "v"),
    "callbacks": ("32", "k"),
    "other": ("90", "."),
}
GPU_LOOK = {
    "kernel": ("34", "#"),
    "gpu_active": ("34", "#"),
    "copy_h2d": ("31", ">"),
    "copy_d2h": ("31", "<"),
    "copy_d2d": ("31", "="),
    "collective": ("35", "c"),
    "idle_input": ("33", "i"),
    "idle_launch": ("33", "l"),
    "idle_sync": ("33", "s"),
    "idle_host": ("33", "h"),
    "idle": ("33", "-"),
    "other": ("90", "."),
    "outside_steps": ("90", " "),
}
_LISTED = 8  # findings in a line each
_ROOM = 14  # lines of all findings: as many of them have evidence and fix
_FEW = 3  # findings, each of which has a line more of evidence, and of text
_CODE, _EVIDENCE, _TEXT = 3, 1, 2  # lines of each of these
_COLUMN, _LABEL = 24, 30  # characters of a span's values in a table, at most; room for them beside the labels
COMPARING = frozenset(rule.cause for rule in RULES if rule.comparing)
# Shown in a sentence of its own, or in the advice.
_ELSEWHERE = {"faster_up_to", "held_up_by", "promise_rests_on"}


class Detail(NamedTuple):
    """Amount of detail: `evidence` of every finding in full; `all` of the findings, runs, GPUs."""

    evidence: bool = False
    all: bool = False


SUMMARY = Detail()
UNFINISHED = {"live": "still running", "lost": "killed", "interrupted": "interrupted"}  # by status

_PLAIN = str.maketrans(
    {"×": "x", "–": "-", "—": "-", "·": "-", "µ": "u", "…": "...", "→": "->", "≥": ">=", "≤": "<=", "’": "'", "°": " "}
)
# Keep a number and its unit on one line.
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|(?:[nµum]?s|[mhd]|[GM]iB|GB/s|MHz|W)\b)")
_HELD = "\u00a0"
# Names come from files: nothing in them may steer a terminal.
_STEERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_STEERS_UNLIKE_COLOURS = re.compile(rf"(\x1b\[\d+m)|{_STEERS.pattern}")


def strip_control(text: str) -> str:
    """Replace control characters and bidirectional overrides in a text that comes from a file."""
    return _STEERS.sub("?", text)


def without_escapes(value: Any) -> Any:
    """Return a report in whose texts no colours or other sequences for terminals begin."""
    if isinstance(value, str):
        return value.replace("\x1b", "?").replace("\x9b", "?")
    if isinstance(value, Mapping):
        return {key: without_escapes(each) for key, each in value.items()}
    return [without_escapes(each) for each in value] if isinstance(value, (list, tuple)) else value


def cut(text: str, width: int) -> str:
    """Return the text, cut to `width` characters."""
    return text if len(text) <= width else text[: max(1, width - 1)] + "…"


def table(
    columns: Mapping[str, Sequence[str]], width: int, texts: Mapping[str, int], may_go: Iterable[str] = ()
) -> list[str]:
    """Return a table's lines, its heads first, without empty columns; texts stand to the left, numbers to the right.

    Args:
        columns: cells by head; "" = not known.
        width: most characters of a line.
        texts: the columns to cut where they do not fit, and the least characters of each.
        may_go: columns to leave out, the first one first, as long as the rest does not fit.
    """
    full_sizes = {name: max(len(name), *map(len, cells)) for name, cells in columns.items() if any(cells)}
    sizes = {name: min(size, texts.get(name, size)) for name, size in full_sizes.items()}
    for name in may_go:
        if sum(sizes.values()) + 2 * len(sizes) > width + 2:
            sizes.pop(name, None)
    spare = width + 2 - sum(sizes.values()) - 2 * len(sizes)  # characters left, for the texts
    for name in texts:
        if name in sizes:
            least, sizes[name] = sizes[name], min(full_sizes[name], max(1, sizes[name] + spare))
            spare -= sizes[name] - least
    cells = [
        [f"{cut(cell or '–', size):{'<' if name in texts else '>'}{size}}" for cell in (name, *columns[name])]
        for name, size in sizes.items()
    ]
    return ["  ".join(row).rstrip() for row in zip(*cells, strict=True)]


class Pen:
    """Colours and characters that the terminal supports."""

    def __init__(self, width: int, color: bool, unicode: bool):
        self.width = max(40, min(width, 110))
        self.color = color
        self.unicode = unicode

    def paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and text else text

    def bold(self, text: str) -> str:
        return self.paint(text, "1")

    def dim(self, text: str) -> str:
        return self.paint(text, "2")

    def wrap(self, text: str, indent: str = "", first: str | None = None) -> list[str]:
        """Return a text as lines of this width; a number and its unit stay together.

        Args:
            indent: in front of each line.
            first: in front of the first line; None = `indent`.
        """
        if not self.unicode:  # replace before measuring: some replacements are longer
            text = text.translate(_PLAIN)
        text = _BEFORE_UNIT.sub(_HELD, text)
        return textwrap.wrap(
            text,
            self.width,
            initial_indent=indent if first is None else first,
            subsequent_indent=indent,
            break_long_words=True,
            break_on_hyphens=False,
        )

    def cut(self, text: str, room: int | None = None) -> str:
        """Return the text, cut to one line of `room` columns.

        Args:
            room: None = the width.
        """
        if not self.unicode:
            text = text.translate(_PLAIN)
        room = self.width if room is None else max(1, room)
        dots = "…" if self.unicode else "..."
        return text if len(text) <= room else text[: max(1, room - len(dots))].rstrip() + dots

    def finish(self, lines: Sequence[str]) -> str:
        """Return lines as one text in which nothing but colours steers the terminal."""
        text = "\n".join(_STEERS_UNLIKE_COLOURS.sub(lambda match: match[1] or "?", line).rstrip() for line in lines)
        text = text.replace(_HELD, " ") + "\n"
        if not self.unicode:
            text = text.translate(_PLAIN).encode("ascii", "replace").decode("ascii")
        return text


class Group(NamedTuple):
    """Findings of one cause with one fix: `first` is the costliest of those that promise it, `members` are in order."""

    first: Mapping
    members: tuple[Mapping, ...]

    def total(self, name: str) -> float | None:
        values = [member[name] for member in self.members if member.get(name) is not None]
        return sum(values) if values else None


def grouped(findings: Iterable[Mapping]) -> list[Group]:
    """Return findings in groups with one remedy each, in the order of the verdict."""
    kinds: dict[str, list[Mapping]] = {}
    for finding in findings:
        kinds.setdefault(same_fix(finding), []).append(finding)
    groups = [
        Group(
            max(kind, key=lambda finding: (bool(finding.get("saves_s")), finding["lost_s"] or 0.0)),
            tuple(sorted(kind, key=lambda finding: finding.get("start_step", -1))),
        )
        for kind in kinds.values()
    ]
    return sorted(groups, key=lambda group: order_of_all(group.first, group.members))


def finding_lines(
    groups: Sequence[Group], pen: Pen, detail: Detail, run: Mapping | None = None, who: str = ""
) -> list[str]:
    """Return findings: a line for each, the first one and as many as there is room for with evidence and fix.

    Args:
        run: the run they are about, if any.
        who: the worker they are about, unless a finding names another one.
    """
    if not groups:
        return []
    shown = groups if detail.all or detail.evidence else groups[:_LISTED]
    # The number of the finding across workers that has the same time; None = none.
    holder_of = [_within(groups, place) for place in range(len(shown))]
    costs = [f"in {holder}" if holder else _cost(group) for holder, group in zip(holder_of, shown, strict=True)]
    cost_size = max(4, *map(len, costs))
    title_size = min(max(7, *(len(group.first["title"]) for group in shown)), max(16, pen.width // 2 - 14))
    lines = ["", pen.bold(TITLE), pen.dim(f"   {'lost':>{cost_size}}  finding")]
    lines_used = len(shown)
    for place, (group, cost) in enumerate(zip(shown, costs, strict=True), 1):
        explained = _explained(group, pen, detail, None if holder_of[place - 1] else run, len(shown) <= _FEW)
        # No room for evidence and fix, here or further down.
        if not (place == 1 or len(shown) <= _FEW or detail.evidence or lines_used + len(explained) <= _ROOM):
            explained, lines_used = [], _ROOM  # and none of those after it
        lines_used += len(explained)
        title = f"{place}. {cost:>{cost_size}}  {pen.cut(group.first['title'], title_size):<{title_size}}"
        about = " · ".join(filter(None, [_whose(group, who), where(group, run), *([] if explained else [_fix(group)])]))
        line = pen.cut(f"{title}  {' '.join(about.split())}".rstrip())
        if explained:
            line = pen.bold(pen.paint(line, "33")) + pen.dim(_notes(group.first, pen.width - len(line)))
        lines += [line, *explained, *([""] if detail.evidence and place < len(shown) else [])]
    if len(shown) < len(groups):
        rest_s = sum(group.total("lost_s") or 0.0 for group in groups[len(shown) :])
        together = f", {duration(rest_s)} together" if rest_s else ""
        lines.append(f"   … and {len(groups) - len(shown)} more{together} (--all)")
    return lines


def _notes(finding: Mapping, room: int) -> str:
    """Return two notes behind a finding's title, as far as they fit: that it is an estimate, and its cause's name."""
    notes = "  estimate" if finding["confidence"] == "estimated" else ""
    cause = cause_beside(finding)
    if cause and len(notes) + 2 + len(cause) <= room:
        notes += f"  {cause}"
    return notes if len(notes) <= room else ""


def _fix(group: Group) -> str:
    """Return what to do in a line: its code if that is one line, else the last sentence, without its question."""
    advice = group.first["advice"]
    fix = what_to_do(advice)
    return _ending(fix, 0) if fix == advice["text"] else fix


def _within(groups: Sequence[Group], place: int) -> int | None:
    """Return the number (from 1) of the finding across workers that holds the time of a worker's own; None = none.

    Args:
        place: of the worker's finding, in `groups`.
    """
    own = part_of(groups[place].first)
    for number, group in enumerate(groups[:place], 1):
        part = group.first.get("id", "").rpartition(".")[2]
        if group.first["cause"] in COMPARING and own and own == part:
            return number
    return None


def _cost(group: Group) -> str:
    lost = group.total("lost_s")
    return "unknown" if lost is None else duration(lost)


def _whose(group: Group, who: str) -> str:
    """Return the workers and GPUs that a group of findings is about, beyond those in its title."""
    ranks = {rank for member in group.members for rank in member.get("ranks") or ()}
    worker = f"rank {next(iter(ranks))}" if who and len(ranks) == 1 else who
    gpus = {gpu for member in group.members for gpu in member.get("gpus") or ()}
    more = gpus > {*(group.first.get("gpus") or ())}  # than those in its title
    return ", ".join(filter(None, [worker, gpu_names([*gpus]) if more else ""]))


def where(group: Group, run: Mapping | None) -> str:
    """Return the steps of a group in words: `steps 20–59`, `3 spans, steps 20–99`; "" where it has none."""
    placed = [member for member in group.members if "start_step" in member]
    if not placed:
        return ""
    first = min(member["start_step"] for member in placed)
    last = max(member["end_step"] for member in placed)
    place = steps(first, last, run["steps"] if run else None)
    return f"{len(placed)} spans, {place}" if len(placed) > 1 else place


def _explained(group: Group, pen: Pen, detail: Detail, run: Mapping | None, long: bool) -> list[str]:
    """Return the lines of a finding's evidence, what to do, and what that saves.

    Args:
        run: it is about; None = a trace, or the finding is counted elsewhere.
        long: there is room for a line more of each part.
    """
    finding = group.first
    if detail.evidence:  # all of the evidence, as a table
        facts = _table(group.members, run, pen)
    else:
        facts = pen.wrap(_evidence(finding, (_EVIDENCE + long) * (pen.width - 4)), "   ")
    lines = list(map(pen.dim, facts))
    advice = finding["advice"]
    saving = _saving(group, run)
    asks = bool(advice.get("question"))
    text_room = (_TEXT + (long or asks) + 2 * (long and asks)) * (pen.width - 4) - len(saving) - 1
    text = advice["text"] if detail.evidence else _ending(advice["text"], text_room)
    lines += pen.wrap(f"{text} {saving}".strip(), "   ")
    code = code_lines(advice["code"], pen, advice.get("before") or "")
    most_lines = _CODE + long
    if len(code) > most_lines and not detail.evidence:  # the rest of the code is cut
        dots = f"     … {len(code) - most_lines + 1} more lines (--evidence)"
        code = [*code[: most_lines - 1], pen.dim(dots)]
    return lines + code


def _facts(finding: Mapping) -> list[tuple[str, str]]:
    """Return labels and values, those that crossed a limit first, with it."""
    rows = [row for row in evidence_rows(finding) if row["name"] not in _ELSEWHERE]
    rows.sort(key=lambda row: not row["rule"])
    return [(row["label"], row["value"] + (f" (threshold {row['rule'][2:]})" if row["rule"] else "")) for row in rows]


def _rows(finding: Mapping, run: Mapping | None) -> dict[str, str]:
    """Return what is known of a finding as label -> value.

    That is where it lies, how much of that time it cost, all of its evidence, and what was promised.
    """
    rows = {}
    if "start_step" in finding:
        rows["where"] = steps(finding["start_step"], finding["end_step"], run["steps"] if run else None)
        if finding["lost_s"] is not None:
            took = (finding["end_ns"] - finding["start_ns"]) / 1e9
            rows["lost"] = f"{duration(finding['lost_s'])} of {duration(took)}"
    rows |= dict(_facts(finding))
    basis, faster = (finding["evidence"].get(name) for name in ("promise_rests_on", "faster_up_to"))
    if faster and faster >= LEAST_GAIN:
        rows["faster here, up to"] = times(faster) + (f", estimated from {basis}" if basis else "")
    return rows


def _table(findings: Sequence[Mapping], run: Mapping | None, pen: Pen) -> list[str]:
    """Return the evidence of one cause as a table, with a column for each span; what is the same in all stands once."""
    columns = [_rows(finding, run) for finding in findings]
    labels = [*dict.fromkeys(label for column in columns for label in column)]
    size = min(max(map(len, labels), default=0), pen.width - _LABEL)
    same = {label for label in labels if len({column.get(label) for column in columns}) == 1}
    cell_size = max(
        (len(column.get(label, "")) for column in columns for label in labels if label not in same), default=1
    )
    cell_size = min(cell_size, _COLUMN)
    columns_a_block = max(1, (pen.width - size - 5) // (cell_size + 2))
    lines = []
    for begin in range(0, len(columns), columns_a_block):  # blocks of as many columns as fit side by side
        for label in labels:
            cells = [column.get(label, "–") for column in columns[begin : begin + columns_a_block]]
            if label in same and begin:
                continue
            text = cells[0] if label in same else "  ".join(f"{cut(cell, cell_size):<{cell_size}}" for cell in cells)
            lines += pen.wrap(text, " " * (size + 5), f"   {cut(label, size):<{size}}  ")
    return lines


def _evidence(finding: Mapping, room: int) -> str:
    """Return the evidence as prose, at most `room` characters, starting with the values that crossed a limit."""
    facts = [f"{label}: {value}" for label, value in _facts(finding)]
    culprit_text = culprit(finding)
    if culprit_text and not any(culprit_text in fact for fact in facts):
        facts.insert(1, culprit_text)
    while len(facts) > 1 and len("; ".join(facts)) > room:  # the last facts are left out
        facts.pop()
    prose = "; ".join(facts)
    return f"{capitalized(prose)}." if prose else ""


def _ending(text: str, room: int) -> str:
    """Return the last sentences of an advice that fit into `room` characters, at least one.

    What to do stands at the end. An answer ("If so, …") is never shown without its question: then it begins with
    "Perhaps".
    """
    sentences = re.split(r"(?<=[.:!?)]) (?=[A-Z])", text)
    answers = [at for at, sentence in enumerate(sentences) if sentence.startswith("If so, ")]
    first = answers[-1] if answers else len(sentences) - 1  # a place in the code may stand behind what to do
    while first and len(" ".join(sentences[first - 1 :])) <= room:
        first -= 1
    return re.sub("^If so, ", "Perhaps ", " ".join(sentences[first:]))


def _saving(group: Group, run: Mapping | None) -> str:
    """Return the gain of following the advice, measured or promised, as a sentence; "" if unknown.

    The tab says the same.
    """
    if "tried" in group.first:  # measured by `gpu-util try`
        return group.first["tried"]["text"]
    question = group.first["advice"].get("question")
    # During training the elapsed time is newer than the diagnosis.
    if run is None or run["status"] == "live" or not (group.total("saves_s") or question):
        return ""
    saves = saves_range(group.members)
    script, subject = Script.from_process(run.get("process")), "run"
    if group.first.get("of_s"):  # about all fits of the script
        subject, gain = "script", gain_text(group.first["of_s"], saves)
    elif script is None:
        gain = gain_text(run["wall_s"], saves)
    else:
        subject, whole = "script", [script.saves(run["wall_s"], bound) for bound in saves]
        gain = gain_text(script.wall_s, whole)
    return "" if not gain else f"{'If so, this' if question else 'This'} {subject} gets {gain} faster."


def code_lines(code: str, pen: Pen, before: str = "") -> list[str]:
    """Return code within the width, after what it replaces (`- `, `+ `) where that is known.

    A comment that does not fit next to its line goes above it.
    """
    removed = [pen.paint(line, "31") for line in _code(before, pen, "- " if before else "")]
    return removed + [pen.paint(line, "32") for line in _code(code, pen, "+ " if before else "")]


def _code(code: str, pen: Pen, sign: str) -> list[str]:
    """Return lines to paste, wrapped; a comment that does not fit stands above its line.

    Args:
        sign: "+ " or "- " in front of each, or "".
    """
    shown: list[str] = []
    for line in code.splitlines():
        if len(line) > pen.width - 5 - len(sign):
            line, _, comment = line.partition("  # ")
            shown += pen.wrap(comment, f"     {sign}# ") if comment else []
        indent = " " * (len(line) - len(line.lstrip()))
        shown += pen.wrap(line.strip(), f"     {' ' * len(sign)}{indent}    ", f"     {sign}{indent}")
    return shown


def account_lines(title: str, seconds: Mapping, total: float, pen: Pen, *, gpu: bool = False) -> list[str]:
    """Return an account of time: its title, a stacked bar over the whole width, and its legend; [] without a part.

    Args:
        seconds: by category; others than the vocabulary's are ignored.
        total: seconds that the bar's width stands for.
        gpu: the categories are those of a GPU's time, not of the training thread's.
    """
    names: Mapping[str, Category] = GPU_TIME if gpu else HOST_TIME
    looks = GPU_LOOK if gpu else HOST_LOOK
    parts = [(names[key].title, seconds[key], *look) for key, look in looks.items() if seconds.get(key)]
    return [*pen.wrap(title), *stacked_bar(parts, total, pen)] if parts and total > 0 else []


def stacked_bar(
    parts: Sequence[tuple[str, float, str, str]], total: float, pen: Pen, written: Callable[[float], str] = duration
) -> list[str]:
    """Return a bar over the whole width, and its legend.

    Args:
        parts: name, amount, colour, and the letter without colours, each.
        total: what the whole width stands for.
        written: returns an amount as it is to be read.
    """
    width, is_colourful = pen.width, pen.unicode and pen.color
    bar, so_far, drawn_columns, entries = "", 0.0, 0, []
    for name, amount, code, letter in parts:
        so_far += max(0.0, amount)
        end_column = min(width, round(width * so_far / total))
        bar += pen.paint(("█" if is_colourful else letter) * (end_column - drawn_columns), code)
        drawn_columns = max(drawn_columns, end_column)
        text = f"{name} {written(max(0.0, amount))} ({percent(100 * amount / total)})"
        entries.append((pen.paint("■" if is_colourful else letter, code), text))
    rows, row, used = [], "", 0
    for mark, text in entries:
        size = 2 + len(text)
        if used and used + 3 + size > width:  # a new line of the legend
            rows.append(row)
            row, used = "", 0
        row += ("   " if used else "") + f"{mark} {text}"
        used += (3 if used else 0) + size
    return [bar, *rows, row]


def folded(title: str, items: Sequence[str], pen: Pen, hint: str = "") -> list[str]:
    """Return a list as one dim line; of a list that does not fit, the first items and the hint."""
    if not items:
        return []
    first_items, rest_text = list(items), ""
    while len(first_items) > 1 and len(f"{title}: {'; '.join(first_items)}{rest_text}.") > pen.width:
        first_items.pop()
        rest_text = f"; {len(items) - len(first_items)} more{hint}"
    line = f"{title}: {'; '.join(first_items)}{rest_text}."
    if len(line) > pen.width:
        end = rest_text or hint
        line = pen.cut(f"{title}: {first_items[0]}", pen.width - len(end) - 1) + end + "."
    return [pen.dim(line)]


def missing_lines(missing: Sequence[Mapping], pen: Pen, detail: Detail, title: str = "Not measured") -> list[str]:
    """Return what was not measured: folded into a line, or each with its reason and cure."""
    if not detail.evidence:
        items = [f"{entry['source']} ({entry['reason']})" for entry in missing]
        return folded(title, items, pen, " (--evidence)")
    lines = [pen.bold(title)] if missing else []
    for entry in missing:
        text = f"{entry['source']}: {entry['reason']}"
        if entry.get("cure"):
            text += f" → {entry['cure']}"
        lines += pen.wrap(text, "    ", "  - ")
    return lines


def not_checked_lines(silent: Sequence[Mapping], pen: Pen, detail: Detail) -> list[str]:
    """Return the causes that could not be checked: how many, or each with its reason; [] without any."""
    if not silent:
        return []
    if not detail.evidence:
        return [pen.dim(f"Not checked: {counted(len(silent), 'cause')} (--evidence).")]
    lines = [pen.bold("Not checked")]
    for entry in silent:
        lines += pen.wrap(f"{RULE_OF[entry['cause']].title}: {entry['reason']}", "    ", "  - ")
    return lines


def thresholds_lines(limits: Mapping[str, float], pen: Pen) -> list[str]:
    """Return the thresholds that differ from the defaults."""
    settings = ", ".join(f"{name}={value:g}" for name, value in limits.items())
    return [pen.dim(line) for line in pen.wrap(f"Thresholds set: {settings}.")] if settings else []


def step_time(ms: float) -> str:
    """Return a step's time, in ms below a second: `9.52 ms`."""
    return f"{ms:.3g} ms" if ms < 999.5 else duration(ms / 1e3)


def two_lines(run: Mapping, program: str | None = None) -> str:
    """Return what `fit` prints at its end: the verdict, the first remedy (or where to look), and maybe how to try it.

    Args:
        program: as `gpu-util try` takes it, behind its options; None = it is no script.
    """
    groups = grouped(all_findings(run))
    ids = (run.get("headline") or {}).get("ids", ())

    def place(group: Group) -> tuple[bool, bool, bool]:
        title, summed = group.first["title"], group.first["id"] in ids
        return not (summed and title in run["verdict"]), not run["verdict"].startswith(title), not summed

    ordered = sorted(groups, key=place)
    group = next((group for group in ordered if _is_worth_a_line(group)), next(iter(ordered), None))
    look = _where_to_look(run)
    small = run["verdict"].startswith(SMALL) or is_unknown(run["verdict"])
    if group is None and not look:  # healthy: the pace
        step = run["step_ms"]["p50"]
        pace = f"median {step_time(step)} a step" if step is not None else "no step recorded"
        fits = run.get("fits") or 1
        second = f"{counted(run['steps'], 'step')}{f' in {fits:,} fits' if fits > 1 else ''}, {pace}."
    elif group is not None and is_unnamed(group.first):  # time without a name
        second = f"To see what it is: {what_to_do(group.first['advice'])}"
    elif group is not None and not small:  # a remedy
        second = f"{_lead_in(group, groups, run['verdict'], ids)}{what_to_do(group.first['advice'])}"
    elif group is None or look:  # only a profile shows more
        second = f"To see what the GPU waits for: {look}"
    else:
        lost = duration(group.total("lost_s") or 0)
        second = f"Minor: {group.first['title']}, {lost}; gpu-util report shows it."
    third = ""
    if group is not None and not small and program:
        from gpu_util_callback.trying.changes import change_for

        if not isinstance(change_for(group.first["advice"]), str):
            third = f"\n          Does it help here? gpu-util try --fix {groups.index(group) + 1} {program}"
    return f"gpu-util: {run['verdict']}\n          {second}{third}"


def _is_worth_a_line(group: Group) -> bool:
    """Return True if a finding blocks all others, or has something to do or to find out."""
    finding, advice = group.first, group.first["advice"]
    return bool(blocks(finding) or advice["code"] or advice.get("question") or group.total("saves_s"))


def _lead_in(group: Group, groups: Sequence[Group], verdict: str, ids: Sequence[str]) -> str:
    """Return the words before the advice.

    "Fix first" only with a known gain, "Ask first" for a question, else "To try".

    The finding is named unless the verdict begins with it.

    Args:
        ids: of the findings that the verdict sums up.
    """
    finding, others = group.first, tuple(other.first["title"] for other in groups if other is not group)
    leads = verdict.startswith(finding["title"]) or (finding["id"] in ids and not verdict.startswith(others))
    about = ": " if leads else f" ({subject_of(finding)}): "
    if finding["advice"].get("question"):
        return f"Ask first{about}"
    if finding["cause"] in BLOCKING or group.total("saves_s"):
        return f"Fix first{about}"
    return f"To try{about}" if finding["advice"]["code"] else ""


def _where_to_look(run: Mapping) -> str:
    """Return a hint on profiling where only a profile shows why a GPU idles; "" elsewhere."""
    if not is_unknown(run["verdict"]) or not any(gpu["used_by_framework"] for gpu in run["gpus"]):
        return ""
    missing = (entry for entry in run["unavailable"] if entry["source"] == WINDOWS)
    return next((entry["cure"] for entry in missing), "")
