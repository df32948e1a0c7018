"""Exchanges of gradients, as DistributedDataParallel counts and times them, beside the updates of the weights."""

import contextlib

import pytest

torch = pytest.importorskip("torch")

from gpu_util_callback.backends.torch.runtime import TorchRuntime  # noqa: E402


@pytest.fixture
def job(tmp_path, monkeypatch):
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    monkeypatch.setattr(TorchRuntime, "processes", lambda self: 2)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
@pytest.mark.parametrize(("batches", "spared", "several"), [(8, False, True), (8, True, False), (1, False, False)])
def test_only_exchanges_that_no_update_needs_are_several_an_update(job, optimizer, batches, spared, several):
    parallel = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    update = getattr(torch.optim, optimizer)(parallel.parameters(), lr=0.01)
    runtime = TorchRuntime()
    for step in range(104 if not spared else 840):
        last = step % batches == batches - 1
        with parallel.no_sync() if spared and not last else contextlib.nullcontext():
            parallel(torch.ones(2, 4)).sum().backward()
        if last:
            update.step()
            update.zero_grad()
    found = runtime.exchanges()
    assert found["count"] >= 100 and found["exposed_ms"] >= 0
    assert (found["count"] // found["updates"] >= 3) == several


def test_without_a_module_that_exchanges_nothing_is_known_nor_sought_for_ever(job):
    runtime = TorchRuntime()
    assert [runtime.exchanges() for _ in range(5)] == [None] * 5 and runtime._searches == 3


def test_a_lone_process_is_not_looked_through():
    runtime = TorchRuntime()
    assert runtime.exchanges() is None and runtime._searches == 0
