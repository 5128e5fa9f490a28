"""Operators of the backward pass: which forward operator, line and value they belong to."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from diagnose.capture.dataflow.stacks import Stacks
from tests.capture.flows import line_of, named, only, record_dataflow


def test_a_write_to_a_view_belongs_to_its_operator_in_the_backward_pass():
    weight = torch.ones(3, requires_grad=True)

    def step():
        buffer = torch.zeros(6)
        buffer[:3] = weight * 2
        buffer.square().sum().backward()
        weight.grad = None

    flow = record_dataflow(step)
    write = flow.operators.index(next(o for o in named(flow, "aten::copy_") if o.phase == "forward"))
    assert {o.forward for o in named(flow, "aten::as_strided")} == {write}


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient  # the function's own backward


def test_an_autograd_function_has_its_own_lines():
    weight = torch.ones(3, requires_grad=True)

    def step():
        Square.apply(weight).sum().backward()
        weight.grad = None

    flow = record_dataflow(step)
    forward = next(o for o in named(flow, "aten::mul.Tensor") if o.phase == "forward")
    assert forward.place.function == "forward"
    for backward in (o for o in named(flow, "aten::mul.Tensor") if o.phase == "backward"):
        assert backward.place.line == line_of("the function's own backward", __file__)
        assert flow.operators[backward.forward] is forward


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_computes_again_is_no_backward_of_anything(reentrant):
    layer = nn.Linear(4, 4)

    def step():
        batch = torch.ones(2, 4, requires_grad=True)
        checkpoint(lambda x: layer(x).tanh(), batch, use_reentrant=reentrant).sum().backward()
        layer.zero_grad()

    flow = record_dataflow(step)
    first, again = named(flow, "aten::tanh")
    assert (first.phase, again.phase, again.forward) == ("forward", "backward", -1)
    assert again.place == first.place
    assert flow.operators[only(flow, "aten::tanh_backward").forward] in (first, again)


def test_each_backward_pass_has_the_line_that_started_it():
    weight = torch.ones(3, requires_grad=True)

    def step():
        weight.grad = torch.zeros(3)
        weight.exp().sum().backward()  # the first pass
        made = weight.sin()
        made.register_hook(lambda gradient: gradient + 1)  # the hook
        made.sum().backward()  # the second pass

    flow = record_dataflow(step)
    first, second, hook = (line_of(f"the {name}", __file__) for name in ("first pass", "second pass", "hook"))
    assert [o.place.line for o in named(flow, "aten::add_.Tensor")] == [first, second]
    assert [o.place.line for o in named(flow, "aten::add.Tensor")] == [hook]


def test_frames_above_a_backward_pass_are_read_once(monkeypatch):
    weight = torch.ones(3, requires_grad=True)
    read = []
    walk = Stacks._walk
    monkeypatch.setattr(Stacks, "_walk", lambda stacks, frame: read.append(1) or walk(stacks, frame))

    def step():
        made = weight
        for _ in range(20):
            made = made.sin()
        made.sum().backward()
        weight.grad = None

    flow = record_dataflow(step, 1)
    num_forward = sum(o.phase == "forward" for o in flow.operators)
    assert len(flow.operators) - num_forward > 40
    assert len(read) < num_forward + 10
