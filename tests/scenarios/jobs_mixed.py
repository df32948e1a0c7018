"""Made-up jobs of several causes, at once or one after the other."""

from job_case import around, collect
from simulated_boards import A100, H100, L4, LAPTOP, RTX2080, T4, V100
from simulated_noise import bursts, lognormal, wandering

MIXED, case = collect()
GB = 1e9
FP32 = {"mixed_precision": "float32"}


@case("pair: starved, and saves each epoch", board=T4, hz=2)
def _(job, vary):
    first = job.step
    for _ in range(6):
        with job.epoch():
            job.train(200, gpu=60, wait=lognormal(vary(40)))
            job.phase("checkpoint", vary(4), "ModelCheckpoint.on_epoch_end")
    return {"input_bound": [(first, job.step)], "host_stall": [(first, job.step)]}


@case("pair: a hook all along, starved in the middle", board=LAPTOP, framework="torch")
def _(job, vary):
    hook = {"callback": vary(12), "hook": "Ema.on_train_batch_end"}
    first = job.train(500, gpu=50, **hook)[0]
    starved = job.train(500, gpu=50, wait=lognormal(vary(60)), **hook)
    end = job.train(500, gpu=50, **hook)[1]
    return {"input_bound": [starved], "host_stall": [(first, end)]}


@case("pair: CPU build, and the input is slow as well", board=T4, used=False, hz=2)
def _(job, vary):
    job.train(400, gpu=100, share=0)
    starved = job.train(400, gpu=100, wait=wandering(vary(150)), share=0)
    return {"cpu_fallback": None, "input_bound": [starved]}


@case("pair: copies and all-reduce", board=A100, gpus=4)
def _(job, vary):
    around(job, 250, 60, idle=0.25, copy_h2d=vary(0.25, 0.1), collective=vary(0.25, 0.1))
    return {"transfer_bound": None, "communication_bound": None}


@case("pair: float32, and the batch is small", fit={"batch_size": 4, **FP32})
def _(job, vary):
    job.set(sm_active_pct=vary(12), allocator_peak_bytes=5 * GB, allocator_limit_bytes=60 * GB)
    around(job, 500, 20)
    job.kernel("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3", 300, "no")
    job.kernel("void at::native::reduce_kernel<512>", 90, "no")
    return {"small_batch": None, "no_tensor_cores": None}


@case("windows, launch gaps and syncs", board=RTX2080, framework="torch")
def _(job, vary):
    for _ in range(3):
        job.train(500, gpu=6, host=6)
        job.window(8, 12, kernels=900, idle_launch=vary(0.3, 0.1), idle_sync=vary(0.2, 0.1))
    return {"launch_bound": None, "sync_bound": None}


@case("starved, then compiling, then hot", board=V100, framework="torch", hz=5)
def _(job, vary):
    starved = job.train(500, gpu=40, wait=lognormal(vary(30)))
    job.train(400, gpu=40)
    compiling = job.train(400, gpu=40, compile=bursts(16, vary(700)))
    job.train(400, gpu=40)
    job.set(sm_clock_mhz=vary(900, 0.1), throttle_thermal_pct=92, temperature_c=91)
    hot = job.train(500, gpu=66)
    return {"input_bound": [starved], "recompilation": [compiling], "throttled": [hot]}


@case("shared in the middle, and saves each epoch of the end", board=H100, framework="torch", hz=5)
def _(job, vary):
    job.set(utilization_other_pct=0)
    job.train(600, gpu=40)
    other = vary(40, 0.1)
    job.set(utilization_other_pct=other, processes_other=1, memory_other_bytes=12 * GB)
    shared = job.train(600, gpu=40 / (1 - other / 100), share=0.99)
    job.set(utilization_other_pct=0, processes_other=0, memory_other_bytes=0)
    job.train(300, gpu=40)
    first = job.step
    for _ in range(5):
        with job.epoch():
            job.train(200, gpu=40)
            job.phase("checkpoint", vary(4), "ModelCheckpoint.on_epoch_end")
    return {"contention": [shared], "host_stall": [(first, job.step)]}


@case("one of eight is hot from the middle on", board=A100, gpus=8, hz=2)
def _(job, vary):
    job.train(500, gpu=120, share=0.97)
    job.set(gpu=3, sm_clock_mhz=vary(880, 0.08), throttle_thermal_pct=93, temperature_c=93)
    hot = job.train(500, gpu=190, share=[0.63] * 3 + [0.98] + [0.62] * 4)
    return {"throttled": [hot], "imbalance": [hot]}


@case("eager, and its input is slow from the middle on", board=L4, fit={"run_eagerly": True}, hz=4)
def _(job, vary):
    job.train(400, gpu=20, host=vary(60))
    starved = job.train(400, gpu=20, host=60, wait=lognormal(vary(110)))
    return {"launch_bound": None, "input_bound": [starved]}


@case("a full memory grows hot", board=V100, framework="torch", hz=5)
def _(job, vary):
    job.set(
        allocator_used_bytes=15 * GB,
        allocator_reserved_bytes=15.7 * GB,
        allocator_peak_bytes=15.7 * GB,
        allocator_retries=vary(0.5),
        allocator_ooms=0,
    )
    job.train(700, gpu=60)
    job.set(sm_clock_mhz=vary(950, 0.1), throttle_thermal_pct=90, temperature_c=90)
    return {"memory_pressure": None, "throttled": [job.train(700, gpu=95)]}


@case("downloads in windows, and validation without the GPU", board=A100, framework="torch")
def _(job, vary):
    for _ in range(4):
        with job.epoch():
            job.train(250, gpu=32, host=12)
            job.window(5, 44, copy_d2h=vary(0.25, 0.1))
            job.phase("validation", vary(6), "validation", share=0.03)
    return {"transfer_bound": None, "host_stall": [(0, job.step)]}
