"""Of which fits two lines are printed at the end."""

import pytest
from generated_runs import Generated, write

from gpu_util_callback import read_recordings
from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.recorder.messages import drain, verdict


@pytest.mark.parametrize(
    "fit, steps, wait_ms, lines",
    [(0, 8, 0, 2), (3, 8, 0, 0), (3, 2000, 0, 2), (3, 200, 10, 2)],
    ids=["the first", "a short one later", "a long one later", "a short one with a finding"],
)
def test_short_fits_after_the_first_are_silent(fit, steps, wait_ms, lines, tmp_path, capsys):
    run = Generated(fit_index=fit)
    run.steps(steps, step_ms=10, wait_ms=wait_ms)
    run.slow_map(steps, 10 + wait_ms)
    write(run, tmp_path)
    verdict(run_report(read_recordings(tmp_path)[0]))
    drain(5)
    said = capsys.readouterr().out
    assert len(said.splitlines()) == lines and ("Fix first" in said) == bool(wait_ms)
