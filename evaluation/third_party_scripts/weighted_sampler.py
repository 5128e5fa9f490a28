"""Imbalanced classes drawn by a WeightedRandomSampler; samples have different lengths and a collate_fn pads them."""
import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler


class Signals(Dataset):
    def __init__(self, n=900):
        rng = np.random.default_rng(11)
        self.labels = (rng.random(n) < 0.1).astype(int)
        self.lengths = rng.integers(40, 80, n)
        self.seeds = rng.integers(0, 2**31, n)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        rng = np.random.default_rng(self.seeds[i])
        signal = rng.standard_normal((self.lengths[i], 8))
        smooth = smoothed(signal)
        return torch.tensor(smooth, dtype=torch.float32), int(self.labels[i])


def smoothed(signal, width=5):
    out = []
    for k in range(len(signal)):
        out.append(np.median(signal[max(0, k - width) : k + 1], axis=0))
    return np.stack(out)


def pad_batch(batch):
    signals, labels = zip(*batch)
    return pad_sequence(signals, batch_first=True), torch.tensor(labels)


train_dataset = Signals()
class_count = np.bincount(train_dataset.labels)
weights = 1.0 / class_count[train_dataset.labels]
train_sampler = WeightedRandomSampler(torch.as_tensor(weights), num_samples=len(weights), replacement=True)
train_dl = DataLoader(
    train_dataset,
    batch_size=12,
    sampler=train_sampler,
    collate_fn=pad_batch,
    drop_last=True,
)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(8, 16, batch_first=True)
        self.out = nn.Linear(16, 2)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


def run():
    torch.manual_seed(0)
    model = Recurrent()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=1e-4)
    for epoch in range(20):
        for xb, yb in train_dl:
            loss = nn.functional.cross_entropy(model(xb), yb)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


run()
