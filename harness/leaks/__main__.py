"""`python -m harness.leaks record [WORD...]` records trainings of both sets; `table` judges them."""

from __future__ import annotations

import sys


def main(words: list[str]) -> int:
    """Do what the first word says."""
    if words[:1] == ["record"]:
        from harness.leaks.record import record

        return record(words[1:])
    if words[:1] == ["table"]:
        from harness.leaks.replay import table

        return table()
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
