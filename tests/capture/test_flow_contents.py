"""What is seen of contents, in the host's memory and by the way that devices take."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from diagnose.capture.dataflow.contents import Contents
from diagnose.capture.dataflow.storages import UNSEEN, Base, view_of
from diagnose.capture.dataflow.structure import MAX_SAMPLE, offsets
from diagnose.capture.dataflow.window import DataflowWindow

BOTH = pytest.mark.parametrize("in_place", [True, False])
DTYPES = [
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2, torch.float8_e4m3fn),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
]


def _base(tensor):
    return Base(tensor, tensor.untyped_storage(), view_of(tensor))


def seen(*tensors, in_place=True, **options):
    looks = Contents(in_place=in_place, salt=b"salt", **options)
    numbers = [looks.look(tensor, _base(tensor), with_kind=True) for tensor in tensors]
    found = looks.finish()
    return [found[number] for number in numbers]


def gradient(tensor, *, in_place=True):
    looks = Contents(in_place=in_place)
    number = looks.look(tensor, _base(tensor), with_kind=False)
    return looks.finish()[number]


def one(tensor, *, in_place=True):
    return seen(tensor, in_place=in_place)[0]


@BOTH
@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_contents_have_equal_fingerprints(dtype, in_place):
    made = torch.arange(200).remainder(2).reshape(10, 20).to(dtype)
    other = made.clone()
    other[7, 13] = 1 - int(made[7, 13])
    first, same, different = seen(made, made.clone(), other, in_place=in_place)
    assert first == same
    assert first.is_exact
    assert first.zeros == pytest.approx(0.5)
    assert different.fingerprint != first.fingerprint


def test_a_content_cannot_be_guessed_from_its_fingerprint():
    """Of a small one there are few: without what it was mixed with they could be tried."""
    tensor = torch.tensor(3)
    found = set()
    for _ in range(2):
        looks = Contents()
        looks.look(tensor, _base(tensor), with_kind=True)
        found |= {each.fingerprint for each in looks.finish()}
    assert len(found) == 2


def test_shape_and_dtype_count():
    flat = torch.zeros(12)
    found = {each.fingerprint for each in seen(flat, flat.reshape(3, 4), flat.to(torch.int32), flat.to(torch.float64))}
    assert len(found) == 4


@BOTH
def test_layout_does_not_count(in_place):
    made = torch.randn(8, 30)
    turned = made.t().contiguous().t()
    assert turned.stride() != made.stride()
    assert one(made, in_place=in_place).fingerprint == one(turned, in_place=in_place).fingerprint


def test_one_element_of_a_middling_tensor_counts_and_of_a_large_one_is_not_claimed():
    middling, large = torch.zeros(100_000), torch.zeros(1_000_000)
    found = []
    for tensor in (middling, large):
        other = tensor.clone()
        other[77_777] = 1
        found += [seen(tensor, other)]
    assert found[0][0].is_exact
    assert found[0][0].fingerprint != found[0][1].fingerprint
    assert not found[1][0].is_exact


@BOTH
def test_a_device_gives_the_same_as_the_host_where_all_is_looked_at(in_place):
    tensors = [torch.randn(3), torch.tensor(2.5), torch.randint(0, 9, (40, 50)), torch.ones(64, 64).tril()]
    assert all(each.is_exact for each in seen(*tensors, in_place=in_place))
    assert seen(*tensors, in_place=in_place) == seen(*tensors)


@BOTH
@pytest.mark.parametrize(
    ("tensor", "kind"),
    [
        (torch.ones(40, 40).tril(), "triangular"),
        (torch.zeros(1, 1, 40, 40).masked_fill(torch.ones(40, 40).triu(1) > 0, float("-inf")), "triangular"),
        (torch.randn(40, 40).triu(), "triangular"),
        (torch.full((40, 40), 3.0), "constant"),
        (torch.nn.functional.one_hot(torch.arange(40) % 7), "one-hot"),
        (torch.eye(40), "one-hot"),
        (torch.rand(40).add(1).diag(), "diagonal"),
        (torch.rand(5, 40).add(1).diag_embed(), "diagonal"),
        (torch.rand(39).add(1).diag_embed(1), ""),
        (torch.rand(40).add(1).diag_embed().fliplr(), ""),
        (torch.randn(40, 40), ""),
        (torch.zeros(40, 40).index_fill(1, torch.tensor([2, 3]), 1.0), ""),
        (torch.ones(40, 40).tril().index_fill(0, torch.tensor([5]), 1.0), ""),
    ],
)
def test_kinds(tensor, kind, in_place):
    assert one(tensor, in_place=in_place).kind == kind


@BOTH
def test_ones_up_to_rounding(in_place):
    norms = torch.nn.functional.normalize(torch.randn(3000, 64), dim=1).norm(dim=1, keepdim=True)
    for tensor in (norms, norms.double(), norms[:40], norms[0], torch.ones(400), torch.ones(3, dtype=torch.bfloat16)):
        assert one(tensor, in_place=in_place).is_one
    for tensor in (norms * 1.001, norms - 1, -norms, torch.ones(40, dtype=torch.int64), torch.full((4,), torch.nan)):
        assert not one(tensor, in_place=in_place).is_one


@pytest.mark.parametrize("number", [0.0, -80.0])
def test_frames_that_are_one_number_in_all_rows_are_padded(number):
    frames = torch.randn(4, 40, 3)
    for row, length in zip(frames, (20, 25, 30, 10), strict=True):
        row[length:] = number
    assert one(frames).padded_rows == pytest.approx(10 / 40)
    assert one(frames.flip(1)).padded_rows == pytest.approx(10 / 40)
    frames[0, 39, 1] = 1.0
    assert one(frames).padded_rows == 0.0
    alike = torch.randn(4, 40, 3)
    alike[:, 20:] = number
    assert one(alike).padded_rows == 0.0
    assert one(torch.randn(4, 40)).padded_rows == one(frames, in_place=False).padded_rows == -1.0


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [
        (torch.ones(600, 600).tril(), "triangular"),
        (torch.randn(3, 700, 700).triu(), "triangular"),
        (
            torch.randn(4, 300, 300).masked_fill(torch.ones(300, 300).triu(1) > 0, float("-inf")).softmax(-1),
            "triangular",
        ),
        (torch.block_diag(*torch.ones(4, 150, 150)), ""),
        (torch.nn.functional.one_hot(torch.arange(100) * 97, 20_000).float(), "one-hot"),
        (torch.nn.functional.one_hot(torch.arange(900) % 3), "one-hot"),
        (torch.randn(900, 900).relu(), ""),
        (torch.zeros(900, 900, dtype=torch.bool), "constant"),
        (torch.zeros(900, 900).index_fill(0, torch.arange(0, 900, 4), 1.0), ""),
    ],
)
def test_kinds_of_large_contents(tensor, kind):
    assert one(tensor).kind == kind


def test_memory_elsewhere_is_not_looked_at():
    tensor = torch.ones(4)
    elsewhere = SimpleNamespace(nbytes=lambda: 16, data_ptr=lambda: 1 << 50)
    mapped = SimpleNamespace(untyped_storage=lambda: elsewhere)
    assert Contents().look(mapped, _base(tensor), with_kind=True) == UNSEEN


def test_memory_that_is_not_aligned():
    memory = bytearray(5 + 4 * 1000)
    memory[5:] = torch.arange(1000, dtype=torch.int32).numpy().tobytes()
    tensor = torch.frombuffer(memory, dtype=torch.int32, offset=5)
    assert tensor.data_ptr() % 4
    base = _base(tensor)
    looks = Contents(salt=b"salt")
    found = looks.look(tensor, base, with_kind=True)
    assert looks.finish()[found] == one(torch.arange(1000, dtype=torch.int32))


@BOTH
def test_padding(in_place):
    ids = torch.randint(1, 100, (16, 40))
    ids[:, 30:] = 0
    assert one(ids, in_place=in_place).padded == 0.0  # columns that are the same in all rows are no padding
    assert one(ids, in_place=in_place).evenly_padded == pytest.approx(10 / 40)  # unless another step shows that
    ids[5, 20:] = 0
    found = one(ids, in_place=in_place)
    assert (found.padded, found.evenly_padded) == pytest.approx((10 / 40, 0))
    at_start = one(ids.flip(1), in_place=in_place)
    assert (at_start.padded, at_start.evenly_padded) == pytest.approx((10 / 40, 0))
    numbers = torch.zeros(16, 40)
    numbers[:, :30] = torch.rand(16, 30)
    assert one(numbers, in_place=in_place).evenly_padded == -1.0  # of integers only it is counted


def test_rows_of_zeros():
    tensor = torch.ones(64, 10)
    tensor[::2] = 0.0
    tensor[1, 3:] = 0.0
    assert one(tensor).zero_rows == 0.5
    assert one(tensor.where(tensor > 0, torch.tensor([0.0, -0.0]).repeat(5))).zero_rows == 0.5  # products with zero
    assert one(torch.randn(1000, 64).relu().index_fill(0, torch.arange(600), 0.0)).zero_rows == pytest.approx(
        0.6, abs=0.1
    )
    assert one(torch.randn(1000, 64).relu()).zero_rows == 0.0
    assert one(torch.ones(64, 10) + torch.eye(10).repeat(7, 1)[:64]).zero_rows == 0.0


@BOTH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rows_of_zeros_in_gradients_are_seen_on_devices_too(dtype, in_place):
    made = torch.ones(64, 10, dtype=dtype)
    made[::2] = -0.0
    made[1::2, :9] = 0.0
    assert gradient(made, in_place=in_place).zero_rows == 0.5
    assert gradient(torch.randn(64, 10, dtype=dtype), in_place=in_place).zero_rows == 0.0
    assert gradient(made.view(-1), in_place=in_place).zero_rows <= 0.0


@BOTH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_subnormal_numbers(dtype, in_place):
    tiny = torch.finfo(dtype).tiny
    numbers = torch.tensor([tiny, tiny / 4, 0.0, 1.0], dtype=torch.float64).to(dtype)
    found = one(numbers, in_place=in_place)
    assert (found.subnormal, found.zeros) == (0.25, 0.25)


def test_a_share_of_a_large_tensor_is_that_of_a_sample():
    rows = torch.zeros(1000, 512)
    rows[:, ::4] = 1.0
    assert one(rows).zeros == pytest.approx(0.75, abs=0.1)


def test_samples_lie_in_all_rows_and_columns():
    found = offsets((1024, 1024), (1024, 1))
    assert len(set(found.tolist())) == MAX_SAMPLE
    assert len({int(at) % 1024 // 16 for at in found}) > 16
    assert len({int(at) // 1024 // 16 for at in found}) > 32


def test_what_has_no_content():
    looks = Contents()
    resized = torch.ones(4)
    base = _base(resized)
    resized.untyped_storage().resize_(0)
    assert looks.look(resized, base, with_kind=True) == UNSEEN
    for tensor in (torch.empty(0), torch.empty(3, device="meta"), torch.ones(3, dtype=torch.complex128)):
        assert looks.look(tensor, _base(tensor), with_kind=True) == UNSEEN


def test_the_share_of_zero_rows_rests_on_many_rows_where_a_few_columns_show_them():
    torch.manual_seed(0)
    wide = torch.rand(3000, 6000) + 1
    wide[torch.rand(3000) < 0.85] = 0
    found = gradient(wide)
    assert found.zero_rows == pytest.approx(0.85, abs=0.06)


def test_a_part_of_a_storage_stands_for_all_of_it():
    """A write elsewhere in the storage makes another content, although the tensor first seen is the same."""
    whole = torch.zeros(8, 4)
    base = _base(whole[0])
    looks = Contents()
    first = looks.look(whole[0], base, with_kind=True)
    whole[5] = 1.0
    second = looks.look(whole[0], base, with_kind=True)
    found = looks.finish()
    assert found[first].fingerprint != found[second].fingerprint


def test_many_looks_are_judged_in_between():
    found = seen(*[torch.full((2,), float(i)) for i in range(10)], max_pending=3)
    assert len({each.fingerprint for each in found}) == 10


@BOTH
def test_looking_is_not_recorded_and_changes_nothing(in_place):
    """The same operators are seen whether memory is read or samples are taken by operators."""
    weight = torch.randn(4, 4, requires_grad=True)
    state = torch.get_rng_state()

    def step():
        ((weight @ weight).t().exp() * 2).sum().backward()

    step()
    version = weight._version
    window = DataflowWindow(Contents(in_place=in_place))
    with window:
        step()
        window.end_step()
    names = [operator.name for operator in window.result().operators]
    assert names[:6] == ["aten::mm", "aten::t", "aten::exp", "aten::detach", "aten::mul.Tensor", "aten::sum"]
    assert not {"aten::as_strided", "aten::index_select", "aten::clone"} & set(names)
    assert weight._version == version
    assert torch.equal(torch.get_rng_state(), state)
    assert np.isfinite(window.result().cost_ns)


@BOTH
def test_looking_outside_of_an_operator_makes_no_node_of_autograd(in_place):
    weight = torch.randn(4, 4, requires_grad=True)
    with DataflowWindow(Contents(in_place=in_place)) as window:
        before = torch._C._autograd._get_sequence_nr()
        weight.tolist()
        assert torch._C._autograd._get_sequence_nr() == before
        window.end_step()
    flow = window.result()
    assert [operator.name for operator in flow.operators] == ["python::tolist"]
    assert flow.values[0].is_exact
