"""A training that the kernel kills as its container is full: a real limit, a real kill."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import ran

from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.recording import read_recordings
from tests.memory.test_out_of_memory import HERE, REPOSITORY

MIB = 1 << 20
MOUNT = Path("/sys/fs/cgroup")
LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")  # of version 2 and 1
SWAP_FILES = ("memory.swap.max", "memory.memsw.limit_in_bytes")


def own_group() -> Path | None:
    """The memory control group of this process."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            group = MOUNT / controllers / path.lstrip("/")
            if (group / "memory.stat").is_file():
                return group
    return None


class Container:
    """A control group of its own below that of this process, for one child."""

    def __init__(self, folder: Path):
        self.folder = folder

    def limit(self, count: int) -> None:
        for name in (*LIMIT_FILES, *SWAP_FILES):
            path = self.folder / name
            if path.exists():
                path.write_text("0" if name == "memory.swap.max" else str(count))

    def run(self, *command: str) -> subprocess.CompletedProcess:
        """Run a command that is inside before it begins."""
        enter = f'echo $$ > "{self.folder}/cgroup.procs" && exec "$@"'
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
        return ran("sh", "-c", enter, "sh", *command, ends=None, cwd=REPOSITORY, env=environment)

    def close(self) -> None:
        if not self.folder.exists():
            return
        for pid in (self.folder / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)  # a child of the child
        until = time.monotonic() + 10
        while self.folder.exists():
            try:
                self.folder.rmdir()
            except OSError:  # its processes are not gone yet
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)


@pytest.fixture
def container() -> Iterator[Container]:
    group = own_group() if Path("/proc/self/cgroup").exists() else None
    if group is None:
        pytest.skip("no control group for memory here")
    folder = group / f"gpu-util-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        made = Container(folder)
        if not any((folder / name).exists() for name in LIMIT_FILES):
            pytest.skip("groups below this one have no limit of memory")
        yield made
    finally:
        Container(folder).close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "limit", "phases"),
    [
        ("loop", 900 * MIB, ["training steps"]),
        ("fit", 1200 * MIB, ["training steps", "Keeps.on_train_batch_end"]),
        ("validation", 1000 * MIB, ["validation"]),
    ],
)
def test_a_training_that_its_container_s_limit_kills(container, tmp_path, kind, limit, phases):
    container.limit(limit)
    done = container.run(sys.executable, str(HERE / "oom_program.py"), f"contained-{kind}", str(tmp_path))
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    [recording] = read_recordings(tmp_path)
    assert recording.status == "lost" and recording.step_count > 20
    run = run_report(recording)
    [finding] = [one for one in run["findings"] if one["cause"] == "out_of_memory"]
    evidence = finding["evidence"]
    called = f"{limit // MIB:,} MiB" if limit < 1 << 30 else f"{limit / 2**30:.3g} GiB"
    by_limit = f" by its container's limit of {called}"
    assert finding["title"] == f"The process was killed at step {run['steps']:,}{by_limit}"
    assert evidence["seen"] == "the kernel has counted a kill for memory in its container since"
    assert evidence["peak_in"] in phases
    assert 0.6 * limit < evidence["process_peak_mib"] * MIB <= limit
    assert evidence["host_used_pct"] > 60
    assert kind == "loop" or evidence["batch_size"] == 16
    assert run["verdict"] == f"{finding['title']}."
    container.close()  # as one that was started for this training alone
    assert run_report(recording)["verdict"].endswith(f", most likely{by_limit}.")
    if kind != "validation":  # where nothing grows from step to step
        assert evidence["grows_with"].endswith("more Python objects after each step")
        assert "Host memory grows by " in done.stderr, "before it was killed"
        [growth] = [one for one in run["findings"] if one["cause"] == "memory_growth"]
        assert growth["evidence"]["limited_by"] == "the container's limit"
        assert growth["evidence"]["per_step_mib"] == pytest.approx(4.0, rel=0.25)
