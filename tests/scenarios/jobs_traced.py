"""Made-up jobs of which profiler windows or Hopper's counters tell the cause."""

import numpy as np
from job_case import collect
from simulated_boards import A100, H100, LAPTOP, RTX2080, T4, V100
from simulated_noise import lognormal, normal

TRACED, case = collect()
GB = 1e9


def around(job, count, step_ms, *, idle=0.0, windows=2, kernels=300, **shares):
    """Training with windows in it; `idle`: the share of a step in which no kernel runs."""
    for _ in range(windows):
        job.train(count, gpu=step_ms * (1 - idle), host=step_ms * idle)
        job.window(6, step_ms, kernels=kernels, **shares)
    job.train(count, gpu=step_ms * (1 - idle), host=step_ms * idle)


def ever_rarer(job, count, step_ms, held, *, kernels=300, **shares):
    """Training with windows as the recorder takes them, each at 1.1 times the age of the last.

    Args:
        held: from where to where, in shares of the run, steps are held back by the shares.
    Returns: the steps held back.
    """
    first, end = (round(part * count) for part in held)
    idle = sum(part for name, part in shares.items() if name != "collective")
    windows = set((60 * 1.1 ** np.arange(200)).astype(int).tolist())
    stops = sorted(stop for stop in {*windows, first, end, count} if job.step < stop <= count)
    for stop in stops:
        slow = first <= job.step < end
        if job.step in windows:
            job.window(6, step_ms, kernels=kernels, **(shares if slow else {}))
        host = step_ms * idle if slow else 0.0
        job.train(stop - job.step, gpu=step_ms - host, host=host)
    return [(first, end)]


@case("copies in the first tenth, windows ever rarer", board=A100, framework="torch", hz=1)
def _(job, vary):
    return {"transfer_bound": ever_rarer(job, 20_000, 40, (0, 0.1), copy_h2d=vary(0.5))}


@case("all-reduce in the last half, mild, windows ever rarer", board=V100, gpus=2, hz=1)
def _(job, vary):
    held = ever_rarer(job, 20_000, 60, (0.5, 1), collective=vary(0.16, 0.1))
    return {"communication_bound": held}


@case("tiny kernels in the middle, windows ever rarer", board=T4, framework="jax", hz=1)
def _(job, vary):
    held = ever_rarer(job, 30_000, 20, (0.2, 0.6), kernels=900, idle_launch=vary(0.4))
    return {"launch_bound": held}


@case("metrics read in each step of the second part, windows ever rarer", board=H100, hz=1)
def _(job, vary):
    return {"sync_bound": ever_rarer(job, 40_000, 8, (0.3, 1), kernels=60, idle_sync=vary(0.3))}


@case("pageable copies before each step", board=A100, framework="torch")
def _(job, vary):
    share = vary(0.3)
    around(job, 300, 60, idle=share, copy_h2d=share)
    return {"transfer_bound": None}


@case("copies are most of the step", board=H100, gpus=2, framework="torch")
def _(job, vary):
    share = vary(0.62, 0.1)
    around(job, 250, 40, idle=share, copy_h2d=share * 0.95, copy_d2h=share * 0.05)
    return {"transfer_bound": None}


@case("copies each way, mild", board=V100)
def _(job, vary):
    around(job, 300, 50, idle=0.16, copy_h2d=vary(0.1, 0.1), copy_d2h=vary(0.07, 0.1))
    return {"transfer_bound": None}


@case("a laptop's narrow link is full", board=LAPTOP)
def _(job, vary):
    for gpu in job.facts["gpus"]:
        gpu.update(pcie_generation_max=3, pcie_width_max=4)
    job.set(pcie_generation=3, pcie_width=4, pcie_rx_bytes_per_s=vary(3.3, 0.05) * GB)
    job.train(900, gpu=30, host=vary(30))
    return {"transfer_bound": None}


@case("a GPU in a slot of one lane", board=RTX2080, hz=5)
def _(job, vary):
    job.set(pcie_generation=3, pcie_width=1, pcie_rx_bytes_per_s=vary(0.82, 0.05) * GB)
    job.train(700, gpu=30, host=vary(55))
    return {"transfer_bound": None}


@case("thousands of tiny kernels", board=A100, framework="torch")
def _(job, vary):
    share = vary(0.45)
    around(job, 400, 20, idle=share, kernels=1800, idle_launch=share)
    return {"launch_bound": None}


@case("tiny kernels, mild", board=RTX2080, framework="jax")
def _(job, vary):
    share = vary(0.24, 0.1)
    around(job, 500, 12, idle=share, kernels=700, idle_launch=share)
    return {"launch_bound": None}


@case("run_eagerly was left on", board=T4, hz=2, fit={"run_eagerly": True})
def _(job, vary):
    job.train(700, gpu=30, host=vary(140))
    return {"launch_bound": None}


@case("metrics are read in each step", board=V100)
def _(job, vary):
    share = vary(0.3)
    around(job, 700, 6, idle=share, kernels=60, idle_sync=share)
    return {"sync_bound": None}


@case("each step waits, mild", board=H100)
def _(job, vary):
    share = vary(0.17, 0.1)
    around(job, 900, 5, idle=share, kernels=50, idle_sync=share)
    return {"sync_bound": None}


@case("tiny steps read back one by one, no windows", board=A100)
def _(job, vary):
    job.train(12_000, gpu=2.0, host=vary(2.2))
    return {"sync_bound": None}


@case("all-reduce over Ethernet", board=V100, gpus=4)
def _(job, vary):
    around(job, 200, 120, collective=vary(0.35))
    return {"communication_bound": None}


@case("all-reduce, mild", board=A100, gpus=2, framework="torch")
def _(job, vary):
    around(job, 300, 45, collective=vary(0.17, 0.1))
    return {"communication_bound": None}


@case("a batch of eight on an H100", fit={"batch_size": 8}, model={"parameters": 86_000_000})
def _(job, vary):
    job.set(
        sm_active_pct=vary(13),
        allocator_used_bytes=6 * GB,
        allocator_peak_bytes=7 * GB,
        allocator_limit_bytes=60 * GB,
        tensor_active_pct=3,
    )
    job.train(2500, gpu=18)
    return {"small_batch": None}


@case("a batch of 32, mildly too small", framework="torch", fit={"batch_size": 32})
def _(job, vary):
    job.set(
        sm_active_pct=vary(23, 0.1),
        allocator_used_bytes=11 * GB,
        allocator_peak_bytes=14 * GB,
        allocator_reserved_bytes=15 * GB,
    )
    job.train(900, gpu=40)
    return {"small_batch": None}


@case("a tiny model with huge batches", model={"parameters": 40_000}, fit={"batch_size": 16384})
def _(job, vary):
    job.set(sm_active_pct=vary(8), allocator_peak_bytes=1 * GB)
    job.train(3000, gpu=8)
    return {"small_model": None}


FP32 = {"mixed_precision": "float32"}


@case("float32 on a V100", board=V100, fit=FP32)
def _(job, vary):
    around(job, 250, 80)
    share = vary(0.7)
    job.kernel("volta_sgemm_128x64_tn", 300 * share, "no")
    job.kernel("cudnn::bn_fw_tr_1C11_kernel_NCHW", 300 * (1 - share), "no")
    return {"no_tensor_cores": None}


@case("float32 convolutions on a T4, mild", board=T4, hz=2, fit=FP32)
def _(job, vary):
    around(job, 150, 200)
    share = vary(0.35)
    job.kernel("turing_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", 300 * share, "no")
    job.kernel("void tensorflow::functor::ApplyAdamKernel<float>", 300 * (1 - share), "no")
    return {"no_tensor_cores": None}


@case("float32 attention on an A100, some kernels unknown", board=A100, framework="torch", fit=FP32)
def _(job, vary):
    around(job, 250, 70)
    job.kernel("ampere_sgemm_128x128_nn", vary(150), "no")
    job.kernel("triton_poi_fused_add_3", 50, "unknown")
    job.kernel("void at::native::vectorized_elementwise_kernel<4>", 60, "no")
    return {"no_tensor_cores": None}


@case("pair: tiny kernels, and starved at the end", board=A100, framework="torch")
def _(job, vary):
    around(job, 400, 20, idle=0.4, kernels=1500, idle_launch=0.4)
    starved = job.train(1200, gpu=12, host=8, wait=lognormal(vary(18)))
    return {"launch_bound": None, "input_bound": [starved]}


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


@case("pair: hot, and starved in another part", board=V100)
def _(job, vary):
    job.set(sm_clock_mhz=vary(900), throttle_thermal_pct=92, temperature_c=88)
    hot = job.train(500, gpu=70)
    job.set(sm_clock_mhz=1510, throttle_thermal_pct=0, temperature_c=60)
    job.train(500, gpu=42)
    starved = job.train(600, gpu=42, wait=normal(vary(50), 0.4))
    return {"throttled": [hot], "input_bound": [starved]}
