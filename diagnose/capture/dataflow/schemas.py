"""What the schema of an operator states: what it writes, whether it draws, and whether Python gets a content."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import torch

# Namespaces whose schemas name all effects; others are the script's or a library's own.
_KNOWN = frozenset({"aten", "prims", "prim", "quantized", "torchvision"})
_COLLECTIVE = frozenset({"c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "symm_mem"})
# Operators that give every element of what they write a new content, besides those that draw all of it.
_REPLACING = frozenset({"aten::copy_", "aten::zero_", "aten::fill_", "aten::_foreach_copy_", "aten::_foreach_zero_"})
# Statistics that these write while training, which their schemas leave out: argument by argument.
_UNNAMED_WRITES = {f"aten::{name}_batch_norm": (3, 4) for name in ("native", "cudnn", "miopen")}
MAKES_INPUT = "aten::lift_fresh"  # its argument is what torch.tensor and its like have made unseen
_SIZES = frozenset({"List[int]", "Optional[List[int]]"})
_UNWRITTEN = ("aten::empty", "aten::new_empty", "aten::_empty")  # names of operators that leave contents to chance


class Schema:
    """One operator with its overload."""

    def __init__(self, func: Any) -> None:
        schema = getattr(func, "_schema", None)
        arguments = list(schema.arguments) if schema is not None else []
        writes = [i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]
        tags = set(getattr(func, "tags", ()))
        self.kept = func  # alive, so that no other operator gets its address
        name = getattr(func, "name", None)
        text = str(name() if callable(name) else name or func)
        self.name = text if "::" in text else f"higher_order::{text}"
        base = self.name.partition(".")[0]
        namespace = base.partition("::")[0]
        self.names = tuple([argument.name for argument in arguments])
        self.written = frozenset(i for i in writes if not arguments[i].kwarg_only)
        self.written_names = frozenset(arguments[i].name for i in writes)
        self.sizes = frozenset(i for i, a in enumerate(arguments) if str(a.type) in _SIZES)
        self.in_training = _UNNAMED_WRITES.get(base, ())
        self.draws = torch.Tag.nondeterministic_seeded in tags
        self.dropout = self.names.index("dropout_p") if "dropout_p" in self.names else -1
        out = any(arguments[i].kwarg_only for i in writes)
        self.replaces = out or base in _REPLACING or (self.draws and bool(writes))
        self.indexes = base == "aten::index"  # only where an index is a mask, its content decides the size
        resized = torch.Tag.dynamic_output_shape in tags and not self.indexes
        self.reads_host = resized or torch.Tag.data_dependent_output in tags
        self.is_collective = namespace in _COLLECTIVE
        self.is_opaque = schema is None or not (namespace in _KNOWN or self.is_collective)
        self.is_mark = namespace == "profiler"
        self.leaves_contents = base.startswith(_UNWRITTEN)
        self.may_be_late = "non_blocking" in self.names  # of copies
        self.makes_input = base == MAKES_INPUT


# Sorts the arguments of an operator's call into tensors that it reads, tensors that it writes, and the rest.

Attribute: TypeAlias = "tuple[int | str, Any]"  # where it stands, and a value that holds no tensor

PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_SCALARS = frozenset({bool, int, float, type(None)})
_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


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
    is_list = isinstance(value, (list, tuple))
    parts = value if is_list else (value,)
    tensors = [each for each in parts if isinstance(each, torch.Tensor)]
    if len(tensors) < len(parts):
        call.attributes.append((where, tuple(map(_kept, parts)) if is_list else _kept(value)))
    if writes:
        call.written.extend(tensors)
    (call.replaced if writes and schema.replaces else call.reads).extend(tensors)


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
    return ", ".join(parts)[:400]  # characters of one operator's attributes
