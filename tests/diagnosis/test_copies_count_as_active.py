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


def test_copies_one_after_another_lose_the_time_in_which_no_sm_works():
    """Pinned copies to an H200: utilization 100 %, and no kernel runs."""
    found = copying(55, 1.0, 2.6)
    assert causes(found) == ["transfer_bound"]
    [finding] = findings_of(found)
    assert finding["lost_s"] == pytest.approx(0.97 * 15, rel=0.05)
    assert finding["evidence"]["sm_active_pct"] == pytest.approx(2.6, abs=0.1)
    assert finding["evidence"]["gpu_active_pct"] > 95


@pytest.mark.parametrize("sm", [97, 40, 8])
def test_copies_behind_kernels_lose_nothing(sm):
    """However few SMs the kernels take: how many work is no share of time."""
    assert "transfer_bound" not in causes(copying(55, 1.0, sm))


def test_beside_kernels_a_full_link_loses_the_time_in_which_nothing_runs():
    found = copying(55, 0.4, 20)
    [finding] = findings_of(found, "transfer_bound")
    assert finding["lost_s"] == pytest.approx(0.6 * 15, rel=0.1)


def test_without_gpm_only_time_without_copies_is_known_to_be_lost():
    assert causes(copying(55, 1.0, None)) == []
    found = copying(55, 0.4, None)
    [finding] = findings_of(found, "transfer_bound")
    assert finding["lost_s"] == pytest.approx(0.6 * 15, rel=0.1)
    assert "sm_active_pct" not in {name for name, value in finding["evidence"].items() if value is not None}


def test_a_gpu_that_copies_is_no_empty_one():
    assert causes(copying(0.2, 1.0, 8)) == ["small_batch"]
    # 36 % of the link's nominal rate is 48 % of what it delivers.
    assert "small_batch" not in causes(copying(23, 0.98, 8))


def test_copies_one_way_after_the_other_take_the_time_of_both():
    assert "small_batch" in causes(copying(3, 1.0, 8, back=3))
    assert "small_batch" not in causes(copying(7, 1.0, 8, back=7))


@pytest.mark.parametrize(("gb_per_s", "card"), [(None, GPU), (0.2, WITHOUT_LINK)], ids=["no traffic", "unknown link"])
def test_without_traffic_and_windows_nothing_is_said_of_kernels(gb_per_s, card):
    found = copying(gb_per_s, 1.0, 8, card=card)
    assert causes(found) == []
    assert {"small_batch", "small_model"} <= {rule["cause"] for rule in found["silent"]}
    assert found["verdict"].startswith("No bottleneck was established: ")
    assert copying(gb_per_s, 1.0, 85, card=card)["verdict"].startswith("Nothing held training back")
    assert copying(gb_per_s, 1.0, None, card=card)["verdict"].startswith("Nothing held training back")


def test_a_gpu_that_may_only_copy_is_no_proof_of_health():
    assert copying(0.2, 1.0, 60)["verdict"].startswith("Nothing held training back")
    assert copying(23, 1.0, 85)["verdict"].startswith("Nothing held training back")
    verdict = copying(23, 1.0, 8)["verdict"]
    assert verdict.startswith("No bottleneck was established: ")
    assert verdict.endswith("kernels ran for at least 50 %, the rest may be copies.")
    assert copying(23, 1.0, None)["verdict"].startswith("Nothing held training back")


@pytest.mark.parametrize(("copies", "empty"), [(0.0, True), (0.5, False)])
def test_profiler_windows_tell_copies_from_kernels(copies, empty):
    run = Generated(seed=3, gpus=[GPU])
    run.steps(700, step_ms=10)
    run.trace(8, 10, copy_h2d=copies)
    run.steps(700, step_ms=10)
    seconds = (run.now - run.facts["started_ns"]) / 1e9
    run.gpu_value("sm_active_pct", seconds, 8)
    run.gpu_value("allocator_peak_bytes", seconds, 0.1 * GPU["memory_total_bytes"])
    found = causes(run.diagnose())
    assert ("small_batch" in found) is empty
    assert ("transfer_bound" in found) is not empty


def test_time_in_which_a_copy_is_made_ready_is_no_part_of_utilization():
    """It is in `copy_h2d` of the windows, and idle for NVML: the rest that is active are kernels."""
    run = Generated(seed=3, gpus=[GPU])
    run.steps(700, step_ms=10, gpu_share=0.85)
    run.trace(8, 10, copy_h2d=0.15)
    for row in run._traced:
        row["any_busy_ns"] = row["kernel_busy_ns"]
    run.steps(700, step_ms=10, gpu_share=0.85)
    seconds = (run.now - run.facts["started_ns"]) / 1e9
    run.gpu_value("sm_active_pct", seconds, 8)
    run.gpu_value("allocator_peak_bytes", seconds, 0.1 * GPU["memory_total_bytes"])
    assert "small_batch" in causes(run.diagnose())
