"""The class of a device task by its name: kernels of cuBLAS, cuDNN, cuFFT, CUTLASS, Triton, ROCm, PyTorch.

The first pattern that matches decides, so special names stand before general ones: a cuDNN batch norm is a
normalisation, not a convolution. Names that match nothing are classified by the operator that launched them.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Mask, Rows
from diagnose.model.events import Events, Kind, Trace
from diagnose.tables import Tables
from diagnose.tables.names import COLLECTIVE, NAME_PART, AnyCase, Pattern

OTHER = "other"

# Class, and what the names of its kernels contain.
_BY_NAME: tuple[tuple[str, Pattern], ...] = (
    ("memcpy", AnyCase(r"^memcpy|^copy(host|device)to|copybuffer")),
    ("memset", AnyCase(r"^memset|fillbuffer")),
    ("collective", COLLECTIVE),
    ("gemm", AnyCase(r"^triton_tem_\w*mm|^triton_mm|matmul_ogs|^_?matmul_kernel|fused_moe")),
    ("attention", re.compile(r"^triton_tem_\w*(attention|flex)")),
    ("fused", re.compile(r"^triton_(poi|red|per|for|tem|helion|unk|spl|mm|foreach)?_|^triton__?$|^triton__")),
    (
        "attention",
        AnyCase(
            r"fmha|flash_(fwd|bwd)|flash_?attn|flashattn|attn_(fwd|bwd)|(bwd|fwd)_kernel_(dk|dq|fuse)|aotriton|attention"
            r"|mha_(fwd|bwd)|\bmla_|sdpa"
        ),
    ),
    (
        "embedding",
        AnyCase(
            r"split_embedding|embedding|fbgemm_gpu::(?!.*(fp8|quantiz))|permute_(pooled|indices|2d|1d)|recat_"
            r"|bounds_check_indices|linearize_index|lxu_cache|expand_into_jagged"
        ),
    ),
    (
        "optimizer",
        AnyCase(r"multi_tensor_apply|fusedadam|fusedsgd|fusedadagrad|fusedoptimizer|fused_?lamb|lion_"),
    ),
    ("loss", AnyCase(r"nll_?loss|classnll|cross_?entropy|mse_loss|bce_loss|binary_cross|ctc_|kl_div")),
    ("softmax", AnyCase(r"soft_?max")),
    (
        "normalisation",
        AnyCase(
            r"\bbn_(fw|bw)|batch_?norm|batchnorm|layer_?norm|group_?norm|instance_?norm|rms_?norm|gammabeta"
            r"|rowwisemoments|computeinternalgradients|computefusedparams|cucompute(part)?grad|welford"
        ),
    ),
    (
        "copy",
        AnyCase(
            r"nchwtonhwc|nhwctonchw|foldednhwc|nhwctofolded|transpose_(readwrite|\w*_)|batched_transpose|transpose(?!\w*conv)\w*kernel"
            r"|catarraybatchedcopy|direct_copy_kernel|subtensorop|converttensor_kernel|tensortransform"
            r"|copy_device_to_device|split_with_sizes_copy|chunk_cat|reshape_and_cache|permute_?kernel|copy_kernel"
        ),
    ),
    (
        "convolution",
        AnyCase(
            r"scudnn|hcudnn|convolv|winograd|[wd]grad|fprop|conv[123]?d|\bconv_|grouped_conv|_conv|conv(fwd|bwd|olution)"
            r"|miopen|igemm_(fwd|bwd|wrw)|gtcx?\d?_|im2(col|d)|col2im|flip_filter|fft[123]d_|pointwise_mult_and_sum_complex"
            r"|gcgemm|naive_conv|cask_cudnn|compute\w*offsets|bwd_weight|bwd_data|scalepackedtensor|cudnn\w*::ops"
        ),
    ),
    (
        "fft",
        AnyCase(
            r"bluestein|_fft(_factor)?<|\bfft_rtc|\bfft_(fwd|back|inv)|[sd]p(radix|vector)\d|cufft|rocfft|(pack|unpack)(r2c|c2r)"
            r"|real_complex_args|real_(pre|post)_process"
        ),
    ),
    (
        "gemm",
        AnyCase(
            r"gemm|nvjet|cijk_|gemv|xmma|cublas|splitk|cutlass(?!.*elementwise)|hipblaslt|matmul|^bmm_|wvsplitk"
            r"|dot_kernel|epilogue::impl|llmm|moe::dev|finalizekernel|bmm_\w*(e4m3|bfloat16)"
        ),
    ),
    (
        "index",
        AnyCase(
            r"scatter|gather|index|cub::|radixsort|sort|top_?k|deviceselect|devicescan|thrust|masked_|bitonic|searchsorted"
            r"|histogram|nonzero|unique|tensor_kernel_scan|write_indices|cumsum|rocprim|krn_partial|segment"
            r"|triu_tril|compute_cuda_kernel|flip_kernel|roll_cuda|compute_grad_weight|partials_per|sum_and_scatter"
        ),
    ),
    ("pooling", AnyCase(r"pool|upsampl|interpolat|grid_sampl|roi_?align|nms_kernel")),
    (
        "reduction",
        AnyCase(r"reduce_|reduction|_reduce|\breduce|batchnorm_reduce|argmax|argmin|cuda_norm|lpnorm|amax|amin"),
    ),
    (
        "elementwise",
        AnyCase(
            r"elementwise|pointwise|fill_|distribution|dropout|_(add|mul|sub|div)_|gelu|silu|act_and_mul|relu|sigmoid"
            r"|rotary|quantiz|fp8|_to_float|float_to|hfp8|cast_|arange|linspace|kernelpointwise|optensor|op_tensor"
            r"|addtensor|op_generic_tensor|applyop|prelu|random|philox|dequant|functionalbinary|scale_|addfunctor"
        ),
    ),
)
# Operators that determine the class where the kernel's name does not.
_BY_OP: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("attention", re.compile(r"scaled_dot_product|_flash_attention|_efficient_attention|multi_head_attention")),
    ("convolution", re.compile(r"^aten::(_?convolution|cudnn_conv|miopen_conv|conv[123]d|thnn_conv|slow_conv)")),
    ("fft", re.compile(r"^aten::_fft_")),
    ("gemm", re.compile(r"^aten::(mm|addmm|bmm|baddbmm|_scaled_mm|_grouped_mm|linear|matmul|mv|dot|einsum)\b")),
    ("normalisation", re.compile(r"_norm(_backward)?$")),
    ("softmax", re.compile(r"softmax")),
    ("embedding", re.compile(r"embedding")),
)
CLASSES = (*dict.fromkeys(name for name, _ in _BY_NAME), OTHER)


def classify(name: str, op: str = "") -> str:
    """Return the class of a device task from its name, or from the operator behind it, or `other`."""
    name = name[:NAME_PART]
    for kind, pattern in _BY_NAME:
        if pattern.search(name):
            return kind
    for kind, pattern in _BY_OP:
        if op and pattern.search(op):
            return kind
    return OTHER


def kernel_classes(trace: Trace, rows: Rows) -> npt.NDArray[np.int8]:
    """Return the class of each device task, an index into ``CLASSES``; each distinct name is looked at once."""
    events: Events = trace.events
    names = events.name[rows]
    by_name = np.full(len(trace.names) + 1, -1, np.int8)
    by_name[names] = 0
    for name in np.flatnonzero(by_name == 0).tolist():
        by_name[name] = CLASSES.index(classify(trace.names[name]))
    classes = by_name[names]
    classes[events.kind[rows] == Kind.MEMCPY] = CLASSES.index("memcpy")
    classes[events.kind[rows] == Kind.MEMSET] = CLASSES.index("memset")
    return classes


def tasks_of(t: Tables, *classes: str) -> Mask:
    """Return which device tasks are of one of these classes."""
    chosen = np.zeros(len(CLASSES), bool)
    chosen[[CLASSES.index(name) for name in classes]] = True
    found: Mask = chosen[t.task_classes]
    return found


def task_classes(t: Tables) -> npt.NDArray[np.int8]:
    """Return the class of every device task of these tables, an index into ``CLASSES``."""
    return kernel_classes(t.trace, t.tasks.row)
