"""The catalogue of costly forms: calls of libraries that do far more than their result needs.

An entry has the callables, by value; the facts under which a call is costly; what is wrong with it; and the form that
gives the same with less. Facts are of the call's arguments as the script ran, and of how its source uses the result.
What a form costs is not asked here: the samples at its line show that.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from math import log2
from typing import NamedTuple, TypeAlias

from diagnose.analyzers.common.idioms.source import Idiom, Promise, Source, last_name, same
from diagnose.model.factorisations import svd_operations
from diagnose.model.limits import FEW
from diagnose.model.own_source import EditedStatement
from diagnose.model.records import HostCallRecord, OperandRecord
from diagnose.perf_model.transforms import CONVOLVED, Transform, fast_length

__all__ = ["MIN_ELEMENTS", "CostlyForm", "costly_form"]

Facts: TypeAlias = Mapping[str, object]

MIN_ELEMENTS = 256  # fewer are gone through in about the time that a call takes
_ARRAYS = frozenset({"numpy.ndarray", "torch.Tensor", "pandas.Series"})
_FUNCTIONS = frozenset({"builtins.function", "builtins.method"})


class Given(NamedTuple):
    """A call with what its arguments were."""

    call: HostCallRecord
    node: ast.expr
    source: Source | None

    @property
    def own(self) -> OperandRecord | None:
        """Return what the method belongs to, or what an item is taken of."""
        held = self.node.func if isinstance(self.node, ast.Call) else self.node
        owner = held.value if isinstance(held, ast.Attribute | ast.Subscript) else None
        known = self._seen(owner)
        return known or self._seen(owner.value) if isinstance(owner, ast.Attribute) else known

    def argument(self, place: int, name: str = "") -> ast.expr | None:
        """Return an argument by its place or name."""
        if not isinstance(self.node, ast.Call) or any(isinstance(each, ast.Starred) for each in self.node.args):
            return None
        by_place = self.node.args[place] if 0 <= place < len(self.node.args) else None
        return by_place or next((each.value for each in self.node.keywords if each.arg == name), None)

    def operand(self, place: int, name: str = "") -> OperandRecord | None:
        """Return what an argument was."""
        return self._seen(self.argument(place, name))

    def number(self, place: int, name: str = "") -> int | None:
        """Return an argument that is an integer."""
        node, seen = self.argument(place, name), self.operand(place, name)
        known = getattr(node, "value", None) if isinstance(node, ast.Constant) else seen and seen.number
        return known if type(known) is int else None

    def is_given(self, place: int, name: str, value: object) -> bool:
        """Return whether an argument is this constant."""
        node = self.argument(place, name)
        return isinstance(node, ast.Constant) and node.value is value

    def text(self, node: ast.AST | None) -> str:
        """Return the text of an expression."""
        return ast.unparse(node) if node is not None else ""

    def around(self) -> Iterator[ast.AST]:
        """Yield what the result goes into: expressions of the statement, and of others the name that it gets.

        Asking for its length or shape is no use.
        """
        if self.source is None:
            return
        whole = self.source.statement
        names = {ast.unparse(each) for each in getattr(whole, "targets", ()) if isinstance(each, ast.Name)}
        is_named = isinstance(whole, ast.Assign) and same(whole.value, self.node) and len(names) == 1
        within = self.source.around if is_named and self.source.is_whole else whole
        for outer in ast.walk(within):
            for inner in ast.iter_child_nodes(outer):
                is_use = isinstance(inner, ast.Name) and inner.id in names and isinstance(inner.ctx, ast.Load)
                is_asked = _is_shape(outer) or not isinstance(outer, ast.expr | ast.stmt)
                if (is_use if is_named else same(inner, self.node)) and not is_asked:
                    yield outer

    def _seen(self, node: ast.AST | None) -> OperandRecord | None:
        text = self.text(node)
        return next((each for each in self.call.operands if each.text == text), None)


def _is_shape(node: ast.AST) -> bool:
    """Return whether an expression asks for a length or a shape."""
    name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
    return name == "len" or (isinstance(node, ast.Attribute) and node.attr in ("shape", "size", "ndim", "dtype"))


class Form(NamedTuple):
    """One entry; its texts are templates that the facts fill in."""

    names: tuple[str, ...]
    facts: Callable[[Given], Facts | None]  # None where the call is not costly
    cause: str
    title: str  # of the change: imperative
    condition: str = ""
    needs: str = ""
    promise: Promise = "identical"
    least: float = 0.7  # of the call's time, unless the facts have another share
    calls_back: bool = False  # it calls a function of the script's, whose time goes along
    rewritten: str = ""  # what takes the place of the call, or of the fact "replaced"


class CostlyForm(NamedTuple):
    """A call in a costly form."""

    cause: str
    idiom: Idiom
    calls_back: bool


def costly_form(call: HostCallRecord, node: ast.expr, source: Source | None) -> CostlyForm | None:
    """Return what is wrong with the form of a call, and the form that spares it."""
    given = Given(call, node, source)
    for form in FORMS:
        facts = form.facts(given) if call.name in form.names else None
        if facts is not None:
            known = {"call": _short(node), **facts}
            least, replaced = known.pop("least", form.least), known.pop("replaced", node)
            edits: tuple[EditedStatement, ...] = ()
            if form.rewritten and source is not None:
                nodes = [
                    each for each in source.own() if same(each, replaced if isinstance(replaced, ast.AST) else None)
                ]
                edits = (source.edited({nodes[0]: form.rewritten.format(**known)}),) if nodes else ()
            assert isinstance(least, float)
            needs, condition = form.needs.format(**known), form.condition.format(**known)
            idiom = Idiom(form.title.format(**known), edits, condition, needs, promise=form.promise, least=least)
            return CostlyForm(form.cause.format(**known), idiom, form.calls_back)
    return None


def _short(node: ast.expr) -> str:
    return f"{ast.unparse(node.func)}()" if isinstance(node, ast.Call) else ast.unparse(node)


def _whole_rows(given: Given) -> Facts | None:
    data = given.operand(0, "ar")
    is_integer = data is not None and data.dtype.startswith(("int", "uint")) and len(data.shape) == 2
    is_of_rows = given.argument(4, "axis") is not None and data is not None and data.shape[-1:] > (1,)
    return {"data": given.text(given.argument(0))} if is_integer and is_of_rows else None


def _few_drawn(given: Given) -> Facts | None:
    """Return how many numbers are shuffled to draw some of them."""
    of, num = given.operand(0, "a"), given.number(1, "size")
    all_of = (of.size or of.number) if of is not None else given.number(0, "a")
    is_plain = given.is_given(2, "replace", False) and given.argument(3, "p") is None
    return {"all": f"{all_of:,}", "num": f"{num:,}"} if is_plain and num and num <= FEW * (all_of or 0) else None


def _few_shuffled(given: Given) -> Facts | None:
    """Return how many numbers are shuffled where only the first few are used."""
    of, uses = given.operand(0, "x"), list(given.around())
    all_of = (of.size or of.number) if of is not None else given.number(0, "x")
    first = {given.text(each.slice.upper) if isinstance(each.slice, ast.Slice) and each.slice.lower is None else ""
             for each in uses if isinstance(each, ast.Subscript)}  # fmt: skip
    is_cut = len(first) == 1 and "" not in first and all(isinstance(each, ast.Subscript) for each in uses)
    return {"all": f"{all_of:,}", "num": first.pop()} if is_cut and (all_of or 0) >= MIN_ELEMENTS else None


def _one_of_sorted(given: Given) -> Facts | None:
    """Return which item of an order is used, if only one is."""
    uses, data, name = list(given.around()), given.argument(0), last_name(getattr(given.node, "func", given.node))
    each = uses[0] if len(uses) == 1 else None
    known = given.operand(0)
    if not isinstance(each, ast.Subscript) or data is None or (known is not None and known.size < MIN_ELEMENTS):
        return None
    at, words = (
        given.text(each.slice),
        {word.arg: given.text(word.value) for word in getattr(given.node, "keywords", ())},
    )
    if at not in ("0", "-1") or words.keys() - {"key", "reverse"} or len(getattr(given.node, "args", ())) != 1:
        return None
    is_last = (at == "-1") != (words.pop("reverse", "False") == "True")
    key = f", key={words['key']}" if words else ""
    by = {"sorted": "{0}({1})", "sort": "np.{0}({1})", "argsort": "np.arg{0}({1})"}[name]
    made = by.format("max" if is_last else "min", given.text(data) + key)
    is_here = given.source is not None and any(same(node, each) for node in given.source.own())
    return {"replaced": each if is_here else given.node, "made": made, "size": f"{known.size:,}" if known else "its"}


def _middle_of_sorted(given: Given) -> Facts | None:
    uses, data, known = list(given.around()), given.argument(0), given.operand(0)
    each = uses[0] if len(uses) == 1 else None
    is_one = isinstance(each, ast.Subscript) and isinstance(each.slice, ast.Constant | ast.Name | ast.BinOp)
    if not is_one or data is None or known is None or known.size < MIN_ELEMENTS or len(known.shape) != 1:
        return None
    assert isinstance(each, ast.Subscript)
    place = given.text(each.slice)
    return {"data": given.text(data), "place": place} if len(getattr(given.node, "args", ())) == 1 else None


def _gone_through(given: Given) -> Facts | None:
    """Return the array whose elements a function of Python's takes one by one."""
    data, node = given.operand(0), given.argument(0)
    if data is None or data.kind not in _ARRAYS or data.size < MIN_ELEMENTS or len(data.shape) != 1:
        return None
    is_plain = len(getattr(given.node, "args", ())) == 1 and not getattr(given.node, "keywords", ())
    name, text = last_name(getattr(given.node, "func", given.node)), given.text(node)
    return {"data": text, "size": f"{data.size:,}", "name": name} if is_plain else None


def _for_each(given: Given) -> Facts | None:
    """Return how many elements a function of Python's is called for."""
    sizes = [each.size for each in given.call.operands if each.kind in _ARRAYS]
    return {"size": f"{max(sizes):,}"} if sizes and max(sizes) >= MIN_ELEMENTS else None


def _for_each_row(given: Given) -> Facts | None:
    shapes = [each.shape for each in given.call.operands if len(each.shape) > 1]
    return {"size": f"{max(shape[0] for shape in shapes):,}"} if shapes else None


def _for_each_item(given: Given) -> Facts | None:
    """Return how many rows of a table a function of the script's is called for."""
    table, function = given.own, given.operand(0, "func") or given.operand(0, "arg")
    is_by_row = given.number(1, "axis") == 1 or given.is_given(1, "axis", "columns")
    is_row = table is not None and (is_by_row if table.kind == "pandas.DataFrame" else True)
    is_called = function is None or function.kind in _FUNCTIONS  # a lambda has no value that was read
    return {"size": f"{table.shape[0]:,}"} if is_row and is_called and table is not None and table.shape else None


def _unsorted(given: Given) -> Facts | None:
    """Return the table whose rows of one key are looked for in all of them."""
    table, key = given.own, next((each for each in given.call.operands if each is not given.own), None)
    if table is None or table.size < MIN_ELEMENTS or not isinstance(given.node, ast.Subscript):
        return None
    is_part = key is not None and key.kind != "builtins.tuple"
    is_searched = table.order == "unsorted" or (table.order == "unsorted levels" and is_part)
    held = given.node.value
    name = given.text(held.value if isinstance(held, ast.Attribute) else held)
    return {"table": name, "size": f"{table.size:,}"} if is_searched else None


def _stored_list(given: Given) -> Facts | None:
    """Return the list of numbers of a dataset or table that is converted one by one."""
    data, node = given.operand(0), given.argument(0)
    is_long = data is not None and data.items >= MIN_ELEMENTS
    is_stored = isinstance(node, ast.Attribute | ast.Subscript)
    return {"data": given.text(node), "size": f"{data.items:,}"} if is_long and is_stored and data else None


def _contraction(given: Given) -> Facts | None:
    """Return a sum over an index that two operands share, which is a product of matrices."""
    letters = given.argument(0)
    text = (
        letters.value.replace(" ", "") if isinstance(letters, ast.Constant) and isinstance(letters.value, str) else ""
    )
    factors, _, result = text.partition("->")
    each = factors.split(",")
    shared = set.intersection(*map(set, each[:2])) if len(each) > 1 and result else set()
    is_product = bool(shared - set(result)) and not shared & set(result) and "." not in text
    is_plain = given.argument(-1, "optimize") is None and given.argument(-1, "out") is None
    call = given.text(given.node)
    return {"made": f"{call[:-1]}, optimize=True)"} if is_product and is_plain else None


def _inverse(given: Given) -> Facts | None:
    """Return the product that an inverse is computed for."""
    uses, matrix, known = list(given.around()), given.text(given.argument(0)), given.operand(0)
    match uses:
        case [ast.BinOp(left=left, op=ast.MatMult(), right=right)] if same(left, given.node):
            made = f"{_module(given.node)}.solve({matrix}, {given.text(right)})"
            return {"replaced": uses[0], "made": made} if known is None or len(known.shape) == 2 else None
    return None


def _module(node: ast.expr) -> str:
    """Return what a function is called of."""
    function = getattr(node, "func", node)
    return ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""


def _full_factors(given: Given) -> Facts | None:
    """Return the shape of a matrix whose square factor is computed, and the share of the time that takes."""
    data = given.operand(0)
    shape = data.shape if data is not None else ()
    is_full = given.argument(1, "full_matrices") is None or given.is_given(1, "full_matrices", True)
    if len(shape) < 2 or not is_full or given.is_given(2, "compute_uv", False):
        return None
    long, short = max(shape[-2:]), min(shape[-2:])
    thin = svd_operations(long, short, "thin") / svd_operations(long, short, "full")
    if long < 2 * short:
        return None
    call = given.text(given.node)
    made = f"{call[:-1]}, full_matrices=False)" if given.argument(1, "full_matrices") is None else ""
    return {"shape": f"{shape[-2]:,} x {shape[-1]:,}", "short": short, "made": made or call, "least": 1 - thin}


def _only_values(given: Given) -> Facts | None:
    """Return the call that computes only singular values, if the script names nothing else of the result."""
    names = _given_names(given)
    if len(names) != 3 or not names[1] or names[0] or names[2] or given.source is None:
        return None
    data = given.operand(0)
    shape = data.shape[-2:] if data is not None and len(data.shape) > 1 else (1, 1)
    is_thin, long, short = given.is_given(1, "full_matrices", False), max(shape), min(shape)
    now = svd_operations(long, short, "thin" if is_thin else "full")
    least = 1 - svd_operations(long, short, "values") / now
    made = f"{_module(given.node)}.svd({given.text(given.argument(0))}, compute_uv=False)"
    return {"replaced": given.source.statement, "made": f"{names[1]} = {made}", "least": least}


def _given_names(given: Given) -> tuple[str, ...]:
    """Return the names that the parts of a result get, "" for those of one underscore."""
    statement = given.source.statement if given.source is not None else None
    target = statement.targets[0] if isinstance(statement, ast.Assign) and same(statement.value, given.node) else None
    parts = target.elts if isinstance(target, ast.Tuple) else ()
    return tuple(re.sub(r"^_+$", "", ast.unparse(each)) for each in parts)


def _slow_length(given: Given) -> Facts | None:
    """Return the length of a transform that has a large prime factor."""
    data, length = given.operand(0), given.number(1, "n")
    length = length or (data.shape[-1] if data is not None and data.shape else 1)
    transform = Transform((length,), "rfft" in given.call.name, "irfft" in given.call.name)
    if transform.slowdown < CONVOLVED:
        return None
    return {"length": f"{length:,}", "fast": f"{fast_length(length):,}", "least": 1 - transform.kept}


def _long_filter(given: Given) -> Facts | None:
    """Return the lengths of two arrays that are convolved one product at a time."""
    sizes = sorted(each.size for each in (given.operand(0), given.operand(1)) if each is not None)
    if len(sizes) < 2 or sizes[0] < MIN_ELEMENTS:
        return None
    # Three real transforms of the whole length, each of 2.5 operations per element and doubling, that run at a quarter
    # of the speed of a dot product.
    left = 30 * log2(sum(sizes)) / (2 * sizes[0])
    return {"short": f"{sizes[0]:,}", "long": f"{sizes[1]:,}", "least": 1 - left} if left < 0.5 else None


def _same_covariance(given: Given) -> Facts | None:
    cov = given.operand(1, "cov")
    is_large = cov is not None and cov.size >= MIN_ELEMENTS and cov.same
    return (
        {"cov": given.text(given.argument(1, "cov")), "side": cov.shape[-1]} if is_large and cov is not None else None
    )


def _copied_whole(given: Given) -> Facts | None:
    """Return the array that is copied to take out or put in a few elements, again and again."""
    data, in_loop = given.operand(0), given.source is not None and given.source.loop() is not None
    is_large = data is not None and data.size >= MIN_ELEMENTS and (in_loop or data.is_kept)
    return {"data": given.text(given.argument(0)), "size": f"{data.size:,}"} if is_large and data is not None else None


def _always(_: Given) -> Facts:
    return {}


_ROUNDS = "the result is rounded otherwise"
_GENERATORS = ("numpy.RandomState", "numpy.Generator")
FORMS: tuple[Form, ...] = (
    Form(
        names=("numpy.unique",),
        facts=_whole_rows,
        cause="{call} sorts whole rows of integers as records",
        title="Pack each row of {data} into one integer, and call np.unique on these",
        condition="if the integers of a row fit into 64 bits",
    ),
    Form(
        names=("numpy.RandomState.choice",),
        facts=_few_drawn,
        cause="{call} shuffles all {all} indices to draw {num} of them",
        title="Draw with a Generator: np.random.default_rng(seed).choice(..., replace=False) shuffles none",
        condition="other samples are drawn, as likely as these",
        promise="redrawn",
        least=0.8,
    ),
    Form(
        names=(*(f"{kind}.permutation" for kind in _GENERATORS), "torch.randperm"),
        facts=_few_shuffled,
        cause="{call} shuffles all {all} indices, and only the first {num} are used",
        title="Draw {num} indices with np.random.default_rng(seed).choice(..., replace=False)",
        condition="other samples are drawn, as likely as these",
        promise="redrawn",
    ),
    Form(
        names=("builtins.sorted", "numpy.sort", "numpy.argsort"),
        facts=_one_of_sorted,
        cause="{call} sorts all elements for one of them",
        title="Take {made} instead of sorting",
        condition="if no values are equal",
        rewritten="{made}",
    ),
    Form(
        names=("numpy.sort",),
        facts=_middle_of_sorted,
        cause="{call} sorts all elements for one of them",
        title="Select the element with np.partition instead of sorting",
        rewritten="np.partition({data}, {place})",
        least=0.5,
    ),
    Form(
        names=tuple(f"builtins.{name}" for name in ("sum", "max", "min", "any", "all")),
        facts=_gone_through,
        cause="{call} goes through the {size} elements of {data} one by one in Python",
        title="Call {data}.{name}(), which goes through them in C",
        condition=_ROUNDS,
        promise="rounding",
        least=0.9,
        rewritten="{data}.{name}()",
    ),
    Form(
        names=("builtins.sorted", "builtins.set", "collections.Counter"),
        facts=_gone_through,
        cause="{call} goes through the {size} elements of {data} one by one in Python",
        title="Call np.sort or np.unique on {data} instead of {call}",
    ),
    Form(
        names=("numpy.vectorize",),
        facts=_for_each,
        calls_back=True,
        cause="{call} calls a function of Python's for each of {size} elements",
        title="Write the function of {call} with operations on whole arrays",
        condition=_ROUNDS,
        promise="rounding",
    ),
    Form(
        names=("numpy.apply_along_axis",),
        facts=_for_each_row,
        calls_back=True,
        cause="{call} calls a function of Python's for each row",
        title="Pass axis to the functions of NumPy instead of calling them for each row",
        condition=_ROUNDS,
        promise="rounding",
    ),
    Form(
        names=tuple(f"pandas.{name}" for name in ("DataFrame.apply", "Series.apply", "Series.map", "DataFrame.map")),
        facts=_for_each_item,
        calls_back=True,
        cause="{call} calls a function of Python's for each of {size} rows",
        title="Write the function of {call} with operations on whole columns",
        condition=_ROUNDS,
        promise="rounding",
    ),
    Form(
        names=tuple(f"pandas.{name}[]" for name in ("_LocIndexer", "DataFrame.loc", "Series.loc", "Series")),
        facts=_unsorted,
        cause="{call} searches all {size} rows, because the index is not sorted",
        title="Sort {table} by its index once, with sort_index(kind='stable')",
        condition="if nothing rests on the order in which different keys come",
        least=0.8,
    ),
    Form(
        names=("pandas.DataFrameGroupBy.get_group", "pandas.SeriesGroupBy.get_group", ".get_group"),
        facts=_always,
        cause="{call} groups all rows again to take one group",
        title="Group the rows once, and keep a dict of the groups",
        condition="if the table stays the same",
        least=0.8,
    ),
    Form(
        names=(
            "torch.tensor",
            "torch.as_tensor",
            "torch.FloatTensor",
            "torch.LongTensor",
            "numpy.array",
            "numpy.asarray",
        ),
        facts=_stored_list,
        cause="{call} converts {size} numbers of Python's one by one",
        title="Keep {data} as an array, made once, instead of a list",
    ),
    Form(
        names=("numpy.loadtxt", "numpy.genfromtxt", "pandas.read_csv", "pandas.read_json", "json.load"),
        facts=_always,
        cause="{call} parses text each time",
        title="Convert the files once, to .npy or another binary format, and load those",
        needs="room for the converted files",
    ),
    Form(
        names=("builtins.strptime", "pandas.to_datetime"),
        facts=_always,
        cause="{call} parses dates each time",
        title="Parse the dates once, when the data are read",
    ),
    Form(
        names=("numpy.einsum",),
        facts=_contraction,
        cause="{call} multiplies matrices without a matrix library",
        title="Pass optimize=True to {call}, which then calls a matrix product",
        condition=_ROUNDS,
        promise="rounding",
        least=0.5,
        rewritten="{made}",
    ),
    Form(
        names=("numpy.inv",),
        facts=_inverse,
        cause="{call} computes an inverse for one product",
        title="Solve the equations instead: np.linalg.solve",
        condition=_ROUNDS,
        promise="rounding",
        least=0.3,
        rewritten="{made}",
    ),
    Form(
        names=("numpy.svd",),
        facts=_only_values,
        cause="{call} computes singular vectors, and only the values are used",
        title="Compute only the singular values: compute_uv=False",
        condition=_ROUNDS,
        promise="rounding",
        rewritten="{made}",
    ),
    Form(
        names=("numpy.svd",),
        facts=_full_factors,
        cause="{call} computes square factors of a {shape} matrix",
        title="Pass full_matrices=False to {call}",
        condition="if only the first {short} singular vectors are used",
        rewritten="{made}",
    ),
    Form(
        names=tuple(f"numpy.{name}" for name in ("fft", "ifft", "rfft", "irfft")),
        facts=_slow_length,
        cause="{call} transforms {length} points, a length with a large prime factor",
        title="Pad the transforms to {fast} points, or cut the data to a length with small factors",
        condition="a padded convolution stays the same; a spectrum has other frequencies",
        promise="other",
    ),
    Form(
        names=("numpy.convolve", "numpy.correlate"),
        facts=_long_filter,
        cause="{call} multiplies all {long} elements by each of {short}",
        title="Convolve by FFT: multiply the transforms, padded to a length with small factors",
        condition=_ROUNDS,
        promise="rounding",
    ),
    Form(
        names=tuple(f"{kind}.multivariate_normal" for kind in _GENERATORS),
        facts=_same_covariance,
        cause="{call} factorises the same {side} x {side} covariance for each draw",
        title="Factorise {cov} once, and multiply standard normal numbers by the factor",
        condition="other samples are drawn, as likely as these",
        promise="redrawn",
    ),
    Form(
        names=("numpy.delete", "numpy.insert"),
        facts=_copied_whole,
        cause="{call} copies all {size} elements of {data} to change a few",
        title="Mark the elements of {data} in a mask, and select once",
    ),
)
