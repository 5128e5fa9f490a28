"""Operators compute with zeros, padding, or rows that have no effect.

What it looks for
    Contents of tensors that make work needless: one-hot rows, 90% zeros or more, padding, ignored targets, subnormal
    numbers. Zeros around blocks that are written, diagonal matrices, and what is normalized already. Also rows that are
    multiplied by zero, masked scores, unread results, searches through what never changes. Sorts, gathers and resizes
    that return their argument, and dense gradients of embedding tables. Threshold: 3% of the step.

Why it costs
    Zeros take as long as other numbers. On a CPU, subnormal numbers take far longer.

What to do
    Look rows up by index. Multiply only the blocks that are written. Keep a diagonal matrix as a vector. Pad each batch
    to its own longest row. Leave out calls that change nothing. Select labeled rows before the last layers, and the
    pairs inside a cutoff before the layers of each pair. Use `is_causal=True`, `torch.topk` instead of a sort,
    `torch.set_flush_denormal(True)`, or `nn.Embedding(..., sparse=True)`.

How sure
    High for one-hot rows, blocks, diagonals, padding and masks. Needs `diagnose trace`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from diagnose.analyzers.common.advice import Advice, identical, of_kind, rounding
from diagnose.analyzers.common.avoidable import Avoidable, AvoidableRule, at
from diagnose.analyzers.common.locate import line_at
from diagnose.model.diagnosis import Confidence, Facts, Finding, Where
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.flow import Flow
from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.dataflow.contents import Kind, WorkOnNothing
    from diagnose.model.dataflow import Frame

META = RuleMeta(
    id="work-on-nothing",
    kind="idle",
    order=141,
    host_order=64,
    legend=Legend("operators computed with what has no effect"),
    changes=(
        "index-lookup",
        "multiply-blocks",
        "keep-diagonal",
        "search-once",
        "leave-out-call",
        "trim-padding",
        "gather-labelled-rows",
        "select-rows",
        "flush-subnormals",
        "select-first",
        "select-top-k",
        "sparse-embeddings",
    ),
    needs=("data flow",),
)
ADVICE = (
    Advice(
        id="gather-labelled-rows",
        title="Compute only the rows that count ({ignored:share} of all have no effect)",
        numerics=rounding("sums over fewer rows are taken in another order"),
        needs="rows selected by their labels before the last layers; their number depends on the data: one wait for "
        "the device, and no CUDA graph or fixed shapes",
        watch="For a CUDA graph gather a fixed number of rows, filled up with ignored ones (`torch.topk` of the mask), "
        "or slice the positions that may have a label. A fused linear cross entropy that skips ignored rows does the "
        "same.",
        when=of_kind("ignored rows"),
        least=0.6,  # the gradient of the weights is written whole, and rows are gathered
    ),
    Advice(
        id="select-rows",
        title="Compute only the rows whose factor is not 0 ({masked:share} are multiplied by zero)",
        numerics=rounding("sums over fewer rows are taken in another order"),
        needs="a number of rows that depends on the data: one wait for the device, and no CUDA graph or fixed shapes",
        watch="What the rows are looked up from, as the nodes of a pair, is indexed by `keep` as well.",
        when=of_kind("masked rows"),
        least=0.6,  # rows are gathered and added by index
    ),
    Advice(
        id="index-lookup",
        title="Look rows up by their index with F.embedding instead of multiplying one-hot rows{there}",
        numerics=rounding("gradients of a row that is looked up several times are added in another order"),
        watch="`weight[ids]` gives the same rows, but its backward adds them one by one.",
        when=of_kind("one-hot"),
        least=0.9,  # what a lookup itself takes is an estimate
    ),
    Advice(
        id="multiply-blocks",
        title="Multiply only the blocks that are written{there}: the rest is zeros",
        numerics=rounding("sums leave zeros out, and products of another size may be added in another order"),
        before="""kernel = x.new_zeros(height, width)
kernel[:modes, :modes] = weight
y = x * kernel  # or a product, an einsum, a convolution""",
        after="""y = torch.zeros_like(x)
y[:modes, :modes] = x[:modes, :modes] * weight
# blocks along a diagonal: torch.bmm of the stacked blocks; zeros between values: F.conv_transpose2d""",
        when=of_kind("blocks"),
        least=0.6,  # the blocks are gathered, and results written into zeros
    ),
    Advice(
        id="keep-diagonal",
        title="Keep the diagonal as a vector{there}, and compute with it element by element",
        numerics=rounding("factors and inverses of a diagonal matrix are computed directly"),
        before="""scaled = torch.diag(scale) @ x
posterior = MultivariateNormal(mean, covariance_matrix=torch.diag_embed(variance))""",
        after="""scaled = scale[:, None] * x
posterior = Independent(Normal(mean, variance.sqrt()), 1)  # of torch.distributions; the prior alike""",
        needs="matrices that stay diagonal in all steps",
        when=of_kind("diagonal"),
        least=0.6,  # what remains is called as often
    ),
    Advice(
        id="search-once",
        title="Sort or group the values once, before the steps, and look up the few{there}",
        numerics=rounding("what is selected comes in another order, in which sums may add it"),
        before="hit = wanted[edges.target].nonzero().squeeze(1)   # of all edges",
        after="""order = edges.target.argsort(stable=True)   # once, before the steps
first = torch.searchsorted(edges.target[order], torch.arange(len(wanted) + 1))
hit = torch.cat([order[first[n] : first[n + 1]] for n in nodes.tolist()])""",
        needs="values that stay the same in all steps",
        when=of_kind("searched"),
        least=0.6,  # looking up takes a call for each value
    ),
    Advice(
        id="leave-out-call",
        title="Use the values as they are{there}: they are normalized already",
        numerics=rounding("a norm is 1 up to the last digits"),
        before="scores = F.normalize(query, dim=-1) @ F.normalize(bank, dim=-1).t()",
        after="scores = F.normalize(query, dim=-1) @ bank.t()  # rows that were normalized when they were stored",
        needs="values that are normalized in all steps",
        when=of_kind("normalized"),
        least=0.9,
    ),
    Advice(
        id="leave-out-call",
        title="Leave out the call{there}: its result is its argument",
        numerics=identical(""),
        before="nodes = embedding(torch.arange(num_nodes))",
        after="nodes = embedding.weight",
        needs="an argument that has this order, or this size, in all steps",
        when=of_kind("returned"),
        least=0.9,
    ),
    Advice(
        id="select-first",
        title="Select what is read before it is computed{there}",
        numerics=rounding("products of fewer rows may be added in another order"),
        before="scores = self.head(self.norm(hidden))[:, -1]",
        after="scores = self.head(self.norm(hidden[:, -1]))",
        needs="that nothing in between mixes it with the rest; a crop before a convolution keeps a border",
        when=of_kind("unread"),
        least=0.6,  # what is selected is copied
    ),
    Advice(
        id="select-top-k",
        title="Select with topk instead of sorting, or sort once what does not change",
        numerics=identical(", but for which of equal values is taken"),
        before="nearest = distance.argsort(dim=-1)[..., :num_neighbours]",
        after="""nearest = distance.topk(num_neighbours, dim=-1, largest=False).indices
# what does not change from step to step, such as the edges of a graph: sort it once, before the loop""",
        needs="a use of a few of each row, or data that stays the same",
        when=of_kind("sorted"),
        least=0.3,
    ),
    Advice(
        id="trim-padding",
        title="Pad each batch to its own longest row{there} ({padded:share} of the positions are padding)",
        numerics=rounding("sums over fewer positions are taken in another order"),
        needs="rows that each batch pads (tokenizers: padding='longest'); a model that a mask keeps from using padding",
        watch="Lengths differ from batch to batch: compiled models want `dynamic=True`, and graphs hold one length.",
        when=of_kind("padding"),
        least=0.6,  # what does not depend on the positions stays
    ),
)


_TITLES: dict[Kind, str] = {
    "one-hot": "Rows of a weight are looked up by a product with one-hot rows",
    "sparse": "A matrix of zeros is multiplied as a dense one",
    "zeros": "Products are computed with zeros",
    "blocks": "Products are computed with zeros around what is written",
    "diagonal": "Diagonal matrices are computed with as dense ones",
    "padding": "Operators compute positions that are padding in each row",
    "ignored rows": "Operators compute rows that have no effect",
    "masked rows": "Operators compute rows that are multiplied by zero",
    "triangle": "Attention computes scores that a triangular mask hides",
    "subnormal": "The CPU computes with subnormal numbers",
    "sorted": "Whole rows are sorted, and few of each are read",
    "unread": "Operators compute results that are mostly not read",
    "normalized": "Values are normalized that are normalized already",
    "returned": "Operators return what they are given",
    "searched": "Operators search all of a tensor that never changes for a few values",
    "untouched rows": "Gradients of embedding tables are dense, and all rows are updated",
}


def detect(flow: Flow) -> Iterator[Avoidable]:
    """Yield what has no effect; of measured data that is the same at an end, what loading was seen to fill up."""
    for one in flow.found.work_on_nothing:
        of_signals, is_padding = "float" in one.dtype, one.kind == "padding"
        if is_padding and of_signals and one.shape[-1] not in flow.padded_to:
            continue
        shape, share, used = " × ".join(map(str, one.shape)), percent(one.extent, 0), at(one.use_line)
        made = f" of {at(one.value_line)}" if one.value_line is not None else ""
        texts: dict[Kind, str] = {
            "one-hot": f"The rows ({shape}){made} are one-hot; {used} multiplies them by a weight.",
            "sparse": f"{share} of the matrix ({shape}){made} that {used} multiplies are zeros in each step.",
            "zeros": f"The tensor ({shape}){made} that {used} multiplies is all zeros.",
            "blocks": f"{share} of the tensor ({shape}){made} that {used} multiplies are zeros around what is written.",
            "diagonal": f"The matrices ({shape}){made} are diagonal, and {used} computes with them as with dense ones.",
            "padding": f"{share} of the positions of a batch ({shape}) are padding in each row.",
            "ignored rows": f"{share} of the rows get no gradient from {at(one.value_line)}: they have no effect"
            f"{_from(flow, one)}.",
            "masked rows": f"A factor ({shape}){made} multiplies {share} of the rows by zero.",
            "triangle": f"The mask ({shape}){made} hides half of the scores.",
            "subnormal": f"{share} of the numbers ({shape}){made} that {used} reads are subnormal.",
            "sorted": f"{share} of what {used} sorts ({shape}) is not read.",
            "unread": f"{share} of the result ({shape}) of {used} is not read.",
            "normalized": f"The values ({shape}){made} that {used} normalizes are normalized already, in each step.",
            "returned": f"The result of {used} equals its argument ({shape}){made} in each step.",
            "searched": f"The {shape} values{made} never change. {used} compares all, and {share} are not used.",
            "untouched rows": f"{share} of the rows ({shape}) of a table have a gradient of zero, and all are updated.",
        }
        known: dict[Kind, Facts] = {
            "padding": {"padded": one.extent, "padded_to": one.shape[-1], "of_signals": of_signals},
            "ignored rows": {"ignored": one.extent},
            "masked rows": {"masked": one.extent},
        }
        facts = {"kind": one.kind, **known.get(one.kind, {})}
        lines = (one.value_line, *one.work.lines) if is_padding else (one.use_line, one.value_line)
        if one.kind == "diagonal":
            lines = (one.value_line, one.use_line)
        if one.kind in ("masked rows", "ignored rows"):
            lines = (*one.work.lines, one.value_line)
        if one.kind == "normalized":
            lines = (*_calls(flow, one), one.value_line)
        confidence: Confidence = "high" if one.is_certain else "medium"
        yield Avoidable(_TITLES[one.kind], texts[one.kind], one.work, lines, facts, one.avoidable, confidence)


def _calls(flow: Flow, one: WorkOnNothing) -> list[Frame]:
    """Return the line of some work and its caller, which is first if that line does needed work too."""
    operators, first = flow.found.graph.operators, one.work.operators[0]
    stack, mine = operators[first].stack[:2], set(one.work.operators)
    every = (i for i in flow.found.graph.of_step(operators[first].step) if operators[i].name == operators[first].name)
    is_shared = any(operators[i].place == one.use_line and i not in mine for i in every)
    return list(stack[::-1] if is_shared else stack)


def _from(flow: Flow, one: WorkOnNothing) -> str:
    """Return the line before which the other rows would have to be selected, if it is not the one that takes most."""
    operators = flow.found.graph.operators
    forward = {operators[i].forward if operators[i].phase == "backward" else i for i in one.work.operators}
    first = next((operators[i].place for i in sorted(forward) if i >= 0), None)
    return f" from {at(first)} on" if first not in (None, one.work.line) else ""


_RULE = AvoidableRule(META, detect, shortens_gaps=False, frees_host=False)
claim, claim_host = _RULE.claim, _RULE.claim_host


def find(t: Tables) -> list[Finding]:
    """Name what can be avoided; of padded batches first the line that pads them, or the function that makes them."""
    found, info = _RULE.find(t), t.capture.known
    if not found or found[0].facts["kind"] != "padding":
        return found
    by, length = info.loader.batches_by, found[0].facts["padded_to"]
    where = tuple(
        line_at(t, one.file, one.line, one.function) for one in info.loaded.expressions if one.padded_to == length
    )
    if by is not None:
        where = where or (Where(by[0], by[1], by[3], last_line=by[2]),)
    return [replace(each, where=(*where[:1], *each.where)) for each in found]
