import copy

import pytest
import torch
from torch import nn

from diagnose.changes import CHANGES
from diagnose.kernels import layout
from diagnose.kernels.layout import channels_last, in_channels_last, is_channels_last


class Breaks(nn.Module):
    """Loses the layout in a module, and in code between modules."""

    class Turns(nn.Module):
        def forward(self, x):
            return x.contiguous()

    def __init__(self):
        super().__init__()
        self.first, self.turns = nn.Conv2d(3, 4, 3, padding=1), self.Turns()
        self.second, self.third = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x, scale=None):
        x = self.second(self.turns(self.norm(self.first(x))))
        return self.third(x.flatten(2).unflatten(2, (8, 8)).contiguous())


def images(n=2, size=8):
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(0))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 8, 3), nn.Flatten())


def test_weights_and_activations_are_converted_and_numbers_stay():
    model, plain = net(), net()
    weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    report = channels_last(model)
    assert report.converted == ("0", "3")
    assert model[0].weight is weight is optimizer.param_groups[0]["params"][0]
    assert weight.stride() == (27, 1, 9, 3)
    seen = []
    model[3].register_forward_hook(lambda m, a, out: seen.append((a[0], out)))
    output = model(images())
    assert all(is_channels_last(t) and not t.is_contiguous() for t in seen[0])
    torch.testing.assert_close(output, plain(images()))
    output.sum().backward()
    plain(images()).sum().backward()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    assert is_channels_last(weight.grad)


def test_a_sample_shows_where_the_layout_is_lost():
    model = Breaks()
    before = copy.deepcopy(model.state_dict())
    report = channels_last(model, sample=(images(),))
    assert [(c.name, c.after, c.num_bytes) for c in report.copies] == [
        ("second", "turns", 2 * 4 * 64 * 4),
        ("third", "", 2 * 4 * 64 * 4),
    ]
    assert "second copies 0.0 MB: turns turns the layout back" in str(report)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert channels_last(net(), sample=(images(),)).copies == ()
    assert [c.name for c in channels_last(net(), sample=(images(),), inputs=False).copies] == ["0"]


def test_who_turned_the_layout_back_is_known_behind_other_modules():
    class Code(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.relu, self.second = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)

        def forward(self, x):
            return self.second(self.relu(self.first(x).contiguous()))

    behind = nn.Sequential(nn.Conv2d(3, 4, 3), Breaks.Turns(), nn.ReLU(), nn.Conv2d(4, 4, 3))
    assert [(c.name, c.after) for c in channels_last(behind, sample=(images(),)).copies] == [("3", "1")]
    assert [(c.name, c.after) for c in channels_last(Code(), sample=(images(),)).copies] == [("second", "")]


def test_undo():
    model = net()
    report = channels_last(model)
    report.undo()
    assert model[0].weight.is_contiguous()
    assert not model._forward_pre_hooks
    assert torch.equal(model[0].weight, net()[0].weight)


def test_volumes_and_what_has_no_such_layout():
    model = nn.ModuleDict({"line": nn.Conv1d(3, 4, 3), "volume": nn.ConvTranspose3d(3, 4, 3)})
    report = channels_last(model)
    assert report.converted == ("volume",)
    assert report.left == ("line: Conv1d has no such layout",)
    assert model["volume"].weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert "1 convolutions are channels_last\nline: Conv1d" in str(report)


def test_only_images_are_converted():
    class Takes(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x, *, extra):
            return self.conv(x["image"]), x["label"], extra

    model = Takes()
    channels_last(model)
    labels = torch.arange(6).view(2, 3)
    out, label, extra = model({"image": images(), "label": labels}, extra=images())
    assert is_channels_last(out)
    assert is_channels_last(extra)
    assert label is labels


def test_helpers():
    x = in_channels_last(images())
    assert in_channels_last(x) is x
    flat = torch.ones(2, 3)
    assert in_channels_last(flat) is flat
    assert not is_channels_last(flat)


def test_models_without_convolutions_are_refused():
    with pytest.raises(ValueError, match="Linear has no 2-D or 3-D convolution"):
        channels_last(nn.Linear(2, 2))


def test_a_sample_may_have_named_arguments():
    report = channels_last(net(), sample={"input": images()}, inputs=False)
    assert [c.name for c in report.copies] == ["0"]


def test_dropout_of_images_drops_other_elements_and_the_page_states_it():
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Dropout(0.5)), torch.randn(2, 3, 8, 8)
    masks = []
    for convert in (lambda _: None, channels_last):
        convert(model)
        torch.manual_seed(0)
        masks.append(model(x) == 0)
    if torch.equal(*masks):
        pytest.skip("this torch draws masks in the order of elements")
    assert "dropout" in layout.__doc__.split("Numerics")[1]
    assert "dropout" in CHANGES["channels-last"].numerics.safety
