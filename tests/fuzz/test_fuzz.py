"""The fuzz harness itself, the corpus of inputs that once failed, some seconds of new inputs."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "harness" / "fuzz"
FORMATS = [path.stem.removeprefix("format_") for path in sorted(FOLDER.glob("format_*.py"))]
CORPUS = sorted(FOLDER.glob("corpus/*/*"))


def python(*arguments: str, timeout: float = 280) -> subprocess.CompletedProcess[str]:
    """A Python of its own: the harness forks, which a process with threads had better not do."""
    return subprocess.run([sys.executable, *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=timeout)


TOY = """
import os, sys, time
from harness.fuzz import fuzzer

def check(data, folder):
    word = data.split()[0].decode()
    (folder / "kept").write_text("emptied after each input")
    assert os.listdir(folder) == ["kept"]
    if word == "hang":
        while True: pass
    if word == "memory": return "read" * (len(b"x" * (100 << 20)) > 0)
    if word == "endless": bytes(64 << 30)
    if word == "die": os.abort()
    if word == "raise": raise KeyError("x")
    if word == "warn": print("careful", file=sys.stderr)
    if word == "odd": assert False, "a share of 200 %"
    return word

words = b"read read hang memory endless die raise warn odd".split()
bounds = {"seconds": 0.6, "memory": 32 << 20}  # beside other tests, 100 MiB took over 0.2 s
toy = fuzzer.Format("toy", lambda random: random.choice(words), check, **bounds)
report = fuzzer.run(toy, 1, range(12))
again = fuzzer.run(toy, 1, range(12))
assert report.outcomes == again.outcomes and report.inputs == 12, report
print(*sorted({f.kind + " " + f.data.decode() for f in report.failures.values()}), sep=",")
failure = fuzzer.Failure("toy", -1, "raised", "KeyError <string>:check", "", b"raise a b c d e f")
print(len(fuzzer.minimise(toy, failure, 20).data))
"""


def test_the_harness_catches_what_a_check_does():
    done = python("-c", TOY)
    assert done.returncode == 0, done.stderr
    kinds, left = done.stdout.split("\n")[:2]
    assert kinds.split(",") == [
        "died die",
        "memory endless",
        "memory memory",
        "raised odd",
        "raised raise",
        "stderr warn",
        "time hang",
    ]
    assert int(left) < 8


# They reach 98 in 100 of the package's lines that twice as many reach; a recording is read, reported and served.
INPUTS = {("recording",): 40, tuple(name for name in FORMATS if name != "recording"): 150}


@pytest.fixture(scope="module")
def fuzzed() -> dict[tuple[str, ...], subprocess.CompletedProcess[str]]:
    """The corpus and some new inputs, in a process for each of INPUTS."""
    done = {}
    for names, inputs in INPUTS.items():
        chosen = [part for name in names for part in ("--format", name)]
        done[names] = python("-m", "harness.fuzz", *chosen, "--replay", "--inputs", str(inputs), "--seed", "1")
    return done


@pytest.fixture(scope="module")
def replayed(fuzzed) -> dict[tuple[str, str], dict]:
    lines = [json.loads(line) for one in fuzzed.values() for line in one.stdout.splitlines() if line.startswith("{")]
    return {(line["format"], line["file"]): line for line in lines}


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_input_that_once_failed(path, replayed):
    line = replayed[(path.parent.name, path.name)]
    assert line["outcome"] != "failed", f"{line['signature']}\n{line['text']}"


def test_the_corpus_is_small():
    assert all(path.stat().st_size <= 2048 for path in CORPUS)


@pytest.mark.parametrize("names", INPUTS, ids=["recording", "others"])
def test_some_new_inputs(names, fuzzed):
    lines = [line for line in fuzzed[names].stdout.splitlines() if not line.startswith("{")]
    ended = [f"{name}: seed 1, inputs 0 to {INPUTS[names]}: " for name in names]
    assert len(lines) == len(ended), f"{lines}\n{fuzzed[names].stderr}"  # a line more for each failure
    assert all(line.startswith(begin) for line, begin in zip(lines, ended, strict=True)), lines


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_many_new_inputs(name):
    done = python("-m", "harness.fuzz", "--format", name, "--minutes", "2", "--seed", "2", "--as-is")
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_error_that_the_package_only_logs_is_a_failure():
    from harness.fuzz.format_recording import Unforeseen

    log = logging.getLogger("gpu_util_callback")
    before = log.level, log.propagate, list(log.filters)
    error = KeyError("x")
    with Unforeseen() as unforeseen:
        log.debug("cannot be shown", exc_info=error)
    assert unforeseen.error is error
    assert (log.level, log.propagate, log.filters) == before
