"""A package run with -m: it prints how it was started, then trains."""

import sys

early = "torch" in sys.modules  # then what a script sets in os.environ before its import would be lost

import torch

from package import loop

print("started", __name__, sys.argv[1:], sys.path[0], early)
torch.set_num_threads(1)
loop.train()
