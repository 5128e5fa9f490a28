"""One rank: runs the checks of a file, each in a process group of its own, and writes what became of them.

Arguments: the file, this rank, the number of ranks, and a folder that the ranks share.
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


def main(path, rank, num_ranks, folder):
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    sys.path.insert(0, str(Path(path).parent))
    checks = {n: c for n, c in vars(loaded(Path(path))).items() if n.startswith(PREFIX)}
    (Path(folder) / f"rank{rank}").mkdir()
    for name, check in checks.items():
        text = outcome(check, name, int(rank), int(num_ranks), Path(folder))
        (Path(folder) / f"rank{rank}" / f"{name}.json").write_text(json.dumps(text), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
