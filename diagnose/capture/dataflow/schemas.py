"""What the schema of an operator states: what it writes, whether it draws, and whether Python gets a content."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["MAKES_INPUT", "Schema"]

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

    __slots__ = (
        *(
            "name",
            "names",
            "written",
            "written_names",
            "replaces",
            "draws",
            "dropout",
            "reads_host",
            "indexes",
            "sizes",
        ),
        *(
            "in_training",
            "is_collective",
            "is_mark",
            "is_opaque",
            "leaves_contents",
            "makes_input",
            "may_be_late",
            "kept",
        ),
    )

    def __init__(self, func: Any) -> None:
        schema = getattr(func, "_schema", None)
        arguments = list(schema.arguments) if schema is not None else []
        writes = [i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]
        tags = set(getattr(func, "tags", ()))
        self.kept = func  # alive, so that no other operator gets its address
        self.name = _name(func)
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


def _name(func: Any) -> str:
    name = getattr(func, "name", None)
    text = str(name() if callable(name) else name or func)
    return text if "::" in text else f"higher_order::{text}"
