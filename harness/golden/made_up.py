"""Recordings of made-up jobs, one a log directory: every labelled case that the tests have."""

import json
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "scenarios")]

import test_jobs_of_ranks as of_ranks  # noqa: E402
import test_made_up_jobs as made_up  # noqa: E402

EACH = 3  # every third of some 300 is plenty


def main(corpus: Path) -> None:
    """Write the cases below `corpus`."""
    for number, case in enumerate(made_up.CASES[::EACH]):
        run, _ = case.build()
        run.write(corpus / f"job-{number:03}", case.status)
    for name in ("slow_disk", "saves_alone", "alike"):
        of_ranks.report_of(corpus / f"ranks-{name}", 4, getattr(of_ranks, name))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    # A case that came without a diagnosis is diagnosed when it is read: that is what is compared.
    stored = [f for f in Path(sys.argv[1]).rglob("manifest.json") if "findings" in json.loads(f.read_text())]
    print(f"made-up recordings with a stored diagnosis: {len(stored)}")
