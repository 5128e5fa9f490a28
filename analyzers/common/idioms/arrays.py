"""Arrays that grow by copies, are sorted for a few items, or are made into tensors one number at a time."""

from __future__ import annotations

import ast

from diagnose.analyzers.common.idioms.source import Idiom, Source, last_name, same

__all__ = ["few_of_sorted", "growing_array", "stacked_arrays"]

_JOINS = frozenset({"append", "concatenate", "hstack", "vstack", "cat"})
_MODULES = ("np", "numpy", "torch")
_TENSORS = frozenset({"tensor", "as_tensor", "FloatTensor", "LongTensor"})
_DTYPES = {"FloatTensor": "torch.float32", "LongTensor": "torch.int64"}


def growing_array(source: Source) -> Idiom | None:
    """Return a list of pieces, or room for twice as many, in the place of a copy of all that there is so far."""
    match source.statement:
        case ast.Assign(targets=[ast.Name() | ast.Attribute() as target], value=ast.Call() as call):
            piece = _piece(call, target)
        case ast.Assign(
            targets=[ast.Name() | ast.Attribute() as target], value=ast.BinOp(left, ast.Add(), ast.List(elts=[item]))
        ):
            if not same(left, target):
                return None
            name = ast.unparse(target)
            after = f"{name}.append({ast.unparse(item)})"
            return Idiom(
                f"Append to {name} in place", ast.unparse(source.statement), after, "", f"no other name for {name}"
            )
        case _:
            return None
    if piece is None:
        return None
    name, function, new = ast.unparse(target), ast.unparse(call.func), ast.unparse(piece)
    loop, before = source.loop(), ast.unparse(source.statement)
    words = ", ".join(f"{word.arg}={ast.unparse(word.value)}" for word in call.keywords)
    rank_one = function.endswith(".append") and not call.keywords
    module = "torch.cat" if function.endswith(".cat") else "np.concatenate"
    if source.is_whole and loop is not None and not source.uses(name, loop):
        added = f"np.ravel({new})" if rank_one else f"np.atleast_2d({new})" if function.endswith("vstack") else new
        joined = f"{module}([{name}, *parts]{', ' + words if words else ''})"
        after = f"parts = []   # before the loop\nparts.append({added})   # in it\n{name} = {joined}   # after it, once"
        return Idiom(f"Collect the pieces of {name} in a list, and join them once", before, after, "", "", least=0.7)
    if function.endswith((".cat", ".hstack")) or (words and words != "axis=0"):
        return None
    rows = f"np.{'ravel' if rank_one else 'atleast_2d' if function.endswith('vstack') else 'asarray'}({new})"
    after = f"""room, num = {name}.copy(), len({name})   # once, where {name} is made

rows = {rows}
while num + len(rows) > len(room):   # now and then: room for twice as many
    room = np.concatenate((room, np.empty_like(room, shape=(max(len(room), 64), *room.shape[1:]))))
room[num : num + len(rows)] = rows
num += len(rows)
{name} = room[:num]   # a view: nothing is copied"""
    return Idiom(f"Write into room for twice as many instead of copying all of {name}", before, after, "",
                 f"memory for twice as many rows, and pieces of {name}'s type", least=0.7)  # fmt: skip


def _piece(call: ast.Call, target: ast.expr) -> ast.expr | None:
    """Return what a call puts behind a name's array."""
    if last_name(call.func) not in _JOINS or ast.unparse(call.func).partition(".")[0] not in _MODULES:
        return None
    given = call.args
    if last_name(call.func) != "append":
        given = given[0].elts if given and isinstance(given[0], ast.List | ast.Tuple) else []
    return given[1] if len(given) == 2 and same(given[0], target) else None


def few_of_sorted(source: Source) -> Idiom | None:
    """Return a selection of the few items that are used in the place of an order of all."""
    for node in source.own():
        if isinstance(node, ast.Subscript) and (found := _few(node)) is not None:
            call, num, is_reversed, axis = found
            name = last_name(call.func)
            made = (
                _of_python(call, num, is_reversed)
                if name == "sorted"
                else _of_array(source, node, call, num, is_reversed, axis)
            )
            if made is not None:
                return made if isinstance(made, Idiom) else Idiom(
                    "Select the few items that are used instead of sorting all", ast.unparse(source.statement),
                    f"import heapq\n\n{source.now({node: made})}", "", f"{ast.unparse(num)} well below the number of items",
                )  # fmt: skip
    return None


def _few(node: ast.Subscript) -> tuple[ast.Call, ast.expr, bool, bool] | None:
    """Return the call that orders all, how many are used, whether they are the largest, and whether of each row."""
    inner, index = node.value, node.slice
    each = isinstance(index, ast.Tuple) and len(index.elts) == 2 and ast.unparse(index.elts[0]) == ":"
    if each:
        index = index.elts[1]  # type: ignore[union-attr]
    is_reversed = False
    if isinstance(inner, ast.Subscript) and ast.unparse(inner.slice) == (
        "(slice(None, None), slice(None, None, -1))" if each else "::-1"
    ):
        is_reversed, inner = True, inner.value
    if not isinstance(inner, ast.Call) or last_name(inner.func) not in ("sorted", "argsort"):
        return None
    match index:
        case ast.Slice(lower=None, upper=ast.expr() as num, step=None) if not isinstance(num, ast.UnaryOp):
            return inner, num, is_reversed, each
        case ast.Slice(lower=ast.UnaryOp(ast.USub(), num), upper=None, step=None) if (
            not is_reversed and last_name(inner.func) == "argsort"
        ):
            return inner, num, None, each  # type: ignore[return-value]
    return None


def _of_python(call: ast.Call, num: ast.expr, is_reversed: bool) -> str | None:
    words = {word.arg: ast.unparse(word.value) for word in call.keywords}
    largest = words.pop("reverse", "False")
    if largest not in ("True", "False") or is_reversed:
        return None
    key = f", key={words['key']}" if "key" in words else ""
    function = "nlargest" if largest == "True" else "nsmallest"
    return f"heapq.{function}({ast.unparse(num)}, {ast.unparse(call.args[0])}{key})"


def _of_array(
    source: Source, node: ast.Subscript, call: ast.Call, num: ast.expr, largest: bool | None, each: bool
) -> Idiom | None:
    root = ast.unparse(call.func).rpartition(".")[0]
    of_module = root in _MODULES
    given = [*(call.args if of_module else [getattr(call.func, "value", None), *call.args])]
    words = {word.arg: ast.unparse(word.value) for word in call.keywords}
    axis = words.pop("axis", words.pop("dim", ast.unparse(given[1]) if len(given) > 1 else "-1"))
    if words or not given or (each and axis not in ("1", "-1")) or (not each and axis not in ("-1", "0")):
        return None
    values, k = ast.unparse(given[0]), ast.unparse(num)
    cut, rows = (", axis=1" if each else ""), (":, " if each else "")
    is_tensor = root == "torch" or source.kind(given[0]) == "tensor"
    if is_tensor:
        few = f"{values}.topk({k}, largest={largest is not False})" if largest is not None else ""
        made = f"{few}.indices" if few else f"{values}.topk({k}).indices.flip(-1)"
        after = source.now({node: made})
    else:
        part = f"np.argpartition({values}, {f'-({k})' if largest is not False else f'{k} - 1'}{cut})"
        part += f"[{rows}-({k}):]" if largest is not False else f"[{rows}:{k}]"
        picked = f"np.take_along_axis({values}, few, axis=1)" if each else f"{values}[few]"
        order = f"np.argsort({picked}{cut})" + (f"[{rows}::-1]" if largest else "")
        made = f"np.take_along_axis(few, {order}, axis=1)" if each else f"few[{order}]"
        after = f"few = {part}\n{source.now({node: made})}"
    title = "Select the few items that are used instead of sorting all"
    return Idiom(
        title, ast.unparse(source.statement), after, "if no values are equal", f"{k} well below the number of values"
    )


def stacked_arrays(source: Source) -> Idiom | None:
    """Return one copy of stacked arrays in the place of a tensor that is made of their numbers one by one."""
    for call in source.calls():
        if last_name(call.func) not in _TENSORS or not call.args or ast.unparse(call.func).partition(".")[0] != "torch":
            continue
        given = call.args[0]
        if not _holds_arrays(source, given):
            continue
        dtype = _DTYPES.get(last_name(call.func))
        words = [f"{word.arg}={ast.unparse(word.value)}" for word in call.keywords] + (
            [f"dtype={dtype}"] if dtype else []
        )
        made = f"torch.tensor({', '.join([f'np.stack({ast.unparse(given)})', *words])})"
        return Idiom("Stack the arrays with NumPy before they become a tensor", ast.unparse(source.statement),
                     source.now({call: made}), "", "arrays of one shape", least=0.7)  # fmt: skip
    return None


def _holds_arrays(source: Source, given: ast.expr) -> bool:
    match given:
        case ast.ListComp(elt=one):
            return source.kind(one) == "array"
        case ast.List(elts=[_, *_] as parts):
            return all(source.kind(one) == "array" for one in parts)
        case ast.Name(id=name):
            made = source.local.get(name, [])
            added = [node.args[0] for node in ast.walk(source.around) if isinstance(node, ast.Call) and node.args
                     and ast.unparse(node.func) == f"{name}.append"]  # fmt: skip
            whole = [each for each in made if not (isinstance(each, ast.List) and not each.elts)]
            return (
                bool(made)
                and (bool(added) or bool(whole))
                and all(source.kind(one) == "array" for one in added)
                and all(
                    each is not None and not isinstance(each, ast.Name) and _holds_arrays(source, each)
                    for each in whole
                )
            )
    return False
