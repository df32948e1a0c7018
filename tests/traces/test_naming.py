import pytest

from gpu_util_callback.traces.model import DeviceKind, HostKind, MemoryKind
from gpu_util_callback.traces.naming import api_kind, copy_kind, device_kind, memory_kind, op_of, tensor_core

KERNELS = {
    "yes": [
        "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT",
        "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x128x64_warpgroupsize1x1x1",
        "void cutlass::Kernel<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16>",
        "cutlass_80_tensorop_s16816gemm_f16_128x128_32x5_nn_align8",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3i_128x128x64_4x1x1",
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128>>",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel)",
        "volta_h884gemm_128x64_ldg8_nn",
        "turing_fp16_s1688cudnn_fp16_128x128_ldg8_relu_f2f_exp_small_nhwc_tn_v1",
        "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn",
        "void deep_gemm::fp8_gemm_kernel<4096, 7168, 128, 112, 128>",
        "_w8a8_block_fp8_matmul",
        "bmm_E4m3_E4m3_Bfloat16_Fp32_t128x128x128u2_s4_et64x32_m64x32x32",
        "Cijk_Ailk_Bljk_BBS_BH_MT256x128x64_MI16x16x16x1_SN_1LDSB0_APM1",
        "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8_ws1x1_wr2x2",
        "_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weight",
    ],
    "no": [
        "volta_sgemm_128x64_nn",
        "volta_scudnn_128x64_relu_interior_nn_v1",
        "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
        "ampere_sgemm_32x32_sliced1x4_tn",
        "cutlass_80_simt_sgemm_128x32_8x5_nn_align1",
        "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize32x32x8_ffma",
        "void cudnn::detail::wgrad_alg0_engine<float, 128, 5, 5, 3, 3, 3, false, 512>",
        "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>",
        "triton_poi_fused_add_relu_0",
        "void Eigen::internal::EigenMetaKernel<Eigen::TensorConversionOp<float, Eigen::half>>",
        "loop_transpose_fusion",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    ],
    "unknown": ["gemm_fusion_dot_12", "triton_mm", "_matmul_ogs_NNT_bf16xbf16xmxfp4", "attn_fwd"],
}


@pytest.mark.parametrize(("name", "uses"), [(name, uses) for uses, names in KERNELS.items() for name in names])
def test_whether_a_kernel_uses_tensor_cores_is_known_by_todays_names(name, uses):
    assert tensor_core(name) == uses


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("MemcpyH2D", DeviceKind.COPY_H2D),
        ("Memcpy HtoD (Pageable -> Device)", DeviceKind.COPY_H2D),
        ("Memcpy DtoH (Device -> Pinned)", DeviceKind.COPY_D2H),
        ("MemcpyD2H", DeviceKind.COPY_D2H),
        ("MemcpyP2P", DeviceKind.COPY_D2D),
        ("Memcpy PtoP (Device -> Device)", DeviceKind.COPY_D2D),
        ("CopyDeviceToDevice", DeviceKind.COPY_D2D),
        ("__amd_rocclr_copyBuffer.kd", DeviceKind.COPY_D2D),
        ("MemcpyOther", DeviceKind.COPY_OTHER),
        ("Memset (Device)", DeviceKind.MEMSET),
        ("Memset", DeviceKind.MEMSET),
        ("ncclKernel_AllReduce_RING_LL_Sum_float", DeviceKind.COLLECTIVE),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>", DeviceKind.COLLECTIVE),
        ("void dpsk::ep::dispatch<8, 1024>(int4*, float*)", DeviceKind.COLLECTIVE),
        ("gemm_copy_fused", DeviceKind.KERNEL),
    ],
)
def test_device_kinds(name, kind):
    assert device_kind(name) == kind


def test_the_ends_of_a_copy_outweigh_its_name():
    assert copy_kind("MemcpyOther", "pageable", "device") == DeviceKind.COPY_H2D
    assert copy_kind("Memcpy", "device", "pinned") == DeviceKind.COPY_D2H
    assert copy_kind("Memcpy", "device", "device") == DeviceKind.COPY_D2D
    assert memory_kind("device", "pageable") == MemoryKind.PAGEABLE
    assert memory_kind("", "") == MemoryKind.UNKNOWN


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaLaunchKernel", HostKind.LAUNCH),
        ("cudaLaunchKernelExC_v11060", HostKind.LAUNCH),
        ("cuLaunchKernelEx", HostKind.LAUNCH),
        ("hipExtModuleLaunchKernel", HostKind.LAUNCH),
        ("cuGraphLaunch", HostKind.LAUNCH),
        ("cuMemcpyHtoDAsync_v2", HostKind.LAUNCH),
        ("cuStreamSynchronize", HostKind.SYNC),
        ("cudaDeviceSynchronize_v3020", HostKind.SYNC),
        ("hipEventSynchronize", HostKind.SYNC),
        ("cuMemAlloc_v2", HostKind.CALL),
        ("cudaEventRecord", HostKind.CALL),
        ("custom_op", None),
        ("hippo", None),
    ],
)
def test_driver_and_runtime_calls(name, kind):
    assert api_kind(name) == kind


def test_op_of_strips_type_and_shapes():
    assert op_of("model/dense/MatMul:MatMul") == "model/dense/MatMul"
    assert op_of("replica_4/x/Cast:Cast#shape=(half[4,384])#") == "replica_4/x/Cast"
    assert op_of("jit(f)/conv_general_dilated") == "jit(f)/conv_general_dilated"
