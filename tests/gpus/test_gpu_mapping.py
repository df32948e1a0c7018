"""Which GPU is mine: by identity, through every form of CUDA_VISIBLE_DEVICES."""

from types import SimpleNamespace

import pytest
from nvml import Scenario

from gpu_util_callback.gpus import FrameworkGpu
from gpu_util_callback.gpus._devices import NvmlGpu
from gpu_util_callback.gpus._mapping import CudaGpu, Match, Visible, describe, match, visible


def gpu(index, name="A100", mig_mode=False, **options):
    return NvmlGpu(
        index,
        None,
        None,
        f"GPU-{index + 1:08x}-0000-0000-0000-00000000000{index}",
        name,
        f"00000000:{0x10 + index:02X}:00.0",
        mig_mode=mig_mode,
        **options,
    )


def with_mig(parent, count=2):
    parent.mig_mode = True
    parent.migs = [
        NvmlGpu(
            parent.nvml_index,
            None,
            None,
            f"MIG-{parent.nvml_index}{i}aaaaaa-1-2-3-4",
            "MIG",
            parent.pci_bus_id,
            parent_uuid=parent.uuid,
            gi=i + 1,
        )
        for i in range(count)
    ]
    return parent


def names(found):
    return [g.uuid if g.mig else g.nvml_index for g in found.gpus]


FOUR = [gpu(i) for i in range(4)]


@pytest.mark.parametrize(
    ("value", "expected", "wrong"),
    [
        (None, [0, 1, 2, 3], False),
        ("", [], False),
        (" ", [], False),
        ("-1", [], False),
        ("NoDevFiles", [], False),
        ("2", [2], False),
        ("3,1", [3, 1], False),
        (" 3 , 1 ", [3, 1], False),
        ("0,2,-1,1", [0, 2], False),  # cut at the first entry that names nothing
        ("0,7,1", [0], True),
        ("0,x,1", [0], True),
        ("x", [], True),
        ("1,1", [], True),  # a GPU twice: none
        ("GPU-00000003-0000-0000-0000-000000000002", [2], False),
        ("GPU-00000003", [2], False),  # a unique prefix
        ("gpu-00000003", [2], False),
        ("GPU-0000000", [], True),  # not unique
        ("GPU-00000004,GPU-00000001", [3, 0], False),
        ("GPU-00000004,GPU-99", [3], True),
        ("GPU-", [], True),
    ],
)
def test_visible_devices(value, expected, wrong):
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    found = visible(environ, FOUR)
    assert names(found) == expected
    assert (value in found.problem) if wrong else not found.problem


def test_mig_devices_by_uuid_and_prefix():
    gpus = [gpu(0), with_mig(gpu(1))]
    first, second = gpus[1].migs
    for value in (second.uuid, "MIG-11"):
        assert names(visible({"CUDA_VISIBLE_DEVICES": value}, gpus)) == [second.uuid]
    two = f"{second.uuid},{first.uuid}"
    assert names(visible({"CUDA_VISIBLE_DEVICES": two}, gpus)) == [second.uuid]  # one at most
    assert names(visible({"CUDA_VISIBLE_DEVICES": "1"}, gpus)) == [first.uuid]
    assert names(visible({"CUDA_VISIBLE_DEVICES": gpus[1].uuid}, gpus)) == [first.uuid]
    assert names(visible({"CUDA_VISIBLE_DEVICES": "MIG-99"}, gpus)) == []
    assert names(visible({}, gpus)) == [0]
    assert names(visible({}, [gpus[1]])) == [first.uuid]


def test_unlike_gpus_have_no_certain_order_unless_by_bus():
    mixed = [gpu(0, "T4"), gpu(1, "H100")]
    assert not visible({}, mixed).certain
    assert not visible({"CUDA_VISIBLE_DEVICES": "0,1"}, mixed).certain
    assert visible({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, mixed).certain
    assert visible({"CUDA_VISIBLE_DEVICES": "GPU-00000002"}, mixed).certain
    assert visible({}, FOUR).certain


def test_integers_count_by_bus_whatever_nvml_s_order():
    shuffled = [FOUR[2], FOUR[0], FOUR[3], FOUR[1]]
    assert names(visible({"CUDA_VISIBLE_DEVICES": "0,3"}, shuffled)) == [0, 3]


@pytest.mark.parametrize(
    "identity",
    [
        {"uuid": "GPU-00000003-0000-0000-0000-000000000002"},
        {"uuid": "00000003-0000-0000-0000-000000000002"},  # CUDA prints no prefix
        {"pci_bus_id": "0000:12:00.0"},
        {"pci_bus_id": "00000000:12:00.0"},
        {"pci_bus_id": "12:00.0"},
        {"uuid": "GPU-unknown", "pci_bus_id": "0000:12:00.0"},
    ],
)
def test_identity_beats_every_order(identity):
    allowed = visible({"CUDA_VISIBLE_DEVICES": "3,2"}, FOUR)
    (found,) = match([FrameworkGpu(0, **identity)], allowed, FOUR)
    assert (found.gpu.nvml_index, found.certain, found.index) == (2, True, 0)


def test_the_cuda_driver_of_this_process_decides_without_identity():
    cuda = [CudaGpu(0, FOUR[3].uuid[4:], ""), CudaGpu(1, "", "0000:11:00.0")]
    found = match([FrameworkGpu(0), FrameworkGpu(1)], visible({}, FOUR), FOUR, cuda)
    assert [(m.gpu.nvml_index, m.certain) for m in found] == [(3, True), (1, True)]


def test_set_visible_devices_shifts_the_ordinal():
    found = match(
        [FrameworkGpu(0, cuda_ordinal=2), FrameworkGpu(1, cuda_ordinal=0)],
        visible({"CUDA_VISIBLE_DEVICES": "3,2,1"}, FOUR),
        FOUR,
    )
    assert [m.gpu.nvml_index for m in found] == [1, 3]


def test_without_identity_order_is_a_guess_among_unlike_gpus():
    mixed = [gpu(0, "NVIDIA T4"), gpu(1, "NVIDIA H100")]
    (found,) = match([FrameworkGpu(0)], visible({}, mixed), mixed)
    assert not found.certain
    assert "not certain" in describe(found)["label"]
    (found,) = match([FrameworkGpu(0, name="H100")], visible({}, mixed), mixed)
    assert (found.gpu.nvml_index, found.certain) == (1, True)  # its name says which


def test_no_framework_gpu_means_all_that_the_variables_allow():
    allowed = visible({"CUDA_VISIBLE_DEVICES": "3,1"}, FOUR)
    for nothing in (None, []):
        found = match(nothing, allowed, FOUR)
        assert [(m.index, m.gpu.nvml_index) for m in found] == [(0, 3), (1, 1)]
        assert not any(describe(m)["used_by_framework"] for m in found)


def test_a_gpu_that_nvml_does_not_know_keeps_its_number():
    (found,) = match([FrameworkGpu(0, "X", uuid="GPU-elsewhere")], visible({}, FOUR), FOUR)
    assert found.gpu is None
    facts = describe(found)
    assert (facts["index"], facts["nvml_index"], facts["name"]) == (0, None, "X")


def test_a_board_in_mig_mode_means_the_mig_device_that_is_allowed():
    gpus = [with_mig(gpu(0), 3)]
    wanted = gpus[0].migs[2]
    allowed = visible({"CUDA_VISIBLE_DEVICES": wanted.uuid}, gpus)
    (found,) = match([FrameworkGpu(0, pci_bus_id=gpus[0].pci_bus_id)], allowed, gpus)
    assert found.gpu is wanted


def test_label_and_facts():
    board = gpu(3)
    board.facts = {"memory_total_bytes": 7, "compute_capability": "8.0", "cores": None}
    facts = describe(Match(0, FrameworkGpu(0, compute_capability=(8, 0)), board))
    assert facts["label"] == "gpu0 (nvml 3, GPU-0000…)"
    assert facts["memory_total_bytes"] == 7
    assert facts["compute_capability"] == "8.0"
    assert "cores" not in facts


def test_visible_is_what_the_sampler_says(play, monkeypatch):
    from gpu_util_callback.gpus import Sampler
    from gpu_util_callback.recording.clock import Clock

    scenario = Scenario()
    for _ in range(3):
        scenario.gpu("h100")
    play(scenario)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    sampler = Sampler(Clock())
    sampler._open(SimpleNamespace())
    assert [(g["index"], g["nvml_index"]) for g in sampler.gpus] == [(0, 2), (1, 0)]
    assert [g["visible"] for g in sampler.nvml_gpus] == [True, False, True]
    assert sampler.gpus[0]["label"].startswith("gpu0 (nvml 2, GPU-3c4d…")


def test_nothing_visible_is_certain():
    assert visible({"CUDA_VISIBLE_DEVICES": ""}, []) == Visible([], True, "")
