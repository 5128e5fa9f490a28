"""Saves the whole state every third step, so that nothing is lost when the machine goes away."""
import os
import tempfile

import torch
import torch.nn as nn


def save_checkpoint(path, model, optimizer, step):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)


def train(steps, save_every, folder):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20_000, 128), nn.Flatten(), nn.Linear(128 * 16, 256), nn.ReLU(), nn.Linear(256, 50))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        tokens = torch.randint(0, 20_000, (32, 16))
        target = torch.randint(0, 50, (32,))
        loss = nn.functional.cross_entropy(model(tokens), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % save_every == 0:
            save_checkpoint(os.path.join(folder, "last.pt"), model, optimizer, step)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        train(steps=2000, save_every=3, folder=tmp)
