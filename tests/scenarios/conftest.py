"""What tests share that train with Keras."""

import pytest


@pytest.fixture
def fresh_keras():
    """The same random numbers as ever, and nothing left behind in Keras."""
    import keras

    keras.utils.set_random_seed(0)
    yield
    keras.backend.clear_session()
