"""Advice on a slow input: which table judges which kind of input."""

from gpu_util_callback.diagnosis.advice import loaders, loops, tf_data
from gpu_util_callback.diagnosis.advice.input_wait import InputWait
from gpu_util_callback.diagnosis.advice.table import Entry, choose, first_holding
from gpu_util_callback.diagnosis.rule import Advice

# Words in the kind of an input of `fit`, and the table for it.
_OF_FIT = (
    ("dataloader", loaders.DATA_LOADER),
    ("pydataset", loaders.PY_DATASET),
    ("sequence", loaders.PY_DATASET),
    ("generator", loaders.GENERATOR),
    ("numpy", loaders.ARRAYS),
    ("grain", loaders.GRAIN),
)
# Nothing shows whether the loop wants the first batch of each pass.
ITERATOR_EACH_STEP = Entry(
    "an iterator a step",
    when=lambda wait: wait.one_step_a_pass,
    says="Each step makes an iterator of its own, so that the input starts again for each batch: "
    "{pace}. An iterator that is made once goes on with the next batch.",
)
_ANYWHERE = ("dataloader", "grain")  # made by the library's workers, in loops as in `fit`


def advise(wait: InputWait) -> Advice:
    """Return the advice on a wait for input: the best remedy, or the limit where none helps."""
    if wait.one_step_a_pass:
        return ITERATOR_EACH_STEP.advice(wait)
    return advise_kind(wait) or tf_data.advise_pipeline(wait)


def advise_kind(wait: InputWait) -> Advice | None:
    """Return the advice if it depends on the kind of the input; None if a tf.data stage decides.

    Keras makes a tf.data pipeline of a generator or a PyDataset: its stage is not the user's.
    """
    for word, table in _OF_FIT:
        if word in wait.kind and (not wait.run.custom_loop or word in _ANYWHERE):
            return choose(table, wait) or first_holding(loaders.LIMITS, wait)
    if wait.stage is not None or wait.kind == "tf.data":
        return None
    if wait.kind or wait.run.custom_loop or wait.run.framework == "jax":
        return choose(loops.LOOP, wait) or first_holding(loops.LIMITS, wait)
    if wait.run.framework == "torch":  # nothing more is known of an imported trace
        return choose(loaders.DATA_LOADER, wait) or first_holding(loaders.LIMITS, wait)
    return None
