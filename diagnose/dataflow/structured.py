"""Structured zeros: matrices that are zero by the way they are made, and that dense operators work on as a whole.

A tensor of zeros into which parts are written stays zero elsewhere, whatever the data is. A product needs the written
parts only, each as a smaller product. A diagonal matrix needs none: its products, factors, inverses and determinants
are those of the vector of its diagonal, element by element.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

from diagnose.dataflow.graph import Graph, base_name, is_copy, is_product, is_reduction, plain_name
from diagnose.dataflow.rows import CONVOLUTIONS
from diagnose.model.dataflow import Frame, Operator, Use
from diagnose.model.shapes import num_elements

__all__ = ["StructuredZeros", "structured_zeros"]

MIN_SIDE = 8  # of a diagonal matrix: smaller ones are zero elsewhere by chance, and cost little
_ZEROS = frozenset({"zeros", "zeros_like", "new_zeros"})
_WRITES = frozenset({"copy", "add", "fill"})  # into a part, in place
_KEEPS_ZEROS = frozenset({"mul", "div", "neg", "conj_physical", "_conj_physical"})
_OF_MATRICES = ("linalg_", "_linalg_", "cholesky_", "triangular_solve", "lu_")  # prefixes


class StructuredZeros(NamedTuple):
    """One operator and the share of its time that goes to zeros that it cannot but find."""

    kind: Literal["blocks", "diagonal"]
    operator: int
    share: float
    value: int  # that has the zeros first


_Part: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...]]  # offset, shape, stride


class _Blocks(NamedTuple):
    """What is written of a value that starts as zeros."""

    share: float
    value: int  # as it was written last
    makers: tuple[int, ...]


def structured_zeros(graph: Graph) -> Iterator[StructuredZeros]:
    """Yield the last step's operators on matrices that are zero by construction, those of the backward pass too."""
    yield from _on_blocks(graph)
    yield from _on_diagonals(graph)


def _on_blocks(graph: Graph) -> Iterator[StructuredZeros]:
    """Yield products of what is mostly unwritten in each step alike, and what makes that."""
    blocks, before = _blocks(graph), set[tuple[Frame | None, float]]()
    for i, one in enumerate(graph.operators):
        name = base_name(one)
        if not (is_product(one) or name in CONVOLUTIONS) or one.phase in ("backward", "optimizer"):
            continue
        read = [blocks[use.value] for use in one.reads if use.value in blocks and _is_whole(graph, use)]
        found = min(read, default=None)
        if found is None or not 0 < found.share < 1:
            continue
        if one.step < graph.last_step:
            before.add((one.place, found.share))
        elif (one.place, found.share) in before:
            for j in dict.fromkeys((i, *graph.backward[i], *found.makers)):
                yield StructuredZeros("blocks", j, 1 - found.share, found.value)


def _blocks(graph: Graph) -> dict[int, _Blocks]:
    """Return what is written of each value that starts as zeros, up to copies and products with others."""
    parts: dict[int, frozenset[_Part]] = {}
    found: dict[int, _Blocks] = {}
    for i, one in enumerate(graph.operators):
        if len(one.writes) != 1:
            continue
        use, name = one.writes[0], base_name(one)
        value = graph.values[use.value]
        if name in _ZEROS or (plain_name(one.name) == "zero_" and num_elements(use.shape) == num_elements(value.shape)):
            parts[use.value] = frozenset()
            found[use.value] = _Blocks(0.0, use.value, (i,))
        elif value.version:
            old = next((v for v in graph.needs[i] if graph.later[v] == use.value), -1)
            if old in parts and name in _WRITES:
                parts[use.value] = parts[old] | {(use.offset, use.shape, use.stride)}
                written = sum(num_elements(shape) for _, shape, _ in parts[use.value])
                share = min(written / max(num_elements(value.shape), 1), 1.0)
                found[use.value] = _Blocks(share, use.value, (*found[old].makers, i))
        elif (made := _made_of_blocks(graph, i, found)) is not None:
            found[use.value] = made
    return found


def _made_of_blocks(graph: Graph, i: int, found: dict[int, _Blocks]) -> _Blocks | None:
    """Return what an operator's result has besides zeros, None if it is not known to have any."""
    one = graph.operators[i]
    use, name = one.writes[0], base_name(one)
    is_padding = name == "constant_pad_nd" and "value=" not in one.attributes.replace("value=0", "")
    is_joined = name in ("cat", "stack") and any(each.value in found for each in one.reads)
    if is_padding or is_joined or name == "block_diag":
        read = [found.get(each.value, _Blocks(1.0, use.value, ())) for each in one.reads]
        written = sum(part.share * num_elements(each.shape) for part, each in zip(read, one.reads, strict=True))
        makers = (*(j for part in read for j in part.makers), i)
        return _Blocks(min(written / max(num_elements(use.shape), 1), 1.0), use.value, makers)
    if not (is_copy(one) or name in _KEEPS_ZEROS):
        return None
    known = [found[each.value] for each in one.reads if each.value in found and _is_like(graph, each, use)]
    return min(known)._replace(makers=(*min(known).makers, i)) if known else None


def _is_whole(graph: Graph, use: Use) -> bool:
    """Return whether an operator sees each element of a value once."""
    seen = num_elements(size for size, step in zip(use.shape, use.stride, strict=True) if step)
    return seen == num_elements(graph.values[use.value].shape)


def _is_like(graph: Graph, use: Use, result: Use) -> bool:
    return _is_whole(graph, use) and num_elements(use.shape) == num_elements(result.shape)


def _on_diagonals(graph: Graph) -> Iterator[StructuredZeros]:
    """Yield what computes diagonal matrices of others, and what multiplies, factors, solves or adds up these."""
    diagonal: dict[int, int] = {}  # values, with the one that is such a matrix first
    for i in graph.of_step(graph.last_step):
        one = graph.operators[i]
        if one.phase in ("backward", "optimizer"):
            continue
        read = [use for use in one.reads if _side(use) >= MIN_SIDE and _is_diagonal(graph, use, diagonal)]
        mine = next((diagonal.get(use.value, use.value) for use in read), -1)
        made = [use for use in one.writes if _is_made_diagonal(graph, one, use, has_one=mine >= 0)]
        diagonal |= {use.value: mine if mine >= 0 else use.value for use in made}
        if one.is_view or not (made or (read and (_is_of_matrices(one) or is_reduction(one)))):
            continue
        side = max(_side(use) for use in (*read, *made))
        value = mine if mine >= 0 else made[0].value
        for j in (i, *graph.backward[i]):
            yield StructuredZeros("diagonal", j, 1 - 1 / side, value)


def _side(use: Use) -> int:
    """Return the rows of square matrices, 0 of others."""
    return use.shape[-1] if len(use.shape) > 1 and use.shape[-1] == use.shape[-2] else 0


def _is_diagonal(graph: Graph, use: Use, known: dict[int, int]) -> bool:
    value = graph.values[use.value]
    is_matrix = value.kind == "diagonal" and value.role != "parameter" and "float" in use.dtype
    return use.value in known or is_matrix


def _is_made_diagonal(graph: Graph, one: Operator, use: Use, *, has_one: bool) -> bool:
    """Return whether an operator makes diagonal matrices; of those of others as few elements have to be numbers."""
    value, side = graph.values[use.value], _side(use)
    if side < MIN_SIDE or "float" not in use.dtype or value.kind == "constant":
        return False
    is_sparse = 1 > value.zeros >= 1 - 2 / side
    return value.kind == "diagonal" or base_name(one) == "diag_embed" or (has_one and is_sparse)


def _is_of_matrices(one: Operator) -> bool:
    return is_product(one) or base_name(one).startswith(_OF_MATRICES)
