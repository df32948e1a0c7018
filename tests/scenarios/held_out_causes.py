"""Made-up jobs that were held out while the rules were mended: causes."""

from job_case import collect
from simulated_boards import A100, B200, GTX1080, H100, L4, LAPTOP, RTX2080, T4, V100
from simulated_noise import bursts, drifting, lognormal, normal

HELD_OUT_CAUSES, case = collect()
GB = 1e9
SPARSE = ("ring", "pcie", "throttle", "processes", "health", "host", "power", "clock")


@case("only utilization at 10 Hz, starved in the middle", board=RTX2080, without=SPARSE)
def _(job, vary):
    job.train(700, gpu=15)
    span = job.train(vary.count(700), gpu=15, wait=normal(vary(12), 0.3))
    job.train(700, gpu=15)
    return {"input_bound": [span]}


@case("old card without counters, mild at the start", board=GTX1080)
def _(job, vary):
    span = job.train(900, gpu=40, wait=lognormal(vary(6, 0.1), 0.3))
    job.train(2000, gpu=40)
    return {"input_bound": [span]}


@case("half-millisecond steps, starved", board=H100, framework="jax")
def _(job, vary):
    job.train(12_000, gpu=0.6)
    span = job.train(9000, gpu=0.6, wait=lognormal(vary(0.9), 0.3))
    return {"input_bound": [span]}


@case("tokenizer stalls in bursts of fifty", board=L4, framework="torch", hz=2)
def _(job, vary):
    spans = []
    for _ in range(14):
        job.train(150, gpu=50)
        spans.append(job.train(20, gpu=50, wait=lognormal(vary(350), 0.3)))
    return {"input_bound": spans}


@case("twenty-second steps, waits of five", board=B200, hz=1)
def _(job, vary):
    return {"input_bound": [job.train(40, gpu=20_000, wait=normal(vary(6000), 0.3))]}


@case("input gets better by itself", board=T4, hz=1)
def _(job, vary):
    first, end = job.train(1500, gpu=60, wait=drifting(vary(90), 0))
    return {"input_bound": [(first, end - 80)]}


@case("eight GPUs, all starved", board=A100, gpus=8, hz=2)
def _(job, vary):
    job.train(400, gpu=90)
    return {"input_bound": [job.train(500, gpu=90, wait=lognormal(vary(70)))]}


@case("a short starved stretch in a long run", board=A100, hz=2)
def _(job, vary):
    job.train(3000, gpu=30)
    span = job.train(250, gpu=30, wait=lognormal(vary(80)))
    job.train(3000, gpu=30)
    return {"input_bound": [span]}


@case("half a million tiny steps, starved at the end", board=H100, hz=0.3, without=("ring", "gpm", "host"))
def _(job, vary):
    job.train(350_000, gpu=1.5)
    return {"input_bound": [job.train(150_000, gpu=1.5, wait=lognormal(vary(1.0), 0.3))]}


@case("laptop, starved, clocks fall with the load", board=LAPTOP)
def _(job, vary):
    job.set(sm_clock_mhz=vary(900), throttle_power_pct=0)
    return {"input_bound": [job.train(900, gpu=12, wait=lognormal(vary(50)))]}


@case("EMA update in each step on the CPU, all along", board=L4, framework="jax")
def _(job, vary):
    return {"host_stall": [job.train(1500, gpu=45, callback=vary(9), hook="Ema.on_train_batch_end")]}


@case("validation as long as training", board=RTX2080, framework="torch")
def _(job, vary):
    first = job.step
    for _ in range(4):
        with job.epoch():
            job.train(400, gpu=25)
            job.validate(300, 8, wait=vary(22))
    return {"host_stall": [(first, job.step)]}


@case("each epoch saves for a twelfth of it", board=V100, hz=2)
def _(job, vary):
    first = job.step
    for _ in range(12):
        with job.epoch():
            job.train(250, gpu=60)
            job.phase("checkpoint", vary(1.5, 0.1), "ModelCheckpoint.on_epoch_end")
    return {"host_stall": [(first, job.step)]}


@case("two callbacks, one costs", board=A100)
def _(job, vary):
    first = job.step
    for _ in range(9):
        with job.epoch():
            job.train(180, gpu=50)
            job.phase("callback", 0.02, "CSVLogger.on_epoch_end")
            job.phase("callback", vary(2), "SampleImages.on_epoch_end")
    return {"host_stall": [(first, job.step)]}


@case("a summary each fifty steps, end", board=T4, hz=4)
def _(job, vary):
    job.train(900, gpu=40)
    return {
        "host_stall": [job.train(900, gpu=40, callback=bursts(50, vary(600)), hook="TensorBoard.on_train_batch_end")]
    }


@case("every new batch size is compiled, all along", board=B200, framework="jax")
def _(job, vary):
    return {"recompilation": [job.train(1200, gpu=25, compile=bursts(40, vary(1500)))]}


@case("retraced by lengths at the end", board=LAPTOP)
def _(job, vary):
    job.train(1200, gpu=40)
    return {"recompilation": [job.train(500, gpu=40, compile=bursts(9, vary(350)))]}


@case("hot from the middle on, mild, few samples", board=A100, hz=0.5, without=("ring",))
def _(job, vary):
    job.train(900, gpu=150)
    job.set(sm_clock_mhz=1410 * vary(0.84, 0.03), throttle_thermal_pct=60, temperature_c=85)
    return {"throttled": [job.train(900, gpu=175)]}


@case("a power brake for a while", board=H100, hz=10)
def _(job, vary):
    job.train(500, gpu=40)
    job.set(sm_clock_mhz=vary(700), throttle_other_pct=100)
    span = job.train(400, gpu=100)
    job.set(sm_clock_mhz=1950, throttle_other_pct=0)
    job.train(500, gpu=40)
    return {"throttled": [span]}


@case("one of eight is hot", board=H100, gpus=8, hz=2, framework="torch")
def _(job, vary):
    job.set(gpu=5, sm_clock_mhz=vary(1150), throttle_thermal_pct=88, temperature_c=90)
    job.train(400, gpu=200, share=[0.82] * 5 + [0.99] + [0.83] * 2)
    return {"throttled": [(0, job.step)]}


@case("a colleague's job for the first half", board=RTX2080, hz=10)
def _(job, vary):
    others = vary(50, 0.1)
    job.set(utilization_other_pct=others, processes_other=1)
    span = job.train(700, gpu=30 / (1 - others / 100), share=0.99)
    job.set(utilization_other_pct=0)
    job.train(900, gpu=30)
    return {"contention": [span]}


@case("contention, mild", board=B200, hz=5)
def _(job, vary):
    job.train(900, gpu=50)
    job.set(utilization_other_pct=vary(18, 0.1))
    span = job.train(1200, gpu=60, share=0.99)
    return {"contention": [span]}


@case("two of three GPUs get less, end", board=V100, gpus=3, hz=5)
def _(job, vary):
    job.train(700, gpu=50)
    return {"imbalance": [job.train(800, gpu=50, share=[0.98, vary(0.55, 0.1), vary(0.6, 0.1)])]}


@case("the first GPU also decodes", board=L4, gpus=2, framework="jax", hz=4)
def _(job, vary):
    job.train(900, gpu=70, share=[0.99, vary(0.62, 0.05)])
    return {"imbalance": [(0, job.step)]}


@case("three of four never work, torch", board=L4, gpus=4, framework="torch", hz=1)
def _(job, vary):
    job.train(500, gpu=200, share=[0, 0, 0.97, 0])
    return {"gpus_unused": None}


@case("lost at the start, back soon", board=T4, hz=10)
def _(job, vary):
    job.train(100, gpu=60)
    spans = []
    job.lose(lambda: spans.append(job.train(vary.count(400), gpu=60)))
    job.mark("gpu0/lost", 0)
    job.train(800, gpu=60)
    return {"gpu_lost": spans}


@case("CPU wheel beside two L4", board=L4, gpus=2, used=False, framework="torch")
def _(job, vary):
    job.train(200, gpu=500, share=0)
    return {"cpu_fallback": None}


@case("torch at the brim, a retry every few seconds", board=L4, framework="torch")
def _(job, vary):
    job.set(
        allocator_used_bytes=20 * GB,
        allocator_peak_bytes=23 * GB,
        allocator_reserved_bytes=23.5 * GB,
        allocator_retries=vary(0.25),
        allocator_ooms=0,
    )
    job.train(600, gpu=120)
    return {"memory_pressure": None}


@case("TensorFlow's pool is full to 97 %", board=RTX2080)
def _(job, vary):
    limit = 7 * GB
    job.set(allocator_used_bytes=6.2 * GB, allocator_peak_bytes=limit * vary(0.98, 0.005), allocator_limit_bytes=limit)
    job.train(800, gpu=60)
    return {"memory_pressure": None}


@case("memory fraction of a tenth, JAX", board=H100, framework="jax")
def _(job, vary):
    job.set(allocator_used_bytes=7.4 * GB, allocator_peak_bytes=7.7 * GB, allocator_limit_bytes=8 * GB)
    job.train(800, gpu=30)
    return {"memory_limit": None}


@case("PCIe 3 x8 filled, end of run", board=RTX2080, hz=10)
def _(job, vary):
    job.set(pcie_generation=3, pcie_width=8)
    job.train(600, gpu=30)
    job.set(pcie_rx_bytes_per_s=vary(6.6, 0.04) * GB)
    job.train(800, gpu=30, host=vary(22))
    return {"transfer_bound": None}


@case("windows with exposed downloads", board=A100)
def _(job, vary):
    for _ in range(3):
        job.train(250, gpu=30, host=10)
        job.window(5, 40, copy_d2h=vary(0.22))
    return {"transfer_bound": None}


@case("windows, launch gaps and syncs", board=RTX2080, framework="torch")
def _(job, vary):
    for _ in range(3):
        job.train(500, gpu=6, host=6)
        job.window(8, 12, kernels=900, idle_launch=vary(0.3, 0.1), idle_sync=vary(0.2, 0.1))
    return {"launch_bound": None, "sync_bound": None}


@case("eager Keras on a V100", board=V100, fit={"run_eagerly": True})
def _(job, vary):
    job.train(400, gpu=25, host=vary(70))
    return {"launch_bound": None}


@case("1.5 ms steps on TensorFlow, the host between", board=H100)
def _(job, vary):
    job.train(20_000, gpu=1.0, host=vary(0.9))
    return {"sync_bound": None}


@case("four nodes' all-reduce", board=H100, gpus=8, framework="torch", hz=2)
def _(job, vary):
    for _ in range(3):
        job.train(120, gpu=250)
        job.window(4, 250, collective=vary(0.28))
    return {"communication_bound": None}


@case("B200 with batch 16", board=B200, fit={"batch_size": 16}, model={"parameters": 120_000_000})
def _(job, vary):
    job.set(sm_active_pct=vary(18), allocator_peak_bytes=20 * GB, allocator_limit_bytes=135 * GB)
    job.train(1200, gpu=25)
    return {"small_batch": None}


@case("a tabular model", model={"parameters": 90_000}, fit={"batch_size": 8192})
def _(job, vary):
    job.set(sm_active_pct=vary(11), allocator_peak_bytes=1 * GB)
    job.train(6000, gpu=4)
    return {"small_model": None}


@case("float32 LSTM on a T4", board=T4, fit={"mixed_precision": "float32"})
def _(job, vary):
    for _ in range(2):
        job.train(300, gpu=50)
        job.window(5, 50)
        job.kernel("turing_sgemm_64x64_tn", vary(140), "no")
        job.kernel("void tensorflow::functor::FillPhiloxRandomKernelLaunch", 60, "no")
    return {"no_tensor_cores": None}


@case("pair: compile at the start, hot at the end", board=LAPTOP, framework="jax")
def _(job, vary):
    a = job.train(400, gpu=40, compile=bursts(20, vary(900)))
    job.train(500, gpu=40)
    job.set(sm_clock_mhz=vary(1200), throttle_thermal_pct=90, temperature_c=88)
    return {"recompilation": [a], "throttled": [job.train(700, gpu=70)]}


@case("pair: saves and an unused GPU", board=A100, gpus=2, hz=4)
def _(job, vary):
    for _ in range(6):
        with job.epoch():
            job.train(200, gpu=50, share=[0.97, 0])
            job.phase("checkpoint", vary(3), "ModelCheckpoint.on_epoch_end")
    return {"host_stall": [(0, job.step)], "gpus_unused": None}


@case("pair: starved and shared, one after the other", board=V100, hz=5)
def _(job, vary):
    starved = job.train(700, gpu=30, wait=lognormal(vary(30)))
    job.train(300, gpu=30)
    job.set(utilization_other_pct=vary(45), processes_other=1)
    return {"input_bound": [starved], "contention": [job.train(700, gpu=55, share=0.99)]}


@case("pair: full memory and small uneven GPUs", board=A100, gpus=2, framework="torch")
def _(job, vary):
    job.set(
        gpu=0, allocator_used_bytes=38 * GB, allocator_peak_bytes=39.5 * GB, allocator_retries=0.4, allocator_ooms=0
    )
    job.train(900, gpu=70, share=[0.98, vary(0.55)])
    return {"memory_pressure": None, "imbalance": [(0, job.step)]}
