import copy

import pytest
import torch
from torch import nn

from diagnose.kernels.compiling import choose_mode, compile_in_place, compile_log

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # torch's own imports
ALL_MODES = ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]


class Net(nn.Module):
    def __init__(self, drop=0.0):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 4)
        self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(drop)

    def forward(self, x):
        return self.b(self.drop(self.norm(self.a(x)).relu()))


class Breaks(Net):
    def forward(self, x):
        y = self.a(x)
        if y.sum().item() > 1e9:
            y = y + 1
        return self.b(y)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def sample(rows=6):
    return (torch.randn(rows, 4),)


def test_arguments_may_have_names():
    model = Net()
    report = compile_in_place(model, [{"x": torch.randn(6, 4)}], backend="eager")
    assert (report.mode, report.graphs) == ("default", 1)
    model(x=torch.randn(6, 4))
    with pytest.raises(ValueError, match="or of mappings of names"):
        compile_in_place(Net(), [torch.randn(6, 4)])


@pytest.mark.parametrize("model", [Net(), nn.Sequential(nn.Linear(4, 8), nn.ReLU())], ids=["own", "torch"])
def test_compiled_in_place_and_nothing_else_changed(model):
    before, names = copy.deepcopy(model.state_dict()), list(model.state_dict())
    gradient = torch.ones_like(next(model.parameters()))
    next(model.parameters()).grad = gradient
    x = sample()
    random = torch.get_rng_state()
    expected = copy.deepcopy(model)(*x)
    report = compile_in_place(model, [x], backend="aot_eager")
    assert report.mode == "default"
    assert report.graphs == 1
    assert report.breaks == report.recompiles == ()
    assert report.difference < 1e-6
    assert 0 < report.cold_seconds < 60
    assert torch.equal(torch.get_rng_state(), random)
    assert list(model.state_dict()) == names
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))
    assert next(model.parameters()).grad is gradient
    with compile_log() as log:
        torch.testing.assert_close(model(*x), expected)
    assert log.graphs == 0, "the warm-up left something to compile"
    report.undo()
    assert model._compiled_call_impl is None


def test_torchs_own_modules_really_are_compiled():
    """Module.compile() of an nn.Sequential compiles nothing, silently."""
    seen = []

    def backend(graph, inputs):
        seen.append(graph)
        return graph.forward

    compile_in_place(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), [sample()], backend=backend)
    assert len(seen) == 1


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo looks at a tensor between two graphs
def test_breaks_are_listed_with_their_lines():
    report = compile_in_place(Breaks(), [sample()], backend="aot_eager")
    assert report.graphs == 2
    (found,) = report.breaks
    assert found.file == __file__
    assert "y.sum().item() > 1e9" in str(report)
    assert "item()" in found.reason


def test_two_sizes_make_one_dynamic_graph_for_all():
    model = Net()
    report = compile_in_place(model, [sample(6), sample(9)], backend="aot_eager")
    assert report.graphs == 2
    assert "size mismatch at index 0. expected 6, actual 9" in report.recompiles[0]
    with compile_log() as log:
        for rows in range(10, 20):
            model(*sample(rows))
    assert (log.graphs, log.recompiles) == (0, ())


def test_recompiles_in_the_loop_are_named():
    model = Net()
    compile_in_place(model, [sample(6)], backend="eager", dynamic=False)
    with compile_log() as log:
        for rows in (7, 8, 8):
            model(*sample(rows))
    assert len(log.recompiles) == 2
    assert "expected 6, actual 7" in log.recompiles[0]
    assert log.seconds > 0


def test_failure_falls_back_with_the_reason():
    def broken(graph, inputs):
        raise NotImplementedError("no kernel for this operator")

    model, x = Net(), sample()
    expected = copy.deepcopy(model)(*x)
    report = compile_in_place(model, [x], backend=broken)
    assert report.mode is None
    assert "no kernel for this operator" in report.reason
    assert str(report).startswith("not compiled: ")
    assert torch.equal(model(*x), expected)
    assert model._compiled_call_impl is None


def test_full_graph_falls_back_where_there_are_breaks():
    report = compile_in_place(Breaks(), [sample()], backend="eager", fullgraph=True)
    assert report.mode is None
    assert "data-dependent" in report.reason or "item" in report.reason


def test_nothing_compiled_is_no_success():
    class Skipped(Net):
        @torch.compiler.disable(recursive=True)
        def forward(self, x):
            return super().forward(x)

    report = compile_in_place(Skipped(), [sample()], backend="eager")
    assert report.mode is None
    assert report.reason == "the compiler found nothing to compile"


def test_errors_of_the_model_are_raised():
    model = Net()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        compile_in_place(model, [(torch.randn(2, 3),)], backend="eager")
    assert model._compiled_call_impl is None


def test_random_outputs_are_not_compared():
    assert compile_in_place(Net(drop=0.5), [sample()], backend="eager").difference is None
    assert compile_in_place(Net(drop=0.5).eval(), [sample()], backend="eager").difference == 0


def test_a_wrong_compiler_is_noticed():
    def wrong(graph, inputs):
        return lambda *args: tuple(out * 1.5 for out in graph.forward(*args))

    report = compile_in_place(Net().requires_grad_(False).eval(), [sample()], backend=wrong)
    assert report.difference == pytest.approx(0.5)


def test_modes():
    assert choose_mode("launch-bound", "cuda", changing=False)[0] == "reduce-overhead"
    assert choose_mode("launch-bound", "cuda", changing=True) == (
        "default",
        "launch-bound, but sizes change, and CUDA graphs would be captured for each size",
    )
    assert choose_mode("slow-kernel", "cuda", changing=True)[0] == "max-autotune-no-cudagraphs"
    assert choose_mode("unfused-elementwise", "cuda", changing=False)[0] == "default"
    assert choose_mode(None, "xpu", changing=False)[0] == "default"
    assert choose_mode("launch-bound", "cpu", changing=False)[0] == "default"
    assert set(ALL_MODES) <= {*torch._inductor.list_mode_options()}


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_cuda_graphs_are_refused_where_sizes_change(mode):
    with pytest.raises(ValueError, match=r"captures a CUDA graph for each size.*pad them to one size"):
        compile_in_place(Net(), [sample(6), sample(7)], mode=mode)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="at least one sample"):
        compile_in_place(Net(), [])
    with pytest.raises(ValueError, match="a list of tuples"):
        compile_in_place(Net(), [torch.randn(2, 4)])
    with pytest.raises(ValueError, match="has no mode 'fast'; it has default"):
        compile_in_place(Net(), [sample()], mode="fast")
    model = Net()
    compile_in_place(model, [sample()], backend="eager")
    with pytest.raises(ValueError, match="Net is compiled already"):
        compile_in_place(model, [sample()], backend="eager")


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # inductor's own
def test_inductor():
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    report = compile_in_place(model, [sample()], cause="launch-bound")
    if report.mode is None and "compiler" in report.reason.lower():
        pytest.skip(f"no C++ compiler: {report.reason}")
    assert report.mode == "default"
    assert report.difference < 1e-5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_graphs_by_cause():
    model = Net().cuda()
    report = compile_in_place(model, [(torch.randn(6, 4, device="cuda"),)], cause="launch-bound")
    assert report.mode == "reduce-overhead"
    assert report.difference < 1e-3
    for _ in range(3):
        report.mark_step()
        model(torch.randn(6, 4, device="cuda")).sum().backward()
        model.zero_grad()  # a gradient that stays belongs to the graph that is replayed next


@pytest.mark.skipif("lite" not in torch._inductor.list_mode_options(), reason="this torch has no such mode")
def test_every_mode_of_torch_is_taken():
    model = nn.Sequential(nn.Linear(4, 4))
    report = compile_in_place(model, [(torch.ones(2, 4),)], mode="lite", backend="aot_eager")
    assert (report.mode, report.reason) == ("lite", "as asked for")
