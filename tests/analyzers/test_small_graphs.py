"""small-graphs: calls of compiled graphs that take longer than what they compute. Times in µs."""

import pytest

COMPILATION = {"began_ns": 1, "took_ns": 1, "id": "0/0", "file": "/home/me/net.py", "line": 40, "function": "spool"}
BREAK = {"file": "/home/me/net.py", "line": 12, "function": "forward", "reason": "call of print"}


def entered(r, begin, computes):
    """Add one graph of 200 µs, of which so much computes."""
    r.op("TorchDynamo Cache Lookup", begin, begin + 50)
    r.op("Torch-Compiled Region: 0/0", begin + 50, begin + 200)
    r.op("CompiledFunction", begin + 60, begin + 200)
    r.op("aten::mul", begin + 200 - computes, begin + 200)


@pytest.fixture
def compiled(recording):
    """Return what makes two steps of 1000 µs with so many graphs each."""

    def make(num, computes, **noted):
        r = recording(devices=())
        for i in range(2):
            r.step(i, 1000 * i, 1000 * (i + 1))
            r.op("aten::mm", 1000 * i + 850, 1000 * i + 1000)
            for graph in range(num):
                entered(r, 1000 * i + 200 * graph, computes)
        r.with_info(compiled={"compilations": [COMPILATION], **noted})
        return r

    return make


def test_the_functions_are_named_with_how_often_they_are_called(compiled):
    r = compiled(4, 40)
    finding = r.find("small-graphs")
    assert finding.lost_ns == 4 * 160_000
    assert finding.title == "4 calls of small compiled graphs a step: entering them takes longer than what they compute"
    assert finding.evidence[1:] == (
        "4 calls of compiled graphs a step; looking up and entering them takes 640 µs of it.",
        "spool, line 40: 4 calls.",
    )
    assert (finding.where[0].file, finding.where[0].line) == ("/home/me/net.py", 40)
    (p,) = r.prescribe("small-graphs")
    assert p.id == "compile-larger"
    assert p.title == "Compile one function around spool instead of each, or none of them (net.py:40)"
    assert p.saves_ns == (pytest.approx(320_000), pytest.approx(640_000))


@pytest.mark.parametrize(
    ("num", "computes", "noted"),
    [
        (1, 40, {}),  # the whole step is one graph
        (4, 120, {}),  # they compute longer
        (4, 40, {"breaks": [BREAK]}),  # the rule of graph breaks has these
    ],
)
def test_large_graphs_one_graph_and_those_of_a_break_are_none(compiled, num, computes, noted):
    assert compiled(num, computes, **noted).find("small-graphs") is None
