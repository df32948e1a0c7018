"""An agent without a language model follows `gpu-util skill` by the letter: `python -m gauntlet.agent --json FILE`.

Each program is copied, recorded, read; a loop of its own gets the monitor's two lines first. The finding to fix first
is tried, then the next one where it cannot be tried or shows no gain; where the trial proves it, its line is pasted by
rule (`pasting.py`) and proven by `ab`: at most three rounds, one change in each. A question is answered by the trial
alone. Programs: `new_trials/*.py`, whose first line says the change that is known to help, those of the gauntlet itself
by name, and scripts of your own. Reachable is what that change gains by `try`; of a program of the gauntlet the most
that a declared cure gains by `ab`; of a blind set (`blind/first/NAME.py`) what its set's table has. What the agent
reached is the product of its `ab`s.

    python -m gauntlet.agent --json gauntlet/agent.json --table gauntlet/agent.md [--only NAME…] [SCRIPT or NAME…]

Runs many trainings of a few seconds, one at a time, five to ten minutes a program; leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from gauntlet.pasting import monitored, pasted
from gauntlet.registry import load

HERE = Path(__file__).parent
ROUNDS = 3
TRIES = 3  # findings that are tried in a round
RECORD_S = 240.0  # with imports; a program of 13 s took 70 at low priority beside a load of 8
ENGINE = ["--yes", "--steps", "100", "--seconds", "6", "--pairs", "4-6"]
LEAST_SHARE = 0.05  # of the run, that the headline must save
FACTOR = re.compile(r"×([\d.]+) \[([\d.]+) … ([\d.]+)\]")


class Agent:
    """At work on one program.

    Args:
        text: of the program.
        folder: where its copies and its recordings go.
    """

    def __init__(self, text: str, folder: Path) -> None:
        self.folder = folder
        self.original, self.program = folder / "original.py", folder / "train.py"
        for copy in (self.original, self.program):
            copy.write_text(text)
        chosen = re.search(r'BACKEND[^=]*= "(\w+)"', text)
        backend = chosen[1] if chosen else "torch" if "import torch" in text else "tensorflow"
        self.environ = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
        root = str(HERE.parent)
        self.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))

    def gpu_util(self, *words: str, limit_s: float | None = None) -> subprocess.CompletedProcess[str]:
        """A command of ours; after a limit, Ctrl+C."""
        command = [sys.executable, "-m", "gpu_util_callback", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, cwd=self.folder, env=self.environ, **pipes)  # type: ignore[call-overload]
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate()
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def work(self) -> dict[str, Any]:
        """All rounds: the factor reached, the rounds, and why it stopped."""
        rounds: list[dict[str, Any]] = []
        reached = 1.0
        while len(rounds) < ROUNDS:
            shutil.rmtree(self.folder / "logs", ignore_errors=True)
            one = self.round("logs")
            rounds.append(one)
            if one.get("status") != 0:
                break
            reached *= one["ab"][0]
        return {"reached": round(reached, 3), "rounds": rounds, "stopped": rounds[-1].get("stop", "three rounds")}

    def round(self, logs: str) -> dict[str, Any]:
        """Record, read, try, paste, prove: what came out, `stop` where that ends it."""
        recorded = self.gpu_util("run", "--log-dir", logs, "train.py", limit_s=RECORD_S)
        with_monitor = None if (self.folder / logs).exists() else monitored(self.program.read_text())
        if with_monitor is not None:
            self.program.write_text(with_monitor)
            recorded = self.gpu_util("run", "--log-dir", logs, "train.py", limit_s=RECORD_S)
        read = self.gpu_util("report", logs, "--json")
        if read.returncode:
            said = (recorded.stderr.strip().splitlines() or read.stderr.strip().splitlines())[-1:]
            return {"stop": f"not recorded: {''.join(said)[:200]}"}
        run = json.loads(read.stdout)["runs"][-1]
        found: dict[str, Any] = {"verdict": run["verdict"]}
        headline = run["headline"]
        findings = {one["id"]: one for one in [*run["findings"], *run["spans"]]}
        leads = [findings[headline["ids"][0]]] if headline else []
        first = next((one for one in [*leads, *findings.values()] if one["advice"]["code"]), None)
        if first is None:
            return {**found, "stop": "no finding with a line to paste"}
        found |= {"cause": first["cause"], "question": first["advice"]["question"], "code": first["advice"]["code"]}
        most = (first["saves_range_s"] or [None, None])[1]
        if most is not None and most < LEAST_SHARE * (run["wall_s"] or 0):
            return {**found, "stop": "it saves less than a twentieth"}
        outcomes: list[dict[str, Any]] = []
        for place in range(1, TRIES + 1):
            outcome = self.tried(logs, place)
            outcomes += [outcome] if outcome else []
            if outcome is None or "status" in outcome:
                break
        pasted_one = next((one for one in outcomes if "status" in one), outcomes[0])
        others = [one for one in outcomes if one is not pasted_one]
        return {**found, **pasted_one, **({"others": others} if others else {})}

    def tried(self, logs: str, place: int) -> dict[str, Any] | None:
        """Try a finding, and where that proves it paste it and hold both versions against one another.

        None where the report has fewer findings.
        """
        done = self.gpu_util("try", *ENGINE, "--json", "--log-dir", logs, "--fix", str(place), "train.py")
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines()
            ours = [line for line in lines if line.startswith("gpu-util:")]  # a library may write after it
            said = (ours or lines)[-1]
            return None if "the report has" in said else {"stop": f"try: {said[:200]}"}
        trial = json.loads(done.stdout[done.stdout.index("{") :])
        found = {"try": [trial["ratio"], trial["low"], trial["high"]], "tried": trial["change"]}
        if not trial["resolved"] or trial["low"] <= 1:
            return {**found, "stop": "the trial proves no gain"}
        before = self.program.read_text()
        after = pasted(before, trial["code"])
        if after is None:
            return {**found, "stop": f"no rule pastes {trial['code'].splitlines()[0]!r}"}
        (self.folder / "before.py").write_text(before)
        self.program.write_text(after)
        python = sys.executable
        done = self.gpu_util("ab", *ENGINE, f"{python} before.py", f"{python} train.py")
        factor = FACTOR.search(done.stdout)
        found |= {"status": done.returncode, "ab": [float(text) for text in factor.groups()] if factor else None}
        if done.returncode or factor is None:
            self.program.write_text(before)
            last = (done.stdout + done.stderr).strip().splitlines()[-1:]
            return {**found, "status": done.returncode or 2, "stop": f"ab: {''.join(last)[:200]}"}
        return found

    def reachable(self, words: str) -> list[float] | None:
        """What the change that is known to help gains, of the program as it was: ratio, low, high."""
        done = self.gpu_util("try", *ENGINE, "--json", "--change", words, "original.py")
        if done.returncode:
            return None
        trial = json.loads(done.stdout[done.stdout.index("{") :])
        return [trial["ratio"], trial["low"], trial["high"]]

    def declared(self, variants: Iterable[str]) -> list[float] | None:
        """What the best declared variant of a program of the gauntlet gains, by `ab`: ratio, low, high."""
        gains = []
        for variant in variants:
            script = f"{sys.executable} original.py"
            done = self.gpu_util("ab", *ENGINE, "--allow-different", script, f"{script} {variant}")
            factor = FACTOR.search(done.stdout)
            gains += [[float(text) for text in factor.groups()]] if factor else []
        return max(gains, default=None)


def standalone(name: str) -> str:
    """A program of the gauntlet as a script that trains it, or the declared variant that is its argument."""
    one = load()[name]
    text = (HERE / f"{one.train.__module__.rpartition('.')[2]}.py").read_text()
    future = "from __future__ import annotations\n"
    begin = f'import os\n\nos.environ["KERAS_BACKEND"] = "{one.backend}"\n'
    end = [
        "",
        'if __name__ == "__main__":',
        "    import sys",
        "    from gauntlet.child import Run",
        "    keras.utils.set_random_seed(7)" if re.search(r"import .*\bkeras\b", text) else "",
        f"    {name}(Run(*sys.argv[1:2], log_dir='logs'))",
        "",
    ]
    return future + begin + text.replace(future, "") + "\n".join(end)


def share(row: dict[str, Any]) -> float | None:
    """The share of the time that can be saved that the agent saved; None where nothing can be, or nobody knows."""
    known = row.get("reachable")
    if known is None or known[1] <= 1:
        return None
    return (1 - 1 / row["reached"]) / (1 - 1 / known[0])


def table(rows: list[dict[str, Any]]) -> str:
    heads = ["program", "reachable", "reached", "share", "rounds", "first line", "stopped"]
    lines = [f"| {' | '.join(heads)} |", "| --- | ---: | ---: | ---: | ---: | --- | --- |"]
    for row in rows:
        known, part = row.get("reachable"), share(row)
        first = row["rounds"][0]
        cells = [
            row["program"],
            "×{:.2f} [{:.2f} … {:.2f}]".format(*known) if known else "not known",
            f"×{row['reached']:.2f}",
            f"{100 * part:.0f} %" if part is not None else "–",
            str(sum(one.get("status") == 0 for one in row["rounds"])),
            f"`{first['code'].splitlines()[0]}`" if "code" in first else "–",
            row["stopped"].replace("|", "\\|"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    told = [part for part in map(share, rows) if part is not None]
    slower = sum(1 for row in rows for one in row["rounds"] if one.get("ab") and one["ab"][0] < 1 / 1.05)
    most = sum(part >= 0.8 for part in told)
    lines += ["", f"{len(rows)} programs. At least 80 % of what is reachable: {most} of {len(told)}."]
    lines += [f"Pasted lines that made a program slower than 1.05 times: {slower}."]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gauntlet.agent", description=__doc__.splitlines()[0])
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help="or name of a program; instead of new_trials/*.py")
    parser.add_argument("--json", required=True, type=Path, metavar="FILE", help="programs in it are left out")
    parser.add_argument("--table", type=Path, metavar="FILE")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these (regular expressions)")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background, and by all that is started
    rows = json.loads(options.json.read_text()) if options.json.exists() else []
    programs = load()
    for given in options.scripts or sorted((HERE / "new_trials").glob("*.py")):
        script, name = Path(given), Path(given).stem
        if any(row["program"] == name for row in rows):
            continue
        if options.only and not any(re.fullmatch(pattern, name) for pattern in options.only):
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="agent-") as folder:
            text = standalone(name) if name in programs else script.read_text()
            agent = Agent(text, Path(folder))
            row = {"program": name, **agent.work()}
            known, table_of = re.match(r"# try: (.+)", text), Path(f"{script.parent}.json")
            if name in programs:
                row["reachable"] = agent.declared(programs[name].cures)
            elif known:
                row["reachable"] = agent.reachable(known[1])
            elif table_of.exists():
                ratios = json.loads(table_of.read_text()).get(name, {}).get("pairs", [[]])[0]
                row["reachable"] = [median(ratios), min(ratios), max(ratios)] if ratios else None
        row["took_s"] = round(time.monotonic() - began)
        rows.append(row)
        print(json.dumps(row), flush=True)
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    text = table(rows)
    print(text)
    if options.table:
        options.table.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
