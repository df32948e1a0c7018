"""What the plugin's tests share: TensorBoard processes, and the app without a process."""

import pytest
from tensorboard_server import tensorboard_factory

from tensorboard_plugin import runs as runs_module


@pytest.fixture
def start_tensorboard():
    """`start_tensorboard(logdir, load_fast, path_prefix=None, logdir_spec=None) -> server`."""
    yield from tensorboard_factory()


@pytest.fixture
def looked_at_each_time(monkeypatch):
    """Each request looks at the log directory, however lately it was looked at."""
    monkeypatch.setattr(runs_module, "FRESH_S", 0.0)
    monkeypatch.setattr(runs_module, "SETTLED_S", 0.0)
