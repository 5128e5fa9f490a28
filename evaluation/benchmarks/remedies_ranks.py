"""What remedies for several ranks give on this machine's CPUs: the bytes of a rank, and steps of unequal ranks.

    scripts/python evaluation/benchmarks/remedies_ranks.py [--quick]

Two ranks talk over gloo on one host. Bytes are those of any link and device. A rank that is slower is a stand-in that
sleeps for each sample, so that the row shows what the balance is for and not what else runs on this machine.
"""

from __future__ import annotations

import argparse
import copy
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from rows import Row, in_turns, missed, one_thread, table, timed
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from diagnose.kernels.distributed.ddp_arguments import advise
from diagnose.kernels.distributed.fully_sharded import fully_sharded
from diagnose.kernels.distributed.launch import launched
from diagnose.kernels.distributed.memory_estimate import estimate_memory
from diagnose.kernels.distributed.mesh import build_mesh
from diagnose.kernels.distributed.pipelined import Pipeline
from diagnose.kernels.distributed.tensor_parallel import Side, tensor_parallel
from diagnose.kernels.distributed.uneven import Balance, LossWeights, UnevenBatches
from diagnose.kernels.distributed.zero import zero_optimizer

RANKS = 2
WIDTH, DEPTH, BATCH = 256, 6, 32
SLOW_S = (0.0005, 0.0015)  # of a sample, by rank


def network() -> nn.Sequential:
    """Return the same layers on every rank."""
    torch.manual_seed(0)
    hidden = [part for _ in range(DEPTH) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))


def step(model: Callable[[Tensor], Tensor], optimizer: torch.optim.Optimizer) -> None:
    """Train once, so that the optimizer has its state."""
    nn.functional.cross_entropy(model(torch.ones(BATCH, WIDTH)), torch.zeros(BATCH, dtype=torch.long)).backward()
    optimizer.step()
    optimizer.zero_grad()


def local(tensors: Iterable[Any]) -> int:
    """Return the bytes of this rank's parts, the most of all ranks."""
    parts = [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
    size = torch.tensor(sum(t.numel() * t.element_size() for t in parts))
    dist.all_reduce(size, dist.ReduceOp.MAX)
    return int(size)


def state_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the optimizer's moments."""
    return [v for entry in optimizer.state.values() for v in entry.values() if isinstance(v, Tensor) and v.dim()]


def memory(_quick: bool) -> Iterator[Row]:
    """Count the bytes of a rank with everything on it and with its share, and how near the estimate is."""
    ddp = DistributedDataParallel(network())
    whole = torch.optim.AdamW(ddp.parameters())
    step(ddp, whole)
    parameters, state = local(ddp.parameters()), local(state_of(whole))
    split: Any = zero_optimizer(torch.optim.AdamW, ddp.parameters(), lr=1e-3)
    step(ddp, split)
    yield _bytes("`zero`, the optimizer's state of a rank", state, (own := local(state_of(split.optim))))
    sharded = fully_sharded(network(), build_mesh("cpu", {"shard": RANKS}), blocks=nn.Linear)
    optimizer = torch.optim.AdamW(sharded.parameters())
    step(sharded, optimizer)
    all_of = local(sharded.parameters()) + local(state_of(optimizer))
    yield _bytes("`fully_sharded`, parameters and state of a rank", parameters + state, all_of)
    wide = network()
    sides: dict[str, Side] = {"0": "column", "2": "row", "4": "column", "6": "row"}
    sample = (torch.ones(1, WIDTH),)
    tensor_parallel(wide, build_mesh("cpu", {"tensor": RANKS}), sides, sample=sample, data_ranks=1)
    yield _bytes("`tensor_parallel`, parameters of a rank, 4 of 8 layers", parameters, local(wide.parameters()))
    pipeline = Pipeline(list(network()), nn.functional.cross_entropy, num_micro_batches=4)
    yield _bytes("`pipelined`, parameters of a rank", parameters, local(pipeline.parameters()))
    plan = estimate_memory(network(), "zero", num_ranks=RANKS, optimizer=torch.optim.AdamW)
    far = abs(plan.parameters + plan.optimizer_state - parameters - own) / (parameters + own)
    predicted, held = plan.parameters + plan.optimizer_state, parameters + own
    yield Row("`memory_estimate`, bytes of a rank under ZeRO: predicted, held", _mb(predicted), _mb(held),
              f"{far:.1%} apart", far < 0.01)  # fmt: skip


def arguments(quick: bool) -> Iterator[Row]:
    """Time steps with arguments of DDP that the model does not need, and with those that `advise` returns."""
    layers = [part for _ in range(20) for part in (nn.Linear(64, 64), nn.BatchNorm1d(64))]
    given = DistributedDataParallel(nn.Sequential(*layers), find_unused_parameters=True)
    batches = [torch.randn(BATCH, 64) for _ in range(4)]

    def train(ddp: DistributedDataParallel) -> Callable[[Tensor], None]:
        return lambda batch: ddp(batch).square().mean().backward()

    advice = advise(given, train(given), batches)
    advised = DistributedDataParallel(copy.deepcopy(given.module), **advice.arguments())
    runs = [timed(lambda ddp=ddp: [train(ddp)(batch) for batch in batches]) for ddp in (given, advised)]
    before, after = in_turns(runs, 5 if quick else 21, dropped=2)
    yield Row("`ddp_arguments`, a step with find_unused_parameters, and as advised", f"{before / 4 * 1e3:.2f} ms",
              f"{after / 4 * 1e3:.2f} ms", f"{before / after:.2f} ×")  # fmt: skip


class Unequal(nn.Linear):
    """A layer that takes longer for each sample on one rank than on the other."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output after this rank's time for its samples."""
        time.sleep(SLOW_S[dist.get_rank()] * len(x))
        return super().forward(x)


def balance(quick: bool) -> Iterator[Row]:
    """Time steps of two ranks of which one needs three times as long for a sample."""
    medians = []
    for balances in (False, True):
        ddp = DistributedDataParallel(Unequal(8, 1))
        sampler = UnevenBatches(10_000, BATCH * RANKS)
        weights, moves = LossWeights(ddp), Balance(ddp, sampler, every=4)
        taken = []
        for number, indices in enumerate(sampler):
            start = time.perf_counter()
            factor = weights.factor(len(indices))
            (ddp(torch.ones(len(indices), 8)).square().mean() * factor).backward()
            taken.append(time.perf_counter() - start)
            if balances:
                moves.after_step(len(indices))
            if number == (40 if quick else 80):
                break
        moves.close()
        medians.append(statistics.median(taken[len(taken) // 2 :]))
    before, after = medians
    yield Row("`uneven`, a step of ranks of which one is three times as slow", f"{before * 1e3:.1f} ms",
              f"{after * 1e3:.1f} ms", f"{before / after:.2f} ×", before / after > 1.4)  # fmt: skip


def _bytes(what: str, before: int, after: int) -> Row:
    return Row(what, _mb(before), _mb(after), f"1/{before / after:.1f}")


def _mb(size: int) -> str:
    return f"{size / 1e6:.2f} MB"


PARTS: tuple[Callable[[bool], Iterator[Row]], ...] = (memory, arguments, balance)


def main() -> int:
    """Start the ranks, or measure as one of them; the first prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run([*command, __file__, *sys.argv[1:]], env=env, check=False).returncode
    with one_thread(), launched(backend="gloo", timeout_s=300) as rank:
        rows = [row for part in PARTS for row in part(options.quick)]
        if rank.rank == 0:
            print(f"torch {torch.__version__}, Python {platform.python_version()}, two ranks.\n\n{table(rows)}\n")
    return int(missed(rows))


if __name__ == "__main__":
    sys.exit(main())
