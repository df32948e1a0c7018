"""Public traces with known answers: the numbers that others computed, the causes that an expert names."""

from typing import NamedTuple

import numpy as np
import pytest
from trace_oracle import causes, told

from gpu_util_callback import read_recordings
from gpu_util_callback.recording.schema import CATEGORIES
from gpu_util_callback.report.screen import Detail
from gpu_util_callback.report.trace_screen import render
from gpu_util_callback.traces.hostside import wording
from gpu_util_callback.traces.imported import write_recordings
from gpu_util_callback.traces.kernels import op_name
from gpu_util_callback.traces.model import DeviceKind, HostKind
from gpu_util_callback.traces.recorded import LIMIT, recording_tables, step_kernels


class Known(NamedTuple):
    """Of a trace: the causes, words of the verdict, whose words advice uses, and part of its JSON.

    A list is compared entry by entry, a tuple names some of the entries. Times are exact to a nanosecond.
    """

    causes: list[str]
    verdict: str
    framework: str = "torch"
    part: dict = {}  # noqa: RUF012


def gpus(*rows: tuple, names: str = "index any_busy_ms span_ms") -> list[dict]:
    return [dict(zip(names.split(), row, strict=True)) for row in rows]


def steps(*numbers: int, **more) -> list[dict]:
    return [{"step": number, **more} for number in numbers]


BERT = "xplane/v100x8_tf24_bert_multiworker.xplane.pb"
RAW = "xplane/mi300x8_jax_conv_raw.xplane.pb"
CPU = "xplane/cpu_tf221_inputbound_10steps.xplane.pb"
V100 = "kineto/v100_resnet50_num_workers_0.json.gz"
H100 = "kineto/h100_bert_small.json.gz"
NO_MARKER = "xplane/cpu_tf221_no_step_marker.xplane.pb"
SYNTHETIC = "xplane/cpu_tf221_inputbound_plus_synthetic_gpu.xplane.pb"
LITTLE = "too little GPU work to judge"

REFERENCES = {
    CPU: Known(
        ["input_bound"],  # a Python map takes nine tenths of each step
        "88 %",
        "tensorflow",
        {"devices": [], "steps": steps(*range(20, 30)), "host_ops": ({"name": "EagerPyFunc"},)},
    ),
    SYNTHETIC: Known(
        ["input_bound"],  # with a GPU as without
        "87 %",
        "tensorflow",
        {
            "devices": [{"kernels": 10, "kernel_busy_ms": 5.0, "span_ms": 197.309899}],
            "steps": steps(*range(20, 30), gpus=[{"kernel_ms": 0.5}]),
        },
    ),
    NO_MARKER: Known(
        [],  # the input keeps pace; the CPU computes
        "No findings",
        "tensorflow",
        {"steps": steps(*range(19, 30)), "processes": [{"steps_from": "marker"}]},
    ),
    "xplane/mi300x8_jax_conv_legacy.xplane.pb": Known(
        ["host_stall"],  # dispatch-bound: a toy convolution on one of eight GPUs
        "80 %",
        "jax",
        {
            "devices": [
                {"index": 0, "copies": 53, "any_busy_ms": 0.889028, "span_ms": 27.867728},
                {"index": 7, "kernels": 25, "kernel_busy_ms": 3.586493, "span_ms": 15.761301},
            ]
        },
    ),
    RAW: Known(
        ["host_stall"],  # dispatch-bound: a toy convolution, sharded over eight GPUs
        "94 %",
        "jax",
        {
            "start_ns": 1771595639214724894,
            "devices": gpus(
                (0, 3.995965, 138.470832),
                (1, 3.345845, 112.106106),
                (2, 3.524285, 106.992671),
                (3, 3.403364, 95.261145),
                (4, 3.493365, 91.596080),
                (5, 3.464884, 92.938503),
                (6, 3.403004, 104.221477),
                (7, 3.502165, 90.563059),
            ),
            "kernels": (
                # "occ_pct:0" is what ROCm writes for "not computed"
                {
                    "op": "jit(forward_3d_conv)/conv_general_dilated",
                    "tensor_core": "yes",
                    "grid": [219, 40, 1],
                    "occupancy_pct": None,
                    "count": 5,
                },
            ),
        },
    ),
    BERT: Known(
        ["host_stall"],  # one call; the host starts two replicas 650 ms apart, GPUs idle
        "92 %",
        "tensorflow",
        {
            # Lines that TensorFlow derived are in the file; devices without events are left out.
            "devices": [
                {"index": 1, "kernels": 0, "copies": 19, "any_busy_ms": 0.033792, "copy_busy_ms": {"h2d": 0.033792}},
                *gpus(
                    (4, 665, 14.825385, 14.983622, 119.308658, {"h2d": 0.158973, "d2h": 0.039456, "d2d": 0}),
                    (6, 665, 14.865363, 15.050451, 490.469870, {"h2d": 0.201632, "d2h": 0.037504, "d2d": 0}),
                    names="index kernels kernel_busy_ms any_busy_ms span_ms copy_busy_ms",
                ),
            ]
        },
    ),
    H100: Known(
        ["launch_bound"],  # 60 kernels of 5 µs in 4 ms
        "78 %",
        part={
            "devices": [
                {"name": "NVIDIA H100 80GB HBM3", "kernels": 60, "copies": 1}
                | {"span_ms": 3.907825, "any_busy_ms": 0.309438, "kernel_busy_ms": 0.307198}
            ],
            "steps": steps(6),
            # cuLaunchKernel is a launch as cudaLaunchKernel is: every kernel has its call.
            "launches": [{"linked": 60}],
            "kernels": ({"op": "aten::addmm"},),
        },
    ),
    "kineto/h100_timesformer.json.gz": Known(
        ["host_stall"],  # images are preprocessed in the step, in Python: 58 % of it
        "58 %",
        part={
            # Nearly always busy over its own span, and yet idle for most of the step.
            "devices": [{"span_ms": 159.992427, "any_busy_ms": pytest.approx(158.433173, abs=1.01e-4)}],
            "steps": [{"gpus": [{"kernel_busy_ms": pytest.approx(0.405 * 383, rel=0.002)}]}],
        },
    ),
    V100: Known(
        ["input_bound", "no_tensor_cores"],  # no workers, and float32
        "33 %",
        part={
            "steps": steps(5, 6, 7, 8, 9, 10),
            # As PyTorch's own plugin showed them: microseconds a step, of kernels, copies and memsets.
            "devices": [
                {
                    "kernel_busy_ms": pytest.approx(6 * 98.588667, abs=6e-6),
                    "copy_busy_ms": {"h2d": pytest.approx(6 * 1.915333, abs=6e-6)},
                    "memset_busy_ms": pytest.approx(6 * 0.089, abs=6e-6),
                }
            ],
        },
    ),
    "kineto/unit/test_all_categories.json": Known(
        [],
        LITTLE,
        part={
            "steps": [{"duration_ms": 0.4, "input_wait_ms": 0.18}],
            "devices": [
                {"kernel_busy_ms": 0.015, "copy_busy_ms": {"h2d": 0.01, "d2h": 0, "d2d": 0}, "memset_busy_ms": 0.005}
            ],
        },
    ),
    "kineto/unit/test_distributed_nccl_rank0.json": Known(
        [],  # 1.4 ms in one step may be chance
        LITTLE,
        part={"devices": [{"collective_busy_ms": 1.572}]},
    ),
    "kineto/unit/test_distributed_nccl_rank1.json": Known([], LITTLE),
    "kineto/unit/test_gpu_utilization.json": Known([], "50 %", part={"devices": [{"index": 1}]}),
    "kineto/unit/test_multiple_profilersteps_no_overlap.json": Known(
        [],
        LITTLE,
        part={
            "steps": [  # a step extends to the next one's marker
                {"step": 1, "duration_ms": 0.25, "gpus": [{"copy_h2d_ms": 0.04, "kernel_ms": 0}]},
                {"step": 2, "duration_ms": 0.26, "gpus": [{"kernel_ms": 0.2}]},
            ]
        },
    ),
    "kineto/unit/test_no_profilerstep.json": Known([], LITTLE, part={"steps": [{"duration_ms": 0.32}]}),
    "kineto/unit/test_pure_cpu.json": Known(
        [],
        "No findings",
        part={"devices": [], "steps": [{"step": 1, "duration_ms": 0.2}, {"step": 2, "duration_ms": 0.1}]},
    ),
    "kineto/unit/test_tensor_core.json": Known(
        [],
        LITTLE,
        part={"kernels": ({"tensor_core": "yes", "total_ms": 0.015}, {"tensor_core": "no", "total_ms": 0.01})},
    ),
    "nsys/h100_2gpu_1s.sqlite": Known(
        ["transfer_bound"],  # copies to the GPU fill 95 %, although it reads 99 % busy
        "95 %",
        part={
            "devices": gpus(
                (0, 22.385163, 962.890247, 969.447605),
                (1, 22.444359, 962.810705, 969.258578),
                names="index kernel_busy_ms any_busy_ms span_ms",
            ),
            "copies": (
                {"gpu": 0, "direction": "h2d", "memory": "pinned", "bytes": 25475252224, "count": 223}
                | {"total_ms": 920.871273, "gb_per_s": pytest.approx(27.7, abs=0.05)},
            ),
            # What two processes share is said once.
            "findings": [{"gpus": [0, 1], "lost_s": pytest.approx(0.921, abs=0.001)}],
            "kernels": ({"op": "aten::mm"},),
        },
    ),
    "nsys/healthy_1pct.sqlite": Known([], "99 %", part={"devices": [{"kernels": 400}]}),
    "nsys/mfu_2gpu_before.sqlite": Known(
        [],  # healthy for the host: 90 % kernels; faster ones would be the next step
        "89 %",
        part={
            "devices": [
                {"span_ms": 299.848812, "any_busy_ms": 273.817787, "kernel_busy_ms": 270.863484},
                {"span_ms": 298.661551, "any_busy_ms": 267.275916},
            ],
            "processes": [{"pid": 144}, {"pid": 145}],
        },
    ),
    "nsys/mock.sqlite": Known(
        [],
        LITTLE,
        part={
            "devices": [
                {"name": "NVIDIA GeForce RTX 3080", "kernels": 2, "copies": 1, "sm_count": 68}
                | {"span_ms": 22.453059, "any_busy_ms": 0.005761, "copy_busy_ms": {"d2h": 0.001632}}
            ]
        },
    ),
}


def differs(found, known, place: str = "") -> str:
    """Where the first of the known values is that was not found; "" if all were."""
    if isinstance(known, dict):
        return next(filter(None, (differs(found[name], one, f"{place}.{name}") for name, one in known.items())), "")
    if isinstance(known, list):
        if len(found) != len(known):
            return f"{place} has {len(found)} entries"
        return next(filter(None, (differs(*pair, f"{place}[{i}]") for i, pair in enumerate(zip(found, known)))), "")  # noqa: B905
    if isinstance(known, tuple):
        return next((f"{place} lacks {one}" for one in known if all(differs(entry, one) for entry in found)), "")
    right = found == (pytest.approx(known, abs=1.01e-6) if isinstance(known, float) else known)
    return "" if right else f"{place} is {found}, not {known}"


@pytest.mark.parametrize("name", REFERENCES)
def test_what_is_known_of_a_trace_is_found(analysed, name):
    known, analysis = REFERENCES[name], analysed(name)
    result = told(analysis)
    assert result["format"] == name.partition("/")[0]
    assert causes(result) == known.causes and known.verdict in result["verdict"]
    assert wording(analysis.trace).framework == known.framework
    assert not differs(result, known.part)
    if result["devices"] and not known.causes:
        assert "kernels ran" in result["verdict"], "never without saying how busy the GPU was"


@pytest.mark.parametrize("name", REFERENCES)
def test_every_nanosecond_of_a_step_is_explained(analysed, name):
    tables = recording_tables(analysed(name))
    rows = tables["traced_steps"]
    assert sum(rows[f"{c}_ns"] for c in CATEGORIES).tolist() == rows["duration_ns"].tolist()
    assert min(int(rows[f"{c}_ns"].min()) for c in CATEGORIES) >= 0 and set(rows["window"].tolist()) == {0}
    assert len({len(column) for column in tables["kernels"].values()}) == 1
    if len(name.split("/")) == 2:
        for gpu in {*rows["gpu"].tolist()} - {-1}:
            mine = rows["gpu"] == gpu
            assert rows["other_ns"][mine].sum() <= 0.05 * rows["duration_ns"][mine].sum()


def test_rows_of_the_host_alone_hold_its_busiest_ops(analysed):
    analysis = analysed(CPU)
    kernels = recording_tables(analysis)["kernels"]
    ops = analysis.processes[0].host_ops
    assert kernels["name"].tolist() == [op.name for op in ops]
    assert kernels["op"].tolist() == [op.type or "" for op in ops]
    assert kernels["total_ns"].tolist() == [op.total_ps // 1000 for op in ops]
    assert set(kernels["gpu"].tolist()) == {-1} and len(ops) > 0
    assert set(recording_tables(analysed(SYNTHETIC))["kernels"]["gpu"].tolist()) == {0}


def test_steps_of_a_trace_that_waits_for_its_input(analysed):
    result = told(analysed(CPU))
    share = sum(s["input_wait_ms"] for s in result["steps"]) / sum(s["duration_ms"] for s in result["steps"])
    assert share == pytest.approx(0.89, abs=0.02)
    assert result["findings"][0]["evidence"]["slowest_stage"].endswith("::Map")
    assert all(0 < step["host_op_ms"] <= step["duration_ms"] for step in result["steps"])
    result = told(analysed(SYNTHETIC))
    assert result["findings"][0]["severity"] > 0.8
    for step in result["steps"]:
        assert step["input_wait_ms"] == step["gpus"][0]["idle_input_ms"] > 0.75 * step["duration_ms"]
    assert "num_workers" in told(analysed(V100))["findings"][0]["advice"]["code"]
    stalled = told(analysed("kineto/h100_timesformer.json.gz"))["findings"][0]
    assert "_preprocess_image" in stalled["evidence"]["host_activity"]


def test_kernels(analysed):
    result = told(analysed(BERT))
    for gpu in (4, 6):
        mine = [k for k in result["kernels"] if k["gpu"] == gpu]
        assert sum(k["count"] for k in mine) == 665
        assert all(k["min_us"] <= k["mean_us"] <= k["max_us"] for k in mine)
        assert all(k["op"] and k["registers"] and k["grid"] and k["block"] for k in mine)
    assert {k["tensor_core"] for k in told(analysed(V100))["kernels"]} == {"no"}


@pytest.mark.parametrize(
    ("name", "percent"),
    [(V100, pytest.approx(49.13, abs=0.005)), ("kineto/unit/test_gpu_utilization.json", pytest.approx(0.55))],
)
def test_occupancy_is_weighted_by_time(analysed, name, percent):
    kernels = [k for k in told(analysed(name))["kernels"] if k["occupancy_pct"] is not None]
    assert sum(k["total_ms"] * k["occupancy_pct"] for k in kernels) / sum(k["total_ms"] for k in kernels) == percent


def test_gpus_are_named_by_what_is_known_of_them(analysed):
    text = render(analysed("nsys/h100_2gpu_1s.sqlite"), width=100)
    assert "GPU 0, 1: Copies that nothing hides" in text and "GPU 0  GPU" not in text
    assert "GPU 4  compute capability 7.0" in render(analysed(BERT), width=100, detail=Detail(all=True))


def test_host_code_of_the_input_pipeline_is_no_callback(analysed):
    for name in (CPU, NO_MARKER):
        assert "host_callback" not in causes(told(analysed(name)))


@pytest.mark.parametrize("name", [V100, CPU])
def test_times_are_those_of_the_events_that_began_in_the_step(analysed, name):
    analysis = analysed(name)
    (p,) = [one for one in analysis.processes if len(one.steps)]
    table = step_kernels(p, analysis.trace.names)
    if p.devices:
        events = p.devices[0].device.events
        chosen = np.isin(events.kind, (DeviceKind.KERNEL, DeviceKind.COLLECTIVE))
    else:
        events = p.process.events
        chosen = events.kind == HostKind.OP
    assert set(table["window"]) == {0} and set(table["step"]) <= set(p.steps.label.tolist())
    for at in (0, len(p.steps) - 1):
        low, high = p.steps.start_ps[at], p.steps.end_ps[at]
        true: dict[str, list[int]] = {}
        for row in np.flatnonzero(chosen).tolist():
            if low <= events.start_ps[row] < high:
                word = analysis.trace.names[int(events.name[row])]
                word = word if p.devices else op_name(word)[0]
                true.setdefault(word, []).append(int(events.end_ps[row] - events.start_ps[row]))
        mine = table["step"] == p.steps.label[at]
        seen = dict(zip(table["name"][mine], np.flatnonzero(mine), strict=True))
        assert 0 < len(seen) <= LIMIT
        for word, row in seen.items():
            spent = true[word]
            assert table["count"][row] == len(spent)
            assert table["total_ns"][row] == sum(spent) // 1000
            assert table["max_ns"][row] == max(spent) // 1000
        # Those with most time are kept, in that order.
        totals = table["total_ns"][mine]
        assert (np.diff(totals) <= 0).all()
        left = [sum(spent) // 1000 for word, spent in true.items() if word not in seen]
        assert max(left, default=0) <= totals.min()


def test_they_are_in_an_imported_recording(analysed, tmp_path):
    analysis = analysed(V100)
    write_recordings(analysis, tmp_path)
    (recording,) = read_recordings(tmp_path)
    table = recording.table("step_kernels")
    steps = sorted(set(table["step"].tolist()))
    assert steps == sorted(set(recording.traced_steps["step"].tolist()))
    # What a window sums up is at least what its steps say.
    kernels = recording.kernels
    whole = dict(zip(kernels["name"], kernels["total_ns"].tolist(), strict=True))
    for name in set(table["name"]):
        assert table["total_ns"][table["name"] == name].sum() <= whole[name] + len(steps)


def test_names_of_ops_are_cut_at_their_kind_only():
    assert op_name("model/dense/MatMul:MatMul") == ("model/dense/MatMul", "MatMul")
    assert op_name("at::native::add") == ("at::native::add", "")
    assert op_name("plain") == ("plain", "")
