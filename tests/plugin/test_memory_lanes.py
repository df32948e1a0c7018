"""One lane of memory a GPU and one of the host, with the limit."""

import numpy as np
from generated_runs import GPU, Generated, write

from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.recording import read_recordings
from tensorboard_plugin.replies import recording_reply
from tensorboard_plugin.tiles.server import _series

GIB = 1 << 30


def reply(tmp_path) -> dict:
    """What the tab is sent of a run."""
    machine = {"memory_total_bytes": 64 * GIB, "memory_limit_bytes": 8 * GIB}
    run = Generated(seed=1, gpus=[GPU], machine=machine)
    for _ in range(6):
        with run.epoch():
            run.steps(100, step_ms=500)
    times = np.arange(run.facts["started_ns"], run.now, 1_000_000_000)
    held = np.full(len(times), 2.0 * GIB)
    level = np.full(len(times), 9.0 * GIB)
    groups = {
        "host": {"process_held_bytes": held, "workers_memory_bytes": 0.1 * held, "python_blocks": held / 1e6},
        "gpu0": {"memory_used_bytes": level, "memory_process_bytes": level, "memory_other_bytes": 0.1 * level},
        "gpu0/allocator": {
            "allocator_used_bytes": held,
            "allocator_peak_bytes": held + GIB,
            "allocator_reserved_bytes": level,
            "allocator_limit_bytes": 4 * level,
        },
    }
    run.samples = lambda: {group: {"time_ns": times, **columns} for group, columns in groups.items()}
    write(run, tmp_path)
    [recording] = read_recordings(tmp_path)
    return recording_reply(recording, "1", run_report(recording))


def test_live_reserved_peak_others_and_the_limit_are_one_lane(tmp_path):
    lanes = reply(tmp_path)["lanes"]
    [vram] = [lane for lane in lanes if lane["title"] == "VRAM"]
    assert [one["title"] for one in vram["series"]] == [
        "device",
        "this process",
        "other processes",
        "live",
        "reserved",
        "peak",
        "allocator's limit",
    ]
    assert vram["limit"]["value"] == GPU["memory_total_bytes"] == vram["max"]
    assert not any("allocator" in lane["id"] for lane in lanes if lane is not vram)
    groups = [(group, column) for _, group, column, _ in _series(vram["id"])]
    assert groups[0] == ("gpu0", "memory_used_bytes")
    assert groups[3] == ("gpu0/allocator", "allocator_used_bytes")
    [host] = [lane for lane in lanes if lane["title"] == "Host memory"]
    assert [one["title"] for one in host["series"]] == ["this process", "workers"]
    assert host["limit"] == {"value": 8 * GIB, "title": "limit of the container"}
    assert host["max"] == 8 * GIB
    assert not any("python_blocks" in lane["id"] for lane in lanes)
