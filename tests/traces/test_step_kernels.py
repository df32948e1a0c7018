"""What ran in each traced step, held against the trace's own events."""

import numpy as np
import pytest

from gpu_util_callback import read_recordings
from gpu_util_callback.traces.imported import write_recordings
from gpu_util_callback.traces.kernels import op_name
from gpu_util_callback.traces.model import DeviceKind, HostKind
from gpu_util_callback.traces.recorded import LIMIT, step_kernels

GPU = "kineto/v100_resnet50_num_workers_0.json.gz"
CPU = "xplane/cpu_tf221_inputbound_10steps.xplane.pb"


@pytest.mark.parametrize("name", [GPU, CPU])
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
    analysis = analysed(GPU)
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
