"""Advice on waits at the start of epochs: workers start, buffers fill, the input is set up."""

from dataclasses import dataclass

from gpu_util_callback.diagnosis.advice.table import Entry
from gpu_util_callback.diagnosis.evidence.run_evidence import Run

_TRAIN_ON_BATCH = """with GpuUtilMonitor("logs") as monitor:
    for x, y in batches:
        with monitor.step():
            model.train_on_batch(x, y)"""

_GATHERED = """features, labels = tf.constant(x), tf.constant(y)
rows = tf.data.Dataset.range(len(x)).shuffle(len(x)).batch({batch_size})
data = rows.map(lambda i: (tf.gather(features, i), tf.gather(labels, i)), num_parallel_calls=2)
options = tf.data.Options()
options.autotune.enabled = False
data = data.prefetch(2).with_options(options)  # model.fit(data, ...)"""


@dataclass(frozen=True)
class SetUp:
    """Set-up of the input for each epoch.

    Attributes:
        fact: the observation, as a sentence.
        saves: share of the loss that is saved where it is done once.
    """

    run: Run
    fact: str
    saves: float

    @property
    def kind(self) -> str:
        """Kind of the input, in lower case."""
        return self.run.input_kind

    @property
    def each_fit(self) -> bool:
        """True if most epochs are a fit of their own, of a series."""
        epochs = self.run.phases.of("epoch").get("")
        return epochs is not None and 2 * int(self.run.manifest.get("fits", 1)) > epochs.count

    @property
    def starts_workers(self) -> bool | None:
        """True if a DataLoader starts its workers in every epoch; None = not known."""
        fit = self.run.fit
        if "dataloader" in self.kind:
            workers, are_persistent = fit.get("input_workers"), fit.get("input_persistent_workers")
            return None if workers is None else workers > 0 and not are_persistent
        return None if self.run.framework == "torch" and not self.kind else False

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch; None = not known."""
        return self.run.fit.get("batch_size")

    @property
    def of_two_arrays(self) -> bool:
        """True if TensorFlow reads x and y, two arrays that `fit` shuffles and nothing else."""
        fit = self.run.fit
        return (
            (self.kind, self.run.framework) == ("numpy", "tensorflow")
            and fit.get("input_beside") == ["y"]
            and len({array.get("rows") for array in fit.get("input_first", ())}) == 1
            and len(fit["input_first"]) == 2
            and self.batch_size is not None
            and not fit.get("validation_split")  # `fit` splits arrays only
            and any(step.get("random") for step in fit.get("input_maps", ()))
        )


SET_UP = (
    Entry(
        "one fit",
        when=lambda epoch: epoch.each_fit,
        says="{fact} Every call of fit begins with that.",
        asks="Can one call train on more batches, or a loop of your own train on each?",
        remedy="Do that",
        code=_TRAIN_ON_BATCH,
        saves=lambda epoch: epoch.saves,
        wrong_if="callbacks or the model need a fit of their own each time",
    ),
    Entry(
        "persistent workers",
        when=lambda epoch: epoch.starts_workers is not False,
        says=lambda epoch: (
            f"{epoch.fact} The DataLoader starts its workers for every epoch." if epoch.starts_workers else epoch.fact
        ),
        asks=lambda epoch: (
            "Does the dataset stay as it is between the epochs?"
            if epoch.starts_workers
            else "Does a DataLoader start worker processes for every epoch, and its dataset stay as it is?"
        ),
        remedy="Keep them",
        code="loader = DataLoader(dataset, ..., persistent_workers=True)",
        saves=lambda epoch: epoch.saves,
        wrong_if="the workers are kept already, or the program changes the dataset, which kept workers do not see",
    ),
    Entry(
        "no autotuning",
        # With it an iterator of short epochs took up to 300 ms to end, and 14 ms without it, measured.
        when=lambda epoch: epoch.kind == "tf.data" and epoch.run.fit.get("input_autotune") is not False,
        says="{fact} That is also the end of the last epoch's iterator, which tf.data's autotuning holds up at times.",
        asks="Is an epoch shorter without autotuning?",
        remedy="Switch it off",
        code="options = tf.data.Options()\noptions.autotune.enabled = False\nds = ds.with_options(options)",
        saves=lambda epoch: epoch.saves / 2,  # the set-up also makes the first batch
        wrong_if="the pipeline needs autotuning to keep up, or the set-up is its own first batch",
    ),
    Entry(
        "processes of a PyDataset",
        when=lambda epoch: "pydataset" in epoch.kind and epoch.run.fit.get("input_processes"),
        says="{fact} Keras starts the worker processes for every epoch.",
        asks="Does __getitem__ mostly wait, for files or a network?",
        remedy="Use threads, which start at once",
        code="dataset.use_multiprocessing = False  # your PyDataset, before model.fit(dataset)",
        saves=lambda epoch: epoch.saves,
        wrong_if="__getitem__ computes: threads share Python's one lock",
    ),
    Entry(
        "PyDataset",
        when=lambda epoch: "pydataset" in epoch.kind,
        says="{fact} Keras restarts a PyDataset every epoch: its on_epoch_end runs and its first "
        "batches are made while training waits. Make both cheaper, or the epochs longer.",
    ),
    Entry(
        "arrays without autotuning",
        # 30 epochs of 32 steps took 6.9 to 7.7 s, so 4.7 to 7.2 s; the first batch of each 64 and 4 ms, measured.
        when=lambda epoch: epoch.of_two_arrays,
        says="{fact} Keras makes a tf.data pipeline of the arrays, whose autotuning holds up the end of an epoch's "
        "iterator at times.",
        asks="Is an epoch shorter with a pipeline without autotuning?",
        remedy="Give it to fit in place of x, y and batch_size",
        code=_GATHERED,
        changes="the order of the samples, and so the weights",
        saves=lambda epoch: epoch.saves / 2,  # the set-up also makes the first batch
        wrong_if="fit splits the arrays for validation, or weighs their samples",
    ),
    Entry(
        "arrays",
        when=lambda epoch: epoch.kind == "numpy",
        says="{fact} Keras sets up the input of arrays for every epoch. Longer epochs need it less often.",
    ),
    Entry("anything", when=lambda epoch: True, says="{fact} Longer epochs need it less often."),
)
