"""Keras 2 models (`tf_keras`) take the callback too."""

from __future__ import annotations

import pytest
from processes import need, results, start


@pytest.fixture(scope="module")
def found():
    need("tf_keras", "tensorflow", "keras")
    return results(start("legacy_program.py", "1", "4", KERAS_BACKEND="tensorflow"))


@pytest.mark.parametrize("executions", [1, 4])
def test_a_tf_keras_fit_is_recorded(found, executions):
    one = found[f"executions/{executions}"]
    assert one["good"], f"measured {one['measured']}, truth {one['truth']} ms"
    assert one["steps"] == 24 and one["status"] == "ended"
    assert one["timing"] == "graph"
    assert one["framework"]["keras"].startswith("tf_keras 2.")
    assert one["validations"] == 1
    # `tf_keras` takes hold of the test function before it says that a validation begins.
    assert one["unseen"] == 4 // executions
    account = one["account"]
    assert sum(account["time_s"].values()) == pytest.approx(account["wall_s"], rel=0.005)
    assert found["after"]["ok"]
