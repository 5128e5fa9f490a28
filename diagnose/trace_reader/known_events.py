"""Decoding events of known categories, each into a type that has the fields of its category alone.

A block of text in which every event is of such a category takes a fifth less time than by ``schema.Event``: fields
that the category has no use for are not made, and flows are not looked into. All other blocks are left to that type.
"""

from __future__ import annotations

from collections.abc import Container
from functools import cache
from typing import Any, Final, TypeAlias, Union

from msgspec import Struct, defstruct, field, json, structs

from diagnose.model.events import Kind
from diagnose.trace_reader.schema import CATEGORIES, INSTANTS, LEFT_OUT, Args, Event, ExactEvent

__all__ = ["decoder_of_any", "decoder_of_known"]

_Decoder: TypeAlias = "json.Decoder[list[Any]]"
_Field: TypeAlias = "tuple[str, Any, Any]"

_TASK = frozenset({"external", "device", "stream", "correlation"})
_COLLECTIVE = frozenset(
    {
        "sequence",
        "stack",
        "collective",
        "dtype",
        "group_size",
        "num_elements",
        "num_out",
        "group",
        "group_use",
        "members",
        "sequence_in_group",
        "source",
        "target",
    }
)
_ARGUMENTS: Final[dict[Kind, frozenset[str]]] = {  # what ``fields.Fields`` reads of the arguments of each kind
    Kind.OP: _COLLECTIVE | {"input_values", "input_dims", "input_types"},
    Kind.ANNOTATION: frozenset({"input_dims", "input_types"}),
    Kind.PYTHON: frozenset(),
    Kind.RUNTIME: frozenset({"external", "correlation", "bytes"}),
    Kind.KERNEL: _TASK | _COLLECTIVE | {"grid"},
    Kind.MEMCPY: _TASK | {"bytes"},
    Kind.MEMSET: _TASK | {"bytes"},
    Kind.SYNC: _TASK | {"awaits"},
    Kind.OVERHEAD: frozenset(),
    Kind.MEMORY: frozenset(
        {"allocated", "total_allocated", "total_reserved", "address", "device_type", "device_id", "name"}
    ),
}


@cache
def decoder_of_any(*, exact: bool) -> _Decoder:
    """Return the decoder of a list of events of whatever categories; ``exact`` keeps the digits of their times."""
    return json.Decoder(list[_event(exact=exact)], strict=False)  # type: ignore[misc]  # one of two types


@cache
def decoder_of_known(*, exact: bool) -> _Decoder:
    """Return the decoder of a list in which every event is of a known category; any other makes it raise."""
    own = _fields_of(_event(exact=exact))
    arguments = {kind: _arguments(kind, names) for kind, names in _ARGUMENTS.items()}
    kinds = CATEGORIES | dict.fromkeys(INSTANTS - {""}, Kind.MEMORY)
    types = [_type_of(category, [*own, *arguments[kind]]) for category, kind in kinds.items()]
    types += [_type_of(category, []) for category in sorted(LEFT_OUT - INSTANTS)]
    return json.Decoder(list[Union[tuple(types)]], strict=False)  # type: ignore[misc]  # noqa: UP007  # made here


def _event(*, exact: bool) -> type[Struct]:
    return ExactEvent if exact else Event


def _type_of(category: str, fields: list[_Field]) -> type[Struct]:
    """Return the type of a category's events, which has the category as an attribute of its own."""
    return defstruct("KnownEvent", fields, gc=False, tag_field="cat", tag=category, namespace={"cat": category})


def _arguments(kind: Kind, names: Container[str]) -> list[_Field]:
    """Return the field for the arguments of a kind, none where nothing is read of them."""
    fields = [f for f in _fields_of(Args) if f[0] in names]
    if not fields:
        return []
    made = defstruct(f"{kind.name}Args", fields, frozen=True, gc=False)
    return [("args", made, made())]


def _fields_of(struct: type[Struct]) -> list[_Field]:
    """Return name, type and default of each field of an event or of its arguments, as far as they are known later."""
    return [
        (f.name, f.type, field(default=f.default, name=f.encode_name))
        for f in structs.fields(struct)
        if f.name not in ("cat", "args")
    ]
