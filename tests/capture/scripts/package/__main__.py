"""A package run with -m: it prints how it was started, then trains."""

import sys

import torch

from package import loop

print("started", __name__, sys.argv[1:], sys.path[0])
torch.set_num_threads(1)
loop.train()
