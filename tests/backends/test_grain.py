"""Grain's pipelines: what is known of their workers, and how long a loop waits for them."""

import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from fork_server import python
from processes import environment
from programs import ran

from gpu_util_callback import read_recordings
from gpu_util_callback.backends.inputs import describe_input
from gpu_util_callback.diagnosis import logdir_report

if importlib.util.find_spec("grain") is None:
    pytest.skip('pip install -e ".[reach]"', allow_module_level=True)


@pytest.fixture
def grain():
    """Grain, which takes seconds to import: not in each worker, which all collect this file."""
    return importlib.import_module("grain")


def loader(grain, workers: int):
    sampler = grain.samplers.IndexSampler(num_records=32, num_epochs=1, shuffle=False)
    batch = grain.transforms.Batch(4)
    return grain.DataLoader(data_source=range(32), sampler=sampler, operations=[batch], worker_count=workers)


def workers_of(given) -> tuple:
    facts = describe_input(given)
    assert facts["input_kind"] == "grain"
    return tuple(facts.get(f"input_{name}") for name in ("class", "workers", "processes"))


def test_workers_of_a_loader(grain):
    assert workers_of(loader(grain, 0)) == ("DataLoader", 0, None)
    assert workers_of(loader(grain, 3)) == ("DataLoader", 3, True)
    assert workers_of(iter(loader(grain, 0))) == ("DataLoader", 0, None)


def test_workers_of_a_dataset(grain):
    mapped = grain.MapDataset.range(4000).map(abs).batch(4)
    assert workers_of(mapped) == ("MapDataset", None, None)
    assert describe_input(mapped)["steps_per_epoch"] == 1000
    read = mapped.to_iter_dataset()
    assert workers_of(read) == ("IterDataset", None, None), "threads, and how many is not public"
    ahead = read.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(num_workers=3))
    assert workers_of(ahead) == workers_of(ahead.map(abs)) == ("IterDataset", 3, True)


def test_data_in_a_pipeline_is_not_searched(grain):
    million = list(range(1_000_000))
    assert workers_of(grain.MapDataset.source(million).batch(4)) == ("MapDataset", None, None)


def run(program: str, folder: Path, start: Sequence[str] = (sys.executable,), **variables: str):
    (folder / "train.py").write_text(program)
    ran(*start, "train.py", cwd=folder, env=environment(**variables))


# Each batch takes 40 ms of waiting, a step 10 ms. Workers import this file, but not JAX.
PROGRAM = """
import time
import grain, numpy as np, psutil
from gpu_util_callback import GpuUtilMonitor, read_recordings

class Read(grain.transforms.Map):
    def map(self, i):
        time.sleep(0.005)
        return np.full(4, i, np.float32)

def train(log_dir, loader):
    import jax
    cores = psutil.cpu_times(percpu=True)
    psutil.cpu_times = lambda percpu: cores  # what else runs here decides nothing
    indices = grain.samplers.IndexSampler(num_records=400, num_epochs=1, shuffle=False)
    dataset = loader(data_source=range(400), sampler=indices, operations=[Read(), grain.transforms.Batch(8)])
    step = jax.jit(lambda x: x + 1)
    with GpuUtilMonitor(log_dir, report=False) as monitor:
        for batch in monitor.batches(dataset):
            step(batch).block_until_ready()
            time.sleep(0.01)

def advised():
    # The printed lines, with the arguments that `...` stands for.
    import functools
    from gpu_util_callback.diagnosis import run_report
    report = run_report(read_recordings("logs/before")[0])
    [found] = [one for one in report["findings"] + report["spans"] if one["cause"] == "input_bound"]
    lines = found["advice"]["code"].replace("grain.DataLoader(..., ", "functools.partial(grain.DataLoader, ")
    names = {}
    exec(lines, {"grain": grain, "functools": functools}, names)
    return names["dataset"]

if __name__ == "__main__":
    train("logs/before", grain.DataLoader)
    train("logs/after", advised())
"""


@pytest.mark.real_clock("milliseconds of a loader that sleeps")
def test_a_slow_loader_is_found_and_the_printed_line_mends_it(tmp_path):
    pytest.importorskip("jax", reason="make test BACKENDS=1")
    run(PROGRAM, tmp_path)
    before = read_recordings(tmp_path / "logs" / "before")
    [report] = logdir_report(before)["runs"]
    [found] = [one for one in report["findings"] + report["spans"] if one["cause"] == "input_bound"]
    waits = before[0].steps["input_wait_ns"][1:]
    assert waits.min() >= 39e6, "each batch is made while the loop waits"
    assert found["lost_s"] >= 0.9 * waits.sum() / 1e9
    assert found["advice"]["before"] == "dataset = grain.DataLoader(..., worker_count=0)"
    waits = read_recordings(tmp_path / "logs" / "after")[0].steps["input_wait_ns"]
    # The first batch waits for processes to start; every second one, at most, for its worker.
    assert sorted(waits)[len(waits) // 4] < 10e6, json.dumps((waits // 10**6).tolist())


FIT = """
import time
import grain, keras, numpy as np
from gpu_util_callback import GpuUtilCallback

class Read(grain.transforms.Map):
    def map(self, i):
        time.sleep(0.005)
        return np.full(4, i, np.float32), np.ones(1, np.float32)

indices = grain.samplers.IndexSampler(num_records=160, num_epochs=1, shuffle=False)
loader = grain.DataLoader(
    data_source=range(160), sampler=indices, operations=[Read(), grain.transforms.Batch(8)])
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(loader, verbose=0, callbacks=[GpuUtilCallback("logs", report=False)])
"""


def test_a_loader_in_keras_fit(tmp_path):
    pytest.importorskip("jax", reason="make test BACKENDS=1")
    pytest.importorskip("keras", minversion="3.12", reason="an older fit takes no Grain")
    run(FIT, tmp_path, start=python("keras"), KERAS_BACKEND="jax")
    [recording] = read_recordings(tmp_path / "logs")
    assert recording.step_count == 20 and recording.steps["input_wait_ns"].min() >= 39e6
    fit = recording.facts["fit"]
    assert (fit["input_kind"], fit["input_class"], fit["input_workers"]) == ("grain", "DataLoader", 0)
