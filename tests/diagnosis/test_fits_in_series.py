"""A series of short fits: what lies between them is no time of the training."""

from __future__ import annotations

import numpy as np
import pytest
from made_up_rows import phase_table
from made_up_run import findings_of

from gpu_util_callback.diagnosis import Evidence, Run, judge
from gpu_util_callback.recording.summary import account

MS = 1_000_000
STEPS, STEP_MS, PAUSE_MS = 50, 10, 3_000
FITS = 12


def series(busy_pct: float, pause_ms: int = PAUSE_MS, setup_ms: int = 0):
    """(tables, samples, end): fits of 0.5 s in which a GPU works, `pause_ms` apart."""
    starts, phases, times = [], [], []
    at = 0
    for fit in range(FITS):
        begin = at
        if fit:
            phases.append(("between_fits", "", at - pause_ms * MS, at, fit * STEPS))
        if setup_ms:
            end = at + setup_ms * MS
            phases.append(("input_setup", "iterator", at, end, fit * STEPS, "input_wait"))
            at = end
        for _ in range(STEPS):
            starts.append(at)
            at += STEP_MS * MS
        phases.append(("epoch", "epoch 1", begin, at, (fit + 1) * STEPS))
        phases.append(("fit", f"fit {fit + 1}", begin, at, (fit + 1) * STEPS))
        times += range(begin + 50 * MS, at, 100 * MS)
        end = at
        at += pause_ms * MS
    n = len(starts)
    steps = {
        "step": np.arange(n),
        "start_ns": np.array(starts),
        "duration_ns": np.full(n, STEP_MS * MS),
        "body_ns": np.full(n, STEP_MS * MS),
        "input_wait_ns": np.zeros(n, np.int64),
        "batches": np.ones(n, np.int64),
    }
    gpu = {"time_ns": np.array(times), "utilization_pct": np.full(len(times), busy_pct)}
    return {"steps": steps, "phases": phase_table(*phases)}, {"gpu0": gpu}, end


def judged(tables, samples, end, **facts):
    evidence = Evidence(1)
    evidence.add(tables, samples)
    run = Run(
        {
            "started_ns": 1,
            "framework": {"backend": "tensorflow"},
            "fits": FITS,
            "gpus": [{"index": 0, "used_by_framework": True}],
            "fit": {"input_kind": "numpy"},
            **facts,
        },
        evidence,
        end,
        ended=True,
    )
    assert run.account == account(tables["steps"], tables["phases"], 1, end)
    return judge(run), run.account


def test_the_time_between_fits_holds_nothing_up():
    found, spent = judged(*series(busy_pct=97))
    assert spent["wall_s"] == pytest.approx(FITS * STEPS * STEP_MS / 1e3)
    assert spent["between_fits_s"] == pytest.approx((FITS - 1) * PAUSE_MS / 1e3)
    assert found["findings"] == found["spans"] == []
    assert "Nothing held up training" in found["verdict"], found["verdict"]
    assert "6.0 s" in found["verdict"] or "6 s" in found["verdict"], found["verdict"]


def test_losses_are_shares_of_the_training():
    """0.2 s of set-up before each 0.5 s of steps: 29 % of the fits, 6 % of the clock."""
    found, _ = judged(*series(busy_pct=70, setup_ms=200))
    (one,) = [one for one in findings_of(found) if "setup" in one["id"]]
    assert one["title"].endswith("each fit sets up its input again")
    assert "train_on_batch" in one["advice"]["code"]
    assert one["lost_s"] == pytest.approx(FITS * 0.2 * 0.3, rel=0.2), "the GPU idled for 30 %"
    assert "of 8.4 s" in found["verdict"], found["verdict"]


BETWEEN = {"fits": FITS, "fits_s": 6.0, "between_s": {"predict": 44.0, "other code": 4.0}}


@pytest.mark.parametrize("setup_ms", [0, 250])
def test_what_passes_between_the_fits_comes_first_where_it_is_more(setup_ms):
    found, _ = judged(*series(busy_pct=97, setup_ms=setup_ms), process=BETWEEN)
    said = found["verdict"]
    assert said.startswith("48 s of 54 s passed between the fits, 44 s in predict. In the fits: ")
    assert "held training back" not in said and "faster" not in said
    [finding] = findings_of(found, "between_fits")
    assert (finding["lost_s"], finding["of_s"], finding["saves_s"]) == (48.0, 54.0, 0.0)
    assert finding["severity"] == pytest.approx(48 / 54, abs=1e-4)
    assert not finding["advice"]["code"], "predict may compute all of it"


def test_the_set_up_of_predict_between_fits_is_what_its_cure_saves():
    found, _ = judged(*series(busy_pct=97), process={**BETWEEN, "predict_set_up_s": 27.0})
    [finding] = findings_of(found, "between_fits")
    assert finding["saves_s"] == pytest.approx(27.0)
    assert "predict_on_batch" in finding["advice"]["code"]
    assert "make this script 1.5 to 2.7× faster" in found["verdict"], found["verdict"]


LESS, ONE = (
    "if number % 2 == 0:  # of the fit\n    model.evaluate(...)",
    f"model.fit(..., epochs={FITS}, validation_data",
)


@pytest.mark.parametrize(
    ("epochs", "outside_s", "inputs", "code"),
    [
        (1, 20.0, None, ONE),
        (1, 20.0, 1, ONE),
        (1, 20.0, FITS, LESS),  # seen: chunks of a stream, each given to a fit of its own
        (5, 20.0, 1, LESS),  # a fit of its own begins there
        (1, 0.1, 1, LESS),  # the fits set nothing up
    ],
)
def test_a_loop_of_fit_and_evaluate_may_be_one_fit_of_the_same_data(epochs, outside_s, inputs, code):
    whole = {**BETWEEN, "between_s": {"evaluate": 24.0, "fit outside its callbacks": outside_s}}
    whole |= {} if inputs is None else {"inputs": inputs}
    found, _ = judged(*series(busy_pct=97), process=whole, fit={"input_kind": "numpy", "epochs": epochs})
    [finding] = findings_of(found, "between_fits")
    assert finding["advice"]["code"].startswith(code) and finding["advice"]["question"]
    assert finding["saves_s"] == 0  # nobody said yes
    assert finding["saves_range_s"][1] > 10


@pytest.mark.parametrize(
    ("other_s", "at_s", "function", "said"),
    [
        (20.0, 19.0, "load", "pool.submit(load, ...)"),
        (20.0, 19.0, "Parts.read", "pool.submit(read, ...)"),
        (20.0, 19.0, "<module>", "pool.submit(load, ...)"),
        (4.0, 4.0, "load", "model.evaluate(...)"),  # more is saved there
        (20.0, 6.0, "load", "model.evaluate(...)"),  # no line holds most
    ],
)
def test_of_the_programs_own_code_between_the_fits_the_line_is_named(other_s, at_s, function, said):
    """Seen: `np.load` before each fit was "other code", behind a tenth of a second that each fit sets up."""
    at = f"{function} (parts.py, line 26)"
    parts = {"evaluate": 16.0, "fit outside its callbacks": 20.5, "other code": other_s}
    whole = {"fits": FITS, "fits_s": 40.0, "between_s": parts, "other_at": at, "other_at_s": at_s, "inputs": FITS}
    found, _ = judged(*series(busy_pct=97, setup_ms=200), process=whole, fit={"input_kind": "numpy", "epochs": 1})
    first = next(iter(findings_of(found)))
    assert first["cause"] == "between_fits" and said in first["advice"]["code"]
    assert (at in first["advice"]["text"]) == ("submit" in said)


@pytest.mark.parametrize("between", [{"predict": 5.0}, {"predict": 0.3}, {}])
def test_fits_that_are_most_of_a_script_have_no_finding_about_the_rest(between):
    fits_s = 6.0 if sum(between.values()) > 1 else 0.2
    whole = {"fits": FITS, "fits_s": fits_s, "between_s": between}
    found, _ = judged(*series(busy_pct=97), process=whole)
    assert not findings_of(found) and "passed between" not in found["verdict"]


def test_promises_are_of_the_time_from_the_first_fit_to_the_last():
    tables, samples, end = series(busy_pct=5, setup_ms=400)
    held_up = tables["phases"]["kind"] == "input_setup"
    for column, value in (("kind", "callback"), ("name", "Plots.on_epoch_end"), ("account", "callbacks")):
        tables["phases"][column][held_up] = value
    table = tables, samples, end
    facts = {"fits": 1, "fit": {"callbacks": {"Plots": {"every": {"period": 1}}}}}
    alone, _ = judged(*table, **facts)
    whole = {**BETWEEN, "fits_s": FITS * 0.9, "between_s": {"predict": 4.0}}
    found, _ = judged(*table, process=whole, **facts)
    assert "could make this run 1.5 to 1.7× faster" in alone["verdict"], alone["verdict"]
    assert "could make this script 1.3 to 1.4× faster" in found["verdict"], found["verdict"]
