"""Patches of the arithmetic: autocast around the model, TF32 products, cuDNN's own search."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from diagnose.changes.common.change import CannotApply, Log, Undo, replace_attribute, undo_all
from diagnose.changes.patches.top_module import around_top_module

FP16_BY_HAND = "fp16 needs a GradScaler around backward() and the optimizer's step as well"

# The patch that lets the CPU take subnormal numbers for 0.


def flush_subnormals(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Set the mode before the script's first operator, in the thread from which torch's own inherit it."""
    import torch

    if torch.set_flush_denormal(True):
        log.did("torch.set_flush_denormal(True)")
    else:
        log.left("a CPU without that mode")

    def undo() -> None:
        torch.set_flush_denormal(False)

    return undo


# Patch of dropout on a CPU: masks of 16-bit numbers.


def fast_dropout(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Put the bundled functions in the place of torch's, which modules and libraries call."""
    from diagnose.kernels import dropout

    made = dropout._mask

    def mask(*args: Any) -> Any:  # the bundled function's own
        log.did("dropout: masks of 16-bit numbers")
        return made(*args)

    undo_each = [dropout.use_fast_dropout(), replace_attribute(dropout, "_mask", mask)]

    return undo_all(undo_each)


def autocast(log: Log, options: Mapping[str, Any]) -> Undo:
    """Run the outermost module's forward under bf16 autocast; what it returns is fp32 again.

    A loss that the script computes outside its model stays in fp32. With ``dtype`` float16, which is prescribed for
    GPUs without bf16, a GradScaler scales the loss.
    """
    if options.get("dtype") == "float16":
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


# Patch that runs the model in fp16 and scales its loss from outside, so that small gradients do not vanish.
#
# Gradients are unscaled as soon as a backward pass is over: whatever the script does with them, such as clipping, it
# does with their true values. The optimizer's step goes through the scaler, which leaves it out where a gradient
# overflowed.


def autocast_fp16(log: Log, options: Mapping[str, Any]) -> Undo:  # the signature of a patch
    """Run the outermost module's forward under fp16 autocast, with a GradScaler around backward and step.

    Raises, from the script's own calls:
        CannotApply: the script does something that no scaler from outside can follow.
    """
    return ScaledTraining(log, "cuda").install()


class ScaledTraining:
    """One training loop with one optimizer, whose loss is scaled; ``device`` is the type of device it must run on."""

    def __init__(self, log: Log, device: str) -> None:
        self._log, self._device = log, device
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._regions: list[Any] = []
        self._scaler: Any = None  # a GradScaler, made at the first forward: before that nothing may touch the device
        self._making = False
        self._has_gradients = False  # of the present step, and unscaled
        self._stepping = False
        self._undo: list[Undo] = []
        self._stepped_classes: set[type] = set()

    def install(self) -> Undo:
        """Put it into torch's classes; return what undoes it."""
        import torch

        self._undo += [
            _around(torch.optim.Optimizer, "__init__", self._optimizer_made),
            _around(torch.amp.GradScaler, "__init__", self._scaler_made),
            around_top_module(self._begins, self._ends),
            self._scale_backward(),
        ]

        def undo() -> None:
            while self._undo:
                self._undo.pop()()

        return undo

    # Forward

    def _begins(self, module: Any, args: object) -> None:  # a Module and its arguments
        import torch

        parameters = list(module.parameters())
        if not parameters:  # a criterion, or a transform
            self._regions.append(None)
            return
        if self._scaler is None:
            self._check(parameters)
            self._make_scaler()
            self._log.did(f"{type(module).__name__}: forward under fp16 autocast, loss scaled by a GradScaler")
        region = torch.autocast(self._device, dtype=torch.float16)
        region.__enter__()  # type: ignore[no-untyped-call]  # torch leaves it so
        self._regions.append(region)

    def _ends(self, output: Any) -> Any:  # whatever the module returns
        import torch

        region = self._regions.pop() if self._regions else None  # none where the forward was refused
        if region is None:
            return output
        region.__exit__(None, None, None)
        return as_float(output, torch.float16)

    def _check(self, parameters: list[Any]) -> None:
        import torch

        device = parameters[0].device.type
        if device != self._device:
            raise CannotApply(f"fp16 needs the model on {_NAMES.get(self._device, self._device)}; it is on {device}.")
        if torch.is_autocast_enabled(device):
            raise CannotApply("The model runs under autocast already.")
        if any(p.dtype == torch.float16 for p in parameters):
            raise CannotApply("The model's parameters are fp16 themselves, whose gradients no scaler can unscale.")

    def _make_scaler(self) -> None:
        import torch

        self._making = True
        try:
            self._scaler = torch.amp.GradScaler(self._device)
        finally:
            self._making = False

    def _scaler_made(self, scaler: Any) -> None:  # a GradScaler
        if not self._making and scaler.is_enabled():
            raise CannotApply("The script scales its loss itself, with its own GradScaler.")

    # Backward

    def _scale_backward(self) -> Undo:
        import torch

        original = torch.autograd.backward

        @functools.wraps(original)
        def scaled(tensors: Any, *args: Any, **kwargs: Any) -> None:  # whatever it takes
            if self._scaler is None or int(torch._C._current_graph_task_id()) != -1:
                original(tensors, *args, **kwargs)  # within a backward pass a checkpoint runs its own
                return
            loss = _only_scalar(tensors)
            optimizer = self._only_optimizer()
            if self._has_gradients:
                self._scale_again(optimizer)
            original(self._scaler.scale(loss), *args, **kwargs)
            if any(True for _ in _gradients(optimizer)):
                self._scaler.unscale_(optimizer)
                self._has_gradients = True

        return replace_attribute(torch.autograd, "backward", scaled)

    def _only_optimizer(self) -> Any:  # an Optimizer
        alive = list(self._optimizers)
        if len(alive) != 1:
            many = f"{len(alive)} optimizers" if alive else "no optimizer of torch's kind"
            raise CannotApply(f"The script has {many}; a scaler from outside needs exactly one.")
        return alive[0]

    def _scale_again(self, optimizer: Any) -> None:  # an Optimizer
        """Bring what earlier passes of the same step have accumulated to the scale of the next; exact, a power of 2."""
        import torch

        gradients = list(_gradients(optimizer))
        if gradients:
            torch._foreach_mul_(gradients, self._scaler.scale(torch.ones((), device=gradients[0].device)))
        self._scaler._per_optimizer_states.pop(id(optimizer), None)  # or unscaling twice would be refused

    # The optimizer's step

    def _optimizer_made(self, optimizer: Any) -> None:  # an Optimizer
        self._optimizers.add(optimizer)
        cls = type(optimizer)
        if cls in self._stepped_classes:
            return
        self._stepped_classes.add(cls)
        self._undo.append(replace_attribute(cls, "step", self._scaled_step(cls.step)))

    def _scaled_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(optimizer: Any, closure: Any = None, **kwargs: Any) -> Any:  # whatever it takes
            if self._stepping:
                return original(optimizer, **kwargs)
            loss = None if closure is None else self._call(closure, optimizer)
            if not self._has_gradients:
                result = original(optimizer, **kwargs)
                return result if closure is None else loss
            self._stepping = True
            try:
                self._scaler.step(optimizer, **kwargs)
                self._scaler.update()
            finally:
                self._stepping = self._has_gradients = False
            return loss

        return step

    @staticmethod
    def _call(closure: Callable[[], Any], optimizer: Any) -> Any:  # an Optimizer; its loss
        """Run the forward and backward pass that a trainer hands to the optimizer, before it steps."""
        import torch

        if isinstance(optimizer, torch.optim.LBFGS):
            raise CannotApply("LBFGS computes gradients several times per step, which no scaler can follow.")
        with torch.enable_grad():
            return closure()


_NAMES = {"cuda": "a GPU"}


def _only_scalar(tensors: Any) -> Any:  # a tensor or several
    import torch

    found = list(tensors) if isinstance(tensors, list | tuple) else [tensors]
    if len(found) != 1 or not isinstance(found[0], torch.Tensor) or found[0].numel() != 1:
        raise CannotApply("The script calls backward on something else than one scalar loss.")
    return found[0]


def _gradients(optimizer: Any) -> Iterator[Any]:  # an Optimizer
    return (p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None)


def _around(cls: type, name: str, after: Callable[[Any], None]) -> Undo:
    original = getattr(cls, name)

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:  # whatever the method takes
        result = original(self, *args, **kwargs)
        after(self)
        return result

    return replace_attribute(cls, name, wrapped)
