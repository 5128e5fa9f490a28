"""Steps too large or too long for a bound: bounds.py frames | operators | endless."""

import sys
import time

import torch

torch.set_num_threads(1)
kind = sys.argv[1]
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def leaf(value):
    return value + 1


for step in range(100):
    if kind == "frames":
        for number in range(60_000):
            leaf(number)
    if kind == "operators":
        ones = torch.ones(2)
        for _ in range(40_000):
            ones = ones + 1
    while kind == "endless" and step > 2:  # before anything could be recorded
        time.sleep(0.01)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
