"""Arrays that grow by copies, are sorted or read for a few items, or become tensors one number at a time."""

from __future__ import annotations

import ast
from typing import NamedTuple

from diagnose.analyzers.common.idioms.source import Idiom, Source, last_name, names_in, same
from diagnose.model.own_source import EditedStatement

__all__ = ["cut_of_file", "few_of_sorted", "growing_array", "stacked_arrays"]

_JOINS = frozenset({"append", "concatenate", "hstack", "vstack", "cat"})
_MODULES = ("np", "numpy", "torch")
_TENSORS = frozenset({"tensor", "as_tensor", "FloatTensor", "LongTensor"})
_DTYPES = {"FloatTensor": "torch.float32", "LongTensor": "torch.int64"}
MIN_JOINED, MIN_STACKED, MIN_MAPPED = 0.7, 0.7, 0.5


def growing_array(source: Source) -> Idiom | None:
    """Return a list of pieces, or room for twice as many, in the place of a copy of all that there is so far."""
    match source.statement:
        case ast.Assign(targets=[target], value=ast.Call() as call) if (piece := _piece(call, target)) is not None:
            return _joined(source, target, call, piece)
        case ast.Assign(targets=[target], value=ast.BinOp(left, ast.Add(), ast.List(elts=[item]))) if same(
            left, target
        ):
            name = ast.unparse(target)
            edits = (source.after(f"{name}.append({source.now({}, item)})"),)
            return Idiom(f"Append to {name} in place", edits, "", f"no other name for {name}")
    return None


def _piece(call: ast.Call, target: ast.expr) -> ast.expr | None:
    """Return what a call puts behind a name's array."""
    if last_name(call.func) not in _JOINS or ast.unparse(call.func).partition(".")[0] not in _MODULES:
        return None
    given = call.args
    if last_name(call.func) != "append":
        given = given[0].elts if given and isinstance(given[0], ast.List | ast.Tuple) else []
    return given[1] if len(given) == 2 and same(given[0], target) else None


def _joined(source: Source, target: ast.expr, call: ast.Call, piece: ast.expr) -> Idiom | None:
    name, function, new = ast.unparse(target), last_name(call.func), source.now({}, piece)
    words = "".join(f", {word.arg}={ast.unparse(word.value)}" for word in call.keywords)
    is_flat, loop = function == "append" and not words, source.loop()
    rows = f"np.ravel({new})" if is_flat else f"np.atleast_2d({new})" if function == "vstack" else new
    if source.is_whole and loop is not None and not source.uses(name, loop):
        join = function if function in ("cat", "hstack") else "concatenate"
        joined = f"{name} = {ast.unparse(call.func).partition('.')[0]}.{join}([{name}, *parts]{words})"
        edits = (
            source.after(f"parts = []\n{source.now({}, loop)}", loop),
            source.after(f"parts.append({rows})"),
            EditedStatement(source.line(loop), "", joined),
        )
        return Idiom(f"Collect the pieces of {name} in a list, and join them once", edits, least=MIN_JOINED)
    if function in ("cat", "hstack") or words not in ("", ", axis=0"):
        return None
    title, needs = f"Write into room for twice as many instead of copying all of {name}", f"pieces of {name}'s type"
    return Idiom(title, (), "", f"{needs}, and memory for twice as many rows", least=MIN_JOINED)


class _Few(NamedTuple):
    """A part of what is sorted."""

    call: ast.Call
    num: ast.expr
    from_end: bool  # the last of the order
    is_turned: bool  # in the opposite order
    of_rows: bool  # of each row of a matrix


def few_of_sorted(source: Source) -> Idiom | None:
    """Return a selection of the few items that are used in the place of an order of all."""
    title = "Select the few items that are used instead of sorting all"
    for node in source.own():
        few = _few(node) if isinstance(node, ast.Subscript) else None
        if few is None:
            continue
        needs = f"{ast.unparse(few.num)} well below the number of items"
        if last_name(few.call.func) == "sorted":
            first, made, condition = "", _of_python(few), ""
            imports = [EditedStatement(0, "", "import heapq")]
        else:
            (first, made), condition, imports = _of_array(source, few), "if no values are equal", []
            needs += "" if few.of_rows else ", which have one dimension"
        if made:
            return Idiom(title, (*imports, source.after(f"{first}{source.now({node: made})}")), condition, needs)
    return None


def _few(node: ast.Subscript) -> _Few | None:
    inner, index = node.value, node.slice
    of_rows = isinstance(index, ast.Tuple) and len(index.elts) == 2 and same(index.elts[0], ast.Slice())
    if of_rows and isinstance(index, ast.Tuple):
        index = index.elts[1]
    turned = "slice(None, None, -1)" if of_rows else "::-1"
    is_turned = isinstance(inner, ast.Subscript) and turned in ast.unparse(inner.slice) and not of_rows
    if is_turned and isinstance(inner, ast.Subscript):
        inner = inner.value
    if not isinstance(inner, ast.Call) or last_name(inner.func) not in ("sorted", "argsort"):
        return None
    if any(isinstance(each, ast.Starred) for each in inner.args):
        return None
    match index:
        case ast.Slice(lower=None, upper=ast.expr() as num, step=None) if not isinstance(num, ast.UnaryOp):
            return _Few(inner, num, is_turned, is_turned, of_rows)
        case ast.Slice(lower=ast.UnaryOp(ast.USub(), num), upper=None, step=None) if not is_turned:
            return _Few(inner, num, True, False, of_rows)
    return None


def _of_python(few: _Few) -> str:
    words = {word.arg: ast.unparse(word.value) for word in few.call.keywords}
    largest = words.pop("reverse", "False")
    if largest not in ("True", "False") or few.from_end or few.of_rows or not few.call.args:
        return ""
    key = f", key={words['key']}" if "key" in words else ""
    function = "nlargest" if largest == "True" else "nsmallest"
    return f"heapq.{function}({ast.unparse(few.num)}, {ast.unparse(few.call.args[0])}{key})"


def _of_array(source: Source, few: _Few) -> tuple[str, str]:
    """Return what selects the few, and what has their order; both "" where the source does not show what is sorted."""
    function = few.call.func
    of_module = ast.unparse(function).rpartition(".")[0] in _MODULES
    given = [*([] if of_module or not isinstance(function, ast.Attribute) else [function.value]), *few.call.args]
    words = {word.arg: ast.unparse(word.value) for word in few.call.keywords}
    axis = words.pop("axis", words.pop("dim", ast.unparse(given[1]) if len(given) > 1 else "-1"))
    kind = source.kind(given[0]) if given else ""
    is_tensor = ast.unparse(function) == "torch.argsort" or kind == "tensor"
    if (
        words
        or not given
        or axis not in ("-1", "1" if few.of_rows else "0")
        or not (of_module or kind in ("array", "tensor"))
    ):
        return "", ""
    values, k, named = ast.unparse(given[0]), ast.unparse(few.num), ""
    if not isinstance(given[0], ast.Name | ast.Attribute):
        values, named = "values", f"values = {values}\n"
    last = f"-{k}" if isinstance(few.num, ast.Name | ast.Constant | ast.Attribute) else f"-({k})"
    if is_tensor:
        turned = ".flip(-1)" if few.from_end and not few.is_turned else ""
        return named, f"{values}.topk({k}, largest={few.from_end}).indices{turned}"
    cut, rows = (", axis=1", ":, ") if few.of_rows else ("", "")
    first = (
        str(few.num.value - 1) if isinstance(few.num, ast.Constant) and isinstance(few.num.value, int) else f"{k} - 1"
    )
    bound, part = (last, f"{last}:") if few.from_end else (first, f":{k}")
    selected = f"{named}few = np.argpartition({values}, {bound}{cut})[{rows}{part}]\n"
    picked = f"np.take_along_axis({values}, few, axis=1)" if few.of_rows else f"{values}[few]"
    order = f"np.argsort({picked}{cut})" + ("[::-1]" if few.is_turned else "")
    return selected, f"np.take_along_axis(few, {order}, axis=1)" if few.of_rows else f"few[{order}]"


def stacked_arrays(source: Source) -> Idiom | None:
    """Return one copy of stacked arrays in the place of a tensor that is made of their numbers one by one."""
    for call in source.calls():
        name = last_name(call.func)
        if (
            name in _TENSORS
            and ast.unparse(call.func) == f"torch.{name}"
            and call.args
            and _holds_arrays(source, call.args[0])
        ):
            words = [f"{word.arg}={ast.unparse(word.value)}" for word in call.keywords]
            words += [f"dtype={_DTYPES[name]}"] if name in _DTYPES else []
            made = f"torch.tensor({', '.join([f'np.stack({source.now({}, call.args[0])})', *words])})"
            title = "Stack the arrays with NumPy before they become a tensor"
            return Idiom(title, (source.edited({call: made}),), "", "arrays of one shape", least=MIN_STACKED)
    return None


def _holds_arrays(source: Source, given: ast.expr) -> bool:
    """Return whether the source shows that an expression is a list of arrays."""
    match given:
        case ast.ListComp(elt=one):
            return source.kind(one) == "array"
        case ast.List(elts=parts):
            return bool(parts) and all(source.kind(one) == "array" for one in parts)
        case ast.Name(id=name):
            calls = [node for node in ast.walk(source.around) if isinstance(node, ast.Call) and node.args]
            added = [call.args[0] for call in calls if ast.unparse(call.func) == f"{name}.append"]
            made = source.values(name)
            empty = [each for each in made if isinstance(each, ast.List) and not each.elts]
            whole = [each for each in made if each not in empty]
            of_arrays = all(isinstance(each, ast.List | ast.ListComp) and _holds_arrays(source, each) for each in whole)
            return of_arrays and bool(added or whole) and all(source.kind(one) == "array" for one in added)
    return False


def cut_of_file(source: Source) -> Idiom | None:
    """Return the part of an array's file that is used, mapped, in the place of all of the array."""
    for node in source.own():
        match node:
            case ast.Subscript(value=ast.Call(func=function, args=[file], keywords=[]) as call, slice=index) if (
                ast.unparse(function) in ("np.load", "numpy.load") and _cuts(source, index)
            ):
                module, part = ast.unparse(function).partition(".")[0], source.now({}, index)
                mapped = f'{module}.load({source.now({}, file)}, mmap_mode="r")[{part}]'
                edit = source.edited({node: f"{module}.array({mapped})"})
                title = f"Map the file of {ast.unparse(call)} and read only the part that is used"
                return Idiom(title, (edit,), "", "an uncompressed .npy file", least=MIN_MAPPED)
            case ast.Subscript(value=ast.Subscript(value=held, slice=whole), slice=index) if ast.unparse(whole) in (
                ":",
                "()",
            ) and _cuts(source, index):
                name = ast.unparse(held)
                edit = source.edited({node: f"{source.now({}, held)}[{source.now({}, index)}]"})
                return Idiom(f"Read only the part of {name} that is used", (edit,), "", "", least=MIN_MAPPED)
    return None


def _cuts(source: Source, index: ast.expr) -> bool:
    """Return whether the source shows that an index selects a range, and not a name or one item."""
    named = (value for name in names_in(index) for value in source.values(name) if value is not None)
    for node in (each for value in (index, *named) for each in ast.walk(value)):
        match node:
            case ast.Slice(lower=lower, upper=upper) if lower is not None or upper is not None:
                return True
            case ast.Call(func=ast.Name(id="slice"), args=[first, *others]) if others or ast.unparse(first) != "None":
                return True
    return False
