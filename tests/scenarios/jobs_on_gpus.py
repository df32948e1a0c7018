"""Made-up jobs whose GPUs are held back: hot, shared, unequal, unused, lost, full."""

from job_case import collect
from simulated_boards import A100, H100, L4, RTX2080, V100

ON_GPUS, case = collect()
GB = 1e9


@case("the power limit is lowered in the middle", board=V100)
def _(job, vary):
    job.train(700, gpu=40)
    job.set(power_limit_mw=150_000, throttle_power_pct=96, power_w=149, sm_clock_mhz=vary(1000, 0.05))
    return {"throttled": [job.train(900, gpu=60)]}


@case("steps of three quarters of a minute, hot later", board=V100, framework="torch", hz=0.5)
def _(job, vary):
    job.train(20, gpu=45_000)
    job.set(sm_clock_mhz=vary(850, 0.1), throttle_thermal_pct=95, temperature_c=92)
    return {"throttled": [job.train(20, gpu=80_000)]}


@case("the administrator halved the power limit", board=A100, gpus=2)
def _(job, vary):
    job.set(power_limit_mw=220_000, throttle_power_pct=97, power_w=218, sm_clock_mhz=vary(990, 0.08))
    for gpu in job.facts["gpus"]:
        gpu["power_limit_mw"] = 220_000
    job.train(1500, gpu=60)
    return {"throttled": [(0, job.step)]}


@case("one of four GPUs works", board=V100, gpus=4)
def _(job, vary):
    job.set(utilization_pct=0)
    job.set(gpu=0, utilization_pct=95)
    job.train(vary.count(900), gpu=30)
    return {"gpus_unused": None}


@case("a GPU falls off the bus and comes back", board=RTX2080, hz=5)
def _(job, vary):
    job.train(500, gpu=30)
    spans = []
    job.lose(lambda: spans.append(job.train(vary.count(300), gpu=30)))
    job.mark("gpu0/lost", 0)
    job.train(500, gpu=30)
    return {"gpu_lost": spans}


@case("a memory cell of a GPU goes bad", board=V100)
def _(job, vary):
    job.set(ecc_corrected=vary.count(40), ecc_uncorrected=1)
    job.train(900, gpu=30)
    job.set(ecc_uncorrected=1 + vary.count(3))
    job.train(900, gpu=30)
    return {"gpu_ecc_errors": None}


@case("torch sees the GPU, and the model was never moved to it", board=L4, framework="torch")
def _(job, vary):
    job.set(memory_used_bytes=0.4 * GB, memory_process_bytes=0, power_w=17)
    job.train(vary.count(300), gpu=150, share=0.0)
    return {"cpu_fallback": None}


@case("JAX fills its pool to the brim", board=A100, framework="jax")
def _(job, vary):
    job.set(
        allocator_used_bytes=29.7 * GB,
        allocator_peak_bytes=29.9 * GB,
        allocator_limit_bytes=30 * GB,
        allocator_largest_free_bytes=0.01 * GB,
    )
    job.train(vary.count(800), gpu=60)
    return {"memory_pressure": None}


@case("losses kept with their graphs", board=A100, framework="torch")
def _(job, vary):
    base, more = vary(9, 0.2) * GB, vary(0.25, 0.1) * GB
    limit = 40 * GB
    for epoch in range(12):
        with job.epoch():
            for part in range(5):
                held = base + more * (epoch + part / 5)
                job.set(
                    allocator_used_bytes=held,
                    allocator_peak_bytes=held + 4 * GB,
                    allocator_reserved_bytes=held + 5 * GB,
                    allocator_limit_bytes=limit,
                )
                job.train(60, gpu=45)
    return {"memory_growth": None}


@case(
    "killed with the host's memory full", board=V100, status="lost", hz=2, machine={"memory_total_bytes": int(64 * GB)}
)
def _(job, vary):
    for left in (40, 25, 9, 0.9):
        job.hold(memory_available_bytes=left * GB)
        job.train(vary.count(200), gpu=60)
    return {"out_of_memory": None}


@case("a desktop's GPU does nothing else", board=RTX2080, gpus=2, hz=5)
def _(job, vary):
    job.set(gpu=0, utilization_pct=3.3, utilization_other_pct=3, processes_other=3)
    job.train(900, gpu=40, share=[0, 0.97])
    return {"gpus_unused": None}


@case("Xid 79 with what else the driver has to say at once", board=A100, status="interrupted")
def _(job, vary):
    job.train(700, gpu=50)
    for number in (79, 154, 119):  # fallen off, the recovery it asks for, a call that timed out
        job.mark("gpu0/xid", number)
        job.now += 300_000
    began, span = job.now, job.train(vary.count(100), gpu=50)
    job.missed.append((began, job.now))
    return {"gpu_lost": [span]}


@case("a power brake for a while", board=H100, hz=10)
def _(job, vary):
    job.train(500, gpu=40)
    job.set(sm_clock_mhz=vary(700), throttle_other_pct=100)
    span = job.train(400, gpu=100)
    job.set(sm_clock_mhz=1950, throttle_other_pct=0)
    job.train(500, gpu=40)
    return {"throttled": [span]}


@case("two of three GPUs get less, end", board=V100, gpus=3, hz=5)
def _(job, vary):
    job.train(700, gpu=50)
    return {"imbalance": [job.train(800, gpu=50, share=[0.98, vary(0.55, 0.1), vary(0.6, 0.1)])]}
