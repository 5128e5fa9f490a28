"""Per-class metrics in every step, each number read from its tensor on its own."""
import torch
import torch.nn as nn
import torch.nn.functional as F

CLASSES = 80
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(100, 64), nn.ReLU(), nn.Linear(64, CLASSES))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
X = torch.randn(20_000, 100)
Y = torch.randint(0, CLASSES, (20_000,))


class Meter:
    def __init__(self):
        self.hits = [0.0] * CLASSES
        self.seen = [0.0] * CLASSES

    def update(self, pred, target):
        for c in range(CLASSES):
            self.hits[c] += ((pred == c) & (target == c)).sum().item()
            self.seen[c] += (target == c).sum().item()


meter = Meter()
for step in range(4000):
    idx = torch.randint(0, len(X), (128,))
    logits = model(X[idx])
    loss = F.cross_entropy(logits, Y[idx])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    meter.update(logits.argmax(1), Y[idx])
    if step % 200 == 0:
        print(step, loss.item(), sum(meter.hits) / sum(meter.seen))
