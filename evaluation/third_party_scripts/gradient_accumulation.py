"""Text classification, four micro-batches to an optimizer step; every text is cleaned and hashed when it is read."""
import re

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCAB = 5000
ACCUM_STEPS = 4
WORDS = [f"w{i}" for i in range(3000)]


class Reviews(Dataset):
    def __init__(self, n, seed=0):
        rng = np.random.default_rng(seed)
        self.texts = [" ".join(rng.choice(WORDS, 220)) + "!!  <br/>" for _ in range(n)]
        self.labels = rng.integers(0, 2, n)

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        text = self.texts[i].lower()
        tokens = [hash(re.sub(r"[^a-z0-9]", "", word)) % VOCAB for word in text.split()]
        tokens = (tokens + [0] * 256)[:256]
        return torch.tensor(tokens), torch.tensor(self.labels[i])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 64)
        self.fc = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2))

    def forward(self, x):
        return self.fc(self.embed(x).mean(1))


def main():
    torch.manual_seed(1)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))
    train_set = Reviews(1500)
    loader = DataLoader(train_set, batch_size=16, shuffle=True, drop_last=True)
    step = 0
    for epoch in range(30):
        for i, (tokens, labels) in enumerate(loader):
            loss = F.cross_entropy(model(tokens), labels) / ACCUM_STEPS
            loss.backward()
            if (i + 1) % ACCUM_STEPS == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                step += 1
        print(f"epoch {epoch} step {step} loss {loss.item() * ACCUM_STEPS:.3f}")


if __name__ == "__main__":
    main()
