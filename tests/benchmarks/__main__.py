"""`make bench`, or `python -m tests.benchmarks [NAME…]`: what our own code costs, measured here.

Every `<name>_cost.py` in this folder is a benchmark with a `main()` that prints one table. Figures
are ratios or differences within one run; absolute times are of this machine, at this moment.
"""

import argparse
import importlib.util
import os
import platform
import sys
import time
import traceback
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def benchmarks() -> dict[str, Path]:
    return {path.stem.removesuffix("_cost"): path for path in sorted(FOLDER.glob("*_cost.py"))}


def load(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def main() -> int:
    known = benchmarks()
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    wanted = parser.parse_args().names or list(known)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are: {', '.join(known)}")
    sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "support")]
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    failed = 0
    for name in wanted:
        print(f"\n== {name} " + "=" * (76 - len(name)), flush=True)
        start = time.perf_counter()
        try:
            load(known[name]).main()
        except Exception:  # one broken benchmark must not hide the others
            traceback.print_exc()
            failed += 1
        print(f"   ({time.perf_counter() - start:.0f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
