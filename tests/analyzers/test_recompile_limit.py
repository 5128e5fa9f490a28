"""recompile-limit: functions that torch.compile compiles no more; and the guards that recompilation names."""

import pytest

from diagnose.answer.screen import answer
from diagnose.model.words import english

FORWARD = {"file": "/home/me/net.py", "line": 9, "function": "forward", "num": 8, "gave_up": True}


def given_up(recording, guard, *, gave_up=True):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 0, 950, launched=(-20, -15))
    r.with_info(compiled={"versions": [{**FORWARD, "guards": [guard], "gave_up": gave_up}]})
    return r


def test_the_function_and_its_guard_are_named_without_a_cost(recording):
    finding = given_up(recording, "tensor 'x' size mismatch at index 0. expected 64, actual 72").find("recompile-limit")
    assert finding.title == "torch.compile has given up on forward: calls that fit none of its versions run eagerly"
    assert (finding.lost_ns, finding.where[0].line) == (0.0, 9)
    assert finding.evidence == (
        "forward, line 9, has 8 versions. The guard that failed last: tensor 'x' size mismatch at index 0. "
        "expected 64, actual 72.",
    )


def test_it_is_found_without_a_device_too(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 900)
    r.with_info(compiled={"versions": [{**FORWARD, "guards": ["x == 3"]}]})
    assert [f.rule for f in r.diagnosis().findings if not f.lost_ns] == ["recompile-limit"]


def test_the_first_screen_states_it_whatever_it_costs(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 900)
    r.with_info(compiled={"versions": [{**FORWARD, "guards": ["tensor 'x' size mismatch at index 0"]}]})
    d = r.diagnosis()
    first = answer(d)
    assert english(first.cautions[0]) == (
        "torch.compile has given up on forward: calls that fit none of its versions run eagerly (net.py:9). What that "
        "costs is not known before a change is tried."
    )
    assert d.to_try[0] == "stop-recompiling"
    assert "stop-recompiling" in first.try_command


def test_a_function_that_is_still_compiled_is_not_found(recording):
    r = given_up(recording, "x == 3", gave_up=False)
    assert not [f for f in r.diagnosis().findings if f.rule == "recompile-limit"]


@pytest.mark.parametrize(
    ("guard", "change", "title"),
    [
        ("tensor 'x' size mismatch at index 0. expected 64, actual 72", "stop-recompiling", "Mark the changing dim"),
        ("L['opts']['scale'] == 0.5", "steady-guard", "Make the number a tensor"),
        ("len(views) == 16", "steady-guard", "Stack the items of the list"),
        (
            "tensor 'self._modules['a']._parameters['bias']' requires_grad mismatch. expected requires_grad=1",
            "steady-guard",
            "Compile each layer instead",
        ),
        ("___check_type_id(c, 94578182134064), type=<class 'D'>", "steady-guard", "Make the object"),
        ("tensor 'x' requires_grad mismatch. expected requires_grad=0", "steady-guard", "Keep what the guard checks"),
    ],
)
def test_what_helps_follows_from_what_the_guard_checks(recording, guard, change, title):
    (p,) = given_up(recording, guard).prescribe("recompile-limit")
    assert p.id == change
    assert p.title.startswith(title)
    if change == "steady-guard":
        assert guard in p.after


def test_a_compilation_in_each_step_names_the_guard(recording):
    r = recording()
    for i in range(2):
        at = 1000 * i
        r.step(i, at, at + 1000)
        r.kernel("gemm", at, at + 300, launched=(at - 20, at - 15))
        r.kernel("relu", at + 700, at + 1000, launched=(at + 690, at + 695))
        r.frame("torch/_dynamo/convert_frame.py(700): _compile", at + 350, at + 650)
    r.with_info(compiled={"versions": [{**FORWARD, "guards": ["n == 3"], "num": 30, "gave_up": False}]})
    finding = r.find("recompilation")
    assert finding.where[0].line == 9
    assert finding.evidence[1] == "forward, line 9, has 30 versions. The guard that failed last: n == 3."
    assert [p.id for p in r.prescribe("recompilation")] == ["steady-guard"]
