"""Operators and their kernels: names as exporters write them, times from the shapes and the GPU's peaks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from simulation.machine import Gpu, Machine

__all__ = ["Kernel", "Layer", "Op", "Shaper", "op_ns"]

Precision = Literal["half", "tf32", "single"]
Dims = tuple[tuple[int, ...], ...]
FLOOR_NS = 1_600.0  # the shortest kernel
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, {}, std::array<char*, {}ul> >(int, {}, std::array<char*, {}ul>)"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel with its class: matmul, pointwise, norm, attention, layout, optimizer, other."""

    name: str
    device_class: str
    ns: float
    api: str = "launch"


@dataclass(frozen=True, slots=True)
class Op:
    """An operator as one autograd node or one call in Python makes it."""

    name: str
    kernels: tuple[Kernel, ...] = ()
    inner: str = ""  # the operator inside that launches
    views: int = 0  # operators inside that only change metadata
    dims: Dims = ()


@dataclass(frozen=True, slots=True)
class Layer:
    """A module: what it runs forward, what autograd runs for it (last first), its parameters."""

    name: str
    forward: tuple[Op, ...]
    backward: tuple[tuple[str, tuple[Op, ...]], ...]  # node name, operators
    parameters: tuple[int, ...] = ()  # elements of each
    kept: bool = True  # recomputed where a block is checkpointed


def op_ns(op: Op) -> float:
    """Return what dispatching an operator costs the host, without its launches and the operators inside."""
    return 5_000.0 + 1_200.0 * len(op.kernels) if op.kernels else 2_500.0


@dataclass(frozen=True, slots=True)
class Shaper:
    """Makes operators of given shapes for a machine and a precision."""

    machine: Machine
    precision: Precision = "half"

    @property
    def gpu(self) -> Gpu:
        """Return the GPU."""
        return self.machine.gpu

    @property
    def item(self) -> int:
        """Return the bytes of an element."""
        return 2 if self.precision == "half" else 4

    def matmul(self, m: int, k: int, n: int, layout: str = "tn") -> Kernel:
        """Return the product of m × k and k × n."""
        peaks = {"half": self.gpu.half_tflops, "tf32": self.gpu.tf32_tflops, "single": self.gpu.single_tflops}
        peak = (peaks[self.precision] or self.gpu.single_tflops) * 1e3  # FLOP/ns
        compute = 2.0 * m * k * n / (peak * self.machine.matmul_efficiency)
        name = _matmul_name(self.gpu, self.precision, layout)
        return Kernel(name, "matmul", FLOOR_NS * 1.6 + max(compute, self._moved((m * k + k * n + m * n) * self.item)))

    def pointwise(self, functor: str, elements: int, tensors: int = 3, device_class: str = "pointwise") -> Kernel:
        """Return a kernel that reads and writes ``tensors`` tensors of ``elements``."""
        name = POINTWISE.format(functor, tensors, functor, tensors)
        return Kernel(name, device_class, FLOOR_NS + self._moved(elements * self.item * tensors))

    def moving(self, name: str, device_class: str, num_bytes: float) -> Kernel:
        """Return a kernel bound by memory."""
        return Kernel(name, device_class, FLOOR_NS * 1.3 + self._moved(num_bytes))

    def _moved(self, num_bytes: float) -> float:
        return num_bytes / (self.gpu.memory_gbps * self.machine.memory_efficiency)

    def linear(self, name: str, m: int, k: int, n: int) -> Layer:
        """Return a linear layer with its gradients."""
        forward = Op("aten::linear", (self.matmul(m, k, n),), "aten::addmm", 1, ((m, k), (n, k), (n,)))
        to_input = Op("aten::mm", (self.matmul(m, n, k, "nn"),), dims=((m, n), (n, k)))
        to_weight = Op("aten::mm", (self.matmul(n, m, k, "nt"),), views=1, dims=((n, m), (m, k)))
        reduced = self.moving(_reduce("at::native::func_wrapper_t<float, at::native::sum_functor>"), "other", m * n * self.item)
        bias = Op("aten::sum", (reduced,), dims=((m, n), (), (), ()))
        return Layer(name, (forward,), (("AddmmBackward0", (to_input, to_weight, bias)),), (n * k, n))

    def activation(self, name: str, elements: int, *, pieces: int = 1) -> Layer:
        """Return a GELU; with ``pieces``, the same written as that many operators."""
        functor = "at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)"
        dims = ((elements,),)
        if pieces == 1:
            ops: tuple[Op, ...] = (Op("aten::gelu", (self.pointwise(functor, elements, 2),), dims=dims),)
        else:
            parts = ("aten::mul", "aten::pow", "aten::mul", "aten::add", "aten::mul", "aten::tanh", "aten::add", "aten::mul")
            ops = tuple(Op(p, (self.pointwise(_functor(p), elements, 3),), dims=dims) for p in parts[:pieces])
        back = Op("aten::gelu_backward", (self.pointwise(functor, elements, 3),), dims=dims * 2)
        return Layer(name, ops, (("GeluBackward0", (back,)),))

    def relu(self, name: str, elements: int) -> Layer:
        """Return a ReLU."""
        forward = self.pointwise("at::native::(anonymous namespace)::launch_clamp_scalar", elements, 2)
        back = self.pointwise("at::native::(anonymous namespace)::threshold_kernel_impl<float>", elements, 3)
        return Layer(
            name,
            (Op("aten::relu", (forward,), "aten::clamp_min", 0, ((elements,),)),),
            (("ReluBackward0", (Op("aten::threshold_backward", (back,), dims=((elements,),) * 2),)),),
        )

    def add(self, name: str, elements: int) -> Layer:
        """Return a residual sum."""
        kernel = self.pointwise(_functor("aten::add"), elements, 3)
        return Layer(name, (Op("aten::add", (kernel,), dims=((elements,),) * 2),), (("AddBackward0", ()),))

    def layer_norm(self, name: str, rows: int, width: int) -> Layer:
        """Return a layer norm."""
        moved = rows * width * self.item
        kernel = self.moving("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float, float const*, float const*, float const*, float*, float*, float*)", "norm", 2 * moved)  # fmt: skip # noqa: E501
        back = (
            self.moving("void at::native::(anonymous namespace)::layer_norm_grad_input_kernel<float, float>(float const*, float const*, float const*, float const*, float const*, float*, int)", "norm", 3 * moved),  # fmt: skip # noqa: E501
            self.moving("void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel<float, float>(long, long, float const*, float const*, float const*, float const*, float*, float*)", "norm", 2 * moved),  # fmt: skip # noqa: E501
        )
        dims = ((rows, width), (), (width,), (width,))
        return Layer(
            name,
            (Op("aten::layer_norm", (kernel,), "aten::native_layer_norm", 2, dims),),
            (("NativeLayerNormBackward0", (Op("aten::native_layer_norm_backward", back, dims=dims),)),),
            (width, width),
        )

    def attention(self, name: str, batch: int, heads: int, length: int, width: int, *, written: bool = False) -> Layer:
        """Return attention by one fused kernel, or ``written`` as two products and a softmax."""
        dims = ((batch, heads, length, width),) * 3
        flops = 4.0 * batch * heads * length * length * width
        peak = (self.gpu.half_tflops if self.precision == "half" else self.gpu.single_tflops) * 1e3
        fused = FLOOR_NS * 2 + max(
            flops / (peak * self.machine.matmul_efficiency * 0.7), self._moved(4 * batch * heads * length * width * self.item)
        )
        name_back = "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, 128, 128, 8, 4, 4, 4, false, false> >(Flash_bwd_params)"  # fmt: skip # noqa: E501
        back = Op("aten::_scaled_dot_product_flash_attention_backward", (Kernel(name_back, "attention", 2.5 * fused),), dims=dims)
        if not written:
            forward: tuple[Op, ...] = (
                Op("aten::scaled_dot_product_attention", (Kernel("void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 64, 4, false, false> >(Flash_fwd_params)", "attention", fused),), "aten::_flash_attention_forward", 3, dims),  # fmt: skip # noqa: E501
            )
            return Layer(name, forward, (("ScaledDotProductFlashAttentionBackward0", (back,)),))
        scores = batch * heads * length * length
        product = self.matmul(batch * heads * length, width, length)
        shape = ((batch * heads, length, width), (batch * heads, width, length))
        square = ((batch, heads, length, length),)
        softmax = self.moving("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*, float const*, int, int, int, bool const*, int, bool)", "attention", 2 * scores * self.item)  # fmt: skip # noqa: E501
        forward = (
            Op("aten::matmul", (replace(product, device_class="attention"),), "aten::bmm", 3, shape),
            Op("aten::div", (self.pointwise(_functor("aten::div"), scores, 2, "attention"),), dims=square),
            Op("aten::softmax", (softmax,), "aten::_softmax", 0, square),
            Op("aten::matmul", (replace(product, device_class="attention"),), "aten::bmm", 3, (square[0], dims[0])),
        )
        return Layer(name, forward, (("ScaledDotProductFlashAttentionBackward0", (back,)),))

    def convolution(self, name: str, batch: int, channels: int, out: int, size: int, *, transposed: bool = False) -> Layer:
        """Return a 3 × 3 convolution; ``transposed`` ones convert the layout before and after."""
        m, k = batch * size * size, channels * 9
        dims = ((batch, channels, size, size), (out, channels, 3, 3))
        around = (self._transpose(m * channels, "nchwToNhwcKernel"),) if transposed else ()
        behind = (self._transpose(m * out, "nhwcToNchwKernel"),) if transposed else ()
        product = replace(self.matmul(m, k, out), name=_convolution_name(self.gpu, self.precision))
        forward = Op("aten::conv2d", (*around, product, *behind), "aten::cudnn_convolution", 0, dims)
        back = Op(
            "aten::convolution_backward",
            (*around, replace(product, name=product.name.replace("fprop", "dgrad")), *behind,
             *around, replace(product, name=product.name.replace("fprop", "wgrad"))),
            dims=dims,
        )  # fmt: skip
        return Layer(name, (forward,), (("ConvolutionBackward0", (back,)),), (out * k,))

    def _transpose(self, elements: int, name: str) -> Kernel:
        half = "__half, __half, float" if self.precision == "half" else "float, float, float"
        return self.moving(f"void cudnn::ops::{name}<{half}, false, true, (cudnnKernelDataType_t)0>(cudnn::ops::nchw2nhwc_params_t<float>, __half const*, __half*)", "layout", 2 * elements * self.item)  # fmt: skip # noqa: E501

    def batch_norm(self, name: str, elements: int, channels: int) -> Layer:
        """Return a batch norm, which also counts its batches."""
        moved = elements * self.item
        forward = self.moving("void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>(cudnn::bn_fw_tr_1C11_args<float>)", "norm", 2 * moved)  # fmt: skip # noqa: E501
        back = self.moving("void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float, float, float, float, cudnnTensorStruct)", "norm", 3 * moved)  # fmt: skip # noqa: E501
        count = Op("aten::add_", (self.pointwise("at::native::CUDAFunctorOnSelf_add<long>", 1, 2),), dims=((), (), ()))
        dims = ((elements // channels, channels), (channels,), (channels,))
        return Layer(
            name,
            (count, Op("aten::batch_norm", (forward,), "aten::cudnn_batch_norm", 3, dims)),
            (("CudnnBatchNormBackward0", (Op("aten::cudnn_batch_norm_backward", (back,), views=3, dims=dims),)),),
            (channels, channels),
        )

    def embedding(self, name: str, rows: int, batch: int, width: int) -> Layer:
        """Return a bag of embeddings."""
        moved = batch * width * self.item * 2
        kernel = self.moving("void at::native::(anonymous namespace)::EmbeddingBag_updateOutputKernel_sum_mean<float, int>(int const*, int const*, float const*, float*, long, long)", "other", 4 * moved)  # fmt: skip # noqa: E501
        back = self.moving("void at::native::(anonymous namespace)::EmbeddingBag_accGradParametersKernel_max<float, int>(int const*, float const*, float*, long, long)", "other", 6 * moved)  # fmt: skip # noqa: E501
        dims = ((rows, width), (batch,), (batch,))
        return Layer(
            name,
            (Op("aten::embedding_bag", (kernel,), "aten::_embedding_bag", 4, dims),),
            (("EmbeddingBagBackward0", (Op("aten::_embedding_bag_dense_backward", (back,), views=6, dims=dims),)),),
            (rows * width,),
        )


def _functor(op: str) -> str:
    names = {"aten::mul": "MulFunctor<float>", "aten::add": "CUDAFunctor_add<float>", "aten::div": "DivFunctor<float>"}
    return f"at::native::{names.get(op, op.removeprefix('aten::') + '_kernel_cuda')}"


def _reduce(wrapped: str) -> str:
    return f"void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float, {wrapped}, unsigned int, float, 4> >(at::native::ReduceOp<float>)"  # fmt: skip # noqa: E501


def _matmul_name(gpu: Gpu, precision: Precision, layout: str) -> str:
    """Return what the vendor's library calls its kernel."""
    if gpu.vendor == "amd":
        kind = {"half": "BBS_BH", "tf32": "S_SX", "single": "SB"}[precision]
        return f"Cijk_{'Alik' if layout[0] == 't' else 'Ailk'}_Bljk_{kind}_Bias_HA_S_SAV_UserArgs_MT256x128x64_MI16x16x1_SN_LDSB1"
    family = {7: "volta", 8: "ampere", 9: "sm90_xmma"}[gpu.capability[0]]
    if family == "sm90_xmma":
        kind = {"half": "bf16bf16_bf16f32_f32", "tf32": "f32f32_tf32f32_f32", "single": "f32f32_f32f32_f32"}[precision]
        if precision == "single":
            return f"void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_{layout}_align1>(cutlass_80_simt_sgemm_128x128_8x4_{layout}_align1::Params)"  # fmt: skip # noqa: E501
        return f"sm90_xmma_gemm_{kind}_{layout[0]}n_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
    if precision == "single":
        return f"{family}_sgemm_128x64_{layout}"
    if precision == "tf32":
        return f"void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x4_{layout}_align4>(cutlass_80_tensorop_s1688gemm_128x128_16x4_{layout}_align4::Params)"  # fmt: skip # noqa: E501
    if family == "volta":
        return f"volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_{layout}"
    return f"ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_{layout}"


def _convolution_name(gpu: Gpu, precision: Precision) -> str:
    if gpu.vendor == "amd":
        return "igemm_fprop_gtcx3_nhwc_bf16_bx0_ex1_bt256x128x32_wt32x32x8_ws2x1_wr2x2_ta1x4x1x8_1x8x1x32_tb1x8x1x2_1x4x1x64"
    kind = {"half": "h16816", "tf32": "s1688", "single": "s161616"}[precision]
    if gpu.capability[0] == 7:
        kind = "h884" if precision == "half" else "simt"
    return f"void cutlass_cudnn_train::Kernel<cutlass_tensorop_{kind}fprop_optimized_{'f16' if precision == 'half' else 'tf32'}_128x128_32x4_nhwc_align8>(cutlass_tensorop::Params)"  # fmt: skip # noqa: E501
