"""Patches of the arithmetic: bf16 autocast around the model, TF32 products, cuDNN's own search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diagnose.changes.common.patching import Log, Undo, replace_attribute
from diagnose.changes.patches.top_module import around_top_module

__all__ = ["allow_tf32", "as_float", "autocast", "benchmark_convolutions", "other_attention", "single_precision"]


def autocast(log: Log, options: Mapping[str, Any]) -> Undo:
    """Run the outermost module's forward under bf16 autocast; what it returns is fp32 again.

    A loss that the script computes outside its model stays in fp32. With ``dtype`` float16, which is prescribed for
    GPUs without bf16, it is the patch ``autocast-fp16``.
    """
    if options.get("dtype") == "float16":
        from diagnose.changes.patches.scaling import autocast_fp16

        return autocast_fp16(log, options)
    import torch

    from diagnose.kernels.precision import Precision

    active: list[Any] = []

    def begins(module: Any, args: tuple[Any, ...]) -> None:  # a Module
        device = next((p.device.type for p in module.parameters()), "")
        if not device:  # a criterion, or a transform of images: torch refuses some losses under autocast
            active.append(None)
            return
        if torch.is_autocast_enabled(device):
            log.left("a model that runs under autocast already")
            active.append(None)
            return
        region = Precision(device, torch.bfloat16).autocast()
        region.__enter__()  # type: ignore[no-untyped-call]  # torch leaves it so
        active.append(region)
        log.did(f"{type(module).__name__}: forward under bf16 autocast on {device}")

    def ends(output: Any) -> Any:  # whatever the module returns
        region = active.pop()
        if region is None:
            return output
        region.__exit__(None, None, None)
        return as_float(output, torch.bfloat16)

    return around_top_module(begins, ends)


def as_float(output: Any, dtype: Any) -> Any:  # a nesting of tensors, a torch.dtype
    """Return the output with its tensors of ``dtype`` in fp32."""
    import torch
    from torch.utils._pytree import tree_map

    def convert(leaf: Any) -> Any:  # a leaf
        return leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype == dtype else leaf

    return tree_map(convert, output)


def allow_tf32(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Let fp32 matrix products run in TF32."""
    from diagnose.kernels.matmul_precision import set_fp32_precision

    undo = set_fp32_precision("tf32")
    log.did('set_fp32_precision("tf32"): torch.set_float32_matmul_precision("high")')
    return undo


def benchmark_convolutions(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Let cuDNN try its algorithms for each shape and keep the fastest."""
    import torch

    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    log.did("torch.backends.cudnn.benchmark = True")

    def undo() -> None:
        torch.backends.cudnn.benchmark = before

    return undo


def other_attention(log: Log, options: Mapping[str, Any]) -> Undo:
    """Let scaled_dot_product_attention run in ``backends``, and in the plain one where none of them can.

    With ``library``, which is prescribed for AMD, flash attention takes its kernels from there.
    """
    if options.get("library"):
        return _rocm_library(log, str(options["library"]))
    from torch.nn import functional
    from torch.nn.attention import SDPBackend, sdpa_kernel

    wanted = [str(name) for name in options.get("backends") or ("flash", "efficient")]
    backends = [getattr(SDPBackend, f"{name.upper()}_ATTENTION") for name in wanted] + [SDPBackend.MATH]
    original = functional.scaled_dot_product_attention

    def restricted(*args: Any, **kwargs: Any) -> Any:  # whatever it takes
        with sdpa_kernel(backends):
            log.did(f"scaled_dot_product_attention in {', '.join(wanted)}, else written out")
            return original(*args, **kwargs)

    return replace_attribute(functional, "scaled_dot_product_attention", restricted)


def _rocm_library(log: Log, name: str) -> Undo:
    import torch

    before = torch.backends.cuda.preferred_rocm_fa_library()
    torch.backends.cuda.preferred_rocm_fa_library(name)
    log.did(f"flash attention in {name}")

    def undo() -> None:
        torch.backends.cuda.preferred_rocm_fa_library(before)

    return undo


def single_precision(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Let the outermost module compute in float32; what it is given is converted, what it returns is float64 again."""
    import torch
    from torch.utils._pytree import tree_map

    converted: dict[int, Any] = {}  # modules that were float64, by identity

    def narrow(leaf: Any) -> Any:
        return leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float64 else leaf

    def begins(module: Any, args: tuple[Any, ...]) -> Any:  # a Module
        if any(p.dtype == torch.float64 for p in module.parameters()):
            module.float()  # parameters stay the same objects: the optimizer has them
            converted[id(module)] = module
            log.did(f"{type(module).__name__} computes in float32")
        return tree_map(narrow, args) if id(module) in converted else None

    def ends(output: Any) -> Any:  # whatever the module returns
        return tree_map(widen, output) if converted else output

    def widen(leaf: Any) -> Any:
        return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float32 else leaf

    undo_hooks = around_top_module(begins, ends)

    def undo() -> None:
        undo_hooks()
        for module in converted.values():
            module.double()

    return undo
