"""What `gpu-util total` costs for ten thousand recordings, on a disk and over a store, and what judging one anew does.

Budgets: 60 s, 500 MB, on two cores. The store answers each request after
20 ms, as an object store in the same region does, and lists a thousand names a request.
`BENCH_RUNS=100000 BENCH_KINDS=local` takes ten times as many, on the disk alone (2 GB; minutes to make).
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from many_runs import make_many

from gpu_util_callback.diagnosis import engine, survey

KINDS = os.environ.get("BENCH_KINDS", "local,store of 20 ms").split(",")
REPEATS = 5
COUNT = int(os.environ.get("BENCH_RUNS", "10000"))
LATENCY_S = 0.02
PAGE = 1000

_CHILD = """
import resource, sys, time
sys.path[:0] = {paths!r}
begin = time.perf_counter()
{before}
from gpu_util_callback.cli import main
import io, contextlib, json
out = io.StringIO()
with contextlib.redirect_stdout(out):
    code = main({arguments!r})
report = json.loads(out.getvalue())
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([code, time.perf_counter() - begin, used.ru_utime + used.ru_stime,
                  used.ru_maxrss / 1024, report["recordings"],
                  report["read"]["manifests"], report["gpu_hours"]["total"], extra()]))
"""
_STORE = """
import fsspec
from total_cost import SlowStore
fsspec.register_implementation("slow", SlowStore)
SlowStore.local = {folder!r}
def extra(): return SlowStore.requests
"""


def store_class():
    """Return a file system that reads local files as an object store would serve them."""
    from fsspec.implementations.local import LocalFileSystem

    class SlowStore(LocalFileSystem):
        protocol = ("s3", "slow")  # what the reader knows as an object store
        requests = 0
        local = ""

        @classmethod
        def _strip_protocol(cls, path):
            return super()._strip_protocol(str(path).removeprefix("slow://").removeprefix("s3://"))

        def _answer(self, pages=1):
            SlowStore.requests += pages
            time.sleep(LATENCY_S * pages)

        def ls(self, path, detail=True, **options):
            path = self._strip_protocol(path)
            names = [str(entry) for entry in Path(path).iterdir()]
            self._answer(1 + len(names) // PAGE)
            return [LocalFileSystem.info(self, name) for name in names] if detail else names

        def cat_file(self, path, start=None, end=None, **options):
            self._answer()
            with Path(self._strip_protocol(path)).open("rb") as file:
                file.seek(start or 0)
                return file.read(None if end is None else end - (start or 0))

        def info(self, path, **options):
            self._answer()
            return super().info(path, **options)

        def find(self, path, detail=False, **options):
            found = {}
            for folder, _, names in os.walk(path):
                for name in names:
                    full = f"{folder}/{name}"
                    about = Path(full).stat()
                    found[full] = {"name": full, "size": about.st_size, "mtime": about.st_mtime_ns}
            self._answer(1 + len(found) // PAGE)
            return found

        def exists(self, path, **options):
            self._answer()
            return super().exists(path, **options)

    return SlowStore


SlowStore = store_class()


def timed(arguments: list[str], before: str) -> list:
    here = Path(__file__).resolve().parent
    paths = [str(here), str(here.parent / "harness" / "support"), str(here.parent)]
    code = _CHILD.format(paths=paths, before=before, arguments=["total", *arguments, "--json"])
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(child.stdout)


def anew(folder: Path, runs: int = 20) -> float:
    """CPU ms of a short run that newer rules judge, from the sums that its recorder stored."""
    logdir = str(make_many(folder, runs, originals=runs, summaries=False))
    engine.RULES_VERSION += 1
    survey.RULES_VERSION += 1
    took = []
    for _ in range(REPEATS):
        begin = time.thread_time()
        found = survey.survey([logdir], recompute=True)
        took.append((time.thread_time() - begin) * 1e3 / runs)
        assert found.diagnosed == runs and not found.problems
    return min(took)


def main() -> dict:
    figures: dict = {"runs": COUNT}
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        logdir = str(make_many(Path(folder) / "logs", COUNT))
        print(f"{COUNT:,} recordings made in {time.perf_counter() - begin:.0f} s")
        print(f"{'':34}{'s':>8}{'CPU s':>8}{'MB':>8}{'read':>9}{'requests':>10}   budget")
        for what, argument, before, budget in (
            ("local", logdir, "def extra(): return 0", "60 s, 500 MB"),
            ("store of 20 ms", f"slow://{logdir}", _STORE.format(folder=logdir), "60 s"),
        ):
            if what not in KINDS:
                continue
            code, seconds, cpu, peak, runs, read, hours, requests = timed([argument], before)
            assert code == 0 and runs == COUNT and hours > 0, (code, runs, hours)
            figures[what] = {
                "wall_s": round(seconds, 1),
                "cpu_s": round(cpu, 1),
                "peak_mb": round(peak),
                "requests": requests,
            }
            print(f"{what:34}{seconds:8.1f}{cpu:8.1f}{peak:8.0f}{read:9,}{requests:10,}   {budget}")
        figures["anew_ms"] = round(anew(Path(folder) / "anew"), 1)
        print(f"a short run judged anew: {figures['anew_ms']:.1f} ms of CPU   budget 3 ms")
    return figures


if __name__ == "__main__":
    main()
