"""The stand-in under the real binding, and a sampler's reader stepped by hand."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nvml import Library, Scenario, build_standin, loaded
from stepped import Stepped

from gpu_util_callback.gpus import _gate, _reader


@pytest.fixture(scope="session")
def standin_folder(tmp_path_factory) -> Path:
    """Where the stand-in is built, once for all tests."""
    folder = tmp_path_factory.mktemp("standin")
    build_standin(folder, named=False)
    return folder


@pytest.fixture
def play(standin_folder, monkeypatch) -> Iterator[Callable[[Scenario], Library]]:
    """play(scenario): the stand-in answers it in this process until the test ends."""
    monkeypatch.setattr(_gate, "_started_in", None)
    # Test machines are containers as often as not; tests of containers say so themselves.
    monkeypatch.setattr(_reader, "host_pids", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    with contextlib.ExitStack() as stack:

        def start(scenario: Scenario) -> Library:
            library = stack.enter_context(loaded(scenario, standin_folder))
            monkeypatch.setattr(_gate, "_started_in", None)
            return library

        yield start


class ScenarioTime:
    """The `time` module, with a scenario's seconds: pauses after failures are of its time, no call takes long."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def perf_counter(self) -> float:
        return self._library.time

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@pytest.fixture
def step(play, monkeypatch) -> Callable[..., Stepped]:
    """step(scenario, index=0, mig=None): a stepped reader over a scenario."""

    def start(scenario: Scenario, **options) -> Stepped:
        scenario.options.setdefault("time", "manual")
        library = play(scenario)
        for module in (_gate, _reader):
            monkeypatch.setattr(module, "time", ScenarioTime(library))
        return Stepped(library, **options)

    return start
