"""Trains on a thread and keeps the result on the main one: thread.py HOW STEPS."""

import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

torch.set_num_threads(1)
how, num_steps = sys.argv[1], int(sys.argv[2])
done = []


def train():
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(num_steps):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
        done[:] = [step + 1]


if how == "handler":
    signal.signal(signal.SIGTERM, lambda *_: print("the script's own handler"))
if how == "pool":
    with ThreadPoolExecutor() as pool:
        pool.submit(train).result()
else:
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
print("saved after", *done)
