"""What the readers of traces make of an input: the answers of the command make sense."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import zlib
from pathlib import Path
from random import Random

from harness.support.trace_oracle import sane

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def prepare() -> None:
    for name in ("cli.trace", "traces.xplane", "traces.kineto", "traces.nsys", "traces.imported"):
        importlib.import_module(f"gpu_util_callback.{name}")


def references(*patterns: str) -> list[Path]:
    """Public traces with known answers, where they lie beside this checkout."""
    return [path for pattern in patterns for path in sorted(DATA.glob(pattern))]


def check(data: bytes, folder: Path, suffix: str) -> str:
    """The JSON of every input, its text of some, a recording of a few."""
    chance = zlib.crc32(data)
    return _answers(data, folder, suffix, text=chance % 8 == 0, log_dir=chance % 64 == 1)


def judge(data: bytes, folder: Path, suffix: str) -> str:
    return _answers(data, folder, suffix, text=True, log_dir=True)


def _answers(data: bytes, folder: Path, suffix: str, text: bool, log_dir: bool) -> str:
    path = folder / f"trace{suffix}"
    path.write_bytes(data)
    status, out, _ = _command(str(path), "--json")
    if not status:
        result = json.loads(out)
        sane(result)
        assert result["paths"] == [str(path)]
    else:
        assert not out, "output beside an error"
    if text:
        again, out, _ = _command(str(path))
        assert again == status, "text and JSON differ"
    if log_dir:
        _command(str(path), "--log-dir", str(folder / "logs"))
    return "refused" if status else "read"


def _command(*arguments: str) -> tuple[int, str, str]:
    from gpu_util_callback.cli import main

    out, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        status = main(["trace", *arguments])
    lines = [ln for ln in said.getvalue().splitlines() if not ln.startswith("written: ")]
    assert status in (0, 2), f"exit code {status}"
    assert len(lines) == (status == 2), f"{len(lines)} lines on stderr: {lines}"
    assert not lines or (lines[0].startswith("gpu-util trace: ") and len(lines[0]) < 1000)
    return status, out.getvalue(), said.getvalue()


def seeded(random: Random, seeds: list) -> object:
    """One of the seeds, the small ones more often."""
    return seeds[min(random.randrange(len(seeds)) for _ in range(2))]
