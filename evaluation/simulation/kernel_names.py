"""Names of kernels, as the libraries of each vendor give them."""

from __future__ import annotations

from typing import Literal

from simulation.machine import Gpu

Precision = Literal["half", "tf32", "single"]

BATCH_NORM = "void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>(cudnn::bn_fw_tr_1C11_args<float>)"
BATCH_NORM_GRADIENT = (
    "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float, float, float, float"
    ", cudnnTensorStruct)"
)
CAST = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorItera"
    "torBase&)::{lambda()#3}, std::array<char*, 2ul>, 4, TrivialOffsetCalculator<1, unsigned int>, at"
    "::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1> >(int)"
)
CONCATENATE = (
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<at::native::(anonym"
    "ous namespace)::OpaqueType<4u>, unsigned int, 1, 128, 1>(char*)"
)
EMBEDDING = (
    "void at::native::(anonymous namespace)::EmbeddingBag_updateOutputKernel_sum_mean<float, int>(int"
    " const*, int const*, float const*, float*, long, long)"
)
EMBEDDING_GRADIENT = (
    "void at::native::(anonymous namespace)::EmbeddingBag_accGradParametersKernel_max<float, int>(int"
    " const*, float const*, float*, long, long)"
)
FLASH = "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 64, 4, false, false> >(Flash_fwd_params)"
FLASH_GRADIENT = (
    "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, 128, 128, 8, 4, 4,"
    " 4, false, false> >(Flash_bwd_params)"
)
FUSED_ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespa"
    "ce)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFuncto"
    "r<float, 4, (at::native::ADAM_MODE)1, false>, float const*, double, double>(at::native::(anonymo"
    "us namespace)::FusedOptimizerTensorListMetadata<4>)"
)
LAYER_NORM = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float, f"
    "loat const*, float const*, float const*, float*, float*, float*)"
)
LAYER_NORM_GRADIENT = (
    "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel<float, float>(float const*,"
    " float const*, float const*, float const*, float const*, float*, int)"
)
LAYER_NORM_WEIGHTS = (
    "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel<float, float>(long, long, fl"
    "oat const*, float const*, float const*, float const*, float*, float*)"
)
LISTS = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespa"
    "ce)::TensorListMetadata<2>, at::native::(anonymous namespace)::{}<float, 2, 1, 1>, std::multipli"
    "es<float>, float>(at::native::(anonymous namespace)::TensorListMetadata<2>)"
)
MEAN = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, fl"
    "oat, float, float>, unsigned int, float, 4> >(at::native::ReduceOp<float>)"
)
ONE_TENSOR = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 3ul> >(int, "
    "at::native::{}, std::array<char*, 3ul>)"
)
REDUCE_SUM = (
    "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float, at::native::func_wrapper_t<fl"
    "oat, at::native::sum_functor>, unsigned int, float, 4> >(at::native::ReduceOp<float>)"
)
SCALE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, float, float,"
    " at::native::binary_internal::MulFunctor<float> >, std::array<char*, 2ul> >(int, at::native::AUn"
    "aryFunctor<float>, std::array<char*, 2ul>)"
)
SOFTMAX = (
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*, "
    "float const*, int, int, int, bool const*, int, bool)"
)
FUNCTORS = {"aten::mul": "MulFunctor<float>", "aten::add": "CUDAFunctor_add<float>", "aten::div": "DivFunctor<float>"}


def functor(operator: str) -> str:
    """Return what computes an operator for one element."""
    return f"at::native::{FUNCTORS.get(operator, operator.removeprefix('aten::') + '_kernel_cuda')}"


def pointwise(computes: str, tensors: int) -> str:
    """Return the kernel that applies a functor to every element."""
    arrays = f"std::array<char*, {tensors}ul>"
    return f"void at::native::vectorized_elementwise_kernel<4, {computes}, {arrays}>(int, {computes}, {arrays})"


def transpose(kernel: str, *, half: bool) -> str:
    """Return cuDNN's conversion of a layout."""
    types = "__half, __half, float" if half else "float, float, float"
    given = "cudnn::ops::nchw2nhwc_params_t<float>, __half const*, __half*"
    return f"void cudnn::ops::{kernel}<{types}, false, true, (cudnnKernelDataType_t)0>({given})"


def matmul(gpu: Gpu, precision: Precision, layout: str) -> str:
    """Return what the vendor's library calls its product."""
    if gpu.vendor == "amd":
        kind = {"half": "BBS_BH", "tf32": "S_SX", "single": "SB"}[precision]
        side = "Alik" if layout[0] == "t" else "Ailk"
        return f"Cijk_{side}_Bljk_{kind}_Bias_HA_S_SAV_UserArgs_MT256x128x64_MI16x16x1_SN_LDSB1"
    if precision == "tf32":
        return _tf32(gpu, layout)
    family = {7: "volta", 8: "ampere", 9: "hopper"}[gpu.capability[0]]
    if precision == "single":
        return (
            _cutlass("Kernel2", f"cutlass_80_simt_sgemm_128x128_8x4_{layout}_align1")
            if family == "hopper"
            else (f"{family}_sgemm_128x64_{layout}")
        )
    return {
        "volta": f"volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_{layout}",
        "ampere": f"ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_{layout}",
        "hopper": _hopper("bf16bf16_bf16f32_f32", layout),
    }[family]


def _tf32(gpu: Gpu, layout: str) -> str:
    if gpu.capability[0] == 9:
        return _hopper("f32f32_tf32f32_f32", layout)
    return _cutlass("Kernel", f"cutlass_80_tensorop_s1688gemm_128x128_16x4_{layout}_align4")


def _hopper(types: str, layout: str) -> str:
    shape = "tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
    return f"sm90_xmma_gemm_{types}_{layout[0]}n_n_{shape}"


def _cutlass(wrapper: str, name: str) -> str:
    return f"void cutlass::{wrapper}<{name}>({name}::Params)"


def convolution(gpu: Gpu, precision: Precision) -> str:
    """Return what the vendor's library calls its forward convolution."""
    if gpu.vendor == "amd":
        return "igemm_fprop_gtcx3_nhwc_bf16_bx0_ex1_bt256x128x32_wt32x32x8_ws2x1_wr2x2_ta1x4x1x8_1x8x1x32"
    if precision == "single":
        return {
            7: "volta_scudnn_128x64_relu_medium_nn_v1",
            8: "cudnn_ampere_scudnn_128x64_relu_xregs_large_nn_v1",
            9: "sm80_xmma_fprop_implicit_gemm_indexed_f32f32_f32f32_f32_nhwckrsc_nhwc_tilesize128x128x8_stage3"
            "_warpsize2x2x1_g1_ffma_aligna4_alignc4_execute_kernel__5x_cudnn",
        }[gpu.capability[0]]
    kind = "s1688" if precision == "tf32" else "h884" if gpu.capability[0] == 7 else "h16816"
    types = "f16" if precision == "half" else "tf32"
    name = f"cutlass_tensorop_{kind}fprop_optimized_{types}_128x128_32x4_nhwc_align8"
    return f"void cutlass_cudnn_train::Kernel<{name}>(cutlass_tensorop::Params)"
