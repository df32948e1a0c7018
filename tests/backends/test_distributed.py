"""Several devices in one process, and several real processes over loopback."""

from __future__ import annotations

import json
import os
import signal
import socket

import numpy as np
import pytest
from nvml import Scenario, environment
from packages import need
from processes import results, shared, start, summed_up
from waiting import wait_until

from gpu_util_callback import read_recordings
from gpu_util_callback.diagnosis import logdir_report
from gpu_util_callback.recording.alignment import session_clocks

pytestmark = pytest.mark.real_clock("workers wait for each other by milliseconds")


def ports(n: int) -> list[int]:
    """Free ports of the loopback address."""
    sockets = [socket.socket() for _ in range(n)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    found = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return found


def job(framework: str, log_dir, workers: int, slow: int, offsets_ms=(), **variables: str):
    """Start all workers of a job; `offsets_ms`: how wrong their wall clocks are."""
    free = ports(workers)
    processes = []
    for rank in range(workers):
        told = dict(variables)
        if offsets_ms:
            told["WALL_OFFSET_MS"] = str(offsets_ms[rank])
        if framework == "tensorflow":
            cluster = {"worker": [f"127.0.0.1:{port}" for port in free]}
            told["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
        elif framework in ("torch", "alone"):
            told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free[0])}
            told |= {"RANK": str(rank), "WORLD_SIZE": str(workers)}
        else:
            told["COORDINATOR"] = f"127.0.0.1:{free[0]}"
        arguments = (framework, str(log_dir), str(rank), str(workers), str(slow))
        processes.append(start("worker_program.py", *arguments, **told))
    return processes


def one_session(log_dir, workers: int):
    recordings = sorted(read_recordings(log_dir), key=lambda r: r.facts["rank"])
    assert [r.facts["rank"] for r in recordings] == list(range(workers))
    assert len({r.session for r in recordings}) == 1
    assert len({r.facts["job"] for r in recordings}) == 1
    assert all(r.facts["world_size"] == workers for r in recordings)
    return recordings


def check_straggler(framework: str, log_dir, workers: int, steps=50, **how) -> None:
    slow = workers - 1
    processes = job(framework, log_dir, workers, slow, STEPS=str(steps), **how)
    for process in processes:
        results(process, 120)
    recordings = one_session(log_dir, workers)
    waits = [float(np.median(r.steps["input_wait_ns"][3:]) / 1e6) for r in recordings]
    assert waits[slow] > 8
    assert max(waits[:slow]) < 0.4 * waits[slow], f"median waits by rank: {waits} ms"
    # All steps are equally long: the others wait for the slow one inside theirs.
    lengths = [float(np.median(r.steps["duration_ns"][3:]) / 1e6) for r in recordings]
    assert max(lengths) < 1.5 * min(lengths)
    (session,) = logdir_report(recordings)["sessions"]
    found = [finding for finding in session["findings"] if finding["cause"] == "imbalance"]
    assert [finding["ranks"] for finding in found] == [[slow]]
    for recording in recordings:
        assert recording.status == "ended"
        assert len(recording.steps["step"]) == steps


# Beside other tests a step takes longer than the slow input, and no wait is left to find.
@pytest.mark.timed
@pytest.mark.parametrize("framework", ["tensorflow", "jax"])  # torch: with wrong clocks, below
def test_the_worker_with_the_slow_input_is_found(framework, tmp_path):
    need(framework)
    check_straggler(framework, tmp_path, 2)


def test_workers_with_wrong_clocks_are_put_on_one_axis(tmp_path):
    need("torch")
    check_straggler("torch", tmp_path, 2, steps=110, offsets_ms=[0.0, -2000.0])
    recordings = one_session(tmp_path, 2)
    (session,) = logdir_report(recordings)["sessions"]
    clocks = session["clocks"]
    assert clocks["reference"] == 0 and clocks["unknown"] == []
    (found,) = clocks["workers"]
    # Whoever hears last of a gradient may wake some milliseconds later, step by step.
    assert found["offset_ms"] == pytest.approx(-2000, abs=20)
    assert found["steps"] == 110
    assert "behind worker 0's" in found["text"]
    # On the reference's clock every step ends at the same moment; as recorded it did not.
    shared = session_clocks(recordings)
    ends = [r.steps["start_ns"] + r.steps["duration_ns"] for r in recordings]
    assert abs(np.median(ends[1] - ends[0])) > 1.9e9
    for recording, end in zip(recordings, ends, strict=True):
        moved = [shared.of(recording.id).on_reference(int(one)) for one in end]
        assert abs(np.median(np.array(moved) - ends[0])) < 20e6


def test_a_worker_that_computes_longer_is_not_guessed(tmp_path):
    """On a CPU nothing shows who waits within the step: no verdict is better than a wrong one."""
    need("torch")
    for process in job("torch", tmp_path, 2, 1, STEPS="40", WORK_MS="30"):
        results(process, 120)
    recordings = one_session(tmp_path, 2)
    bodies = [float(np.median(r.steps["body_ns"]) / 1e6) for r in recordings]
    assert min(bodies) > 25, f"one did not wait for the other: {bodies} ms"
    (session,) = logdir_report(recordings)["sessions"]
    assert session["findings"] == []


@pytest.mark.timed
@pytest.mark.parametrize(("kind", "ids"), [("more", ["imbalance:worker0.work"]), ("even", []), ("evaluates", [])])
def test_a_rank_with_more_work_is_told_from_one_that_evaluates(tmp_path, kind, ids):
    """Both ranks' steps take equally long: of the slower one's the training thread computes more, backward as well."""
    need("torch")
    programs = [start("shards_program.py", str(tmp_path), str(rank), kind, RANK=str(rank)) for rank in range(2)]
    for program in programs:
        results(program, 120)
    report = logdir_report(one_session(tmp_path, 2))
    (session,) = report["sessions"]
    assert all(run["fit"]["python_in_steps"]["samples"] >= 40 for run in report["runs"]), "enough to be judged"
    assert [found["id"] for found in session["findings"]] == ids
    for found in session["findings"]:
        assert found["ranks"] == [0] and found["title"].endswith("its batches are larger") and not found["saves_s"]
        assert found["evidence"]["ms_per_step"] > 2 * found["evidence"]["others_ms_per_step"]


def test_ranks_of_a_sweep_are_neither_aligned_nor_blamed(tmp_path):
    for process in job("alone", tmp_path, 2, 1, offsets_ms=(0, 35), STEPS="110"):
        results(process, 60)
    (session,) = logdir_report(one_session(tmp_path, 2))["sessions"]
    assert session["findings"] == []
    assert session["clocks"]["workers"] == []
    assert [one["rank"] for one in session["clocks"]["unknown"]] == [1]


def test_a_worker_that_is_killed(tmp_path):
    need("torch")
    processes = job("torch", tmp_path, 2, 1, STEPS="2000", FLUSH_S="0.5")
    wait_until(lambda: [r.step_count > 20 for r in read_recordings(tmp_path)] == [True, True], 60)
    os.kill(processes[1].pid, signal.SIGKILL)
    for process in processes:
        process.communicate(timeout=60)
    first, killed = one_session(tmp_path, 2)
    assert first.status == "interrupted"
    assert killed.status == "lost"  # its process is gone from this machine
    for recording in (first, killed):
        assert 20 < len(recording.steps["step"]) < 2000
        assert not recording.problems
    # At most the last flush of the killed one is missing.
    ends = [(r.steps["start_ns"] + r.steps["duration_ns"])[-1] for r in (first, killed)]
    assert 0 <= (ends[0] - ends[1]) / 1e9 < 0.5 + 0.5
    logdir_report([first, killed])


@pytest.mark.parametrize("strategy", ["DataParallel", "ModelParallel"])
def test_keras_on_jax_over_forced_devices(strategy):
    need("keras", "jax")
    one = shared("keras_program.py", "parallel", KERAS_BACKEND="jax")[strategy]
    summed_up(one)
    assert one["good"], f"measured {one['measured']}, truth {one['truth']} ms"
    assert one["steps"] == 24 and one["status"] == "ended" and one["finite"]
    assert one["compiled"] == [0]
    assert "input wait" not in one["unavailable"]
    assert one["fit"]["strategy"] == strategy
    replicas = one["fit"]["replicas"]
    assert [r["device"] for r in replicas] == [f"cpu:{i}" for i in range(8)]
    if strategy == "ModelParallel":  # two replicas of the model, each over four devices
        assert one["shards"] == ["(16, 16)"], "the weights were not sharded"
        assert [r["replica"] for r in replicas] == [0] * 4 + [1] * 4


def test_keras_on_torch_over_two_processes(tmp_path):
    """As Keras' guide does it (a loop around DistributedDataParallel), and with `fit`."""
    need("keras", "torch")
    (port,) = ports(1)
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    told["KERAS_BACKEND"] = "torch"
    processes = [
        start("ddp_program.py", str(tmp_path), str(rank), "2", "1", RANK=str(rank), **told) for rank in range(2)
    ]
    weights = [results(process, 200) for process in processes]
    for way in ("guide", "fit"):
        assert weights[0][way] == weights[1][way], "the ranks did not train one model"
        recordings = one_session(tmp_path / way, 2)
        assert [len(r.steps["step"]) for r in recordings] == [20, 20]
        waits = [float(np.median(r.steps["input_wait_ns"][3:]) / 1e6) for r in recordings]
        assert waits[1] > 15 and waits[0] < 0.4 * waits[1], f"{way}: waits by rank {waits} ms"
        (session,) = logdir_report(recordings)["sessions"]
        assert [one["ranks"] for one in session["findings"]] == [[1]]
        assert all(r.facts["framework"]["collectives"] == "gloo" for r in recordings)


def test_uneven_gpus_of_one_process(tmp_path):
    scenario = Scenario()
    scenario.gpu("h100")
    scenario.gpu("h100").curve("utilization", [(0, 45)])
    variables = environment(scenario, tmp_path)
    keep = ("LD_LIBRARY_PATH", "NVML_STANDIN_SCENARIO")
    told = {name: variables[name] for name in keep} | {"CUDA_VISIBLE_DEVICES": "0,1"}
    results(start("uneven_program.py", str(tmp_path / "logs"), "180", **told))
    recordings = read_recordings(tmp_path / "logs")
    (run,) = logdir_report(recordings)["runs"]
    assert [gpu["used_by_framework"] for gpu in run["gpus"]] == [True, True]
    assert [gpu["utilization_pct"]["mean"] for gpu in run["gpus"]] == pytest.approx([95, 45], abs=3)
    found = [span for span in run["spans"] + run["findings"] if span["cause"] == "imbalance"]
    assert len(found) == 1 and found[0]["gpus"] == [0, 1]
    assert found[0]["evidence"]["busiest"] == "gpu0 (replica 1)"
    assert found[0]["evidence"]["least_busy"] == "gpu1 (replica 0)"
    assert "gpu0 (replica 1) is active 9" in found[0]["advice"]["text"]


def mirrored(*groups: str) -> dict:
    need("tensorflow", "keras")
    return shared("mirrored_program.py", *groups, KERAS_BACKEND="tensorflow")


@pytest.mark.parametrize("length", ["known", "unknown"])
def test_mirrored_strategy(length):
    one = mirrored("fits")[length]
    assert one["good"], f"measured {one['measured']}, left of making a batch {one['left']} ms"
    assert one["steps"] == 24
    assert len(one["compiled"]) == 1, "the train function was traced more than once"
    assert one["fit"]["timing"] == "graph" and one["fit"]["strategy"] == "MirroredStrategy"
    assert [r["device"] for r in one["fit"]["replicas"]] == ["CPU:0", "CPU:1"]
    assert "input wait" not in one["unavailable"]
    assert "pipeline" in one["unavailable"] and not one["stages"]
    summed_up(one)


def test_stages_behind_a_strategy_are_read_where_tensorflow_tells_them():
    """Of a loop's datasets that are not fetched to the devices ahead; on one device and on two."""
    found = mirrored("stages")
    for devices in ("one", "two"):
        assert found[f"{devices}/late"]["stages"] == ["map(decode)"]
        assert found[f"{devices}/late"]["unavailable"] == []
        assert found[f"{devices}/ahead"]["stages"] == []
        assert found[f"{devices}/ahead"]["unavailable"] == ["pipeline"]
