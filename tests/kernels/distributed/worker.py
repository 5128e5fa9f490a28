"""Runs the checks of files on several ranks, each check in a process group of its own, and writes what became of it.

Arguments: a folder that the ranks share, and JSON: the names of checks by file, by the number of ranks. All is imported
once, before the ranks are forked: importing torch takes longer than most checks.
"""

import datetime
import gc
import importlib.util
import json
import os
import sys
import traceback
import warnings
from pathlib import Path

import torch
import torch._dynamo  # the first optimizer of every rank would import it
import torch.distributed as dist

SECONDS = 25  # for one collective: a rank whose partner failed gives up


def loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outcome(check, name, rank, num_ranks, folder):
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / name}",
        rank=rank,
        world_size=num_ranks,
        timeout=datetime.timedelta(seconds=SECONDS),
    )
    torch.manual_seed(0)
    try:
        check()
        dist.barrier()
    except BaseException:
        return traceback.format_exc()
    finally:
        gc.collect()  # gloo aborts where models outlive it
        dist.destroy_process_group()
    return ""


def run(rank, num_ranks, folder, checks):
    (folder / f"rank{rank}").mkdir()
    for name, check in checks.items():
        text = outcome(check, name, rank, num_ranks, folder)
        (folder / f"rank{rank}" / f"{name}.json").write_text(json.dumps(text), encoding="utf-8")


def forked(rank, num_ranks, folder, checks):
    """Run the checks in a process of its own, which prints into a file of its own; return its number."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with (folder / f"log{rank}").open("wb") as log:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
        run(rank, num_ranks, folder, checks)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def checks_of(names_by_file):
    """Return the functions by the name of their file and their own."""
    modules = {loaded(Path(path)): names for path, names in names_by_file.items()}
    return {f"{module.__name__}.{name}": getattr(module, name) for module, names in modules.items() for name in names}


def main(folder, asked):
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    sys.path.insert(0, str(Path(__file__).parent))
    checks = {int(num): checks_of(names) for num, names in json.loads(asked).items()}
    gc.collect()
    gc.freeze()  # what modules are made of: the collection after each check would walk all of torch
    for num_ranks, wanted in checks.items():
        shared = Path(folder) / f"{num_ranks}"
        shared.mkdir()
        ranks = [forked(rank, num_ranks, shared, wanted) for rank in range(num_ranks)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
        (shared / "codes.json").write_text(json.dumps(codes), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
