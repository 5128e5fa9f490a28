"""The call in the place of a norm that is written out, from its data flow and its lines."""

import pytest

from diagnose.analyzers import unfused
from diagnose.analyzers.common.written_norm import call_facts, norm_of
from diagnose.changes.common.prescribe import prescribe
from diagnose.model.locations import Where
from diagnose.tables.program import UNKNOWN
from tests.analyzers.flow_tables import steps, tables
from tests.dataflow.table import Table

LINES = (
    "u = x.mean(1, keepdim=True)",
    "s = (x - u).pow(2).mean(1, keepdim=True)",
    "x = (x - u) / torch.sqrt(s + self.eps)",
    "return self.weight[:, None, None] * x + self.bias[:, None, None]",
)


def where(*code):
    return tuple(Where("train.py", 10 + i, "forward", code=text) for i, text in enumerate(code))


def written(t, shape, reduced, *, size, centred=True, roles=("weight", "bias"), squared="mean", **more):
    """Add a norm over some dimensions, with a weight and a bias of ``size`` elements."""
    x = t.value(*shape)
    if centred:
        x = t.op("sub.Tensor", x, t.op("mean.dim", x, shape=reduced, line=11), line=12)
    s = t.op(f"{squared}.dim", t.op("pow.Tensor_Scalar", x, line=12), shape=reduced, line=12, **more)
    x = t.op("div.Tensor", x, t.op("sqrt", t.op("add.Tensor", s, line=13), line=13), line=13)
    for role, name in zip(roles, ("mul.Tensor", "add.Tensor"), strict=False):
        x = t.op(name, x, t.value(*size, role="parameter", name=f"blocks.0.norm.{role}"), line=14)
    return x


def call_of(shape, reduced, *, code=LINES, **more):
    t = Table()
    written(t, shape, reduced, **more)
    return call_facts(norm_of(t.graph().flow, range(len(t.operators))), where(*code))


@pytest.mark.parametrize(
    ("shape", "reduced", "size", "call"),
    [
        (
            (2, 8, 4, 4),
            (2, 1, 4, 4),
            (8, 1, 1),
            "F.layer_norm(x.permute(0, 2, 3, 1), self.weight.shape, self.weight, self.bias, self.eps)"
            ".permute(0, 3, 1, 2)",
        ),
        (
            (2, 8, 64),
            (2, 1, 64),
            (8, 1),
            "F.layer_norm(x.permute(0, 2, 1), self.weight.shape, self.weight, self.bias, self.eps).permute(0, 2, 1)",
        ),
        ((2, 16, 64), (2, 16, 1), (64,), "F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)"),
        ((32, 64), (32, 1), (64,), "F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)"),
        ((2, 8, 4, 4), (2, 1, 1, 1), (8, 1, 1), "F.group_norm(x, 1, self.weight, self.bias, self.eps)"),
        (
            (2, 8, 4, 4),
            (2, 8, 1, 1),
            (8, 1, 1),
            "F.instance_norm(x, weight=self.weight, bias=self.bias, eps=self.eps)",
        ),
        (
            (2, 8, 4, 4),
            (1, 8, 1, 1),
            (8, 1, 1),
            "F.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)",
        ),
    ],
)
def test_the_operator_follows_from_what_is_averaged_over(shape, reduced, size, call):
    assert call_of(shape, reduced, size=size)["after"].splitlines()[-1] == f"y = {call}"


def test_means_of_squares_alone_are_an_rms_norm():
    code = ("s = hidden.float().pow(2).mean(-1, keepdim=True)", "return scale * hidden * torch.rsqrt(s + 1e-06)")
    found = call_of((2, 16, 64), (2, 16, 1), size=(64,), centred=False, roles=("scale",), code=code)
    assert found["after"].splitlines()[-2:] == [
        "# mean of the squares over dimension 2 of [2, 16, 64]",
        "y = F.rms_norm(hidden, hidden.shape[-1:], scale, 1e-06)",
    ]


def test_what_no_operator_averages_over_has_no_call():
    assert call_of((4, 8, 16), (1, 8, 16), size=(16,)) == {}
    t = Table()
    t.op("sum.dim", t.value(4, 8), shape=(4, 1))
    assert norm_of(t.graph().flow, [0]) is None


def test_dimensions_that_are_left_out_are_those_that_the_call_names():
    found = call_of((8, 8, 8), (8, 8), size=(8,), attributes="dim=[-1], correction=0", squared="var")
    assert found["after"].splitlines()[-1].startswith("y = F.layer_norm(x, x.shape[-1:], ")
    assert found["needs"] == ""


def test_a_variance_of_a_sample_and_a_permuted_view_are_stated():
    found = call_of((2, 8, 4, 4), (2, 1, 4, 4), size=(8, 1, 1), squared="var")
    assert found["needs"] == (
        "the variance with n in the divisor, not n - 1; memory in channels_last, or the permuted view is copied"
    )


def test_names_that_no_line_shows_are_torchs():
    found = call_of((2, 16, 64), (2, 16, 1), size=(64,), roles=(), code=("y = (a -", "else:"))
    assert found["after"].splitlines()[-2:] == [
        "# mean and variance over dimension 2 of [2, 16, 64]; then weight and bias, if there are any",
        "y = F.layer_norm(x, x.shape[-1:], None, None, 1e-5)",
    ]


def test_the_rule_prescribes_the_call(recording):
    made = steps(lambda t: written(t, (2, 8, 4, 4), (2, 1, 4, 4), size=(8, 1, 1)))
    t = tables(recording, made)
    (change,) = prescribe(unfused.find(t)[0], t.steps.step_ns, UNKNOWN)
    assert (change.id, change.trial_method) == ("fused-norm", "by hand")
    assert change.title == "Call F.layer_norm for the norm over dimension 1 at train.py:12"
    assert "F.layer_norm(x.permute(0, 2, 3, 1), weight.shape, weight, bias, 1e-5)" in change.after
    assert change.saves_ns[0] == pytest.approx(0.7 * change.saves_ns[1])
