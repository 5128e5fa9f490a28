"""Draws by weights that go through all of them at each call: `choice(p=)`, `multinomial`, `choices(weights=)`."""

from __future__ import annotations

import ast
from typing import NamedTuple

from diagnose.analyzers.common.idioms.source import Idiom, Source, last_name, names_in, parsed
from diagnose.model.assignments import Binding, assigned, name_of

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
_TITLE = "Add up the weights once, and look each draw up"
_SUMMED = "weights that stay the same from call to call, and 8 bytes for each"
_TREE = """# once: a tree of sums over the weights; tree[1] is the sum of all
depth = (len({stored}) - 1).bit_length()
tree = np.zeros(2 << depth)

def set_weights(rows, weights):   # at first of all rows{beside}
    node = rows + (1 << depth)
    tree[node] = weights
    for _ in range(depth):
        node = node >> 1
        tree[node] = tree[2 * node] + tree[2 * node + 1]

def draw(num):   # rows and their probabilities
    left, node = {source}.random(num) * tree[1], np.ones(num, np.int64)
    for _ in range(depth):
        node = 2 * node
        is_right = left >= tree[node]
        left -= tree[node] * is_right
        node += is_right
    return node - (1 << depth), tree[node] / tree[1]

"""


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
    is_own = any(each.startswith("self.") for each in _roots(source, draw.weights))
    kept = "self.cumulative" if is_own else "cumulative"
    before = ast.unparse(source.statement)
    if name == "choices":
        given = [draw.given["population"], f"cum_weights={kept}"]
        given += [f"k={draw.given['k']}"] if "k" in draw.given else []
        now = source.now({draw.call: f"{ast.unparse(draw.call.func)}({', '.join(given)})"})
        made = f"{kept} = list(accumulate({weights}))   # once, where the weights are made"
        after = f"from itertools import accumulate\n\n{made}\n{now}"
        words = "if the weights stay the same"
        least = MIN_LOOKED_UP_IN_PYTHON
        return Idiom(_TITLE, before, after, words, _SUMMED, least=least, sure_from_ns=SURE_FROM_NS)
    if name == "multinomial":
        drawn = f"torch.rand({draw.given['num_samples']}, dtype=torch.float64, device={kept}.device) * {kept}[-1]"
        now = source.now({draw.call: f"torch.searchsorted({kept}, {drawn}, right=True)"})
        after = f"{kept} = {weights}.double().cumsum(0)   # once, where the weights are made\n{now}"
        words, needs = "the same distribution, drawn from other random numbers", f"{_SUMMED}; one row of weights"
        return Idiom(
            _TITLE, before, after, words, needs, is_identical=False, least=MIN_LOOKED_UP, sure_from_ns=SURE_FROM_NS
        )
    made = f"{kept} = np.cumsum({weights}, dtype=np.float64)\n{kept} /= {kept}[-1]"
    now = source.now({draw.call: _looked_up(source, draw, kept)})
    drawn = f"# the draws of choice(), from the same random numbers\n{now}"
    after = f"# once, where the weights are made\n{made}\n\n{drawn}"
    needs = _needs(source, draw, _SUMMED)
    words = "if the weights stay the same"
    return Idiom(_TITLE, before, after, words, needs, least=MIN_LOOKED_UP, sure_from_ns=SURE_FROM_NS)


def _looked_up(source: Source, draw: _Draw, sums: str) -> str:
    """Return the search that gives what choice() gives."""
    rows = f'{sums}.searchsorted({_generator(draw)}.random({draw.given.get("size", "")}), side="right")'
    return {"array": f"{draw.given['a']}[{rows}]", "list": f"np.asarray({draw.given['a']})[{rows}]"}.get(
        _items(source, draw), rows
    )


def _items(source: Source, draw: _Draw) -> str:
    return source.kind(ast.parse(draw.given["a"], mode="eval").body)


def _needs(source: Source, draw: _Draw, needs: str) -> str:
    """Return what a search needs: of what is drawn from, it only gives the places."""
    is_known = _items(source, draw) in ("int", "array", "list")
    return needs if is_known else f"{needs}; where {draw.given['a']} is an array, {draw.given['a']}[…] of the result"


def _changing(source: Source, draw: _Draw) -> Idiom:
    """Return a draw by weights of which each call has others."""
    before = ast.unparse(source.statement)
    roots = _roots(source, draw.weights)
    items = [one for one in source.bindings if one.name in roots and _is_of_items(one.text)]
    items += [
        Binding(name, "", ast.unparse(target))
        for node in ast.walk(source.around)
        for target, _ in assigned(node)
        if isinstance(target, ast.Subscript) and (name := name_of(target)) in roots
    ]
    if items:
        stored, where = items[0].name, items[0]
        beside = (
            f", then {f'in {where.function}, ' if where.function else ''}beside {where.text.partition(' = ')[0]} = …"
        )
        values = {"stored": stored, "beside": beside, "source": _generator(draw)}
        now = source.now({draw.call: f"draw({draw.given.get('size', '1')})[0]"})
        after = _TREE.format(**values) + now
        words = "the same distribution; its sums are rounded in another order"
        title = "Keep the sums of the weights in a tree, and change those of the rows that change"
        needs = _needs(source, draw, "a call of set_weights() with the new weights wherever they change")
        return Idiom(
            title, before, after, words, needs, is_identical=False, least=MIN_LOOKED_UP, sure_from_ns=SURE_FROM_NS
        )
    made = f"sums = np.cumsum({ast.unparse(draw.weights)}, dtype=np.float64)\nsums /= sums[-1]"
    now = source.now({draw.call: _looked_up(source, draw, "sums")})
    after = f"# the draws of choice(), without its checks of all weights\n{made}\n{now}"
    title = "Look the draws up in the sums of the weights, without choice()'s checks"
    needs = _needs(source, draw, "weights that are not negative")
    return Idiom(title, before, after, "", needs, least=MIN_UNCHECKED)


def _is_of_items(text: str) -> bool:
    tree = parsed(text)
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
