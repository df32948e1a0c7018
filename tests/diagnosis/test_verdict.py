"""What the verdict says of a run in which no rule found a cause."""

import pytest
from generated_runs import GPU, Generated, write

from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.recording import read_recordings


def run_of(gpus=(), **steps):
    run = Generated(seed=3, gpus=list(gpus), framework={"backend": "torch"})
    run.steps(600, step_ms=20, **steps)
    return run


@pytest.mark.parametrize("share, said", [(0.4, "only 40 %"), (0.0, "only 0")])
def test_an_idle_gpu_is_not_called_healthy(share, said):
    found = run_of([GPU], gpu_share=share).diagnose()
    assert not found["findings"] and not found["spans"]
    assert found["verdict"].startswith("No bottleneck was established, but the GPU was active only")
    assert said in found["verdict"]


def test_a_busy_gpu_and_a_run_of_steps_are():
    busy = run_of([GPU], gpu_share=0.97).diagnose()["verdict"]
    assert busy.startswith("Nothing held training back") and "active 9" in busy
    assert run_of().diagnose()["verdict"].startswith("Nothing held training back: ")


def test_what_took_most_of_the_rest_is_named(tmp_path):
    run = run_of()
    run.phase("callback", 30, name="Export")  # once: an event, and no state of the run
    write(run, tmp_path / "run")
    [recording] = read_recordings(tmp_path / "run")
    found = run_report(recording)
    assert not found["findings"] and not found["spans"]
    assert found["verdict"].startswith("No bottleneck was established: ")
    assert "% into callbacks (no GPU in use)." in found["verdict"]
