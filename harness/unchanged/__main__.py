"""Print the matrix: `python -m harness.unchanged [WORD...]`, with words for cells that have them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from harness.unchanged.cells import everything, outcomes


def main(words: list[str]) -> int:
    """Try every cell that has all the words; 1 where we changed something."""
    cells = everything()
    wanted = [c for c in cells if all(word in str(c) for word in words)]
    print(f"{len(wanted)} of {len(cells)} cells; all of them take some four minutes on two cores")
    print(f"{'backend':<11}{'input or loop':<32}{'mode':<40}with us, without us")
    bad = 0
    for outcome in outcomes(wanted):
        cell = outcome.cell
        kind = f"loop: {cell.kind}" if cell.loop else cell.kind
        print(f"{cell.backend:<11}{kind:<32}{cell.mode:<40}{outcome}", flush=True)
        bad += bool(outcome.failed or outcome.changed)
    print(f"{len(wanted)} cells, {bad} that are not as without us")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
