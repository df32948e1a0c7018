"""A frozen part in front of what trains, computed anew in each epoch: seen in the model, and asked about."""

import keras
import pytest
from generated_runs import Generated, findings_of

from gpu_util_callback.backends.adapters import _frozen_share

layers = keras.layers


def backbone(*more, trainable=False) -> keras.Model:
    model = keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(4, 3), layers.BatchNormalization(), *more])
    model.trainable = trainable
    return model


def model_of(*front) -> keras.Model:
    inputs = outputs = keras.Input((8, 8, 3))
    for layer in front:
        outputs = layer(outputs, training=False) if isinstance(layer, keras.Sequential) else layer(outputs)
    return keras.Model(inputs, layers.Dense(2)(layers.Flatten()(outputs)))


def words() -> keras.Model:
    return keras.Sequential([keras.Input((5,)), layers.Embedding(900, 8, trainable=False), layers.Dense(2)])


class Own(keras.Model):
    """Its layers have no order."""

    def __init__(self):
        super().__init__()
        self.front = backbone()


def test_the_share_of_frozen_layers_in_front_is_that_of_what_computes():
    front, head = backbone().count_params(), 2 * (6 * 6 * 4 + 1)
    assert _frozen_share(model_of(backbone())) == pytest.approx(front / (front + head), abs=1e-4)
    assert _frozen_share(model_of(layers.Rescaling(2.0), backbone(), layers.Dropout(0.2))) > 0
    for other in (
        model_of(layers.RandomFlip(), backbone()),  # other photos in each epoch
        model_of(backbone(layers.Dropout(0.2))),  # other features
        model_of(backbone(trainable=True)),
        model_of(layers.Conv2D(3, 1), backbone()),  # it trains in front
        words(),  # only looked up
    ):
        assert _frozen_share(other) == 0
    assert _frozen_share(Own()) is None
    assert _frozen_share(keras.Sequential([layers.Dense(2)])) is None, "not built"


def run_of(share=0.9, epochs=12, kind="numpy", step_ms=20, wait_ms=0.0) -> list:
    run = Generated(seed=3, framework={"name": "tensorflow", "backend": "tensorflow", "device": "cpu"})
    run.facts["model"] = {"frozen_share": share}
    run.facts["fit"] = {"input_kind": kind, "epochs": epochs, "batch_size": 32}
    run.steps(180, step_ms=step_ms, wait_ms=wait_ms)
    return [one for one in findings_of(run.diagnose(), cause="slow_steps") if "frozen" in one["title"]]


def test_a_frozen_front_of_the_same_arrays_is_asked_to_be_computed_once():
    """Seen: "Nothing held up training" of a head on a frozen backbone, 3.4 to 5.9 times as fast on its features."""
    [finding] = run_of()
    assert "predict(x)" in finding["advice"]["code"] and finding["advice"]["question"] and not finding["saves_s"]


@pytest.mark.parametrize("case", [{"share": 0.3}, {"epochs": 1}, {"kind": "tf.data"}, {"wait_ms": 50.0}])
def test_other_runs_are_not(case):
    assert run_of(**case) == []
