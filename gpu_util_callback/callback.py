"""GpuUtilCallback: records where the time of a Keras training run goes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

try:
    import keras
except ModuleNotFoundError as error:
    if error.name != "keras":  # Keras is there, and its backend is not
        raise
    raise ModuleNotFoundError(
        "GpuUtilCallback needs Keras: pip install keras. Without Keras, use GpuUtilMonitor.", name="keras"
    ) from None

from gpu_util_callback.recorder.fit import KerasSession, leave_out
from gpu_util_callback.recorder.messages import note
from gpu_util_callback.recorder.settings import checked_settings

if TYPE_CHECKING:
    from gpu_util_callback.recorder.recorder import Recorder
    from gpu_util_callback.report.notebook import Summary

__all__ = ["GpuUtilCallback"]


class GpuUtilCallback(keras.callbacks.Callback):
    """Callback that records why the GPU is idle in `fit`, for TensorBoard's GPU Utilization tab.

    Per training step it measures the wall time, how long the step waited for its batch, for
    compilation, for the GPU and for other callbacks; in the background it samples the GPUs.
    It never stops or changes training: whatever cannot be measured is left out and named.

    Args:
        log_dir: Where the recording and the scalars go: a TensorBoard run, as for
            `keras.callbacks.TensorBoard`. Any URL that fsspec understands works too. All workers
            of a job share one; under Ray give a whole path, since each process has its own folder:
            a trial of Ray Tune records into a run of its name below it.
        sample_hz: GPU samples per second, above 0 and up to 100.
        scalar_freq: Steps per point of the scalars, or `"auto"`: every step at first, then ever
            fewer as the run grows.
        trace: `"auto"` takes short profiler windows where they fit into `overhead_budget` (on
            PyTorch none); `"off"` takes none; step ranges such as `[(100, 105)]` or a
            `TraceSchedule` name the steps to take, counted from 0 over all epochs.
        overhead_budget: Share of the run's time that profiler windows may cost, from 0 to 1.
        thresholds: Other limits for the diagnosis, e.g. `{"input_bound": {"wait_pct": 10}}`.
        job: A name that all workers of one job share, where it cannot be detected.
        redact: Keep host and user names, home and working folder, process ids and other users'
            processes out of the recording and of all messages. Of an error, its type and first
            words stay.
        report: Print a line when a cause is found, and a verdict of two lines at the end.
        logs: Add `input_wait_pct`, `gpu_utilization_pct`, `samples_per_s` and `mfu_pct` (model
            FLOPs utilization) of each epoch to its `logs`, before any other callback gets them: for
            `History`, `CSVLogger`, the callbacks of W&B and MLflow, or a
            `keras_tuner.Objective("samples_per_s", "max")`. They cover the epoch's training,
            without validation and the callbacks at its end. One that cannot be measured is left
            out, or NaN where an earlier epoch of the fit had it.
        flops_per_sample: FLOPs of training on one sample, forward and backward, two a multiply-add:
            what MFU rests on, where it cannot be counted or should be another figure. Without it
            the matrix products and convolutions of the model's own training step are counted.
        memory_stacks: Keep who held the memory beside the post-mortem of an out-of-memory error:
            JAX's device memory profile, or PyTorch's memory snapshot, for which PyTorch notes the
            stack of each allocation on a GPU while it trains. Not with `redact`.
        on_stuck: A function that is called with a dictionary when no step has come for long
            (`"over": False`), and when steps go on (`True`); `"text"` is the line that is printed.
            On a thread of ours: it may take its time, and an error in it is only logged.
        on_finding: A function that is called likewise, once for each cause that is established
            while training continues; `"text"` is its line, `"finding"` that of the report.

    Raises:
        TypeError, ValueError: an argument cannot be used. Nothing is raised later on.

    Example:

    ```python
    model.fit(dataset, epochs=10, callbacks=[GpuUtilCallback("logs")])
    ```

    Short fits that follow each other (reinforcement learning, folds, active learning) go on in one
    recording, in which each is marked: make the callback once, outside of the loop. A fit longer
    than 10 s, or later than a minute after the last one, is a recording of its own.

    ```python
    callback = GpuUtilCallback("logs")
    for episode in episodes:
        model.fit(*episode, callbacks=[callback])
    ```

    Under Ray, it goes where the training does: into Ray Tune's trial, or into every worker of Ray
    Train (`GpuUtilMonitor` likewise). Rank, workers and the trial's name are detected.

    ```python
    def train_loop_per_worker(config):
        ...
        model.fit(dataset, callbacks=[GpuUtilCallback("/shared/logs/run1")])

    TorchTrainer(train_loop_per_worker, scaling_config=ScalingConfig(num_workers=2)).fit()
    ```
    """

    # Otherwise Keras on JAX and torch calls every callback synchronously, waiting for the device.
    async_safe = True

    # `tf_keras` (Keras 2) expects this of a callback: its own base class has it, Keras 3's has not.
    _supports_tf_logs = True
    _chief_worker_only = None

    def _implements_train_batch_hooks(self) -> bool:
        return True

    _implements_test_batch_hooks = _implements_predict_batch_hooks = _implements_train_batch_hooks

    def __init__(
        self,
        log_dir: str | os.PathLike = "logs",
        *,
        sample_hz: float = 10,
        scalar_freq: int | str = "auto",
        trace: object = "auto",
        overhead_budget: float = 0.01,
        thresholds: dict | None = None,
        job: str | None = None,
        redact: bool = False,
        report: bool = True,
        logs: bool = False,
        flops_per_sample: float | None = None,
        memory_stacks: bool = False,
        on_stuck: Callable[[dict], object] | None = None,
        on_finding: Callable[[dict], object] | None = None,
    ):
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        self._settings = checked_settings(**arguments)
        self._session: KerasSession | None = None  # of the fit that is recorded
        self._newest: Recorder | None = None  # of the newest fit that is over, which the next one may continue
        self._given_to_fit = False

    def __getstate__(self):
        """Return the state without a fit, also when copied or pickled in the middle of one."""
        state = {name: value for name, value in vars(self).items() if not name.startswith("on_")}
        return state | {"_session": None, "_newest": None}

    def on_train_begin(self, logs=None):
        """Begin to record the fit, unless this callback records another one that is still under way."""
        self._given_to_fit = True
        before = self._session
        if before is not None and before.begun_in_this_fit():
            note("this fit lists the same GpuUtilCallback twice")
            return
        if before is not None and before.goes_on():
            note("this fit is not recorded: its GpuUtilCallback records another one; give each fit its own")
            leave_out(self)
            return
        session = self._session = KerasSession(self, self._settings, self._newest)
        try:
            session.begin(self._model, self.params, keras.backend.backend())
        except Exception as error:
            self._session = None
            kind = type(error).__name__
            note(f"this fit is not recorded ({kind}: {error}); training continues")

    # No hooks of training batches: `steps.callback_list` times those of the whole list.

    def on_epoch_begin(self, epoch, logs=None):
        self._pass_on("epoch_begin", epoch)

    def on_epoch_end(self, epoch, logs=None):
        self._pass_on("epoch_end")

    def on_test_begin(self, logs=None):
        self._say_not_recorded("evaluate")
        self._pass_on("test_begin")

    def on_test_batch_begin(self, batch, logs=None):
        self._pass_on("test_batch_begin")

    def on_test_end(self, logs=None):
        self._pass_on("test_end")

    def on_predict_begin(self, logs=None):
        self._say_not_recorded("predict")

    def on_train_end(self, logs=None):
        session = self._session
        self._pass_on("end")
        self._session = None
        self._newest = session.recorder if session is not None else None

    def summary(self) -> Summary:
        """Return the results of the newest fit as a flat dictionary of numbers and texts.

        See `gpu_util_callback.report.notebook.Summary` for its keys; they are always the same, and
        what is unknown is None. Nothing is raised: without a recording everything is None, and
        `verdict` says why. A notebook shows the report.

        Example:

        ```python
        model.fit(dataset, callbacks=[callback])
        mlflow.log_metric("input_wait_pct", callback.summary()["input_wait_pct"])
        ```
        """
        from gpu_util_callback.report.notebook import Summary

        session = self._session
        recorder = session.recorder if session is not None else self._newest
        return Summary(None) if recorder is None else recorder.summary()

    def try_fix(
        self,
        model: keras.Model,
        x: object,
        *,
        steps: int = 200,
        seconds: float = 5.0,
        pairs: tuple[int, int] = (4, 10),
        **fit: object,
    ) -> None:
        """Measure here what the first fix of the newest fit gains, as `gpu-util try` does in processes.

        Copies of the model train in turns without and with the first change of a finding that needs no other
        process. The outcome is printed, and stored beside the recording. The model, its optimizer, the input's
        order and the random numbers of Python, NumPy, Keras and its backend stay as they are; what the input's own
        Python code does, it does as in any epoch. Nothing is raised: where nothing can be tried, a line says why.

        Args:
            model: as it was compiled for `fit`.
            x: what `fit` got, or a function that makes it anew: changes within a pipeline need that.
            steps: timed in each turn, after some to warm up.
            seconds: after which fewer are enough.
            pairs: of turns, the fewest and the most.
            **fit: further arguments that `fit` got, such as `y` and `batch_size`; validation is left out.

        Example:

        ```python
        model.fit(dataset, epochs=10, callbacks=[callback])
        callback.try_fix(model, dataset)
        ```
        """
        from gpu_util_callback.job import program_to_try
        from gpu_util_callback.report.notebook import try_fix

        training = {name: value for name, value in fit.items() if not name.startswith("validation")}
        program = None if self._settings.redact else program_to_try(self._settings.log_dir)
        plan = {"steps": steps, "seconds": seconds}
        try_fix(self.summary(), program, model, x, training, plan, pairs)

    def _say_not_recorded(self, method: str) -> None:
        """Print once, where only `evaluate` or `predict` get the callback, that `fit` is what is recorded."""
        if not self._given_to_fit:
            self._given_to_fit = True
            note(f"{method} is not recorded: GpuUtilCallback records fit; GpuUtilMonitor records any loop")

    def _pass_on(self, hook: str, *args: object) -> None:
        """Call a hook of the session. An error of ours ends the recording, never the training."""
        session = self._session
        if session is None:
            return
        try:
            getattr(session, hook)(*args)
        except Exception as error:
            self._give_up(session, error)

    def _give_up(self, session: KerasSession, error: Exception) -> None:
        """End a recording that failed, and say so."""
        self._session = None
        session.give_up()
        note(f"recording stopped ({type(error).__name__}: {error}); training continues")
