"""Precision that the machine is slow at: float64, or float16 on a CPU that has no arithmetic for it."""

from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.rule import Advice, Findings, Rule
from gpu_util_callback.diagnosis.thresholds import MOSTLY, Limits

_DOUBLE = Advice(
    "The model computes in float64, in which a CPU takes some two to four times as long as in float32, and most GPUs "
    "far longer. Does training need that precision? If not, leave Keras at float32, and make the data float32 as well. "
    "This changes the numbers: losses will differ a little.",
    'keras.config.set_floatx("float32")  # before the model is built; x.astype("float32") before fit',
    alters_training=True,
    changes="the numbers",
    question=True,
    proof="blind/seventh/double_floats",
)


class HalfPrecisionCpu(Rule):
    """The model computes in float64, or in float16 on a CPU that can only store it.

    In float16 each operation then converts its operands to float32 and back. Here mixed_float16 took 1.5 to 6.7 times
    as long as float32 in three of four small models (TensorFlow, JAX), and as long in one; float64 took 3.2 (dense
    layers) and 4.3 times as long (convolutions). The cost in this run cannot be known: it never showed float32.

    bfloat16 is not judged: CPUs that lack float16 may have it, and be faster with it.
    """

    cause = "half_precision_cpu"
    title = "Slow precision"
    look = "½", "grey"
    sources = ("dtype policy", "device of the framework", "features of the CPU")
    unknown = "the model's precision, its device or the CPU's features are not known"

    def missing(self, run: Run) -> bool:
        seen = run.framework_facts.get("device"), run.machine.get("cpu_float16")
        return run.fit.get("mixed_precision") is None or (None in seen and run.fit["mixed_precision"] != "float64")

    def find(self, run: Run, limits: Limits) -> Findings:
        policy, is_half = run.fit.get("mixed_precision"), run.fit.get("mixed_precision") in ("mixed_float16", "float16")
        on_cpu = run.framework_facts.get("device") == "cpu" and not run.gpus
        if policy == "float64" and run.steps.total("body_ns") >= MOSTLY * run.present_ns:
            yield self.finding(title="The model computes in float64", evidence={"precision": policy}, advice=_DOUBLE)
        if is_half and len(run.steps) and on_cpu and not run.machine.get("cpu_float16"):
            yield self.finding(
                title="Half precision on a CPU",
                evidence={"precision": policy, "cpu": run.machine.get("cpu")},
                advice=Advice(
                    f"The model computes in float16 ({policy}), and this CPU has no arithmetic for it: "
                    "each operation converts to float32 and back. Half precision pays on a GPU. Here, "
                    "train in float32, which also changes the numbers: losses will differ a little.",
                    'keras.mixed_precision.set_global_policy("float32")  # before the model is built',
                    proof="half_precision",
                ),
            )
