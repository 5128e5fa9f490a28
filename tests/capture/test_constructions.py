"""The calls of a script that make a loader, an optimizer or a model's wrapper."""

import runpy
import sys
import textwrap

import pytest
import torch
from torch.utils.data import DataLoader

from diagnose.capture.record.script_config import ScriptConfig
from diagnose.capture.steps.hooks import watch_constructions


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Return a function that runs a script and returns what was taken down of its constructions."""
    monkeypatch.chdir(tmp_path)

    def run(source):
        (tmp_path / "train.py").write_text(textwrap.dedent(source))
        config = ScriptConfig()
        end = watch_constructions(config.constructed)
        try:
            names = runpy.run_path("train.py")
        finally:
            end()
        if "loader" in names:
            config.loader_opened(names["loader"], names["loader"].dataset)
        if "optimizer" in names:
            config.optimizer_stepped(names["optimizer"])
            config.settle()
        return config

    return run


def test_a_loader_is_found_in_the_call_that_passes_its_dataset(made):
    config = made("""\
        import torch.utils.data as data

        def loaders(settings):
            return data.DataLoader(
                rows,
                **settings,
            )

        rows = list(range(8))
        loader = loaders({"batch_size": 4})
        """)
    call = config.loader["made"]
    assert (call.name, call.file, call.begin, call.end) == ("DataLoader", "train.py", (4, 11), (7, 5))
    assert call.first == 1
    assert call.lines[3] == "    return data.DataLoader("
    assert call.spread == ("batch_size",)
    assert call.parameters[:2] == ("dataset", "batch_size")


def test_an_optimizer_of_the_authors_own_is_found_where_it_is_made(made):
    config = made("""\
        import torch
        from torch.optim import SGD as Base

        class Mine(Base):
            def __init__(self, params):
                super().__init__(params, lr=0.1)

        optimizer = Mine([torch.zeros(1, requires_grad=True)])
        """)
    call = config.optimizer["made"]
    assert (call.name, call.begin) == ("Mine", (8, 12))
    assert call.parameters == ("params",)


def test_a_credential_beside_a_call_is_not_stored(made):
    config = made("""\
        import torch
        token = "hf_abcdefghijklmnopqrstuvwxyz0123"
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
        """)
    assert config.optimizer["made"] is None


def test_what_a_factory_makes_has_no_call_to_edit(made):
    config = made("""\
        import torch
        kind = getattr(torch.optim, "SGD")
        registry = {"sgd": kind}
        optimizer = registry["sgd"]([torch.zeros(1, requires_grad=True)])
        """)
    assert config.optimizer["made"] is None


def test_the_hooks_are_removed():
    before = torch.utils.data.DataLoader.__init__, torch.optim.Optimizer.__init__
    watch_constructions(lambda _name, _made: None)()
    assert (torch.utils.data.DataLoader.__init__, torch.optim.Optimizer.__init__) == before


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a frame knows its line only")
def test_two_optimizers_of_one_line_are_two_calls(made):
    config = made("""\
        import torch
        a, b = torch.nn.Linear(2, 2), torch.nn.Linear(3, 3)
        one, two = torch.optim.Adam(a.parameters()), torch.optim.Adam(b.parameters())
        """)
    assert [(call.begin, call.end) for call in config.calls] == [((3, 11), (3, 43)), ((3, 45), (3, 77))]


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import torch\n\ntorch.autograd.set_detect_anomaly(True)\n", 3),
        ("from torch.autograd import detect_anomaly\n\nwith detect_anomaly():\n    pass\n", 3),
        ("import torch\n\ntorch.autograd.set_detect_anomaly(False)\n", None),
    ],
)
def test_the_call_that_turns_anomaly_detection_on_is_found(made, source, line):
    try:
        call = made(source).anomaly
    finally:
        torch.autograd.set_detect_anomaly(False)
    assert (call and call.begin[0]) == line


def test_a_loader_that_only_its_iterator_knows_lives_as_long():
    config, rows = ScriptConfig(), [1, 2]
    loader = DataLoader(rows)
    config.loader_opened(loader, rows)
    iterator = iter(loader)
    del loader
    for _ in range(2):
        config.batch_delivered(rows, iterator)
    assert config.training_loader().dataset is rows
    del iterator
    assert config.training_loader() is None
