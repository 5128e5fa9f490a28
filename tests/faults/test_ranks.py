"""One of two ranks dies: the launcher fails, no process stays, and nothing half written is taken for a capture."""

import json
import sys

import pytest

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.full]

LAUNCHER = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "diagnose")
RANKS = """\
import os
import torch
torch.distributed.init_process_group('gloo')
rank = torch.distributed.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100_000):
    if step == {step} and rank == 1:
        {death}
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
DEATHS = {"raises": ("raise ValueError('planted')", 3), "is killed": ("os.kill(os.getpid(), 9)", 14)}


def traced(faulty, name):
    death, step = DEATHS[name]
    faulty.script(RANKS.format(death=death, step=step))
    return faulty.trace(launcher=LAUNCHER)


@pytest.fixture(scope="module")
def endings(tmp_path_factory, faulty_in, once_each):
    return once_each(lambda name: traced(faulty_in(tmp_path_factory.mktemp("ranks")), name))


@pytest.mark.parametrize("name", DEATHS)
def test_the_launcher_fails_and_nothing_stays(endings, name):
    ended = endings[name]
    assert ended.code != 0
    assert ended.left == []
    assert "diagnose itself" not in ended.stderr


@pytest.mark.parametrize("name", DEATHS)
def test_descriptions_name_files_that_are_there(endings, name):
    folder = endings[name].folder / "capture"
    for path in folder.glob("capture.rank*.json"):
        info = json.loads(path.read_text())
        for file in ("light_file", "attribution_file", "samples_file"):
            assert not info[file] or (folder / info[file]).is_file()
