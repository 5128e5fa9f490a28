"""graph-breaks: what entering the graphs after a step's first one costs. Times in µs."""

import pytest

BREAK = {
    "file": "/home/me/net.py",
    "line": 12,
    "function": "forward",
    "reason": "Unsupported Tensor.item() call",
    "hint": "Set a setting.",
}


def entered(r, begin):
    """Add one graph of 200 µs: 50 of looking it up, 30 of entering it, 120 of computing."""
    r.op("TorchDynamo Cache Lookup", begin, begin + 50)
    r.op("Torch-Compiled Region: 0/0", begin + 50, begin + 200)
    r.op("CompiledFunction", begin + 60, begin + 200)
    r.op("## Call CompiledFxGraph abc ##", begin + 80, begin + 200)


@pytest.fixture
def compiled(recording):
    """Return what makes two steps of 1000 µs with so many graphs each, with breaks noted or not."""

    def make(num, *, breaks=(BREAK,), devices=()):
        r = recording(devices=devices)
        for i in range(2):
            r.step(i, 1000 * i, 1000 * (i + 1))
            r.op("aten::mm", 1000 * i + 850, 1000 * i + 1000)
            for graph in range(num):
                entered(r, 1000 * i + 200 * graph)
        r.with_info(compiled={"breaks": list(breaks)})
        return r

    return make


def test_all_but_one_graph_of_a_step_could_go(compiled):
    r = compiled(4)
    assert r.booked()["graph-breaks"] == 2 * 4 * 80_000 * 3 / 4
    finding = r.find("graph-breaks")
    assert finding.title == "torch.compile breaks the step into 4 graphs"
    assert finding.evidence[1:] == (
        "Looking up and entering the 3 graphs after the first one takes 240 µs a step.",
        "forward, line 12: Unsupported Tensor.item() call.",
    )
    assert (finding.where[0].file, finding.where[0].line) == ("/home/me/net.py", 12)


def test_the_rest_of_an_operator_around_a_graph_is_not_taken_for_its_content(compiled):
    r = compiled(2)
    r.op("autograd::engine::evaluate_function: CompiledFunctionBackward", 405, 700)
    r.op("CompiledFunctionBackward", 410, 690)
    r.op("## Call CompiledFxGraph abd ##", 450, 690)
    assert r.booked()["graph-breaks"] == pytest.approx((4 * 80_000 + 40_000) / 2, abs=10)


@pytest.mark.parametrize(("num", "breaks"), [(1, (BREAK,)), (4, ())])
def test_one_graph_or_several_without_a_break_are_no_finding(compiled, num, breaks):
    r = compiled(num, breaks=breaks)
    assert "graph-breaks" not in r.booked()
    assert not [f for f in r.diagnosis().findings if f.rule == "graph-breaks"]


SKIPPED = {**BREAK, "skips": True}
CALL = {"file": "/home/me/net.py", "line": 40, "functions": [["forward", "/home/me/net.py", 8, 20]]}


def compiled_at(line, function):
    return {"began_ns": 0, "took_ns": 1, "file": "/home/me/net.py", "line": line, "function": function}


@pytest.mark.parametrize(("at", "found"), [((30, "cell"), True), ((8, "forward"), False)])
def test_a_break_in_a_loop_leaves_pieces_of_what_the_function_calls(compiled, at, found):
    """Without such pieces the graphs are of other functions that were given to torch.compile."""
    r = compiled(4)
    r.with_info(compiled={"breaks": [SKIPPED], "calls": [CALL], "compilations": [compiled_at(*at)]})
    assert ("graph-breaks" in r.booked()) == found
    if found:
        assert (
            r.find("graph-breaks").evidence[-1] == "torch.compile skips forward, and compiles what it calls in pieces."
        )


def test_what_it_advises_has_the_reason_and_the_hint(compiled):
    (advice,) = compiled(4).prescribe("graph-breaks")
    assert advice.id == "fix-graph-breaks"
    assert advice.after == (
        "# Unsupported Tensor.item() call\n# Set a setting.\n"
        "model = torch.compile(model, fullgraph=True)   # names the next break"
    )
    assert advice.saves_ns == (120_000, 240_000)


def test_with_a_device_only_idle_time_counts(late):
    entered(late, 310)
    entered(late, 510)
    entered(late, 110)  # while the device works
    late.with_info(compiled={"breaks": [BREAK]})
    assert late.booked()["graph-breaks"] == pytest.approx(2 * 80_000 * 2 / 3, abs=10)
    assert late.find("graph-breaks").evidence[1].endswith("takes 107 µs a step.")
