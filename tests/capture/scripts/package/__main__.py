"""A package run with -m: it prints how it was started, then trains."""

import os
import sys

os.environ["OMP_NUM_THREADS"] = "3"  # counts only while torch is not imported yet
import torch  # noqa: E402

from package import loop  # noqa: E402

print("started", __name__, sys.argv[1:], sys.path[0])
print("threads", torch.get_num_threads())
torch.set_num_threads(1)
loop.train()
