"""Classification by name: GPU work, host calls and tensor cores, for all trace formats."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

from gpu_util_callback.traces.model import DeviceKind, HostKind, MemoryKind

# Lines that TensorFlow derives from others: the same events again.
DERIVED_LINE = re.compile(
    r"Steps|(Async )?XLA Ops|XLA (Modules|TraceMe)|(Framework|TensorFlow) (Ops|Name Scope)|Launch Stats"
    r"|Source [cC]ode|CUPTI overhead|_counters_"
)
_COLLECTIVE = re.compile(
    r"^(nccl|rccl|msccl|oneccl|hccl)|ncclKernel|ncclDev|ncclSymk|nvshmem|rcclGeneric"
    r"|cross_device_reduce|one_shot_all_?reduce|two_shot_all_?reduce|multimem_all_?reduce"
    r"|deep_ep::|dpsk::ep::|ub_cudaibarrier|all_?reduce_kernel|allgather_kernel",
    re.IGNORECASE,
)
_MEMSET = re.compile(r"^(cu|hip|cuda)?mem_?set|__amd_rocclr_fillBuffer|^FillBuffer", re.IGNORECASE)
# ROCm copies with a separate kernel; the host requested a copy, so it counts as a copy.
_COPY = re.compile(r"^(cu|hip|cuda)?mem_?cpy|^Copy(Host|Device)To|__amd_rocclr_copyBuffer", re.IGNORECASE)
_DIRECTIONS = (
    (DeviceKind.COPY_H2D, re.compile(r"H(ost)?_?To?_?D(evice)?|H2D|HtoA|CopyHostToDevice|Host\s*->\s*Dev", re.I)),
    (DeviceKind.COPY_D2H, re.compile(r"D(evice)?_?To?_?H(ost)?|D2H|AtoH|CopyDeviceToHost", re.I)),
    (DeviceKind.COPY_D2D, re.compile(r"D(evice)?_?To?_?D(evice)?|D2D|P2P|PtoP|AtoA|AtoD|DtoA|Peer", re.I)),
)


@lru_cache(maxsize=65536)
def device_kind(name: str) -> DeviceKind:
    """Return the kind of a device event by its name alone; KERNEL where no pattern knows it."""
    if _COPY.search(name):  # before all others, as ROCm copies with kernels
        return copy_kind(name)
    if _MEMSET.search(name):
        return DeviceKind.MEMSET
    if _COLLECTIVE.search(name):
        return DeviceKind.COLLECTIVE
    return DeviceKind.KERNEL


def copy_kind(name: str, source: str = "", destination: str = "") -> DeviceKind:
    """Return the direction of a copy: by the memory kinds at both ends ("" = unknown) if known, else by name.

    COPY_OTHER where neither shows it.
    """
    host = ("pageable", "pinned", "host", "array_host")
    device = ("device", "array", "device_static", "managed")
    if source in host and destination in device:
        return DeviceKind.COPY_H2D
    if source in device and destination in host:
        return DeviceKind.COPY_D2H
    if source in device and destination in device and "managed" not in (source, destination):
        return DeviceKind.COPY_D2D
    if "__amd_rocclr_copyBuffer" in name:  # ROCm's kernel, which copies on the device
        return DeviceKind.COPY_D2D
    for kind, pattern in _DIRECTIONS:
        if pattern.search(name):
            return kind
    return DeviceKind.COPY_OTHER


def memory_kind(*ends: str) -> MemoryKind:
    """Return the host side of a copy, from the two words that name its ends."""
    words = " ".join(ends).upper()
    kinds = (MemoryKind.PAGEABLE, MemoryKind.PINNED, MemoryKind.MANAGED, MemoryKind.DEVICE)
    return next((kind for kind in kinds if kind.name in words), MemoryKind.UNKNOWN)


_API = re.compile(r"^(cu|cuda|hip|nvtx)[A-Z]\w*")
_SYNC = re.compile(
    r"^(cu|cuda|hip)(Ctx|Device|Stream|Event|Thread)Synchronize"
    r"|BlockHostUntilDone|block_until_ready|BlockUntilReady|^torch_?\S*synchronize"
)
_LAUNCH = re.compile(
    r"^(cu|cuda|hip)(Ext)?(Module)?(Launch|GraphLaunch|Memcpy|Memset|Graph.*Launch)"
    r"|^(cu|cuda|hip)LaunchKernel"
)


@lru_cache(maxsize=65536)
def api_kind(name: str) -> HostKind | None:
    """Return the kind of a driver or runtime call (cuda*, cu*, hip*); None for any other name."""
    if _SYNC.search(name):
        return HostKind.SYNC
    if _LAUNCH.match(name):
        return HostKind.LAUNCH
    return HostKind.CALL if _API.match(name) else None


# Steps by the names of ranges: numbered ("step 12", "iteration_3", "ProfilerStep#4"), described
# ("step[DECODE bs=8]", vLLM's "execute_context_0(0)_generation_8(8)"), or always the same.
_NUMBERED = re.compile(
    r"^((?:train(?:ing)?|global|profiler|fit|decode|engine)?[ _-]?(?:step|iteration|iter|batch))"
    r"[ _#:=/\[(-]*(\d+)[\])]?$",
    re.IGNORECASE,
)
_DESCRIBED = re.compile(
    r"^((?:train(?:ing)?|decode|engine)?[ _-]?(?:step|iteration|iter))[ _-]?[\[({<]"
    r"|^(execute)_(?:new|context)_\d",
    re.IGNORECASE,
)
_REPEATED = re.compile(r"^(train(ing)?[ _-]?(step|batch|iteration)|train|step|iteration)$", re.I)


@lru_cache(maxsize=4096)
def step_marker(name: str) -> tuple[str, int] | None:
    """Return the name that a range shares with those of other steps, and its step's number (-1 = none).

    None if the name is not one of a step.
    """
    if numbered := _NUMBERED.match(name):
        return numbered[1], int(numbered[2]) if len(numbered[2]) < 18 else -1
    if described := _DESCRIBED.match(name):
        return described[1] or described[2], -1
    return (name, -1) if _REPEATED.match(name) else None


# Ordinary cores by name, even where the rest of the name suggests otherwise ("xmma" with FFMA).
_TENSOR_NEVER = re.compile(r"simt|ffma", re.IGNORECASE)
# Names may be long and made up: no pattern may search for its end from every position.
# Explicit in the name: an MMA instruction, its shape, or a library that has no other kernels.
_TENSOR_YES = re.compile(
    r"[hisd](16816|16832|161616|1688|884|8816|64x\d+x(8|16|32))|16816|c1688|i16832|i8816"
    r"|hmma|imma(?!g)|qgmma|bmma|wgmma|utcmma|tcgen05|mma_sm(7|8|9|10)|tensor_?op_|tensor16x8x"
    r"|nvjet|xmma_(gemm|fprop|dgrad|wgrad|implicit|warp|sparse)|sm(75|80|86|89|90|100|103|120)_xmma"
    r"|flash_(fwd|bwd)|flash::|flashattn|fmha|sdpa.{0,80}_wgmma|cudnn_generated.{0,80}sdpa|Gmma|cutlass.{0,80}gmma"
    r"|_MI(4|16|32)x\d+x\d+|mfma|xdl(ops)?_|igemm_\w{1,80}_gtcx|wmma|bmm_.{0,80}(E4m3|E2m1|E5m2|Bfloat16|Fp16)",
    re.IGNORECASE,
)
# The ordinary cores have no arithmetic of 8-bit floats.
_TENSOR_FP8 = re.compile(r"fp8|float8|e4m3|e5m2", re.IGNORECASE)
_PRODUCT = re.compile(r"gemm|matmul|(^|_)(mm|dot)(_|$)", re.IGNORECASE)
# Matrix kernels that are known to use the ordinary cores, and their helpers.
_TENSOR_NO = re.compile(
    r"(volta|turing|ampere|hopper|maxwell|pascal)_(s|d|c|z|gc)(gemm|cudnn|conv)|_scudnn_|scudnn_"
    r"|(^|_)[sdcz]gemm|gcgemm|gemmSN|gemv|gemmk1|winograd|fft2d|fft_|computeOffsets|im2col|Im3d2Col"
    r"|nchwToNhwc|nhwcToNchw|convertTensor|bn_(fw|bw)|bnorm|batchnorm|pooling|_engine<|splitKreduce"
    r"|cask_cudnn::compute|dgrad2d_grouped|wgrad2d_grouped|depthwise|scalePackedTensor|reorder"
    r"|transpose|conv2d_grouped_direct|triton_(poi|per|red)_",
    re.IGNORECASE,
)
# Matrix work whose name does not show whether tensor cores run it.
_TENSOR_UNKNOWN = re.compile(
    r"gemm|conv(?!er)|matmul|(^|_)dot(_|$)|triton|cutlass|cudnn|cublas|attention|(^|_)attn|sdpa|Cijk_"
    r"|implicit|fusion_dot|fprop|dgrad|wgrad|bmm|einsum|rnn|lstm|(^|_)gru(_|$)|(^|_)mm(_|$)"
    r"|^(volta|turing|ampere|hopper)_|^sm\d+_|(^|_)mha(_|$)|(^|_)moe(_|$)",
    re.IGNORECASE,
)


TensorCore = Literal["yes", "no", "unknown"]


@lru_cache(maxsize=65536)
def tensor_core(name: str) -> TensorCore:
    """Return "yes", "no" or "unknown": if a kernel runs on tensor (matrix) cores, by its name.

    "unknown" is for matrix kernels whose names do not show it; a rule may never count it as "no".
    Everything other than matrix work is "no".
    """
    # The surest signs first.
    if _TENSOR_NEVER.search(name):
        return "no"
    if _TENSOR_YES.search(name) or (_TENSOR_FP8.search(name) and _PRODUCT.search(name)):
        return "yes"
    if _TENSOR_NO.search(name):
        return "no"
    return "unknown" if _TENSOR_UNKNOWN.search(name) else "no"


def op_of(annotation: str) -> str:
    """Return an annotation's op: "model/dense/MatMul:MatMul#shape=…#" -> "model/dense/MatMul"."""
    op = annotation.split("#", 1)[0]
    op = op.split("::#", 1)[0].rstrip(":")
    head, colon, kind = op.rpartition(":")
    return head if colon and head and "/" not in kind and " " not in kind else op
