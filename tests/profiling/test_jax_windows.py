"""Windows of a real fit on JAX, in a process of its own (a process has one Keras backend)."""

import json
import os
import textwrap
from pathlib import Path

import numpy as np
import pytest
from fork_server import python
from packages import need
from programs import ran

pytestmark = pytest.mark.real_clock("every second batch takes 30 ms")

SCRIPT = """
import json, socket, sys, time
import jax, keras, numpy as np
from gpu_util_callback import GpuUtilCallback, GpuUtilMonitor, read_recordings
from gpu_util_callback.backends.jax.profiler import SESSION

log_dir = sys.argv[1]
x, y = np.zeros((48, 8), "float32"), np.zeros((48, 1), "float32")

class Slow(keras.utils.PyDataset):
    # 12 batches; every second one takes long.

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index % 2 == 0:
            time.sleep(0.03)
        return x[:4], y[:4]

def fit(name, trace, *others, data=None):
    m = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
    m.compile("sgd", "mse")
    ours = GpuUtilCallback(f"{log_dir}/{name}", trace=trace, report=False)
    if data is None:
        m.fit(x, y, batch_size=4, verbose=0, callbacks=[ours, *others])
    else:
        m.fit(data, shuffle=False, verbose=0, callbacks=[ours, *others])
    return described(name)

def described(name):
    (recording,) = read_recordings(f"{log_dir}/{name}")
    steps, traced = recording.steps, recording.traced_steps
    rows = np.searchsorted(steps["step"], traced["step"])
    return {
        "idle_input_ns": traced["idle_input_ns"].tolist(),
        "idle_host_ns": traced["idle_host_ns"].tolist(),
        "traced_ns": traced["duration_ns"].tolist(),
        "input_wait_ns": steps["input_wait_ns"][rows].tolist(),
        "steps": recording.traced_steps["step"].tolist(),
        "window": recording.traced_steps["window"].tolist(),
        "reasons": [e["reason"] for e in recording.facts["unavailable"]
                    if e["source"] == "profiler windows"],
    }

class Profiling(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 4:
            jax.profiler.start_trace(f"{log_dir}/theirs")
        if batch == 6:
            jax.profiler.stop_trace()

result = {"plain": fit("plain", [(3, 6), (8, 9)])}
result["slow"] = fit("slow", [(4, 10)], data=Slow())
with GpuUtilMonitor(f"{log_dir}/loop", framework="jax", trace=[(4, 10)], report=False) as monitor:
    batches, compiled = Slow(), jax.jit(lambda a: (a @ a.T).sum())
    for a, _ in monitor.batches(batches[i] for i in range(12)):
        compiled(a).block_until_ready()
result["loop"] = described("loop")
result["beside"] = fit("beside", [(3, 8)], Profiling())
jax.profiler.start_trace(f"{log_dir}/held")
result["held"] = fit("held_ours", [(3, 6)])
jax.profiler.stop_trace()
result["running"] = SESSION._current() is not None
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
jax.profiler.start_server(port)
result["server"] = fit("server", [(3, 6)])
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    need("jax", "keras")
    folder = tmp_path_factory.mktemp("jax")
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    done = ran(*python("keras"), "-c", textwrap.dedent(SCRIPT), folder, env=environment)
    return folder, json.loads(done.stdout.strip().splitlines()[-1])


def profiles(folder: Path) -> list[Path]:
    return sorted(folder.glob("plugins/profile/*/*"))


def test_windows_on_jax(result):
    folder, found = result
    plain = found["plain"]
    assert (plain["steps"], plain["window"]) == ([3, 4, 5, 8], [0, 0, 0, 1])
    assert plain["reasons"] == []
    files = profiles(folder / "plain")
    assert len(files) == 2
    assert all(file.name.endswith(".xplane.pb") for file in files)  # no trace.json.gz


@pytest.mark.parametrize("name", ["slow", "loop"])
def test_waiting_for_a_batch_is_idle_for_input_not_a_busy_host(result, name):
    _, found = result
    run = found[name]
    assert run["steps"] == [4, 5, 6, 7, 8, 9]
    idle, waited = np.array(run["idle_input_ns"]), np.array(run["input_wait_ns"])
    assert (idle <= np.array(run["traced_ns"])).all()
    assert (idle[::2] >= 0.99 * 30e6).all()  # the batches that take long
    assert np.median(np.abs(idle - waited)) < 15e6  # half of what a long one takes
    rest = np.array(run["traced_ns"]) - idle
    assert np.median(run["idle_host_ns"]) <= np.median(rest) + 1e6


def test_a_callback_that_profiles_by_itself_gets_the_profiler(result):
    folder, found = result
    assert found["beside"]["steps"] == []
    assert "another profiler" in found["beside"]["reasons"][0]
    assert profiles(folder / "theirs")


def test_somebody_elses_profile_goes_on(result):
    folder, found = result
    assert found["held"]["steps"] == []
    assert "another profiler" in found["held"]["reasons"][0]
    assert profiles(folder / "held")
    assert not found["running"]


def test_a_profiler_server_is_left_its_profiler(result):
    _, found = result
    assert found["server"]["steps"] == []
    assert "jax.profiler.start_server" in found["server"]["reasons"][0]
