"""Keras 2 models (`tf_keras`) take the callback too."""

from __future__ import annotations

import pytest
from packages import need
from processes import shared, summed_up

pytestmark = pytest.mark.timed


@pytest.fixture
def found():
    need("tf_keras", "tensorflow", "keras")
    return shared("legacy_program.py", "1", "4", KERAS_BACKEND="tensorflow")


@pytest.mark.parametrize("executions", [1, 4])
def test_a_tf_keras_fit_is_recorded(found, executions):
    one = found[f"executions/{executions}"]
    assert one["good"], f"measured {one['measured']}, truth {one['truth']} ms"
    assert one["steps"] == 48 and one["status"] == "ended"
    assert one["fit"]["timing"] == "graph"
    assert one["framework"]["keras"].startswith("tf_keras 2.")
    assert one["validations"] == 2
    assert len(one["validation_ms"]) == 8
    first, *others = one["validation_ms"][::executions]  # of each execution
    assert first >= 6, "the first batch of a validation is waited for"
    assert min(others) >= 6
    assert one["fit"]["input_kind"] == "tf.data"
    summed_up(one)
    assert all("tensorflow" in module or "keras" in module for module in found["after"]["left"])
