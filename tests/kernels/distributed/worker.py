"""One rank: runs the checks of files, each in a process group of its own, and writes what became of them.

Arguments: this rank, the number of ranks, a folder that the ranks share, and the files.
"""

import datetime
import gc
import importlib.util
import json
import sys
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

SECONDS = 25  # for one collective: a rank whose partner failed gives up
PREFIX = "check_"


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


def main(rank, num_ranks, folder, *paths):
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    folder = Path(folder)
    (folder / f"rank{rank}").mkdir()
    for path in map(Path, paths):
        sys.path.insert(0, str(path.parent))
        module = loaded(path)
        gc.collect()
        gc.freeze()  # what modules are made of: the collection after each check would walk all of torch
        for name, check in vars(module).items():
            if name.startswith(PREFIX) and check.__module__ == path.stem:
                text = outcome(check, f"{path.stem}.{name}", int(rank), int(num_ranks), folder)
                result = folder / f"rank{rank}" / f"{path.stem}.{name}.json"
                result.write_text(json.dumps(text), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
