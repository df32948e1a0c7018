"""Made-up jobs that look alike: what seems to be one cause and is another, or none."""

from job_case import collect
from simulated_boards import A100, H100, LAPTOP, RTX2080, T4, V100
from simulated_noise import bimodal, bursts, lognormal, wandering

ALIKE, case = collect()
GB = 1e9


@case("another job uses the time in which we wait", board=A100, framework="torch")
def _(job, vary):
    job.set(utilization_other_pct=vary(55, 0.1), utilization_process_pct=38, processes_other=1, utilization_pct=96)
    return {"input_bound": [job.train(900, gpu=20, wait=lognormal(vary(30)))]}


@case("the driver's buffer is dry while we wait for seconds", board=A100, dry=True, hz=2)
def _(job, vary):
    job.train(900, gpu=20)
    span = job.train(1500, gpu=20, wait=bursts(100, vary(3000)))
    return {"input_bound": [span]}


@case("dry buffer, long starved validation", board=T4, dry=True, hz=1)
def _(job, vary):
    first = job.step
    for _ in range(6):
        with job.epoch():
            job.train(150, gpu=100)
            job.phase("validation", vary(7.5), "validation", share=0.05)
    return {"host_stall": [(first, job.step)]}


@case("a desktop's GPU does nothing else", board=RTX2080, gpus=2, hz=5)
def _(job, vary):
    job.set(gpu=0, utilization_pct=3.3, utilization_other_pct=3, processes_other=3)
    job.train(900, gpu=40, share=[0, 0.97])
    return {"gpus_unused": None}


@case("the power limit is lowered in the middle", board=V100)
def _(job, vary):
    job.train(700, gpu=40)
    job.set(power_limit_mw=150_000, throttle_power_pct=96, power_w=149, sm_clock_mhz=vary(1000, 0.05))
    return {"throttled": [job.train(900, gpu=60)]}


@case("the worst GPU of four is hot", board=A100, gpus=4, hz=5)
def _(job, vary):
    job.set(gpu=2, sm_clock_mhz=vary(900, 0.05), throttle_thermal_pct=93, temperature_c=92)
    job.train(600, gpu=90, share=[0.62, 0.6, 0.98, 0.61])
    return {"throttled": [(0, job.step)], "imbalance": [(0, job.step)]}


@case("CPU layers in the model, short steps", board=T4, hz=5)
def _(job, vary):
    job.train(5000, gpu=5, host=vary(7))


@case("MirroredStrategy, short steps, host-bound", board=A100, gpus=4, fit={"strategy": "MirroredStrategy"})
def _(job, vary):
    job.train(6000, gpu=3, host=vary(2.0))


@case("the first validation compiles for long", board=A100)
def _(job, vary):
    for number in range(3):
        with job.epoch():
            job.train(400, gpu=40)
            began = job.now
            job.phase("validation", 1.2 + (14 if number == 0 else 0), "validation", share=0.1)
            if number == 0:
                job._phase("compilation", "test function traced", began, began + 14 * 10**9)


@case("four compilations in a short trial", board=A100, framework="jax")
def _(job, vary):
    for _ in range(2):
        job.train(1, gpu=60, compile=vary(3000))
        job.train(88, gpu=60)
        job.train(1, gpu=40, compile=vary(2000))


@case("cuDNN tried a workspace too large", board=V100, framework="torch")
def _(job, vary):
    job.set(
        allocator_used_bytes=7 * GB,
        allocator_reserved_bytes=9 * GB,
        allocator_peak_bytes=8 * GB,
        allocator_retries=0.5,
        allocator_ooms=0,
    )
    job.train(80, gpu=30)
    job.set(allocator_retries=0)
    job.train(900, gpu=30)


@case("a process that was stopped for ten minutes", board=RTX2080, hz=5)
def _(job, vary):
    job.train(500, gpu=50)
    job.train(1, gpu=50, host=600_000)
    job.train(500, gpu=50)


@case("starved mildly, then severely", board=A100)
def _(job, vary):
    job.train(500, gpu=30)
    first = job.train(500, gpu=30, wait=lognormal(vary(5, 0.1), 0.3))[0]
    end = job.train(500, gpu=30, wait=lognormal(vary(60), 0.3))[1]
    job.train(500, gpu=30)
    return {"input_bound": [(first, end)]}


@case("ten starved stretches in a day's run", board=A100, hz=0.5, without=("ring", "host"))
def _(job, vary):
    spans = []
    for _ in range(10):
        job.train(9000, gpu=30)
        spans.append(job.train(1200, gpu=30, wait=lognormal(vary(40))))
    job.train(9000, gpu=30)
    return {"input_bound": spans}


@case("hot for half of each minute", board=LAPTOP, hz=5)
def _(job, vary):
    first = job.step
    for _ in range(12):
        job.set(throttle_thermal_pct=0, sm_clock_mhz=2070)
        job.train(150, gpu=40)
        job.set(throttle_thermal_pct=90, sm_clock_mhz=vary(1350, 0.05))
        job.train(150, gpu=62)
    return {"throttled": [(first, job.step)]}


@case("another's job comes and goes", board=A100, hz=5)
def _(job, vary):
    spans = []
    for _ in range(10):
        job.set(utilization_other_pct=0)
        job.train(250, gpu=40)
        job.set(utilization_other_pct=vary(40))
        spans.append(job.train(120, gpu=66, share=0.99))
    return {"contention": spans}


@case("uneven GPUs in short stretches", board=A100, gpus=2)
def _(job, vary):
    spans = []
    for _ in range(8):
        job.train(150, gpu=40)
        spans.append(job.train(120, gpu=40, share=[0.97, vary(0.45)]))
    job.train(150, gpu=40)
    return {"imbalance": spans}


@case("a full link without its generation", board=V100, without=("health",))
def _(job, vary):
    job.set(pcie_rx_bytes_per_s=vary(13, 0.04) * GB)
    job.train(900, gpu=20, host=vary(20))
    return {"transfer_bound": None}


@case("an H100 small and busy with validations", fit={"batch_size": 8})
def _(job, vary):
    job.set(sm_active_pct=vary(14), allocator_peak_bytes=6 * GB)
    for _ in range(5):
        with job.epoch():
            job.train(300, gpu=30)
            job.phase("validation", 1.0, "validation", share=0.9)
    return {"small_batch": None}


@case("small batches, half the time starved", fit={"batch_size": 8})
def _(job, vary):
    job.set(sm_active_pct=vary(14), allocator_peak_bytes=6 * GB)
    job.train(900, gpu=20)
    # First things first: that the batch is small as well is told when the GPU has work.
    return {"input_bound": [job.train(900, gpu=20, wait=lognormal(vary(20)))]}


@case("only Xid 79 tells", board=A100, status="interrupted")
def _(job, vary):
    job.train(700, gpu=50)
    job.mark("gpu0/xid", 79)
    began, span = job.now, job.train(vary.count(100), gpu=50)
    job.missed.append((began, job.now))
    return {"gpu_lost": [span]}


@case("Xid 79 with what else the driver has to say at once", board=A100, status="interrupted")
def _(job, vary):
    job.train(700, gpu=50)
    for number in (79, 154, 119):  # fallen off, the recovery it asks for, a call that timed out
        job.mark("gpu0/xid", number)
        job.now += 300_000
    began, span = job.now, job.train(vary.count(100), gpu=50)
    job.missed.append((began, job.now))
    return {"gpu_lost": [span]}


@case("Xid 13 and 31: the program's own faults", board=A100, status="interrupted")
def _(job, vary):
    job.train(700, gpu=50)
    job.mark("gpu0/xid", 31)
    job.train(20, gpu=50)
    job.mark("gpu0/xid", 13)


@case("a validation of one epoch at the end", board=A100)
def _(job, vary):
    with job.epoch():
        job.train(900, gpu=40)
        job.validate(200, 20)


@case("two thirds of a second of checkpoint in every five", board=H100)
def _(job, vary):
    first = job.step
    for _ in range(20):
        with job.epoch():
            job.train(150, gpu=30)
            job.phase("checkpoint", vary(0.65, 0.1), "BackupAndRestore.on_epoch_end")
    return {"host_stall": [(first, job.step)]}


@case("a hook every thousand steps, four percent", board=A100, hz=2)
def _(job, vary):
    job.train(12_000, gpu=20, callback=bursts(1000, vary(800)), hook="Images.on_train_batch_end")


@case("noisy waiting around five percent", board=V100)
def _(job, vary):
    job.train(3000, gpu=wandering(40, 0.2), wait=lognormal(2.0, 1.2))


@case("six hours of short epochs: validation, a save, plots", board=A100, hz=1, without=("ring",))
def _(job, vary):
    first, save, plot = job.step, vary(1.8, 0.1), vary(1.5, 0.1)
    for _ in range(1300):
        with job.epoch():
            job.train(20, gpu=500)
            job.phase("validation", 4.5, "validation", share=0.2)
            job.phase("checkpoint", save, "ModelCheckpoint.on_epoch_end")
            job.phase("callback", plot, "Plot.on_epoch_end")
    return {"host_stall": [(first, job.step)]}


@case("one starved minute in five hours", board=A100, hz=0.5, without=("ring", "host"))
def _(job, vary):
    job.train(60_000, gpu=150)
    job.train(200, gpu=150, wait=lognormal(150))
    job.train(60_000, gpu=150)


@case("a heavy tail of lengths and of reading", board=A100)
def _(job, vary):
    span = job.train(2500, gpu=lognormal(50, 0.8), wait=lognormal(vary(30), 1.4))
    return {"input_bound": [span]}


@case("waiting for each other: alternate steps", board=RTX2080, framework="torch")
def _(job, vary):
    job.train(600, gpu=40)
    span = job.train(600, gpu=40, wait=bimodal(0.01, vary(70), 0.5))
    return {"input_bound": [span]}


@case("a GPU at 60 % for reasons unknown", board=A100, framework="torch")
def _(job, vary):
    job.train(1200, gpu=30, host=20)


@case("TensorFlow at 50 %, long steps, reasons unknown", board=V100)
def _(job, vary):
    job.train(600, gpu=50, host=50)


@case("tiny steps under torch, host-bound", board=RTX2080, framework="torch")
def _(job, vary):
    job.train(8000, gpu=2, host=2)


@case("hyperparameter search: steps change their length", board=A100)
def _(job, vary):
    for ms in (20, 60, 35, 90, 25):
        job.train(300, gpu=vary(ms))


@case("sequence length grows, shapes are new, nothing compiles", board=A100, framework="torch")
def _(job, vary):
    for shape in range(80):
        job.train(15, gpu=20 + shape, shape=shape)


@case("memory filled to nine tenths", board=A100, framework="jax")
def _(job, vary):
    job.set(allocator_used_bytes=26 * GB, allocator_peak_bytes=27 * GB, allocator_limit_bytes=30 * GB)
    job.train(700, gpu=50)


@case("a low limit that is not reached", board=A100)
def _(job, vary):
    job.set(allocator_used_bytes=5 * GB, allocator_peak_bytes=6 * GB, allocator_limit_bytes=10 * GB)
    job.train(700, gpu=50)


@case("clocks locked low by the user", board=A100)
def _(job, vary):
    job.set(sm_clock_mhz=900, event_reasons=0x2)
    job.train(700, gpu=80)


@case("an evaluation GPU that works now and then", board=A100, gpus=2)
def _(job, vary):
    for _ in range(5):
        job.train(300, gpu=50, share=[0.97, 0.95])
        job.phase("validation", 3, "validation", share=0.9)


@case("float32 kernels in a starved run", board=V100, fit={"mixed_precision": "float32"})
def _(job, vary):
    job.train(400, gpu=10, wait=lognormal(vary(60)))
    job.window(6, 70, idle_input=0.85)
    job.kernel("volta_sgemm_128x64_tn", 60, "no")
    end = job.train(400, gpu=10, wait=lognormal(vary(60)))[1]
    return {"input_bound": [(0, end)]}


@case("the profiler's own cost looks like launch gaps", board=H100)
def _(job, vary):
    job.set(sm_active_pct=vary(90, 0.03))
    for _ in range(2):
        job.train(500, gpu=20)
        job.window(6, 34, kernels=1500, idle_launch=0.4)
    job.train(500, gpu=20)
