"""Trains one scenario in this process and answers what came out: `python -m evidence.child`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from evidence.job import Job, NoGpu, run_as_process


def run(job: Job) -> dict[str, Any]:
    """Train, record, read the recording; what `findings.read` returns, and the versions."""
    import keras

    from evidence import findings
    from evidence.device import Device
    from evidence.scenarios import named
    from evidence.workloads import WORKLOADS
    from gpu_util_callback import GpuUtilCallback

    scenario = named(job.scenario)
    keras.utils.set_random_seed(3)
    device = Device(scenario.whole_memory)
    play_or_require_gpu(job, device)
    workload = WORKLOADS[scenario.workload](device)
    traced = scenario.trace and job.windows
    with workload.beside():
        step_s = step_seconds(workload)
        delay_s = workload.delay(step_s)
        whole_s = max(step_s + delay_s, 1e-4)
        if workload.validation is not None:
            epoch_s = job.seconds / 2 / workload.epochs
        else:
            epoch_s = job.seconds / workload.epochs
        steps = int(min(50_000, max(40, epoch_s / whole_s)))
        windows = _windows(steps * workload.epochs, workload.window_steps)
        enough = []
        if workload.epochs == 1:  # the estimate may be off: the time decides
            enough.append(_until(job.seconds, windows[-1][1] + 5))
            steps *= 4
        callback = GpuUtilCallback(
            job.log_dir,
            trace=windows if traced else "auto" if job.windows else "off",
            job=f"gpu-evidence {job.backend} {job.scenario}",
            redact=bool(job.keep),
            report=False,
        )
        validation = {}
        if workload.validation is not None:
            count, wait_s = workload.validation(steps * whole_s)
            validation["validation_data"] = workload.batches(count, wait_s)
            workload.model.evaluate(workload.batches(2), verbose=0)  # compiled before
        print(f"{device.name}: a step takes {1e3 * step_s:.2f} ms; up to {steps} steps", flush=True)
        workload.model.fit(
            workload.batches(steps, delay_s),
            epochs=workload.epochs,
            shuffle=False,
            verbose=0,
            callbacks=[callback, *enough],
            **validation,
        )
    found = findings.read(job.log_dir)
    found["device"] = {"name": device.name, "compute_capability": device.capability}
    found["keras"] = keras.__version__
    if job.keep:
        from evidence.keep import keep

        found["kept_bytes"] = keep(Path(job.log_dir), Path(job.keep))
    return found


def play_or_require_gpu(job: Job, device: Any) -> None:
    """Give the framework the stand-in's GPU; without a stand-in, NoGpu where it has none."""
    if job.stand_in:
        from evidence.standin_trace import inject

        inject(job.backend, job.scenario)
    elif not device.is_gpu:
        raise NoGpu(f"{job.backend} sees no GPU here: `gpu-util doctor` says why")


def step_seconds(workload: Any, least_s: float = 0.5) -> float:
    """What a step takes without any delay: compiled, and with the device waited for at the end."""
    model = workload.model
    model.fit(workload.batches(4), shuffle=False, verbose=0)
    steps, took = 4, 0.0
    while took < least_s and steps < 20_000:
        steps *= 2 if took else 1
        began = time.perf_counter()
        model.fit(workload.batches(steps), shuffle=False, verbose=0)
        took = time.perf_counter() - began
        if took and took < least_s / 4:
            steps = int(steps * min(16, least_s / took / 2))
    return took / steps


def _until(seconds: float, steps: int) -> Any:
    """A callback that ends the fit after so many seconds, but not before so many steps."""
    import keras

    class Until(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.began, self.count = time.perf_counter(), 0

        def on_train_batch_begin(self, batch, logs=None):
            self.count += 1
            if self.count > steps and time.perf_counter() - self.began > seconds:
                self.model.stop_training = True

    return Until()


def _windows(steps: int, length: int) -> list[tuple[int, int]]:
    return [(at, at + length) for at in (int(0.3 * steps), int(0.65 * steps))]


if __name__ == "__main__":
    run_as_process(run)
