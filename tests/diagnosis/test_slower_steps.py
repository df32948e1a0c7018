"""Steps that take longer and longer are asked about, where the recording shows no other reason."""

import numpy as np
import pytest
from generated_runs import GPU, Generated

LINE = np.linspace(1, 2.6, 400)


def verdict_of(growth, gpus=(), dims=((32, 72), (32, 1)), noise=0.03, wait_ms=0.1) -> str:
    """Return the verdict on 400 steps of 8 ms times `growth`."""
    run = Generated(seed=4, gpus=list(gpus), framework={"name": "torch", "backend": "torch", "device": "cpu"})
    run.facts["fit"] = {"loop": "custom", "batch_size": 32, "input_dims": [list(sizes) for sizes in dims]}
    scatter = 1 + noise * np.random.default_rng(0).standard_normal(400)
    run.steps(400, step_ms=8.0 * growth * scatter, wait_ms=wait_ms)
    return run.diagnose()["verdict"]


@pytest.mark.parametrize("growth", [LINE, np.linspace(1, 1.8, 400), np.linspace(1, 9, 400) ** 0.8])
def test_steady_growth_is_asked_about(growth):
    """Seen: "Nothing held up training" of steps that took 2.9 times as long at the end, as hooks piled up."""
    verdict = verdict_of(growth)
    assert (
        "as long in the last eighth of the run as in the first, in even growth: does something grow with each"
        in verdict
    )
    assert verdict.startswith("No bottleneck found") and verdict.endswith("(hooks, a list, a graph)?")


def test_by_how_much_is_what_was_measured():
    assert "Steps took 2.1× as long" in verdict_of(LINE, noise=0.001)


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
        {"growth": LINE, "dims": ()},  # unknown
        {"growth": LINE, "gpus": [GPU]},
    ],
)
def test_other_steps_are_not(run):
    assert "in even growth" not in verdict_of(**run)
