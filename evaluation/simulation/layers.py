"""Operators and their kernels: names as exporters write them, times from the shapes and the GPU's peaks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulation import kernel_names
from simulation.kernel_names import Precision
from simulation.machine import Gpu, Machine

__all__ = ["Kernel", "Layer", "Op", "Shaper", "op_ns"]

Dims = tuple[tuple[int, ...], ...]
FLOOR_NS = 1_600.0  # the shortest kernel


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
        name = kernel_names.matmul(self.gpu, self.precision, layout)
        return Kernel(name, "matmul", FLOOR_NS * 1.6 + max(compute, self._moved((m * k + k * n + m * n) * self.item)))

    def pointwise(self, functor: str, elements: int, tensors: int = 3, device_class: str = "pointwise") -> Kernel:
        """Return a kernel that reads and writes ``tensors`` tensors of ``elements``."""
        name = kernel_names.pointwise(functor, tensors)
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
        reduced = self.moving(kernel_names.REDUCE_SUM, "other", m * n * self.item)
        bias = Op("aten::sum", (reduced,), dims=((m, n), (), (), ()))
        return Layer(name, (forward,), (("AddmmBackward0", (to_input, to_weight, bias)),), (n * k, n))

    def activation(self, name: str, elements: int, *, pieces: int = 1) -> Layer:
        """Return a GELU; with ``pieces``, the same written as that many operators."""
        functor = "at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)"
        dims = ((elements,),)
        if pieces == 1:
            ops: tuple[Op, ...] = (Op("aten::gelu", (self.pointwise(functor, elements, 2),), dims=dims),)
        else:
            parts = (
                "aten::mul",
                "aten::pow",
                "aten::mul",
                "aten::add",
                "aten::mul",
                "aten::tanh",
                "aten::add",
                "aten::mul",
            )
            ops = tuple(
                Op(p, (self.pointwise(kernel_names.functor(p), elements, 3),), dims=dims) for p in parts[:pieces]
            )
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
        kernel = self.pointwise(kernel_names.functor("aten::add"), elements, 3)
        return Layer(name, (Op("aten::add", (kernel,), dims=((elements,),) * 2),), (("AddBackward0", ()),))

    def layer_norm(self, name: str, rows: int, width: int) -> Layer:
        """Return a layer norm."""
        moved = rows * width * self.item
        kernel = self.moving(kernel_names.LAYER_NORM, "norm", 2 * moved)
        back = (
            self.moving(
                kernel_names.LAYER_NORM_GRADIENT,
                "norm",
                3 * moved,
            ),
            self.moving(
                kernel_names.LAYER_NORM_WEIGHTS,
                "norm",
                2 * moved,
            ),
        )
        dims = ((rows, width), (), (width,), (width,))
        return Layer(
            name,
            (Op("aten::layer_norm", (kernel,), "aten::native_layer_norm", 2, dims),),
            (("NativeLayerNormBackward0", (Op("aten::native_layer_norm_backward", back, dims=dims),)),),
            (width, width),
        )

    def attention(self, name: str, shape: tuple[int, int, int, int], *, written: bool = False) -> Layer:
        """Return attention of batch, heads, length, width: one fused kernel, or ``written`` out."""
        batch, heads, length, width = shape
        dims = ((batch, heads, length, width),) * 3
        flops = 4.0 * batch * heads * length * length * width
        # In float32 a fused kernel computes each product as three in TF32, where there is TF32.
        single = max(self.gpu.single_tflops, self.gpu.tf32_tflops / 3)
        peak = (self.gpu.half_tflops if self.precision == "half" else single) * 1e3
        fused = FLOOR_NS * 2 + max(
            flops / (peak * self.machine.matmul_efficiency * 0.7),
            self._moved(4 * batch * heads * length * width * self.item),
        )
        name_back = kernel_names.FLASH_GRADIENT
        back = Op(
            "aten::_scaled_dot_product_flash_attention_backward",
            (Kernel(name_back, "attention", 2.5 * fused),),
            dims=dims,
        )
        if not written:
            forward: tuple[Op, ...] = (
                Op(
                    "aten::scaled_dot_product_attention",
                    (
                        Kernel(
                            kernel_names.FLASH,
                            "attention",
                            fused,
                        ),
                    ),
                    "aten::_flash_attention_forward",
                    3,
                    dims,
                ),
            )
            return Layer(name, forward, (("ScaledDotProductFlashAttentionBackward0", (back,)),))
        scores = batch * heads * length * length
        product = self.matmul(batch * heads * length, width, length)
        factors = ((batch * heads, length, width), (batch * heads, width, length))
        square = ((batch, heads, length, length),)
        softmax = self.moving(kernel_names.SOFTMAX, "attention", 2 * scores * self.item)
        forward = (
            Op("aten::matmul", (replace(product, device_class="attention"),), "aten::bmm", 3, factors),
            Op("aten::div", (self.pointwise(kernel_names.functor("aten::div"), scores, 2, "attention"),), dims=square),
            Op("aten::softmax", (softmax,), "aten::_softmax", 0, square),
            Op("aten::matmul", (replace(product, device_class="attention"),), "aten::bmm", 3, (square[0], dims[0])),
        )
        return Layer(name, forward, (("ScaledDotProductFlashAttentionBackward0", (back,)),))

    def convolution(self, name: str, image: tuple[int, int, int], out: int, *, transposed: bool = False) -> Layer:
        """Return a 3 × 3 convolution of batch, channels, size; ``transposed`` ones convert the layout around it."""
        batch, channels, size = image
        m, k = batch * size * size, channels * 9
        dims = ((batch, channels, size, size), (out, channels, 3, 3))
        around = (self._transpose(m * channels, "nchwToNhwcKernel"),) if transposed else ()
        behind = (self._transpose(m * out, "nhwcToNchwKernel"),) if transposed else ()
        product = replace(self.matmul(m, k, out), name=kernel_names.convolution(self.gpu, self.precision))
        forward = Op("aten::conv2d", (*around, product, *behind), "aten::cudnn_convolution", 0, dims)
        back = Op(
            "aten::convolution_backward",
            (*around, replace(product, name=product.name.replace("fprop", "dgrad")), *behind,
             *around, replace(product, name=product.name.replace("fprop", "wgrad"))),
            dims=dims,
        )  # fmt: skip
        return Layer(name, (forward,), (("ConvolutionBackward0", (back,)),), (out * k,))

    def _transpose(self, elements: int, name: str) -> Kernel:
        return self.moving(
            kernel_names.transpose(name, half=self.precision == "half"), "layout", 2 * elements * self.item
        )

    def batch_norm(self, name: str, elements: int, channels: int) -> Layer:
        """Return a batch norm, which also counts its batches."""
        moved = elements * self.item
        forward = self.moving(kernel_names.BATCH_NORM, "norm", 2 * moved)
        back = self.moving(kernel_names.BATCH_NORM_GRADIENT, "norm", 3 * moved)
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
        kernel = self.moving(kernel_names.EMBEDDING, "other", 4 * moved)
        back = self.moving(kernel_names.EMBEDDING_GRADIENT, "other", 6 * moved)
        dims = ((rows, width), (batch,), (batch,))
        return Layer(
            name,
            (Op("aten::embedding_bag", (kernel,), "aten::_embedding_bag", 4, dims),),
            (("EmbeddingBagBackward0", (Op("aten::_embedding_bag_dense_backward", (back,), views=6, dims=dims),)),),
            (rows * width,),
        )
