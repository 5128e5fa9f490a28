"""independent-loop: calls that do not need each other."""

import pytest

from diagnose.analyzers import independent_loop
from diagnose.analyzers.common import avoidable
from diagnose.changes.common.prescribe import prescribe
from diagnose.model.intervals import span, total
from diagnose.tables.program import UNKNOWN
from tests.analyzers.flow_tables import GPU, steps, tables


def test_independent_calls_cost_what_calling_them_does(recording):
    def experts(t):
        outs = [t.op("addmm", t.value(4, 4), t.value(4, 4, role="parameter"), line=7, ns=100) for _ in range(4)]
        return t.op("stack", *outs, line=8, ns=100)

    t = tables(recording, steps(experts))
    (finding,) = independent_loop.find(t)
    assert finding.lost_ns == pytest.approx(4 * 75_000 + 3 * 10_000, abs=8)  # and the Python between the calls
    assert finding.evidence[-1] == (
        "The loop at line 7 of train.py makes 4 calls a step of one shape, each with its own weights; the longest "
        "chain of calls that need each other is 1."
    )
    assert [each.id for each in prescribe(finding, t.steps.step_ns, UNKNOWN)] == ["vectorise-loop"]


def test_what_would_be_launch_bound_of_a_loop_is_its_own(recording, monkeypatch):
    def experts(t):
        outs = [t.op("addmm", t.value(4, 4), t.value(4, 4, role="parameter"), line=7, ns=100) for _ in range(4)]
        return t.op("stack", *outs, line=8, ns=100)

    monkeypatch.setattr(avoidable, "issued_in_loop", lambda t: span(*t.steps.window))
    (finding,) = independent_loop.find(tables(recording, steps(experts)))
    assert finding.lost_ns == 4 * 100_000 + 3 * 10_000  # of its lines, and nothing of others


def averages(t):
    """Average six weights, as a function of torch does that line 95 calls."""
    for _ in range(6):
        weight, average = t.value(4, 4, role="parameter"), t.value(4, 4, role="buffer")
        t.op("lerp_", weight, into=average, line=95, phase="optimizer")
    return t.op("sum", t.value(4), line=8)


FRAMES = ("train.py(90): step", "torch/utils/_contextlib.py(120): decorate_context")
CALLS = {("train.py", 95): "self.ema.update_parameters(self.model)"}


def test_a_loop_in_a_function_of_torch_is_named_with_the_argument_that_joins_its_calls(recording):
    frames = (*FRAMES, "torch/optim/swa_utils.py(289): update_parameters")
    t = tables(recording, steps(averages), frames=frames)
    t.capture.lines.update(CALLS)
    (finding,) = independent_loop.find(t)
    assert finding.title.startswith("A loop in update_parameters() calls operators one by one")
    assert finding.evidence[-1] == "update_parameters() is in torch/optim/swa_utils.py."
    (advised,) = prescribe(finding, t.steps.step_ns, UNKNOWN)
    assert advised.title.startswith("Use multi_avg_fn in the place of avg_fn")


def test_gradients_that_are_clipped_one_by_one_are_clipped_by_foreach(recording):
    t = tables(recording, steps(averages), frames=(*FRAMES, "torch/nn/utils/clip_grad.py(170): clip_grad_norm_"))
    t.capture.lines.update({("train.py", 95): "torch.nn.utils.clip_grad_norm_(weights, 1.0, foreach=False)"})
    (advised,) = prescribe(independent_loop.find(t)[0], t.steps.step_ns, UNKNOWN)
    assert advised.title.startswith("Call clip_grad_norm_ with foreach=True")


def test_a_loop_of_the_script_s_own_over_weights_takes_lists_of_tensors(recording):
    t = tables(recording, steps(averages), frames=FRAMES[:1])
    t.capture.lines.update(CALLS)
    (finding,) = independent_loop.find(t)
    assert "function" not in finding.facts
    (advised,) = prescribe(finding, t.steps.step_ns, UNKNOWN)
    assert advised.title.endswith("torch._foreach_*")


def test_the_step_of_an_optimizer_is_no_loop_of_the_script(recording):
    assert independent_loop.find(tables(recording, steps(averages), within="Optimizer.step#AdamW.step")) == []


def test_the_line_of_a_loop_is_the_innermost_that_loops(recording):
    def helper(t):
        for _ in range(4):
            each = t.op("mul.Tensor", t.value(4, role="parameter"), line=19, at=(16, 95), phase="other")
            t.op("copy_", each, into=t.value(4, role="buffer"), line=16, at=(95,), phase="other")
        return t.op("sum", t.value(4), line=8)

    (finding,) = independent_loop.find(tables(recording, steps(helper)))
    assert finding.where[0].line == 95
    t = tables(recording, steps(helper), loops={"train.py": ((15, 17), (90, 99))})
    assert independent_loop.find(t)[0].where[0].line == 16


@pytest.mark.parametrize("dearest", [6, 9])
def test_the_loop_that_takes_most_of_the_window_is_named_first(recording, dearest):
    def two(t):
        for line, name in ((6, "mul.Tensor"), (9, "exp")):
            for _ in range(4):
                last = t.op(name, t.value(4), line=line, ns=100)
        return last

    def time_of(t, flow, one):
        time = flow.time_of(t, one.work.operators)
        return time if one.lines[0].line == dearest else span(time.start[0], time.start[0] + 1)

    (finding,) = independent_loop._RULE._replace(time_of=time_of).find(tables(recording, steps(two)))
    assert finding.where[0].line == dearest


def test_beside_a_device_the_host_s_time_goes_but_for_one_call(recording):
    t = tables(recording, steps(averages), devices=GPU)
    (finding,) = independent_loop.find(t)
    assert finding.without is not None
    assert total(finding.without.host) == pytest.approx(2 * 5 / 6 * (6 * 100_000 + 5 * 10_000), abs=50)
    assert len(finding.without.tasks) == 12


def walks(t):
    """Average six weights at line 96, in a loop at line 95."""
    for _ in range(6):
        weight, average = t.value(4, 4, role="parameter"), t.value(4, 4, role="buffer")
        t.op("lerp_", weight, into=average, line=96, phase="optimizer")
    return t.op("sum", t.value(4), line=8)


HEAD = "for name, value in teacher.state_dict().items():"


@pytest.mark.parametrize(
    ("head", "line", "call", "after"),
    [
        (
            HEAD,
            "value.lerp_(net.state_dict()[name], 0.1)",
            "net.state_dict()",
            "value.lerp_(state_dict_result[name], 0.1)",
        ),
        (
            "for i, mean in enumerate(means):",
            "mean.lerp_(list(self.net.parameters())[i], 0.1)",
            "list(self.net.parameters())",
            "mean.lerp_(list_result[i], 0.1)",
        ),
        ("for net, value in pairs:", "value.lerp_(net.state_dict()[name], 0.1)", "", ""),  # another model in each turn
        (HEAD, "value.lerp_(next(weights), 0.1)", "", ""),  # another value in each turn
        (HEAD, "value.lerp_(next(net.parameters()), 0.1)", "", ""),  # an iterator, which turns would use up
        ("", "value.lerp_(net.state_dict()[name], 0.1)", "", ""),  # what the loop changes is not known
    ],
)
def test_a_walk_over_the_model_that_is_the_same_in_each_turn_is_made_before_the_loop(
    recording, head, line, call, after
):
    t = tables(recording, steps(walks), loops={"train.py": ((95, 96),)})
    t.capture.lines.update({("train.py", 96): line} | ({("train.py", 95): head} if head else {}))
    (finding,) = independent_loop.find(t)
    advised = prescribe(finding, t.steps.step_ns, UNKNOWN)
    assert [each.id for each in advised] == (["call-once"] if call else ["vectorise-loop"])
    if call:
        assert advised[0].title.startswith(f"Call {call} once, before the loop")
        assert advised[0].after.endswith(f"\n{after}")
        assert 0 < advised[0].saves_ns[0] < advised[0].saves_ns[1] < finding.lost_ns
