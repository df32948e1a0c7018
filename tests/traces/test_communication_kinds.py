"""Advice on communication fits its kind: gradients, all-to-all, inference, a late rank."""

import pytest
from test_kineto_layouts import event, kernel, launch, write

from gpu_util_callback.recording import read_recordings
from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.imported import analyse, import_trace

MS = 1_000


def rank(collective: str, took_ms, of: int = 0, trains: bool = True, before_ms: float = 4, group: int = 4) -> list:
    """Ten steps of 10 ms: kernels, then a collective until the step ends."""
    events, number = [], 0
    for step in range(10):
        start = step * 10 * MS
        events.append(event("user_annotation", f"ProfilerStep#{step}", start, 10 * MS))
        if trains:
            events.append(event("cpu_op", "autograd::engine::evaluate_function: MulBackward0", start, 10))
        for name, at, took in (
            ("gemm", start + 20, before_ms * MS),
            (collective, start + 9_950 - took_ms * MS, took_ms * MS),
        ):
            number += 1
            args = {"device": of} | ({"Group size": group} if name == collective else {})
            events += [launch(at - 10, 5, number), kernel(name, at, took, number, **args)]
    return events


def advice(tmp_path, *args, **options) -> dict:
    (finding,) = analyse(read_trace(write(tmp_path, rank(*args, **options)))).findings
    assert finding["cause"] == "communication_bound"
    return finding["advice"]


@pytest.mark.parametrize(
    ("name", "trains", "says"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", True, "gradients"),
        ("void dpsk::ep::internode::dispatch<8>", True, "all-to-all"),
        ("ncclDevKernel_AllToAll", True, "all-to-all"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", False, "no gradients are seen"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>", False, "no gradients are seen"),
        ("ncclDevKernel_AllGather_RING_LL", True, "gather parameters"),
    ],
)
def test_gradients_alone_are_exchanged_less_often(tmp_path, name, trains, says):
    found = advice(tmp_path, name, 5, trains=trains)
    assert says in found["text"]
    assert "no_sync()" in found["code"] if says == "gradients" else found["code"] == ""


def test_the_rank_that_all_others_wait_for_is_named(tmp_path):
    allreduce = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    for number, took_ms in enumerate((4.5, 4.6, 0.4, 4.4)):
        write(
            tmp_path,
            rank(allreduce, took_ms, of=number, before_ms=4.9),
            f"h_{number}.pt.trace.json",
            distributedInfo={"rank": number, "world_size": 4},
        )
    found = [f for f in analyse(read_trace(tmp_path)).findings if f["cause"] != "imbalance"]
    (finding,) = [f for f in found if f["cause"] == "communication_bound"]
    assert finding["title"].startswith("The GPUs wait for rank 2 in 4")
    assert finding["evidence"]["waited_pct"] == pytest.approx(91, abs=1)
    assert 2 not in finding["ranks"] and "rank 2 comes last" in finding["advice"]["text"]
    # And the tab says so of each rank that waits.
    import_trace(tmp_path, tmp_path / "logs")
    verdicts = [r.stored["verdict"] for r in read_recordings(tmp_path / "logs")]
    assert sum("wait for rank 2" in verdict for verdict in verdicts) == 3
    # A file that does not state its rank is known by its name.
    (tmp_path / "unranked").mkdir()
    for number, took_ms in enumerate((4.5, 0.4)):
        write(tmp_path / "unranked", rank(allreduce, took_ms, before_ms=4.9, group=2), f"h_{number}.pt.trace.json")
    titles = [one["title"] for one in analyse(read_trace(tmp_path / "unranked")).findings]
    assert any("wait for h_1.pt.trace.json" in title for title in titles)


@pytest.mark.parametrize(("took_ms", "group"), [((4.5, 4.6, 4.7, 4.4), 4), ((4.5, 4.6, 1, 4.4), 2)])
def test_without_a_late_rank_or_in_groups_nobody_is_named(tmp_path, took_ms, group):
    for number, took in enumerate(took_ms):
        write(
            tmp_path,
            rank("ncclDevKernel_AllReduce", took, of=number, group=group),
            f"h_{number}.pt.trace.json",
            distributedInfo={"rank": number, "world_size": 4},
        )
    found = analyse(read_trace(tmp_path)).findings
    (finding,) = [one for one in found if one["cause"] == "communication_bound"]
    assert finding["title"].startswith("Communication that nothing hides")
