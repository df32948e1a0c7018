"""Lines of code shared by several rules, in terms of the run's framework."""

import re
from collections.abc import Mapping

from gpu_util_callback.diagnosis.advice.circumstances import steps_an_epoch
from gpu_util_callback.diagnosis.evidence.kernels import capability, headroom
from gpu_util_callback.diagnosis.evidence.run import Run
from gpu_util_callback.diagnosis.finding import Advice
from gpu_util_callback.diagnosis.thresholds import Constant

__all__ = [
    "batch_code", "batches_an_epoch", "command", "driver_number", "half_precision",
    "has_keras_fit", "in_own_names", "keras_policy", "larger_batch", "mixed_precision", "no_room",
    "optimizer", "room_for",
]  # fmt: skip

FULL = Constant(
    0.8, "a larger batch may fill the memory up to here: its needs do not grow in proportion"
)


def command(run: Run, before: str = "") -> str:
    """Return the command that starts this training: `python train.py`, with `before` in front."""
    script = str(run.manifest.get("script", ""))
    if not script or script.startswith("script-"):
        script = "train.py"
    start = f"python {script}" if script.endswith(".py") else f"python -m {script}"
    return f"{before} {start}".strip()


def in_own_names(run: Run, code: str) -> str:
    """Return code with the program's own names for its input, model and monitor."""
    names = _own_names(run)
    if not names or not code:
        return code
    wanted = re.compile(rf"(?<![\w.\"'])({'|'.join(names)})(?![\w\"'])")
    return "\n".join(_renamed(line, wanted, names) for line in code.splitlines())


def _renamed(line: str, wanted: re.Pattern[str], names: Mapping[str, str]) -> str:
    inner = line.startswith((" ", "def ", "class "))

    def own(found: re.Match[str]) -> str:
        name = names[found[1]]
        return found[1] if inner and "." in name else name  # no argument is called self.data

    return wanted.sub(own, line)


def _own_names(run: Run) -> dict[str, str]:
    """Return name in the code shown -> the program's own name."""
    known = run.fit.get("variables")
    if not isinstance(known, Mapping):
        return {}
    roles: dict[str, str] = {"model": "model", "monitor": "monitor"}
    for role, short, before in (("input", "ds", ""), ("validation", "val_ds", "val_")):
        kind = str(run.fit.get(f"{role}_kind", "")).lower()
        if "dataloader" in kind:
            roles |= {f"{before}loader": role, f"{before}dataset": f"{role}_source"}
        elif kind == "tf.data":
            roles[short] = role
        elif kind == "numpy":
            roles |= {"x": role, "y": "y"} if role == "input" else {}
        else:
            roles[f"{before}dataset"] = role
    found = {name: known.get(role) for name, role in roles.items()}
    return {
        name: own
        for name, own in found.items()
        if isinstance(own, str) and _NAME.fullmatch(own) and own != name
    }


# A valid name in a program; a recording may hold anything.
_NAME = re.compile(r"(self\.)?[A-Za-z]\w{0,60}")


def driver_number(run: Run, gpu: int) -> int:
    """Return the driver's number of a GPU: the framework's numbering skips hidden GPUs."""
    number = run.gpu(gpu).get("nvml_index")
    return gpu if number is None else int(number)


def has_keras_fit(run: Run) -> bool:
    """Return whether `model.fit` ran the training, not a custom loop."""
    return run.fit.get("loop") != "custom" and (
        run.framework_facts.get("keras") is not None or run.framework != "torch"
    )


def optimizer(run: Run) -> str:
    """Return the Keras optimizer's class, Adam if unknown."""
    name = str(run.fit.get("optimizer", "Adam"))
    return name if re.fullmatch(r"[A-Za-z]\w*", name) and name != "LossScaleOptimizer" else "Adam"


def batch_code(run: Run, size: int) -> str:
    """Return the line that sets the batch size, at the place where this run sets it."""
    kind = str(run.fit.get("input_kind", "")).lower()
    if "dataloader" in kind:
        return f"loader = DataLoader(dataset, ..., batch_size={size})"
    if kind == "tf.data":
        return f"ds = ds.batch({size})"
    if kind == "numpy" and has_keras_fit(run):
        return f"model.fit(..., batch_size={size})"
    return f"batch_size = {size}"


def batches_an_epoch(run: Run) -> str:
    """Return the batches of an epoch as an expression in code: a name if the number is unknown."""
    return str(steps_an_epoch(run) or "number_of_batches")


def room_for(run: Run, factor: int) -> int:
    """Return the factor by which the batch may grow, a power of two up to `factor`; 1 = not at all.

    `factor` itself if the memory really needed is unknown.
    """
    known = [seen[0] for gpu in run.working_gpus if (seen := headroom(run, gpu)) is not None]
    while factor > 1 and known and factor * max(known) > FULL:
        factor //= 2
    return factor


def no_room(run: Run, says: str) -> Advice:
    """Return advice if a larger batch is the remedy, but does not fit."""
    for gpu in run.working_gpus:
        line = mixed_precision(run, gpu)
        if line is not None:
            return Advice(
                f"{says}A larger batch would help, but does not fit into the GPU's memory. Mixed "
                "precision makes room for it.",
                line,
                alters_training=True,
            )
    return Advice(
        f"{says}A larger batch would help, but does not fit into the GPU's memory.", "", 0.0
    )


def mixed_precision(run: Run, gpu: int) -> str | None:
    """Return Keras' line for it; None if it is on, the GPU is too old or Keras does not train."""
    able = capability(run, gpu) or 0
    on = str(run.fit.get("mixed_precision", "")).startswith("mixed")
    if on or able < 7 or not has_keras_fit(run):
        return None
    return keras_policy(half_precision(able))


def half_precision(able: float) -> str:
    """Return the 16-bit type for tensor cores of a compute capability."""
    return "bfloat16" if able >= 8 else "float16"


def keras_policy(kind: str) -> str:
    """Return Keras' line for mixed precision in a 16-bit type."""
    return f'keras.mixed_precision.set_global_policy("mixed_{kind}")  # before the model is built'


def larger_batch(run: Run, factor: int) -> str:
    """Return the line for a batch `factor` times as large."""
    size = run.fit.get("batch_size")
    if isinstance(size, (int, float)) and size > 0:
        return batch_code(run, int(size) * factor)
    return f"batch_size = {factor} * batch_size"
