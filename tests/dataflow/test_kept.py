"""Memory kept for the backward pass, by line."""

from diagnose.dataflow.kept import kept_memory
from tests.dataflow.table import Table


def test_what_a_line_keeps_and_what_it_would_take_to_make_it_again():
    t = Table()
    kept = {"is_kept": True}
    t.op("exp", t.value(256, is_kept=True), line=2, ns=10, facts=kept)
    t.op("mm", t.value(512), line=3, ns=90, facts=kept)
    t.op("add", t.value(512), line=4, ns=0)
    assert [(each.line.line, each.num_bytes, each.recompute_share) for each in kept_memory(t.graph())] == [
        (3, 2048, 0.9),
        (2, 1024, 0.1),
    ]
