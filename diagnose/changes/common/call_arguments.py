"""Sets keyword arguments in a call as it stands in a source: everything else, comments and blanks too, stays."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence

from diagnose.changes.common.change import REMOVED, UNREADABLE

_COMMA = re.compile(r"\s*,\s*")
_NO_COMMA = r",?\s*$"
_ATOMS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Dict)  # what may follow ** in a display as it is


class Expression(str):
    """An argument's value that is written into a source as it is."""

    __slots__ = ()
    __repr__ = str.__str__


def passed(text: str, parameters: Sequence[str] = (), spread: Sequence[str] = ()) -> dict[str, object]:
    """Return the arguments of a call in a source by name; ``UNREADABLE`` where the value is no constant."""
    call = parsed_call(text)
    if call is None:
        return {}
    starred = next((i for i, arg in enumerate(call.args) if isinstance(arg, ast.Starred)), len(call.args))
    given = [*zip(parameters, call.args[:starred], strict=False), *((word.arg, word.value) for word in call.keywords)]
    return dict.fromkeys(spread, UNREADABLE) | {name: _constant(node) for name, node in given if name is not None}


def _constant(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return UNREADABLE


def set_arguments(
    text: str,
    values: Mapping[str, object],
    *,
    parameters: Sequence[str] = (),
    spread: Sequence[str] | None = (),
) -> tuple[str, str]:
    """Return the text of a call with these keyword arguments, and why it could not be done ("" where it was).

    Args:
        text: one call, as it stands in a source.
        values: the arguments, in the order in which they are added; ``REMOVED`` for one that is taken out.
        parameters: names of what is called takes by position, so that an argument without a name is known.
        spread: keys of the mappings that the call passes by ``**``; None where they are not known.
    """
    if spread is None and REMOVED in values.values() and _has_double_star(text):
        return text, "it takes its arguments from a mapping"
    for name, value in values.items():
        in_mapping = name in (spread or ())
        if value is REMOVED:
            found = _without_argument(text, name, parameters, in_mapping)
        else:
            found = _with_argument(text, name, repr(value), parameters, in_mapping)
        if found is None:
            return text, "its arguments are in a list that is not known"
        text = found
    return text, ""


def _has_double_star(text: str) -> bool:
    call = parsed_call(text)
    return call is not None and any(keyword.arg is None for keyword in call.keywords)


def parsed_call(text: str) -> ast.Call | None:
    """Return the call that a text is, None where it is none."""
    try:
        tree = ast.parse(f"({text})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return None
    return tree if isinstance(tree, ast.Call) else None


def _with_argument(text: str, name: str, value: str, parameters: Sequence[str], in_mapping: bool) -> str | None:
    call = parsed_call(text)
    if call is None:
        return None
    place = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    if place is None and name in parameters[: len(call.args)]:
        if any(isinstance(arg, ast.Starred) for arg in call.args):
            return None
        place = call.args[list(parameters).index(name)]
    if place is not None:
        start, end = _span(text, place)
        return text[:start] + value + text[end:]
    mappings = [keyword.value for keyword in call.keywords if keyword.arg is None]
    if len(mappings) == 1:
        start, end = _span(text, mappings[0])
        return text[:start] + _with_item(text[start:end], mappings[0], name, value) + text[end:]
    return None if in_mapping else _appended(text, call, f"{name}={value}")


def _with_item(text: str, mapping: ast.expr, name: str, value: str) -> str:
    """Return what is passed by ``**``, with an item more or another value of its own.

    Python raises TypeError where a keyword is a key of the mapping too, and its keys may differ between machines.
    """
    if not isinstance(mapping, ast.Dict) or not text.endswith("}") or text[:-1].rstrip().endswith(("{", ",")):
        whole = text if isinstance(mapping, _ATOMS) else f"({text})"
        return f"{{**{whole}, {name!r}: {value}}}"
    return f"{text[:-1].rstrip()}, {name!r}: {value}}}"


def _without_argument(text: str, name: str, parameters: Sequence[str], in_mapping: bool) -> str | None:
    """Return a call without an argument: None is passed where it stands by position or in a mapping."""
    call = parsed_call(text)
    word = next((word for word in call.keywords if word.arg == name), None) if call is not None else None
    if call is None or word is None:
        stands = call is not None and (in_mapping or name in parameters[: len(call.args)])
        return _with_argument(text, name, "None", parameters, in_mapping) if stands else text
    start, end = _span(text, word)[0], _after_parentheses(text, _span(text, call.func)[1], _span(text, word.value)[1])
    behind = _COMMA.match(text, end)
    cut = text[:start] + text[behind.end() :] if behind else re.sub(_NO_COMMA, "", text[:start]) + text[end:]
    call.keywords.remove(word)
    left = parsed_call(cut)
    return cut if left is not None and ast.dump(left) == ast.dump(call) else None


def _appended(text: str, call: ast.Call, argument: str) -> str:
    """Put an argument behind the last one, on a line of its own where the others have theirs."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if not given:
        return f"{text[:-1].rstrip()}{argument})"
    spans = sorted(_span(text, node) for node in given)
    start, end = spans[-1]
    if end == len(text):  # a generator without parentheses of its own
        return f"{text[:start]}({text[start:end]}, {argument})"
    end = _after_parentheses(text, _span(text, call.func)[1], end)
    rest = text[end:]
    if _has_trailing_comma(rest):
        lines = [line for line in text[:end].split("\n")[1:] if line.strip()]
        if lines and "\n" in rest:
            indent = lines[-1][: len(lines[-1]) - len(lines[-1].lstrip())]
            stop = _end_of_line(text, end)
            return f"{text[:stop]}\n{indent}{argument},{text[stop:]}"
        comma = end + rest.index(",") + 1
        return f"{text[:comma]} {argument}{text[comma:]}"
    return f"{text[:end]}, {argument}{rest}"


def _has_trailing_comma(rest: str) -> bool:
    """Return whether the first thing behind the last argument, comments left out, is a comma."""
    return "".join(line.split("#")[0] for line in rest.split("\n")).lstrip().startswith(",")


def _end_of_line(text: str, start: int) -> int:
    at = text.find("\n", start)
    return len(text) if at < 0 else at


def _after_parentheses(text: str, begin: int, end: int) -> int:
    """Return where an argument ends that stands in parentheses of its own: a node's span leaves them out."""
    while parsed_call(f"{text[:end]})") is None:
        at = text.find(")", end)
        if at < 0 or at >= len(text) - 1 or at < begin:
            return end
        end = at + 1
    return end


def _span(text: str, node: ast.expr | ast.keyword) -> tuple[int, int]:
    """Return begin and end of a node in the text, in characters."""
    lines = text.split("\n")

    def place(line: int, column: int) -> int:
        before = sum(len(one) + 1 for one in lines[: line - 1])
        shifted = column - 1 if line == 1 else column  # the parenthesis that the text was parsed in
        return before + len(lines[line - 1].encode()[:shifted].decode("utf-8", "replace"))

    return place(node.lineno, node.col_offset), place(node.end_lineno or 1, node.end_col_offset or 0)
