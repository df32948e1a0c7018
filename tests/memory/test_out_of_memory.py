"""A training that runs out of memory: its error is its own, and the recording says why."""

import builtins
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fork_server import python
from generated_runs import GPU, Generated, write
from programs import ran

from gpu_util_callback.cgroup import KillCount, kill_count
from gpu_util_callback.diagnosis import diagnose, run_report
from gpu_util_callback.recorder.memory_watch import describe_error
from gpu_util_callback.recording import manifest, read_recordings

MIB, GIB = 1 << 20, 1 << 30
HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]


# (class, framework, text, what is found in it)
ERRORS = [
    (
        "OutOfMemoryError",
        "torch",
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.11 GiB of which 512.00 MiB "
        "is free. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 5.50 GiB is reserved by PyTorch but "
        "unallocated.",
        {"gpu": 1, "asked_bytes": 2 * GIB, "free_bytes": 512 * MIB, "reserved_bytes": int(5.5 * GIB)},
    ),
    *(
        ("ResourceExhaustedError", "tensorflow", f"OOM when allocating tensor with shape{text}", found)
        for text, found in [
            (
                "[1024,1024,16] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
                {"gpu": 0, "asked_bytes": 64 * MIB, "shapes": ["[1024, 1024, 16]"]},
            ),
            ("[8,1048576] and type int4 on a GPU", {"asked_bytes": 8 * MIB, "shapes": ["[8, 1048576]"]}),
            ("[8,1048576] and type float8_e5m2 on a GPU", {"asked_bytes": 8 * MIB, "shapes": ["[8, 1048576]"]}),
            (
                "[8,1048576] and type double on /job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu",
                {"asked_bytes": 64 * MIB, "shapes": ["[8, 1048576]"]},
            ),
        ]
    ),
    (
        "XlaRuntimeError",
        "jax",
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 68719476736 bytes.",
        {"gpu": 0, "asked_bytes": 64 * GIB},
    ),
    (
        "MemoryError",
        "torch",
        "Unable to allocate 7.50 GiB for an array with shape (2013265920,) and data type float32",
        {"asked_bytes": int(7.5 * GIB)},
    ),
    (
        "RuntimeError",
        "torch",
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't "
        "allocate memory: you tried to allocate 4294967296 bytes. Error code 12",
        {"asked_bytes": 4 * GIB},
    ),
]


@pytest.mark.parametrize(("name", "framework", "text", "found"), ERRORS)
def test_errors_of_memory_are_known_by_name_or_text(name, framework, text, found):
    kind = getattr(builtins, name, None) or type(name, (RuntimeError,), {})
    described = describe_error(kind(text), framework)
    assert described is not None and described["error"] == name
    rest = {key: value for key, value in described.items() if key not in ("error", "message")}
    assert {key: value for key, value in rest.items() if key != "shapes" or "shapes" in found} == found


def test_an_error_inside_another_is_found_and_other_errors_are_not():
    outer = ValueError("the step failed")
    outer.__cause__ = MemoryError()
    assert describe_error(outer)["error"] == "MemoryError"
    assert describe_error(ValueError("memory layout not supported")) is None
    assert describe_error(KeyboardInterrupt()) is None


def run_program(kind: str, log_dir: Path) -> subprocess.CompletedProcess:
    fits = kind in ("fit", "validation", "callback", "killed")
    start = python("keras") if fits else [sys.executable]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "KERAS_BACKEND": "torch"}
    return ran(*start, HERE / "oom_program.py", kind, log_dir, ends=None, cwd=REPOSITORY, env=environment)


def out_of_memory(diagnosis: dict) -> dict:
    [finding] = [one for one in diagnosis["findings"] if one["cause"] == "out_of_memory"]
    return finding


def post_mortem(log_dir: Path) -> tuple[dict, dict]:
    """The one recording's report and what it says about memory."""
    [recording] = read_recordings(log_dir)
    assert recording.status == "interrupted"
    run = run_report(recording)
    finding = out_of_memory(run)
    assert run["verdict"] == f"{finding['title']}."
    return run, finding


@pytest.mark.real_clock("what grows is found by readings at intervals, before the memory is full")
@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("loop", "a step"),
        ("fit", "the train function"),
        ("validation", "validation"),
        ("callback", "Keeps.on_train_batch_end"),
    ],
)
def test_the_host_s_memory_runs_out(tmp_path, kind, where):
    """`ulimit -v` in a process of its own: the same exception, a recording that opens."""
    done = run_program(kind, tmp_path)
    assert done.returncode == 1, done.stderr[-2000:]
    assert "(4194304,)" in done.stderr  # NumPy's words; Keras changes the rest for a `call`
    assert "kept.append(np.ones(4 << 20, np.uint8))" in done.stderr
    run, finding = post_mortem(tmp_path)
    assert finding["title"].startswith(f"Out of host memory in {where}, at step ")
    assert kind == "loop" or finding["title"].endswith(" with a batch of 16")
    assert finding["evidence"]["asked_for_mib"] == 4.0
    assert run["steps"] > 20
    if kind == "validation":
        assert finding["evidence"]["peak_in"] == "validation"
    else:  # where one is kept in each of its steps
        assert finding["evidence"]["grows_with"].endswith("more Python objects after each step")
        assert "tracemalloc" in finding["advice"]["code"]  # and no smaller batch, which would fill it later


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "error", "where"),
    [
        ("tensorflow", "ResourceExhaustedError", "the train function, at step 50"),
        ("jax", "RESOURCE_EXHAUSTED", "the fit, at step 50 with a batch of 16"),
        ("torch", "can't allocate memory", "the train function, at step 50 with a batch of 16"),
    ],
)
def test_the_framework_s_own_allocator_has_no_more(tmp_path, backend, error, where):
    """One batch is too long: where it happened, in which batch, and how much it asked for.

    JAX raises where the result is read, in a callback that is not the reason.
    """
    done = run_program(backend, tmp_path)
    assert done.returncode == 1 and error in done.stderr, done.stderr[-2000:]
    run, finding = post_mortem(tmp_path)
    assert finding["title"] == f"Out of host memory in {where}"
    assert finding["gpus"] == [] and run["steps"] == 50
    asked = finding["evidence"]["asked_for_mib"]
    assert asked > 2048 if backend == "jax" else asked == 2048  # XLA asks for all at once


def test_a_fit_that_was_killed_for_memory_is_found_at_the_next_look(tmp_path, monkeypatch):
    """A real training, killed as its container is full; files in place of the kernel's account."""
    done = run_program("killed", tmp_path / "log")
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    monkeypatch.setattr(manifest, "kill_count", lambda **of: kill_count(str(tmp_path), **of))
    [recording] = read_recordings(tmp_path / "log")
    assert recording.status == "lost"
    finding = out_of_memory(diagnose(recording))
    evidence = finding["evidence"]
    assert evidence["seen"] == IN_CONTAINER
    assert evidence["batch_size"] == 16 and evidence["at_step"] > 20
    assert evidence["process_peak_mib"] > 400 and evidence["host_used_pct"] > 60


def killed(tmp_path, monkeypatch, kills: dict[str, int], used: float, limit=8 * GIB) -> dict:
    """The diagnosis of a recording whose process is gone."""
    machine = {"memory_total_bytes": 64 * GIB, "memory_limit_bytes": limit}
    before = {"container": 3, "machine": 5}
    run = Generated(seed=1, machine=machine, memory={"oom_kills": before})
    run.steps(400, step_ms=100)
    gone = {**manifest.process_facts(), "pid": 2**22 - 1}
    run.mark("host", "container_memory_bytes", used * limit)
    write(run, tmp_path, "live", **gone)
    now = {name: before[name] + more for name, more in kills.items()}
    monkeypatch.setattr(manifest, "kill_count", lambda **_: KillCount("", 0, now))
    [recording] = read_recordings(tmp_path)
    assert recording.status == "lost"
    return diagnose(recording)


IN_CONTAINER = "the kernel has counted a kill for memory in its container since"
SOMEWHERE = "the kernel has counted a kill for memory since"


@pytest.mark.parametrize(
    ("kills", "used", "limit", "seen", "title"),
    [
        ({"container": 1, "machine": 1}, 0.7, 8 * GIB, IN_CONTAINER, " by its container's limit of 8 GiB"),
        # The group is gone.
        ({"machine": 1}, 0.99, GIB // 2, SOMEWHERE, ", most likely by its container's limit of 512 MiB"),
        # Some seconds before.
        ({"machine": 1}, 0.8, 8 * GIB, SOMEWHERE, ", most likely by its container's limit of 8 GiB"),
        ({"machine": 1}, 0.4, 8 * GIB, SOMEWHERE, ", most likely for lack of host memory"),
        ({}, 0.97, 8 * GIB, "memory was full", ", most likely by its container's limit of 8 GiB"),
        ({}, 0.5, 8 * GIB, "", ""),  # it ended otherwise
    ],
)
def test_a_killed_process_is_found_at_the_next_look(tmp_path, monkeypatch, kills, used, limit, seen, title):
    found = killed(tmp_path, monkeypatch, kills, used, limit)
    if not seen:
        assert [one for one in found["findings"] if one["cause"] == "out_of_memory"] == []
        return
    finding = out_of_memory(found)
    assert finding["confidence"] == "estimated" and finding["evidence"]["seen"] == seen
    assert finding["evidence"]["at_step"] == 400
    assert finding["title"] == f"The process was killed at step 400{title}"


def test_an_error_that_names_no_device_is_the_host_s_where_no_gpu_is_used(tmp_path):
    """JAX's words are the same on a CPU."""
    error = {"error": "JaxRuntimeError", "gpu": 0, "step": 40, "asked_bytes": 2 * GIB}
    run = Generated(seed=1, memory={"out_of_memory": error}, fit={"batch_size": 8})
    run.steps(40, step_ms=100)
    finding = out_of_memory(run.diagnose())
    assert finding["title"].startswith("Out of host memory") and finding["gpus"] == []


def full_gpu(batch: int | None = 256, memory=(), others=0.0, backend="tensorflow", **error) -> dict:
    told = {
        "error": "OutOfMemoryError",
        "gpu": 0,
        "step": 300,
        "where": "the train function",
        "asked_bytes": 2 * GIB,
        "free_bytes": GIB,
        **error,
    }
    run = Generated(
        seed=1,
        gpus=[GPU],
        memory={"out_of_memory": told, **dict(memory)},
        fit={"batch_size": batch, "input_kind": "tf.data"},
        framework={"name": backend, "backend": backend},
    )
    for part in range(30):
        began = run.now
        run.steps(10, step_ms=100)
        seconds = (run.now - began) / 1e9
        run.gpu_value("allocator_used_bytes", seconds, (10 if part % 3 else 60) * GIB)
        run.gpu_value("allocator_peak_bytes", seconds, 74 * GIB)
        run.gpu_value("allocator_limit_bytes", seconds, 72 * GIB)
        run.gpu_value("memory_other_bytes", seconds, others)
    return run.diagnose()


def test_the_post_mortem_of_a_gpu_names_what_fits():
    finding = out_of_memory(full_gpu())
    evidence = finding["evidence"]
    assert finding["title"] == ("Out of GPU memory in the train function, at step 300 with a batch of 256")
    assert (evidence["asked_for_mib"], evidence["free_mib"]) == (2048, 1024)
    assert evidence["allocator_limit_gib"] == 72
    # 10 GiB stay, 64 GiB for 256 samples: 0.25 GiB each, of 0.95 * 72 GiB.
    assert evidence["room_for_batch"] == int((0.95 * 72 - 10) / 0.25)
    assert evidence["per_sample_mib"] == 256
    assert f"A batch of {evidence['room_for_batch']:,} would have fitted" in finding["advice"]["text"]
    assert finding["advice"]["code"].startswith(f"ds = ds.batch({evidence['room_for_batch']})")
    assert finding["gpus"] == [0]


def test_a_batch_whose_size_was_only_seen_gets_the_same_advice():
    """A dataset's batches, which `fit` is not given the size of."""
    given = out_of_memory(full_gpu())
    seen = out_of_memory(full_gpu(None, {"batch_sizes": {"0": 256}}))
    assert seen["title"] == given["title"] and seen["evidence"] == given["evidence"]
    assert seen["advice"] == given["advice"]


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"reserved_bytes": 5 * GIB}, "expandable_segments:True keeps the free memory in one piece"),
        ({"reserved_bytes": GIB}, None),  # less than was asked for
        ({"others": 9.0 * GIB}, "other processes hold 9.0 GiB of this GPU"),
        ({"others": 0.5 * GIB}, None),
    ],
)
def test_the_advice_names_fragments_and_other_processes(about, says):
    text = out_of_memory(full_gpu(backend="torch", **about))["advice"]["text"]
    assert says in text if says else "GiB of this" not in text and "one piece" not in text


def test_the_peak_of_each_phase_is_named():
    told = {"error": "OutOfMemoryError", "gpu": 0, "step": 200, "where": "the train function"}
    run = Generated(seed=1, gpus=[GPU], memory={"out_of_memory": told})
    for seconds, held, phase in ((10, 20, None), (10, 44, "validation"), (10, 28, None)):
        began = run.now
        run.phase(phase, seconds) if phase else run.steps(100, step_ms=100)
        run.gpu_value("allocator_used_bytes", (run.now - began) / 1e9, held * GIB)
    finding = out_of_memory(run.diagnose())
    assert finding["evidence"]["peak_in"] == "validation"
    by_phase = finding["evidence"]["peak_by_phase"]
    assert by_phase == "44 GiB in validation, 28 GiB in training steps"
