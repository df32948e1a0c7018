"""Measure and record a blind set: `python -m gauntlet.blind SET [--establish N] [--record DIR]`."""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
SETS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh")
BURN = "while True: pass"


def facts(path: Path) -> dict[str, str]:
    """Return the constants of a program (BACKEND, CAUSE, USES, BUSY, NOISE, REMEDY) and its docstring, unimported."""
    tree = ast.parse(path.read_text())
    named = {
        "USES": "callback",
        "BUSY": "",
        "CAUSE": "",
        "NOISE": "",
        "REMEDY": "",
        "DOC": ast.get_docstring(tree) or "",
    }
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets, value = node.targets[0], ast.literal_eval(node.value)
            pairs = zip(targets.elts, value, strict=True) if isinstance(targets, ast.Tuple) else [(targets, value)]
            named |= {target.id: one for target, one in pairs if isinstance(target, ast.Name)}
    return named


class Trainer:
    """Trains programs in processes of their own; those that nobody records are forked, with their imports done."""

    def __init__(self) -> None:
        self.servers: dict[str, subprocess.Popen] = {}

    def seconds(self, path: Path, program: dict[str, str], variant: str, logs: Path | None = None) -> dict[str, float]:
        """Train, recorded if `logs` is given; return the seconds of wall clock and CPU."""
        module = ".".join(("gauntlet.blind", path.parent.name, path.stem))
        with _neighbours(2 if variant in program["BUSY"].split() else 0):
            if logs:
                printed = _recorded(module, program, variant, logs)
            else:
                printed = self._forked(module, program, variant)
        found = [line for line in printed.splitlines() if line.startswith('{"wall_s"')]
        if not found:
            raise RuntimeError(f"{module} {variant}:\n{printed[-4000:]}")
        return json.loads(found[-1])

    def _forked(self, module: str, program: dict[str, str], variant: str) -> str:
        backend = program["BACKEND"]
        if backend not in self.servers:
            frameworks = [backend, *(["keras"] if program["USES"] == "callback" or backend == "tensorflow" else [])]
            command = [sys.executable, "-m", "gauntlet.blind.forked", *frameworks]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            self.servers[backend] = subprocess.Popen(command, text=True, env=_environment(backend), **pipes)
        server, lines = self.servers[backend], []
        server.stdin.write(f"{module} {variant} {1 + (program['USES'] == 'torchrun')}\n")
        server.stdin.flush()
        while not (line := server.stdout.readline()).startswith("ended"):
            lines.append(line)
            if not line:
                raise RuntimeError(f"{module} {variant}: its server ended\n{''.join(lines)}")
        return "".join(lines)


def _environment(backend: str) -> dict[str, str]:
    return os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}


@contextlib.contextmanager
def _neighbours(count: int) -> Iterator[None]:
    """Keep so many cores busy."""
    burners = [subprocess.Popen([sys.executable, "-c", BURN], start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def _recorded(module: str, program: dict[str, str], variant: str, logs: Path) -> str:
    """Train as a user would, recorded, and return all that is printed."""
    command, arguments = [sys.executable], ["-m", module, variant]
    if program["USES"] == "torchrun":
        command += [
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
            "--master-port",
            str(20000 + os.getpid() % 10000),
        ]
    if program["USES"] == "run":
        command += ["-m", "gpu_util_callback", "run", "--log-dir", str(logs)]
    else:
        arguments.append(str(logs))
    env = _environment(program["BACKEND"])
    done = subprocess.run(command + arguments, capture_output=True, text=True, env=env, timeout=400, check=False)
    logs.mkdir(parents=True, exist_ok=True)
    (logs / "printed.txt").write_text(done.stdout + done.stderr)
    return done.stdout + (done.stderr if done.returncode else "")


def report(logs: Path) -> str:
    """Return what `gpu-util report` prints about a recording."""
    command = [sys.executable, "-m", "gpu_util_callback", "report", str(logs)]
    environment = {**os.environ, "COLUMNS": "150"}
    text = subprocess.run(command, capture_output=True, text=True, check=False, env=environment).stdout
    (logs / "report.txt").write_text(text)
    return text


def establish(trainer: Trainer, path: Path, result: dict, pairs: int) -> None:
    """Train a program as it is, without its cause (or noise) and with another remedy, in turns."""
    program = facts(path)
    ratios = {"pairs": "without"} if program["CAUSE"] or program["NOISE"] else {}
    if program["REMEDY"]:
        ratios["remedy"] = "remedy"
    while ratios and len(result.get("pairs", [[]])[0]) < pairs:
        plain = trainer.seconds(path, program, "plain")
        for name, variant in ratios.items():
            changed = trainer.seconds(path, program, variant)
            for measured, unit in zip(result.setdefault(name, [[], []]), ("wall_s", "cpu_s"), strict=True):
                measured.append(round(plain[unit] / changed[unit], 2))


def record(trainer: Trainer, path: Path, keep: Path) -> None:
    """Record a program once, and keep what `gpu-util report` prints about it; not again if it is there."""
    if not (keep / path.stem / "report.txt").exists():
        trainer.seconds(path, facts(path), "plain", keep / path.stem)
        report(keep / path.stem)


def ratio(measured: list[list[float]]) -> str:
    """Return the median ratio of wall-clock seconds, and its pairs and the CPU's in brackets."""
    wall, cpu = measured
    pairs = ", ".join(f"{one:.1f}" for one in wall)
    return f"{statistics.median(wall):.1f}× [{pairs}; CPU {statistics.median(cpu):.1f}]"


def table(paths: list[Path], results: dict) -> str:
    """Return the Markdown table of a set; what was judged is written into its JSON file by hand."""
    rows = [
        "| program | backend | cause | ratio without it [pairs] | right | first finding | promise | judged | other |",
        "|" + " --- |" * 9,
    ]
    for path in paths:
        program, result = facts(path), results.get(path.stem, {})
        cause = program["CAUSE"] or "none" + (f" ({program['NOISE']})" if program["NOISE"] else "")
        gain = ratio(result["pairs"]) if "pairs" in result else "-"
        if "remedy" in result:
            gain += f"; {program['REMEDY']}: {ratio(result['remedy'])}"
        right = " ".join(program["DOC"].partition("Right: ")[2].split())
        read = [result.get(column, "") for column in ("finding", "promise", "judged", "again")]
        rows.append("| " + " | ".join([path.stem, program["BACKEND"], cause, gain, right, *read]) + " |")
    return "\n".join(rows) + "\n"


def main() -> None:
    """Measure what the command line names, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m gauntlet.blind")
    parser.add_argument("set", choices=SETS)
    parser.add_argument("--establish", type=int, default=0, metavar="N", help="run the pairs that are missing, of N")
    parser.add_argument("--record", type=Path, metavar="DIR", help="record the programs that have no recording there")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    options = parser.parse_args()
    stored = HERE / f"{options.set}.json"
    results = json.loads(stored.read_text()) if stored.exists() else {}
    trainer = Trainer()
    paths = sorted(path for path in (HERE / options.set).glob("*.py") if path.stem != "__init__")
    for path in paths:
        if options.only and path.stem not in options.only:
            continue
        result = results.setdefault(path.stem, {})
        try:
            if options.establish:
                establish(trainer, path, result, options.establish)
            if options.record:
                record(trainer, path, options.record)
        except RuntimeError as error:
            print(error, flush=True)
        if options.establish:
            others = json.loads(stored.read_text()) if stored.exists() else {}
            stored.write_text(json.dumps(others | {path.stem: result}, indent=1))
    print(table(paths, results))


if __name__ == "__main__":
    main()
