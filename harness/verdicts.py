"""Print what this checkout's rules say about every recording in the repository.

python -m harness.verdicts > before    (and again after a change: `diff` shows what it moved)

With `--sums` each is judged by sums that were stored and restored, as those of a newer recording are.
"""

import sys
from pathlib import Path
from typing import Any

from gpu_util_callback.diagnosis import engine, logdir_report
from gpu_util_callback.recording import Recording, read_recordings
from gpu_util_callback.report.terminal import render

ROOT = Path(__file__).resolve().parents[1]
LOGDIRS = "tests/evidence/h200/programs/*", "demo/recorded/*/*", "docs/try/*"
WIDTH = 110  # columns


def main() -> None:
    """Print a report of each log directory; those without a recording have none."""
    engine.RULES_VERSION = 0  # no stored diagnosis is of these rules
    if "--sums" in sys.argv:
        Recording.stored_sums = _stored_sums  # type: ignore[method-assign]
    for logdir in sorted(path for pattern in LOGDIRS for path in ROOT.glob(pattern)):
        if logdir.is_dir():
            print(f"##### {logdir.relative_to(ROOT)}")
            print(render(logdir_report(read_recordings(str(logdir))), WIDTH))


def _stored_sums(recording: Recording, kind: Any) -> Any:
    """The sums of the first half of the segments, stored and restored."""
    sys.path.append(str(ROOT / "harness" / "support"))
    from made_up_run import restored

    sums, covered = kind(recording.facts.get("started_ns") or 0), -1
    for info, segment in list(recording.opened())[: (len(recording.segments) + 1) // 2]:
        sums.add(*segment.readable(None, lambda error: None))
        covered = info.last
    stored = restored(sums)
    stored.covered = covered
    return stored


if __name__ == "__main__":
    main()
