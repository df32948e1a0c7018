"""What is wrong in each training, and which causes must be found for it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Scenario:
    """A training with a known truth.

    Attributes:
        name: also its log directory.
        wrong: what is done to it, for people.
        expected: causes of which each must be found; empty = nothing may be found.
        allowed: causes that may be found beside them.
        workload: which function of `workloads` builds it.
        env: environment of its process.
        backend_env: more of it, by backend.
        whole_memory: whether the framework may have nearly all of the GPU's memory.
        trace: whether it has profiler windows on named steps; False = the callback's defaults.
        needs_trace: whether the cause shows in profiler windows alone.
        needs_pids: whether the cause shows only where the driver tells processes apart.
    """

    name: str
    wrong: str
    workload: str
    expected: frozenset[str] = frozenset()
    allowed: frozenset[str] = frozenset()
    env: dict[str, str] = field(default_factory=dict)
    backend_env: dict[str, dict[str, str]] = field(default_factory=dict)
    whole_memory: bool = False
    trace: bool = True
    needs_trace: bool = False
    needs_pids: bool = False


def _causes(*names: str) -> frozenset[str]:
    return frozenset(names)


SCENARIOS = (
    Scenario("healthy", "nothing: a large bfloat16 model of convolutions and matrix products", "healthy"),
    Scenario("healthy-defaults", "nothing, recorded with the callback's default settings", "healthy", trace=False),
    Scenario(
        "slow-input",
        "each batch takes twice as long to make as a step takes to train on",
        "slow_input",
        expected=_causes("input_bound"),
    ),
    Scenario(
        "tiny-kernels",
        "batch 1, narrow layers, no compilation",
        "tiny_kernels",
        expected=_causes("launch_bound"),
        # The GPU is nearly empty for the same reason, whoever looks at its counters; and its
        # products are 32-bit ones, which a trace says by itself.
        allowed=_causes("small_batch", "sync_bound", "no_tensor_cores"),
        needs_trace=True,
    ),
    Scenario(
        "copies",
        "large pageable batches are copied for little work",
        "copies",
        expected=_causes("transfer_bound"),
        # On JAX the training thread waits for the transfer as for any other part of the input.
        allowed=_causes("input_bound", "no_tensor_cores"),
        needs_trace=True,
    ),
    Scenario(
        "float32",
        "32-bit matrix products, TF32 off: tensor cores unused",
        "float32",
        expected=_causes("no_tensor_cores"),
        env={"NVIDIA_TF32_OVERRIDE": "0", "JAX_DEFAULT_MATMUL_PRECISION": "highest"},
        # cuBLAS names its kernels; a kernel that XLA generates does not tell what it uses.
        backend_env={"jax": {"XLA_FLAGS": "--xla_gpu_enable_triton_gemm=false"}},
        needs_trace=True,
    ),
    Scenario(
        "full-memory",
        "95 % of the GPU's memory is really allocated",
        "full_memory",
        expected=_causes("memory_pressure"),
        whole_memory=True,
    ),
    Scenario(
        "competitor",
        "a second process computes on the same GPU",
        "competitor",
        expected=_causes("contention"),
        # Neither process may take all of the memory at its start.
        env={"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"},
        needs_pids=True,
    ),
    Scenario(
        "long-validation",
        "validation after each epoch, on data that is slow to make",
        "long_validation",
        expected=_causes("host_stall"),
    ),
)


def named(name: str) -> Scenario:
    """The scenario of a name; KeyError."""
    return {scenario.name: scenario for scenario in SCENARIOS}[name]
