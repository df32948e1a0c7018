"""Steps that take longer and longer are a finding with its time, where the recording shows no other reason."""

import numpy as np
import pytest
from generated_runs import GPU, Generated, findings_of

LINE = np.linspace(1, 2.6, 400)


STAIRS = 1 + np.arange(400) // 40 / 4  # flat within each of ten epochs


def growing(growth, gpus=(), dims=((32, 72), (32, 1)), noise=0.03, wait_ms=0.1, epochs=1) -> list:
    """Return the findings about 400 steps of 8 ms times `growth`."""
    run = Generated(seed=4, gpus=list(gpus), framework={"name": "torch", "backend": "torch", "device": "cpu"})
    run.facts["fit"] = {"loop": "custom", "batch_size": 32, "input_dims": [list(sizes) for sizes in dims]}
    scatter = 1 + noise * np.random.default_rng(0).standard_normal(400)
    run.facts["memory"] = {"batch_sizes": {"0": 32, "1": 16}}
    for step_ms in np.split(8.0 * growth * scatter, epochs):
        with run.epoch():
            run.steps(len(step_ms), step_ms=step_ms, wait_ms=wait_ms)
    return findings_of(run.diagnose(), cause="slow_steps")


@pytest.mark.parametrize("growth", [LINE, np.linspace(1, 1.8, 400), np.linspace(1, 9, 400) ** 0.8])
def test_steady_growth_is_a_finding_with_what_it_cost(growth):
    """Seen: "Nothing held up training" of steps that took 2.9 times as long at the end, as hooks piled up."""
    (finding,) = growing(growth)
    assert finding["title"] == "Steps take longer and longer" and finding["advice"]["question"]
    assert finding["lost_s"] == pytest.approx(0.008 * (growth - growth[45]).sum(), rel=0.15)
    assert finding["evidence"]["slowdown"] >= finding["threshold"]["slowdown"] == 1.5


@pytest.mark.parametrize("epochs", [2, 10, 50])
@pytest.mark.parametrize("dims", [((32, 72), (32, 1)), (([16, 32], 72), ([16, 32], 1))])
def test_it_grows_within_epochs_of_any_length(epochs, dims):
    assert growing(LINE, epochs=epochs, dims=dims)


def test_by_how_much_is_what_was_measured():
    (finding,) = growing(LINE, noise=0.001)
    assert "They took 2.1× as long in the last eighth of the run as in the first" in finding["advice"]["text"]


@pytest.mark.parametrize(
    "run",
    [
        {"growth": np.ones(400)},
        {"growth": np.ones(400), "noise": 0.4},  # a busy machine
        {"growth": np.linspace(1, 1.3, 400)},
        {"growth": LINE[::-1]},
        {"growth": np.where(np.arange(400) < 200, 1.0, 2.5)},  # another program, another phase
        {"growth": 1.8 + np.sin(np.arange(400) / 60)},
        {"growth": np.where(np.arange(400) % 100 < 50, 1.0, 1.0) + np.arange(400) % 100 / 80},  # anew each epoch
        {"growth": LINE, "dims": ((32, None), (32, 1))},  # longer and longer sequences
        {"growth": LINE, "dims": ((32, [12, 112]), (32, 1))},
        {"growth": LINE, "dims": (([16, 64], 72), ([16, 64], 1))},  # larger batches
        {"growth": LINE, "dims": ()},  # unknown
        {"growth": STAIRS, "epochs": 10},  # layers that train as well from epoch to epoch
        {"growth": STAIRS, "epochs": 10, "noise": 0.2},
        {"growth": LINE, "epochs": 100},  # of four steps
        {"growth": LINE, "gpus": [GPU]},
    ],
)
def test_other_steps_are_not(run):
    assert growing(**run) == []
