"""Made-up jobs with nothing to mend: healthy or borderline, however they look."""

from job_case import collect
from simulated_boards import A100, B200, LAPTOP, RTX2080, T4, V100
from simulated_noise import lognormal, wandering

HEALTHY, case = collect()
GB = 1e9


@case("one slow epoch start: the cache is cold", board=T4, hz=1)
def _(job, vary):
    job.train(15, gpu=100, wait=lognormal(vary(900)))
    job.train(1500, gpu=100)


@case("validation takes a sixth, GPU at work", board=V100, hz=2)
def _(job, vary):
    for _ in range(6):
        with job.epoch():
            job.train(200, gpu=60)
            job.validate(100, 24)


@case("one long checkpoint at the end", board=A100)
def _(job, vary):
    job.train(1200, gpu=40)
    job.phase("checkpoint", vary(5), "ModelCheckpoint.on_epoch_end")


@case("a T4 at its 70 W: three quarters of the clock", board=T4, hz=2)
def _(job, vary):
    job.set(throttle_power_pct=99, power_w=69.5, sm_clock_mhz=vary(1180, 0.05))
    job.train(600, gpu=150)


@case("thirty steps", board=T4, hz=1)
def _(job, vary):
    job.train(1, gpu=200, compile=9000, wait=2500)
    job.train(29, gpu=200)


@case("the host waits for input, the GPU has work queued", board=A100, framework="torch")
def _(job, vary):
    job.train(1500, gpu=25, wait=lognormal(vary(10)), ahead=True)


@case("idle clocks in a long validation on the CPU", board=RTX2080)
def _(job, vary):
    job.train(1500, gpu=50)
    job.set(sm_clock_mhz=300, power_w=20)
    job.phase("callback", 6, "Report.on_epoch_end")
    job.set(sm_clock_mhz=2080)
    job.train(1500, gpu=50)


@case("busy link, hidden behind a busy GPU", board=V100)
def _(job, vary):
    job.set(pcie_rx_bytes_per_s=12.2 * GB)
    job.train(900, gpu=60)


@case("windows of a good run", board=A100, gpus=2, framework="torch")
def _(job, vary):
    for _ in range(3):
        job.train(300, gpu=57, host=3)
        job.window(6, 60, copy_h2d=0.02, collective=0.05, idle_launch=0.02, idle_sync=0.01, idle_host=0.01)
    job.kernel("sm80_xmma_gemm_bf16bf16_bf16f32", 300, "yes")
    job.kernel("ampere_sgemm_32x32_sliced1x4_tn", 18, "no")
    job.train(300, gpu=57, host=3)


@case("no driver library, a healthy host", board=None)
def _(job, vary):
    job.train(1500, gpu=25)


@case("CPU layers in the model, short steps", board=T4, hz=5)
def _(job, vary):
    job.train(5000, gpu=5, host=vary(7))


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


@case("noisy waiting around five percent", board=V100)
def _(job, vary):
    job.train(3000, gpu=wandering(40, 0.2), wait=lognormal(2.0, 1.2))


@case("one starved minute in five hours", board=A100, hz=0.5, without=("ring", "host"))
def _(job, vary):
    job.train(60_000, gpu=150)
    job.train(200, gpu=150, wait=lognormal(150))
    job.train(60_000, gpu=150)


@case("sequence length grows, shapes are new, nothing compiles", board=A100, framework="torch")
def _(job, vary):
    for shape in range(80):
        job.train(15, gpu=20 + shape, shape=shape)


@case("an evaluation GPU that works now and then", board=A100, gpus=2)
def _(job, vary):
    for _ in range(5):
        job.train(300, gpu=50, share=[0.97, 0.95])
        job.phase("validation", 3, "validation", share=0.9)


@case("somebody looks in for three seconds", board=A100, hz=5)
def _(job, vary):
    job.train(1500, gpu=50)
    job.set(utilization_other_pct=40, processes_other=1)
    job.train(60, gpu=70)
    job.set(utilization_other_pct=0)
    job.train(2500, gpu=50)


@case("unknown GEMMs and few plain ones", board=B200)
def _(job, vary):
    job.train(600, gpu=40)
    job.window(6, 40)
    job.kernel("nvjet_tst_192x192_64x3_2x1_v_bz_TNN", 200, "yes")
    job.kernel("cutlass3x_sm100_tensorop_gemm", 60, "unknown")
    job.kernel("gemmk1_kernel", 20, "no")
    job.train(600, gpu=40)


@case("asleep while it waits for a batch", board=LAPTOP)
def _(job, vary):
    job.train(500, gpu=50)
    began = job.now
    job.train(1, gpu=50, wait=vary(900_000))
    job.absent.append((began + 30_000_000, job.now - 30_000_000))
    job.train(700, gpu=50)
