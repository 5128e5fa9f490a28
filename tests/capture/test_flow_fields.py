"""What the recorded table says of small programs: operators, values, places, phases, roles, lives."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from diagnose.capture.dataflow.window import DataflowWindow
from diagnose.capture.record.constructions import wide_sources
from diagnose.capture.record.source_lines import SourceLines
from diagnose.dataflow.graph import graph_of
from diagnose.dataflow.liveness import dead_work
from diagnose.model.dataflow import ASKS_FOR_GRADIENT, TAKES_OVER
from diagnose.model.records import LoadedRecord
from tests.capture.flows import line_of, named, only, record_dataflow, value


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        hidden = self.fc(x)  # the layer
        return torch.relu(self.norm(hidden))


@pytest.fixture(scope="module")
def trained():
    """Two steps of a small training loop."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def step():
        batch = torch.randn(8, 4)
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()  # the backward pass
        optimizer.step()
        return loss.item()

    step()
    return record_dataflow(step)


def test_an_operator_has_its_line_module_and_phase(trained):
    forward = only(trained, "aten::addmm")
    assert (forward.place.file, forward.place.line, forward.place.function) == (
        __file__,
        line_of("the layer", __file__),
        "forward",
    )
    assert [frame.function for frame in forward.stack][:2] == ["forward", "step"]
    assert (forward.module, forward.phase, forward.step) == ("fc", "forward", 0)
    assert only(trained, "aten::relu").module == "Net"
    assert {operator.phase for operator in named(trained, "aten::addcdiv_")} == {"optimizer"}
    assert len(named(trained, "aten::addmm", step=1)) == 1


def test_a_backward_operator_has_the_forward_operator_and_its_place(trained):
    number = trained.operators.index(only(trained, "aten::addmm"))
    forward = trained.operators[number]
    products = named(trained, "aten::mm")
    assert products
    for product in products:
        assert (product.phase, product.forward, product.sequence_nr) == ("backward", number, forward.sequence_nr)
        assert (product.stack, product.module) == (forward.stack, "fc")


def test_what_belongs_to_no_forward_operator_is_at_the_backward_call(trained):
    root = only(trained, "aten::ones_like")
    assert (root.phase, root.place.line) == ("backward", line_of("the backward pass", __file__))


def test_a_write_in_place_makes_a_new_version(trained):
    write = named(trained, "aten::addcdiv_")[0]
    before, after = value(trained, write.reads[0]), value(trained, write.writes[0])
    assert before.storage == after.storage
    assert after.version == before.version + 1
    assert trained.operators[after.producer] is write


def test_roles_and_names(trained):
    found = {(each.role, each.name) for each in trained.values if each.name}
    assert ("parameter", "fc.weight") in found
    assert ("gradient", "fc.weight") in found
    assert ("optimizer state", "fc.weight") in found
    assert ("buffer", "norm.running_mean") in found
    batch = value(trained, only(trained, "aten::randn").writes[0])
    assert (batch.role, batch.producer) == ("", trained.operators.index(only(trained, "aten::randn")))


def test_statistics_that_a_norm_writes_while_training_are_written(trained):
    norm = only(trained, "aten::native_batch_norm")
    assert [value(trained, use).name for use in norm.writes[:2]] == ["norm.running_mean", "norm.running_var"]


def test_a_value_read_by_the_backward_pass_is_kept_until_then(trained):
    product, relu = only(trained, "aten::addmm"), only(trained, "aten::relu")
    hidden = value(trained, product.writes[0])
    assert hidden.is_kept
    reader = next(i for i, o in enumerate(trained.operators) if o.name == "aten::native_batch_norm_backward")
    assert hidden.dies >= reader
    normed = value(trained, relu.reads[0])
    assert not normed.is_kept  # relu keeps its result
    assert normed.dies <= trained.operators.index(relu) + 1


def test_host_reads_draws_and_attributes(trained):
    assert only(trained, "aten::randn").draws
    losses = [o for o in named(trained, "aten::_local_scalar_dense") if o.phase == "forward"]
    assert losses[0].reads_host
    assert "size=(8, 4)" in only(trained, "aten::randn").attributes


def test_a_variable_that_the_next_step_replaces_is_no_root():
    kept, held = [], [None]

    def step():
        made = torch.ones(3) * 2
        held[0] = made.exp()  # never read, replaced in the next step
        kept.append(made.sin())

    step()
    flow = record_dataflow(step)
    assert value(flow, only(flow, "aten::exp", 1).writes[0]).dies == -1
    assert only(flow, "aten::exp", 1).writes[0].value not in flow.roots
    for number in (0, 1):
        sine = only(flow, "aten::sin", number).writes[0].value
        assert sine in flow.roots


def test_what_outlives_a_step():
    state, table = torch.zeros(3), torch.ones(3)

    def step():
        batch = torch.tensor([1.0, 2.0, 3.0])
        state.add_(batch * table)

    flow = record_dataflow(step)
    product = only(flow, "aten::mul.Tensor")
    assert [value(flow, use).role for use in product.reads] == ["input", "constant"]
    assert value(flow, only(flow, "aten::add_.Tensor").writes[0]).role == "state"
    (batch,) = only(flow, "aten::lift_fresh").writes
    assert batch.value == product.reads[0].value


def test_a_batch_from_outside_is_an_input():
    batches = iter(np.arange(16, dtype=np.float32).reshape(4, 4))

    def step():
        torch.from_numpy(next(batches)).exp()

    flow = record_dataflow(step)
    assert [value(flow, only(flow, "aten::exp", n).reads[0]).role for n in (0, 1)] == ["input", "input"]


def test_a_view_is_the_same_value_with_its_own_shape():
    def step():
        whole = torch.arange(12.0).reshape(3, 4)
        whole[1:, 2].exp()

    flow = record_dataflow(step)
    read, made = only(flow, "aten::exp").reads[0], only(flow, "aten::arange").writes[0]
    assert read.value == made.value
    assert (read.shape, read.stride, read.offset) == ((2,), (4,), 6)
    view = only(flow, "aten::select.int")
    assert view.is_view
    assert not view.writes


def test_a_write_to_a_part_reads_what_was_there_and_one_to_all_does_not():
    def step():
        buffer = torch.empty(4)
        buffer.fill_(1.0)
        buffer[:2] = torch.ones(2)

    flow = record_dataflow(step)
    assert not only(flow, "aten::fill_.Scalar").reads
    part = only(flow, "aten::copy_")
    assert part.writes[0].value != part.reads[-1].value
    assert value(flow, part.writes[0]).storage == value(flow, part.reads[-1]).storage


def test_python_reads_without_an_operator_are_in_the_table():
    def step():
        made = torch.ones(3) * 2
        made.tolist()
        made.numpy()
        made.data_ptr()

    flow = record_dataflow(step)
    made = only(flow, "aten::mul.Tensor").writes[0].value
    for name in ("tolist", "numpy"):
        read = only(flow, f"python::{name}")
        assert read.reads_host
        assert [use.value for use in read.reads] == [made]
    assert only(flow, "python::data_ptr").is_opaque
    assert "tolist" not in vars(torch.Tensor)


def test_a_mask_as_an_index_is_read_by_the_host_and_an_index_is_not():
    def step():
        numbers = torch.arange(6.0)
        numbers[numbers > 2]
        numbers[torch.tensor([0, 1])]

    flow = record_dataflow(step)
    by_mask, by_index = named(flow, "aten::index.Tensor")
    assert by_mask.reads_host
    assert not by_index.reads_host


def test_attention_without_dropout_draws_nothing():
    query = torch.randn(1, 2, 8, 16)

    def step():
        functional.scaled_dot_product_attention(query, query, query)
        functional.scaled_dot_product_attention(query, query, query, dropout_p=0.5)

    flow = record_dataflow(step)
    first = next(operator for operator in flow.operators if "attention" in operator.name)
    rest = flow.operators[flow.operators.index(first) + 1 :]
    assert not first.draws
    assert any(operator.draws for operator in rest if operator.step == 0)


def test_the_first_line_of_a_statement():
    def step():
        torch.ones(2).mul(  # one statement
            torch.full(
                (2,),
                3.0,
            )
        )

    flow = record_dataflow(step)
    lines = {only(flow, name).place.line for name in ("aten::ones", "aten::full", "aten::mul.Tensor")}
    assert lines == {line_of("one statement", __file__)}


def test_values_without_a_step_before_or_after_are_inputs():
    numbers = torch.ones(3)
    flow = record_dataflow(lambda: numbers * 2, num_steps=1)
    assert [each.role for each in flow.values] == ["input", ""]


def test_sizes_on_a_device_without_contents():
    """A device type that computes nothing: shapes and places are there, contents are not."""

    def step():
        left = torch.empty(4, 8, device="meta")
        (left @ torch.empty(8, 2, device="meta")).relu()

    flow = record_dataflow(step)
    product = value(flow, only(flow, "aten::mm").writes[0])
    assert (product.shape, product.device, product.fingerprint) == ((4, 2), "meta", "")


def test_two_models_have_their_classes_in_names():
    first, second = nn.Sequential(nn.Linear(2, 2)), Net()

    def step():
        first(torch.ones(3, 2))
        second(torch.ones(3, 4))

    flow = record_dataflow(step)
    names = {each.name for each in flow.values if each.role == "parameter"}
    assert {"Sequential.0.weight", "Net.fc.weight"} <= names


def test_a_paused_window_records_no_more():
    window = DataflowWindow()
    window.start()
    torch.ones(2)
    window.end_step()
    window.pause()
    torch.zeros(2)
    window.end_step()
    window.stop()
    flow = window.result()
    assert [operator.name for operator in flow.operators] == ["aten::ones"]
    assert flow.num_steps == 1


def test_what_makes_a_tensor_of_an_array_and_asks_for_its_gradient_are_views_with_their_lines():
    array = torch.ones(2).double().numpy()

    def step():
        x = torch.from_numpy(array)  # made
        (x * 2).sum()
        torch.ones(2).mul(3).requires_grad_().sum().backward()  # asked

    flow = record_dataflow(step)
    made, asked = only(flow, TAKES_OVER), only(flow, ASKS_FOR_GRADIENT)
    assert (made.place.line, asked.place.line) == (line_of("made", __file__), line_of("asked", __file__))
    assert (made.is_view, asked.is_view, made.writes) == (True, True, ())
    assert value(flow, made.reads[0]).dtype == "float64"


def test_wide_buffers_have_the_line_of_their_class():
    class Window(torch.nn.Module):
        def __init__(self):  # class
            super().__init__()
            self.register_buffer("wide", torch.ones(2).double())
            self.register_buffer("narrow", torch.ones(2))

        def forward(self, x):
            return x * self.wide

    module = Window()
    with DataflowWindow() as window:
        module(torch.ones(2))
        window.end_step()
    assert window.wide_buffers == {"wide": (__file__, line_of("class", __file__))}
    (found,) = wide_sources(SourceLines(Path()), LoadedRecord(), window.wide_buffers)
    assert (found.name, found.lines[3].strip()) == ("wide", 'self.register_buffer("wide", torch.ones(2).double())')


@pytest.mark.parametrize("kind", ["foreach", "fused"])
@pytest.mark.parametrize("warms_up", [False, True])
def test_parameters_are_held_by_a_learning_rate_that_stays_zero(kind, warms_up):
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    groups = [{"params": layers[0].parameters(), "lr": 0.1 * warms_up}, {"params": layers[1].parameters(), "lr": 0.1}]
    optimizer = torch.optim.AdamW(groups, **{kind: True})
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda _: 0.0 if warms_up else 1.0, lambda _: 1.0])

    def step():
        optimizer.zero_grad()
        layers(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        scheduler.step()

    step()
    flow = record_dataflow(step)
    held = {value.name for value in flow.values if value.storage in flow.held}
    assert held == (set() if warms_up else {"0.weight", "0.bias"})
    assert {value.role for value in flow.values if value.storage in flow.held} <= {"parameter", "optimizer state"}
    assert [found.parameters for found in dead_work(graph_of(flow)) if found.has_no_rate] == (
        [] if warms_up else [("0.bias", "0.weight")]
    )
