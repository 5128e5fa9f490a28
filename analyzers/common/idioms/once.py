"""What is made or read again at each call though it stays the same, and rows of a table that are taken one by one."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import NamedTuple

from diagnose.analyzers.common.idioms.source import Idiom, Source, last_name, names_in
from diagnose.model.assignments import assigned, name_of
from diagnose.model.own_source import EditedStatement

__all__ = ["made_each_time", "stays", "table_rows"]

_MAKERS = frozenset(
    {
        *("re.compile", "regex.compile", "json.load", "json.loads", "yaml.safe_load", "pickle.load", "torch.load"),
        *("np.load", "np.loadtxt", "np.genfromtxt", "numpy.load", "pd.read_csv", "pd.read_json", "pd.read_parquet"),
        *("spacy.load", "Tokenizer.from_file", "joblib.load", "pandas.read_csv", "tiktoken.get_encoding"),
    }
)
MIN_MADE, MIN_ROWS = 0.8, 0.7


def made_each_time(source: Source) -> Idiom | None:
    """Return a call whose arguments stay the same, made once: a file that is read, a pattern, a tokenizer."""
    calls = [call for call in source.calls() if _is_maker(call)]
    if not calls or not source.is_whole or getattr(source.around, "name", "") == "__init__":
        return None
    call, loop = calls[0], source.loop(outermost=True)
    opened = {name: value for node in ast.walk(source.around) if isinstance(node, ast.withitem)
              for target, value in assigned(node) if (name := name_of(target))}  # fmt: skip
    used = [name for name in names_in(call) if name in opened]
    parts = [opened[name] for name in used] or [call]
    if any(part is None or not stays(source, part, loop) for part in parts):
        return None
    parameters = source.around.args.args if isinstance(source.around, ast.FunctionDef) else []
    is_method = loop is None and "self" in [one.arg for one in parameters]
    target = next(iter(getattr(source.statement, "targets", ())), None)
    word = f"kept_{target.id}" if isinstance(target, ast.Name) else "kept"
    kept = f"self.{word}" if is_method else word
    made = [f"with {source.now({}, part)} as {name}:" for name in used if (part := opened[name]) is not None]
    made += [f"{'    ' if made else ''}{kept} = {source.now({}, call)}"]
    once = source.once(ast.Tuple([part for part in parts if part is not None]), "\n".join(made))
    edits = (*once, source.edited({call: kept})) if once and len(used) <= 1 else ()
    title, condition = f"Call {ast.unparse(call.func)} once and keep its result", "if nothing writes into the result"
    return Idiom(title, edits, condition, least=MIN_MADE)


def _is_maker(call: ast.Call) -> bool:
    return ast.unparse(call.func) in _MAKERS or last_name(call.func) == "from_pretrained"


def stays(source: Source, value: ast.expr, loop: ast.For | ast.While | None) -> bool:
    """Return whether an expression is the same in each turn of the loop, or without one in each call."""
    if loop is None:
        return source.changes(value) is False
    inside = {name_of(target) for node in ast.walk(loop) for target, _ in assigned(node)}
    own = [name for name in names_in(value) if "." in name]
    return not inside & set(names_in(value)) and all(
        source.changes(ast.parse(name, mode="eval").body) is False for name in own
    )


_ROWS = frozenset({"iloc", "loc", "iat", "at"})


def table_rows(source: Source) -> Idiom | None:
    """Return arrays of a table's columns that are made once, in the place of a row of pandas for each sample."""
    rows = [node for node in source.own() if _is_row(node)]
    found = [each for row in rows if isinstance(row, ast.Subscript) and (each := _row(source, row)) is not None]
    if not found:
        return None
    base = found[0].base
    needs = "memory for the arrays" if all(each.by_place for each in found) else "rows that are numbered 0, 1, 2, …"
    title = f"Keep the columns of {base} as arrays instead of taking rows of pandas"
    if any(not each.made for each in found):
        return _by_name(source, found[0], title, needs) if len(found) == 1 else None
    made = dict.fromkeys(each.made for each in found)
    now = source.edited({each.node: f"{each.kept}[{each.place}]" for each in found})
    return Idiom(title, _kept(source, base, made, now), "", needs, least=MIN_ROWS)


def _kept(source: Source, base: str, made: Iterable[str], *now: EditedStatement) -> tuple[EditedStatement, ...]:
    """Return the edits of a table's uses, and what is made of it once."""
    once = source.once(ast.parse(base, mode="eval").body, "\n".join(made))
    return (*once, *now) if once else ()


class _Row(NamedTuple):
    """A row of a table, or one of its values."""

    node: ast.AST  # that an array's item takes the place of
    base: str  # the table
    place: str
    kept: str
    made: str  # the array, "" where the row itself is used
    by_place: bool


def _row(source: Source, row: ast.Subscript) -> _Row | None:
    assert isinstance(row.value, ast.Attribute)
    table, by, index = row.value.value, row.value.attr, row.slice
    second = index.elts[1] if isinstance(index, ast.Tuple) and len(index.elts) == 2 else None
    is_table = by == "iloc" or (second is not None and source.kind(second) == "str")
    if source.changes(table) or (source.kind(table) != "frame" and not (is_table and not source.kind(table))):
        return None
    first = index.elts[0] if isinstance(index, ast.Tuple) else index
    if isinstance(first, ast.Slice):
        return None
    outer, name, whole = _around(source, row), ast.unparse(table), row
    column: ast.expr | None = None
    if isinstance(table, ast.Subscript) and isinstance(table.slice, ast.Constant):  # of one column
        column, name = table.slice, ast.unparse(table.value)
    elif second is not None and by in ("loc", "at"):
        column = second
    elif second is not None:
        name = f"{name}.iloc[:, {ast.unparse(second)}]"
    elif isinstance(outer, ast.Subscript) and isinstance(outer.slice, ast.Constant | ast.List):
        column, whole = outer.slice, outer
    values = _to_array(source, whole)
    base = name.partition(".iloc")[0].partition("[")[0]
    label = column.value if isinstance(column, ast.Constant) else ""
    kept = f"{base}_{label}" if isinstance(label, str) and label.isidentifier() else f"{base}_values"
    of_column = f"[{ast.unparse(column)}]" if column is not None else ""
    is_array = column is not None or second is not None or values is not None
    made = f"{kept} = {name}{of_column}.to_numpy()" if is_array else ""
    return _Row(values or whole, base, ast.unparse(first), kept, made, by.startswith("i"))


def _by_name(source: Source, row: _Row, title: str, needs: str) -> Idiom:
    """Return the columns that a function reads of a row by their names, or all rows as dicts."""
    base, i = row.base, row.place
    targets = getattr(source.statement, "targets", [])
    is_alone = len(targets) == 1 and getattr(source.statement, "value", None) is row.node
    name = ast.unparse(targets[0]) if is_alone else ""
    uses = source.uses(name, source.around) if name.isidentifier() else []
    items = [node for node in ast.walk(source.around) if isinstance(node, ast.Subscript)]
    read = {node: str(node.slice.value) for node in items
            if ast.unparse(node.value) == name and isinstance(node.slice, ast.Constant)}  # fmt: skip
    columns = list(dict.fromkeys(read.values()))
    if source.is_whole and columns and len(read) == len(uses) and all(map(str.isidentifier, columns)):
        made = [f"{base}_{each} = {base}[{each!r}].to_numpy()" for each in columns]
        by: dict[ast.AST, str] = {node: f"{base}_{column}[{i}]" for node, column in read.items()}
        lines = [node for node in ast.walk(source.around) if isinstance(node, ast.stmt) and not hasattr(node, "body")
                 and any(each in by for each in ast.walk(node))]  # fmt: skip
        now = [source.after(""), *(source.edited(by, node) for node in lines)]
        edits = _kept(source, base, made, *now)
        return Idiom(title, edits, "", f"{needs}, and columns that keep their own types", least=MIN_ROWS)
    title, needs = f"Keep the rows of {base} as dicts instead of taking rows of pandas", f"{needs}, and columns by name"
    now = [source.edited({row.node: f"{base}_rows[{i}]"})]
    edits = _kept(source, base, [f"{base}_rows = {base}.to_dict('records')"], *now)
    return Idiom(title, edits, "", needs, least=MIN_ROWS)


def _is_row(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr in _ROWS


def _around(source: Source, inner: ast.AST) -> ast.AST | None:
    return next(
        (node for node in source.own() if isinstance(node, ast.Subscript | ast.Attribute) and node.value is inner), None
    )


def _to_array(source: Source, inner: ast.AST) -> ast.AST | None:
    """Return what makes an array of a row: `.values`, `.to_numpy()`, `np.asarray(…)`."""
    around = _around(source, inner)
    if isinstance(around, ast.Attribute) and around.attr == "values":
        return around
    calls = [call for call in source.calls() if call.func is around]
    if (
        isinstance(around, ast.Attribute)
        and around.attr == "to_numpy"
        and calls
        and not calls[0].args + calls[0].keywords
    ):
        return calls[0]
    return None
