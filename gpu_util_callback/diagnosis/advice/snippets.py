"""Conditions that several remedies share, and lines of code to paste.

Advice says what to do and takes the line from `Idioms`, the frameworks' own words: whoever adds a
framework fills in one of these.
"""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.windows import capability, needed_vram
from gpu_util_callback.diagnosis.rule import Advice
from gpu_util_callback.diagnosis.thresholds import A_FEW, FOUR_FIFTHS
from gpu_util_callback.recording.manifest_facts import InputDrop


def command(run: Run, before: str = "") -> str:
    """Return the command that starts this training: `python train.py`, with `before` (such as a variable) in front.

    A script whose name was redacted or is not known is called train.py.
    """
    script = str(run.manifest.get("script", ""))
    if not script or script.startswith("script-"):
        script = "train.py"
    start = f"python {script}" if script.endswith(".py") else f"python -m {script}"
    return f"{before} {start}".strip()


def in_own_names(run: Run, code: str) -> str:
    """Return example code with the program's own names for its input, model and monitor."""
    names = _own_names(run)
    if not names or not code:
        return code
    example_names = re.compile(rf"(?<![\w.\"'])({'|'.join(names)})(?![\w\"'])")
    return "\n".join(_renamed(line, example_names, names) for line in code.splitlines())


def _renamed(line: str, example_names: re.Pattern[str], names: Mapping[str, str]) -> str:
    """Return a line of example code with the program's names.

    Args:
        example_names: a pattern whose group 1 is one name of the example.
        names: name in the example -> name in the program.
    """
    in_function = line.startswith((" ", "def ", "class "))

    def program_name(match: re.Match[str]) -> str:
        name = names[match[1]]
        # In a definition the name is an argument, which cannot be called self.data.
        return match[1] if in_function and "." in name else name

    return example_names.sub(program_name, line)


def _own_names(run: Run) -> dict[str, str]:
    """Return the program's names by those that example code uses; only those that differ and are valid names."""
    variables = run.fit.get("variables") or {}
    roles: dict[str, str] = {"model": "model", "monitor": "monitor"}
    for role, dataset_name, prefix in (("input", "ds", ""), ("validation", "val_ds", "val_")):
        kind = str(run.fit.get(f"{role}_kind", "")).lower()
        if "dataloader" in kind:
            roles |= {f"{prefix}loader": role, f"{prefix}dataset": f"{role}_source"}
        elif kind == "tf.data":
            roles[dataset_name] = role
        elif kind == "numpy":
            roles |= {"x": role, "y": "y"} if role == "input" else {}
        else:
            roles[f"{prefix}dataset"] = role
    # Roles without a variable of the program are left out below.
    candidates = {name: variables.get(role) for name, role in roles.items()}
    return {
        name: program_name
        for name, program_name in candidates.items()
        if program_name and _NAME.fullmatch(program_name) and program_name != name
    }


# A valid name in a program; a recording may hold anything.
_NAME = re.compile(r"(self\.)?[A-Za-z]\w{0,60}")


def driver_number(run: Run, gpu: int) -> int:
    """Return the driver's number of a GPU: the framework's numbering skips hidden GPUs."""
    number = run.gpu(gpu).get("nvml_index")
    return gpu if number is None else int(number)


def has_keras_fit(run: Run) -> bool:
    """Return whether `model.fit` ran the training, not a custom loop."""
    return not run.custom_loop and (run.framework_facts.get("keras") is not None or run.framework != "torch")


def batch_code(run: Run, size: int) -> str:
    """Return the line that sets the batch size, at the place where this run sets it."""
    kind = run.input_kind
    if run.trainer == "transformers":
        return f"TrainingArguments(..., per_device_train_batch_size={size // max(1, len(run.used_gpus))})"
    if "dataloader" in kind:
        return f"loader = DataLoader(dataset, ..., batch_size={size})"
    if kind == "tf.data":
        return f"ds = ds.batch({size})"
    # Arrays given to Keras' fit, or a loop of the user's own.
    return f"model.fit(..., batch_size={size})" if kind == "numpy" and has_keras_fit(run) else f"batch_size = {size}"


def batches_an_epoch(run: Run) -> str:
    """Return the batches of an epoch as an expression in code: a name if the number is unknown."""
    return str(steps_an_epoch(run) or "number_of_batches")


def room_for(run: Run, factor: int) -> int:
    """Return the factor by which the batch may grow, a power of two up to `factor`; 1 = not at all.

    `factor` itself if the memory really needed is unknown.
    """
    used_shares = [share for gpu in run.working_gpus if (share := needed_vram(run, gpu)) is not None]
    while factor > 1 and used_shares and factor * max(used_shares) > FOUR_FIFTHS:
        factor //= 2
    return factor


LARGER_STEPS = "the training: fewer, larger steps"


def enlarge_batch(run: Run, says: str, do: str) -> Advice:
    """Return advice on a batch up to four times as large; only a statement where none fits into the GPU's memory.

    Args:
        says: the observation, with a space at its end.
        do: the remedy; `{larger}` and `{often}` stand for "twice" and "half", "4 times" and "a quarter".
    """
    factor = room_for(run, 4)
    if factor > 1:
        larger, often = ("twice", "half") if factor == 2 else (f"{factor} times", "a quarter")
        remedy = do.format(larger=larger, often=often).removesuffix(".")
        return Advice(
            f"{says}{remedy}; this changes {LARGER_STEPS}.",
            larger_batch(run, factor),
            1 - 1 / factor,
            alters_training=True,
            changes=LARGER_STEPS,
            proof="small_batches_torch",
        )
    return Advice(f"{says}A larger batch would help, but does not fit into the GPU's memory.")


def mixed_precision(run: Run, gpu: int) -> str | None:
    """Return Keras' line for it; None if it is on, the GPU is too old or Keras does not train."""
    able = capability(run, gpu) or 0
    on = str(run.fit.get("mixed_precision", "")).startswith("mixed")
    return None if on or able < 7 or not has_keras_fit(run) else keras_policy(half_precision(able))


def half_precision(able: float) -> str:
    """Return the 16-bit type for tensor cores of a compute capability."""
    return "bfloat16" if able >= 8 else "float16"


def keras_policy(kind: str) -> str:
    """Return Keras' line for mixed precision in a 16-bit type."""
    return f'keras.mixed_precision.set_global_policy("mixed_{kind}")  # before the model is built'


# Only the first images were looked at: the line checks all of them.
ALL_BYTES = "Are all of them so, and is the model's train_step Keras' own?"
TO_BYTES = 'assert (x == x.astype("uint8")).all()\nx = x.astype("uint8")'
WRAPPED = "the model: it is wrapped"
AS_FLOATS = "model = keras.Sequential([keras.layers.Rescaling(1.0), model])  # to floats, before compile"


def images_as_floats(run: Run) -> bool:
    """Return True if the first array of the input holds images as floats whose values are all whole and 0 to 255."""
    arrays = run.fit.get("input_first") or []
    if len(arrays) > 2:  # more inputs than one, which the line would not name
        return False
    image: Mapping = arrays[0] if arrays else {}
    is_image = str(image.get("dtype", "")).startswith("float") and int(image.get("rank") or 0) >= 4
    least, most = image.get("min"), image.get("max") or 0
    are_bytes = least is not None and least >= 0 and 1 < most <= 255
    return is_image and are_bytes and bool(image.get("integers"))


def accumulation(run: Run, parts: int) -> str:
    """Return lines that add up the gradients of several batches; "" for a loop that Keras does not run.

    Keras 2 cannot do so, and Keras 3 fails under a strategy.
    """
    if run.framework == "torch" and not has_keras_fit(run):
        return (
            f"(loss / {parts}).backward()\nif step % {parts} == {parts - 1}:\n"
            "    optimizer.step()\n    optimizer.zero_grad()"
        )
    is_keras_2 = "tf_keras" in str(run.framework_facts.get("keras", ""))
    under_strategy = run.framework == "tensorflow" and run.fit.get("strategy")
    if not has_keras_fit(run) or is_keras_2 or under_strategy:  # no line of Keras adds gradients up
        return ""
    name = str(run.fit.get("optimizer", "Adam"))
    if not re.fullmatch(r"[A-Za-z]\w*", name) or name == "LossScaleOptimizer":
        name = "Adam"
    return f"optimizer = keras.optimizers.{name}(..., gradient_accumulation_steps={parts})"


def larger_batch(run: Run, factor: int) -> str:
    """Return the line for a batch `factor` times as large."""
    size = run.fit.get("batch_size")
    return batch_code(run, size * factor) if size else f"batch_size = {factor} * batch_size"


def steps_an_epoch(run: Run) -> int | None:
    """Return the steps of an epoch: as given to `fit`, or as observed if all epochs were alike; None = not known."""
    stated = run.fit.get("steps_per_epoch")
    epochs = run.phases.of("epoch").get("")
    if stated or epochs is None or epochs.joined or len(epochs) < 2:
        return int(stated) if stated else None
    lengths = np.unique(np.diff(epochs["step"], prepend=run.first_step))
    return int(lengths[0]) if len(lengths) == 1 and lengths[0] > 0 else None


def drops_of(run: Run, which: str) -> list[InputDrop]:
    """Return the stages of the pipeline of "train" or "validation" that drop what others have made."""
    return [drop for drop in run.fit.get("input_drops") or () if drop["which"] == which]


def sizes_vary(run: Run) -> bool | None:
    """Return True if samples were seen to differ in size, False if they are all alike, None if that is not known.

    The first axis, the size of a batch, is left out.
    """
    dims = run.fit.get("input_dims") or []
    sizes = [size for shape in dims for size in (shape or [])[1:]]
    if any(isinstance(size, list) for size in sizes):
        return True
    is_known = bool(dims) and None not in dims and all(isinstance(size, int) for size in sizes)
    return False if is_known else None


class Idioms(NamedTuple):
    """A framework's own lines of code; "" = it has no such line, or none is known.

    Attributes:
        decorator, mind: compile the function of a step, and what to mind then.
        compiled: compile the step of a loop so that kernels are fused.
        read, reads: read a loss, and the calls that read results.
        to_uint8, from_uint8: send a batch as bytes, and convert it on the GPU.
        half: compute in 16 bits, `{kind}` being the type; scaler: what scales the loss then.
        memory_limit: allow the process all of the memory.
        leaves_memory: the environment of a training that leaves memory to others.
        on_gpu: put the model on the GPU.
        every_gpu: spread a Keras training over all GPUs.
    """

    decorator: str = ""
    mind: str = ""
    compiled: str = ""
    read: str = "float(loss)"
    reads: str = "float()"
    to_uint8: str = ""
    from_uint8: str = ""
    half: str = ""
    scaler: str = "; scale the loss, or small gradients get lost"
    memory_limit: str = ""
    leaves_memory: str = ""
    on_gpu: str = ""
    every_gpu: str = ""


_OF = {
    "tensorflow": Idioms(
        decorator="@tf.function",
        mind="what else Python does in it (print, lists, NumPy) then happens only while it is traced",
        compiled="train_step = tf.function(train_step, jit_compile=True)",
        reads="float(), .numpy()",
        to_uint8="x = tf.cast(x, tf.uint8)",
        from_uint8="x = tf.cast(x, tf.float32)",
        memory_limit='for gpu in tf.config.list_physical_devices("GPU"):\n'
        "    tf.config.experimental.set_memory_growth(gpu, True)  # instead of memory_limit=",
        leaves_memory="TF_FORCE_GPU_ALLOW_GROWTH=true",
        on_gpu='with tf.device("/GPU:0"): ...  # around building the model, not "/CPU:0"',
        every_gpu="with tf.distribute.MirroredStrategy().scope():\n    model = build_model()  # and compile it here",
    ),
    "jax": Idioms(
        decorator="@jax.jit",
        mind="it must return all that it changes: parameters and the optimizer's state",
        compiled="train_step = jax.jit(train_step)",
        reads="float(), block_until_ready()",
        to_uint8='x = x.astype("uint8")',
        from_uint8="x = jax.device_put(x).astype(jnp.float32)",
        half="params = jax.tree.map(lambda leaf: leaf.astype(jnp.{kind}), params)"
        "  # inside the loss function\n"
        "x = x.astype(jnp.{kind})  # else JAX computes in float32",
        memory_limit='os.environ.pop("XLA_PYTHON_CLIENT_MEM_FRACTION", None)  # its old name\n'
        'os.environ["XLA_CLIENT_MEM_FRACTION"] = "0.9"  # before jax is imported',
        leaves_memory="XLA_PYTHON_CLIENT_PREALLOCATE=false",
        on_gpu='jax.config.update("jax_default_device", jax.devices("gpu")[0])\n'
        'params = jax.device_put(params, jax.devices("gpu")[0])',
        every_gpu="keras.distribution.set_distribution(keras.distribution.DataParallel())  # before the model is built",
    ),
    "torch": Idioms(
        compiled='model = torch.compile(model, mode="reduce-overhead")',
        read="loss.item()",
        reads=".item(), .cpu()",
        to_uint8="x = x.to(torch.uint8)",
        from_uint8="x = x.to(device, non_blocking=True).float()",
        half='with torch.autocast("cuda", dtype=torch.{kind}):\n    loss = loss_function(model(x), y)',
        scaler="; scale the loss with torch.amp.GradScaler",
        memory_limit="torch.cuda.set_per_process_memory_fraction(1.0)",
        on_gpu='model = model.to("cuda")\nbatch = batch.to("cuda", non_blocking=True)  # every batch',
    ),
}
_UNKNOWN = Idioms()


def idioms(run: Run) -> Idioms:
    """Return the lines of code of a run's framework."""
    return _OF.get(run.framework, _UNKNOWN)


def in_epochs(run: Run, count: int) -> bool:
    """Return whether the monitor saw passes of a loop over its data, and what it does `count` times no oftener."""
    return 2 * sum(rows.count for rows in run.phases.of("epoch").values()) > count


def epochs_apart(run: Run, count: int) -> int:
    """Return how many epochs, one or more, lie from one to the next of what a training does `count` times."""
    return max(1, round(sum(rows.count for rows in run.phases.of("epoch").values()) / max(1, count)))


_ROUND = (100, 50, 20, 10, 5, 2, 1)
# (library, phase) -> the settings for every n epochs, and for every n steps.
_TRAINERS = {
    ("lightning", "validation"): (
        "Trainer(..., check_val_every_n_epoch={epochs})",
        "Trainer(..., val_check_interval={steps}, check_val_every_n_epoch=None)",
    ),
    ("lightning", "checkpoint"): (
        "ModelCheckpoint(..., every_n_epochs={epochs})",
        "ModelCheckpoint(..., every_n_train_steps={optimizer_steps}){of_batches}",
    ),
    ("transformers", "validation"): ('TrainingArguments(..., eval_strategy="steps", eval_steps={steps})',) * 2,
    ("transformers", "checkpoint"): (
        'TrainingArguments(..., save_strategy="steps", save_steps={steps})'
        "  # with load_best_model_at_end: a multiple of eval_steps",
    )
    * 2,
}
_SAVE_LAST = {
    "lightning": "Trainer(..., enable_checkpointing=False)  # and no ModelCheckpoint among its callbacks\n"
    'trainer.save_checkpoint("last.ckpt")  # after fit',
    "transformers": 'TrainingArguments(..., save_strategy="no")  # without load_best_model_at_end\n'
    "trainer.save_model()  # after train",
}


def usual_period(steps: float, times: float) -> int:
    """Return the roundest distance in steps of what may come so many times in so many steps, at the first or later."""
    usual, least, most = steps / times, steps / (times + 1), (steps - 1) / max(1.0, times - 1)
    is_exact = usual < 1 or (usual == round(usual) and times > A_FEW)
    return max(1, round(usual)) if is_exact else roundest(least, most)


def roundest(above: float, most: float) -> int:
    """Return the roundest whole number above one number and up to another; that one, rounded, where none is between."""
    numbers = (unit * (1 + math.floor(above / unit)) for unit in _ROUND)
    return next((number for number in numbers if number <= most), round(most))


# In hooks of a trainer's callbacks: the numbers of the epoch and of the step.
_COUNTS = {
    "transformers": ("round(state.epoch)", "state.global_step"),
    "lightning": ("trainer.current_epoch", "batch_idx"),
}


def in_loop(run: Run, phase: str, count: int, factor: int = 1, *, last: bool = False) -> str:
    """Return lines with which a loop does work less often that it does `count` times now.

    Args:
        phase: the work's name, such as "validation".
        count: how often it was done in the run.
        factor: it is then done every `factor`th time.
        last: it is then done once, at the end, instead.
    """
    epochs = in_epochs(run, count)
    total, steps = run.steps.total_rows, factor * usual_period(run.steps.total_rows, count)
    apart = epochs_apart(run, count)
    if run.trainer:  # a library's trainer runs the loop
        if last and phase == "checkpoint":
            return _SAVE_LAST[run.trainer]
        if last:
            return f"def on_train_end(self, *_, **__): ...  # what {phase} does now"
        return _in_trainer(run, phase, factor * apart if epochs else 0, steps)
    name, end, interval = ("epoch", count * apart, factor * apart) if epochs else ("step", total, steps)
    return _only_if(f"{name} == {end - 1}" if last else f"{name} % {interval} == 0", phase)


def at_steps(run: Run, phase: str, steps: int) -> str:
    """Return lines with which a loop does work of each step at every `steps`th."""
    return _in_trainer(run, phase, 0, steps) if run.trainer else _only_if(f"step % {steps} == 0", phase)


def _only_if(condition: str, phase: str) -> str:
    return f'if {condition}:\n    with monitor.phase("{phase}"): ...'


def _in_trainer(run: Run, phase: str, epochs: int, steps: int) -> str:
    """Return the setting of a library's trainer, or lines of its callback, for work at an interval.

    Args:
        epochs, steps: the interval; epochs = 0: it counts in steps.
    """
    settings = _TRAINERS.get((run.trainer, phase))
    if settings is not None:  # the trainer has an argument for this phase
        batches = run.fit.get("gradient_accumulation_steps") or 1
        optimizer_steps, of_batches = max(1, round(steps / batches)), f"  # of {batches} batches each" * (batches > 1)
        setting = settings[not epochs]
        return setting.format(epochs=epochs, steps=steps, optimizer_steps=optimizer_steps, of_batches=of_batches)
    return f"if {_COUNTS[run.trainer][not epochs]} % {epochs or steps} == 0: ...  # what {phase} does now"
