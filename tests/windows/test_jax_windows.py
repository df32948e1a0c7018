"""Windows of a real fit on JAX, in a process of its own (a process has one Keras backend)."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from packages import need

SCRIPT = """
import json, socket, sys
import jax, keras, numpy as np
from gpu_util_callback import GpuUtilCallback, read_recordings
from gpu_util_callback.frameworks.jax_profiler import SESSION

log_dir = sys.argv[1]
x, y = np.zeros((48, 8), "float32"), np.zeros((48, 1), "float32")

def fit(name, trace, *others):
    m = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
    m.compile("sgd", "mse")
    ours = GpuUtilCallback(f"{log_dir}/{name}", trace=trace, report=False)
    m.fit(x, y, batch_size=4, verbose=0, callbacks=[ours, *others])
    (recording,) = read_recordings(f"{log_dir}/{name}")
    return {
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
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(folder)],
        capture_output=True, text=True, timeout=200, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, json.loads(done.stdout.strip().splitlines()[-1])


def profiles(folder: Path) -> list[Path]:
    return sorted(folder.glob("plugins/profile/*/*"))


def test_windows_on_jax(result):
    folder, found = result
    assert found["plain"] == {"steps": [3, 4, 5, 8], "window": [0, 0, 0, 1], "reasons": []}
    files = profiles(folder / "plain")
    assert len(files) == 2
    assert all(file.name.endswith(".xplane.pb") for file in files)  # no trace.json.gz


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
