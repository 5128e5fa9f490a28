"""AdamW with two parameter groups and the loop implementation asked for, as old configurations still do."""
import torch
from torch import nn


def build_optimizer(model, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1):
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    optim_groups = [
        {"params": decay, "weight_decay": weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        optim_groups,
        lr=lr,
        betas=betas,
        foreach=False,  # saw higher memory with it once
    )


class Tower(nn.Module):
    def __init__(self, width=24, depth=120):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return x


def main():
    torch.manual_seed(0)
    model = Tower()
    optimizer = build_optimizer(model)
    inputs, targets = torch.randn(8, 24), torch.randn(8, 24)
    for step in range(3000):
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


main()
