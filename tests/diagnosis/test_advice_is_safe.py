"""Advice knows where its code is safe, and what it changes besides speed."""

import re
from collections import Counter

import pytest
from advised import apply
from advised_runs import (
    COMPUTING,
    DATALOADER,
    DECODE,
    FILTER,
    GPU,
    JAX,
    KERAS_TORCH,
    LOOP,
    PASCAL,
    PYDATASET,
    PYTHON,
    READER,
    TENSORFLOW,
    TURING,
    WAITING,
    compiles,
    found,
    full_memory,
    hooks,
    nearly_empty,
    phases,
    plain_kernels,
    traced,
    waits,
)

from gpu_util_callback.diagnosis.rule import Advice

FRAMEWORKS = TENSORFLOW, JAX, KERAS_TORCH
GENERATOR = {"input_kind": "generator", "input_workers": 0}
# name -> a run of a framework on these GPUs
KINDS = {
    "PyDataset": lambda **on: waits(**PYDATASET, **on),
    "PyDataset on threads": lambda **on: waits(**PYDATASET | {"input_workers": 4, "input_processes": False}, **on),
    "PyDataset on processes": lambda **on: waits(**PYDATASET | {"input_workers": 2, "input_processes": True}, **on),
    "PyDataset in a loop": lambda **on: waits(**PYDATASET, **LOOP, **on),
    "generator": lambda **on: waits(**GENERATOR, **on),
    "generator in a loop": lambda **on: waits(**GENERATOR, **LOOP, **on),
    "fast generator in a loop": lambda **on: waits(wait_ms=8, **GENERATOR, **LOOP, **on),
    "DataLoader": lambda **on: waits(**DATALOADER, **on),
    "DataLoader with 2 workers": lambda **on: waits(**DATALOADER | {"input_workers": 2}, **on),
    "finished batches": lambda **on: waits(
        wait_ms=2.5, step_ms=8, input_ready_pct=98.0, input_handover_ms=2.3, **DATALOADER, **on
    ),
    "arrays": lambda **on: waits(input_kind="numpy", **on),
    "grain": lambda **on: waits(input_kind="grain", **on),
    "fetches": lambda **on: waits(input_kind=None, **LOOP, **on),
    "decode": lambda **on: waits(DECODE, **on),
    "py_function": lambda **on: waits(PYTHON, **on),
    "filter": lambda **on: waits(FILTER, epochs=4, **on),
    "reader": lambda **on: waits(READER, **on),
    "validation": lambda **on: phases("validation", "validation", 1, **on),
    "callback": lambda **on: phases("callback", "Plots.on_epoch_end", 0.5, **on),
    "hook": lambda **on: hooks("Watcher.on_train_batch_end", **on),
    "setup": lambda **on: phases("input_setup", "new iterator", **on),
    "setup of processes": lambda **on: phases(
        "input_setup", "new iterator", **PYDATASET | {"input_workers": 4, "input_processes": True}, **on
    ),
    "compilation": lambda **on: compiles(**on),
    "launches": lambda **on: traced("idle_launch", **on),
    "copies": lambda **on: traced("copy_h2d", **on),
}
HOSTS = (None, WAITING, COMPUTING)
FORKS = re.compile(r"use_multiprocessing ?= ?True|(?<!Options\()num_workers=[1-9](?!.*spawn)")
ALTERS = re.compile(r"batch_size ?=|ds\.batch\(\d+\)|global_policy|autocast|astype\(jnp|// 2")


def advice_of(run, host):
    times = Counter(finding["cause"] for finding in run.findings())
    return [found(run, cause, host)["advice"] for cause, count in times.items() if count == 1]


@pytest.mark.parametrize("kind", KINDS)
def test_no_process_is_forked_where_jax_holds_a_gpu(kind):
    for host in HOSTS:
        for advice in advice_of(KINDS[kind](framework=JAX, gpus=[GPU]), host):
            printed = f"{advice['text']} {advice['code']}"
            assert not FORKS.search(printed), printed


def test_jax_on_a_gpu_gets_processes_that_are_not_forked():
    keras = pytest.importorskip("keras")
    finding = found(waits(framework=JAX, **PYDATASET), "input_bound", COMPUTING)
    dataset = apply(finding["advice"]["code"], keras=keras, dataset=[1, 2, 3])["dataset"]
    assert len(dataset) == 3 and dataset.workers > 1 and not dataset.use_multiprocessing
    assert dataset.pool._mp_context.get_start_method() == "spawn"
    dataset.pool.shutdown()


def test_jax_on_a_gpu_without_a_driver_library_is_seen():
    run = waits(framework=JAX | {"device": "gpu"}, gpus=[], **PYDATASET)
    assert "use_multiprocessing" not in found(run, "input_bound", COMPUTING)["advice"]["code"]


def test_what_alters_the_training_says_so(monkeypatch):
    made: list[Advice] = []
    plain = Advice.__init__

    def noted(self, *args, **kwargs):
        plain(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(Advice, "__init__", noted)
    for framework in FRAMEWORKS:
        for gpu in (GPU, TURING, PASCAL):
            for run in (
                plain_kernels(gpu, framework=framework),
                full_memory(gpu, framework=framework),
                full_memory(gpu, retries=5, framework=framework),
                nearly_empty(0.1, framework=framework),
            ):
                advice_of(run, None)
        for share in ("idle_launch", "idle_sync", "idle_host", "collective"):
            advice_of(traced(share, framework=framework), None)
            advice_of(traced(share, framework=framework, jit_compile=True), None)
    altering = [advice for advice in made if ALTERS.search(advice.code)]
    assert len(altering) > 10
    assert all(advice.alters_training for advice in altering), altering
