"""`make bench`, or `python -m benchmarks [NAME…]`: what our own code costs, measured here.

Every `<name>_cost.py` in this folder is a benchmark with a `main()` that prints one table and
returns its figures. They are ratios or differences within one run; absolute times are of this
machine, at this moment. `--save` keeps the figures in `figures.json`, from which
`python -m benchmarks.table` makes the table in docs/measured.md.
"""

import argparse
import datetime
import importlib.util
import json
import os
import platform
import sys
import time
import traceback
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
FIGURES = FOLDER / "figures.json"


def benchmarks() -> dict[str, Path]:
    return {path.stem.removesuffix("_cost"): path for path in sorted(FOLDER.glob("*_cost.py"))}


def load(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def save(name: str, figures: dict) -> None:
    """Keep a benchmark's figures, with where and when they were taken.

    What this run left out (`BENCH_KINDS`) stays as it was.
    """
    kept = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    kept[name] = {
        **kept.get(name, {}),
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),  # of the last minute, the benchmark included
        **figures,
    }
    FIGURES.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")


def main() -> int:
    known = benchmarks()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--save", action="store_true", help=f"keep the figures in {FIGURES.name}")
    arguments = parser.parse_args()
    wanted = arguments.names or list(known)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are: {', '.join(known)}")
    sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "harness" / "support")]
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    failed = 0
    for name in wanted:
        print(f"\n== {name} " + "=" * (76 - len(name)), flush=True)
        start = time.perf_counter()
        try:
            figures = load(known[name]).main()
            if arguments.save and figures is not None:
                save(name, figures)
        except Exception:  # one broken benchmark must not hide the others
            traceback.print_exc()
            failed += 1
        print(f"   ({time.perf_counter() - start:.0f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
