"""torch.compile breaks the step into several graphs.

What it looks for
    More than one compiled graph a step, and a graph break that torch noted in a capture. Also functions that
    torch.compile skipped for a break in a loop, if it compiled what they call. Threshold: looking up and entering
    graphs after the first one takes 3% of the step.

Why it costs
    Each graph checks its guards and is entered from Python, 50–500 µs. Nothing is fused across a break.

What to do
    Move what cannot be traced out of the compiled function, in the order of the list. `fullgraph=True` makes
    torch.compile name the next break instead of breaking the graph.

How sure
    High for the places and reasons, which are torch's own. Medium for the cost: models that are compiled one by one
    keep a graph each.
"""

from __future__ import annotations

from dataclasses import replace

from diagnose.analyzers.common.advice import Advice, rounding
from diagnose.analyzers.common.avoidable import shortened
from diagnose.analyzers.common.compiled_graphs import breaks, entering_and_computing, graphs
from diagnose.analyzers.common.idle_findings import IdleRule, idle_finding, worth_claiming
from diagnose.analyzers.common.locate import line_at
from diagnose.model.diagnosis import Finding
from diagnose.model.intervals import EMPTY, Intervals, intersect
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.text.numbers import duration

META = RuleMeta(
    id="graph-breaks",
    kind="idle",
    order=128,
    host_order=77,
    legend=Legend("compiled graphs were looked up and entered"),
    changes=("fix-graph-breaks",),
    cause="host-work",
    paced_by="host",
)
ADVICE = (
    Advice(
        id="fix-graph-breaks",
        title="Move what torch.compile cannot trace out of the compiled function{there}",
        numerics=rounding("more is fused; compare the loss of the first steps"),
        after="# {reason}\n{hint}model = torch.compile(model, fullgraph=True)   # names the next break",
        needs="that the compiled function runs without that line, or with a form of it that can be traced",
        least=0.5,  # a second model that is compiled has a graph of its own
    ),
)
MIN_SHARE = 0.03


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle time while graphs after a step's first one are entered."""
    return intersect(claim_host(t, left), t.gaps.host_part())


def claim_host(t: Tables, left: Intervals) -> Intervals:
    """Claim the host's time for that."""
    return worth_claiming(t, left, _entering_again(t), MIN_SHARE) if breaks(t) else EMPTY


def find(t: Tables) -> list[Finding]:
    """Name the breaks, with torch's reasons."""
    broken = breaks(t)
    if not broken:
        return []
    num = len(graphs(t)) / t.steps.num
    texts = [f"{each.function}, line {each.line}: {each.reason}." for each in broken[:3]]
    if broken[0].skips:
        texts.append(f"torch.compile skips {broken[0].function}, and compiles what it calls in pieces.")
    facts = {"reason": broken[0].reason, "hint": f"# {broken[0].hint}\n" if broken[0].hint else ""}
    rule = IdleRule(META.id, f"torch.compile breaks the step into {num:.0f} graphs", "middle", "medium", texts, facts)
    where = tuple(line_at(t, each.file, each.line, each.function) for each in broken[:5])
    entering = f"Looking up and entering the {num - 1:.3g} graphs after the first one takes"
    return [
        replace(
            each,
            where=where,
            evidence=(each.evidence[0], f"{entering} {duration(each.lost_ns)} a step.", *each.evidence[1:]),
        )
        for each in idle_finding(t, rule)
    ]


def _entering_again(t: Tables) -> Intervals:
    """Return of the time in which graphs are looked up and entered, and compute nothing, all but one graph's share."""
    num = len(graphs(t))
    return shortened(entering_and_computing(t)[0], 1 - t.steps.num / num) if num > t.steps.num else EMPTY
