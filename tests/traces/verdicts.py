"""A table of the public traces: our verdict beside what an expert says of each.

python tests/traces/verdicts.py > tests/traces/verdicts.md
"""

from pathlib import Path

from gpu_util_callback.traces import read_trace
from gpu_util_callback.traces.imported import analyse

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
_UNIT = "a fragment, made to test numbers"

# file -> (causes that must be found, what an expert says)
EXPERT: dict[str, tuple[list[str], str]] = {
    "xplane/cpu_tf221_inputbound_10steps.xplane.pb": (
        ["input_bound"],
        "input-bound: a Python map takes nine tenths of each step",
    ),
    "xplane/cpu_tf221_inputbound_plus_synthetic_gpu.xplane.pb": (["input_bound"], "input-bound, with a GPU as without"),
    "xplane/cpu_tf221_no_step_marker.xplane.pb": ([], "the input keeps pace; the CPU computes"),
    "xplane/mi300x8_jax_conv_legacy.xplane.pb": (
        ["host_stall"],
        "dispatch-bound: a toy convolution on one of eight GPUs",
    ),
    "xplane/mi300x8_jax_conv_raw.xplane.pb": (
        ["host_stall"],
        "dispatch-bound: a toy convolution, sharded over eight GPUs",
    ),
    "xplane/v100x8_tf24_bert_multiworker.xplane.pb": (
        ["host_stall"],
        "one call; the host starts two replicas 650 ms apart, GPUs idle",
    ),
    "kineto/h100_bert_small.json.gz": (["launch_bound"], "launch-bound: 60 kernels of 5 µs in 4 ms"),
    "kineto/h100_timesformer.json.gz": (["host_stall"], "images are preprocessed in the step, in Python: 58 % of it"),
    "kineto/v100_resnet50_num_workers_0.json.gz": (
        ["input_bound", "no_tensor_cores"],
        "input-bound (no workers), and float32 on a V100",
    ),
    "kineto/unit/test_all_categories.json": ([], _UNIT),
    "kineto/unit/test_distributed_nccl_rank0.json": ([], _UNIT),
    "kineto/unit/test_distributed_nccl_rank1.json": ([], _UNIT),
    "kineto/unit/test_gpu_utilization.json": ([], _UNIT),
    "kineto/unit/test_multiple_profilersteps_no_overlap.json": ([], _UNIT),
    "kineto/unit/test_no_profilerstep.json": ([], _UNIT),
    "kineto/unit/test_pure_cpu.json": ([], _UNIT),
    "kineto/unit/test_tensor_core.json": ([], _UNIT),
    "nsys/h100_2gpu_1s.sqlite": (["transfer_bound"], "copies to the GPU fill 95 %, although it reads 99 % busy"),
    "nsys/healthy_1pct.sqlite": ([], "healthy: 99 % kernels"),
    "nsys/mfu_2gpu_before.sqlite": ([], "healthy for the host: 90 % kernels; faster ones would be the next step"),
    "nsys/mock.sqlite": ([], "two kernels: nothing to judge"),
}


def table() -> str:
    """Return the table as Markdown."""
    rows = [
        "Written by `python tests/traces/verdicts.py > tests/traces/verdicts.md`; `test_verdicts.py` compares it.",
        "",
        "| trace | verdict of `gpu-util trace` | an expert |",
        "| --- | --- | --- |",
    ]
    for name, (_, expert) in EXPERT.items():
        verdict = analyse(read_trace(DATA / name)).verdict
        rows.append(f"| {name} | {verdict} | {expert} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(table(), end="")
