"""A look at a training that runs: the command from the tab, and its window in the tab."""

import os
import shlex
import subprocess
import sys

import pytest
from fork_server import python
from gpu_tab import hurry
from packages import need
from programs import ran
from waiting import wait_until

pytestmark = pytest.mark.browser

TRAINING = """
import sys, keras, numpy as np
from gpu_util_callback import GpuUtilCallback
model = keras.Sequential([keras.layers.Dense(512), keras.layers.Dense(1)])
model.compile("sgd", "mse")
data = (np.ones((4, 3)) for _ in iter(int, 1))
callback = GpuUtilCallback(sys.argv[1], report=False)
model.fit(((x, x[:, :1]) for x in data), steps_per_epoch=10_000_000, verbose=0, callbacks=[callback])
"""
GPU_UTIL = [sys.executable, "-m", "gpu_util_callback"]


def test_the_window_that_the_tab_s_command_asks_for_is_drawn(open_tab, tmp_path, start_tensorboard):
    need("jax")
    (tmp_path / "t.py").write_text(TRAINING)
    logs = tmp_path / "logs"
    logs.mkdir()
    command = [*python("keras"), "t.py", str(logs / "one")]
    training = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "KERAS_BACKEND": "jax"})
    try:
        server = start_tensorboard(logs)
        tab = open_tab(server.url, before=hurry, alone=True)
        tab.wait_for("button:has-text('look now')", timeout=90)
        title = tab.button("look now").get_attribute("title")
        first, *arguments = shlex.split(title[title.index("gpu-util look") :].partition("\n")[0])
        assert first == "gpu-util"
        look = ran(*GPU_UTIL, *arguments, timeout=150)
        profiled = look.stdout.partition(" were profiled")[0].removeprefix("steps ")
        start, _ = (int(step) for step in profiled.split("–"))
        wait_until(lambda: tab.find(".window-button").count(), 30, "the window")
        tab.find(".window-button").first.click()
        tab.settle()
        assert f"{start:,}" in tab.text(".window-button")
    finally:
        training.kill()
        training.wait()
