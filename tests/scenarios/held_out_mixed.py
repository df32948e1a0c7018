"""Made-up jobs whose causes mix and change, seen by odd gauges; held out like the others."""

from job_case import collect
from simulated_boards import A100, A100_MIG, B200, GTX1080, H100, L4, LAPTOP, RTX2080, T4, V100
from simulated_noise import bimodal, bursts, drifting, lognormal, normal, wandering

HELD_OUT_MIXED, case = collect()
GB = 1e9
WSL = ("processes", "throttle", "pcie", "ring")  # what the driver keeps to itself under Windows
POLLED = ("ring", "gpm")


# -- causes that change over time ------------------------------------------------------------------


@case("starved, then compiling, then hot", board=V100, framework="torch", hz=5)
def _(job, vary):
    starved = job.train(500, gpu=40, wait=lognormal(vary(30)))
    job.train(400, gpu=40)
    compiling = job.train(400, gpu=40, compile=bursts(16, vary(700)))
    job.train(400, gpu=40)
    job.set(sm_clock_mhz=vary(900, 0.1), throttle_thermal_pct=92, temperature_c=91)
    hot = job.train(500, gpu=66)
    return {"input_bound": [starved], "recompilation": [compiling], "throttled": [hot]}


@case("starved until the cache is full, then validations take over", board=A100, hz=4)
def _(job, vary):
    starved = job.train(900, gpu=30, wait=lognormal(vary(35)))
    first = job.step
    for _ in range(6):
        with job.epoch():
            job.train(300, gpu=30)
            job.phase("validation", vary(5), "validation", share=0.05)
    return {"input_bound": [starved], "host_stall": [(first, job.step)]}


@case("a list in a callback grows, and with it each step", board=RTX2080, framework="torch")
def _(job, vary):
    job.train(600, gpu=40)
    grown = drifting(0, vary(40))
    first, end = job.train(2400, gpu=40, callback=grown, hook="History.on_train_batch_end")
    return {"host_stall": [(first + 250, end)]}


@case("validates in each third epoch", board=L4, hz=2)
def _(job, vary):
    for number in range(12):
        with job.epoch():
            job.train(150, gpu=70)
            if number % 3 == 2:
                job.phase("validation", vary(12), "validation", share=0.08)
    return {"host_stall": [(0, job.step)]}


@case("the first of three epochs reads over the network", board=A100)
def _(job, vary):
    span = None
    for number in range(3):
        with job.epoch():
            one = job.train(700, gpu=35, wait=lognormal(vary(40), 0.5) if number == 0 else 0)
            span = span or one
    return {"input_bound": [span]}


@case("sequences grow until the input keeps up", board=H100)
def _(job, vary):
    # A batch is made every 40 ms, whatever the model does; from there on it is the slower one.
    first, even = job.train(800, gpu=drifting(15, 40), wait=drifting(25, 0))
    job.train(1200, gpu=drifting(40, vary(80)))
    return {"input_bound": [(first, even - 60)]}


@case("other work on the machine comes at noon", board=T4, hz=1)
def _(job, vary):
    job.train(600, gpu=90, wait=normal(1.5, 0.3))
    span = job.train(700, gpu=90, wait=wandering(vary(60), 0.3))
    job.train(600, gpu=90, wait=normal(1.5, 0.3))
    return {"input_bound": [span]}


@case("the last batch of each epoch is smaller: compiled each time", board=A100, framework="jax")
def _(job, vary):
    for _ in range(8):
        with job.epoch():
            job.train(299, gpu=45)
            job.train(1, gpu=45, compile=vary(4000))
    return {"recompilation": [(0, job.step)]}


@case("a bad worker among eight", board=RTX2080, framework="torch", hz=5)
def _(job, vary):
    return {"input_bound": [job.train(1600, gpu=45, wait=bursts(8, vary(150)))]}


@case("the shuffle buffer is filled anew in each epoch", board=V100, hz=5)
def _(job, vary):
    for _ in range(7):
        with job.epoch():
            job.phase("input_setup", vary(7), "iterator")
            job.train(400, gpu=55)
    return {"input_bound": [(0, job.step)]}


@case("hot in the afternoons", board=GTX1080, hz=1, without=("host",))
def _(job, vary):
    # An old card tells no reasons, and its steps are as long as before.
    job.train(600, gpu=80)
    job.set(temperature_c=71)
    job.train(600, gpu=80)


@case("the power limit is lowered, and the input is slow later", board=A100, hz=5)
def _(job, vary):
    job.set(power_limit_mw=200_000, throttle_power_pct=96, power_w=199, sm_clock_mhz=vary(900, 0.1))
    capped = job.train(800, gpu=62)
    job.set(power_limit_mw=400_000, throttle_power_pct=0, power_w=330, sm_clock_mhz=1390)
    job.train(600, gpu=40)
    starved = job.train(700, gpu=40, wait=lognormal(vary(38)))
    return {"throttled": [capped], "input_bound": [starved]}


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


@case("one hook all along, compiling at first", board=B200, framework="jax")
def _(job, vary):
    hook = {"callback": vary(8), "hook": "Watch.on_train_batch_end"}
    compiling = job.train(400, gpu=30, compile=bursts(20, vary(1200)), **hook)
    end = job.train(1200, gpu=30, **hook)[1]
    return {"recompilation": [compiling], "host_stall": [(0, end)]}


# -- odd sampling ----------------------------------------------------------------------------------


@case("a reading a second and nothing finer, starved in the middle", board=L4, hz=1, without=POLLED)
def _(job, vary):
    job.train(900, gpu=30)
    span = job.train(900, gpu=30, wait=lognormal(vary(22)))
    job.train(900, gpu=30)
    return {"input_bound": [span]}


@case("four samples of five are lost, starved at the end", board=T4, hz=2)
def _(job, vary):
    job.drop = 0.8
    job.train(900, gpu=60)
    return {"input_bound": [job.train(700, gpu=60, wait=lognormal(vary(50)))]}


@case("no samples in just the stretch that is starved", board=A100, hz=5)
def _(job, vary):
    job.train(700, gpu=40)
    began = job.now
    span = job.train(500, gpu=40, wait=lognormal(vary(45)))
    job.missed.append((began, job.now))
    job.train(700, gpu=40)
    return {"input_bound": [span]}


@case("asleep in the middle, starved afterwards", board=LAPTOP, framework="torch", hz=5)
def _(job, vary):
    job.train(700, gpu=45)
    job.away(2700)
    job.train(200, gpu=45)
    return {"input_bound": [job.train(600, gpu=45, wait=lognormal(vary(45)))]}


@case("asleep three times", board=LAPTOP, hz=2)
def _(job, vary):
    for pause in (600, 5400, 60):
        job.train(300, gpu=vary(70))
        job.away(pause)
    job.train(300, gpu=70)


@case("asleep within a step", board=LAPTOP, framework="torch")
def _(job, vary):
    job.train(400, gpu=50)
    began = job.now
    job.train(1, gpu=50, host=vary(1_500_000))
    job.absent.append((began + 30_000_000, job.now - 30_000_000))
    job.train(800, gpu=50)


@case("asleep while it waits for a batch", board=LAPTOP)
def _(job, vary):
    job.train(500, gpu=50)
    began = job.now
    job.train(1, gpu=50, wait=vary(900_000))
    job.absent.append((began + 30_000_000, job.now - 30_000_000))
    job.train(700, gpu=50)


@case("the sampler begins half a minute late", board=H100, hz=5)
def _(job, vary):
    job.missed.append((job.now, job.now + 30_000_000_000))
    job.train(1500, gpu=vary(60))


@case("the sampler dies, and then the input slows down", board=A100, hz=10)
def _(job, vary):
    job.train(800, gpu=35)
    began = job.now
    span = job.train(700, gpu=35, wait=lognormal(vary(30)))
    job.missed.append((began, job.now + 1))
    return {"input_bound": [span]}


@case("hot in the second half, a sample each five seconds", board=V100, hz=0.2, without=POLLED)
def _(job, vary):
    job.train(1500, gpu=200)
    job.set(sm_clock_mhz=1530 * vary(0.6, 0.1), throttle_thermal_pct=90, temperature_c=89)
    return {"throttled": [job.train(1000, gpu=330)]}


@case("samples come in bunches", board=T4, hz=10)
def _(job, vary):
    for _ in range(12):
        job.train(90, gpu=60)
        job.missed.append((job.now, job.now + 4_000_000_000))
    job.train(200, gpu=60)


# -- very short runs, very long steps --------------------------------------------------------------


@case("a first look: two dozen steps", board=RTX2080)
def _(job, vary):
    job.train(1, gpu=200, compile=vary(6000))
    job.train(24, gpu=200)


@case("twenty seconds, starved", board=L4, framework="torch", hz=10)
def _(job, vary):
    return {"input_bound": [job.train(vary.count(45), gpu=100, wait=lognormal(vary(350), 0.4))]}


@case("a tutorial: three epochs of a second", board=T4, hz=10)
def _(job, vary):
    job.train(1, gpu=4, compile=vary(2500))
    for _ in range(3):
        with job.epoch():
            job.train(230, gpu=4)
            job.validate(40, 2)


@case("a dozen steps of ten seconds, waits of five", board=A100, framework="torch", hz=2)
def _(job, vary):
    return {"input_bound": [job.train(12, gpu=10_000, wait=normal(vary(5000), 0.2))]}


@case("ten-second steps, starved in the middle third", board=H100, gpus=2, hz=1)
def _(job, vary):
    job.train(60, gpu=10_000)
    span = job.train(60, gpu=10_000, wait=normal(vary(3500), 0.2))
    job.train(60, gpu=10_000)
    return {"input_bound": [span]}


@case("ten-second steps, a save each hundred", board=B200, gpus=4, framework="torch", hz=1)
def _(job, vary):
    for _ in range(4):
        job.train(100, gpu=10_000, share=[0.98, 0.97, 0.98, 0.96])
        job.phase("checkpoint", vary(20), "Saver.on_train_batch_end")


@case("ten-second steps, shared for the last two thirds", board=A100, hz=2)
def _(job, vary):
    job.set(utilization_other_pct=0)
    job.train(50, gpu=10_000)
    other = vary(45, 0.1)
    job.set(utilization_other_pct=other, utilization_process_pct=98 - other, processes_other=1)
    return {"contention": [job.train(70, gpu=10_000 / (1 - other / 100), share=0.99)]}


@case("steps of three quarters of a minute, hot later", board=V100, framework="torch", hz=0.5)
def _(job, vary):
    job.train(20, gpu=45_000)
    job.set(sm_clock_mhz=vary(850, 0.1), throttle_thermal_pct=95, temperature_c=92)
    return {"throttled": [job.train(20, gpu=80_000)]}


# -- several GPUs, parts of GPUs, guests -----------------------------------------------------------


@case("one of eight is hot from the middle on", board=A100, gpus=8, hz=2)
def _(job, vary):
    job.train(500, gpu=120, share=0.97)
    job.set(gpu=3, sm_clock_mhz=vary(880, 0.08), throttle_thermal_pct=93, temperature_c=93)
    hot = job.train(500, gpu=190, share=[0.63] * 3 + [0.98] + [0.62] * 4)
    return {"throttled": [hot], "imbalance": [hot]}


@case("two of eight idle, starved in the middle", board=V100, gpus=8, framework="torch", hz=1)
def _(job, vary):
    shares = [0.97] * 6 + [0.0] * 2
    job.train(400, gpu=100, share=shares)
    span = job.train(400, gpu=100, wait=lognormal(vary(90)), share=shares)
    job.train(400, gpu=100, share=shares)
    return {"gpus_unused": None, "input_bound": [span]}


@case("MIG: a callback in each step", board=A100_MIG, hz=5)
def _(job, vary):
    job.train(500, gpu=35)
    span = job.train(900, gpu=35, callback=vary(14), hook="Plot.on_train_batch_end")
    return {"host_stall": [span]}


@case("MIG: starved at the end, seldom sampled", board=A100_MIG, hz=0.5, framework="torch")
def _(job, vary):
    job.train(900, gpu=50)
    return {"input_bound": [job.train(900, gpu=50, wait=lognormal(vary(35)))]}


@case("MIG: all is well, with validations", board=A100_MIG)
def _(job, vary):
    for _ in range(5):
        with job.epoch():
            job.train(300, gpu=50)
            job.validate(30, 25)


@case("Windows' subsystem: all is well", board=RTX2080, without=WSL, hz=2)
def _(job, vary):
    job.set(memory_used_bytes=vary(6) * GB)
    job.train(1200, gpu=vary(60))


@case("Windows' subsystem: starved at first", board=RTX2080, without=WSL, framework="torch", hz=2)
def _(job, vary):
    span = job.train(600, gpu=45, wait=lognormal(vary(45)))
    job.train(900, gpu=45)
    return {"input_bound": [span]}


@case("Windows' subsystem: validation reads slowly", board=LAPTOP, without=WSL, hz=1)
def _(job, vary):
    for _ in range(5):
        with job.epoch():
            job.train(250, gpu=60)
            job.validate(vary.count(70), 20, wait=90)
    return {"host_stall": [(0, job.step)]}


@case("eager, and its input is slow from the middle on", board=L4, fit={"run_eagerly": True}, hz=4)
def _(job, vary):
    job.train(400, gpu=20, host=vary(60))
    starved = job.train(400, gpu=20, host=60, wait=lognormal(vary(110)))
    return {"launch_bound": None, "input_bound": [starved]}


@case("a low limit, and starved at the end", board=H100, framework="torch")
def _(job, vary):
    job.set(
        allocator_used_bytes=9.6 * GB,
        allocator_reserved_bytes=9.95 * GB,
        allocator_peak_bytes=9.95 * GB,
        allocator_limit_bytes=10 * GB,
    )
    job.train(900, gpu=40)
    return {"memory_limit": None, "input_bound": [job.train(700, gpu=40, wait=lognormal(vary(35)))]}


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


# -- nothing to mend -------------------------------------------------------------------------------


@case("epochs of half a minute, a breath between", board=L4, hz=1, without=POLLED)
def _(job, vary):
    for _ in range(8):
        with job.epoch():
            job.train(400, gpu=70)
            job.phase("callback", vary(0.3), "CSVLogger.on_epoch_end")


@case("eight GPUs at their power limit, full speed", board=H100, gpus=8, hz=2)
def _(job, vary):
    job.set(throttle_power_pct=vary(75), power_w=695, sm_clock_mhz=1905)
    job.train(300, gpu=300, share=[0.98, 0.97, 0.98, 0.96, 0.98, 0.97, 0.95, 0.97])


@case("workers start for three seconds in epochs of two minutes", board=RTX2080, framework="torch")
def _(job, vary):
    for _ in range(5):
        with job.epoch():
            job.phase("input_setup", vary(2.5), "workers")
            job.train(1500, gpu=70)


@case("the host is far ahead, and sleeps once", board=LAPTOP, framework="torch", hz=5)
def _(job, vary):
    job.train(900, gpu=40, wait=normal(vary(12), 0.3), ahead=True, share=0.99)
    job.away(1200)
    job.train(900, gpu=40, wait=normal(vary(12), 0.3), ahead=True, share=0.99)


@case("generator and critic, five to one", board=A100, framework="torch")
def _(job, vary):
    job.train(2000, gpu=bimodal(25, 130, 1 / 6), wait=lognormal(0.5))


@case("killed in its third minute", board=V100, status="lost", hz=2)
def _(job, vary):
    job.train(1, gpu=60, compile=vary(9000))
    job.train(vary.count(2300), gpu=60)


@case("a hyperparameter search's short trial", board=T4, hz=1, without=POLLED)
def _(job, vary):
    job.train(1, gpu=30, compile=vary(3500))
    for _ in range(4):
        with job.epoch():
            job.train(100, gpu=30)
            job.validate(12, 15)
