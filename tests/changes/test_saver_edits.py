"""Checkpoints written by a thread, by an edit of the script: what may use the file waits for it."""

import subprocess
import sys

import libcst as cst
import pytest

from diagnose.changes.edits.saver_edits import with_background_saver
from diagnose.changes.edits.source_edits import edited_source
from diagnose.changes.save_in_background import NO_OVERLAP

HEAD = """import os, shutil, subprocess
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
LOOP = """for step in range(9):
    loss = model(torch.ones(2)).sum()
    loss.backward()
    optimizer.step()
    torch.save(model.state_dict(), "model.pt")
"""


def lines_of(source):
    """Return the lines of the edited script after the saver is made, and why it was not edited."""
    tree, why = with_background_saver(cst.parse_module(source), "cpu")
    return tree.code.partition("_saver = BackgroundSaver()\n")[2], why


def waited(*lines, loop=LOOP, indent=4):
    """Return which of the lines wait when they follow the loop, or stand in it if they are indented."""
    code, why = lines_of(HEAD + loop + "".join(" " * indent + line + "\n" for line in lines))
    assert why == ""
    found = code.splitlines()
    return [line for line in lines if found[found.index(" " * indent + line) - 1].strip() == "_saver.wait()"]


def test_a_saver_is_made_after_the_imports_and_waited_for_at_the_end():
    source = (
        '"""Trains."""\nimport torch\n\nfor step in range(9):\n    torch.save(state, path)  # each\n    x.backward()\n'
    )
    after, why = edited_source(source, "train.py", "save-in-background", {})
    assert why == ""
    assert after == (
        '"""Trains."""\nimport torch\nfrom diagnose.kernels.saving import BackgroundSaver\n'
        "_saver = BackgroundSaver()\n\n"
        "for step in range(9):\n    _saver.save(state, path)  # each\n    x.backward()\n_saver.wait()\n"
    )
    compile(after, "train.py", "exec")


@pytest.mark.parametrize(
    "line",
    [
        'subprocess.run(["cp", "model.pt", "uploaded.pt"], check=True)',
        'os.system("cp model.pt best.pt")',
        'os.fsync(open("model.pt").fileno())',
        'print(os.path.getsize("model.pt"))',
        'wandb.save("model.pt")',
        'api.upload_file(path_or_fileobj="model.pt")',
        "queue.put('model.pt')",
        "sizes = list(map(os.path.getsize, paths))",
        'x = torch.load("model.pt")',
        'model.load_state_dict(torch.load("model.pt"))',
        "torch.distributed.barrier()",
        'p.replace("q")',
        "model.push_to_hub('me/model')",
        "import upload",
        "assert check()",
        "for line in open('model.pt', 'rb'): pass",
        "with zipfile.ZipFile('model.pt') as archive: pass",
        "if os.path.exists('model.pt'): pass",
        "mp.Process(target=evaluate).start()",
        "sorted(paths, key=lambda path: os.stat(path).st_size)",
        "list(map(handler, paths))",
        "newest = max(paths, key=by_age)",
        "later = functools.partial(upload, 'model.pt')",
        "os._exit(0)",
    ],
)
def test_what_may_use_the_file_waits(line):
    assert waited(line, indent=0) == [line]


def test_what_cannot_use_the_file_does_not_wait():
    lines = (
        "print(f'{step}: {loss.item():.3f}')",
        "logging.info('step %d', step)",
        "for x, y in enumerate(loader): total += model(x.to('cuda')).mean()",
        "with torch.no_grad(): y = model(torch.ones(2))",
        "losses = [float(loss)]; losses.append(loss.item())",
        "began = time.perf_counter()",
        "optimizer.zero_grad(set_to_none=True)",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "name = os.path.join(folder, f'{step}.pt')",
        "wandb.log({'loss': loss.item()})",
        "if step % 10 == 0 and rank == 0: print(len(losses))",
        "texts = list(map(str, sorted(losses, key=lambda value: -value)))",
        "raise SystemExit(main)",
    )
    assert waited(*lines, loop="import logging, time, wandb\n" + LOOP) == []


def test_functions_of_the_file_are_followed():
    functions = (
        "def upload(path):\n    subprocess.run(['cp', path, 'there'])\n"
        "def log(value):\n    print(value)\n"
        "def evaluate(x):\n    log(model(x).sum().item())\n"
    )
    after, why = lines_of(HEAD + functions + LOOP + "    evaluate(torch.ones(2))\n    upload('model.pt')\n")
    assert why == ""
    assert "    _saver.wait()\n    subprocess.run(" in after
    assert after.count("_saver.wait()") == 1, "the loop ends with a file that is there"


EPOCHS = """def train(net, loader, criterion):
    for x, y in loader:
        loss = criterion(net(x), y)
        loss.backward()

for epoch in range(9):
    train(model, loader, torch.nn.CrossEntropyLoss())
    torch.save(model.state_dict(), "model.pt")
"""


def test_a_loss_that_is_passed_to_a_function_does_not_wait():
    loader = "loader = torch.utils.data.DataLoader(data)\n"
    after, why = lines_of(HEAD + loader + EPOCHS)
    assert (why, after.count("_saver.wait()")) == ("", 1)
    unknown = EPOCHS.replace("torch.nn.CrossEntropyLoss()", "my_loss")
    assert lines_of(HEAD + loader + unknown)[1] == NO_OVERLAP, "the file is waited for before the first step"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("if best:\n    # kept\n    shutil.copyfile(p, 'best.pt')  # the best\n",
         "if best:\n    # kept\n    _saver.wait()\n    shutil.copyfile(p, 'best.pt')  # the best\n"),
        ("if best: shutil.copy(p, q)\n", "if best: _saver.wait(); shutil.copy(p, q)\n"),
        ("if a:\n    pass\nelif f():\n    pass\n", "_saver.wait()\nif a:\n    pass\nelif f():\n    pass\n"),
        ("while f():\n    pass\n", "_saver.wait()\nwhile f():\n    pass\n"),
        ("try:\n    y = x + 1\nexcept KeyError:\n    f()\n",
         "try:\n    y = x + 1\nexcept KeyError:\n    _saver.wait()\n    f()\n"),
    ],
)  # fmt: skip
def test_where_a_wait_stands(before, after):
    assert lines_of(HEAD + LOOP + before)[0].partition('"model.pt")\n')[2].removesuffix("_saver.wait()\n") == after


def test_a_folder_that_is_removed_waits_at_the_end_of_its_block():
    loop = "with tempfile.TemporaryDirectory() as folder:\n" + "".join(f"    {line}\n" for line in LOOP.splitlines())
    assert lines_of(HEAD + loop)[0].endswith('        _saver.save(model.state_dict(), "model.pt")\n    _saver.wait()\n')


def test_what_runs_before_the_first_save_does_not_wait():
    source = HEAD + "x = torch.load(p)\ndef f():\n    torch.load(p)\nimport sys\nf()\n" + LOOP
    assert lines_of(source)[0].count("_saver.wait()") == 1


def test_a_function_that_others_call_leaves_no_file_to_write():
    loop = "".join(f"    {line}\n" for line in LOOP.splitlines())
    after, _ = lines_of(f"import torch\nmodel = optimizer = None\ndef train():\n{loop}    if x:\n        return 1\n")
    assert after.endswith("    if x:\n        _saver.wait()\n        return 1\n    _saver.wait()\n")


@pytest.mark.parametrize("buffer", ["io.BytesIO()", "open('x', 'wb')"])
def test_what_saves_into_a_buffer_stays(buffer):
    source = f"{HEAD}buffer = {buffer}\n{LOOP}torch.save(model, buffer)\n"
    assert "\ntorch.save(model, buffer)\n" in lines_of(source)[0]
    assert lines_of(f"import io, torch\nb = {buffer}\ntorch.save(1, b)\n")[1].startswith(
        "the script calls no torch.save"
    )


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("torch.save(s, p, pickle_protocol=4)\n", "its torch.save has options"),
        ("model.save(p)\n", "the script calls no torch.save to a path itself"),
        ("def f():\n    torch.save(s, p)\nupload(f())\n", "one statement saves, and then calls"),
        ("torch.save(s, p); upload(p)\n", "one statement saves, and then calls"),
        ("while check(p):\n    torch.save(s, p)\n    x.backward()\n", "it may use files in the head of a loop"),
        ("torch.save(s, p)\nsubprocess.run(c)\n", NO_OVERLAP),
        ("torch.save(s, p)\nprint('saved')\nupload(p)\n", NO_OVERLAP),
        ("def save(s, p):\n    torch.save(s, p)\n", NO_OVERLAP),
        ("class Hook:\n    def on_end(self):\n        torch.save(s, p)\nrun(Hook())\nloss.backward()\n", NO_OVERLAP),
        ("def gen():\n    torch.save(s, p)\n    yield 1\nfor x in gen():\n    loss.backward()\n", NO_OVERLAP),
        ("_saver = 1\ntorch.save(s, p)\nx.backward()\n", "the script has a name _saver itself"),
    ],
)
def test_what_is_left_to_its_author(source, why):
    tree, reason = with_background_saver(cst.parse_module("import torch\n" + source), "cpu")
    assert tree.code == "import torch\n" + source
    assert reason.startswith(why)


LIKE_IMAGENET = """
import os, shutil, tempfile
import torch

def save_checkpoint(state, is_best, folder):
    torch.save(state, os.path.join(folder, "checkpoint.pt"))
    if is_best:
        shutil.copyfile(os.path.join(folder, "checkpoint.pt"), os.path.join(folder, "best.pt"))

with tempfile.TemporaryDirectory() as folder:
    for epoch in range(4):
        weights = torch.zeros(1 << 22)
        save_checkpoint({"epoch": epoch, "weights": weights}, epoch != 3, folder)
    print(*(torch.load(os.path.join(folder, f"{name}.pt"))["epoch"] for name in ("best", "checkpoint")))
    torch.save(torch.zeros(1 << 22), os.path.join(folder, "last.pt"))
"""
UPLOADS = """
import subprocess
import torch

def upload(path):
    subprocess.run(["cp", path, "uploaded.pt"], check=True)

for step in range(5):
    torch.save({"step": step, "weights": torch.zeros(1 << 22)}, "model.pt")
    total = torch.ones(()) + step
    upload("model.pt")
    assert torch.load("uploaded.pt")["step"] == step
print(open("model.pt", "rb").read(2) == b"PK", len(list(__import__("pathlib").Path().glob(".*"))))
"""


@pytest.mark.parametrize(("source", "printed"), [(LIKE_IMAGENET, "2 3\n"), (UPLOADS, "True 0\n")])
def test_an_edited_script_does_with_its_files_what_it_did_before(source, printed, tmp_path):
    text, why = edited_source(source, "train.py", "save-in-background", {})
    assert why == ""
    (tmp_path / "train.py").write_text(text)
    run = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, printed, "")
