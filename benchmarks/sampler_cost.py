"""What sampling costs: CPU share of our sampler, of nvitop's collector and of a gpustat loop.

All three ask the same stand-in driver library, which answers at once, so that what is left is their
own work. Each runs alone in a process of its own, after a warm-up; the share is the whole process's
CPU time over wall time. Ours also reads what the others do not: the driver's sample buffers,
counters, GPM, event reasons, memory by process, and the host by core.

nvitop and gpustat are installed into a temporary folder for this; without a package index they
are left out.
"""

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from nvml import Scenario, environment
from peers import install, with_path

RATES = (1, 5, 10, 50)
REPEATS = 3  # of ours; the others' scatter is far below the difference
BUDGET_PCT = 0.5  # of one core, per GPU, at 10 Hz

MEASURE = """
import sys, time
hz, seconds = float(sys.argv[1]), float(sys.argv[2])
{start}
time.sleep(1.5)
cpu, wall = time.process_time(), time.perf_counter()
{work}
print(100 * (time.process_time() - cpu) / (time.perf_counter() - wall))
{stop}
"""
OURS = {
    "start": """
from gpu_util_callback.gpus import Sampler
from gpu_util_callback.recording.clock import Clock
sampler = Sampler(Clock(), hz=hz)
sampler.start()
""",
    "work": "for _ in range(int(seconds)):\n    time.sleep(1); sampler.drain()",
    "stop": "assert sampler.gpus, sampler.unavailable\nsampler.stop()",
}
NVITOP = {
    "start": """
import os
from nvitop import Device, ResourceMetricCollector
collector = ResourceMetricCollector(Device.all(), root_pids={os.getpid()}, interval=1 / hz)
collector.activate("run")
""",
    "work": "for _ in range(int(seconds)):\n    time.sleep(1); collector.collect()",
    "stop": "assert any('gpu_utilization' in key for key in collector.collect())",
}
GPUSTAT = {
    "start": "import gpustat\ngpustat.new_query()",
    "work": """
asked, due = 0, time.perf_counter()
while time.perf_counter() - wall < seconds:
    answer = gpustat.new_query()
    asked += 1
    due = max(due + 1 / hz, time.perf_counter())
    time.sleep(max(0.0, due - time.perf_counter()))
""",
    # It sleeps a tenth of a second inside, to measure the CPU share of each process.
    "stop": "assert answer.gpus[0].utilization is not None\nprint(asked / seconds, file=sys.stderr)",
}


def share(tool: dict[str, str], env: dict[str, str], hz: float, seconds: float = 5) -> float:
    """CPU share in percent of one core; NaN when the tool does not run or not at that rate."""
    code = MEASURE.format(**tool)
    done = subprocess.run(
        [sys.executable, "-c", code, str(hz), str(seconds)],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0:
        print("  did not run:", (done.stderr.strip().splitlines() or ["?"])[-1])
        return float("nan")
    if tool is GPUSTAT and float(done.stderr.splitlines()[-1]) < 0.9 * hz:
        return float("nan")
    return float(done.stdout)


def scenario(gpus: int) -> Scenario:
    found = Scenario()
    for _ in range(gpus):
        found.gpu("h100").process("self", 6 << 30, sm=50).curve("fan", 30)
    return found


def main() -> dict:
    """Print the table."""
    at_10: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        env = environment(scenario(1), folder)
        tools = [("gpu-util-callback", OURS, env)]
        for name, tool in (("nvitop", NVITOP), ("gpustat", GPUSTAT)):
            problem = install(folder / name, name)
            if problem is not None:
                print(f"{name} is left out: {problem}")
                continue
            tools.append((name, tool, with_path(env, folder / name)))
        print("one H100, CPU share in percent of one core, median (lowest - highest)")
        print(f"{'':20}" + "".join(f"{f'{hz} Hz':>22}" for hz in RATES))
        for name, tool, tool_env in tools:
            cells = []
            for hz in RATES:
                times = REPEATS if tool is OURS else 1
                found = [share(tool, tool_env, hz) for _ in range(times)]
                middle = statistics.median(found)
                spread = f" ({min(found):.2f} - {max(found):.2f})" if times > 1 else ""
                cells.append(f"{middle:.2f}{spread}" if middle == middle else "too slow")
                if hz == 10 and middle == middle:
                    at_10[name] = round(middle, 3)
            print(f"{name:20}" + "".join(f"{cell:>22}" for cell in cells), flush=True)
        eight = share(OURS, environment(scenario(8), folder), 10)
        print(f"eight H100 at 10 Hz: {eight:.2f} in all, {eight / 8:.2f} per GPU")
        ours_at_10 = at_10.get(tools[0][0], float("nan"))
        met = "met" if ours_at_10 <= BUDGET_PCT else "MISSED"
        print(f"budget {BUDGET_PCT} per GPU at 10 Hz: {met} ({ours_at_10:.2f}, host included)")
    return {"core_pct_at_10_hz": at_10, "eight_pct": round(eight, 3)}


if __name__ == "__main__":
    main()
