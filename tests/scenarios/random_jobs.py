"""Random jobs: healthy ones of every kind, and ones with one cause over a good part of the run."""

from __future__ import annotations

from random import Random

from simulated_boards import A100, A100_MIG, B200, GTX1080, H100, L4, LAPTOP, RTX2080, T4, V100, Board
from simulated_jobs import Job
from simulated_noise import Series, bimodal, bursts, drifting, lognormal, normal, wandering

BOARDS = (A100, A100_MIG, B200, GTX1080, H100, L4, LAPTOP, RTX2080, T4, V100)
BLIND = ("ring", "pcie", "throttle", "processes", "health", "host", "power", "clock")
WITHOUT = ((), ("ring",), ("ring", "host", "processes"), BLIND)
MOST_STEPS = 20_000


def some_job(random: Random, boards: tuple[Board, ...], gpus: int, without: tuple) -> Job:
    job = Job(
        seed=random.randrange(10**9),
        board=random.choice(boards),
        gpus=gpus,
        hz=random.choice([10, 10, 5, 2, 1, 0.5, 0.3]),
        without=random.choice(without),
        framework=random.choice(["tensorflow", "torch", "jax"]),
        jitter=random.choice([1, 2, 5, 9]),
        dry=random.random() < 0.3,
    )
    job.drop = random.choice([0, 0, 0.3])
    return job


def some_noise(random: Random, mean: float, *, regular: bool = False) -> Series:
    kinds = [
        normal(mean, random.uniform(0.02, 0.2)),
        lognormal(mean, random.uniform(0.1, 0.8)),
        wandering(mean, random.uniform(0.05, 0.3)),
    ]
    if not regular:
        kinds += [bimodal(0.6 * mean, 2.2 * mean, 0.25), drifting(0.7 * mean, 1.4 * mean)]
    return random.choice(kinds)


def healthy(seed: int) -> Job:
    """Nothing to mend: a few percent of everything, cold starts, caps, desktops, full pools."""
    random = Random(seed)
    gpus = random.choice([1, 1, 1, 2, 4])
    job = some_job(random, BOARDS, gpus, WITHOUT)
    board = job.board
    step = 10 ** random.uniform(0, 3.3)
    count = int(min(MOST_STEPS, max(60, random.uniform(10, 400) * 1000 / step)))
    epochs = random.randint(1, 10)
    wait, hook = random.uniform(0, 0.035), random.choice([0, 0, random.uniform(0, 0.025)])
    validation = random.choice([0, 0, random.uniform(0.02, 0.14)])
    save = random.choice([0, 0, random.uniform(0, 0.025)])
    host = random.choice([0, 0, random.uniform(0.02, 0.25)])
    shares = [random.uniform(0.85, 0.99) for _ in range(gpus)]
    for columns in (
        {"throttle_power_pct": random.uniform(20, 100), "sm_clock_mhz": board.clock_mhz * random.uniform(0.7, 0.99)},
        {"utilization_other_pct": random.uniform(0, 6), "processes_other": 2},
        {"throttle_thermal_pct": random.uniform(0, 12), "temperature_c": 85},
        {
            "allocator_peak_bytes": random.uniform(0.3, 0.85) * board.memory_bytes,
            "allocator_limit_bytes": 0.92 * board.memory_bytes,
        },
    ):
        if random.random() < 0.4:
            job.set(**columns)
    job.set(sm_active_pct=random.uniform(40, 95))
    job.train(1, gpu=step, compile=random.uniform(500, 30_000), wait=random.uniform(0, 3000))
    if random.random() < 0.5:
        cold = max(1, min(12, count // 40))
        job.train(cold, gpu=step, wait=lognormal(step * random.uniform(0.1, 3)))
    work, each = some_noise(random, step), max(10, count // epochs)
    for _ in range(epochs):
        with job.epoch():
            began = job.now
            job.train(
                each,
                gpu=work,
                host=host * step,
                share=shares,
                wait=some_noise(random, max(1e-3, wait * step)),
                callback=bursts(min(100, each), min(100, each) * step * hook) if hook else 0,
                hook="TensorBoard.on_train_batch_end" if hook else "",
            )
            took_s = (job.now - began) / 1e9
            if validation:
                share = random.uniform(0.3, 0.98)
                job.phase("validation", took_s * validation, "validation", share=share)
            if save:
                job.phase("checkpoint", took_s * save, "ModelCheckpoint.on_epoch_end")
    return job


def faulty(seed: int) -> tuple[Job, str, list[tuple[int, int]]]:
    """(job, cause, spans): 13 to 70 % lost over a fifth of the run or more, anywhere in it."""
    random = Random(seed)
    cause = random.choice(["input_bound", "host_stall", "recompilation", "throttled", "contention", "imbalance"])
    seen = cause in ("throttled", "contention", "imbalance")  # only by the driver's gauges
    boards = tuple(one for one in BOARDS if not one.mig and one.counters) if seen else BOARDS
    job = some_job(random, boards, 2 if cause == "imbalance" else 1, ((), ("ring",)) if seen else WITHOUT)
    job.drop, job.hz = 0, max(0.5, job.hz)
    step, lost = 10 ** random.uniform(0.3, 3.3), random.uniform(0.13, 0.7)
    count = int(min(MOST_STEPS, max(150, random.uniform(60, 400) * 1000 / step)))
    bad = int(count * random.uniform(0.2, 0.5))
    well = (count - bad) // 2
    plan = random.choice(
        [
            [(bad, True), (count - bad, False)],
            [(count - bad, False), (bad, True)],
            [(well, False), (bad, True), (well, False)],
            [(count, True)],
        ]
    )
    spans = []
    for steps, faulty_now in plan:
        job.set(**_gauges(random, job, cause, lost if faulty_now else 0.0))
        slower = 1 / (1 - min(lost, 0.6)) if cause in ("throttled", "contention") else 1.0
        work = some_noise(random, step * (slower if faulty_now else 1.0), regular=True)
        more = _parts(random, cause, step * lost / (1 - lost), steps) if faulty_now else {}
        if cause == "imbalance":
            more["share"] = [0.98, 0.98 * (1 - max(0.35, lost)) if faulty_now else 0.96]
        span = job.train(steps, gpu=work, **more)
        spans += [span] if faulty_now else []
    return job, cause, spans


def _gauges(random: Random, job: Job, cause: str, lost: float) -> dict[str, float]:
    if cause == "throttled":
        clock = 0.985 * job.board.clock_mhz * (1 - min(lost, 0.6))
        return {"sm_clock_mhz": clock, "throttle_thermal_pct": random.uniform(45, 100) if lost else 0}
    if cause == "contention":
        return {"utilization_other_pct": 100 * min(lost, 0.6)}
    return {}


def _parts(random: Random, cause: str, ms: float, steps: int) -> dict:
    """What a bad stretch's steps take beyond their work: `ms` each, on average."""
    hook = {"hook": "Own.on_train_batch_end"}
    if cause == "input_bound":
        return {"wait": some_noise(random, ms, regular=True)}
    if cause == "host_stall" and random.random() < 0.5:
        return {"callback": some_noise(random, max(0.4, ms), regular=True), **hook}
    if cause == "host_stall":
        period = min(random.choice([5, 10, 50]), max(2, steps // 12))
        return {"callback": bursts(period, max(0.4, ms) * period), **hook}
    if cause == "recompilation":
        period = max(2, steps // random.randint(10, 40))
        return {"compile": bursts(period, ms * period)}
    return {}
