"""Operators compute far more than their results need.

What it looks for
    Results that are not read: singular vectors, square factors, most of a shuffle, all but a diagonal. A matrix that is
    factorised for each solution. Forms that have a faster equal: separable and long filters, sums over all pairs,
    one-hot counts, rows of integers, ranks. Weight decay that is written into the loss. Threshold: 3% of the step.

Why it costs
    Libraries compute the whole result, even if little of it is read. The other form takes a fraction of the operations.

What to do
    Write the form that is named. `torch.linalg.svdvals`, `lu_factor` and `lu_solve`, `topk`, `bincount` are examples.

How sure
    High: shapes, uses and contents are of the recorded step. Savings follow from operation counts. Needs
    `diagnose trace`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from diagnose.analyzers.common.advice import Advice, identical, of_kind, other_training, rounding
from diagnose.analyzers.common.avoidable import Avoidable, AvoidableRule, at
from diagnose.model.dataflow import Frame
from diagnose.model.numerics import Numerics, redrawn
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables.flow import Flow

if TYPE_CHECKING:
    from diagnose.dataflow.forms import FormKind

META = RuleMeta(
    id="costly-form",
    kind="idle",
    order=136,
    host_order=37,
    legend=Legend("operators computed more than their results need"),
    changes=("cheaper-form",),
    needs=("data flow",),
)


class Form(NamedTuple):
    """The texts of one form; ``text`` goes on after the place, and is filled in by the sizes that were found."""

    kind: FormKind
    cause: str
    text: str
    title: str  # of the change
    after: str
    numerics: Numerics
    needs: str = ""
    calls: tuple[str, ...] = ()  # of which the line has to call one: while a step is recorded, others compute as much


_ORDER = rounding("operations are done in another order; compare the first losses")
FORMS: tuple[Form, ...] = (
    Form(
        kind="values",
        cause="A factorisation computes singular vectors that are not read",
        text="factorises {0:,} x {1:,} matrices, and only singular values are read.",
        title="Compute only the singular values{there}",
        after="s = torch.linalg.svdvals(x)   # in place of torch.linalg.svd(x)",
        numerics=_ORDER,
        calls=("svd",),
    ),
    Form(
        kind="full factors",
        cause="A square factor is computed, and few of its columns are read",
        text="factorises {0:,} x {1:,} matrices with a square factor, and only the columns of the short side are read.",
        title="Ask for the reduced factors{there}",
        after='u, s, vh = torch.linalg.svd(x, full_matrices=False)\nq, r = torch.linalg.qr(x, mode="reduced")',
        numerics=_ORDER,
    ),
    Form(
        kind="eigenvalues",
        cause="A factorisation computes eigenvectors that are not read",
        text="factorises {0:,} x {1:,} matrices, and only eigenvalues are read.",
        title="Compute only the eigenvalues{there}",
        after="values = torch.linalg.eigvalsh(x)   # of a matrix that is not symmetric: torch.linalg.eigvals(x)",
        numerics=_ORDER,
        calls=("eigh", "eig"),
    ),
    Form(
        kind="same matrix",
        cause="torch.linalg.solve factorises the same matrix again",
        text="solves {0:,} equations for {1:,} columns, with a matrix that was factorised before.",
        title="Factorise the matrix once, and solve with the factors{there}",
        after="factors = torch.linalg.lu_factor(matrix)   # once, when the matrix is made\n"
        "y = torch.linalg.lu_solve(*factors, x)",
        numerics=_ORDER,
        needs="a matrix that stays the same",
    ),
    Form(
        kind="triangular",
        cause="torch.linalg.solve factorises a triangular matrix",
        text="solves {0:,} equations for {1:,} columns, with a matrix that is triangular already.",
        title="Solve with the triangular matrix as it is{there}",
        after="y = torch.linalg.solve_triangular(matrix, x, upper=False)",
        numerics=_ORDER,
    ),
    Form(
        kind="known factor",
        cause="A matrix is multiplied out of its factor, and factorised again",
        text="factorises {0:,} x {1:,} matrices that were made of their triangular factor.",
        title="Pass the triangular factor on instead of the matrix{there}",
        after="prior = MultivariateNormal(mean, scale_tril=lower)   # in place of covariance_matrix=lower @ lower.mT",
        numerics=_ORDER,
        needs="a factor with positive numbers on its diagonal",
    ),
    Form(
        kind="normalised",
        cause="Logarithms of probabilities are normalised again",
        text="normalises rows of {0:,} logarithms that are normalised already.",
        title="Leave the second normalisation out{there}: F.nll_loss takes what log_softmax has made",
        after="loss = F.nll_loss(log_probabilities, target)   # in place of F.cross_entropy",
        numerics=_ORDER,
    ),
    Form(
        kind="inverse",
        cause="An inverse is computed for one product",
        text="inverts {0:,} x {0:,} matrices to multiply {1:,} columns.",
        title="Solve the equations instead of multiplying with an inverse{there}",
        after="y = torch.linalg.solve(matrix, x)   # in place of torch.linalg.inv(matrix) @ x",
        numerics=_ORDER,
    ),
    Form(
        kind="separable",
        cause="A separable filter is applied as a full one",
        text="filters each channel with a fixed {0} x {1} kernel that is the outer product of two vectors.",
        title="Filter along one dimension, then along the other{there}",
        after="""# kernel[c, 0] == torch.outer(column, row)
y = F.conv2d(x, row.view(1, 1, 1, -1).expand(channels, 1, 1, -1), groups=channels)
y = F.conv2d(y, column.view(1, 1, -1, 1).expand(channels, 1, -1, 1), groups=channels)""",
        numerics=_ORDER,
    ),
    Form(
        kind="pairs",
        cause="All pairs are compared for a sum that an order gives",
        text="makes the differences of all pairs of {0:,} numbers and adds up their sizes.",
        title="Sort the numbers, and weigh each by its rank{there}",
        after="""# sum over all i, j of |x_i - x_j|, for numbers along the last dimension
weight = 2 * torch.arange(1, m + 1, device=x.device) - m - 1
total = 2 * (x.sort(-1).values * weight).sum(-1)""",
        numerics=_ORDER,
    ),
    Form(
        kind="decay",
        cause="Weight decay is written into the loss",
        text="squares and adds up {0:,} parameters with {1:,} numbers, and the backward pass goes through it.",
        title="Pass weight_decay to the optimizer instead of adding squares to the loss{there}",
        after="""# twice the factor of the squares gives the same gradient, in SGD and Adam; AdamW decays otherwise
optimizer = torch.optim.SGD(model.parameters(), lr=lr, weight_decay=2 * factor)""",
        numerics=other_training("SGD and Adam get the same gradient, AdamW another one; the loss lacks the squares"),
        needs="SGD or Adam with its own weight_decay, for the parameters that are squared",
    ),
    Form(
        kind="ranks",
        cause="Places are sorted to get ranks",
        text="sorts the {0:,} places that a sort has given.",
        title="Scatter the ranks to their places instead of sorting these{there}",
        after="places = torch.arange(n, device=order.device).expand_as(order)\n"
        "ranks = torch.empty_like(order).scatter_(-1, order, places)",
        numerics=identical(),
    ),
    Form(
        kind="few shuffled",
        cause="All indices are shuffled to draw a few",
        text="shuffles {0:,} indices, and {1:,} are read.",
        title="Draw as many indices as are used{there}",
        after="""index = torch.from_numpy(rng.choice(n, k, replace=False))   # rng = np.random.default_rng(seed)
# if an index may come twice: torch.randint(n, (k,), device=device)""",
        numerics=redrawn("other indices are drawn, as likely as these"),
    ),
    Form(
        kind="rows",
        cause="torch.unique sorts whole rows of integers",
        text="compares {0:,} rows of {1:,} integers.",
        title="Pack each row into one integer, and call torch.unique on these{there}",
        after="key = (x[:, 0] * size_1 + x[:, 1]) * size_2 + x[:, 2]   # sizes: one more than the largest number\n"
        "values, inverse = torch.unique(key, return_inverse=True)",
        numerics=identical("if the integers of a row fit into 64 bits"),
    ),
    Form(
        kind="diagonal",
        cause="A product is computed, and only its diagonal is read",
        text="computes {0:,} x {1:,} elements, and only the diagonal is read.",
        title="Multiply rows with rows, and add up{there}",
        after="diagonal = (a * b.mT).sum(-1)   # in place of (a @ b).diagonal(); .sum() of it is the trace",
        numerics=_ORDER,
    ),
    Form(
        kind="count",
        cause="One-hot rows are made to count",
        text="adds up {0:,} one-hot rows of {1:,} numbers.",
        title="Count with torch.bincount{there}",
        after="counts = torch.bincount(index, minlength=num_classes)",
        numerics=identical(),
    ),
    Form(
        kind="long filter",
        cause="A long filter is applied without a Fourier transform",
        text="multiplies each of {1:,} elements with {0:,} of a filter.",
        title="Convolve by FFT, padded to a fast length{there}",
        after="""n = 1 << (x.shape[-1] + taps.shape[-1] - 1).bit_length()
y = torch.fft.irfft(torch.fft.rfft(x, n=n) * torch.fft.rfft(taps.flip(-1), n=n), n=n)   # cut as before""",
        numerics=_ORDER,
    ),
)
_OF_KIND = {form.kind: form for form in FORMS}
ADVICE = tuple(
    Advice(
        id="cheaper-form",
        title=form.title,
        numerics=form.numerics,
        after=form.after,
        needs=form.needs,
        when=of_kind(form.kind),
        least=0.7,  # of what operation counts give: libraries do not run all forms equally fast
    )
    for form in FORMS
)


def detect(flow: Flow) -> Iterator[Avoidable]:
    """Yield operators in a costly form; those that are not needed at all, or the same each time, are other findings."""
    found = flow.found
    others = (*(one.work for one in found.constant_work), *(one.work for one in found.computed_again))
    needless = {i for work in (*others, *(one.work for one in found.dead_work)) for i in work.operators}
    for one in found.costly_forms:
        form, work = _OF_KIND[one.kind], found.graph.work(i for i in one.work.operators if i not in needless)
        if 2 * work.share <= one.work.share or not _is_called(flow, one.work.line, form.calls):
            continue
        text = f"{at(one.work.line)} {form.text.format(*one.sizes)}"
        facts = {"kind": one.kind}
        yield Avoidable(form.cause, text[0].upper() + text[1:], work, one.work.lines, facts, one.avoidable)


def _is_called(flow: Flow, line: Frame | None, names: tuple[str, ...]) -> bool:
    """Return whether a line is known to call one of these functions; with none of them it need not be known."""
    statement = flow.source.statement(line) if line is not None else None
    nodes = ast.walk(statement) if statement is not None else ()
    called = {ast.unparse(node.func).rpartition(".")[2] for node in nodes if isinstance(node, ast.Call)}
    return not names or not called.isdisjoint(names)


_RULE = AvoidableRule(META, detect, frees_host=False)
claim, claim_host, find = _RULE.claim, _RULE.claim_host, _RULE.find
