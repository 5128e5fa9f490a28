"""Rows of a table, one tensor lookup each: the loader's cost is its overhead, and a worker's would be larger."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, features, labels):
        self.features = features
        self.labels = labels

    def __len__(self):
        return len(self.features)

    def __getitem__(self, i):
        return self.features[i], self.labels[i]


torch.manual_seed(0)
train_data = Rows(torch.randn(200_000, 20), torch.randint(0, 2, (200_000,)))
batches = DataLoader(train_data, batch_size=1024, shuffle=True)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(20):
    for features, labels in batches:
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
