"""Where recording ends by itself, and what it says of what it does not see."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from diagnose.capture.dataflow import mode as mode_module
from diagnose.capture.dataflow.mode import Limits
from diagnose.capture.dataflow.window import DataflowWindow


class Passing(TorchDispatchMode):
    """A mode of the script's own."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_modes_that_the_script_enters_meanwhile_stay():
    window = DataflowWindow()
    window.start()
    with Passing() as own:
        window.stop()
        assert _get_current_dispatch_mode_stack() == [own]
    assert not _get_current_dispatch_mode_stack()


def test_a_fault_ends_the_recording_and_not_the_script(monkeypatch):
    calls = []

    def fail(*_args, **_kwargs):
        calls.append(1)
        raise RuntimeError("planted fault\nwith a second line")

    with DataflowWindow() as window:
        torch.ones(2)
        window.end_step()
        monkeypatch.setattr(mode_module, "tensors_in", fail)
        assert torch.ones(2).add(1).tolist() == [2.0, 2.0]
        window.end_step()
    flow = window.result()
    assert calls == [1]
    assert (flow.num_steps, [operator.name for operator in flow.operators]) == (1, ["aten::ones"])
    assert flow.left_out == ("Recording ended inside step 2: RuntimeError: planted fault.",)


def test_an_error_of_the_script_is_its_own():
    with DataflowWindow() as window:
        with pytest.raises(RuntimeError, match="must match the size"):
            torch.ones(2) + torch.ones(3)
        torch.ones(2).exp()
        window.end_step()
    assert [operator.name for operator in window.result().operators][-1] == "aten::exp"
    assert not window.result().left_out


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        (Limits(operators=5), "5 operators were recorded"),
        (Limits(cost_s=-1.0), "recording had taken"),
    ],
)
def test_bounds(limits, sentence):
    with DataflowWindow(limits=limits) as window:
        for _ in range(10):
            torch.ones(2)
        window.end_step()
    (left_out,) = window.result().left_out
    assert sentence in left_out


def test_contents_are_left_out_where_time_is_short():
    with DataflowWindow(limits=Limits(looking_s=-1.0)) as window:
        torch.ones(2)
        window.end_step()
    flow = window.result()
    assert [each.fingerprint for each in flow.values] == [""]
    assert any("Contents" in sentence for sentence in flow.left_out)


def test_no_tensor_is_kept_alive():
    """A storage is freed where it would be, and the table says after which operator."""
    with DataflowWindow() as window:
        made = torch.ones(1000)
        torch.ones(1)
        del made
        torch.ones(1)
        window.end_step()
    first = window.result().values[0]
    assert (first.shape, first.dies) == ((1000,), 1)


def test_kernels_that_the_script_launches_itself(monkeypatch):
    class JITFunction:
        __name__ = "double"

        def run(self, numbers, *, grid):
            numbers.untyped_storage()  # a kernel writes unseen
            return grid

    monkeypatch.setitem(sys.modules, "triton.runtime.jit", SimpleNamespace(JITFunction=JITFunction))
    numbers = torch.ones(3)
    with DataflowWindow() as window:
        numbers.exp()
        assert JITFunction().run(numbers, grid=(1,)) == (1,)
        numbers.exp()
        window.end_step()
    before, launch, after = window.result().operators
    assert (launch.name, launch.is_opaque) == ("triton::double", True)
    assert launch.writes[0].value == after.reads[0].value != before.reads[0].value
    assert "watched_run" not in JITFunction.run.__qualname__


def test_replayed_graphs_are_said_to_be_left_out(monkeypatch):
    class Graph:
        def replay(self):
            return None

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    with DataflowWindow() as window:
        Graph().replay()
        window.end_step()
    flow = window.result()
    assert [operator.name for operator in flow.operators] == ["cuda::graph_replay"]
    assert any("CUDA graphs" in sentence for sentence in flow.left_out)
