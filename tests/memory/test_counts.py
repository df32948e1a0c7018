"""What a framework keeps more and more of is counted, and memory of containers and workers."""

import os
import subprocess
import sys

import pytest

from gpu_util_callback.backends.base import Runtime
from gpu_util_callback.backends.input_watch import Adapter
from gpu_util_callback.cgroup import MemoryGroup, kill_count
from gpu_util_callback.gpus._host import _own_bytes
from gpu_util_callback.recorder import memory_watch
from gpu_util_callback.recorder.memory_watch import MemoryWatch


def test_what_was_traced_again_stays_known_and_is_counted_once_more_at_the_end(monkeypatch):
    monkeypatch.setattr(MemoryWatch, "COUNTED_S", 0.0)
    monkeypatch.setattr(memory_watch, "SHARE", 1e9)
    few, many = ({"function": "step", "traces": traces, "same_tensors": True} for traces in (3, 16))
    answers = [None, few, None, many, few]

    class Tracing(Runtime):
        def retraced(self):
            return answers.pop(0)

    watch = MemoryWatch(Adapter("tensorflow", runtime=Tracing()), lambda: 10)
    assert [watch.facts({}).get("retraced") for _ in range(3)] == [None, few, few]
    monkeypatch.setattr(watch, "_due", float("inf"))
    assert watch.facts({})["retraced"] == few
    assert watch.facts({}, last=True)["retraced"] == many
    assert watch.facts({}, last=True)["retraced"] == many and not answers


@pytest.mark.parametrize(
    ("functions", "rates"),
    [
        ((15, 25, 35), [None, 0.5, 0.5]),
        ((50, 10, 10, 30), [None, None, 0.0, 0.5]),  # the program lets go of some: no rate below zero
    ],
)
def test_counts_of_the_framework_become_rates(monkeypatch, functions, rates):
    monkeypatch.setattr(MemoryWatch, "COUNTED_S", 0.0)
    monkeypatch.setattr(memory_watch, "SHARE", 1e9)
    counts, steps, found = {}, [0], []

    class Counting(Runtime):
        def counters(self):
            return dict(counts)

    watch = MemoryWatch(Adapter("tensorflow", runtime=Counting()), lambda: steps[-1])
    for look, count in enumerate(functions, start=1):
        steps.append(20 * look)
        counts.update(functions=count, graph_operations=100 + 60 * look)
        found.append(watch.facts({}))
    assert [facts.get("functions_per_step") for facts in found] == rates
    assert [facts.get("graph_operations_per_step") for facts in found[1:]] == [3.0] * (len(functions) - 1)


@pytest.mark.parametrize("runs", [True, False])
def test_operations_added_to_a_graph_are_counted(monkeypatch, runs):
    """A program that builds graphs may end without TensorFlow's ever being initialised."""
    tf = pytest.importorskip("tensorflow")
    from gpu_util_callback.backends.tensorflow import runtime
    from gpu_util_callback.backends.tensorflow.runtime import RUNTIME

    tf.constant(1.0)  # TensorFlow runs
    if not runs:
        monkeypatch.setattr(runtime, "running", lambda: False)
    with tf.Graph().as_default():
        RUNTIME.watch_graph()
        before = RUNTIME.counters()["graph_operations"]
        for _ in range(5):
            tf.constant(1.0)
        assert RUNTIME.counters()["graph_operations"] == before + 5
    RUNTIME.watch_graph()
    assert "graph_operations" not in RUNTIME.counters()


def written(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("files", "held", "kills"),
    [
        (
            {
                "sys/fs/cgroup/memory.max": "8192",
                "sys/fs/cgroup/memory.events": "oom 3\noom_kill 2\n",
                "sys/fs/cgroup/memory.stat": "anon 1000\nfile 9000\nshmem 20\nkernel_stack 3\nslab_unreclaimable 4\n",
                "proc/vmstat": "pgfault 7\noom_kill 5\n",
            },
            1027,
            {"container": 2, "machine": 5},
        ),
        (
            {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "8192",
                "sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
                "sys/fs/cgroup/memory/memory.stat": "rss 5\ntotal_rss 500\ntotal_cache 900\ntotal_swap 11\n",
            },
            511,
            {"container": 4},
        ),
        ({"sys/fs/cgroup/memory.max": "max"}, None, {}),
    ],
)
def test_what_a_container_holds_and_how_often_it_killed(tmp_path, files, held, kills):
    written(tmp_path, files)
    assert MemoryGroup(str(tmp_path)).held() == held
    counted = kill_count(str(tmp_path))
    assert counted.kills == kills
    if "container" in kills:
        again = kill_count(str(tmp_path), counted.folder, counted.inode)
        assert again == counted
        elsewhere = kill_count(str(tmp_path), counted.folder, counted.inode + 1)
        assert "container" not in elsewhere.kills, "a group of the same name"


def test_kills_are_counted_in_the_group_of_the_process_itself(tmp_path):
    """As version 1 does, whose groups above count their own processes alone."""
    files = {
        "proc/self/cgroup": "4:memory:/jobs/mine\n1:cpu:/\n",
        "sys/fs/cgroup/memory/memory.oom_control": "oom_kill 7\n",
        "sys/fs/cgroup/memory/jobs/memory.oom_control": "oom_kill 5\n",
        "sys/fs/cgroup/memory/jobs/mine/memory.oom_control": "oom_kill 1\n",
    }
    written(tmp_path, files)
    counted = kill_count(str(tmp_path))
    assert counted.folder == "/sys/fs/cgroup/memory/jobs/mine"
    assert counted.kills == {"container": 1}


COPIES = """
import os, signal, sys, time
from gpu_util_callback.gpus._host import _own_bytes

size = 64 << 20
held = bytearray(size)
read, write = os.pipe()
child = os.fork()
if not child:
    os.read(read, 1)
    held[::4096] = b"1" * len(held[::4096])
    time.sleep(60)
before = _own_bytes(child)
os.write(write, b"1")
until = time.monotonic() + 30
while _own_bytes(child) < before + 0.9 * size and time.monotonic() < until:
    time.sleep(0.01)
print(before / size, _own_bytes(child) / size)
os.kill(child, signal.SIGKILL)
"""


@pytest.mark.skipif(_own_bytes(os.getpid()) is None, reason="the kernel has no smaps_rollup")
def test_a_forked_worker_holds_what_it_has_copied():
    done = subprocess.run([sys.executable, "-c", COPIES], capture_output=True, text=True)
    before, after = map(float, done.stdout.split())
    assert before < 0.3 and 0.9 < after < 1.4
