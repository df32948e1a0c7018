"""Of which fits two lines are printed at the end."""

import pytest
from generated_runs import Generated, write

from gpu_util_callback import read_recordings
from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.recorder import messages
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


def ended(folder, fit: int, *, waits: bool, model: str = "model", between_s: float = 0.0) -> None:
    """A fit of 0.3 s, or one of 2.3 s that waits for its input, and what is printed at its end."""
    process = {"fits": fit + 1, "fits_s": 2.0, "between_s": {"other code": between_s}} if fit else None
    run = Generated(fit_index=fit, model={"name": model}, process=process)
    run.steps(200 if waits else 30, step_ms=1.5 if waits else 10, wait_ms=10 if waits else 0)
    write(run, folder / str(fit))
    verdict(run_report(read_recordings(folder / str(fit))[0]))
    drain(5)


def test_from_the_fifth_short_fit_on_one_line_is_about_all_of_them(tmp_path, capsys):
    printed = []
    for fit in range(20):
        ended(tmp_path, fit, waits=fit % 2 == 0, between_s=0.1 * fit)
        printed.append(capsys.readouterr().out)
    assert [bool(text) for text in printed[:4]] == [True, False, True, False], "those with findings, as before"
    assert [fit + 1 for fit, text in enumerate(printed) if text and fit >= 4] == [5, 20]
    assert printed[4].startswith("gpu-util: 5 short fits took 7.5 s together, and 400 ms passed between them: ")
    assert "6.0 s waiting for input, 1.5 s training steps" in printed[4], printed[4]
    assert "Each has 132 steps and spends 1.2 s on what a fit begins and ends with. Do they go on" in printed[4]
    assert len(printed[4].splitlines()) == 2 and "generator" in printed[4]


def test_fits_of_models_of_their_own_are_not_told_to_be_one(tmp_path, capsys):
    for fit in range(5):
        ended(tmp_path, fit, waits=True, model=f"sequential_{fit}")
    assert "Each fits a model of its own: can one serve all" in capsys.readouterr().out


def test_fits_that_mostly_train_are_told_no_cure(tmp_path, capsys):
    for fit in range(5):
        ended(tmp_path, fit, waits=False)
    printed = capsys.readouterr().out
    assert "5 short fits took" in printed and printed.endswith("begins and ends with.\n")


def test_the_last_fits_are_counted_as_the_process_ends(tmp_path, capsys):
    for fit in range(7):
        ended(tmp_path, fit, waits=False)
    assert "7 short fits" not in capsys.readouterr().out
    messages._count_at_exit()
    assert "gpu-util: 7 short fits took" in capsys.readouterr().out


def trial(folder, fit: int, *, wait_ms: float = 10, kind: str = "torch DataLoader") -> None:
    """A trial of a tuner, which waits for its input, and what is printed at its end."""
    facts = {"input_kind": kind, "input_workers": 0}
    run = Generated(fit_index=fit, fit=facts, framework={"name": "torch", "backend": "torch"})
    run.steps(2000, step_ms=10 + fit, wait_ms=wait_ms)
    write(run, folder / str(fit))
    verdict(run_report(read_recordings(folder / str(fit))[0]))
    drain(5)


def test_what_trials_repeat_is_said_once_and_counted(tmp_path, capsys):
    """Seen: a tuner's trials each printed the verdict of the one before."""
    printed = []
    for fit in range(13):
        trial(tmp_path, fit)
        printed.append(capsys.readouterr().out)
    assert "Training waits for its input" in printed[0] and len(printed[0].splitlines()) == 2
    assert printed[1] == "gpu-util: the same in 1 more fit: Input-bound.\n"
    assert [fit for fit, text in enumerate(printed) if text] == [0, 1, 7]
    messages._count_at_exit()
    assert capsys.readouterr().out == "gpu-util: the same in 12 more fits: Input-bound.\n"


def test_another_verdict_or_another_remedy_is_said_in_full(tmp_path, capsys):
    trial(tmp_path, 0)
    trial(tmp_path, 1, kind="PyDataset")
    trial(tmp_path, 2, wait_ms=0)
    printed = capsys.readouterr().out
    assert "the same in" not in printed and len(printed.splitlines()) == 6, printed
