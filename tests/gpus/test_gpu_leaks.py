"""A long run costs no more memory than a short one."""

import gc
import resource

from nvml import Scenario


def _resident_kib():
    with open("/proc/self/statm") as statm:  # noqa: PTH123
        return int(statm.read().split()[1]) * resource.getpagesize() // 1024


def test_fifty_thousand_samples_leak_nothing(step):
    """With what fails, too: codes, dry buffers and rejected values have paths of their own."""
    scenario = Scenario(samples_capacity=4, samples_period_ms=100)
    scenario.gpu("h100").process("self", 1 << 30, sm=5).curve("field:83:0", [(0, 9e9), (1, 0)])
    scenario.call("nvmlDeviceGetPowerUsage", code=6).call("gpm:3", code=21)
    stepped = step(scenario)
    reader, library = stepped.reader, stepped.library

    def run(ticks, start):
        for i in range(ticks):
            t = start + i * 0.02
            library.set_time(t)
            reader.read(t)
            if i % 50 == 0:
                stepped.store.drain()
        stepped.store.drain()
        gc.collect()
        return start + ticks * 0.02

    t = run(5_000, 0)
    gpm = library.gpm_samples
    grown = []
    for _ in range(2):  # what leaks grows in both halves; what others in this process do, in one
        before, objects = _resident_kib(), len(gc.get_objects())
        t = run(22_000, t)
        grown.append((_resident_kib() - before, len(gc.get_objects()) - objects))
    assert library.calls() > 200_000
    assert library.gpm_samples == gpm == 2
    assert min(kib for kib, _ in grown) < 500
    assert min(count for _, count in grown) < 200
