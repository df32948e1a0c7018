"""Made-up jobs of which profiler windows or Hopper's counters tell the cause."""

import numpy as np
from job_case import around, collect
from simulated_boards import A100, H100, RTX2080, T4, V100

TRACED, case = collect()
GB = 1e9
FP32 = {"mixed_precision": "float32"}


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


@case("copies each way, mild", board=V100)
def _(job, vary):
    around(job, 300, 50, idle=0.16, copy_h2d=vary(0.1, 0.1), copy_d2h=vary(0.07, 0.1))
    return {"transfer_bound": None}


@case("a GPU in a slot of one lane", board=RTX2080, hz=5)
def _(job, vary):
    job.set(pcie_generation=3, pcie_width=1, pcie_rx_bytes_per_s=vary(0.82, 0.05) * GB)
    job.train(700, gpu=30, host=vary(55))
    return {"transfer_bound": None}


@case("run_eagerly was left on", board=T4, hz=2, fit={"run_eagerly": True})
def _(job, vary):
    job.train(700, gpu=30, host=vary(140))
    return {"launch_bound": None}


@case("tiny steps read back one by one, no windows", board=A100)
def _(job, vary):
    job.train(12_000, gpu=2.0, host=vary(2.2))
    return {"sync_bound": None}


@case("float32 on a V100", board=V100, fit=FP32)
def _(job, vary):
    around(job, 250, 80)
    share = vary(0.7)
    job.kernel("volta_sgemm_128x64_tn", 300 * share, "no")
    job.kernel("cudnn::bn_fw_tr_1C11_kernel_NCHW", 300 * (1 - share), "no")
    return {"no_tensor_cores": None}


@case("a full link without its generation", board=V100, without=("health",))
def _(job, vary):
    job.set(pcie_rx_bytes_per_s=vary(13, 0.04) * GB)
    job.train(900, gpu=20, host=vary(20))
    return {"transfer_bound": None}


@case("1.5 ms steps on TensorFlow, the host between", board=H100)
def _(job, vary):
    job.train(20_000, gpu=1.0, host=vary(0.9))
    return {"sync_bound": None}
