"""Dropout with masks of 16-bit numbers, beside torch's."""

import pytest
import torch
from torch.nn import functional

from diagnose.kernels import dropout
from diagnose.kernels.dropout import MIN_ELEMENTS, fast_dropout


@pytest.fixture
def torchs(monkeypatch):
    """Return how often torch's dropout was called."""
    calls = []
    monkeypatch.setattr(dropout, "_torch_dropout", lambda *args: calls.append(args) or functional.dropout(*args))
    return calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1 << 20,), (1021, 1031), (3, 5, 7, 9973)])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_as_many_are_dropped_and_the_mean_is_kept(dtype, shape, p, torchs):
    torch.manual_seed(3)
    x = torch.ones(shape, dtype=dtype)
    y = fast_dropout(x, p)
    assert (y.dtype, y.shape, torchs) == (dtype, x.shape, [])
    dropped = float((y == 0).double().mean())
    assert dropped == pytest.approx(p, abs=5 * (p * (1 - p) / x.numel()) ** 0.5)
    assert torch.unique(y).tolist() == [0.0, pytest.approx(1 / (1 - p), rel=1e-2 if dtype.itemsize == 2 else 1e-4)]


def test_elements_are_dropped_independently_of_those_beside_them():
    """Four numbers come from one draw: neighbours, and those four apart, agree as often as by chance."""
    torch.manual_seed(5)
    kept = fast_dropout(torch.ones(1 << 21), 0.5) != 0
    for apart in (1, 2, 3, 4, 8):
        both = float((kept[apart:] & kept[:-apart]).double().mean())
        assert both == pytest.approx(0.25, abs=5 * (0.25 * 0.75 / (1 << 21)) ** 0.5), apart
    for place in range(4):
        assert float(kept[place::4].double().mean()) == pytest.approx(0.5, abs=5 * 0.5 / (1 << 19) ** 0.5), place


def test_gradients_pass_what_was_kept_also_twice():
    torch.manual_seed(7)
    x = torch.randn(1 << 15, dtype=torch.float64, requires_grad=True)
    y = fast_dropout(x, 0.3)
    (first,) = torch.autograd.grad((y**2).sum(), x, create_graph=True)
    mask = torch.where(y == 0, 0.0, y / x).detach()
    torch.testing.assert_close(first, 2 * x * mask**2)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, 2 * mask**2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(4, 8, 32, 33).to(memory_format=torch.channels_last),
        lambda: torch.randn(130, 140).t(),
        lambda: torch.randn(200, 400)[::2, ::2],
        lambda: torch.randn(1, 20_000).expand(3, 20_000),
    ],
)
def test_layouts_stay_as_torch_has_them(make):
    x = make()
    y, expected = fast_dropout(x, 0.5), functional.dropout(x, 0.5)
    assert y.stride() == expected.stride()
    kept = y != 0
    assert torch.equal(y[kept], 2 * x[kept])


def test_the_same_seed_gives_the_same_mask_and_in_place_is_in_place():
    x = torch.ones(1 << 15)
    torch.manual_seed(1)
    first = fast_dropout(x, 0.5)
    torch.manual_seed(1)
    second = x.clone()
    assert fast_dropout(second, 0.5, True, True) is second
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("x", "p", "training"),
    [
        (torch.ones(MIN_ELEMENTS - 1), 0.5, True),
        (torch.ones(MIN_ELEMENTS), 0.5, False),
        (torch.ones(MIN_ELEMENTS), 0.0, True),
        (torch.ones(MIN_ELEMENTS), 1.0, True),
        (torch.ones(MIN_ELEMENTS), 1e-6, True),
        (torch.ones(MIN_ELEMENTS, device="meta"), 0.5, True),
        (torch.ones(128, 128).to_sparse(), 0.0, False),
    ],
)
def test_what_it_does_not_do_itself_is_torch_s(x, p, training, torchs):
    y = fast_dropout(x, p, training)
    assert torchs == [(x, p, training, False)]
    assert y.shape == x.shape


def test_a_share_that_is_none_is_torch_s_to_refuse():
    with pytest.raises(ValueError, match="between 0 and 1"):
        fast_dropout(torch.ones(MIN_ELEMENTS), 1.5)


def test_within_a_compiled_function_torch_s_is_compiled():
    compiled = torch.compile(lambda x: fast_dropout(x, 0.5), backend="eager", fullgraph=True)
    x = torch.ones(MIN_ELEMENTS)
    torch.manual_seed(2)
    y = compiled(x)
    torch.manual_seed(2)
    assert torch.equal(y, functional.dropout(x, 0.5))
