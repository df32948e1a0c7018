"""Run the gauntlet: `python -m gauntlet --help`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gauntlet.judging import Result, first_of, summary, table
from gauntlet.registry import Program, load

LONGEST_S = 600  # a training


def main(arguments: list[str] | None = None) -> int:
    """Run the selected programs; returns an exit code."""
    options = _options(arguments)
    programs = [
        program
        for name, program in load().items()
        if program.gpu == options.gpu and (not options.only or any(re.fullmatch(one, name) for one in options.only))
    ]
    if not programs:
        print("no program of this name", file=sys.stderr)
        return 2
    if options.list:
        for program in programs:
            print(f"{program.name:<32}{program.backend:<12}{program.truth}")
        return 0
    results = _measured(options.json)
    if options.rejudge:
        results = [_judge_again(result, options) for result in results]
        programs = []
    programs = [program for program in programs if program.name not in {one.program for one in results}]
    for program in programs:
        result = measure(program, options)
        results.append(result)
        print(_line(result), flush=True)
        _write(results, options)
    _write(results, options)
    if options.rejudge:
        print("\n".join(_line(result) for result in results))
    print("\n".join(summary(results)))
    return 0


def _write(results: list[Result], options: argparse.Namespace) -> None:
    if options.json:  # after each program: an interrupted gauntlet keeps what it has
        Path(options.json).write_text(json.dumps([result.to_json() for result in results], indent=1))
    if options.table:
        Path(options.table).write_text(table(results))


def _measured(path: str | None) -> list[Result]:
    """Return the results of an earlier gauntlet, without those that failed."""
    if not path or not Path(path).exists():
        return []
    results = [Result.from_json(result) for result in json.loads(Path(path).read_text())]
    return [result for result in results if not result.error]


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gauntlet",
        description="Train programs with a known bottleneck, follow what is printed about them, "
        "and compare the promised gain with the true one. An hour or two for all of them.",
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these (regular expressions)")
    parser.add_argument("--rounds", type=int, default=3, help="recorded, plain and cured in turns")
    parser.add_argument("--quick", action="store_true", help="only the first findings: one recorded run each, no cures")
    parser.add_argument("--gpu", action="store_true", help="the programs for an NVIDIA GPU, and no others")
    parser.add_argument("--busy", action="store_true", help="keep every core busy beside them")
    parser.add_argument("--json", metavar="FILE", help="add all that was measured; skip the programs in it")
    parser.add_argument("--keep", metavar="DIR", help="keep the recordings there")
    parser.add_argument(
        "--rejudge", action="store_true", help="train nothing: judge the kept recordings by the rules of today"
    )
    parser.add_argument("--table", metavar="FILE", help="write a Markdown table")
    parser.add_argument("--list", action="store_true", help="list the programs")
    parser.add_argument("--verbose", action="store_true", help="show what each program prints")
    options = parser.parse_args(arguments)
    if options.rejudge and not (options.keep and options.json):
        parser.error("--rejudge needs --keep DIR, the recordings, and --json FILE, what was measured of them")
    return options


def measure(program: Program, options: argparse.Namespace) -> Result:
    """Train a program in all its variants, in turns.

    Each recorded training has a process of its own: our account covers the time between the fits
    of a process. All the others share one.
    """
    result = Result(program.name, program.truth, program.bound)
    cores = (os.cpu_count() or 1) if options.busy else 0
    try:
        with burners(max(program.burners, cores)), contextlib.ExitStack() as stack:
            plain = None if options.quick else stack.enter_context(Process(program, options))
            for number in range(1 if options.quick else options.rounds):
                _record(result, program, options)
                if plain is not None:
                    _try(result, program, plain, number)
            if plain is not None and not program.bound.startswith("without:"):
                result.alone_ms = plain.ask(program.name, alone=True)
    except (RuntimeError, OSError) as error:
        result.error = str(error)
    return result


def _record(result: Result, program: Program, options: argparse.Namespace) -> None:
    """Train the program as it is, recorded, and note what is printed about it."""
    with contextlib.ExitStack() as stack:
        log_dir = _kept(program, options, len(result.firsts))
        log_dir = log_dir or stack.enter_context(tempfile.TemporaryDirectory(prefix="gauntlet-logs-"))
        with Process(program, options) as process:  # a recording of several fits ends with it
            recorded = process.ask(program.name, variant="base", log_dir=log_dir)
        result.seconds.setdefault("recorded", []).append(recorded["seconds"])
        result.note_first(program, first_of(log_dir, recorded["printed"]))


def _kept(program: Program, options: argparse.Namespace, number: int) -> str:
    """Return the folder that a recording of this round is kept in; "" = it is not kept."""
    return str(Path(options.keep, program.name, str(number)).absolute()) if options.keep else ""


def _judge_again(result: Result, options: argparse.Namespace) -> Result:
    """Return a result by what this version says of its recordings, where all are kept."""
    program = load()[result.program]
    log_dirs = [_kept(program, options, number) for number in range(len(result.firsts))]
    if not all(log_dir and Path(log_dir).is_dir() for log_dir in log_dirs):
        return result
    again = replace(result, firsts=[])
    for log_dir in log_dirs:
        again.note_first(program, first_of(log_dir))
    return again


def _try(result: Result, program: Program, process: Process, number: int) -> None:
    """Train the program as it is, with the printed cure and without its declared cause."""
    variants = ["base", result.cure, program.bound.partition("without:")[2]]
    if number % 2:  # neither always comes first
        variants[:2] = variants[1::-1]
    values = {variant: result.value if variant == result.cure else "" for variant in variants if variant}
    if not number:  # imports and, on a GPU, the compilation of kernels happen only once
        for variant in values if program.gpu else ["base"]:
            process.ask(program.name, variant=variant, value=values[variant])
    for variant, value in values.items():
        trained = process.ask(program.name, variant=variant, value=value)
        result.seconds.setdefault(variant, []).append(trained["seconds"])
        result.changed.setdefault(variant, trained["changed"])


def _line(result: Result) -> str:
    first = result.firsts[0] if result.firsts else None
    seconds = ", ".join(f"{name} {min(all_):.1f} s" for name, all_ in result.seconds.items())
    alone = ", ".join(f"{part} alone {ms:.3g} ms" for part, ms in result.alone_ms.items())
    marks = {True: "right", False: "WRONG", None: "-"}
    lines = [f"{result.program}: {marks[result.right]} ({seconds}; {alone})"]
    lines += [f"    truth: {result.truth}; confirmed: {result.confirmed}"]
    if result.error:
        lines += [f"    error: {result.error}"]
    if first is not None:
        asks = "asks" if first.question else "fix" if first.fixed_first else "not first"
        cure = f"{result.cure} {result.value}".strip() or ("not tried" if first.code else "none")
        gain = "" if result.followed is None else f", true gain {result.followed:.2f}"
        lines += [
            f"    {first.cause or 'nothing'}: {first.verdict}",
            f"    {asks}: {first.text} [{first.code.replace(chr(10), ' / ')}]",
            f"    cure: {'HARMFUL ' if result.harmful else ''}{cure}, promised {first.gain}{gain}, "
            f"changes {first.changes or '-'}; changed {result.changed}, equal {result.equal}",
        ]
    return "\n".join(lines)


class Process:
    """A process that trains programs of one backend."""

    def __init__(self, program: Program, options: argparse.Namespace) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        environment = os.environ | {"KERAS_BACKEND": program.backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
        if program.gpu:  # which the processes share
            environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        elif program.backend == "jax":
            environment["JAX_PLATFORMS"] = "cpu"
        self.child = subprocess.Popen(
            [sys.executable, "-m", "gauntlet.child"],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if options.verbose else self.log,
        )

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.child.stdin is not None
        with contextlib.suppress(OSError):
            self.child.stdin.close()
        try:
            self.child.wait(10)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self.log.close()

    def ask(self, program: str, **request: object) -> dict:
        """Return the answer. Raises: RuntimeError, if the program failed or took too long."""
        assert self.child.stdin is not None and self.child.stdout is not None
        print(json.dumps({"program": program} | request), file=self.child.stdin, flush=True)
        with selectors.DefaultSelector() as selector:
            selector.register(self.child.stdout, selectors.EVENT_READ)
            if not selector.select(LONGEST_S):
                self.child.kill()
                self.child.wait()
                raise RuntimeError(f"{request} took over {LONGEST_S} s")
        answer = self.child.stdout.readline()
        if not answer:
            self.log.seek(0)
            raise RuntimeError(f"{request}: {self.log.read()[-1500:].decode(errors='replace')}")
        answer = json.loads(answer)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer


@contextlib.contextmanager
def burners(count: int) -> Iterator[None]:
    """Keep `count` cores busy from other processes."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
