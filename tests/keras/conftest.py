"""Keras is quiet here, and nothing of one fit is left for the next test."""

import logging
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pytest


@pytest.fixture(autouse=True, scope="session")
def imported():
    """Keras is there before the first module: `imported_is_not_collected`."""
    pytest.importorskip("keras")


@pytest.fixture(autouse=True)
def fresh():
    import keras

    from gpu_util_callback.recorder import messages, recorder

    keras.utils.set_random_seed(0)
    messages._warned.clear()
    yield
    recorder.close_left_over()
    keras.utils.clear_session(free_memory=False)


@pytest.fixture
def heard(monkeypatch):
    """Messages come out, whatever earlier tests of this process did to the log and the printer."""
    from gpu_util_callback.recorder import messages

    monkeypatch.setattr(messages, "_printer", messages._Printer())
    for name, value in (("propagate", True), ("disabled", False), ("level", logging.NOTSET)):
        monkeypatch.setattr(messages.log, name, value)
    messages.log.manager._clear_cache()  # of the levels that are on
