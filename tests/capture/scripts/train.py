"""A plain loop: train.py [STEPS] [EVENT AT_STEP]."""

import os
import resource
import signal
import sys

import torch

EVENTS = {"int": signal.SIGINT, "term": signal.SIGTERM, "kill": signal.SIGKILL}

torch.set_num_threads(1)
num_steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
event, when = (sys.argv[2], int(sys.argv[3])) if len(sys.argv) > 3 else ("", -1)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
for step in range(num_steps):
    if step == when:
        if event == "raise":
            raise ValueError("planted")
        if event == "exit":
            sys.exit(3)
        if event == "full":  # no file grows beyond this: a disk that is full, for all but small files
            resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, resource.RLIM_INFINITY))
        if event == "_exit":
            os._exit(7)
        if event == "fork" and os.fork() == 0:
            continue  # the child trains on as well
        if event in EVENTS:
            os.kill(os.getpid(), EVENTS[event])
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
print("finished", num_steps)
