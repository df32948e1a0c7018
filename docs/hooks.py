"""MkDocs' hooks: a page for each cause from its rule and `causes/notes.md`; map and pictures."""

import re
from inspect import cleandoc, getmodule
from pathlib import Path

from mkdocs.structure.files import File

from gpu_util_callback import read_recordings
from gpu_util_callback.diagnosis import RULES
from gpu_util_callback.words import label
from tensorboard_plugin.downloads import html_report

NOTES = Path(__file__).parent / "causes" / "notes.md"
REPOSITORY = Path(__file__).parents[1]


def on_files(files, config):
    """Add the generated pages."""
    notes = _notes()
    known = {rule.cause for rule in RULES}
    if set(notes) != known:
        odd = sorted(set(notes) ^ known)
        raise ValueError(f"{NOTES}: a section for each cause and no other; see {', '.join(odd)}")
    pages = {"index": _index(), **{rule.cause: _page(rule, notes[rule.cause]) for rule in RULES}}
    for name in ("tab-gpu",):  # of the repository, so that there is one of each
        picture = REPOSITORY / "demo" / "screenshots" / f"{name}.png"
        files.append(File.generated(config, f"{name}.png", abs_src_path=str(picture)))
    map_ = REPOSITORY / "ARCHITECTURE.md"
    files.append(File.generated(config, "architecture.md", abs_src_path=str(map_)))
    files.append(File.generated(config, "try/demo.html", content=_demo()))
    for name, text in pages.items():
        files.append(File.generated(config, f"causes/{name}.md", content=text))
    return files


def on_page_markdown(markdown, **_):
    """Lead to what only the site has; on a code host the same links lead to what it is made of."""
    markdown = re.sub(r"causes/notes\.md#(\w+)", r"causes/\1.md", markdown).replace(
        "causes/notes.md", "causes/index.md"
    )
    return markdown.replace("../demo/screenshots/", "").replace("(try/recordings)", "(try/demo.html)")


def _demo() -> str:
    """Return the offline page of the demo's runs and of those on an H200, as the tab of this version shows them.

    The folders `plugins` of `python demo/train.py --redact --no-serve --log-dir DIR` are kept here.
    """
    folders = REPOSITORY / "docs" / "try" / "recordings", REPOSITORY / "demo" / "recorded"
    recordings = [recording for folder in folders for recording in read_recordings(folder)]
    first = next(recording.id for recording in recordings if recording.run.endswith("h200-jax/slow-input"))
    return "".join(html_report(recordings, "demo/logs", shown=[first]))


def _notes() -> dict[str, str]:
    parts = re.split(r"^## (\w+)\n", NOTES.read_text(encoding="utf-8"), flags=re.M)[1:]
    return {
        name: re.sub(r"\(#(\w+)\)", r"(\1.md)", _headed(note))
        for name, note in zip(parts[::2], parts[1::2], strict=True)
    }


def _headed(note: str) -> str:
    note = note.strip().replace("**Fix.** ", "## The fix\n\n")
    return note.replace("**Traps.** ", "## Traps\n\n")


def _index() -> str:
    rows = "\n".join(f"| [{rule.title}]({rule.cause}.md) | `{rule.cause}` | {_first(rule.__doc__)} |" for rule in RULES)
    return (
        "# Causes\n\nWhat can hold a training back, as the report and the tab name it. Each page "
        "says what it means, how it is measured, which numbers decide, and what to do.\n\n"
        f"| cause | id | found when |\n| --- | --- | --- |\n{rows}\n"
    )


def _first(text: str | None) -> str:
    return " ".join(cleandoc(text or "").partition("\n\n")[0].split())


def _page(rule, note: str) -> str:
    module = getmodule(rule)
    what = _first(module.__doc__ if module else "").partition(": ")[2]
    sources = "\n".join(f"* {one}" for one in rule.sources)
    return f"""---
title: {rule.title}
---

# {rule.title}

`{rule.cause}` · {what[:1].upper()}{what[1:]}

## What it means

{cleandoc(rule.__doc__ or "")}

{note}

## How it is measured

It is judged from:

{sources}

Without these the cause is listed as not checked: *{rule.unknown}*.

## Thresholds

{_thresholds(rule)}
"""


def _meaning(name: str) -> str:
    """Return a threshold's label, if it says more than its name."""
    said = label(name)
    return "" if said == name.replace("_", " ") else said


def _thresholds(rule) -> str:
    if not rule.thresholds:
        return "None: one observation is enough."
    rows = "\n".join(
        f"| `{name}` | {_meaning(name)} | {threshold.default:g} | {threshold.reason} |"
        for name, threshold in rule.thresholds.items()
    )
    example = next(iter(rule.thresholds))
    return f"""| name | what | default | why |
| --- | --- | --- | --- |
{rows}

Another limit: `GpuUtilCallback(thresholds={{"{rule.cause}": {{"{example}": …}}}})`, or
`gpu-util report LOGDIR --threshold {rule.cause}.{example}=…` for a run that is recorded already."""
