"""Log directories as people have them, made up, for pictures and tasks of the tab."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from generated_runs import GPU, START_NS, Generated, write
from long_recording import make_long_recording
from make_recording import SyntheticRun, make_recording
from simulated_boards import H100
from simulated_jobs import Job

from gpu_util_callback.recording.event_files import ScalarWriter

HOT_GPU = 37
STARVING_RANK = 2
PREFETCH = ("prefetch", "Prefetch", 0.1, 1.0, "")
ODD_SEED = 31
REFERENCE = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def _mark(run: Path, start_ns: int) -> None:
    """Make a run out of a folder that holds a recording only."""
    marker = ScalarWriter(str(run))
    marker.marker(start_ns / 1e9)
    marker.close()


def demo(root: Path) -> None:
    """A run starved in its middle third, with profiler windows; a healthy and an older one."""
    windows = ((98, 104), (1200, 1206))
    make_recording(root / "2-slow-map", "thirds", steps=2400, gpus=2, past_s=300, windows=windows)
    make_recording(root / "1-healthy", "healthy", steps=2400, gpus=2, past_s=1500)
    make_recording(root / "0-laptop", "no_gpu", steps=300, past_s=3000)


def two_findings(root: Path) -> None:
    """An input that is too slow at times, and checkpoints that take long."""
    job = Job(seed=2, board=H100, hz=4)
    for _ in range(3):
        with job.epoch():
            job.train(250, gpu=40)
            job.train(150, gpu=40, wait=55)
            job.reading(("map(decode)", "Map", 92.0, 1.0, "sequential"), PREFETCH, batches=150)
        job.phase("checkpoint", 5.0, "ModelCheckpoint")
    _write(job, root / "resnet50")


def eight_findings(root: Path) -> None:
    """Whatever can go wrong in one run of two GPUs, of which one is not used."""
    job = Job(seed=8, board=H100, gpus=2, used=[True, False], hz=4, fit={"mixed_precision": None, "batch_size": 8})
    job.train(
        200, gpu=12, compile=lambda rng, n: np.where(np.arange(n) % 20 == 0, 900.0, 0.0), shape=np.arange(200) // 20
    )
    for _ in range(4):
        with job.epoch():
            job.train(250, gpu=15, wait=30)
            job.reading(("map(decode)", "Map", 44.0, 1.0, "sequential"), PREFETCH, batches=250)
            job.train(200, gpu=15, callback=22, hook="WandbMetricsLogger")
        job.validate(60, 40)
        job.phase("checkpoint", 4.0, "ModelCheckpoint")
    job.window(8, 25, kernels=2500, idle_launch=0.45, copy_h2d=0.2)
    job.kernel("ampere_sgemm_128x64_nn", 90, "no")
    job.train(400, gpu=15, host=14)
    job.set(gpu=0, sm_clock_mhz=1100, temperature_c=90, throttle_thermal_pct=60)
    job.train(500, gpu=24)
    _write(job, root / "all-at-once")


def workers(root: Path) -> None:
    """Eight workers that wait for each other; the input of one starves them all."""
    lengths = np.random.default_rng(3).normal(60, 6, 600)
    for rank in range(8):
        run = Generated(seed=1, gpus=[GPU], rank=rank, world_size=8, job="pod", host=f"node-{rank}")
        run.now += round(rank * 1.3e6)
        run.facts["started_ns"] = run.now
        noise = np.diff(np.random.default_rng(rank).normal(0, 0.1, 601))
        wait = np.where(rank == STARVING_RANK, lengths * 0.35, 0.4)
        run.steps(600, step_ms=lengths + noise - wait, wait_ms=wait)
        if rank == STARVING_RANK:
            run.reading(("map(decode)", "Map", 21.0, 1, "sequential"), batches=600)
        write(run, root / "pod", "ended")
    _mark(root / "pod", 1_700_000_000_000_000_000)


def waiting(root: Path) -> None:
    """An input that is too slow in every step."""
    run = Generated(seed=5, gpus=[GPU], noise=0.02)
    for _ in range(3):
        with run.epoch():
            run.steps(400, step_ms=9.8, wait_ms=29)
            run.reading(("map(decode)", "Map", 28.5, 1, "sequential"), batches=400)
    run.facts["throughput"] = {"training_s": (run.now - START_NS) / 1e9, "samples": 1200 * 32}
    _end(run, root / "resnet50")


def many_gpus(root: Path) -> None:
    """Sixty-four GPUs of which one slows itself down, and so all of them."""
    job = Job(seed=1, board=H100, gpus=64, hz=2)
    job.train(200, gpu=120)
    job.set(gpu=HOT_GPU, sm_clock_mhz=1200, temperature_c=89, throttle_thermal_pct=70)
    job.train(200, gpu=165)
    _write(job, root / "superpod")


def traces(root: Path) -> None:
    """What profilers have written, as `gpu-util trace --log-dir` brings it in."""
    from gpu_util_callback.cli import main

    for name in (
        "kineto/v100_resnet50_num_workers_0.json.gz",
        "nsys/h100_2gpu_1s.sqlite",
        "xplane/cpu_tf221_inputbound_plus_synthetic_gpu.xplane.pb",
    ):
        source = REFERENCE / name
        if not source.is_file():
            raise FileNotFoundError(f"{source}: the public reference traces are not there")
        main(["trace", str(source), "--log-dir", str(root / source.name.split(".")[0])])


def many_runs(root: Path, count: int = 40) -> None:
    """A sweep: most runs are well, every fifth is starved, and one stalls in its validations."""
    for seed in range(count):
        name = f"sweep/lr-{0.0001 * 1.025**seed:.4f}-wd-0.1-warmup-500-dropout-0.1-seed-{seed}"
        scenario = "slow" if seed % 5 == 1 else "healthy"
        if seed == ODD_SEED:
            scenario = "host_stall"
        run = SyntheticRun(
            root / name, scenario, steps=90 + seed % 7, gpus=1, seed=seed, step_ms=24 + seed % 11, past_s=60 + 60 * seed
        )
        run.advance(run.total)
        run.close()


def long(root: Path) -> None:
    """Two hundred thousand steps on two GPUs."""
    make_long_recording(root / "pretraining", steps=200_000, gpus=2, metrics=16)


def healthy(root: Path) -> None:
    """A run with nothing to fix, that computes at two fifths of its GPU's peak."""
    run = Generated(seed=3, gpus=[GPU])
    run.steps(3000, step_ms=9.8, wait_ms=0.2)
    run.gpu_value("mfu_pct", 30, 41)
    _end(run, root / "vit")


def no_gpu(root: Path) -> None:
    """A laptop's run that waits for its input, and then for its validation."""
    run = Generated(seed=4)
    for _ in range(2):
        with run.epoch():
            run.steps(300, step_ms=12, wait_ms=9)
            run.reading(("map(decode)", "Map", 20.0, 1, "sequential"), batches=300)
        run.phase("validation", seconds=3)
    _end(run, root / "laptop")


def unsampled(root: Path) -> None:
    """The driver did not answer for six seconds."""
    run = Generated(seed=6, gpus=[GPU])
    for wait_ms, seconds in ((8, 0), (8, 6), (8, 0)):
        run.steps(350, step_ms=10, wait_ms=wait_ms)
        run.gpu_value("utilization_pct", seconds, np.nan)
    _end(run, root / "hung-driver")


def damaged(root: Path) -> None:
    """Its manifest can be read, and nothing else."""
    path = make_recording(root / "cut-off", "thirds", steps=600, gpus=1)
    for file in path.glob("*.npz"):
        file.write_bytes(file.read_bytes()[:-22])


def live(root: Path) -> None:
    """A run that still trains: it stays so for half a minute."""
    run = SyntheticRun(root / "today", "thirds", steps=1500, gpus=1, past_s=30)
    run.advance(700).flush()


def _end(run: Generated, folder: Path) -> None:
    write(run, folder, "ended")
    _mark(folder, START_NS)


def _write(job: Job, run: Path) -> None:
    job.write(run)
    _mark(run, job.facts["started_ns"])


SCENES: dict[str, Callable[[Path], None]] = {
    "demo": demo,
    "two": two_findings,
    "eight": eight_findings,
    "workers": workers,
    "waiting": waiting,
    "gpus": many_gpus,
    "traces": traces,
    "runs": many_runs,
    "long": long,
    "healthy": healthy,
    "no-gpu": no_gpu,
    "unsampled": unsampled,
    "damaged": damaged,
    "live": live,
}
