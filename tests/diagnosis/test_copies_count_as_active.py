"""NVML's utilization counts copies: what rests on kernels asks GPM, profiler windows or the PCIe traffic."""

import pytest
from generated_runs import GPU, Generated, findings_of

WITHOUT_LINK = GPU | {"pcie_generation_max": None, "pcie_width_max": None}


def causes(found):
    return [one["cause"] for one in findings_of(found)]


def copying(gb_per_s: float | None, active: float, sm: float | None, back: float = 0.01, card: dict = GPU) -> dict:
    """A training without profiler windows whose batches are copied at this rate, and results at `back`."""
    run = Generated(seed=3, gpus=[card])
    run.steps(1500, step_ms=10, gpu_share=active)
    seconds = (run.now - run.facts["started_ns"]) / 1e9
    if gb_per_s is not None:
        run.gpu_value("pcie_rx_bytes_per_s", seconds, gb_per_s * 1e9)
        run.gpu_value("pcie_tx_bytes_per_s", seconds, back * 1e9)
    run.gpu_value("allocator_peak_bytes", seconds, 0.1 * GPU["memory_total_bytes"])
    if sm is not None:
        run.gpu_value("sm_active_pct", seconds, sm)
    return run.diagnose()


@pytest.mark.parametrize(
    "told, cause, lost_s",
    [
        # Pinned copies to an H200: utilization 100 %, and no kernel runs.
        ((55, 1.0, 2.6), "transfer_bound", 0.97 * 15.5),
        # Behind kernels they lose nothing, however few SMs those take: how many work is no share of time.
        *(((55, 1.0, sm), None, None) for sm in (97, 40, 8)),
        ((55, 0.4, 20), "transfer_bound", 0.6 * 15),  # beside kernels, the time in which nothing runs
        # Without GPM only time without copies is known to be lost.
        ((55, 1.0, None), None, None),
        ((55, 0.4, None), "transfer_bound", 0.6 * 15),
        # A GPU that copies is no empty one: 36 % of the link's nominal rate is 48 % of what it delivers.
        ((0.2, 1.0, 8), "small_batch", None),
        ((23, 0.98, 8), None, None),
        # Copies one way after the other take the time of both.
        ((3, 1.0, 8, 3), "small_batch", None),
        ((7, 1.0, 8, 7), None, None),
    ],
)
def test_what_copies_lose(told, cause, lost_s):
    found = copying(*told)
    assert causes(found) == ([cause] if cause else [])
    for finding in findings_of(found):
        assert finding["lost_s"] == (lost_s and pytest.approx(lost_s, rel=0.05))
        assert finding["evidence"]["gpu_active_pct"] == pytest.approx(100 * told[1], abs=2)
        if cause == "transfer_bound":
            assert finding["evidence"]["sm_active_pct"] == told[2]


@pytest.mark.parametrize(("gb_per_s", "card"), [(None, GPU), (0.2, WITHOUT_LINK)], ids=["no traffic", "unknown link"])
def test_without_traffic_and_windows_nothing_is_said_of_kernels(gb_per_s, card):
    found = copying(gb_per_s, 1.0, 8, card=card)
    assert causes(found) == []
    assert {"small_batch", "small_model"} <= {rule["cause"] for rule in found["silent"]}
    assert found["verdict"].startswith("No bottleneck found: ")
    assert copying(gb_per_s, 1.0, 85, card=card)["verdict"].startswith("Nothing held up training")
    assert copying(gb_per_s, 1.0, None, card=card)["verdict"].startswith("Nothing held up training")


def test_a_gpu_that_may_only_copy_is_no_proof_of_health():
    assert copying(0.2, 1.0, 60)["verdict"].startswith("Nothing held up training")
    assert copying(23, 1.0, 85)["verdict"].startswith("Nothing held up training")
    verdict = copying(23, 1.0, 8)["verdict"]
    assert verdict.startswith("No bottleneck found: ")
    assert verdict.endswith("kernels ran for at least 50 %, the rest may be copies.")
    assert copying(23, 1.0, None)["verdict"].startswith("Nothing held up training")


@pytest.mark.parametrize(
    ("copies", "active", "ready", "causes_of_it"),
    [
        (0.0, 0.97, False, {"small_batch"}),
        (0.5, 0.97, False, {"transfer_bound"}),
        # Being made ready is in `copy_h2d` of the windows, and idle for NVML: the rest that is active are kernels.
        (0.15, 0.85, True, {"small_batch", "transfer_bound"}),
    ],
)
def test_profiler_windows_tell_copies_from_kernels(copies, active, ready, causes_of_it):
    run = Generated(seed=3, gpus=[GPU])
    run.steps(700, step_ms=10, gpu_share=active)
    run.trace(8, 10, copy_h2d=copies)
    for row in run._traced if ready else ():
        row["any_busy_ns"] = row["kernel_busy_ns"]
    run.steps(700, step_ms=10, gpu_share=active)
    seconds = (run.now - run.facts["started_ns"]) / 1e9
    run.gpu_value("sm_active_pct", seconds, 8)
    run.gpu_value("allocator_peak_bytes", seconds, 0.1 * GPU["memory_total_bytes"])
    assert {"small_batch", "transfer_bound"} & set(causes(run.diagnose())) == causes_of_it
