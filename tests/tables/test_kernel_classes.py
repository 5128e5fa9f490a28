"""The class of a kernel from its name."""

import numpy as np
import pytest

from diagnose.model.events import Kind
from diagnose.tables.kernel_classes import CLASSES, OTHER, classify, kernel_classes


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("ampere_sgemm_128x64_tn", "gemm"),
        ("nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT", "gemm"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "gemm"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_nn_align1>(int)", "gemm"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64", "gemm"),
        ("void gemv2N_kernel<int, int, float, float>(int)", "gemm"),
        ("triton_tem_fused_bmm_12", "gemm"),
        ("volta_scudnn_128x64_relu_small_nn_v1", "convolution"),
        ("void implicit_convolve_sgemm<float, float, 128, 5, 5>(int)", "convolution"),
        ("sm80_xmma_dgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc", "convolution"),
        ("igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt64x64x64", "convolution"),
        ("_ZN2ck16tensor_operation6device12_GLOBAL__N_149kernel_grouped_conv_fwd_multiple_abd", "convolution"),
        ("void pytorch_flash::flash_fwd_kernel<int>(int)", "attention"),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(int)", "attention"),
        ("attn_fwd.kd", "attention"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(int)", "normalisation"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(int)", "normalisation"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float>(int)", "softmax"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)", "elementwise"),
        ("void at::native::elementwise_kernel<128, 2, direct_copy_kernel_cuda(int)>", "copy"),
        ("void cudnn::ops::nchwToNhwcKernel<float, float, float>(int)", "copy"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int>(int)", "copy"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, sum_functor>>(int)", "reduction"),
        ("void split_embedding_codegen_forward_unweighted_kernel<float>(int)", "embedding"),
        ("void at::native::index_elementwise_kernel<128, 4, gpu_index_kernel>(int)", "index"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>(int)", "optimizer"),
        ("void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float>(int)", "loss"),
        ("void multi_bluestein_fft<5u, EPT<5u>, 256u>(kernel_arguments_blu_t<unsigned int>)", "fft"),
        ("void vector_fft<4096u, EPT<8u>, 1u>(kernel_arguments_t<unsigned int>)", "fft"),
        ("void regular_fft_factor<64u, EPT<8u>>(kernel_arguments_t<unsigned int>)", "fft"),
        ("void kernel_wrapper<&(void packR2C_kernel_Odd_impl<unsigned int, float>(int))>(int)", "fft"),
        ("void postprocess_kernel<float, unsigned int>(real_complex_args_t<unsigned int>)", "fft"),
        ("void fft2d_r2c_32x32<float, false, 0u, false>(float2*, float const*)", "convolution"),  # cuDNN's
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(int)", "collective"),
        ("void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8, 2, 16, 24>(int4*, float*)", "collective"),
        ("void deep_ep::intranode::dispatch<8, 768>(int4*)", "collective"),
        ("mori::moe::EpDispatchIntraNodeKernel_bf16", "collective"),
        ("_mxfp8_all_to_all_expert_major_kernel", "collective"),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<int>(int)", "collective"),
        ("void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)", OTHER),
        ("triton_poi_fused_all_gather_into_tensor_wait_tensor_3", "fused"),
        ("_all_gather_matmul_kernel", "gemm"),
        ("void cub::DeviceReduceByKeyKernel<cub::DispatchReduceByKey<long*, long*>>(int)", "index"),
        ("void flash::flash_fwd_splitkv_combine_kernel<int>(int)", "attention"),
        ("triton_poi_fused_add_relu_3", "fused"),
        ("triton_per_fused_add_native_layer_norm_20", "fused"),
        ("void at::native::(anonymous namespace)::max_pool_forward_nchw<float>(int)", "pooling"),
        ("Memcpy HtoD (Pageable -> Device)", "memcpy"),
        ("Memset (Device)", "memset"),
        ("my_own_kernel(int)", OTHER),
    ],
)
def test_names(name, found):
    assert classify(name) == found


def test_the_operator_tells_where_the_name_does_not():
    assert classify("kern_7", "aten::addmm") == "gemm"
    assert classify("kern_7", "aten::cudnn_convolution") == "convolution"
    assert classify("kern_7", "aten::something") == OTHER


def test_a_copy_is_one_by_its_kind(recording):
    r = recording()
    r.step(1, 0, 100)
    r.kernel("gemm", 0, 10)
    r.copy("a name that says nothing", 20, 30)
    trace = r.trace
    rows = np.flatnonzero(np.isin(trace.events.kind, (Kind.KERNEL, Kind.MEMCPY)))
    assert [CLASSES[i] for i in kernel_classes(trace, rows)] == ["gemm", "memcpy"]


def test_little_of_the_recorded_gpu_time_is_unclassified(recorded, extent):
    time, unknown = 0, 0
    for name in recorded.of(extent):
        trace = recorded.captures[name].trace
        rows = np.flatnonzero(trace.events.kind == Kind.KERNEL)
        length = (trace.events.end - trace.events.start)[rows]
        time += int(length.sum())
        unknown += int(length[kernel_classes(trace, rows) == CLASSES.index(OTHER)].sum())
    assert time > 0
    assert unknown < 0.03 * time
