"""The class of a device task by its name: kernels of cuBLAS, cuDNN, CUTLASS, Triton, ROCm, PyTorch.

The first pattern that matches decides, so special names stand before general ones: a cuDNN batch norm is a
normalisation, not a convolution. Names that match nothing are classified by the operator that launched them.
"""

from __future__ import annotations

import json
import re

import numpy as np
import numpy.typing as npt

from diagnose.model.arrays import Mask, Rows
from diagnose.model.charts import KernelTime
from diagnose.model.events import Events, Kind, Trace
from diagnose.model.intervals import among, distinct, grouped
from diagnose.tables import Tables
from diagnose.tables.names import COLLECTIVE, NAME_PART, AnyCase, Pattern
from diagnose.tables.op_launches import OperatorInputs
from diagnose.text.kernel_names import shorten

__all__ = [
    "CLASSES",
    "OTHER",
    "classify",
    "kernel_classes",
    "kernel_families",
    "kernel_times",
    "task_classes",
    "tasks_of",
]

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


# What the device spends its time on: its kernels, those of one name together, the most expensive first.

MAX_KERNELS = 10  # names; the others are one entry
MIN_NAMED_SHARE = 0.02  # of the computing time: a kernel of no family that takes less is one of the others
MAX_NAME_CHARS = 30
NO_COMPUTE = frozenset({"memcpy", "memset", "collective"})  # families
MIN_KNOWN = 0.5  # of a kernel's time: from here on what is known of its work or its types stands for all of it

_DTYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "Half": "float16",
    "c10::Float8_e4m3fn": "float8", "c10::Float8_e4m3fnuz": "float8", "c10::Float8_e5m2": "float8",
    "signed char": "int8", "unsigned char": "uint8", "int": "int32", "long int": "int64", "bool": "bool",
}  # fmt: skip
_OPERATOR = r"^(?!autograd::|torch::|c10d::)\w+::"
# What names of kernels show of their types; a name that shows several shows none.
_IN_NAMES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("bfloat16", re.compile(r"bf16|bfloat16|_BBS_|_B[BS]_", re.IGNORECASE)),
    ("float16", re.compile(r"(?<!b)f16|(?<![A-Za-z])(h(gemm|cudnn|884|1688|16816))|c10::Half|__half|_HHS_|_HB?_")),
    ("float8", re.compile(r"e4m3|e5m2|fp8|float8", re.IGNORECASE)),
    ("int8", re.compile(r"int8|_s8_|imma", re.IGNORECASE)),
    ("tf32", re.compile(r"tf32|s1688|xf32", re.IGNORECASE)),
    ("float32", re.compile(r"sgemm|scudnn|simt_s|(?<![A-Za-z_])float(?![\w8])|_SB_|f32f32_f32f32_f32")),
)
# NCCL moves bytes where it adds nothing up, whatever the tensors' type is.
_MOVES_BYTES = r"(?i)nccl\w*_(SendRecv|AllGather|Broadcast)"


def kernel_times(t: Tables, most: int = MAX_KERNELS) -> list[tuple[KernelTime, int]]:
    """Return ``most`` kernels and for each the row of the launch of its longest call, -1 for none.

    The last entry sums what is not listed, so that the times add up to the time of all device tasks.
    """
    if t.device_id < 0 or not len(t.tasks.row):
        return []
    inverse = grouped(t.trace.events.name[t.tasks.row]).of
    length = (t.tasks.end - t.tasks.start).astype(np.float64)
    cost, whole = np.bincount(inverse, length), float(length.sum())
    if not whole:
        return []
    order = np.argsort(-cost, kind="stable")
    listed = order if len(order) <= most + 1 else order[:most]
    found = [_row(t, np.flatnonzero(inverse == i), whole) for i in listed.tolist()]
    rest = np.flatnonzero(~among(inverse, listed))
    if len(rest):
        num = len(order) - len(listed)
        time = float(length[rest].sum())
        found.append((KernelTime(f"{num} others", "", len(rest) / t.steps.num, time / t.steps.num, time / whole), -1))
    return found


def kernel_families(t: Tables) -> dict[str, float]:
    """Return the shares of the time of computing kernels, by family; a long kernel of no family by its own name."""
    if t.device_id < 0:
        return {}
    length = (t.tasks.end - t.tasks.start).astype(np.float64)
    of = t.task_classes
    cost = dict(zip(CLASSES, np.bincount(of, length, len(CLASSES)).tolist(), strict=True))
    unknown = np.flatnonzero(of == CLASSES.index(OTHER))
    names, _, inverse = grouped(t.trace.events.name[t.tasks.row[unknown]])
    whole = sum(ns for name, ns in cost.items() if name not in NO_COMPUTE)
    if not whole:
        return {}
    for name, ns in zip(names.tolist(), np.bincount(inverse, length[unknown], len(names)).tolist(), strict=True):
        if ns >= MIN_NAMED_SHARE * whole:
            short = shorten(t.trace.names[name], MAX_NAME_CHARS)
            cost[short] = cost.get(short, 0.0) + ns
            cost[OTHER] -= ns
    cost["unclassified kernels"] = cost.pop(OTHER)
    found = {name: ns / whole for name, ns in cost.items() if ns > 0 and name not in NO_COMPUTE}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _row(t: Tables, tasks: Rows, whole: float) -> tuple[KernelTime, int]:
    length, peak = (t.tasks.end - t.tasks.start).astype(np.float64), _peak_shares(t)
    longest = int(tasks[length[tasks].argmax()])
    name = t.name(int(t.tasks.row[longest]))
    with_peak = tasks[np.isfinite(peak[tasks])]
    covered = float(length[with_peak].sum())
    share = float((peak[with_peak] * length[with_peak]).sum() / covered) if covered else None
    time = float(length[tasks].sum())
    row = KernelTime(
        name=name,
        family=CLASSES[t.task_classes[longest]],
        calls_per_step=len(tasks) / t.steps.num,
        time_ns=time / t.steps.num,
        share=time / whole,
        dtype=_dtype(t, tasks, length, name),
        peak_share=share if covered >= MIN_KNOWN * time else None,
    )
    launched = tasks[t.tasks.launch[tasks] >= 0]
    at = int(launched[length[launched].argmax()]) if len(launched) else -1
    return row, int(t.tasks.launch[at]) if at >= 0 else -1


def _peak_shares(t: Tables) -> npt.NDArray[np.float64]:
    """Return for each task the share of the device's peak that its operator reaches, NaN where that is not known."""
    found = np.full(len(t.tasks.row), np.nan)
    for group in t.roofline_groups:
        found[group.tasks] = group.share
    return found


def _dtype(t: Tables, tasks: Rows, length: npt.NDArray[np.float64], name: str) -> str:
    """Return the type that is computed with: of the inputs, or as the name shows it; TF32 takes float32 inputs."""
    of_inputs, of_name = _dtype_of_inputs(t.operator_inputs, tasks, length), _dtype_of_name(name)
    return of_name if of_inputs == "float32" and of_name == "tf32" else of_inputs or of_name


def _dtype_of_inputs(known: OperatorInputs, tasks: Rows, length: npt.NDArray[np.float64]) -> str:
    """Return the type of the operators' first floating-point tensor, where most of the time has one.

    A compiled region or a function of the backward hands its inputs to many operators: they show no kernel's type.
    """
    cost: dict[str, float] = {}
    single = np.zeros(len(known.texts) + 1, bool)
    names = known.name[tasks]
    for name in distinct(names[names >= 0]).tolist():
        single[name] = re.match(_OPERATOR, known.text(name)) is not None
    types = np.where(single[names], known.types[tasks], -1)
    for text in distinct(types[types >= 0]).tolist():
        dtype = _first_type(known.text(text))
        cost[dtype] = cost.get(dtype, 0.0) + float(length[tasks[types == text]].sum())
    name = max(cost, key=lambda dtype: cost[dtype], default="")
    return name if name and cost[name] > MIN_KNOWN * float(length[tasks].sum()) else ""


def _first_type(text: str) -> str:
    try:
        given = json.loads(text)
    except ValueError:
        return ""
    found = [_DTYPES[t] for t in given if isinstance(t, str) and t in _DTYPES] if isinstance(given, list) else []
    return next((dtype for dtype in found if "float" in dtype), found[0] if found else "")


def _dtype_of_name(name: str) -> str:
    if re.search(_MOVES_BYTES, name):
        return ""
    found = [dtype for dtype, pattern in _IN_NAMES if pattern.search(name[:NAME_PART])]
    return found[0] if len(found) == 1 else ""
