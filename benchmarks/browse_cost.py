"""What browsing costs: the tab's server and its frames, beside TensorBoard's and XProf's own.

python benchmarks/browse_cost.py [--steps 1000000] [--runs 2000] [--no-browser] [--keep DIR]

Recordings are made by a script (see harness/support/long_recording.py) with 8 GPUs and 30 metrics,
`--steps` being the longest; recordings kept in DIR are used again. Times are medians or as named;
"cpu" is what our thread itself took, which a busy machine distorts least. Budgets, from the
project's design: first view 100 ms in the server, any zoom 20 ms, resident growth 200 MB; script
of a frame with 16 lanes p95 8 ms; first paint 500 ms; 90 kB gzipped.
"""

import argparse
import contextlib
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT / "harness" / "support"), str(ROOT)]

STATIC = ROOT / "tensorboard_plugin" / "static"
GPUS, METRICS = 8, 30
# Steps of the longest recording made when nobody asks for less: five minutes' work, 220 MB.
STEPS = 10_000_000


def main(argv: Sequence[str] = ()) -> dict:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=int(os.environ.get("BROWSE_STEPS", STEPS)))
    parser.add_argument("--runs", type=int, default=int(os.environ.get("BROWSE_RUNS", 2000)))
    parser.add_argument("--no-browser", action="store_true")
    parser.add_argument("--keep", type=Path, help="folder for the recordings")
    arguments = parser.parse_args(argv)
    sizes = [name for name in sorted(STATIC.iterdir()) if name.suffix in (".js", ".css")]
    total = sum(len(gzip.compress(file.read_bytes(), 9)) for file in sizes)
    print(f"bundle: {total / 1e3:.1f} kB gzipped; load average {os.getloadavg()[0]:.1f}")
    with contextlib.ExitStack() as stack:
        folder = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        figures = serve(folder, arguments.steps)
        list_runs(folder, arguments.runs)
        if not arguments.no_browser:
            import browse_frames

            browse_frames.compare(folder)
    return figures


def recording(folder: Path, steps: int) -> Path:
    """The log directory of a recording of so many steps, made unless it is there."""
    from long_recording import make_long_recording

    logdir = folder / f"{steps}-steps"
    if not logdir.is_dir():
        began = time.perf_counter()
        path = make_long_recording(logdir / "run", steps, GPUS, METRICS, tag_scalars=1000)
        size = sum(file.stat().st_size for file in path.iterdir())
        print(
            f"  made {steps:,} steps: {size / 1e6:.0f} MB, {size / steps:.0f} bytes a step "
            f"with all samples, in {time.perf_counter() - began:.0f} s",
            flush=True,
        )
    return logdir


def serve(folder: Path, longest: int) -> dict:
    """First view and zooms at every power of ten, each in a process of its own."""
    print(f"\nserver, {GPUS} GPUs x {METRICS} metrics, 16 lanes x 2,048 buckets")
    print(
        f"{'steps':>12} {'first view ms':>15} {'zoom ms p50/p95/max':>22} {'cpu p95/max':>12}"
        f" {'refined':>8} {'then ms p50/p95':>16} {'RSS MB':>8}"
    )
    steps = 1_000
    while steps <= longest:
        logdir = recording(folder, steps)
        done = subprocess.run(
            [sys.executable, str(HERE / "browse_server.py"), str(logdir)],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        one = {"steps": steps, "gpus": GPUS, "metrics": METRICS, **json.loads(done.stdout)}
        zoom, cpu, fine = one["zoom_ms"], one["zoom_cpu_ms"], one["then_ms"]
        print(
            f"{steps:>12,} {one['first_ms']:>8.0f} ({one['first_cpu_ms']:.0f})"
            f" {zoom['p50']:>10.1f} {zoom['p95']:.1f} {zoom['max']:.1f}"
            f" {cpu['p95']:>8.1f} {cpu['max']:.1f} {one['refined']:>7.0%}"
            f" {fine['p50']:>9.0f} {fine['p95']:.0f} {one['rss_mb']:>9.0f}",
            flush=True,
        )
        steps *= 10
    print("  (first view: cpu in brackets; refined: zooms first shown coarsely, and when fine)")
    return one


def list_runs(folder: Path, runs: int) -> None:
    """The list of thousands of recordings, first and again."""
    import shutil

    from browse_server import Served
    from make_recording import make_recording

    logdir = folder / f"{runs}-runs"
    if not logdir.is_dir():
        make_recording(logdir / "run00000", "thirds", steps=300, gpus=1)
        for number in range(1, runs):
            shutil.copytree(logdir / "run00000", logdir / f"run{number:05}")
    served = Served(logdir)
    first = served.get("/runs")
    again = []
    for _ in range(5):
        time.sleep(0.6)  # nothing is looked at twice within half a second
        again.append(served.get("/runs"))
    middle = sorted(again, key=lambda one: one.wall_ms)[2]
    print(
        f"\n{runs:,} runs: list first {first.wall_ms:.0f} ms, again {middle.wall_ms:.0f} ms "
        f"(cpu {middle.cpu_ms:.0f} ms of the process), {len(middle.body) / 1e3:.0f} kB"
    )
    for load_fast in (True, False):
        with_us, without = list_plugins(logdir, runs, load_fast)
        reader = "data server" if load_fast else "Python reader"
        print(
            f"  TensorBoard's plugin listing ({reader}): {without:.1f} ms without us, "
            f"{with_us:.1f} ms with us: {with_us - without:+.1f} ms",
            flush=True,
        )


def list_plugins(logdir: Path, runs: int, load_fast: bool) -> tuple[float, float]:
    """Median ms of TensorBoard's plugin listing with our plugin and without, asked in turn."""
    from tensorboard_server import TensorBoardServer

    with tempfile.TemporaryDirectory() as folder:
        broken = Path(folder) / "gpu_util_callback"
        broken.mkdir()
        (broken / "__init__.py").write_text("raise ImportError('left out')")
        took: dict[bool, list[float]] = {True: [], False: []}
        with (
            TensorBoardServer(logdir, load_fast, forked=False) as with_us,
            TensorBoardServer(logdir, load_fast, env={"PYTHONPATH": folder}, forked=False) as without,
        ):
            servers = {True: with_us, False: without}

            def listing(ours: bool) -> dict:
                return json.loads(servers[ours].get("data/plugins_listing", timeout=120)[2])

            for server in servers.values():
                all_there = server.wait_for(
                    lambda one=server: len(json.loads(one.get("data/runs", 120)[2])) == runs, 300
                )
                assert all_there, server.log[-2000:]
            assert with_us.wait_for(lambda: listing(True)["gpu_utilization"]["enabled"], 300)
            assert "gpu_utilization" not in listing(False)
            for _ in range(41):
                for ours, times in took.items():
                    began = time.perf_counter()
                    listing(ours)
                    times.append(1e3 * (time.perf_counter() - began))
    with_ms, without_ms = (sorted(times)[20] for times in took.values())
    return with_ms, without_ms


if __name__ == "__main__":
    main(sys.argv[1:])
