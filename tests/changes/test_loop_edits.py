"""Edits of the training loop: the forward under autocast, values left on the device, threads that load samples."""

import subprocess
from contextlib import redirect_stdout
from io import StringIO
from textwrap import dedent
from types import SimpleNamespace

import pytest

from diagnose.changes.edits.source_edits import Edits, lines_of, write_patch
from diagnose.model.diagnosis import Example, Finding, Where

LOOP = '''"""Trains."""
import torch
from torch.nn.parallel import DataParallel
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(8, 4), torch.randn(8, 1))
model = torch.nn.Linear(4, 1)
wrapped = DataParallel(model)
optimizer = torch.optim.SGD(list(model.parameters()), lr=0.1)
total, worst = 0.0, 0.0
for x, y in DataLoader(data, batch_size=4):
    model.train()
    # the forward
    out = wrapped(x)
    dtypes = out.dtype
    loss = (out - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.item() / 2  # the mean
    last = loss.item()
    worst = max(worst, loss.item())
print(f"{total:.5f} {last:.5f} {worst:.5f} {dtypes} {type(total).__name__}")
'''
LINES = {line.strip(): number for number, line in enumerate(LOOP.splitlines(), 1)}


@pytest.fixture
def edit(tmp_path, monkeypatch):
    """Return what edits a script, and gives the changed script with what was left."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"

    def change(source, name, **arguments):
        path.write_text(source)
        written = write_patch(Edits(path, arguments={name: arguments}), (name,), tmp_path / "fix.patch")
        if written.diff:
            subprocess.run(["git", "apply", "fix.patch"], cwd=tmp_path, check=True)
        return path.read_text(), written.left.get(name)

    return change


def output(source):
    said = StringIO()
    with redirect_stdout(said):
        exec(source, {})
    return said.getvalue().split()


def differing(before, after):
    old, new = before.splitlines(), after.splitlines()
    return [line for line in old if line not in new], [line for line in new if line not in old]


def test_what_leads_from_the_model_to_the_loss_runs_under_autocast(edit):
    after, left = edit(LOOP, "autocast", device="cpu")
    assert left is None
    assert dedent(after[after.index("    # the forward") : after.index("    optimizer.zero")]) == dedent("""\
        # the forward
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = wrapped(x)
            dtypes = out.dtype
            loss = (out - y).square().mean()
        """)
    assert output(after)[3] == "torch.bfloat16"
    assert float(output(after)[0]) == pytest.approx(float(output(LOOP)[0]), rel=0.05)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("out = wrapped(x)", "with torch.autocast('cpu'): out = wrapped(x)"), "uses autocast itself"),
        (("import torch\n", "import torch as t\n"), "does not import torch by that name"),
        (("    loss.backward()", "    wrapped(x).sum().backward()"), "are in one statement"),
        (("    loss.backward()", "    backward(loss)"), "no loss.backward() follows"),
        (("    out = wrapped(x)", "    out = x * 2"), "no loss.backward() follows"),
        (("total,", "scaler = torch.amp.GradScaler('cpu'); total,"), "scales its loss already"),
    ],
)
def test_where_the_forward_cannot_be_told_it_is_left(edit, change, why):
    source = LOOP.replace(*change)
    assert source != LOOP
    after, left = edit(source, "autocast")
    assert after == source
    assert why in left


def test_half_precision_is_left_to_a_reader(edit):
    assert "GradScaler" in edit(LOOP, "autocast", dtype="float16")[1]


@pytest.mark.parametrize(
    ("loss", "device", "is_left"),
    [
        ("torch.nn.BCELoss()(out, y)", "cuda", True),
        ("functional.binary_cross_entropy(out, y)", "cuda:0", True),
        ("torch.nn.BCELoss()(out, y)", "cpu", False),
        ("torch.nn.BCEWithLogitsLoss()(out, y)", "cuda", False),
        ("functional.binary_cross_entropy_with_logits(out, y)", "cuda", False),
    ],
)
def test_a_loss_that_torch_refuses_under_autocast_on_a_gpu_is_left(edit, loss, device, is_left):
    left = edit(LOOP.replace("(out - y).square().mean()", loss), "autocast", device=device)[1] or ""
    assert left.startswith("torch refuses BCELoss under autocast on a GPU") == is_left


def test_a_model_of_a_trainer_object_and_a_step_function(edit):
    source = dedent("""\
        import torch

        class Trainer:
            def __init__(self, net):
                self.net = net
                self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

            def step(self, x):
                loss = criterion(self.net, x)
                if loss > 3:
                    loss = loss / 2
                loss.backward(retain_graph=False)
        """)
    after, left = edit(source, "autocast")
    assert left is None
    assert differing(source, after)[1] == [
        '        with torch.autocast("cuda", dtype=torch.bfloat16):',
        "            loss = criterion(self.net, x)",
        "            if loss > 3:",
        "                loss = loss / 2",
    ]


def test_sums_and_kept_values_stay_on_the_device(edit):
    asked = (LINES["total += loss.item() / 2  # the mean"], LINES["last = loss.item()"])
    after, left = edit(LOOP, "defer-sync", lines=asked)
    assert left is None
    assert differing(LOOP, after) == (
        ["    total += loss.item() / 2  # the mean", "    last = loss.item()"],
        ["    total = total + (loss.detach() / 2)  # the mean", "    last = loss.detach()"],
    )
    assert output(after) == [*output(LOOP)[:4], "Tensor"]


@pytest.mark.parametrize(
    "line",
    [
        "total *= loss.item()",
        "history.append(loss.item())",
        "print(loss.item())",
        "if loss.item() > 2: break",
        "worst = max(worst, loss.item())",
        "total = loss.item()",  # and later total += …, which would change the loss itself
        "last = loss.mean()",
    ],
)
def test_what_uses_the_value_at_once_is_its_authors(edit, line):
    number = LINES["last = loss.item()"]
    source = LOOP.replace("last = loss.item()", line)
    why = f"line {number} of the script neither adds the value up nor only keeps it, so its author must decide"
    assert edit(source, "defer-sync", lines=(number,)) == (source, why)


def test_a_line_that_was_not_named_stays(edit):
    assert edit(LOOP, "defer-sync")[1].startswith("line unknown")


@pytest.mark.parametrize("call", ["DataLoader(data, batch_size=4)", "DataLoader(batch_size=4, dataset=data)"])
def test_the_dataset_is_wrapped_where_a_loader_is_made(edit, call):
    source = LOOP.replace("DataLoader(data, batch_size=4)", call)
    after, left = edit(source, "concurrent-samples", threads=3)
    assert left is None
    assert differing(source, after)[1] == [
        "from diagnose.kernels.concurrent_samples import ConcurrentSamples",
        f"for x, y in {call.replace('data,', 'ConcurrentSamples(data, threads=3),')}:"
        if "dataset" not in call
        else "for x, y in DataLoader(batch_size=4, dataset=ConcurrentSamples(data, threads=3)):",
    ]
    assert output(after) == output(source)
    assert edit(after, "concurrent-samples")[1] == "the script uses ConcurrentSamples itself"


@pytest.mark.parametrize("call", ["DataLoader(*given)", "DataLoader(**given)", "DataLoader(batch_size=2)", "Loader(d)"])
def test_loaders_whose_dataset_is_not_written_out_are_left(edit, call):
    assert edit(f"loader = {call}\n", "concurrent-samples")[1] == "the script calls no DataLoader with a dataset itself"


def test_a_script_without_imports_gets_its_import_first(edit):
    after, _ = edit('"""Says what it is."""\nloader = DataLoader(d)\n', "concurrent-samples")
    assert after.splitlines()[1] == "from diagnose.kernels.concurrent_samples import ConcurrentSamples"


def test_the_lines_of_a_finding_are_those_of_the_script_alone(tmp_path):
    script = tmp_path / "src" / "train.py"
    places = [Where("src/train.py", 7), Where(str(script), 9), Where("other.py", 3), Where(None, None, op="aten::item")]
    finding = Finding("host-sync", "waits", 1.0, 1, 1, 1, where=tuple(places), examples=(
        Example(0, 0, 1, "", "", "", Where("train.py", 12)),
    ))  # fmt: skip
    assert lines_of(SimpleNamespace(findings=(finding,)), "host-sync", script) == (7, 9, 12)
    assert lines_of(SimpleNamespace(findings=(finding,)), "data-stall", script) == ()
