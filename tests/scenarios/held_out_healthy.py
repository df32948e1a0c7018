"""Made-up jobs that were held out while the rules were mended: healthy ones."""

import numpy as np
from job_case import collect
from simulated_boards import A100, A100_MIG, B200, H100, L4, RTX2080, T4, V100
from simulated_noise import bimodal, bursts, lognormal, wandering

HELD_OUT_HEALTHY, case = collect()
GB = 1e9
SPARSE = ("ring", "pcie", "throttle", "processes", "health", "host", "power", "clock")


@case("only utilization", board=RTX2080, without=SPARSE)
def _(job, vary):
    job.train(1500, gpu=vary(35))


@case("gradient checkpointing and accumulation", board=L4, framework="torch", hz=1)
def _(job, vary):
    job.train(800, gpu=bimodal(110, 310, 0.25))


@case("a short wait every hundred steps", board=A100)
def _(job, vary):
    job.train(3000, gpu=30, wait=bursts(100, 100))


@case("prefetch lets one in five wait a little", board=V100)
def _(job, vary):
    job.train(2000, gpu=50, wait=bursts(5, 9))


@case("wandering step times and two percent of waits", board=T4, hz=1, jitter=7)
def _(job, vary):
    job.train(900, gpu=wandering(200, 0.4), wait=lognormal(4, 1.3))


@case("epochs of fifteen seconds, one second of validation", board=RTX2080)
def _(job, vary):
    for _ in range(10):
        with job.epoch():
            job.train(300, gpu=50)
            job.validate(40, 25, wait=1)
            job.phase("checkpoint", 0.15, "ModelCheckpoint.on_epoch_end")


@case("L4 at its 72 W", board=L4, hz=2)
def _(job, vary):
    job.set(throttle_power_pct=100, power_w=71.8, sm_clock_mhz=vary(1250, 0.08), temperature_c=79)
    job.train(700, gpu=90)


@case("clocks wander with the load", board=RTX2080)
def _(job, vary):
    for mhz in (1900, 1965, 2010, 1850, 1935):
        job.set(sm_clock_mhz=mhz, throttle_thermal_pct=0)
        job.train(250, gpu=40)


@case("thermal for three percent of the time", board=A100, hz=5)
def _(job, vary):
    for _ in range(12):
        job.set(throttle_thermal_pct=0, sm_clock_mhz=1395)
        job.train(160, gpu=50)
        job.set(throttle_thermal_pct=60, sm_clock_mhz=1290)
        job.train(6, gpu=54)


@case("somebody looks in for three seconds", board=A100, hz=5)
def _(job, vary):
    job.train(1500, gpu=50)
    job.set(utilization_other_pct=40, processes_other=1)
    job.train(60, gpu=70)
    job.set(utilization_other_pct=0)
    job.train(2500, gpu=50)


@case("MIG on torch", board=A100_MIG, framework="torch", hz=2)
def _(job, vary):
    job.train(900, gpu=80, wait=2)


@case("pool at 88 %", board=L4)
def _(job, vary):
    job.set(allocator_used_bytes=15 * GB, allocator_peak_bytes=18.5 * GB, allocator_limit_bytes=21 * GB)
    job.train(900, gpu=50)


@case("evaluation callback twice in a run", board=H100, hz=2)
def _(job, vary):
    job.train(1500, gpu=100)
    job.phase("callback", 2, "Evaluate.on_epoch_end", share=0.8)
    job.train(1500, gpu=100)
    job.phase("callback", 2, "Evaluate.on_epoch_end", share=0.8)


@case("compile at resume and after a change", board=A100, framework="torch")
def _(job, vary):
    job.train(1, gpu=60, compile=20_000)
    job.train(500, gpu=60)
    job.train(1, gpu=60, compile=9000)
    job.train(1500, gpu=60)


@case("GPU at 75 % on JAX for reasons unseen", board=V100, framework="jax")
def _(job, vary):
    job.train(1500, gpu=30, host=10)


@case("TensorFlow steps of 8 ms at 80 %", board=A100)
def _(job, vary):
    job.train(6000, gpu=6.5, host=1.4)


@case("four ranks' own GPU among eight", board=H100, gpus=2, used=[True, False], hz=2, world_size=4, rank=1, job="j")
def _(job, vary):
    job.train(300, gpu=300, share=[0.97, 0.96])


@case("a day of ten-second steps with pauses", board=B200, hz=0.3, without=("ring", "gpm", "host"))
def _(job, vary):
    for _ in range(6):
        job.train(400, gpu=10_000)
        job.phase("checkpoint", 45, "ModelCheckpoint.on_epoch_end")


@case("noisy two-step pattern: generator and critic", board=RTX2080, framework="torch")
def _(job, vary):
    job.train(3000, gpu=lambda rng, n: np.where(np.arange(n) % 2, 22.0, 58.0) * rng.normal(1, 0.1, n))


@case("unknown GEMMs and few plain ones", board=B200)
def _(job, vary):
    job.train(600, gpu=40)
    job.window(6, 40)
    job.kernel("nvjet_tst_192x192_64x3_2x1_v_bz_TNN", 200, "yes")
    job.kernel("cutlass3x_sm100_tensorop_gemm", 60, "unknown")
    job.kernel("gemmk1_kernel", 20, "no")
    job.train(600, gpu=40)


@case("steps_per_execution on a fast model", board=H100, fit={"steps_per_execution": 32})
def _(job, vary):
    job.train(32_000, gpu=0.5, estimated=True, batches=32, get=0.3)


@case("debugger stop of a minute", board=RTX2080, framework="torch", hz=5)
def _(job, vary):
    job.train(400, gpu=40)
    job.train(1, gpu=40, callback=60_000)
    job.train(400, gpu=40)


@case("a slow network morning of 12 seconds in an hour", board=A100, hz=1, without=("ring",))
def _(job, vary):
    job.train(9000, gpu=200)
    job.train(60, gpu=200, wait=lognormal(200))
    job.train(9000, gpu=200)
