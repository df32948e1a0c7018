"""Made-up jobs whose GPUs are held back: hot, shared, unequal, unused, lost, full."""

from job_case import collect
from simulated_boards import A100, H100, L4, LAPTOP, RTX2080, T4, V100
from simulated_noise import lognormal, wandering

ON_GPUS, case = collect()
GB = 1e9
COLD = {"throttle_thermal_pct": 0, "throttle_power_pct": 0, "temperature_c": 64}


def all_of(job):
    return [(0, job.step)]


# -- throttled -------------------------------------------------------------------------------------


@case("a laptop grows hot", board=LAPTOP, framework="torch")
def _(job, vary):
    slow = vary(1.8, 0.15)
    job.train(700, gpu=40)
    job.set(sm_clock_mhz=2068 / slow, throttle_thermal_pct=85, temperature_c=87)
    return {"throttled": [job.train(900, gpu=40 * slow)]}


@case("a T4 without a fan, middle", board=T4, hz=1)
def _(job, vary):
    slow = vary(1.6, 0.1)
    job.train(300, gpu=150)
    job.set(sm_clock_mhz=1566 / slow, throttle_thermal_pct=95, temperature_c=93)
    span = job.train(400, gpu=150 * slow)
    job.set(sm_clock_mhz=1566, **COLD)
    job.train(300, gpu=150)
    return {"throttled": [span]}


@case("the administrator halved the power limit", board=A100, gpus=2)
def _(job, vary):
    job.set(power_limit_mw=220_000, throttle_power_pct=97, power_w=218, sm_clock_mhz=vary(990, 0.08))
    for gpu in job.facts["gpus"]:
        gpu["power_limit_mw"] = 220_000
    job.train(1500, gpu=60)
    return {"throttled": all_of(job)}


@case("mild, middle, many neighbours", board=H100, hz=5)
def _(job, vary):
    job.train(600, gpu=100)
    job.set(sm_clock_mhz=vary(1700, 0.03), throttle_thermal_pct=45, temperature_c=84)
    span = job.train(600, gpu=115)
    job.set(sm_clock_mhz=1950, **COLD)
    job.train(600, gpu=100)
    return {"throttled": [span]}


@case("an old driver: only reasons, hot from the start", board=V100, hz=10, without=("pcie", "ring", "processes"))
def _(job, vary):
    job.set(sm_clock_mhz=vary(950), throttle_thermal_pct=100, temperature_c=90)
    span = job.train(500, gpu=90)
    job.set(sm_clock_mhz=1510, **COLD)
    job.train(700, gpu=55)
    return {"throttled": [span]}


# -- contention ------------------------------------------------------------------------------------


@case("somebody's notebook takes a third, middle", board=A100, hz=5)
def _(job, vary):
    job.train(700, gpu=40)
    others = vary(32)
    job.set(
        utilization_other_pct=others, utilization_process_pct=98 - others, processes_other=1, memory_other_bytes=9 * GB
    )
    span = job.train(700, gpu=40 / (1 - others / 100), share=0.99)
    job.set(utilization_other_pct=0, utilization_process_pct=97, memory_other_bytes=0)
    job.train(700, gpu=40)
    return {"contention": [span]}


@case("two trainings share a T4", board=T4, hz=2, framework="torch")
def _(job, vary):
    job.set(utilization_other_pct=vary(47), utilization_process_pct=50, processes_other=1)
    return {"contention": [job.train(500, gpu=300, share=0.99)]}


@case("an inference server wakes up at the end", board=H100, hz=10)
def _(job, vary):
    job.set(utilization_other_pct=0, processes_other=1, memory_other_bytes=20 * GB)
    job.train(1500, gpu=25)
    job.set(utilization_other_pct=vary(25), utilization_process_pct=70)
    return {"contention": [job.train(1200, gpu=33, share=0.99)]}


# -- several GPUs ----------------------------------------------------------------------------------


@case("one of four GPUs gets less", board=A100, gpus=4)
def _(job, vary):
    job.train(1200, gpu=50, share=[0.97, 0.96, 0.97, vary(0.5)])
    return {"imbalance": all_of(job)}


@case("an older second GPU is waited for, middle", board=RTX2080, gpus=2)
def _(job, vary):
    job.train(600, gpu=30)
    span = job.train(700, gpu=45, share=[vary(0.55), 0.98])
    job.train(600, gpu=30)
    return {"imbalance": [span]}


@case("pipeline stages of unequal size", board=H100, gpus=8, framework="torch", hz=5)
def _(job, vary):
    job.train(500, gpu=120, share=[0.97] * 5 + [vary(0.6, 0.1)] * 3)
    return {"imbalance": all_of(job)}


@case("one of four GPUs works", board=V100, gpus=4)
def _(job, vary):
    job.set(utilization_pct=0)
    job.set(gpu=0, utilization_pct=95)
    job.train(vary.count(900), gpu=30)
    return {"gpus_unused": None}


@case("two of eight GPUs work", board=A100, gpus=8, framework="jax", hz=4)
def _(job, vary):
    job.train(vary.count(700), gpu=80, share=[0.97, 0.96] + [0.0] * 6)
    return {"gpus_unused": None}


@case("a second GPU holds memory and nothing else", board=RTX2080, gpus=2, hz=2)
def _(job, vary):
    job.set(gpu=1, memory_used_bytes=6.9 * GB, power_w=25, sm_clock_mhz=300)
    job.train(vary.count(800), gpu=50, share=[0.97, 0.0])
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


@case("a memory cell went bad long before", board=V100)
def _(job, vary):
    job.set(ecc_corrected=vary.count(40), ecc_uncorrected=vary.count(3))
    job.train(1200, gpu=30)
    return {}


@case(
    "a GPU is lost for good",
    board=V100,
    status="interrupted",
    unavailable=[
        {
            "source": "gpu0",
            "cure": "see `dmesg | grep -i xid`",
            "reason": "the GPU is lost: it fell off the bus or is not reachable: no values from it since then",
        }
    ],
)
def _(job, vary):
    job.train(900, gpu=30)
    job.mark("gpu0/xid", 79)
    spans = []
    job.lose(lambda: spans.append(job.train(vary.count(120), gpu=30)))
    return {"gpu_lost": spans}


def _check(reason):
    check = {"reason": reason, "cure": "pip install tensorflow[and-cuda]"}
    return {"gpu_check": [check]}


@case(
    "the CPU build on a T4 machine",
    board=T4,
    used=False,
    hz=1,
    framework="tensorflow",
    **_check("this framework was built without CUDA"),
)
def _(job, vary):
    job.train(vary.count(200), gpu=900, share=0.0)
    return {"cpu_fallback": None}


@case("torch without CUDA on a laptop", board=LAPTOP, used=False, framework="torch")
def _(job, vary):
    job.set(utilization_pct=3, memory_used_bytes=0.4 * GB)
    job.train(vary.count(500), gpu=120, share=0.0)
    return {"cpu_fallback": None}


@case("torch sees the GPU, and the model was never moved to it", board=L4, framework="torch")
def _(job, vary):
    job.set(memory_used_bytes=0.4 * GB, memory_process_bytes=0, power_w=17)
    job.train(vary.count(300), gpu=150, share=0.0)
    return {"cpu_fallback": None}


@case("JAX on the CPU beside eight GPUs", board=A100, gpus=8, used=False, framework="jax", hz=2)
def _(job, vary):
    job.train(vary.count(300), gpu=400, share=0.0)
    return {"cpu_fallback": None}


# -- memory ----------------------------------------------------------------------------------------


@case("torch empties its cache again and again", board=V100, framework="torch")
def _(job, vary):
    job.set(
        allocator_used_bytes=14.9 * GB,
        allocator_peak_bytes=15.5 * GB,
        allocator_reserved_bytes=15.6 * GB,
        allocator_retries=vary(0.6),
        allocator_ooms=0,
    )
    job.train(900, gpu=80)
    return {"memory_pressure": None}


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


@case("out of memory once, caught and retried", board=RTX2080, framework="torch")
def _(job, vary):
    job.set(
        allocator_used_bytes=7.3 * GB,
        allocator_reserved_bytes=7.7 * GB,
        allocator_peak_bytes=7.7 * GB,
        allocator_retries=0.1,
        allocator_ooms=0.02,
    )
    job.train(vary.count(1500), gpu=60)
    return {"memory_pressure": None}


@case("a third of the memory by a fraction", board=A100, framework="torch")
def _(job, vary):
    limit = vary(0.33, 0.1) * 40 * GB
    job.set(
        allocator_used_bytes=0.97 * limit,
        allocator_reserved_bytes=0.995 * limit,
        allocator_peak_bytes=0.995 * limit,
        allocator_limit_bytes=limit,
    )
    job.train(900, gpu=45)
    return {"memory_limit": None}


@case("two gigabytes of a T4", board=T4, hz=2)
def _(job, vary):
    job.set(allocator_used_bytes=1.96 * GB, allocator_peak_bytes=1.99 * GB, allocator_limit_bytes=2 * GB)
    job.train(vary.count(600), gpu=110)
    return {"memory_limit": None}


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
    "batch too large in the ninth minute",
    board=A100,
    status="interrupted",
    framework="torch",
    memory={
        "out_of_memory": {
            "error": "OutOfMemoryError",
            "gpu": 0,
            "step": 600,
            "where": "the train function",
            "asked_bytes": int(2 * GB),
            "free_bytes": int(GB / 2),
        }
    },
)
def _(job, vary):
    job.set(allocator_used_bytes=11 * GB, allocator_peak_bytes=30 * GB, allocator_limit_bytes=40 * GB)
    job.train(600, gpu=45)
    return {"out_of_memory": None}


@case(
    "killed with the host's memory full", board=V100, status="lost", hz=2, machine={"memory_total_bytes": int(64 * GB)}
)
def _(job, vary):
    for left in (40, 25, 9, 0.9):
        job.hold(memory_available_bytes=left * GB)
        job.train(vary.count(200), gpu=60)
    return {"out_of_memory": None}


# -- pairs -----------------------------------------------------------------------------------------


@case("pair: one GPU of two, and starved in the end", board=A100, gpus=2)
def _(job, vary):
    job.train(700, gpu=30, share=[0.97, 0])
    starved = job.train(700, gpu=30, wait=lognormal(vary(25)), share=[0.97, 0])
    return {"gpus_unused": None, "input_bound": [starved]}


@case("pair: hot first, shared later", board=H100, hz=5)
def _(job, vary):
    job.set(sm_clock_mhz=vary(1300), throttle_thermal_pct=90, temperature_c=91, utilization_other_pct=0)
    hot = job.train(600, gpu=75)
    job.set(sm_clock_mhz=1950, **COLD)
    job.train(600, gpu=50)
    job.set(utilization_other_pct=vary(40), utilization_process_pct=58)
    shared = job.train(700, gpu=80, share=0.99)
    return {"throttled": [hot], "contention": [shared]}


@case("pair: validation on one GPU of two unequal", board=A100, gpus=2)
def _(job, vary):
    for _ in range(6):
        with job.epoch():
            job.train(250, gpu=45, share=[0.97, vary(0.5)])
            job.phase("validation", vary(9), "validation", share=0.05)
    return {"imbalance": all_of(job), "host_stall": all_of(job)}


@case("pair: CPU build, and the input is slow as well", board=T4, used=False, hz=2)
def _(job, vary):
    job.train(400, gpu=100, share=0)
    starved = job.train(400, gpu=100, wait=wandering(vary(150)), share=0)
    return {"cpu_fallback": None, "input_bound": [starved]}
