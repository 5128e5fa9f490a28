"""``dataclass`` and ``NamedTuple`` for classes whose instances do not change, which are cheap to define.

Reading a trace defines about ninety classes of either kind. For each dataclass the decorator of the standard library
compiles six methods, 0.1 s in all, as long as numpy takes to be imported: here methods are shared. For each field of a
named tuple ``typing`` compiles the annotation: here it stays text. Fields, ``replace``, ``asdict``, slots, patterns and
type hints are the standard ones, and type checkers see the standard names.
"""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from dataclasses import MISSING, FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NoReturn

__all__ = ["NamedTuple", "dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
    from typing import NamedTuple
else:

    class _NamedTupleMeta(type):
        """Makes the named tuple that a class statement describes."""

        def __new__(cls, name: str, _bases: tuple[type, ...], body: dict[str, Any]) -> type:
            fields = body.get("__annotations__", {})
            defaults = [body[field] for field in fields if field in body]
            made = namedtuple(name, fields, defaults=defaults, module=body["__module__"])
            made.__annotations__ = fields
            for key, value in body.items():
                if key not in fields and key not in ("__module__", "__annotations__"):
                    setattr(made, key, value)
            return made

    NamedTuple = type.__new__(_NamedTupleMeta, "NamedTuple", (), {})

    def dataclass(*, frozen: bool, slots: bool = False, eq: bool = True, kw_only: bool = False) -> Any:
        """Return the decorator; ``frozen`` has to be True."""
        assert frozen, "a class whose instances change takes the decorator of the standard library"

        def define(cls: type) -> type:
            for name, method in (_SHARED | (_STATE if slots else {})).items():
                if name not in vars(cls):
                    setattr(cls, name, method)
            compares = eq and "__eq__" not in vars(cls)
            made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
            made.__init__ = _init_of(made)
            if compares:
                made.__eq__, made.__hash__ = _comparison_of(made)
            return made

        return define


def _init_of(cls: Any) -> Any:
    """Return the ``__init__`` of a class."""
    fields = dataclasses.fields(cls)
    known = {f.name for f in fields if f.init}
    positional = [f.name for f in fields if f.init and not f.kw_only]
    defaults = {f.name: f.default for f in fields if f.default is not MISSING}
    factories = {f.name: f.default_factory for f in fields if f.default_factory is not MISSING}
    put = object.__setattr__

    def __init__(self: Any, /, *args: Any, **given: Any) -> None:
        named = {**dict(zip(positional, args, strict=False)), **given}
        if len(args) > len(positional) or len(named) < len(args) + len(given) or not known >= given.keys():
            raise TypeError(f"{cls.__qualname__} is made from {', '.join(f.name for f in fields if f.init)}, each once")
        values = {**defaults, **named}
        for name, factory in factories.items():
            if name not in values:
                values[name] = factory()
        if len(values) < len(fields):
            lacking = ", ".join(f.name for f in fields if f.name not in values)
            raise TypeError(f"{cls.__qualname__} needs a value of {lacking}")
        for name, value in values.items():
            put(self, name, value)

    return __init__


def _state(self: Any) -> tuple[object, ...]:
    return tuple(getattr(self, f.name) for f in dataclasses.fields(self))


def _put_state(self: Any, state: tuple[object, ...]) -> None:
    for f, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)


def _comparison_of(cls: Any) -> tuple[Any, Any]:
    """Return the ``__eq__`` and the ``__hash__`` of a class."""
    compared = attrgetter(*(f.name for f in dataclasses.fields(cls) if f.compare))

    def __eq__(self: Any, other: object) -> bool:
        return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(compared(self))

    return __eq__, __hash__


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _set(_self: object, name: str, _value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete(_self: object, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


_SHARED = {"__repr__": _repr, "__setattr__": _set, "__delattr__": _delete}
_STATE = {"__getstate__": _state, "__setstate__": _put_state}
