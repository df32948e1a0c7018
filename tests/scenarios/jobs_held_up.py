"""Made-up jobs whose host is held up: by input, callbacks, validation, compilation."""

from job_case import collect
from simulated_boards import A100, H100, LAPTOP, RTX2080, V100
from simulated_noise import bursts, lognormal, normal

HELD_UP, case = collect()
SPARSE = ("ring", "pcie", "throttle", "processes", "health", "host", "power", "clock")
WSL = ("processes", "throttle", "pcie", "ring")  # what the driver keeps to itself under Windows


@case("several steps in one execution", board=V100, fit={"steps_per_execution": 8})
def _(job, vary):
    job.train(800, gpu=12, estimated=True, batches=8)
    span = job.train(1600, gpu=12, wait=normal(vary(9), 0.3), estimated=True, batches=8)
    return {"input_bound": [span]}


@case("network storage stalls for seconds, now and then", board=A100, hz=4)
def _(job, vary):
    return {"input_bound": [job.train(2400, gpu=20, wait=bursts(100, vary(3000)))]}


@case("workers start anew each epoch", board=RTX2080, framework="torch")
def _(job, vary):
    first = job.step
    for _ in range(8):
        with job.epoch():
            job.phase("input_setup", vary(4, 0.1), "new iterator")
            job.train(200, gpu=60)
    return {"input_bound": [(first, job.step)]}


@case("a confusion matrix each epoch of the second half", board=V100, hz=2)
def _(job, vary):
    middle = 0
    for number in range(8):
        if number == 4:
            middle = job.step
        with job.epoch():
            job.train(200, gpu=60)
            if number >= 4:
                job.phase("callback", vary(7), "ConfusionMatrix.on_epoch_end")
    return {"host_stall": [(middle, job.step)]}


@case("validates every 200 steps on the CPU", board=A100, framework="jax")
def _(job, vary):
    first = job.step
    for _ in range(10):
        job.train(200, gpu=15)
        job.phase("validation", vary(2), "validation", share=0.05)
    return {"host_stall": [(first, job.step)]}


@case("uploads a checkpoint every 300 steps of an hour", board=H100, hz=1, without=("ring",))
def _(job, vary):
    name = "Upload.on_train_batch_end"
    span = job.train(9000, gpu=350, callback=bursts(300, vary(12_000)), hook=name)
    return {"host_stall": [span]}


@case("XLA compiles behind the scenes, middle", board=V100)
def _(job, vary):
    job.train(500, gpu=20, shape=0)
    first, shape = job.step, 1
    for _ in range(30):
        job.train(1, gpu=20, host=vary(600), shape=shape)
        end = job.train(14, gpu=20, shape=shape)[1]
        shape += 1
    job.train(600, gpu=20, shape=0)
    return {"recompilation": [(first, end)]}


@case("another job uses the time in which we wait", board=A100, framework="torch")
def _(job, vary):
    job.set(utilization_other_pct=vary(55, 0.1), utilization_process_pct=38, processes_other=1, utilization_pct=96)
    return {"input_bound": [job.train(900, gpu=20, wait=lognormal(vary(30)))]}


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


@case("float32 kernels in a starved run", board=V100, fit={"mixed_precision": "float32"})
def _(job, vary):
    job.train(400, gpu=10, wait=lognormal(vary(60)))
    job.window(6, 70, idle_input=0.85)
    job.kernel("volta_sgemm_128x64_tn", 60, "no")
    end = job.train(400, gpu=10, wait=lognormal(vary(60)))[1]
    return {"input_bound": [(0, end)]}


@case("half a million tiny steps, starved at the end", board=H100, hz=0.3, without=("ring", "gpm", "host"))
def _(job, vary):
    job.train(350_000, gpu=1.5)
    return {"input_bound": [job.train(150_000, gpu=1.5, wait=lognormal(vary(1.0), 0.3))]}


@case("asleep in the middle, starved afterwards", board=LAPTOP, framework="torch", hz=5)
def _(job, vary):
    job.train(700, gpu=45)
    job.away(2700)
    job.train(200, gpu=45)
    return {"input_bound": [job.train(600, gpu=45, wait=lognormal(vary(45)))]}


@case("a dozen steps of ten seconds, waits of five", board=A100, framework="torch", hz=2)
def _(job, vary):
    return {"input_bound": [job.train(12, gpu=10_000, wait=normal(vary(5000), 0.2))]}


@case("Windows' subsystem: validation reads slowly", board=LAPTOP, without=WSL, hz=1)
def _(job, vary):
    for _ in range(5):
        with job.epoch():
            job.train(250, gpu=60)
            job.validate(vary.count(70), 20, wait=90)
    return {"host_stall": [(0, job.step)]}
