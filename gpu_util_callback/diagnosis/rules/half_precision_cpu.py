"""Half precision on a CPU: float16 is computed by a CPU that has no arithmetic for it."""

from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.rule import Advice, Findings, Rule
from gpu_util_callback.diagnosis.thresholds import Limits

POLICIES = ("mixed_float16", "float16")


class HalfPrecisionCpu(Rule):
    """The model computes in float16 on a CPU that can only store it.

    Each operation then converts its operands to float32 and back. Here mixed_float16 took 1.5 to
    6.7 times as long as float32 in three of four small models (TensorFlow, JAX), and as long in
    one. The cost in this run cannot be known: it never showed float32.

    bfloat16 is not judged: CPUs that lack float16 may have it, and be faster with it.
    """

    cause = "half_precision_cpu"
    title = "Half precision on a CPU"
    look = "½", "grey"
    sources = ("dtype policy", "device of the framework", "features of the CPU")
    thresholds = {}
    unknown = "the model's precision, its device or the CPU's features are not known"

    def missing(self, run: Run) -> bool:
        seen = run.framework_facts.get("device"), run.machine.get("cpu_float16")
        return None in seen or not isinstance(run.fit.get("mixed_precision"), str)

    def find(self, run: Run, limits: Limits) -> Findings:
        policy, on_cpu = run.fit.get("mixed_precision"), run.framework_facts.get("device") == "cpu" and not run.gpus
        if policy not in POLICIES or not len(run.steps) or not on_cpu or run.machine.get("cpu_float16"):
            return
        yield self.finding(
            evidence={"precision": policy, "cpu": run.machine.get("cpu")},
            advice=Advice(
                f"The model computes in float16 ({policy}), and this CPU has no arithmetic for it: "
                "each operation converts to float32 and back. Half precision pays on a GPU. Here, "
                "train in float32, which also changes the numbers: losses will differ a little.",
                'keras.mixed_precision.set_global_policy("float32")  # before the model is built',
                proof="half_precision",
            ),
        )
