"""DistributedDataParallel over two processes that torch.multiprocessing starts; rank 1 has the longer sequences."""
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def free_port():
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]


def setup(rank, world_size, port):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def cleanup():
    dist.destroy_process_group()


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(256, 512)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(512, 256)

    def forward(self, x):
        for _ in range(3):
            x = self.net2(self.relu(self.net1(x)))
        return x


def demo_basic(rank, world_size, port):
    setup(rank, world_size, port)
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    ddp_model = DDP(ToyModel())
    loss_fn = nn.MSELoss()
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.001)
    rows = 64 if rank == 0 else 512
    for step in range(3000):
        optimizer.zero_grad()
        outputs = ddp_model(torch.randn(rows, 256))
        labels = torch.randn(rows, 256)
        loss_fn(outputs, labels).backward()
        optimizer.step()
    cleanup()


def run_demo(demo_fn, world_size):
    mp.spawn(demo_fn, args=(world_size, free_port()), nprocs=world_size, join=True)


if __name__ == "__main__":
    run_demo(demo_basic, 2)
