"""Other processes: forked and spawned data loaders, an interpreter that exits during a call."""

import sys
import time

import pytest
from nvml import Scenario, environment
from programs import ran

pytestmark = pytest.mark.real_clock("a running sampler is counted")

SAMPLE = """
import os, sys, time
from gpu_util_callback.gpus import Sampler
from gpu_util_callback.recording.clock import Clock
sampler = Sampler(Clock())
sampler.start()
end = time.time() + 10
while not sampler.gpus and time.time() < end:
    time.sleep(0.01)
assert sampler.gpus, sampler.unavailable
time.sleep(0.3)
"""


def run(code, scenario, folder):
    return ran(sys.executable, "-c", code, env=environment(scenario, folder), timeout=30)


FORKS = {
    "the child never calls the driver": """
for i in range(20):                      # at any moment of a tick
    pid = os.fork()
    if pid == 0:
        time.sleep(0.25)                 # several ticks' time
        assert sampler.drain() == []
        sampler.stop()                   # as a callback's __del__ may
        os._exit(7)
    time.sleep(0.013)
codes = [os.waitstatus_to_exitcode(os.waitpid(-1, 0)[1]) for i in range(20)]
assert codes == [7] * 20, codes
rows = sum(len(b.time_ns) for b in sampler.drain() if b.group == "gpu0")
assert rows > 3, rows                    # the parent went on
""",
    "the child samples, although the parent's thread held the locks": """
from gpu_util_callback.gpus import _gate
with sampler._store._lock, _gate._lock:      # as the sampler's thread may at any moment
    pid = os.fork()
if pid == 0:
    assert sampler.drain() == []
    own = [sampler, Sampler(Clock())]           # the object that it inherited, and one of its own
    for one in own:
        one.start()
    time.sleep(0.6)
    rows = [sum(len(b.time_ns) for b in one.drain() if b.group == "gpu0") for one in own]
    for one in own:
        one.stop()
    os._exit(0 if min(rows) >= 2 else 1)
end = time.time() + 10
while time.time() < end:
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
        break
    time.sleep(0.05)
else:
    os.kill(pid, 9)
    sys.exit("the child hangs")
assert os.waitstatus_to_exitcode(status) == 0
""",
}


@pytest.mark.parametrize("forks", FORKS)
def test_forks_of_a_sampled_process(standin_folder, forks):
    # The driver's state does not survive a fork; the second sampler has its own calls to make.
    scenario = Scenario("h100", **({"forked_calls": "abort"} if "never" in forks else {}))
    done = run(SAMPLE + FORKS[forks] + 'sampler.stop()\nprint("fine")\n', scenario, standin_folder)
    assert done.stdout == "fine\n", done.stderr


def test_the_gate_of_a_parent_is_shut_in_a_child(step):
    scenario = Scenario("h100")
    stepped = step(scenario)
    calls = stepped.library.calls()
    stepped.gate._pid += 1
    stepped.reader.read(0)
    assert stepped.library.calls() == calls


@pytest.mark.parametrize("symbol", ["nvmlInitWithFlags", "nvmlDeviceGetPowerUsage"])
def test_the_interpreter_exits_during_a_call(standin_folder, symbol):
    scenario = Scenario("h100").call(symbol, latency_s=30)
    code = """
import time
from gpu_util_callback.gpus import Sampler
from gpu_util_callback.recording.clock import Clock
sampler = Sampler(Clock())
sampler.start()
time.sleep(0.5)
print("bye", flush=True)
"""
    began = time.perf_counter()
    done = run(code, scenario, standin_folder)
    assert time.perf_counter() - began < 10
    assert (done.stdout, done.stderr) == ("bye\n", "")


def test_the_interpreter_exits_while_sampling_at_full_rate(standin_folder):
    scenario = Scenario("h100").call("*", latency_s=0.001)
    done = run(SAMPLE.replace("Sampler(Clock())", "Sampler(Clock(), hz=100)"), scenario, standin_folder)
    assert done.stderr == ""


def test_importing_and_constructing_touches_no_driver(standin_folder):
    code = (
        "import sys\n"
        "from gpu_util_callback.gpus import Sampler\n"
        "from gpu_util_callback.recording.clock import Clock\n"
        "Sampler(Clock())\n"
        "assert 'pynvml' not in sys.modules\n"
        "assert 'psutil' not in sys.modules\n"
    )
    scenario = Scenario()
    run(code, scenario, standin_folder)
