"""Draws by weights that go through all of them at each call: `choice(p=)`, `multinomial`, `choices(weights=)`."""

from __future__ import annotations

import ast
from typing import NamedTuple

from diagnose.analyzers.common.idioms.source import Idiom, Source, last_name, names_in
from diagnose.model.assignments import assigned, name_of
from diagnose.model.own_source import EditedStatement, parsed_statement

__all__ = ["weighted_draws"]

# Parameters; whether drawn items are put back unless the call has it otherwise.
_DRAWS = {
    "choice": ("a", "size", "replace", "p"),
    "multinomial": ("input", "num_samples", "replacement"),
    "choices": ("population", "weights", "cum_weights", "k"),
}
_NEEDED = {"choice": {"a"}, "multinomial": {"input", "num_samples"}, "choices": {"population"}}
_REPEATS = {"choice": "True", "multinomial": "False", "choices": "True"}
# A search takes 0.1 to 2 µs for each draw: of draws that took ten and more it left at most 19 % (choice, multinomial)
# and 32 % (choices), with 50,000 to 8 million weights and 32 to 8,192 draws.
SURE_FROM_NS = 10_000
MIN_LOOKED_UP, MIN_LOOKED_UP_IN_PYTHON, MIN_UNCHECKED = 0.8, 0.6, 0.3
_TITLE, _SAME = "Add up the weights once, and look each draw up", "if the weights stay the same"
_ACCUMULATE = "from itertools import accumulate"
_SUMMED = "weights that stay the same from call to call, and 8 bytes for each"


class _Draw(NamedTuple):
    call: ast.Call
    weights: ast.expr
    given: dict[str, str]


def weighted_draws(source: Source) -> Idiom | None:
    """Return the draw of a line from sums that are made once, or kept in a tree where weights change one by one."""
    draw = next((found for call in source.calls() if (found := _draw(call)) is not None), None)
    if draw is None or isinstance(draw.weights, ast.List | ast.Tuple):  # those that are written out are few
        return None
    changes, name = source.changes(draw.weights), last_name(draw.call.func)
    is_made_here = isinstance(draw.weights, ast.Name) and draw.weights.id in source.local
    if changes or (changes is None and is_made_here):
        return _changing(source, draw) if name == "choice" else None
    weights = ast.unparse(draw.weights)
    kept = "self.cumulative" if any(each.startswith("self.") for each in _roots(source, draw.weights)) else "cumulative"
    if name == "choices":
        given = [draw.given["population"], f"cum_weights={kept}"]
        given += [f"k={draw.given['k']}"] if "k" in draw.given else []
        now = f"{ast.unparse(draw.call.func)}({', '.join(given)})"
        made, imports = f"{kept} = list(accumulate({weights}))", (EditedStatement(0, "", _ACCUMULATE),)
        edits = _once(source, draw, made, now, imports)
        return Idiom(_TITLE, edits, _SAME, _SUMMED, least=MIN_LOOKED_UP_IN_PYTHON, sure_from_ns=SURE_FROM_NS)
    if name == "multinomial":
        drawn = f"torch.rand({draw.given['num_samples']}, dtype=torch.float64, device={kept}.device) * {kept}[-1]"
        now = f"torch.searchsorted({kept}, {drawn}, right=True)"
        edits = _once(source, draw, f"{kept} = {weights}.double().cumsum(0)", now)
        words, needs = "the same distribution, drawn from other random numbers", f"{_SUMMED}; one row of weights"
        return Idiom(_TITLE, edits, words, needs, promise="other", least=MIN_LOOKED_UP, sure_from_ns=SURE_FROM_NS)
    made = f"{kept} = np.cumsum({weights}, dtype=np.float64)\n{kept} /= {kept}[-1]"
    edits = _once(source, draw, made, _looked_up(source, draw, kept)) if _is_known(source, draw) else ()
    return Idiom(_TITLE, edits, _SAME, _SUMMED, least=MIN_LOOKED_UP, sure_from_ns=SURE_FROM_NS)


def _once(
    source: Source, draw: _Draw, made: str, now: str, imports: tuple[EditedStatement, ...] = ()
) -> tuple[EditedStatement, ...]:
    once = source.once(draw.weights, made)
    return (*imports, *once, source.edited({draw.call: now})) if once else ()


def _looked_up(source: Source, draw: _Draw, sums: str) -> str:
    """Return the search that gives what choice() gives."""
    rows = f'{sums}.searchsorted({_generator(draw)}.random({draw.given.get("size", "")}), side="right")'
    return {"array": f"{draw.given['a']}[{rows}]", "list": f"np.asarray({draw.given['a']})[{rows}]"}.get(
        _items(source, draw), rows
    )


def _items(source: Source, draw: _Draw) -> str:
    return source.kind(ast.parse(draw.given["a"], mode="eval").body)


def _is_known(source: Source, draw: _Draw) -> bool:
    """Return whether the source shows what is drawn from: of that a search only gives the places."""
    return _items(source, draw) in ("int", "array", "list")


def _changing(source: Source, draw: _Draw) -> Idiom:
    """Return a draw by weights of which each call has others."""
    roots = _roots(source, draw.weights)
    targets = (target for node in ast.walk(source.around) for target, _ in assigned(node))
    has_items = any(isinstance(each, ast.Subscript) and name_of(each) in roots for each in targets)
    if has_items or any(one.name in roots and _is_of_items(one.text) for one in source.bindings):
        words = "the same distribution; its sums are rounded in another order"
        title = "Keep the sums of the weights in a tree, and change those of the rows that change"
        needs = "an update of the tree wherever a weight changes"
        return Idiom(title, (), words, needs, promise="other", least=MIN_LOOKED_UP, sure_from_ns=SURE_FROM_NS)
    made = f"sums = np.cumsum({ast.unparse(draw.weights)}, dtype=np.float64)\nsums /= sums[-1]"
    now = source.now({draw.call: _looked_up(source, draw, "sums")})
    edits = (source.after(f"{made}\n{now}"),) if _is_known(source, draw) else ()
    title = "Look the draws up in the sums of the weights, without choice()'s checks"
    return Idiom(title, edits, "", "weights that are not negative", least=MIN_UNCHECKED)


def _is_of_items(text: str) -> bool:
    tree = parsed_statement(text)
    return isinstance(tree, ast.Assign) and isinstance(tree.targets[0], ast.Subscript)


def _roots(source: Source, value: ast.expr, within: frozenset[str] = frozenset()) -> set[str]:
    """Return the attributes and names that weights are computed from in the end."""
    found = set[str]()
    for name in names_in(value):
        known = [] if "." in name or name in within else source.local.get(name, [])
        inner = [each for each in known if each is not None]
        found |= set[str]().union(*(_roots(source, each, within | {name}) for each in inner)) if inner else {name}
    return found


def _generator(draw: _Draw) -> str:
    assert isinstance(draw.call.func, ast.Attribute)
    return ast.unparse(draw.call.func.value)


def _draw(call: ast.Call) -> _Draw | None:
    """Return a call that draws with replacement by weights."""
    name = last_name(call.func)
    parameters = _DRAWS.get(name, ())
    if not parameters or not isinstance(call.func, ast.Attribute) or any(isinstance(a, ast.Starred) for a in call.args):
        return None
    given = dict(zip(parameters, call.args, strict=False)) | {
        word.arg: word.value for word in call.keywords if word.arg
    }
    texts = {key: ast.unparse(value) for key, value in given.items()}
    weights = next((given[each] for each in ("p", "input", "weights") if texts.get(each, "None") != "None"), None)
    if weights is None or not _NEEDED[name] <= texts.keys():
        return None
    if texts.get("replace", texts.get("replacement", _REPEATS[name])) != "True":
        return None
    return _Draw(call, weights, texts)
