"""Made-up jobs with nothing to mend: healthy or borderline, however they look."""

from job_case import collect
from simulated_boards import A100, A100_MIG, B200, H100, LAPTOP, RTX2080, T4, V100
from simulated_noise import bimodal, bursts, drifting, lognormal, normal, wandering

HEALTHY, case = collect()
GB = 1e9


@case("LLM fine-tuning, two-second steps", board=A100, framework="torch", hz=2)
def _(job, vary):
    job.train(250, gpu=vary(2000), wait=1.5)


@case("LLM on eight GPUs, 5 % jitter between them", board=H100, gpus=8, framework="torch", hz=2)
def _(job, vary):
    job.train(120, gpu=vary(900), share=[0.99, 0.97, 0.98, 0.95, 0.99, 0.96, 0.98, 0.97])


@case("gradient accumulation: every eighth step is long", board=RTX2080, framework="torch")
def _(job, vary):
    job.train(2000, gpu=bimodal(30, 42, 1 / 8))


@case("bucketed lengths", board=T4, hz=2, jitter=5)
def _(job, vary):
    job.train(1200, gpu=bimodal(60, 240, 0.3, 0.1))


@case("very unequal lengths", board=A100)
def _(job, vary):
    job.train(1500, gpu=lognormal(vary(60), 0.7))


@case("three percent of waiting, GPU-bound", board=V100, hz=5)
def _(job, vary):
    job.train(1500, gpu=50, wait=lognormal(1.6))


@case("four percent of waiting, wandering", board=A100)
def _(job, vary):
    job.train(2500, gpu=wandering(50, 0.1), wait=wandering(1.8, 0.3))


@case("one slow epoch start: the cache is cold", board=T4, hz=1)
def _(job, vary):
    job.train(15, gpu=100, wait=lognormal(vary(900)))
    job.train(1500, gpu=100)


@case("validation takes four percent", board=A100)
def _(job, vary):
    for _ in range(6):
        with job.epoch():
            job.train(300, gpu=40)
            job.validate(25, 18)


@case("validation takes a sixth, GPU at work", board=V100, hz=2)
def _(job, vary):
    for _ in range(6):
        with job.epoch():
            job.train(200, gpu=60)
            job.validate(100, 24)


@case("a checkpoint each epoch, three percent", board=H100, framework="torch")
def _(job, vary):
    for _ in range(6):
        with job.epoch():
            job.train(300, gpu=60)
            job.phase("checkpoint", vary(0.55), "ModelCheckpoint.on_epoch_end")


@case("one long checkpoint at the end", board=A100)
def _(job, vary):
    job.train(1200, gpu=40)
    job.phase("checkpoint", vary(5), "ModelCheckpoint.on_epoch_end")


@case("power-capped at its own limit, full clocks", board=T4, hz=2)
def _(job, vary):
    job.set(throttle_power_pct=70, power_w=69, sm_clock_mhz=1590 * vary(0.98, 0.01))
    job.train(600, gpu=150)


@case("a T4 at its 70 W: three quarters of the clock", board=T4, hz=2)
def _(job, vary):
    job.set(throttle_power_pct=99, power_w=69.5, sm_clock_mhz=vary(1180, 0.05))
    job.train(600, gpu=150)


@case("a laptop's power cap, always", board=LAPTOP, framework="torch")
def _(job, vary):
    job.set(throttle_power_pct=100, power_w=79, sm_clock_mhz=vary(1650, 0.05))
    job.train(900, gpu=60)


@case("an idle second GPU that is somebody else's", board=A100, gpus=2, used=[True, False])
def _(job, vary):
    job.set(gpu=1, memory_used_bytes=0.5 * GB)
    job.train(900, gpu=40, share=[0.97, 0])


@case("a busy second GPU that is somebody else's", board=A100, gpus=2, used=[True, False])
def _(job, vary):
    job.set(gpu=1, utilization_pct=60, processes_other=1, memory_other_bytes=30 * GB)
    job.train(900, gpu=40, share=[0.97, 0])


@case("TensorFlow took 95 % of the memory", board=RTX2080)
def _(job, vary):
    job.set(
        memory_used_bytes=7.7 * GB,
        allocator_used_bytes=2.9 * GB,
        allocator_peak_bytes=4.1 * GB,
        allocator_limit_bytes=6.9 * GB,
    )
    job.train(1200, gpu=40)


@case("JAX's pool, three quarters in use", board=A100, framework="jax")
def _(job, vary):
    job.set(allocator_used_bytes=vary(20, 0.1) * GB, allocator_peak_bytes=24 * GB, allocator_limit_bytes=30 * GB)
    job.train(900, gpu=60)


@case("torch has reserved everything and needs half", board=V100, framework="torch")
def _(job, vary):
    job.set(
        allocator_used_bytes=8 * GB,
        allocator_reserved_bytes=15.4 * GB,
        allocator_peak_bytes=11 * GB,
        allocator_retries=0,
        allocator_ooms=0,
    )
    job.train(900, gpu=60)


@case("a desktop on the GPU", board=RTX2080, hz=5)
def _(job, vary):
    job.set(utilization_other_pct=3, processes_other=4, memory_other_bytes=0.3 * GB)
    job.train(900, gpu=50)


@case("another's memory, no work", board=A100, hz=2)
def _(job, vary):
    job.set(utilization_other_pct=0, processes_other=2, memory_other_bytes=22 * GB)
    job.train(900, gpu=50)


@case("another's job, and the GPU has time for both", board=H100)
def _(job, vary):
    job.set(utilization_other_pct=12, processes_other=1)
    job.train(900, gpu=26, host=14)


@case("MIG without utilization", board=A100_MIG)
def _(job, vary):
    job.train(1200, gpu=60, wait=0.5)


@case("a suspended laptop", board=LAPTOP, framework="torch", hz=5)
def _(job, vary):
    job.train(500, gpu=50)
    job.away(600)
    job.train(500, gpu=50)


@case("a driver that misses half the samples", board=T4, hz=2)
def _(job, vary):
    job.drop = 0.5
    job.train(500, gpu=120)


@case("no GPU values for a minute", board=A100)
def _(job, vary):
    job.train(500, gpu=50)
    began = job.now
    job.train(1000, gpu=50)
    job.missed.append((began, job.now))
    job.train(500, gpu=50)


@case("an interrupted run", board=A100, status="interrupted")
def _(job, vary):
    with job.epoch():
        job.train(300, gpu=50)
    job.train(77, gpu=50)


@case("a run that was killed", board=V100, status="lost", hz=5)
def _(job, vary):
    job.train(400, gpu=50)


@case("thirty steps", board=T4, hz=1)
def _(job, vary):
    job.train(1, gpu=200, compile=9000, wait=2500)
    job.train(29, gpu=200)


@case("a first step of a minute", board=A100, framework="jax")
def _(job, vary):
    job.train(1, gpu=40, compile=60_000, wait=4000)
    job.train(1, gpu=40, compile=45_000)
    job.train(900, gpu=40)


@case("evaluation and training compile, twice each", board=H100)
def _(job, vary):
    job.train(1, gpu=30, compile=9000)
    job.train(599, gpu=30)
    job.train(1, gpu=20, compile=6000)
    job.phase("validation", 0.8, "validation", share=0.6)
    job.train(600, gpu=30)
    job.train(1, gpu=30, compile=4000)


@case("input hidden behind a busy GPU", board=V100)
def _(job, vary):
    job.train(1500, gpu=40, get=vary(34))


@case("the host waits for input, the GPU has work queued", board=A100, framework="torch")
def _(job, vary):
    job.train(1500, gpu=25, wait=lognormal(vary(10)), ahead=True)


@case("reinforcement learning: bursts of acting and learning", board=RTX2080, framework="torch")
def _(job, vary):
    for _ in range(40):
        job.train(20, gpu=25)
        job.train(1, gpu=25, host=vary(160))


@case("a garbage collector's pauses", board=A100, hz=5)
def _(job, vary):
    job.train(3000, gpu=30, host=bursts(200, 150))


@case("steps grow as sequences do", board=A100)
def _(job, vary):
    job.train(2500, gpu=drifting(20, vary(70)))


@case("utilization flickers between 80 and 100", board=RTX2080, jitter=9)
def _(job, vary):
    job.train(1500, gpu=30, share=0.93)


@case("two-millisecond steps, well fed", board=A100, framework="jax")
def _(job, vary):
    job.train(25_000, gpu=2.0)


@case("three hundred thousand steps", board=H100, hz=0.3, without=("ring", "gpm", "host"))
def _(job, vary):
    job.train(150_000, gpu=3)
    job.phase("validation", 8, "validation", share=0.8)
    job.train(150_000, gpu=normal(3.2, 0.2))


@case("a progress bar and a history", board=T4, hz=2)
def _(job, vary):
    job.train(1500, gpu=30, callback=0.12, hook="ProgbarLogger.on_train_batch_end")


@case("TensorBoard writes every hundredth step", board=V100)
def _(job, vary):
    job.train(2500, gpu=30, callback=bursts(100, 60), hook="TensorBoard.on_train_batch_end")


@case("early stopping, learning rate, history: short epochs", board=A100)
def _(job, vary):
    for _ in range(25):
        with job.epoch():
            job.train(60, gpu=25)
            job.phase("callback", 0.01, "EarlyStopping.on_epoch_end")


@case("idle clocks in a long validation on the CPU", board=RTX2080)
def _(job, vary):
    job.train(1500, gpu=50)
    job.set(sm_clock_mhz=300, power_w=20)
    job.phase("callback", 6, "Report.on_epoch_end")
    job.set(sm_clock_mhz=2080)
    job.train(1500, gpu=50)


@case("link in power saving, little traffic", board=LAPTOP)
def _(job, vary):
    job.set(pcie_generation=1, pcie_rx_bytes_per_s=4e7)
    job.train(900, gpu=60)


@case("busy link, hidden behind a busy GPU", board=V100)
def _(job, vary):
    job.set(pcie_rx_bytes_per_s=12.2 * GB)
    job.train(900, gpu=60)


@case("warm, at full clock", board=RTX2080)
def _(job, vary):
    job.set(throttle_thermal_pct=6, temperature_c=83, sm_clock_mhz=2040)
    job.train(1200, gpu=40)


@case("a full H100", model={"parameters": 7_000_000_000}, fit={"batch_size": 8})
def _(job, vary):
    job.set(sm_active_pct=vary(80, 0.1), allocator_peak_bytes=71 * GB)
    job.train(150, gpu=1200)


@case("an H100 half in use", model={"parameters": 300_000_000}, fit={"batch_size": 128})
def _(job, vary):
    job.set(sm_active_pct=vary(48, 0.1), allocator_peak_bytes=60 * GB)
    job.train(900, gpu=60)


@case("windows of a good run", board=A100, gpus=2, framework="torch")
def _(job, vary):
    for _ in range(3):
        job.train(300, gpu=57, host=3)
        job.window(6, 60, copy_h2d=0.02, collective=0.05, idle_launch=0.02, idle_sync=0.01, idle_host=0.01)
    job.kernel("sm80_xmma_gemm_bf16bf16_bf16f32", 300, "yes")
    job.kernel("ampere_sgemm_32x32_sliced1x4_tn", 18, "no")
    job.train(300, gpu=57, host=3)


@case("kernels that nobody knows", board=H100, framework="torch")
def _(job, vary):
    job.train(600, gpu=40)
    job.window(6, 40)
    job.kernel("bmm_E4m3_E4m3_Fp32_t128x128", 300, "unknown")
    job.kernel("triton_red_fused_native_layer_norm_12", 60, "unknown")
    job.train(600, gpu=40)


@case("double precision by choice on a small GPU", board=RTX2080, fit={"mixed_precision": "float64"})
def _(job, vary):
    job.train(500, gpu=300)


@case("several steps in one execution, well fed", board=V100, fit={"steps_per_execution": 16})
def _(job, vary):
    job.train(3200, gpu=6, estimated=True, batches=16, get=3)


@case("synchronised each step, long steps", board=T4, hz=2)
def _(job, vary):
    job.train(400, gpu=300, host=12)


@case("no driver library, a healthy host", board=None)
def _(job, vary):
    job.train(1500, gpu=25)


@case("four slow batches in a thousand", board=A100)
def _(job, vary):
    job.train(2000, gpu=40, wait=bursts(250, 120))


@case("noisy neighbours, no cause of ours", board=T4, hz=1, jitter=6)
def _(job, vary):
    job.train(700, gpu=wandering(150, 0.3), wait=lognormal(1.0, 1.0))


@case("four equal GPUs, seldom sampled, noisy", board=B200, gpus=4, hz=0.3, jitter=9)
def _(job, vary):
    job.train(2500, gpu=vary(140), host=vary(25))


@case("a hot minute that cost nothing", board=A100, hz=5)
def _(job, vary):
    job.train(600, gpu=50)
    job.set(temperature_c=88)
    job.train(900, gpu=50)


@case("GPUs that differ by a tenth", board=RTX2080, gpus=2)
def _(job, vary):
    job.train(1200, gpu=40, share=[0.97, vary(0.85, 0.03)])
