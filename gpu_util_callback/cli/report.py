"""`gpu-util report LOGDIR…`: where the time of a training run went, and what to do first."""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from gpu_util_callback.cli import options
from gpu_util_callback.cli import remote as _remote
from gpu_util_callback.cli.options import amount
from gpu_util_callback.diagnosis import RULES, logdir_report
from gpu_util_callback.diagnosis.check import Check, failures
from gpu_util_callback.diagnosis.compare import comparison
from gpu_util_callback.diagnosis.report_types import Failure, LogdirReport, RunReport
from gpu_util_callback.diagnosis.thresholds import meant
from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.recording import Recordings, read_recordings
from gpu_util_callback.recording.problems import ReportedProblem, reported
from gpu_util_callback.redaction import without_secrets
from gpu_util_callback.report.ci import Case, add_to_summary, junit
from gpu_util_callback.report.energy_sentences import cost_of_run
from gpu_util_callback.report.screen import strip_control
from gpu_util_callback.report.terminal import namesake_labels, render
from gpu_util_callback.words import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "logdir", nargs="*", metavar="LOGDIR", help="a TensorBoard log directory, a run in it, or a URL"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--html", metavar="FILE", help="write the tab and its data to one HTML file")
    parser.add_argument("--run", action="append", metavar="NAME", help="only this run (may be repeated)")
    options.add_thresholds(parser)
    _add_limits(parser)
    prices = parser.add_argument_group("prices", "in your own currency; nothing is converted and no price is assumed")
    prices.add_argument("--price-per-kwh", type=amount, metavar="P", help="price of the energy that the GPUs used")
    prices.add_argument(
        "--price-per-gpu-hour", type=amount, metavar="P", help="price of an hour of each GPU in use, busy or idle"
    )
    add_timeout(parser)
    options.add_output(parser)


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Add the option that bounds the wait for a URL."""
    parser.add_argument(
        "--timeout",
        type=amount,
        default=_remote.ANSWER_S,
        metavar="S",
        help="seconds to wait for a URL (default: %(default)g)",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the limits of a check to a parser."""
    limits = parser.add_argument_group(
        "check",
        "limits for CI: print the reasons and exit with 1 if one is not met (0 = all met, "
        "2 = unusable input); any limit implies --check; `gpu-util ab` compares two commands",
    )
    limits.add_argument("--check", action="store_true", help="without limits: fail if any cause is found")
    for option, text in (
        ("--min-utilization", "lowest mean utilization of the GPUs in use"),
        ("--max-input-wait", "highest share of wall time spent waiting for input"),
        ("--max-stalls", "highest share of wall time in validation and callbacks"),
        ("--max-lost", "highest share of wall time lost in all"),
    ):
        limits.add_argument(option, type=_share, metavar="PCT", help=text)
    limits.add_argument("--max-step-ms", type=amount, metavar="MS", help="highest median step time")
    stuck = "longest time without a step: 90, 90s, 10m, 2h"
    limits.add_argument("--max-stuck", type=_time, dest="max_stuck_s", metavar="TIME", help=stuck)
    limits.add_argument(
        "--forbid",
        action="append",
        default=[],
        metavar="CAUSE[,CAUSE]",
        help="causes that must not be found, by title or id (--rules lists them)",
    )
    limits.add_argument("--junit", metavar="FILE", help="write the outcome as JUnit XML")


def run(args: argparse.Namespace) -> int:
    """Print the report; return the exit code: 1 if a limit of `--check` is broken, else 0."""
    if args.rules:
        return options.print_rules()
    if not all(args.logdir) or not args.logdir:
        raise UnusableInput("which log directory? gpu-util report LOGDIR")
    thresholds = options.thresholds_given(args)
    check = _check(args)
    recordings = open_recordings(args.logdir, args.run, args.timeout)
    report = logdir_report(recordings, thresholds)
    if args.html:
        from tensorboard_plugin.downloads import html_report

        options.write_file(args.html, html_report(recordings, ", ".join(args.logdir), report))
    _warn(report.get("problems", ()))
    if not report["runs"]:
        raise UnusableInput("none of these recordings can be shown")
    # In the order given: the first one is the baseline.
    ids_in_order = [recording.id for recording in recordings]
    report["runs"].sort(key=lambda run: ids_in_order.index(run["id"]))
    if args.price_per_kwh is not None or args.price_per_gpu_hour is not None:
        _add_cost(report["runs"], args.price_per_kwh, args.price_per_gpu_hour)
    broken_limits = None if check is None else failures(report, check)
    if broken_limits is not None:
        _write_outcome(args, report["runs"], broken_limits)
    if args.json:
        _print_json(report, broken_limits)
    elif broken_limits is not None:
        for failure in _named(broken_limits, args.logdir, report["runs"]):
            print(strip_control(f"{failure['run']}: {failure['reason']}"))
        if not broken_limits:
            print(_within(len(report["runs"])))
    else:
        print(render(report, *options.terminal(), options.detail(args)), end="")
    return int(bool(broken_limits))


def _print_json(report: LogdirReport, broken: list[Failure] | None) -> None:
    """Print the report as JSON, with its comparison and the outcome of a check.

    Args:
        broken: broken limits; None = nothing was checked.
    """
    if len(report["runs"]) > 1:
        report["comparison"] = comparison(report["runs"])
    if broken is not None:
        report["check"] = {"passed": not broken, "failures": broken}
    json.dump(report, sys.stdout, indent=2, allow_nan=False)
    print()


def _add_cost(runs: Iterable[RunReport], per_kwh: float | None, per_gpu_hour: float | None) -> None:
    """Add what runs cost at the given prices; warn about runs whose energy is not known."""
    why = "no price: its energy was not measured (no power samples of a GPU in use)"
    for run in runs:
        run["cost"] = cost_of_run(run, per_kwh, per_gpu_hour)
        if per_kwh is not None and run["cost"]["energy"] is None:
            print(f"gpu-util report: {strip_control(run['run'])}: {why}", file=sys.stderr)


def _within(count: int) -> str:
    return f"{counted(count, 'run')} within the limits"


def _named(entries: Iterable[Mapping], logdirs: list[str], runs: Sequence[Mapping]) -> list[dict]:
    """Return entries about runs under names that distinguish them.

    A run that is the log directory itself gets its folder's name, runs of one name a label.
    """
    home, label_of = _names(logdirs)[logdirs[0]], namesake_labels(runs)
    names = {".": home, home: home, **{run["run"]: run["run"] for run in runs if run["run"] != "."}}
    named = []
    for entry in entries:
        run_name = entry["run"]
        # Else it is about several.
        name = f"{names[run_name]} {label_of.get(entry['id'], '')}".strip() if run_name in names else run_name
        named.append({**entry, "run": name})
    return named


def _write_outcome(args: argparse.Namespace, runs: Sequence[Mapping], broken: Sequence[Failure]) -> None:
    """Write what CI asks for: JUnit XML, and a summary where a GitHub step wants one.

    Args:
        broken: broken limits.
    """
    cases = []
    for run in _named(runs, args.logdir, runs):
        reasons = [failure["reason"] for failure in broken if failure["id"] == run["id"]]
        cases.append(Case(run["run"], "limits", "failure" if reasons else "passed", reasons, run["wall_s"] or 0.0))
    if args.junit:
        options.write_text(args.junit, [junit(cases)])
    count = len({failure["id"] for failure in broken})
    add_to_summary("report", f"{count} of {len(runs)} runs failed" if count else _within(len(runs)), cases)


def _warn(problems: Iterable[ReportedProblem]) -> None:
    for problem in problems:
        print(strip_control(f"gpu-util: {problem['path']}: {problem['message']}"), file=sys.stderr)


def _share(text: str) -> float:
    """Parse a percentage for argparse."""
    number = amount(text)
    if number > 100:
        raise argparse.ArgumentTypeError(f"{text!r} must be a percentage from 0 to 100")
    return number


def _time(text: str) -> float:
    """Parse seconds, or a time with its unit, for argparse."""
    unit_s = {"s": 1, "m": 60, "h": 3600}.get(text[-1:], 0)
    return amount(text[:-1] if unit_s else text) * (unit_s or 1)


def _check(args: argparse.Namespace) -> Check | None:
    """Return the limits to check; None = nothing is checked. Any limit implies `--check`."""
    forbid = [cause.strip() for text in args.forbid for cause in text.split(",")]
    cause_of = {name.casefold(): rule.cause for rule in RULES for name in (rule.title, rule.cause)}
    unknown = [cause for cause in forbid if cause.casefold() not in cause_of]
    if unknown:
        raise UnusableInput(f"--forbid {unknown[0]}: no such cause{meant(unknown[0].casefold(), cause_of)}")
    limits = {limit.name: getattr(args, limit.name) for limit in fields(Check) if limit.name != "forbid"}
    check = Check(**limits, forbid=[cause_of[cause.casefold()] for cause in forbid])
    checked = args.check or check.limited
    if args.junit and not checked:
        raise UnusableInput("--junit needs --check")
    return check if checked else None


def nothing_in(*logdirs: str) -> UnusableInput:
    """Return the error for log directories without a recording."""
    return UnusableInput(
        f"no recording in {', '.join(logdirs)}: looked for <run>/plugins/gpu_utilization/*/"
        "manifest.json; add callbacks=[GpuUtilCallback(log_dir)] to model.fit and train"
    )


def open_recordings(logdirs: Iterable[str], only: list[str] | None, timeout_s: float) -> Recordings:
    """Open the recordings of log directories, or only of some of their runs.

    Args:
        only: names of runs; None = all.
        timeout_s: seconds to wait for a remote store.

    Raises:
        UnusableInput: nothing is there that could be read.
    """
    logdirs = list(logdirs)
    names = _names(logdirs)
    unread: list = []
    of_logdir: list[tuple[str, list]] = []
    for logdir in logdirs:
        _remote.wait_for_answer(logdir, timeout_s, " --timeout S waits longer.")
        recordings = read_recordings(logdir)
        _warn(reported(recordings.problems))
        ordered = sorted(recordings, key=lambda recording: recording.start_ns or 0)
        if not ordered:
            raise nothing_in(logdir)
        unread += recordings.unread
        of_logdir.append((names[logdir], ordered))
    if len(logdirs) > 1:
        _tell_apart(of_logdir)
    recordings_found = [recording for _, ordered in of_logdir for recording in ordered]
    if only:
        names_found = sorted({recording.run for recording in recordings_found})
        missing = [name for name in only if name not in names_found]
        if missing:
            raise UnusableInput(f"no run {missing[0]!r}; available: {', '.join(names_found)}")
        recordings_found = [recording for recording in recordings_found if recording.run in only]
    return Recordings(recordings_found, unread)


def _names(logdirs: list[str]) -> dict[str, str]:
    """Return a name for each log directory: its folder's name, or the whole path if two share that."""
    names = {}
    for logdir in logdirs:
        name = re.split(r"[/\\]", without_secrets(logdir).rstrip("/\\"))[-1]
        names[logdir] = Path(logdir).resolve().name if name in ("", ".", "..") else name
    shared = Counter(names.values())
    return {logdir: name if name and shared[name] == 1 else without_secrets(logdir) for logdir, name in names.items()}


def _tell_apart(of_logdir: list[tuple[str, list]]) -> None:
    """Rename the runs of several log directories so that no two share a name.

    Args:
        of_logdir: name of each log directory, and its recordings.
    """
    holders = Counter(run for _, recordings in of_logdir for run in {recording.run for recording in recordings})
    for name, recordings in of_logdir:
        for recording in recordings:
            if recording.run == ".":
                recording.run = name
            elif holders[recording.run] > 1:
                recording.run = f"{name}/{recording.run}"
