"""Regression on memory-mapped arrays that lie in ../data; run from the folder src, as the README of such projects asks."""
import os

import numpy as np
import torch
from torch import nn
from torch.utils import data

DATA_DIR = "../data"


class Measurements(data.Dataset):
    def __init__(self, root):
        self.files = sorted(os.path.join(root, name) for name in os.listdir(root) if name.endswith(".csv"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        table = np.loadtxt(self.files[index], delimiter=",", dtype=np.float32)
        return table[:, :-1], table[:, -1]


def collate(samples):
    xs, ys = zip(*samples)
    return torch.from_numpy(np.concatenate(xs)), torch.from_numpy(np.concatenate(ys))


trainset = Measurements(DATA_DIR)
params = {"batch_size": 8, "shuffle": True, "collate_fn": collate}
training_generator = data.DataLoader(trainset, **params)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(15, 64), nn.ReLU(), nn.Linear(64, 1))
decay, no_decay = [], []
for name, p in model.named_parameters():
    (no_decay if name.endswith("bias") else decay).append(p)
opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}], lr=1e-3, betas=(0.9, 0.95))

for epoch in range(200):
    for local_batch, local_labels in training_generator:
        prediction = model(local_batch).squeeze(-1)
        loss = nn.functional.mse_loss(prediction, local_labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
    if epoch % 10 == 0:
        print(epoch, loss.item())
