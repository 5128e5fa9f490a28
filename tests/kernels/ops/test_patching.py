"""`patch` on models written as people write them: what it takes, what it leaves, and that it can be undone."""

import ast
import copy
import io
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from diagnose.kernels import _module_matching, ops, patching
from diagnose.kernels.patching import patch


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.rand(width)), eps

    def forward(self, hidden_states):
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden_states * torch.rsqrt(variance + self.variance_epsilon))


class ShiftedRMSNorm(RMSNorm):
    def forward(self, hidden_states):
        return super().forward(hidden_states) + hidden_states * torch.rsqrt(
            hidden_states.pow(2).mean(-1, keepdim=True) + self.variance_epsilon
        )


class ForgetfulRMSNorm(RMSNorm):
    def forward(self, hidden_states):
        return self.weight * hidden_states * torch.rsqrt(hidden_states.pow(2).mean(-1, keepdim=True))


class NewGELU(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x.pow(3))))


class QuickGELU(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class FeedForward(nn.Module):
    def __init__(self, width=8, hidden=12, bias=False, act=None, dropout=0.0):
        super().__init__()
        self.down_proj = nn.Linear(hidden, width, bias)  # not the first in the forward
        self.gate_proj, self.up_proj = nn.Linear(width, hidden, bias), nn.Linear(width, hidden, bias)
        self.act_fn, self.dropout = act or nn.SiLU(), dropout

    def forward(self, x):
        hidden = self.act_fn(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(F.dropout(hidden, self.dropout, self.training))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp, self.act, self.head = RMSNorm(8), FeedForward(), NewGELU(), nn.Linear(8, 5)
        self.loss = nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, x, target):
        return self.loss(self.head(self.act(x + self.mlp(self.norm(x)))), target)


@pytest.fixture
def batch():
    torch.manual_seed(0)
    return torch.randn(6, 8), torch.arange(6) % 5


def gradients(model, batch):
    loss = model(*batch)
    return [loss, *torch.autograd.grad(loss, list(model.parameters()))]


def test_a_model_keeps_its_numbers_and_its_state(batch, implementation):
    model = Model()
    before, keys = gradients(model, batch), list(model.state_dict())
    patched = patch(model)
    assert {(r.name, r.was, r.now) for r in patched.replaced} == {
        ("norm", "RMSNorm", "rms_norm"),
        ("mlp", "FeedForward", "swiglu"),
        ("act", "NewGELU", "gelu"),
        ("loss", "CrossEntropyLoss", "cross_entropy"),
    }
    assert patched.left == ()
    torch.testing.assert_close(gradients(model, batch), before, rtol=1e-4, atol=1e-6)
    assert list(model.state_dict()) == keys
    patched.undo()
    assert not [m for m in model.modules() if "forward" in m.__dict__]
    torch.testing.assert_close(gradients(model, batch), before, rtol=0, atol=0)


def test_the_operators_are_what_runs(batch, calls):
    model = Model()
    with patch(model):
        model(*batch)
    assert {d._qualname.split("::")[1] for d, _ in calls} == {"norm", "swiglu", "gelu", "cross_entropy_sum"}
    calls.clear()
    model(*batch)
    assert not calls


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (ShiftedRMSNorm(8), "its results are not those of rms_norm"),
        (ForgetfulRMSNorm(8), "its results are not those of rms_norm"),
        (ForgetfulRMSNorm(8, eps=1e-8), "its results are not those of rms_norm"),  # which shows in small numbers only
        (QuickGELU(), "its results are not those of gelu"),
        (FeedForward(act=nn.GELU()), "its results are not those of swiglu"),
        (FeedForward(dropout=0.5), "its results are not those of swiglu"),
        (nn.CrossEntropyLoss(torch.ones(5)), "it weighs its classes"),
    ],
)
def test_what_calculates_something_else_is_left_and_named(module, reason):
    patched = patch(nn.Sequential(module))
    assert patched.replaced == ()
    (left,) = patched.left
    assert (left.name, left.was, left.reason) == ("0", type(module).__name__, reason)
    assert f"0 ({type(module).__name__}) was left: {reason}" in str(patched)


def test_a_forward_of_other_arguments_is_left():
    class GELUWithMask(nn.Module):
        def forward(self, x, mask):
            return F.gelu(x) * mask

    (left,) = patch(nn.Sequential(GELUWithMask())).left
    assert left.reason == "it does not take one tensor as gelu does (TypeError)"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [False, True])
def test_16_bits_and_biases_are_recognised(dtype, bias):
    model = nn.Sequential(RMSNorm(8), FeedForward(bias=bias), NewGELU()).to(dtype)
    assert [r.now for r in patch(model).replaced] == ["rms_norm", "swiglu", "gelu"]


def test_trying_leaves_no_trace():
    model = Model()
    seen = []
    model.norm.register_forward_hook(lambda *_: seen.append("norm"))
    model.mlp.gate_proj.register_forward_pre_hook(lambda *_: seen.append("gate"))
    state, random_state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    patch(model)
    assert seen == []
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert model.training


def test_hooks_still_run(batch):
    model = Model()
    seen = []
    for module in (model.norm, model.mlp.gate_proj, model.mlp.down_proj):
        module.register_forward_hook(lambda module, *_: seen.append(type(module).__name__))
    with patch(model):
        model(*batch)
    assert seen == ["RMSNorm", "Linear", "Linear"]


def test_torchs_own_kernels_are_replaced_on_request_alone(implementation):
    plain = {"elementwise_affine": False}
    norms = nn.LayerNorm((2, 8)), nn.LayerNorm((2, 8), **plain), nn.RMSNorm(8), nn.RMSNorm((2, 8), 1e-3, **plain)
    model = nn.Sequential(*norms, nn.GELU(), nn.Softmax(1))
    torch.manual_seed(0)
    x = torch.randn(3, 2, 8)
    want = model(x)
    known = patch(model)
    assert {r.now for r in known.replaced} <= {"rms_norm"}  # which torch has no kernel for in its older versions
    known.undo()
    with patch(model, built_in=True) as patched:
        assert [r.now for r in patched.replaced] == [
            "layer_norm",
            "layer_norm",
            "rms_norm",
            "rms_norm",
            "gelu",
            "softmax",
        ]
        torch.testing.assert_close(model(x), want)


def test_a_softmax_without_a_dimension_is_left():
    (left,) = patch(nn.Softmax(), built_in=True).left
    assert (left.name, left.reason) == ("the model", "it names no dimension")


@pytest.mark.parametrize("shape", [(4, 5, 3), (5,)])
def test_losses_of_other_shapes_run_as_before(shape):
    loss = nn.CrossEntropyLoss()
    torch.manual_seed(0)
    logits = torch.randn(shape)
    target = torch.randint(5, (4, 3)) if len(shape) == 3 else torch.tensor(2)
    want = loss(logits, target)
    with patch(loss):
        assert torch.equal(loss(logits, target), want)
        shares = torch.softmax(torch.randn(4, 5), -1)
        torch.testing.assert_close(loss(torch.zeros(4, 5), shares), torch.tensor(5.0).log())


def test_patching_twice_adds_nothing(batch):
    model = Model()
    first, second = patch(model), patch(model)
    assert second.replaced == ()
    assert {left.reason for left in second.left} == {"its forward has been replaced already"}
    second.undo()
    assert "forward" in model.norm.__dict__
    first.undo()
    first.undo()
    assert "forward" not in model.norm.__dict__


def test_undo_leaves_what_others_replaced_since_and_says_so():
    model = Model()
    patched = patch(model)
    model.act.forward = lambda x: x
    with pytest.raises(RuntimeError, match="forward of act was replaced again since"):
        patched.undo()
    assert "forward" not in model.norm.__dict__
    assert model.act(1) == 1


def test_an_error_in_the_block_undoes_too():
    model = Model()
    with pytest.raises(KeyError), patch(model):
        raise KeyError
    assert "forward" not in model.norm.__dict__


def test_copies_and_pickles_run_their_own_parameters(batch):
    model = Model()
    patch(model)
    twin = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    want = model(*batch)
    with torch.no_grad():
        model.norm.weight.zero_()
    for other in (twin, loaded):
        torch.testing.assert_close(other(*batch), want)
        assert other.norm.forward.args[0] is other.norm


def test_a_patched_model_compiles_into_one_graph(batch):
    torch._dynamo.reset()
    model = Model()
    want = gradients(model, batch)
    patch(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    loss = compiled(*batch)
    torch.testing.assert_close([loss, *torch.autograd.grad(loss, list(model.parameters()))], want, rtol=1e-4, atol=1e-6)


def test_autocast_passes_through(batch):
    model = Model()
    with torch.autocast("cpu", torch.bfloat16):
        want = model(*batch)
        with patch(model):
            got = model(*batch)
    torch.testing.assert_close(got.float(), want.float(), rtol=3e-2, atol=3e-2)


def test_a_model_without_candidates_says_so():
    assert str(patch(nn.Linear(2, 2))) == "nothing was replaced"
    with pytest.raises(TypeError, match=r"needs a torch.nn.Module, not function"):
        patch(lambda x: x)


def test_every_match_names_an_operator():
    matches = [_module_matching.BUILT_IN[type(m)](m) for m in (nn.GELU(), nn.LayerNorm(8))]
    assert all(hasattr(ops, match.operator) for match in matches)


def test_the_page_runs(capsys):
    page = ast.get_docstring(ast.parse(Path(patching.__file__).read_text(encoding="utf-8")))
    example = "\n".join(line[4:] for line in page.split("Example::")[1].strip("\n").splitlines())
    model = Model()
    loader = DataLoader(TensorDataset(torch.randn(4, 8), torch.arange(4)), batch_size=2)
    exec(example, {"model": model, "loader": loader, "train_step": lambda b: model(*b).backward()})
    assert "mlp (FeedForward) runs swiglu" in capsys.readouterr().out
