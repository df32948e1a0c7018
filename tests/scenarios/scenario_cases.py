"""Labelled runs: what was injected, where, and nothing else."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from generated_runs import GPU, Generated
from scoring import Truth


@dataclass(frozen=True)
class Case:
    """A run and the causes in it; an empty truth is a healthy or borderline run."""

    name: str
    build: Callable[[], tuple[Generated, Truth]]


N = 400  # steps of a part of a run
H200 = GPU | {
    "sm_clock_max_mhz": 1980,
    "power_limit_mw": 700_000,
    "power_default_mw": 700_000,
    "compute_capability": "9.0",
}


def whole(
    cause: str | None, build: Callable[[Generated], None], name: str, gpus: list[dict] | None = None, **facts
) -> Case:
    """A case that holds for the whole run (or a healthy one, with `cause=None`)."""

    def make() -> tuple[Generated, Truth]:
        run = Generated(seed=7, gpus=[H200] if gpus is None else gpus, noise=0.1, **facts)
        build(run)
        return run, {} if cause is None else {cause: None}

    return Case(name, make)


def plain(run: Generated) -> None:
    run.steps(N, step_ms=30)


def memory_cases() -> Iterator[Case]:
    """The allocator is full, limited, grows, or gave up; the driver moves memory to the host."""
    total = GPU["memory_total_bytes"]

    def memory(used: float, limit: float = 0.92, retries: int = 0):
        def build(run: Generated) -> None:
            run.steps(1000, step_ms=10)
            run.gpu_value("allocator_used_bytes", 15, used * limit * total)
            run.gpu_value("allocator_peak_bytes", 15, used * limit * total)
            run.gpu_value("allocator_limit_bytes", 15, limit * total)
            run.gpu_value("memory_used_bytes", 15, 0.95 * total)
            run.gpu_value("allocator_retries", 15, retries)

        return build

    def leaking(run: Generated) -> None:
        for epoch in range(10):
            with run.epoch():
                for part in range(5):
                    began = run.now
                    run.steps(40, step_ms=20)
                    held = (8 + 0.3 * (epoch + part / 5)) * 2**30
                    run.gpu_value("allocator_used_bytes", (run.now - began) / 1e9, held)

    yield whole("memory_pressure", memory(0.97), "full allocator, mild")
    yield whole("memory_pressure", memory(0.999, retries=40), "full allocator, severe")
    yield whole(None, memory(0.8), "full pool, no limit hit")
    yield whole("memory_limit", memory(0.95, limit=0.4), "low limit, mild")
    yield whole("memory_growth", leaking, "tensors kept, slow")
    error = {"error": "ResourceExhaustedError", "gpu": 0, "step": 200, "where": "the train function"}
    yield whole("out_of_memory", plain, "out of memory", memory={"out_of_memory": error})

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
                run.gpu_value("memory_used_bytes", seconds, used * total)
                run.gpu_value("memory_utilization_pct", seconds, activity)
                run.gpu_value("power_mw", seconds, 1000 * watts)
            judged = system != "Linux" and factor > 3 and watts_then < 300
            return run, {"memory_spill": [bounds[1]]} if judged else {}

        return build

    yield Case("memory spilled on Windows", spilled("Windows", 6, 220))
    yield Case("memory spilled on WSL", spilled("WSL", 4, 220))
    yield Case("memory full and slow on Linux", spilled("Linux", 6, 220))
    yield Case("memory full, a little slower", spilled("Windows", 1.5, 220))
    yield Case("memory full and slow at full power", spilled("Windows", 6, 590))


def gpu_cases() -> Iterator[Case]:
    """GPUs that are small in use, unused, lost or faulty; half precision without one."""

    def filled(sm: float, peak: float):
        def build(run: Generated) -> None:
            run.steps(2000, step_ms=10)
            run.gpu_value("sm_active_pct", 30, sm)
            run.gpu_value("pcie_rx_bytes_per_s", 30, 2e8)
            run.gpu_value("pcie_tx_bytes_per_s", 30, 3e7)
            run.gpu_value("allocator_peak_bytes", 30, peak * GPU["memory_total_bytes"])

        return build

    def tiny_kernels(run: Generated) -> None:
        run.steps(300, step_ms=10, gpu_share=0.5)
        run.trace(8, 10, kernels=400, idle_launch=0.25)
        run.steps(300, step_ms=10, gpu_share=0.5)

    def one_of_four(run: Generated) -> None:
        run.steps(1000, step_ms=10)
        for gpu in (1, 2, 3):
            run.gpu_value("utilization_pct", 15, 0, gpu=gpu)

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

    large = {"parameters": 30_000_000}
    yield whole("small_batch", filled(25, 0.3), "small batch, mild", model=large)
    yield whole("small_model", filled(8, 0.05), "small model", model={"parameters": 20_000}, fit={"batch_size": 4096})
    yield whole(None, filled(25, 0.85), "big batch, full memory", model=large)
    yield whole(None, filled(45, 0.2), "half-full GPU", model=large)
    yield whole("launch_bound", tiny_kernels, "short kernels, mild")
    unused = [H200 | {"used_by_framework": False, "index": i} for i in range(4)]
    yield whole("cpu_fallback", plain, "CPU build", gpus=unused[:1])
    yield whole("cpu_fallback", plain, "CPU build, four GPUs", gpus=unused)
    yield whole("gpus_unused", one_of_four, "one of four GPUs", gpus=[H200 | {"index": i} for i in range(4)])
    said = "the GPU is lost: it fell off the bus: no values from it since then"
    yield whole("gpu_lost", plain, "GPU lost", unavailable=[{"source": "gpu0", "cure": "", "reason": said}])
    yield Case("GPU lost soon, and back", lost_for_a_while(10, 2 * N))
    yield Case("GPU lost and back", lost_for_a_while(N, N))
    yield Case("GPU lost in the end", lost_for_a_while(2 * N, 0))
    yield Case("uncorrected memory errors", uncorrected(2, 3))
    yield Case("memory errors from before the run", uncorrected(2, 0))

    on_cpu = {
        "gpus": [],
        "framework": {"name": "tensorflow", "device": "cpu"},
        "fit": {"batch_size": 32, "mixed_precision": "mixed_float16"},
    }
    stored = {"machine": {"cpu": "EPYC", "cpu_float16": False}}
    yield whole("half_precision_cpu", plain, "float16 on a CPU that stores it", **on_cpu, **stored)
    computed = {"machine": {"cpu": "Xeon", "cpu_float16": True}}
    for name, facts in {
        "float16 on a CPU that computes it": {**on_cpu, **computed},
        "float16 on a CPU of unknown features": on_cpu,
        "bfloat16 on a CPU": {**on_cpu, **stored, "fit": {"mixed_precision": "mixed_bfloat16"}},
        "float16 on a TPU": {**on_cpu, **stored, "framework": {"name": "jax", "device": "tpu"}},
    }.items():
        yield whole(None, plain, name, **facts)


def step_cases() -> Iterator[Case]:
    """What holds single steps up, in a part of a run, alone and beside other causes."""

    def shapes_only(run: Generated) -> Truth:
        """XLA compiles without a retrace: only the shape tells, nothing was timed as compiling."""
        run.steps(N, step_ms=10, shape_id=0)
        first = run.step
        for shape in range(1, 40):
            run.steps(1, step_ms=260, shape_id=shape, gpu_share=0.05)
            run.steps(9, step_ms=10, shape_id=shape)
        bounds = (first, run.step - 9)
        run.steps(N, step_ms=10, shape_id=5)
        return {"recompilation": [bounds]}

    def wait_and_hook(run: Generated) -> Truth:
        run.steps(N, step_ms=10, wait_ms=20)
        run.steps(N, step_ms=10, wait_ms=20, callback_ms=10)
        run.steps(N, step_ms=10, callback_ms=10)
        return {"input_bound": [(0, 2 * N)], "host_stall": [(N, 3 * N)]}

    def wait_and_validation(run: Generated) -> Truth:
        for _ in range(4):
            with run.epoch():
                run.steps(200, step_ms=10, wait_ms=15)
                run.phase("validation", 4)
        return {"input_bound": [(0, 800)], "host_stall": [(0, 800)]}

    def wait_and_no_gpu(run: Generated) -> Truth:
        run.facts["gpus"] = [H200 | {"used_by_framework": False}]
        run.steps(N, step_ms=30)
        run.steps(N, step_ms=30, wait_ms=60)
        return {"cpu_fallback": None, "input_bound": [(N, 2 * N)]}

    for build in (shapes_only, wait_and_hook, wait_and_validation, wait_and_no_gpu):

        def make(build=build) -> tuple[Generated, Truth]:
            run = Generated(seed=9, gpus=[H200], noise=0.1)
            return run, build(run)

        yield Case(build.__name__.replace("_", " "), make)
