"""Vectorise the Python loop: few operators instead of many small ones.

What it does
    Replaces a loop over rows, classes or numbers by operators over all of them, and many reads of one number each
    by one transfer.

What to watch
    Comparing all with all takes memory for every pair. Sums are taken in another order.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from diagnose.changes.common.applies import at_line, own_place
from diagnose.changes.common.change import Advice, ByHand, Change, rounding
from diagnose.model.locations import Where
from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Facts, Finding
    from diagnose.model.intervals import Intervals
    from diagnose.replay.effects import Effect
    from diagnose.replay.graph import Graph
    from diagnose.tables import Tables
    from diagnose.tables.program import Program

MIN_READS = 8  # numbers a step that are read one by one
MIN_REPEATS = 0.5  # of the operators: those of loops 0.8 to 1, of a loss written out in twenty lines 0.2 to 0.35
# Of the loop's part of the cost: what operators over all rows need themselves is little, but not nothing.
MIN_SAVED_SHARE, MAX_SAVED_SHARE = 0.5, 0.95
MIN_CELL_SHARE = 0.1  # where only the part that does not depend on the state comes out of the loop
MAX_SMALL_NS = 20_000  # of a kernel: the kernels of one row each become one
_COUNTS = """# counts of each class without a loop; they add up in a tensor, which is read when they are wanted
seen = torch.bincount(target, minlength=num_classes)
hits = torch.bincount(target[pred == target], minlength=num_classes)"""
_READS = f"""# the loop collects tensors; one tensor of all of them is read once, after it
values = torch.stack([value.detach() for value in values]).tolist()

{_COUNTS}"""
_NORMS = """# all gradients in one call, which leaves their norm on the device
norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
# norms to log: a few operators for all, and one transfer
norms = torch.stack(torch._foreach_norm([p.grad for p in model.parameters() if p.grad is not None])).tolist()"""
_TENSORS = """# one call for a list of tensors; the lists are made once, before the loop
parameters, averages = list(model.parameters()), list(average.parameters())
with torch.no_grad():
    torch._foreach_lerp_(averages, parameters, 1 - decay)   # _foreach_mul_, _foreach_add_, _foreach_copy_"""
_ROWS = """# one operator over all rows in the place of one for each: a new axis pairs every row with every other
distance = ((x[:, None] - x[None, :]) ** 2).sum(-1)
same = labels[:, None] == labels[None, :]
farthest = distance.masked_fill(~same, float("-inf")).amax(1)
# where the loop advances independent copies (environments, sequences): a batch of them in each call"""


_CELL = """# a module of torch runs the whole loop in one operator
layer = nn.LSTM(x.shape[-1], width, batch_first=True)   # nn.GRU, nn.RNN
outputs, state = layer(x)
# else what does not depend on the state: for all time steps in one operator, before the loop
projected = block(x)                                    # the loop adds what depends on the state
# rows that do not depend on each other: one call for all of them; else compile what the loop calls
cell = torch.compile(model)"""


# Arithmetic of tensors in place, and what a loop over parameters calls beside it.
_IN_PLACE = re.compile(r"^aten::(copy_|lerp_?|mul_|add_|sub_|div_|addcmul_|addcdiv_|detach|zero_|fill_)$")
_LAYERS = r"(?i)\bfor\s+[\w, ]*(?:layer|block|stage|module|conv|cell)\w*\s+in\b"
_NORM = re.compile(r"^aten::(linalg_vector_norm|norm)$")


def _issuer(facts: Facts) -> dict[str, object]:
    found = facts.get("issuer")
    return dict(found) if isinstance(found, dict) else {}


def _number(issuer: dict[str, object], key: str) -> float:
    value = issuer.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def _names(issuer: dict[str, object]) -> list[str]:
    names = issuer.get("names")
    return [str(name) for name in names] if isinstance(names, list | tuple) else []


def _what(issuer: dict[str, object]) -> str:
    return "tensors" if any(map(_IN_PLACE.match, _names(issuer))) else "rows"


def _example(issuer: dict[str, object], *, read: bool) -> str:
    """Return code like the loop: norms of gradients, numbers that are read, tensors changed in place, or rows."""
    if read:
        return _NORMS if any(map(_NORM.match, _names(issuer))) else _READS
    return _TENSORS if _what(issuer) == "tensors" else _ROWS


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice | None:
    issuer = _issuer(finding.facts)
    num, reads, share = (_number(issuer, key) for key in ("num", "reads", "share"))
    place = own_place(finding)
    line = issuer["line"]
    at = at_line(place or Where(str(issuer["file"]), line if isinstance(line, int) else None))
    if finding.facts.get("kind") == "recurrent":
        return Advice(
            title=f"Call few operators in the place of the loop at {at} ({num:.0f} operators a step)",
            before=(place.code or "") if place else "",
            after=_CELL,
            least=MIN_CELL_SHARE * share,
            most=MAX_SAVED_SHARE * share,
            needs="a module of torch that computes the same, or a part of it that does not depend on the state",
        )
    # Without a device a read waits for nothing: what saves is fewer operators.
    read, counts = reads >= MIN_READS and finding.facts.get("has_device") is not False, reads >= MIN_READS
    what = f"read {reads:.0f} numbers in one transfer" if read else f"let few operators work on all {_what(issuer)}"
    return Advice(
        title=f"Vectorise the loop at {at} ({num:.0f} operators a step): {what}",
        before=(place.code or "") if place else "",
        after=f"{_COUNTS}\n{_ROWS}" if counts and not read else _example(issuer, read=read),
        least=MIN_SAVED_SHARE * share,
        most=MAX_SAVED_SHARE * share,
        needs="memory for all rows at once",
    )


def _applies(_program: Program, finding: Finding) -> str:
    issuer = _issuer(finding.facts)
    if not issuer:
        return "no function of the script stands out that calls operators one by one"
    place = own_place(finding)
    if place is not None and re.search(_LAYERS, place.code or ""):
        return "each layer of the loop needs what the one before it gives"
    from diagnose.tables.issuers import MIN_IN_MODEL

    if "repeats" in issuer and _number(issuer, "repeats") < MIN_REPEATS:
        return "its operators follow each other once, and no loop repeats them"
    if issuer.get("in_model") and _number(issuer, "num") < MIN_IN_MODEL:
        return "the operators are those of the model's layers"
    return ""


def _effect(t: Tables, finding: Finding) -> Effect | None:
    """Return the effect without the loop's calls, their waits and their backward; None where these are not known.

    At most the small kernels of the loop become few as well.
    """
    import numpy as np

    from diagnose.model.intervals import contains, total
    from diagnose.replay.effects import Effect
    from diagnose.replay.transforms import drop_waits, scale_host, shorten_tasks

    own = t.issued
    if not finding.facts.get("issuer") or "kind" in finding.facts or not total(own):
        return None
    host, events, tasks = _with_backward(t, own), t.trace.events, t.tasks
    calls = t.blocking_calls
    calls = calls[contains(own, events.start[calls])]
    length = (tasks.end - tasks.start).astype(np.float64)
    mine = (tasks.launch >= 0) & contains(host, events.start[np.maximum(tasks.launch, 0)]) & (length <= MAX_SMALL_NS)
    order = np.argsort(tasks.row[mine], kind="stable")
    rows, less = tasks.row[mine][order], MAX_SAVED_SHARE * length[mine][order]

    def least(graph: Graph) -> Graph:
        return scale_host(graph, own, 1 - MIN_SAVED_SHARE)

    def most(graph: Graph) -> Graph:
        shorter = scale_host(drop_waits(graph, calls), host, 1 - MAX_SAVED_SHARE)
        return shorten_tasks(shorter, rows, less) if len(rows) else shorter

    assumption = (
        f"Between {percent(MIN_SAVED_SHARE, 0)} of the loop's own calls and {percent(MAX_SAVED_SHARE, 0)} of these, of "
        "their backward and of their small kernels go away."
    )
    return Effect(least, most, t.steps.step_ns, assumption)


def _with_backward(t: Tables, own: Intervals) -> Intervals:
    """Return the times of a loop's calls with those of the backward of what it called: the same sequence numbers."""
    from diagnose.model.events import Kind
    from diagnose.model.intervals import among, contains, union
    from diagnose.tables.names import BACKWARD

    events = t.trace.events
    rows = t.host_rows(Kind.OP)
    called = rows[contains(own, events.start[rows])]
    nodes = t.calls(BACKWARD, Kind.OP, Kind.ANNOTATION)
    numbers = events.sequence[called]
    mine = nodes[among(events.sequence[nodes], numbers[numbers >= 0])]
    return union(own, t.covering(mine))


CHANGE = Change(
    id="vectorise-loop",
    title="Vectorise the Python loop: few operators instead of many small ones",
    numerics=rounding("sums are taken in another order; compare the loss of the first steps"),
    patch=ByHand("what the loop computes only the script's author knows"),
    edit=ByHand("what the loop computes only the script's author knows"),
    advice=_advice,
    applies=_applies,
    effect=_effect,
    without_remedy="operators of torch in the place of a loop",
)
