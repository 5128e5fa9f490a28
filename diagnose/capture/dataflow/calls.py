"""Sorts the arguments of an operator's call into tensors that it reads, tensors that it writes, and the rest."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import torch

from diagnose.capture.dataflow.schemas import Schema

__all__ = ["PLAIN_TENSORS", "Attribute", "Call", "attributes_text", "sorted_arguments", "tensors_in"]

Attribute: TypeAlias = "tuple[int | str, Any]"  # where it stands, and a value that holds no tensor

PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_SCALARS = frozenset({bool, int, float, type(None)})
_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
MAX_TEXT = 400  # characters of one operator's attributes


class Call(NamedTuple):
    """The arguments of one call; what is written in place and depends on what was there is read too."""

    reads: list[torch.Tensor]
    replaced: list[torch.Tensor]  # written, whatever they held
    written: list[torch.Tensor]
    attributes: list[Attribute]


def sorted_arguments(schema: Schema, args: Any, kwargs: Any) -> Call:
    """Return the arguments of a call, sorted."""
    reads: list[torch.Tensor] = []
    attributes: list[Attribute] = []
    call = Call(reads, [], [], attributes)
    written, sizes = schema.written, schema.sizes
    for i, value in enumerate(args):
        kind = type(value)
        if kind in _SCALARS:  # these three first: nearly all arguments
            attributes.append((i, value))
        elif i not in written and kind in PLAIN_TENSORS:
            reads.append(value)
        elif i in sizes:
            attributes.append((i, tuple(value)))
        else:
            _sort(call, schema, i, value, writes=i in written)
    if schema.in_training and args[5] is True:
        call.written.extend([args[i] for i in schema.in_training if args[i] is not None])
    if kwargs:
        for name, value in kwargs.items():
            _sort(call, schema, name, value, writes=name in schema.written_names)
    return call


def _sort(call: Call, schema: Schema, where: int | str, value: Any, *, writes: bool) -> None:
    tensors: tuple[torch.Tensor, ...]
    if isinstance(value, torch.Tensor):
        tensors = (value,)
    elif isinstance(value, (list, tuple)):
        tensors = tuple([each for each in value if isinstance(each, torch.Tensor)])
        if len(tensors) < len(value):
            call.attributes.append((where, tuple([_kept(each) for each in value])))
    else:
        call.attributes.append((where, _kept(value)))
        return
    if not writes:
        call.reads.extend(tensors)
        return
    call.written.extend(tensors)
    (call.replaced if schema.replaces else call.reads).extend(tensors)


def _kept(value: Any) -> Any:
    """Return a value that can be kept: objects of other kinds are known by their type."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, torch.Tensor):
        return "tensor"
    return type(value).__name__


def tensors_in(result: Any) -> list[torch.Tensor]:
    """Return the tensors of a result, of which lists may be a part."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (list, tuple)):
        return [tensor for each in result for tensor in tensors_in(each)]
    return []


def attributes_text(schema: Schema, attributes: list[Attribute]) -> str:
    """Return the arguments that are no tensors as text."""
    names = schema.names
    parts = []
    for where, value in attributes:
        name = where if isinstance(where, str) else names[where] if where < len(names) else str(where)
        parts.append(f"{name}={value}")
    return ", ".join(parts)[:MAX_TEXT]
