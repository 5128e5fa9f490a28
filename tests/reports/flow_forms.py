"""A picture of a data flow: a product, a metric of two operators that nothing reads, and what is left out."""

from diagnose.model.charts import FlowNode, FlowPicture, KeptByLine, LeftByLine, MemoryByLine
from diagnose.model.diagnosis import Where

__all__ = ["flow_of_rule", "memory_of_lines"]


def memory_of_lines(name: str = "cuda:0") -> MemoryByLine:
    """Return a device of which lines are known: two that keep, one that leaves a value to later steps."""
    block, head = Where("/home/me/model.py", 31, "forward", code="h = self.block(x)"), Where("/home/me/model.py", 40)
    kept = (KeptByLine(block, 6 * 10**9, 12_000_000.0), KeptByLine(head, 2 * 10**9, None))
    return MemoryByLine(name, 20 * 10**9, 9 * 10**9, kept, (LeftByLine(Where("/home/me/train.py", 12), 3, 10**8),))


def flow_of_rule(rule: str) -> FlowPicture:
    """Return the picture for a finding of a rule."""
    model = Where("/home/me/train.py", 7, "step", code="h = self.head(x)")
    metric = Where("/home/me/train.py", 9, "step", code="metric = (h.std() < 1)")
    nodes = (
        FlowNode("mm", model, "forward", (64, 10), "float32", (), ("head.weight", "input"), 0.4, False, "", 3),
        FlowNode("std", metric, "forward", (), "float32", (0,), (), 0.2, True, "", 12),
        FlowNode("lt", metric, "forward", (), "bool", (1,), (), 0.1, True, "unused", 0),
    )
    return FlowPicture(rule, nodes, num_operators=40, num_named=2, share=0.3, num_after=22)
