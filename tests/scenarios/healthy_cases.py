"""Healthy and borderline runs: nothing to mend, however they look."""

from collections.abc import Callable, Iterator

import numpy as np
from generated_runs import GPU, MS, Generated
from scenario_cases import H200, Case, epochs, filled, kernel_types, memory, synced, traced, whole


def healthy() -> Iterator[Case]:
    """Nothing to mend, however it looks."""

    def case(name: str, build: Callable[[Generated], object], **more) -> Case:
        return whole(None, build, name, kind="healthy", **more)

    def steps(**kwargs):
        return lambda run: run.steps(1500, **kwargs)

    def outlier(part: str, ms: float):
        values = np.zeros(1500)
        values[700] = ms
        return steps(step_ms=10, **{part: values})

    def warm_up(run):
        run.steps(1, step_ms=10, wait_ms=3000, compile_ms=8000)
        run.steps(12, step_ms=30, wait_ms=20)
        run.steps(1500, step_ms=10)

    def first_compilations(run):
        values = np.zeros(1500)
        values[[0, 1, 749]] = 2000, 1500, 900
        run.steps(1500, step_ms=10, compile_ms=values)

    def capped(run):
        run.steps(1500, step_ms=20)
        run.gpu_value("throttle_power_pct", 40, 100)
        run.gpu_value("sm_clock_mhz", 40, 1700)

    def capped_at_full_speed(run):
        run.steps(1500, step_ms=20)
        run.gpu_value("throttle_power_pct", 40, 60)
        run.gpu_value("sm_clock_mhz", 40, 1950)

    def idle_link(run):
        run.steps(1500, step_ms=20)
        run.gpu_value("pcie_generation", 40, 1)
        run.gpu_value("pcie_width", 40, 16)
        run.gpu_value("pcie_rx_bytes_per_s", 40, 4e7)

    def idle_clock(run):
        run.steps(700, step_ms=20)
        run.gpu_value("sm_clock_mhz", 14, 1965)
        run.gpu_value("throttle_thermal_pct", 14, 0)
        run.phase("callback", 4, name="Upload.on_epoch_end")
        run.gpu_value("sm_clock_mhz", 4, 345)
        run.gpu_value("throttle_thermal_pct", 4, 0)
        run.steps(700, step_ms=20)
        run.gpu_value("sm_clock_mhz", 14, 1965)
        run.gpu_value("throttle_thermal_pct", 14, 0)

    def hot_but_fast(run):
        run.steps(1500, step_ms=20)
        run.gpu_value("temperature_c", 40, 88)
        run.gpu_value("throttle_thermal_pct", 40, 3)
        run.gpu_value("sm_clock_mhz", 40, 1950)

    def missing_samples(run):
        run.steps(1500, step_ms=10)
        run.drop_samples = 0.4

    def others_memory(run):
        run.steps(1500, step_ms=20)
        run.gpu_value("memory_other_bytes", 40, 40e9)
        run.gpu_value("utilization_other_pct", 40, 1)

    def taken_vram(run):
        run.steps(1500, step_ms=10)
        run.gpu_value("memory_used_bytes", 20, 0.98 * GPU["memory_total_bytes"])

    def slightly_uneven(run):
        run.steps(1500, step_ms=20)
        run.gpu_value("utilization_pct", 40, 85, gpu=1)

    def hidden_delay(run):
        run.steps(1500, step_ms=40)
        run._steps[-1]["input_get_ns"] = run._steps[-1]["input_get_ns"] + 30 * MS

    def quick_epochs(run):
        for _ in range(30):
            with run.epoch():
                waits = np.zeros(100)
                waits[0] = 25
                run.steps(100, step_ms=10, wait_ms=waits)
                run.phase("validation", 0.12, share=0.7)
                run.phase("checkpoint", 0.02, name="ModelCheckpoint.on_epoch_end")

    def lengths(run):
        for shape in range(60):
            run.steps(30, step_ms=6 + 0.2 * shape, shape_id=shape)

    yield case("longer and longer inputs", lengths)
    yield case("plain", steps(step_ms=10))
    yield case("plain, no GPU", steps(step_ms=10), gpus=[])
    yield case("very noisy steps", steps(step_ms=10), noise=0.6)
    yield case("short steps", steps(step_ms=0.6))
    yield case("long steps", lambda run: run.steps(60, step_ms=900))
    yield case("GPU-bound with 3 % wait", steps(step_ms=20, wait_ms=0.6))
    yield case("3 % wait, noisy", steps(step_ms=20, wait_ms=0.6), noise=0.5)
    yield case("waits behind a busy GPU", steps(step_ms=10, wait_ms=5, gpu_in_wait=1.0))
    yield case("delay hidden by prefetch", hidden_delay)
    yield case("warm-up only", warm_up)
    yield case("first compilations", first_compilations)
    yield case("one slow batch", outlier("wait_ms", 4000))
    yield case("one long checkpoint in a step", outlier("callback_ms", 5000))
    yield case("one long checkpoint", epochs(1, 5.0, "checkpoint", "ModelCheckpoint.on_epoch_end", steps=1000))
    yield case("short validation", epochs(6, 0.3, gpu_share=0.5))
    yield case("validation that fills the GPU", epochs(6, 2.0, gpu_share=0.97))
    yield case("quick epochs", quick_epochs)
    yield case("power-capped at its own limit", capped)
    yield case("power-capped, full speed", capped_at_full_speed, gpus=[H200 | {"power_limit_mw": 500_000}])
    yield case("idle link state", idle_link)
    yield case("idle clock in a pause", idle_clock)
    yield case("hot but fast", hot_but_fast)
    yield case("missing samples", missing_samples)
    yield case("another user's memory", others_memory)
    yield case("TensorFlow took all VRAM", taken_vram)
    yield case("full pool, no limit hit", memory(0.8))
    yield case("slightly uneven GPUs", slightly_uneven, gpus=[H200, H200 | {"index": 1}])
    yield case(
        "rank of a job with other GPUs",
        lambda run: (run.steps(1500, step_ms=10), run.gpu_value("utilization_pct", 20, 0, gpu=1)),
        gpus=[H200, H200 | {"index": 1, "used_by_framework": False}],
        world_size=2,
    )
    yield case("well traced", traced(0.95, copy_h2d=0.03, idle_launch=0.03, idle_sync=0.02, collective=0.05))
    yield case("tensor cores in use", kernel_types(0.05, 0.7))
    yield case("kernels nobody knows", kernel_types(0.25, 0.0, 0.6))
    yield case("full GPU", filled(75, 0.8), model={"parameters": 300_000_000})
    yield case("half-full GPU", filled(45, 0.2), model={"parameters": 30_000_000})
    yield case("big batch, full memory", filled(25, 0.85), model={"parameters": 30_000_000})
    yield case("synchronised but busy", synced(0.6, 0.9))
    yield case("long steps, synchronised", synced(0.6, 0.6, step_ms=60))
