"""Dropout with masks of 16-bit numbers, beside torch's."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from diagnose.kernels import dropout
from diagnose.kernels.dropout import MIN_ELEMENTS, attention_with_dropout, fast_dropout, use_fast_dropout


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


def heads(num=4, length=64, **options):
    torch.manual_seed(11)
    return [torch.randn(2, num, length, 16, dtype=torch.float64, requires_grad=True, **options) for _ in range(3)]


MASK = torch.rand(64, 64) > 0.3
ROWLESS = MASK & (torch.arange(64) != 5)[:, None]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": 0.5},
        {"is_causal": True},
        {"attn_mask": MASK},
        {"attn_mask": ROWLESS},
        {"attn_mask": torch.randn(2, 1, 64, 64, dtype=torch.float64)},
    ],
)
def test_attention_whose_weights_are_all_kept_is_torch_s(options, monkeypatch):
    """With a mask that drops nothing results and gradients are those of torch's attention without dropout."""
    monkeypatch.setattr(dropout, "_mask", lambda input, _dropped: torch.ones_like(input))
    ours, theirs = heads(), heads()
    y = attention_with_dropout(*ours, dropout_p=0.5, **options)
    expected = functional.scaled_dot_product_attention(*theirs, **options)
    torch.testing.assert_close(y, expected)
    y.square().sum().backward()
    expected.square().sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_grouped_queries_share_keys(monkeypatch):
    monkeypatch.setattr(dropout, "_mask", lambda input, _dropped: torch.ones_like(input))
    query, (_, key, value) = heads()[0], heads(num=2)
    y = attention_with_dropout(query, key, value, dropout_p=0.5, enable_gqa=True)
    expected = functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    torch.testing.assert_close(y, expected)


def test_weights_of_an_attention_are_dropped():
    query, key, _ = heads()
    value = torch.eye(64, dtype=torch.float64).expand(2, 4, 64, 64)  # the result is the weights themselves
    torch.manual_seed(1)
    weights = attention_with_dropout(query, key, value, dropout_p=0.25)
    kept = weights != 0
    assert float(kept.double().mean()) == pytest.approx(0.75, abs=0.02)
    torch.testing.assert_close(weights[kept], (query @ key.transpose(-2, -1) / 4).softmax(-1)[kept] / 0.75)


@pytest.mark.parametrize(
    ("length", "options"),
    [(64, {}), (8, {"dropout_p": 0.5}), (64, {"dropout_p": 0.5, "is_causal": True, "attn_mask": MASK})],
)
def test_an_attention_that_it_does_not_do_itself_is_torch_s(length, options, monkeypatch):
    calls = []
    monkeypatch.setattr(dropout, "_torch_attention", lambda *args, **named: calls.append((args, named)))
    attention_with_dropout(*heads(length=length), **options)
    assert len(calls) == 1


def test_modules_use_both_until_it_is_undone(monkeypatch):
    masks, make = [], dropout._mask
    monkeypatch.setattr(dropout, "_mask", lambda *args: masks.append(1) or make(*args))
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.5, batch_first=True)
    x = torch.randn(8, 64, 64)
    before = functional.dropout, functional.scaled_dot_product_attention
    undo = use_fast_dropout()
    try:
        layer(x)
    finally:
        undo()
    assert (functional.dropout, functional.scaled_dot_product_attention) == before
    assert len(masks) == 4  # of the attention's weights, twice of what is added, within the feed-forward part
    layer(x)
    assert len(masks) == 4


@pytest.mark.parametrize("randomness", ["different", "same", "error"])
@pytest.mark.parametrize("batched", [True, False])
def test_under_vmap_masks_are_torchs(randomness, batched):
    """With the same seed: vmap decides whether samples have one mask, each its own, or none may be drawn."""
    x = torch.ones(3, MIN_ELEMENTS)
    found = []
    for drop in (functional.dropout, fast_dropout):
        torch.manual_seed(1)

        def call(row, drop=drop):
            return drop(row if batched else x[0], 0.3) + row * 0

        try:
            found.append(torch.vmap(call, randomness=randomness)(x))
        except RuntimeError as error:
            found.append(str(error))
    assert [isinstance(result, str) for result in found] == [randomness == "error"] * 2
    assert found[0] == found[1] if randomness == "error" else torch.equal(*found)


def test_under_vmap_attention_drops_as_torch_does():
    q = torch.randn(3, 2, 128, 128, generator=torch.Generator().manual_seed(0))
    found = []
    for attend in (functional.scaled_dot_product_attention, attention_with_dropout):
        torch.manual_seed(1)
        found.append(torch.vmap(lambda x, f=attend: f(x, x, x, dropout_p=0.3), randomness="different")(q))
    torch.testing.assert_close(found[1], found[0])


def test_gradients_of_samples_are_those_of_torchs_masks():
    x = torch.ones(2, MIN_ELEMENTS)
    found = []
    for drop in (functional.dropout, fast_dropout):
        torch.manual_seed(1)
        gradient = torch.func.grad(lambda row, f=drop: f(row, 0.3).square().sum())
        found.append(torch.vmap(gradient, randomness="different")(x))
    torch.testing.assert_close(found[1], found[0])
