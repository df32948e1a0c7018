"""Print what this checkout's rules say about every recording in the repository.

python -m harness.verdicts > before    (and again after a change: `diff` shows what it moved)
"""

from pathlib import Path

from gpu_util_callback.diagnosis import engine, logdir_report
from gpu_util_callback.recording import read_recordings
from gpu_util_callback.report.terminal import render

ROOT = Path(__file__).resolve().parents[1]
LOGDIRS = "tests/evidence/h200/programs/*", "demo/recorded/*/*", "docs/try/*"
WIDTH = 110  # columns


def main() -> None:
    """Print a report of each log directory; those without a recording have none."""
    engine.RULES_VERSION = 0  # no stored diagnosis is of these rules
    for logdir in sorted(path for pattern in LOGDIRS for path in ROOT.glob(pattern)):
        if logdir.is_dir():
            print(f"##### {logdir.relative_to(ROOT)}")
            print(render(logdir_report(read_recordings(str(logdir))), WIDTH))


if __name__ == "__main__":
    main()
