"""Made-up jobs whose host is held up: by input, callbacks, validation, compilation."""

from job_case import collect
from simulated_boards import A100, A100_MIG, H100, LAPTOP, RTX2080, T4, V100
from simulated_noise import bimodal, bursts, drifting, lognormal, normal, wandering

HELD_UP, case = collect()
BARE = ("ring", "pcie", "processes", "health", "host")


@case("Colab: a generator feeds a T4", board=T4, hz=1, without=BARE)
def _(job, vary):
    span = job.train(vary.count(350), gpu=vary(250), wait=lognormal(vary(90)))
    return {"input_bound": [span]}


@case("four workers deliver in bursts, middle", board=RTX2080, framework="torch", hz=5)
def _(job, vary):
    gpu = vary(25)
    job.train(600, gpu=gpu)
    span = job.train(vary.count(600), gpu=gpu, wait=bursts(4, vary(60)))
    job.train(500, gpu=gpu)
    return {"input_bound": [span]}


@case("the disk cache is lost after the first epoch", board=A100)
def _(job, vary):
    count, waits = vary.count(500), lognormal(vary(40), 0.8)
    spans = []
    for number in range(4):
        with job.epoch():
            span = job.train(count, gpu=30, wait=waits if number else 0)
            if number:
                spans.append(span)
        job.phase("validation", 0.3, share=0.8)
    return {"input_bound": [(spans[0][0], spans[-1][1])]}


@case("five-second steps, slow tokenisation at the end", board=H100, gpus=1, hz=2)
def _(job, vary):
    job.train(40, gpu=5000)
    return {"input_bound": [job.train(vary.count(32), gpu=5000, wait=normal(vary(1500), 0.2))]}


@case("two-millisecond steps, slow start", board=A100, framework="jax")
def _(job, vary):
    span = job.train(vary.count(6000), gpu=2, wait=lognormal(vary(0.9), 0.4))
    job.train(14000, gpu=2)
    return {"input_bound": [span]}


@case("MIG: no utilization at all", board=A100_MIG)
def _(job, vary):
    return {"input_bound": [job.train(1200, gpu=40, wait=lognormal(vary(25)))]}


@case("mild, wandering, all along", board=A100, hz=3)
def _(job, vary):
    wait = wandering(vary(13, 0.1), 0.15)
    return {"input_bound": [job.train(1500, gpu=wandering(85, 0.1), wait=wait)]}


@case("several steps in one execution", board=V100, fit={"steps_per_execution": 8})
def _(job, vary):
    job.train(800, gpu=12, estimated=True, batches=8)
    span = job.train(1600, gpu=12, wait=normal(vary(9), 0.3), estimated=True, batches=8)
    return {"input_bound": [span]}


@case("no driver library: only the host is seen", board=None)
def _(job, vary):
    return {"input_bound": [job.train(900, gpu=30, wait=lognormal(vary(50)))]}


@case("slower and slower input", board=A100)
def _(job, vary):
    first, end = job.train(3000, gpu=20, wait=drifting(0, vary(30)))
    return {"input_bound": [(first + 160, end)]}


@case("network storage stalls for seconds, now and then", board=A100, hz=4)
def _(job, vary):
    return {"input_bound": [job.train(2400, gpu=20, wait=bursts(100, vary(3000)))]}


@case("a short run, starved", board=T4, hz=2)
def _(job, vary):
    return {"input_bound": [job.train(60, gpu=60, wait=lognormal(vary(300)))]}


@case("a long run, starved for a while", board=A100, hz=0.5, without=("ring", "host"))
def _(job, vary):
    job.train(90_000, gpu=3)
    span = job.train(vary.count(60_000), gpu=3, wait=lognormal(vary(2.5), 0.5))
    job.train(120_000, gpu=3)
    return {"input_bound": [span]}


@case("every second epoch reads from the slow disk", board=A100)
def _(job, vary):
    spans = []
    for number in range(6):
        span = job.train(400, gpu=25, wait=lognormal(vary(30)) if number % 2 else 0)
        spans += [span] if number % 2 else []
    return {"input_bound": spans}


@case("three samples in ten seconds", board=RTX2080, hz=0.3, without=("ring", "host"))
def _(job, vary):
    job.train(900, gpu=50)
    return {"input_bound": [job.train(900, gpu=50, wait=lognormal(vary(45)))]}


@case("workers start anew each epoch", board=RTX2080, framework="torch")
def _(job, vary):
    first = job.step
    for _ in range(8):
        with job.epoch():
            job.phase("input_setup", vary(4, 0.1), "new iterator")
            job.train(200, gpu=60)
    return {"input_bound": [(first, job.step)]}


@case("two jobs' worth of bucketed steps, starved in the middle", board=V100)
def _(job, vary):
    work = bimodal(20, 60, 0.3)
    job.train(500, gpu=work)
    span = job.train(500, gpu=work, wait=lognormal(vary(40)))
    job.train(500, gpu=work)
    return {"input_bound": [span]}


# -- the host stands still -------------------------------------------------------------------------


@case("a third of the time validates, starved", board=T4, hz=1)
def _(job, vary):
    first = job.step
    for _ in range(5):
        with job.epoch():
            job.train(120, gpu=180)
            job.validate(vary.count(60), 60, wait=150)
    return {"host_stall": [(first, job.step)]}


@case("saves each epoch", board=A100, framework="torch")
def _(job, vary):
    first = job.step
    for _ in range(8):
        with job.epoch():
            job.train(250, gpu=40)
            job.phase("checkpoint", vary(2.2), "ModelCheckpoint.on_epoch_end")
    return {"host_stall": [(first, job.step)]}


@case("plots every ten steps, middle", board=RTX2080)
def _(job, vary):
    job.train(600, gpu=30)
    span = job.train(600, gpu=30, callback=bursts(10, vary(400)), hook="Plot.on_train_batch_end")
    job.train(600, gpu=30)
    return {"host_stall": [span]}


@case("a small hook in each step, start", board=H100)
def _(job, vary):
    name = "LogGradients.on_train_batch_end"
    span = job.train(900, gpu=25, callback=vary(4.5, 0.1), hook=name)
    job.train(1500, gpu=25)
    return {"host_stall": [span]}


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


# -- compilation -----------------------------------------------------------------------------------


@case("JAX compiles for each length, start", board=A100, framework="jax")
def _(job, vary):
    span = job.train(600, gpu=40, compile=bursts(15, vary(800)))
    job.train(1200, gpu=40)
    return {"recompilation": [span]}


@case("a Python number retraces, all along, mild", board=T4, hz=2)
def _(job, vary):
    return {"recompilation": [job.train(1500, gpu=30, compile=bursts(25, vary(130)))]}


@case("torch.compile meets a dozen shapes, start", board=RTX2080, framework="torch")
def _(job, vary):
    span = job.train(132, gpu=150, compile=bursts(11, vary(4000)))
    job.train(400, gpu=150)
    return {"recompilation": [span]}


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


@case("new shapes at the end of an epoch-long run", board=H100, hz=5)
def _(job, vary):
    job.train(2500, gpu=35)
    return {"recompilation": [job.train(900, gpu=35, compile=bursts(30, vary(900)))]}


# -- two at a time ---------------------------------------------------------------------------------


@case("pair: compiling first, starved later", board=A100, framework="jax")
def _(job, vary):
    compiling = job.train(500, gpu=30, compile=bursts(20, vary(700)))
    job.train(500, gpu=30)
    starved = job.train(700, gpu=30, wait=lognormal(vary(25)))
    return {"recompilation": [compiling], "input_bound": [starved]}


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
