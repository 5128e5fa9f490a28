"""A small step that computes one thing again and again; docs/report.md shows its data flow.

``diagnose trace --capture capture small_step.py`` leaves capture/rank0.dataflow.json.gz. The copy of that file beside
this script, small_step.dataflow.json.gz, is what ``scripts/pictures`` draws.
"""

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, CLASSES = 512, 512

model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
classes = torch.randn(CLASSES, WIDTH)

for _ in range(400):
    x, y = torch.randn(256, WIDTH), torch.randint(CLASSES, (256,))
    logits = model(x)
    overlap = F.normalize(classes) @ F.normalize(classes).T
    loss = F.cross_entropy(logits, y, label_smoothing=0.1) + (overlap * 1e-6).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
