"""An extension of griffe: fields are listed with the comments behind them; constants as defaults show their value."""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, Class, Docstring, Extension, Function, Module

__all__ = ["Fields"]

COMMENT = re.compile(r"\s{2}# (.+)$")


class Fields(Extension):
    """Completes what the sources of ``diagnose`` state beside a name rather than in a docstring."""

    def on_class_members(self, *, cls: Class, **_: Any) -> None:
        """List the fields of a dataclass in its docstring, each with the comment behind it."""
        fields = [
            f"    {name}: {_comment(member) or name.replace('_', ' ')}"
            for name, member in cls.members.items()
            if isinstance(member, Attribute) and _is_field(name, member)
        ]
        if fields and cls.docstring is not None:
            text = "\n".join((cls.docstring.value.rstrip(), "", "Attributes:", *fields))
            cls.docstring = Docstring(text, parent=cls, lineno=cls.docstring.lineno, endlineno=cls.docstring.endlineno)

    def on_function_instance(self, *, func: Function, **_: Any) -> None:
        """Replace a default that is a constant of the module by its value, where that is a literal."""
        for parameter in func.parameters:
            constant = _constant(func.module, str(parameter.default))
            if constant is not None:
                parameter.default = constant


def _is_field(name: str, member: Attribute) -> bool:
    return not name.startswith("_") and member.annotation is not None and "property" not in member.labels


def _comment(member: Attribute) -> str:
    lines = member.lines_collection[member.filepath][(member.lineno or 1) - 1 : member.endlineno]
    found = next((match for line in lines if (match := COMMENT.search(line))), None)
    return found[1].rstrip(".") + "." if found else ""


def _constant(module: Module, name: str) -> str | None:
    found = module.members.get(name) if name.isidentifier() and name.isupper() else None
    return str(found.value) if isinstance(found, Attribute) and str(found.value)[:1].isdigit() else None
