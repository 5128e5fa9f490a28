"""A picture of a data flow: a product, a metric of two operators that nothing reads, and what is left out."""

from diagnose.model.diagnosis import Where
from diagnose.model.flow_picture import FlowNode, FlowPicture

__all__ = ["flow_of_rule"]


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
