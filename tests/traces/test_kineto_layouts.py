"""Chrome traces by hand: old and new names, odd values, damage, several ranks."""

import gzip
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_oracle import explain
from xspace_builder import Space

from gpu_util_callback.report.trace_screen import render
from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.imported import analyse
from gpu_util_callback.traces.kineto import BrokenJson, Document, to_ps


def event(cat, name, ts, dur, tid=1, pid=7, **args) -> dict:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(name, ts, dur, correlation, **args) -> dict:
    args = {"device": 0, "stream": 7, "correlation": correlation} | args
    return event("kernel", name, ts, dur, tid=7, pid=0, **args)


def launch(ts, dur, correlation, name="cudaLaunchKernel", cat="cuda_runtime") -> dict:
    return event(cat, name, ts, dur, correlation=correlation)


def mark(pid, text, tid=0, name="process_name") -> dict:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": {"name": text}}


def plain(name, ts, dur, pid, tid=1, **args) -> dict:
    """An event without a category."""
    return {"ph": "X", "name": name, "ts": ts, "dur": dur, "pid": pid, "tid": tid, "args": args}


def write(tmp_path, events, name="w.pt.trace.json", **members):
    path = tmp_path / name
    text = json.dumps({"schemaVersion": 1, **members, "traceEvents": events})
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def test_the_case_in_which_the_old_plugin_summed_to_200_percent(tmp_path):
    copied = {"device": 0, "stream": 8, "correlation": 2, "bytes": 4096}
    events = [
        event("user_annotation", "ProfilerStep#3", 0, 100),
        launch(1, 2, 1),
        kernel("gemm", 0, 100, 1),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 20, 50, pid=0, **copied),
    ]
    result = explain(write(tmp_path, events))
    (gpu,) = result["steps"][0]["gpus"]
    assert gpu["kernel_ms"] == pytest.approx(0.1)
    assert gpu["copy_h2d_ms"] == 0
    assert result["devices"][0]["copy_busy_ms"]["h2d"] == pytest.approx(0.05)
    assert result["steps"][0]["duration_ms"] == pytest.approx(0.1)


@pytest.mark.parametrize("last", [[], [event("user_annotation", "enumerate(DataLoader)#__next__", 3000, 900)]])
def test_the_step_that_the_profiler_begins_behind_the_last_one_is_none(tmp_path, last):
    """Its schedule would go on: `step()` after the last batch begins a step, which ends with the profile."""
    events = [event("user_annotation", f"ProfilerStep#{step}", 1000 * step, 1000) for step in range(3)]
    for step in range(3):
        events += [event("cpu_op", "aten::mm", 1000 * step + 10, 900), launch(1000 * step + 20, 5, step + 1)]
        events.append(kernel("gemm", 1000 * step + 30, 900, step + 1))
    events.append(event("user_annotation", "ProfilerStep#3", 3000, 950 if last else 40))
    steps = explain(write(tmp_path, events + last))["steps"]
    # A wait for a batch that has not come when the profile ends is one of that step.
    assert [step["step"] for step in steps] == ([0, 1, 2, 3] if last else [0, 1, 2])


def test_times_keep_every_digit():
    assert to_ps(1623142623460111) == 1623142623460111_000000
    assert to_ps("1623142623460111.123") == 1623142623460111_123000
    assert to_ps("0.5") == 500_000
    assert to_ps("1.5e3") == 1_500_000_000
    assert to_ps("-2.25") == -2_250_000
    assert [to_ps(v) for v in (None, "N/A", "nan", [], True, "inf")] == [None] * 6


def test_sub_microsecond_times_of_epoch_stamps(tmp_path):
    base = 1_700_000_000_000_000
    path = tmp_path / "x.json"
    row = '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":1,"ts":%d.%03d,"dur":0.25}'
    rows = [row % (base, fraction) for fraction in (0, 300, 600)]
    path.write_text('{"traceEvents":[' + ",".join(rows) + "]}")
    result = explain(path)
    assert result["devices"][0]["any_busy_ms"] == pytest.approx(0.00075, abs=1e-12)
    assert result["devices"][0]["span_ms"] == pytest.approx(0.00085, abs=1e-12)
    assert result["start_ns"] == base * 1000


def test_gpu_copies_of_step_markers_and_sync_rows_are_no_work(tmp_path):
    path = write(
        tmp_path,
        [
            event("user_annotation", "ProfilerStep#3", 0, 100),
            event("gpu_user_annotation", "ProfilerStep#3", 10, 300, pid=0),
            event("cuda_sync", "Stream Sync", 20, 60, pid=0, device=0),
            launch(1, 2, 1),
            kernel("gemm", 10, 10, 1),
            launch(81, 2, 2),
            kernel("gemm", 85, 10, 2),
        ],
    )
    result = explain(path)
    assert len(result["steps"]) == 1
    assert result["devices"][0]["any_busy_ms"] == pytest.approx(0.02)


def test_driver_launches_and_calls_after_the_window(tmp_path):
    events = [
        event("user_annotation", "ProfilerStep#1", 0, 1000),
        launch(10, 5, 1, "cuLaunchKernelEx", "cuda_driver"),
        kernel("triton_mm", 20, 900, 1),
        {"ph": "i", "name": "Record Window End", "ts": 1000, "pid": "", "tid": "", "s": "g"},
        launch(5_000_000, 5, 9),
    ]
    result = explain(write(tmp_path, events))
    assert result["launches"][0]["linked"] == 1
    assert [s["duration_ms"] for s in result["steps"]] == [1.0]


@pytest.mark.parametrize(
    "name",
    [
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        "enumerate(DataPipe)#MapperIterDataPipe",
        "[pl][profile][_TrainingEpochLoop].train_dataloader_next",
        "torch/utils/data/dataloader.py(701): __next__",  # where nothing else tells
    ],
)
def test_loader_waits_in_old_and_new_names(tmp_path, name):
    events = []
    for step in range(5):
        at = step * 1000
        events += [
            event("user_annotation", f"ProfilerStep#{step}", at, 1000),
            event("python_function" if ".py(" in name else "user_annotation", name, at + 5, 600),
            launch(at + 610, 5, step + 1),
            kernel("gemm", at + 620, 370, step + 1),
        ]
    result = explain(write(tmp_path, events))
    assert result["findings"][0]["cause"] == "input_bound"
    assert result["steps"][2]["input_wait_ms"] == pytest.approx(0.6)


def test_ranks_of_a_folder_are_kept_apart(tmp_path):
    for rank, busy in ((0, 900), (1, 400)):
        events = [{"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "py"}}]
        for step in range(3):
            at = step * 1000
            events += [
                event("user_annotation", f"ProfilerStep#{step}", at, 1000),
                launch(at + 5, 5, step + 1),
                kernel("gemm", at + 15, busy, step + 1, device=rank),
            ]
        write(
            tmp_path,
            events,
            f"host_{rank}.17000000{rank}.pt.trace.json.gz",
            distributedInfo={"backend": "nccl", "rank": rank, "world_size": 2},
        )
    result = explain(tmp_path)
    assert explain(sorted(tmp_path.iterdir())) == result, "several files are as good as a folder"
    assert [p["rank"] for p in result["processes"]] == [0, 1]
    assert [d["index"] for d in result["devices"]] == [0, 1]
    found = {f["cause"]: f for f in result["findings"]}
    assert found["imbalance"]["ranks"] == [1, 0]


def test_the_newest_file_of_each_worker_is_read(tmp_path):
    import os

    for number in (1, 2):
        events = [event("user_annotation", f"ProfilerStep#{number}", 0, 10)]
        path = write(tmp_path, events, f"box_77.{number}.pt.trace.json")
        os.utime(path, (1000 + number, 1000 + number))
    result = explain(tmp_path)
    assert [s["step"] for s in result["steps"]] == [2]
    assert any("1 older" in p for p in result["problems"])


def test_odd_values_do_no_harm(tmp_path):
    good = json.dumps(kernel("k\u00e9", 5, 10, 3))
    odd = (
        '{"ph":"X","cat":"kernel","name":"n","ts":30,"dur":5,"pid":0,"args":{"device":N/A,'
        '"occupancy": N/A, "grid":[1,2], "stream":NaN, "correlation":1e400}},'
        '{"ph":"X","cat":"kernel","name":7,"ts":"soon","dur":5,"pid":0},'
        '{"ph":"X","cat":["kernel"],"name":"n","ts":1,"dur":-5},'
        '{"ph":"X"},[],"text",3,null,{"ph":"M","args":null},'
    )
    path = tmp_path / "odd.json"
    path.write_bytes(b"\xef\xbb\xbf" + ('{"traceEvents":[' + odd + good + ",]}").encode() + b"  \n")
    result = explain(path)
    assert sum(d["kernels"] for d in result["devices"]) == 2
    path.write_bytes(b'{"traceEvents":[' + good.encode("latin-1").replace(b"\\u00e9", b"\xe9") + b"]}")
    assert explain(path)["kernels"][0]["count"] == 1


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None, max_examples=150)
@given(st.lists(values, max_size=12), st.dictionaries(st.text(max_size=6), values, max_size=4), st.integers(1, 50))
def test_streaming_reads_what_json_reads_at_any_window(events, members, window):
    import gpu_util_callback.traces.kineto as module

    members.pop("traceEvents", None)
    text = json.dumps({**members, "traceEvents": events, "z": 1}, ensure_ascii=False)
    before = module.CHUNK
    module.CHUNK = window
    try:
        document = Document(io.BytesIO(text.encode("utf-8", "surrogatepass")), "traceEvents")
        read = list(document.values())
    except BrokenJson as error:  # lone surrogates cannot be written as UTF-8
        raise AssertionError(text) from error
    finally:
        module.CHUNK = before
    if not any(0xD800 <= ord(c) < 0xE000 for c in text):
        assert read == events
        assert document.members == {**members, "z": 1}


def test_ranges_that_repeat_are_steps_where_like_work_repeats(tmp_path):
    def trace(name, kernels_per_step):
        events, at = [], 0
        for count in kernels_per_step:
            for _ in range(count):
                at += 100
                number = len(events) + 1
                events += [launch(at, 5, number), kernel("k", at + 10, 60, number)]
            events.append(event("user_annotation", name, at + 20, 50))
        return analyse(read_trace(write(tmp_path, events))).processes[0].steps

    steps = trace("Optimizer.step#Adam.step", [30] * 6)
    assert (steps.basis, steps.judged, len(steps)) == ("range", True, 5)
    assert (steps.end_ps - steps.start_ps).tolist() == [3_000_000_000] * 5
    assert trace("execute_model", [30, 32, 28, 30, 31, 30]).basis == "range"
    for other in ([30, 2, 90, 30, 3, 60], [30] * 3, [400, 3, 3, 3, 3, 3]):
        assert trace("Optimizer.step#Adam.step", other).basis == "trace", "no grid is better"


_GRAPHS = {"a": 5, "A": 5, "b": 6, "c": 7, "-": 0, "0": 0}


def replays(tmp_path, marks: str):
    """Return the steps of a trace of graphs of ten kernels ("A": 14) and of single kernels "-"."""
    events = []
    for number, mark in enumerate(marks, 1):
        graph = mark != "-"
        # The host queues them all before the first has run.
        events.append(launch(number, 1, number, "cudaGraphLaunch" if graph else "cudaLaunchKernel"))
        for k in range({"A": 14, "-": 1}.get(mark, 10)):
            at = 1_000 + 300 * number + 20 * k
            args = {"graph id": _GRAPHS[mark], "graph node id": k}
            events.append(kernel("k", at, 15, number, **args))
    return analyse(read_trace(write(tmp_path, events))).processes[0].steps


@pytest.mark.parametrize("step", ["a", "a----", "a-b-c-", "a-b-b-c---"])
def test_a_sequence_of_graphs_that_repeats_is_a_step(tmp_path, step):
    steps = replays(tmp_path, step * 6)
    assert (steps.basis, steps.judged, len(steps)) == ("graph", True, 5)
    assert steps.start_ps[0] == 1_299_000_000, "the first kernel, long after its launch"
    assert (steps.end_ps - steps.start_ps).tolist() == [300_000_000 * len(step)] * 5


@pytest.mark.parametrize(
    "marks",
    [
        ("a" + "-" * 60) * 2 + "a",  # too few
        "aab" * 6,  # the first graph twice in a step
        "abacabcbacabcaab",  # irregular
        "a-b-" * 5 + "a-c-" + "a-",  # one step runs another graph
        ("a" * 8 + "-" * 2) * 3,  # micro-batches, and an optimizer after eight of them
        "aAaaAaAAaA",  # unlike amounts of work
        "a" * 6 + "b" * 9,  # only part of the trace
        "0" * 6,  # graphs without ids
    ],
)
def test_graphs_without_a_common_sequence_are_no_steps(tmp_path, marks):
    assert replays(tmp_path, marks).basis == "trace"


def test_kernels_of_a_graph_are_known_by_their_launch_call(tmp_path):
    events = [launch(0, 5, 1), kernel("before", 10, 5, 1)]
    for number, call in ((2, "cudaGraphLaunch"), (3, "hipGraphLaunch")):
        events.append(launch(100 * number, 5, number, call))
        events += [kernel("replayed", 100 * number + 10 * k, 8, number) for k in range(1, 4)]
    assert explain(write(tmp_path, events))["launches"][0]["graph_kernels"] == 6


def test_the_name_of_gpus_that_are_all_alike(tmp_path):
    events = [launch(0, 5, 1), kernel("k", 10, 5, 1, device=3)]
    h100 = {"name": "NVIDIA H100", "computeMajor": 9, "computeMinor": 0, "numSms": 132}
    for others, name in (({}, "NVIDIA H100"), ({"name": "Tesla T4"}, "GPU")):
        properties = [{**h100, "id": 0}, {**h100, "id": 1, **others}]
        (gpu,) = explain(write(tmp_path, events, deviceProperties=properties))["devices"]
        assert (gpu["index"], gpu["name"]) == (3, name)


def test_a_tpu_is_called_tpu(tmp_path):
    space = Space()
    space.plane("/device:TPU:0").line("XLA Ops").event("fusion.1", 0, 9)
    space.host.line("python", 1).event("PjitFunction(f)", 0, 9)
    planes = space.write(tmp_path / "host.xplane.pb")
    analysis = analyse(read_trace(planes))
    assert analysis.verdict == "No findings: what the TPU did is not read from its trace."
    assert analysis.devices == [] and "a TPU's trace" in render(analysis)


def test_times_side_by_side_are_all_means(tmp_path):
    """Of steps of 10, 10 and 100 ms the parts add up to 120 ms, not to three medians."""
    events, at = [], 0
    for number, length in enumerate((10_000, 10_000, 100_000)):
        events += [event("user_annotation", f"ProfilerStep#{number}", at, length)]
        events += [event("cpu_op", "aten::mm", at + 10, length - 20)]
        at += length
    text = render(analyse(read_trace(write(tmp_path, events))), width=120)
    assert "40 ms each on average (median 10 ms)" in text and "ops running 40 ms a step" in text
