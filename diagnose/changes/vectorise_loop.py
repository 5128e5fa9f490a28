"""Let few operators do what a Python loop calls many small ones for.

What it does
    Replaces a loop over rows, classes or numbers by operators over all of them, and many reads of one number each
    by one transfer.

What to watch
    Comparing all with all takes memory for every pair. Sums are taken in another order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import own_place
from diagnose.changes.common.change import Advice, ByHand, Change, rounding

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Facts, Finding
    from diagnose.tables.program import Program

MIN_READS = 8  # numbers a step that are read one by one
# Of the loop's part of the cost: what operators over all rows need themselves is little, but not nothing.
LEAST, MOST = 0.5, 0.95
_READS = """# one tensor for all numbers, read once after the loop
values = torch.stack([value.detach() for value in values]).tolist()

# counts of each class without a loop
seen = torch.bincount(target, minlength=num_classes)
hits = torch.bincount(target[pred == target], minlength=num_classes)"""
_ROWS = """# one operator over all rows in the place of one for each: a new axis pairs every row with every other
distance = ((x[:, None] - x[None, :]) ** 2).sum(-1)
same = labels[:, None] == labels[None, :]
farthest = distance.masked_fill(~same, float("-inf")).amax(1)
# where the loop advances independent copies (environments, sequences): a batch of them in each call"""


def _issuer(facts: Facts) -> dict[str, object]:
    found = facts.get("issuer")
    return dict(found) if isinstance(found, dict) else {}


def _number(issuer: dict[str, object], key: str) -> float:
    value = issuer.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice | None:
    issuer = _issuer(finding.facts)
    num, reads, share = (_number(issuer, key) for key in ("num", "reads", "share"))
    place = own_place(finding)
    at = f"{place.file}:{place.line}" if place else f"{issuer['file']}:{issuer['line']}"
    read = reads >= MIN_READS
    what = f"read {reads:.0f} numbers in one transfer" if read else "let few operators work on all rows"
    return Advice(
        title=f"Vectorise the loop at {at} ({num:.0f} operators a step): {what}",
        before=(place.code or "") if place else "",
        after=_READS if read else _ROWS,
        least=LEAST * share,
        most=MOST * share,
        needs="memory for all rows at once",
    )


def _applies(_program: Program, finding: Finding) -> str:
    issuer = _issuer(finding.facts)
    if not issuer:
        return "no function of the script stands out that calls operators one by one"
    from diagnose.tables.issuers import MIN_IN_MODEL

    if issuer.get("in_model") and _number(issuer, "num") < MIN_IN_MODEL:
        return "the operators are those of the model's layers"
    return ""


CHANGE = Change(
    id="vectorise-loop",
    title="Let few operators do what a Python loop calls many small ones for",
    numerics=rounding("sums are taken in another order; compare the loss of the first steps"),
    patch=ByHand("what the loop computes only the script's author knows"),
    edit=ByHand("what the loop computes only the script's author knows"),
    advice=_advice,
    applies=_applies,
    without_remedy="operators of torch in the place of a loop",
)
