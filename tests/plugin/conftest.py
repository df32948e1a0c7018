"""What the plugin's tests share: TensorBoard processes, and the app without a process."""

import pytest
from tensorboard_server import tensorboard_factory


@pytest.fixture
def start_tensorboard():
    """`start_tensorboard(logdir, load_fast, path_prefix=None, logdir_spec=None) -> server`."""
    yield from tensorboard_factory()


def pytest_itemcollected(item):
    """Have `make quick` run this folder's tests: they train nothing, but for those marked `heavy`."""
    item.add_marker(pytest.mark.quick)
