"""Labelled runs: what was injected, where, and nothing else."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from generated_runs import GPU, Generated

Truth = dict[str, list[tuple[int, int]] | None]  # cause -> spans in steps, None = the whole run


@dataclass(frozen=True)
class Case:
    """A run and the causes in it; an empty truth is a healthy or borderline run."""

    name: str
    build: Callable[[], tuple[Generated, Truth]]
    kind: str = field(default="one cause")


N = 400  # steps of a third of a run
PLACES = {
    "start": (True, False, False),
    "middle": (False, True, False),
    "end": (False, False, True),
    "all along": (True, True, True),
}
H200 = GPU | {
    "sm_clock_max_mhz": 1980,
    "power_limit_mw": 700_000,
    "power_default_mw": 700_000,
    "pcie_generation_max": 5,
    "pcie_width_max": 16,
    "compute_capability": "9.0",
}


def thirds(
    place: str, part: Callable[[Generated, bool], None], cause: str, seed: int, gpus: list[dict] | None = None
) -> Callable[[], tuple[Generated, Truth]]:
    """Three thirds; `part(run, bad)` makes one of them."""

    def build() -> tuple[Generated, Truth]:
        run = Generated(seed=seed, gpus=[H200] if gpus is None else gpus, noise=0.1)
        bounds = []
        for bad in PLACES[place]:
            first = run.step
            part(run, bad)
            if bad and bounds and bounds[-1][1] == first:
                bounds[-1] = (bounds[-1][0], run.step)
            elif bad:
                bounds.append((first, run.step))
        return run, {cause: bounds}

    return build


def in_place() -> Iterator[Case]:
    """Causes that begin and end: mild and severe, at each place."""
    waits = {"mild": 1.5, "severe": 60.0}
    hooks = {"mild": 1.5, "severe": 40.0}
    clocks = {"mild": 1700, "severe": 900}
    others = {"mild": 25, "severe": 60}
    gaps = {"mild": 0.6, "severe": 0.2}
    compiles = {"mild": 20, "severe": 250}

    def waiting(ms):
        return lambda run, bad: run.steps(N, step_ms=10, wait_ms=ms if bad else 0)

    def hook(ms):
        return lambda run, bad: run.steps(N, step_ms=10, callback_ms=ms if bad else 0)

    def compiling(ms):
        def part(run, bad):
            values = np.zeros(N)
            values[5::10] = ms
            run.steps(N, step_ms=10, compile_ms=values if bad else 0)

        return part

    def hot(mhz):
        def part(run, bad):
            begin = run.now
            run.steps(N, step_ms=30 * (1980 / mhz if bad else 1))
            seconds = (run.now - begin) / 1e9
            run.gpu_value("sm_clock_mhz", seconds, mhz if bad else 1965)
            run.gpu_value("throttle_thermal_pct", seconds, 90 if bad else 0)
            run.gpu_value("temperature_c", seconds, 92 if bad else 70)

        return part

    def shared(pct):
        def part(run, bad):
            begin = run.now
            run.steps(N, step_ms=30 / (1 - pct / 100) if bad else 30)
            run.gpu_value("utilization_other_pct", (run.now - begin) / 1e9, pct if bad else 0)

        return part

    def uneven(least):
        def part(run, bad):
            begin = run.now
            run.steps(N, step_ms=30)
            if bad:
                seconds = (run.now - begin) / 1e9
                run.gpu_value("utilization_pct", seconds, 97 * least, gpu=1)

        return part

    def copying(active):
        """The link is full; how long the GPU idles for it differs."""

        def part(run, bad):
            begin = run.now
            run.steps(N, step_ms=30, gpu_share=active if bad else 0.97)
            seconds = (run.now - begin) / 1e9
            run.gpu_value("pcie_rx_bytes_per_s", seconds, 55e9 if bad else 2e9)
            run.gpu_value("pcie_tx_bytes_per_s", seconds, 1e9)
            run.gpu_value("pcie_generation", seconds, 5)
            run.gpu_value("pcie_width", seconds, 16)

        return part

    copies = {"mild": 0.75, "severe": 0.15}

    for place in PLACES:
        for much in ("mild", "severe"):
            name = f"{much}, {place}"
            yield Case(f"full link, {name}", thirds(place, copying(copies[much]), "transfer_bound", 7))
            yield Case(f"slow input, {name}", thirds(place, waiting(waits[much]), "input_bound", 1))
            yield Case(f"batch hook, {name}", thirds(place, hook(hooks[much]), "host_stall", 2))
            yield Case(f"new shapes, {name}", thirds(place, compiling(compiles[much]), "recompilation", 3))
            yield Case(f"hot GPU, {name}", thirds(place, hot(clocks[much]), "throttled", 4))
            yield Case(f"another job, {name}", thirds(place, shared(others[much]), "contention", 5))
            yield Case(
                f"uneven GPUs, {name}",
                thirds(place, uneven(gaps[much]), "imbalance", 6, gpus=[H200, H200 | {"index": 1}]),
            )


def whole(
    cause: str | None,
    build: Callable[[Generated], None],
    name: str,
    seed: int = 7,
    gpus: list[dict] | None = None,
    kind: str = "one cause",
    also: tuple[str, ...] = (),
    noise: float = 0.1,
    **facts,
) -> Case:
    """A case that holds for the whole run (or a healthy one, with `cause=None`)."""

    def make() -> tuple[Generated, Truth]:
        run = Generated(seed=seed, gpus=[H200] if gpus is None else gpus, noise=noise, **facts)
        build(run)
        return run, {} if cause is None else dict.fromkeys((cause, *also))

    return Case(name, make, kind)


def traced(gpu_share: float = 0.5, kernels: int = 200, **share) -> Callable[[Generated], None]:
    def build(run: Generated) -> None:
        run.steps(300, step_ms=10, gpu_share=gpu_share)
        run.trace(8, 10, kernels=kernels, **share)
        run.steps(300, step_ms=10, gpu_share=gpu_share)

    return build


def leaking(gib_an_epoch: float) -> Callable[[Generated], None]:
    def build(run: Generated) -> None:
        for epoch in range(10):
            with run.epoch():
                for part in range(5):
                    began = run.now
                    run.steps(40, step_ms=20)
                    held = (8 + gib_an_epoch * (epoch + part / 5)) * 2**30
                    run.gpu_value("allocator_used_bytes", (run.now - began) / 1e9, held)

    return build


def filled(sm: float, peak: float, seconds: float = 20, active: float = 0.97):
    def build(run: Generated) -> None:
        run.steps(int(seconds * 100), step_ms=10, gpu_share=active)
        run.gpu_value("sm_active_pct", seconds * 1.5, sm)
        run.gpu_value("allocator_peak_bytes", seconds * 1.5, peak * GPU["memory_total_bytes"])

    return build


def kernel_types(plain: float, tensor: float, unknown: float = 0.0):
    def build(run: Generated) -> None:
        traced(0.95)(run)
        run.kernel("ampere_sgemm_128x64_nn", 100 * plain, "no")
        run.kernel("sm90_xmma_gemm_bf16bf16_bf16f32", 100 * tensor, "yes")
        run.kernel("triton_gemm_fusion_dot_7", 100 * unknown, "unknown")
        run.kernel("cudnn::bn_fw_tr_1C11", 100 * (1 - plain - tensor - unknown), "no")

    return build


def memory(used: float, limit: float = 0.92, retries: int = 0):
    total = GPU["memory_total_bytes"]

    def build(run: Generated) -> None:
        run.steps(1000, step_ms=10)
        run.gpu_value("allocator_used_bytes", 15, used * limit * total)
        run.gpu_value("allocator_peak_bytes", 15, used * limit * total)
        run.gpu_value("allocator_limit_bytes", 15, limit * total)
        run.gpu_value("memory_used_bytes", 15, 0.95 * total)
        run.gpu_value("allocator_retries", 15, retries)

    return build


def link(rate: float, generation: int, active: float):
    def build(run: Generated) -> None:
        run.steps(1000, step_ms=20, gpu_share=active)
        run.gpu_value("pcie_rx_bytes_per_s", 30, rate)
        run.gpu_value("pcie_tx_bytes_per_s", 30, 0.02 * rate)
        run.gpu_value("pcie_generation", 30, generation)
        run.gpu_value("pcie_width", 30, 16)

    return build


def epochs(
    count: int = 6,
    seconds: float = 0.0,
    kind: str = "validation",
    name: str = "",
    steps: int = 200,
    gpu_share: float = 0.1,
):
    def build(run: Generated) -> None:
        for _ in range(count):
            with run.epoch():
                run.steps(steps, step_ms=10)
                if seconds:
                    run.phase(kind, seconds, name=name, share=gpu_share)

    return build


def synced(gpu_wait: float, active: float, step_ms: float = 4):
    def build(run: Generated) -> None:
        run.steps(2000, step_ms=step_ms, gpu_share=active)
        body = run._steps[-1]["body_ns"]
        run._steps[-1]["gpu_wait_ns"] = (body * gpu_wait).astype(np.int64)
        run._steps[-1]["body_ns"] = body - run._steps[-1]["gpu_wait_ns"]

    return build


def all_along() -> Iterator[Case]:
    """Causes of a whole run, mild and severe."""
    save = "ModelCheckpoint.on_epoch_end"
    yield whole("host_stall", epochs(seconds=0.9), "long validation, mild")
    yield whole("host_stall", epochs(seconds=0.35), "short validation, the GPU idles")
    yield whole("host_stall", epochs(seconds=8), "long validation, severe")
    yield whole("host_stall", epochs(seconds=0.3, kind="checkpoint", name=save), "saves, mild")
    yield whole("host_stall", epochs(seconds=3, kind="checkpoint", name=save), "saves, severe")
    yield whole("transfer_bound", traced(copy_h2d=0.15), "exposed copies, mild")
    yield whole("transfer_bound", traced(copy_h2d=0.6), "exposed copies, severe")
    yield whole("transfer_bound", link(11.5e9, 3, 0.6), "full link, mild", gpus=[H200 | {"pcie_generation_max": 3}])
    yield whole("transfer_bound", link(3.5e9, 1, 0.15), "degraded and full link, severe")
    yield whole("launch_bound", traced(kernels=400, idle_launch=0.25), "short kernels, mild")
    yield whole("launch_bound", traced(0.2, 2000, idle_launch=0.8), "short kernels, severe")
    yield whole(
        "launch_bound",
        lambda run: run.steps(1000, step_ms=20, gpu_share=0.2),
        "eager, severe",
        fit={"run_eagerly": True},
    )
    yield whole("sync_bound", traced(idle_sync=0.15), "synchronised, mild")
    yield whole("sync_bound", traced(idle_sync=0.6), "synchronised, severe")
    yield whole("sync_bound", synced(0.4, 0.4), "synchronised, no window")
    yield whole("communication_bound", traced(collective=0.15), "exposed all-reduce, mild")
    yield whole("communication_bound", traced(collective=0.5), "exposed all-reduce, severe")
    yield whole("small_batch", filled(25, 0.3), "small batch, mild", model={"parameters": 25_000_000})
    yield whole("small_batch", filled(4, 0.02), "small batch, severe", model={"parameters": 25_000_000})
    yield whole("small_model", filled(8, 0.05), "small model", model={"parameters": 20_000}, fit={"batch_size": 4096})
    yield whole("no_tensor_cores", kernel_types(0.4, 0.0), "32-bit products, mild", fit={"mixed_precision": "float32"})
    yield whole("no_tensor_cores", kernel_types(0.9, 0.0), "32-bit products, severe")
    yield whole("memory_pressure", memory(0.97), "full allocator, mild")
    yield whole("memory_pressure", memory(0.999, retries=40), "full allocator, severe")
    yield whole("memory_limit", memory(0.95, limit=0.4), "low limit, mild")
    yield whole("memory_limit", memory(0.99, limit=0.02), "low limit, severe")
    yield whole("memory_growth", leaking(0.3), "tensors kept, slow")
    yield whole("memory_growth", leaking(2.0), "tensors kept, fast")
    yield whole(
        "out_of_memory",
        lambda run: run.steps(200, step_ms=30),
        "out of memory",
        memory={
            "out_of_memory": {"error": "ResourceExhaustedError", "gpu": 0, "step": 200, "where": "the train function"}
        },
    )
    yield whole(
        "cpu_fallback", lambda run: run.steps(500, step_ms=30), "CPU build", gpus=[H200 | {"used_by_framework": False}]
    )
    unused = [H200 | {"used_by_framework": False, "index": i} for i in range(4)]
    yield whole("cpu_fallback", lambda run: run.steps(500, step_ms=30), "CPU build, four GPUs", gpus=unused)

    def one_of_four(run: Generated) -> None:
        run.steps(1000, step_ms=10)
        for gpu in (1, 2, 3):
            run.gpu_value("utilization_pct", 15, 0, gpu=gpu)

    yield whole("gpus_unused", one_of_four, "one of four GPUs", gpus=[H200 | {"index": i} for i in range(4)])
    said = "the GPU is lost: it fell off the bus: no values from it since then"
    gone = {"source": "gpu0", "cure": "", "reason": said}
    yield whole("gpu_lost", lambda run: run.steps(1000, step_ms=10), "GPU lost", unavailable=[gone])

    def lost_for_a_while(before: int, after: int) -> Callable[[], tuple[Generated, Truth]]:
        def build() -> tuple[Generated, Truth]:
            run = Generated(seed=8, gpus=[H200])
            run.steps(before, step_ms=30)
            run.mark("gpu0/lost", "lost", 1)
            first, end = run.steps(N, step_ms=30)
            if after:
                run.mark("gpu0/lost", "lost", 0)
                run.steps(after, step_ms=30)
            return run, {"gpu_lost": [(first, end)]}

        return build

    def shapes_only() -> tuple[Generated, Truth]:
        """XLA compiles without a retrace: only the shape tells, nothing was timed as compiling."""
        run = Generated(seed=3, gpus=[H200])
        run.steps(N, step_ms=10, shape_id=0)
        first = run.step
        for shape in range(1, 40):
            run.steps(1, step_ms=260, shape_id=shape, gpu_share=0.05)
            run.steps(9, step_ms=10, shape_id=shape)
        bounds = (first, run.step - 9)
        run.steps(N, step_ms=10, shape_id=5)
        return run, {"recompilation": [bounds]}

    def uncorrected(before: int, more: int) -> Callable[[], tuple[Generated, Truth]]:
        """The counter stands at `before` since the last reboot; `more` come up half-way."""

        def build() -> tuple[Generated, Truth]:
            run = Generated(seed=8, gpus=[H200])
            for count in (before, before + more):
                start = run.now
                run.steps(N, step_ms=30)
                run.gpu_value("ecc_uncorrected", (run.now - start) / 1e9, count)
            return run, {"gpu_ecc_errors": None} if more else {}

        return build

    on_cpu = {
        "gpus": [],
        "framework": {"name": "tensorflow", "device": "cpu"},
        "fit": {"batch_size": 32, "mixed_precision": "mixed_float16"},
    }

    def at_rest(run: Generated) -> None:
        run.steps(N, step_ms=30)

    stored = {"machine": {"cpu": "EPYC", "cpu_float16": False}}
    yield whole("half_precision_cpu", at_rest, "float16 on a CPU that stores it", **on_cpu, **stored)
    computed = {"machine": {"cpu": "Xeon", "cpu_float16": True}}
    for name, facts in {
        "float16 on a CPU that computes it": {**on_cpu, **computed},
        "float16 on a CPU of unknown features": on_cpu,
        "bfloat16 on a CPU": {**on_cpu, **stored, "fit": {"mixed_precision": "mixed_bfloat16"}},
        "float16 on a TPU": {**on_cpu, **stored, "framework": {"name": "jax", "device": "tpu"}},
    }.items():
        yield whole(None, at_rest, name, kind="healthy", **facts)

    def spilled(system: str, factor: float, watts_then: float) -> Callable[[], tuple[Generated, Truth]]:
        def build() -> tuple[Generated, Truth]:
            run = Generated(seed=4, gpus=[H200], machine={"system": system})
            bounds = []
            for used, activity, watts, slower in (
                (0.7, 60, 600, 1.0),
                (0.99, 12, watts_then, factor),
                (0.7, 60, 600, 1.0),
            ):
                start, first = run.now, run.step
                run.steps(N, step_ms=30 * slower)
                bounds.append((first, run.step))
                seconds = (run.now - start) / 1e9
                run.gpu_value("memory_used_bytes", seconds, used * H200["memory_total_bytes"])
                run.gpu_value("memory_utilization_pct", seconds, activity)
                run.gpu_value("power_mw", seconds, 1000 * watts)
            judged = system != "Linux" and factor > 3 and watts_then < 300
            return run, {"memory_spill": [bounds[1]]} if judged else {}

        return build

    yield Case("memory spilled on Windows", spilled("Windows", 6, 220))
    yield Case("memory spilled on WSL", spilled("WSL", 4, 220))
    yield Case("memory full and slow on Linux", spilled("Linux", 6, 220), "healthy")
    yield Case("memory full, a little slower", spilled("Windows", 1.5, 220), "healthy")
    yield Case("memory full and slow at full power", spilled("Windows", 6, 590), "healthy")
    yield Case("uncorrected memory errors", uncorrected(2, 3))
    yield Case("memory errors from before the run", uncorrected(2, 0), "healthy")
    yield Case("new shapes, not timed", shapes_only)
    yield Case("GPU lost soon, and back", lost_for_a_while(10, 2 * N))
    yield Case("GPU lost and back", lost_for_a_while(N, N))
    yield Case("GPU lost in the end", lost_for_a_while(2 * N, 0))


def pairs() -> Iterator[Case]:
    """Two causes, one after the other or at the same time."""

    def after(run: Generated) -> Truth:
        run.steps(N, step_ms=10, wait_ms=20)
        run.steps(N, step_ms=10)
        run.steps(N, step_ms=10, callback_ms=20)
        return {"input_bound": [(0, N)], "host_stall": [(2 * N, 3 * N)]}

    def together(run: Generated) -> Truth:
        run.steps(N, step_ms=10)
        run.steps(N, step_ms=10, wait_ms=20, callback_ms=10)
        run.steps(N, step_ms=10)
        return {"input_bound": [(N, 2 * N)], "host_stall": [(N, 2 * N)]}

    def half(run: Generated) -> Truth:
        run.steps(N, step_ms=10, wait_ms=20)
        run.steps(N, step_ms=10, wait_ms=20, callback_ms=10)
        run.steps(N, step_ms=10, callback_ms=10)
        return {"input_bound": [(0, 2 * N)], "host_stall": [(N, 3 * N)]}

    def with_validation(run: Generated) -> Truth:
        for _ in range(4):
            with run.epoch():
                run.steps(200, step_ms=10, wait_ms=15)
                run.phase("validation", 4)
        return {"input_bound": [(0, 800)], "host_stall": [(0, 800)]}

    def slow_and_hot(run: Generated) -> Truth:
        for bad in (False, True, True):
            begin = run.now
            run.steps(N, step_ms=30, wait_ms=30 if bad and begin else 0)
            seconds = (run.now - begin) / 1e9
            run.gpu_value("sm_clock_mhz", seconds, 1000 if not bad else 1965)
            run.gpu_value("throttle_thermal_pct", seconds, 95 if not bad else 0)
        return {"throttled": [(0, N)], "input_bound": [(N, 3 * N)]}

    def shapes_and_input(run: Generated) -> Truth:
        compiles = np.zeros(N)
        compiles[::8] = 150
        run.steps(N, step_ms=10, compile_ms=compiles)
        run.steps(N, step_ms=10, wait_ms=30)
        return {"recompilation": [(0, N)], "input_bound": [(N, 2 * N)]}

    def copies_and_launches(run: Generated) -> Truth:
        traced(0.3, 500, copy_h2d=0.3, idle_launch=0.35)(run)
        return {"transfer_bound": None, "launch_bound": None}

    def fallback_and_input(run: Generated) -> Truth:
        run.steps(N, step_ms=30)
        run.steps(N, step_ms=30, wait_ms=60)
        return {"cpu_fallback": None, "input_bound": [(N, 2 * N)]}

    for build, gpus in (
        (after, [H200]),
        (together, [H200]),
        (half, [H200]),
        (with_validation, [H200]),
        (slow_and_hot, [H200]),
        (shapes_and_input, [H200]),
        (copies_and_launches, [H200]),
        (fallback_and_input, [H200 | {"used_by_framework": False}]),
    ):

        def make(build=build, gpus=gpus) -> tuple[Generated, Truth]:
            run = Generated(seed=9, gpus=gpus, noise=0.1)
            return run, build(run)

        yield Case(f"pair: {build.__name__}", make, "pair")
