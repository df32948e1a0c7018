"""Spoiled recordings: whatever was changed, the good one next to it is shown as it is."""

from __future__ import annotations

import gzip
import io
import json
import logging
import math
import zlib
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from harness.fuzz import recordings
from harness.fuzz.fuzzer import Format

# Ways to show a log directory, one of which each input is shown in: a number's last digit is 0 for a command, 1
# for the page, else for the plugin; the rest of it is the option, or the query.
_WAYS = 10
# Accounted to the run as it is judged anew: what a good one's report says, whoever is beside it.
SAID = ("time_s", "wall_s", "steps", "step_ms", "gpus", "findings", "spans", "verdict", "problems")


class _Truth:
    """What the good recording says when it is alone."""

    report: dict[str, Any]
    steps: dict[str, np.ndarray]


truth = _Truth()


def prepare() -> None:
    # Imported before the children are forked, which take every warning for a mistake.
    import tensorboard.plugin_util  # noqa: F401
    import tile_reply  # noqa: F401

    import gpu_util_callback.cli.report  # noqa: F401
    import tensorboard_plugin.plugin  # noqa: F401
    from gpu_util_callback.diagnosis import logdir_report
    from gpu_util_callback.recording import read_recordings

    recordings.bases.prepare()
    if hasattr(truth, "report"):
        return
    logdir = recordings.scratch("truth")
    recordings.write(recordings.bases.files["thirds"], logdir / "good")
    (one,) = found = read_recordings(logdir)
    truth.steps = one.steps
    truth.report = _of_good(logdir_report(found))
    assert not found.problems


def check(data: bytes, folder: Path) -> str:
    """The rows and the report, and one of the ways to show them."""
    return _checked(data, folder, (zlib.crc32(data),))


def judge(data: bytes, folder: Path) -> str:
    """The same in all ways."""
    return _checked(data, folder, _EACH_WAY)


def _checked(data: bytes, folder: Path, numbers: Iterable[int]) -> str:
    try:
        recordings.spoiled(data, folder / "logs")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return "no recipe"
    with Unforeseen() as unforeseen:
        try:
            return _look(folder / "logs", numbers)
        finally:
            if unforeseen.error is not None:
                raise unforeseen.error


class Unforeseen:
    """Holds what was caught as a last resort: such an exception is a mistake of ours."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._log = logging.getLogger("gpu_util_callback")
        self._before = self._log.level, self._log.propagate

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            self.error = record.exc_info[1]
        return True

    def __enter__(self) -> Unforeseen:
        self._log.setLevel(logging.DEBUG)
        self._log.propagate = False
        self._log.filters.insert(0, self)  # before the package's own, which makes it a text
        return self

    def __exit__(self, *error: object) -> None:
        self._log.removeFilter(self)
        self._log.setLevel(self._before[0])
        self._log.propagate = self._before[1]


def _look(logdir: Path, numbers: Iterable[int]) -> str:
    from gpu_util_callback.diagnosis import logdir_report
    from gpu_util_callback.diagnosis.check import Check, failures
    from gpu_util_callback.recording import read_recordings
    from gpu_util_callback.report.terminal import render

    found = read_recordings(logdir)
    (good,) = (one for one in found if one.run == "good")
    assert recordings.same_rows(good.steps, truth.steps), "the good one's rows changed"
    for one in found:
        for table in ("phases", "pipeline", "traced_steps", "kernels", "step_kernels"):
            one.table(table)
        assert one.end_ns >= one.start_ns, "it ends before it begins"
        found._repr_html_()
    report = logdir_report(found)
    text = json.dumps(report, allow_nan=False)
    assert _of_good(json.loads(text)) == truth.report, "the good one's report changed"
    for run in report["runs"]:
        _sensible(run)
    for problem in found.problems:
        line = str(problem)
        assert len(line) < 1500 and not set(line) & set("\n\r"), "a problem of several lines"
    render(report, 100)
    failures(report, Check())
    failures(report, Check(max_input_wait=5.0, min_utilization=50.0, max_lost=10.0))
    of_plugin = []
    for number in numbers:
        match number % _WAYS:
            case 0:
                _command(logdir, number // _WAYS)
            case 1:
                _html(logdir, found)
            case _:
                of_plugin.append(number // _WAYS)
    if of_plugin:
        _plugin(logdir, of_plugin)
    return "problem" if found.problems else "read"


def _of_good(report: dict[str, Any]) -> dict[str, Any]:
    (run,) = (one for one in report["runs"] if one["run"] == "good")
    return json.loads(json.dumps({name: run[name] for name in SAID}))


def _sensible(run: dict[str, Any]) -> None:
    wall = run["wall_s"] or 0
    for name, seconds in run["time_s"].items():
        share = seconds / wall if wall else 0
        assert -1.0 <= share <= 1.01 or seconds < 0.01, f"{name} takes more than the run"
        assert share >= 0 or name == "other", f"{name} takes less than nothing"
    for claim in [*run["findings"], *run["spans"]]:
        assert claim["lost_s"] is None or claim["lost_s"] >= 0, "less than nothing is lost"
        assert claim["severity"] is None or 0 <= claim["severity"] <= 1, "a severity beyond 1"
        for value in claim["evidence"].values():
            assert not isinstance(value, float) or math.isfinite(value)


def _command(logdir: Path, number: int) -> None:
    from gpu_util_callback.cli import main

    options = (["--json"], ["--check"], [])[number % 3]
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        code = main(["report", str(logdir), *options])
    assert code == 0 or (code == 1 and options == ["--check"]), f"exit code {code}"
    assert "Traceback" not in errors.getvalue()
    out.getvalue().encode()
    if options == ["--json"]:
        json.loads(out.getvalue(), parse_constant=refuse)


def _html(logdir: Path, found: Any) -> None:
    from tensorboard_plugin.downloads import html_report

    page = "".join(html_report(found, str(logdir))).encode()
    begin = page.index(b'id="gpu-utilization-data">') + len(b'id="gpu-utilization-data">')
    held = json.loads(page[begin : page.index(b"</script>", begin)], parse_constant=refuse)
    assert any(one["run"] == "good" for one in held["runs"]["recordings"])
    assert len(held["recordings"]) == len(held["runs"]["recordings"]) == len(found)


def app(logdir: Path) -> dict[str, Any]:
    """The plugin's routes over a log directory, called as TensorBoard would call them."""
    from tensorboard.plugins import base_plugin

    from tensorboard_plugin.plugin import GpuUtilizationPlugin

    names = sorted(path.name for path in logdir.iterdir())
    runs = [SimpleNamespace(run_name=name) for name in names]
    provider = SimpleNamespace(list_runs=lambda context, experiment_id: runs)
    context = base_plugin.TBContext(logdir=str(logdir), data_provider=provider, flags=SimpleNamespace(logdir_spec=""))
    return GpuUtilizationPlugin(context).get_plugin_apps()


def answer(routes: dict[str, Any], route: str, query: str, **options: Any) -> tuple[Any, bytes]:
    """The reply to a request, and its body unpacked."""
    from werkzeug.test import Client

    reply = Client(routes[route]).open(f"{route}?{query}", **options)
    body = reply.get_data()
    if reply.headers.get("Content-Encoding") == "gzip" and body:
        body = gzip.decompress(body)
    return reply, body


def _queries(number: int) -> list[tuple[str, str]]:
    """What a number asks about each recording: its facts, one reply more, two views."""
    asked = (("/job", ""), ("/window", "&window=0"), ("/export.csv", f"&table={_TABLES[number % len(_TABLES)]}"))
    views = (("step", 0), ("step", 3), ("time", 24), ("time", 30))
    lanes = "steps,gpu0:utilization_pct,pipeline"
    tiles = [
        ("/tiles", f"&axis={axis}&level={level}&first=0&count=128&lanes={lanes}")
        for axis, level in (views[number % 4], views[number // 4 % 4])
    ]
    return [("/recording", ""), asked[number % len(asked)], *tiles]


def _plugin(logdir: Path, numbers: list[int]) -> None:
    from tile_reply import decode_tile

    routes = app(logdir)
    reply, body = answer(routes, "/runs", "")
    assert reply.status_code == 200, f"/runs: {reply.status_code}"
    listing = json.loads(body, parse_constant=refuse)
    assert any(one["run"] == "good" for one in listing["recordings"]), "the good one is not listed"
    queries = dict.fromkeys(query for number in numbers for query in _queries(number))
    for one in listing["recordings"]:
        for route, query in queries:
            reply, body = answer(routes, route, f"id={one['id']}{query}")
            fine = (200, 404) if route == "/window" else (200,)
            assert reply.status_code in fine, f"{route}: {reply.status_code} {body[:200]!r}"
            if route == "/tiles":
                for values in decode_tile(body).series.values():
                    for part in values:
                        assert not np.isinf(part).any(), "an infinite value in a tile"
            elif route != "/export.csv":
                json.loads(body, parse_constant=refuse)


_TABLES = ("steps", "phases", "pipeline", "kernels", "traced_steps", "validation_steps")
# The three commands, the page, and of the plugin's queries each one: every fifth exports a table.
_EACH_WAY = (0, 10, 20, 1, *(10 * query + 2 for query in (*range(7), 8, 13, 18, 23, 28, 33)))


def refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


FORMAT = Format("recording", recordings.recipe, check, judge, prepare, seconds=20, memory=200 << 20, memory_factor=0)
