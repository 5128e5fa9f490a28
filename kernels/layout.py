"""Keeps convolutions in channels_last.

What it cures
    `layout-copy`: kernels that turn NCHW into NHWC and back around each convolution. Part of `slow-kernel` where
    convolutions run in half precision.

When it does not help
    Models without 2-D or 3-D convolutions, float32 without TF32, channels that are no multiples of 8 in half precision,
    and depthwise convolutions on some devices. A layer that hands on the old layout costs two copies; with a sample the
    report names it.

Cost
    A copy of each input on entry, of 3 channels for images. Optimizer state that exists already keeps the old layout,
    so convert before making the optimizer.

Numerics
    Other convolution algorithms: equal to rounding. Not so with dropout of images: masks are drawn in the order of
    memory, so that other elements are dropped with the same seed, as many and as independent. Shapes, indices and names
    stay; ``view`` on an activation may have to become ``reshape`` or ``flatten``.

Example::

    from diagnose.kernels.layout import channels_last

    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    # before: model = model.to(memory_format=torch.channels_last), and images as they are
    report = channels_last(model, sample=(torch.randn(2, 3, 8, 8),))
    log(report)  # what was converted, and what loses the layout
    model(torch.randn(2, 3, 8, 8)).sum().backward()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from diagnose.kernels._nested import mapped, tensors
from diagnose.kernels._state import trial_passes

__all__ = ["LayoutCopy", "LayoutReport", "channels_last", "in_channels_last", "is_channels_last"]

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The format by number of dimensions: images are NCHW, volumes NCDHW."""


@dataclass(frozen=True, slots=True)
class LayoutCopy:
    """A convolution that gets its input in the old layout and has to copy ``num_bytes`` in each forward pass.

    ``after``: the module that turned the layout back, empty where it was code between modules.
    """

    name: str
    num_bytes: int
    after: str


@dataclass(frozen=True)
class LayoutReport:
    """What was changed. ``left``: convolutions that have no such layout, with the reason; ``copies``: see a sample."""

    converted: tuple[str, ...]
    left: tuple[str, ...]
    copies: tuple[LayoutCopy, ...] = ()
    _undo: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)

    def undo(self) -> None:
        """Give the weights their old layout back and leave inputs as they come."""
        self._undo()

    def __str__(self) -> str:
        """Return a few lines for a log."""
        copies = (
            f"{c.name} copies {c.num_bytes / 1e6:.1f} MB: {c.after or 'code between modules'} turns the layout back"
            for c in self.copies
        )
        return "\n".join([f"{len(self.converted)} convolutions are channels_last", *self.left, *copies])


def channels_last(
    model: nn.Module, *, sample: Sequence[Any] | Mapping[str, Any] | None = None, inputs: bool = True
) -> LayoutReport:
    """Convert the weights of all 2-D and 3-D convolutions in place, and images as they enter the model.

    Parameters stay the same objects. Dropout of images drops other elements than before, with the same seed.
    ``sample``: the arguments of one call, positional or a mapping of names, which is run to find where the layout is
    lost; it changes no buffer, gradient or random generator. ``inputs=False`` leaves inputs to the loader.

    Raises:
        ValueError: the model has no such convolution.
    """
    convolutions = {name: module for name, module in model.named_modules() if isinstance(module, _ConvNd)}
    fitting = {name: module for name, module in convolutions.items() if module.weight.dim() in FORMATS}
    if not fitting:
        raise ValueError(f"{type(model).__name__} has no 2-D or 3-D convolution; channels_last would change nothing.")
    before = [(module.weight, module.weight.stride()) for module in fitting.values()]
    for module in fitting.values():
        module.weight.data = in_channels_last(module.weight.data)
    handle = model.register_forward_pre_hook(_convert_inputs, with_kwargs=True) if inputs else None

    def undo() -> None:
        for weight, stride in before:
            weight.data = torch.empty_strided(weight.shape, stride, dtype=weight.dtype, device=weight.device).copy_(
                weight.data
            )
        if handle is not None:
            handle.remove()

    left = tuple(
        f"{name}: {type(module).__name__} has no such layout"
        for name, module in convolutions.items()
        if name not in fitting
    )
    copies = _copies(model, sample) if sample is not None else ()
    return LayoutReport(tuple(fitting), left, copies, undo)


def in_channels_last(tensor: Tensor) -> Tensor:
    """Return the tensor in channels_last if it has 4 or 5 dimensions, else as it is; copied only where needed."""
    if tensor.dim() not in FORMATS or tensor.layout is not torch.strided:
        return tensor
    return tensor.contiguous(memory_format=FORMATS[tensor.dim()])


def is_channels_last(tensor: Tensor) -> bool:
    """Return whether a kernel for channels_last can read the tensor as it is."""
    return tensor.dim() in FORMATS and tensor.is_contiguous(memory_format=FORMATS[tensor.dim()])


def _convert_inputs(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:  # a module's arguments
    return _converted(args), _converted(kwargs)


def _converted(batch: Any) -> Any:
    return mapped(batch, lambda leaf: in_channels_last(leaf) if isinstance(leaf, Tensor) else leaf)


def _copies(model: nn.Module, sample: Sequence[Any] | Mapping[str, Any]) -> tuple[LayoutCopy, ...]:
    """Run the sample and return the convolutions whose inputs are in the old layout."""
    found: list[LayoutCopy] = []
    lost_by: dict[int, str] = {}  # by where a tensor of the old layout begins: the module that turned it back
    held: list[Tensor] = []  # no two of them may share an address

    def before(name: str, args: tuple[Any, ...]) -> None:
        found.extend(
            LayoutCopy(name, given.nbytes, lost_by.get(given.data_ptr(), ""))
            for given in tensors(list(args))
            if given.dim() in FORMATS and not is_channels_last(given)
        )

    def after(name: str, args: tuple[Any, ...], output: Any) -> None:  # whatever a module returns
        given = tensors(list(args))
        known = (lost_by[t.data_ptr()] for t in given if t.data_ptr() in lost_by)
        culprit = name if any(map(is_channels_last, given)) else next(known, "")
        for result in tensors(output):
            held.append(result)
            if result.dim() in FORMATS and not is_channels_last(result):
                lost_by[result.data_ptr()] = culprit

    handles = []
    for name, module in model.named_modules():
        if isinstance(module, _ConvNd):
            handles.append(module.register_forward_pre_hook(lambda _, args, name=name: before(name, args)))
        if not any(True for _ in module.children()):
            handles.append(module.register_forward_hook(lambda _, args, out, name=name: after(name, args, out)))
    try:
        with trial_passes(model), torch.no_grad():
            _ = model(**sample) if isinstance(sample, Mapping) else model(*sample)
    finally:
        for handle in handles:
            handle.remove()
    return tuple(found)
