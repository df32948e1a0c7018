"""Kernels and host ops of made-up profiler windows: named as real ones are, timed as nothing is."""

NAN = float("nan")
NONE = (NAN, NAN, NAN, NAN)
# Kernels of a made-up step: name, op, weight, calls a step, (occupancy, registers, blocks, threads
# of a block), tensor cores.
KERNELS = (
    (
        "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64",
        "model/conv2_block1_2_conv/Conv2D",
        30,
        16,
        (12.5, 168, 784, 384),
        "yes",
    ),
    ("nvjet_tst_128x192_64x4_1x2_h_bz_coopA_NNT", "model/predictions/MatMul", 22, 4, (9.4, 168, 132, 384), "yes"),
    (
        "void cudnn::bn_fw_tr_1C11_kernel_NHWC<float, float, int, 512, true, 1>",
        "model/conv2_block1_1_bn/FusedBatchNormV3",
        14,
        16,
        (50, 62, 512, 512),
        "no",
    ),
    ("void tensorflow::functor::ApplyAdamKernel<float>", "Adam/ResourceApplyAdam", 9, 8, (75, 24, 1024, 256), "no"),
    ("void synthetic::vectorized_elementwise<4>", "", 6, 12, NONE, "unknown"),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "CollectiveReduceV2", 5, 2, (NAN, 96, 24, 544), "no"),
)
HOST_OPS = (
    ("model/conv1/Conv2D", "_FusedConv2D", 40, 1, NONE, ""),
    ("model/dense/MatMul", "_MklMatMul", 30, 2, NONE, ""),
    ("Adam/AssignSubVariableOp", "AssignSubVariableOp", 8, 4, NONE, ""),
)
