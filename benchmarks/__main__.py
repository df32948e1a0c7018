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
import subprocess
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
    if len(wanted) > 1:  # a process each: memory that one of them has taken is not the next one's
        command = [sys.executable, "-m", "benchmarks", *["--save"] * arguments.save]
        ended = [subprocess.run([*command, name], cwd=FOLDER.parent).returncode for name in wanted]
        return int(any(ended))
    sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "harness" / "support")]
    (name,) = wanted
    print(f"\n== {name} " + "=" * (76 - len(name)))
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}", flush=True)
    start = time.perf_counter()
    try:
        figures = load(known[name]).main()
    except Exception:
        traceback.print_exc()
        return 1
    if arguments.save and figures is not None:
        save(name, figures)
    print(f"   ({time.perf_counter() - start:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
