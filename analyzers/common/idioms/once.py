"""What is made or read again at each call though it stays the same, and rows of a table that are taken one by one."""

from __future__ import annotations

import ast

from diagnose.analyzers.common.idioms.source import Idiom, Source, last_name, names_in, replaced
from diagnose.model.assignments import assigned, name_of

__all__ = ["made_each_time", "table_rows"]

_MAKERS = frozenset(
    {
        *("re.compile", "regex.compile", "json.load", "json.loads", "yaml.safe_load", "pickle.load", "torch.load"),
        *("np.load", "np.loadtxt", "np.genfromtxt", "numpy.load", "pd.read_csv", "pd.read_json", "pd.read_parquet"),
        *("spacy.load", "Tokenizer.from_file", "joblib.load", "pandas.read_csv", "tiktoken.get_encoding"),
    }
)
MIN_MADE = 0.8


def made_each_time(source: Source) -> Idiom | None:
    """Return a call whose arguments stay the same, made once: a file that is read, a pattern, a tokenizer."""
    calls = [call for call in source.calls() if _is_maker(call)]
    if not calls or not source.is_whole:
        return None
    call, loop = calls[0], source.loop(outermost=True)
    opened = {name: value for node in ast.walk(source.around) if isinstance(node, ast.withitem)
              for target, value in assigned(node) if (name := name_of(target))}  # fmt: skip
    used = [name for name in names_in(call) if name in opened]
    parts = [opened[name] for name in used] or [call]
    if any(part is None or not _stays(source, part, loop) for part in parts):
        return None
    is_method = (
        loop is None
        and isinstance(source.around, ast.FunctionDef)
        and "self" in [a.arg for a in source.around.args.args]
    )
    kept = "self.kept" if is_method else "kept"
    made = [f"with {ast.unparse(opened[name])} as {name}:" for name in used if opened[name] is not None]
    made += [f"{'    ' if made else ''}{kept} = {ast.unparse(call)}"]
    where = "before the loop" if loop is not None else "in __init__" if is_method else "above the function"
    after = f"# once, {where}\n" + "\n".join(made) + f"\n\n{_runnable(source.now({call: kept}))}"
    before = _runnable(source.now({}))
    return Idiom(f"Call {ast.unparse(call.func)} once and keep its result", before, after, "if nothing writes into the result",
                 "", least=MIN_MADE)  # fmt: skip


def _runnable(text: str) -> str:
    return f"{text} ..." if text.endswith(":") else text


def _is_maker(call: ast.Call) -> bool:
    return ast.unparse(call.func) in _MAKERS or last_name(call.func) == "from_pretrained"


def _stays(source: Source, value: ast.expr, loop: ast.For | ast.While | None) -> bool:
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
    found = next((node for node in source.own() if _is_row(node)), None)
    if not isinstance(found, ast.Subscript) or not isinstance(found.value, ast.Attribute):
        return None
    table, by, index = found.value.value, found.value.attr, found.slice
    if source.kind(table) not in ("", "frame"):
        return None
    outer = _around(source, found)
    name, needs = (
        ast.unparse(table),
        "memory for the arrays" if by.startswith("i") else "rows that are numbered 0, 1, 2, …",
    )
    column: str | None = None
    whole = found
    if isinstance(table, ast.Subscript) and isinstance(table.slice, ast.Constant):  # of one column
        column, name = ast.unparse(table.slice), ast.unparse(table.value)
    elif isinstance(index, ast.Tuple) and len(index.elts) == 2:
        index, column = index.elts[0], ast.unparse(index.elts[1])
        if by.startswith("i"):
            column = None
            name = f"{name}.iloc[:, {ast.unparse(found.slice.elts[1])}]"  # type: ignore[attr-defined]
    elif isinstance(outer, ast.Subscript) and isinstance(outer.slice, ast.Constant | ast.Name | ast.List):
        column, whole = ast.unparse(outer.slice), outer
    if isinstance(index, ast.Slice):
        return None
    base = name.partition(".iloc")[0].partition("[")[0]
    i = ast.unparse(index)
    kept = (
        f"{base}_{ast.literal_eval(column)}"
        if column and column.startswith("'") and column.strip("'").isidentifier()
        else f"{base}_values"
    )
    values = _to_array(source, whole)
    title = f"Keep the columns of {base} as arrays instead of taking rows of pandas"
    before = ast.unparse(source.statement)
    if column is not None or values is not None:
        made = f"{name}[{column}].to_numpy()" if column is not None else f"{name}.to_numpy()"
        after = f"{kept} = {made}   # once, where {base} is made\n{source.now({values or whole: f'{kept}[{i}]'})}"
        return Idiom(title, before, after, "", needs, least=0.7)
    return _by_name(source, found, base, i, title, needs)


def _by_name(source: Source, row: ast.Subscript, base: str, i: str, title: str, needs: str) -> Idiom:
    """Return the columns that a function reads of a row by their names, or all rows as dicts."""
    before = ast.unparse(source.statement)
    targets = getattr(source.statement, "targets", [])
    name = ast.unparse(targets[0]) if len(targets) == 1 and source.statement.value is row else ""  # type: ignore[attr-defined]
    uses = source.uses(name, source.around) if name.isidentifier() else []
    read = [node for node in ast.walk(source.around) if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
            and isinstance(node.slice.value, str) and ast.unparse(node.value) == name]  # fmt: skip
    columns = list(dict.fromkeys(ast.literal_eval(node.slice) for node in read))
    if source.is_whole and columns and len(read) == len(uses) and all(map(str.isidentifier, columns)):
        made = [f"{base}_{each} = {base}[{each!r}].to_numpy()" for each in columns]
        by = {node: f"{base}_{ast.literal_eval(node.slice)}[{i}]" for node in read}
        lines = [node for node in ast.walk(source.around) if isinstance(node, ast.stmt) and not hasattr(node, "body")
                 and any(each in by for each in ast.walk(node))]  # fmt: skip
        now = [replaced(node, by) for node in sorted(lines, key=lambda node: node.lineno)]
        after = "\n".join([f"# once, where {base} is made", *made, "", "# in each call, without the row", *now])
        return Idiom(title, before, after, "", f"{needs}, and columns that keep their own types", least=0.7)
    after = f"{base}_rows = {base}.to_dict('records')   # once, where {base} is made\n{source.now({row: f'{base}_rows[{i}]'})}"
    return Idiom(f"Keep the rows of {base} as dicts instead of taking rows of pandas", before, after, "",
                 f"{needs}, and columns that are read by row['name']", least=0.7)  # fmt: skip


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
