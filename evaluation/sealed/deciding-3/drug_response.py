"""Drug response (ln IC50) from cell-line expression and compound fingerprints; compiled model."""
import argparse
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

GENES, BITS = 3500, 512


class Batch(NamedTuple):
    expr: torch.Tensor
    bits: torch.Tensor
    y: torch.Tensor


class ResponseScreen:
    def __init__(self, lines=500, drugs=120, seed=0):
        rng = np.random.default_rng(seed)
        factors = rng.standard_normal((lines, 20)).astype(np.float32)
        self.expr = factors @ rng.standard_normal((20, GENES)).astype(np.float32)
        self.expr += rng.standard_normal(self.expr.shape).astype(np.float32)
        self.expr /= self.expr.std(0)
        self.bits = (rng.random((drugs, BITS)) < 0.08).astype(np.float32)
        target = self.bits @ rng.standard_normal((BITS, 20)).astype(np.float32) / 6
        self.y = (factors @ target.T / 4 + 0.3 * rng.standard_normal((lines, drugs))).astype(np.float32)
        self.rng = rng

    def draw(self, n):
        i = self.rng.integers(0, len(self.expr), n)
        j = self.rng.integers(0, len(self.bits), n)
        return self.to_batch(self.expr[i], self.bits[j], self.y[i, j])

    @staticmethod
    def to_batch(expr, bits, y):
        expr = torch.from_numpy(expr).requires_grad_()
        return Batch(expr, torch.from_numpy(bits), torch.from_numpy(y))


class Tower(nn.Module):
    def __init__(self, dims, drop):
        super().__init__()
        layers = []
        for a, b in zip(dims, dims[1:]):
            layers += [nn.Linear(a, b), nn.LayerNorm(b), nn.SiLU(), nn.Dropout(drop)]
        self.net = nn.Sequential(*layers)

    def forward(self, x):
        return self.net(x)


class ResponseModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = Tower([GENES, 256, 128], 0.1)
        self.drug = Tower([BITS, 192, 128], 0.1)
        self.mix = nn.Sequential(nn.Linear(3 * 128, 256), nn.SiLU(), nn.Linear(256, 1))

    def forward(self, expr, bits):
        c, d = self.cell(expr), self.drug(bits)
        return self.mix(torch.cat([c, d, c * d], -1)).squeeze(-1)


def top_genes(model, batch, k=5):
    """Gradient-times-input ranking of genes, averaged over the batch."""
    model.eval()
    pred = model(batch.expr, batch.bits)
    grad, = torch.autograd.grad(pred.sum(), batch.expr)
    model.train()
    return (grad * batch.expr).abs().mean(0).topk(k).indices.tolist()


def pearson(a, b):
    a, b = a - a.mean(), b - b.mean()
    return (a * b).sum() / (a.norm() * b.norm() + 1e-8)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=384)
    p.add_argument("--report", type=int, default=50)
    args = p.parse_args()
    torch.manual_seed(12)
    screen = ResponseScreen()
    probe = screen.draw(64)
    model = ResponseModel()
    fast = torch.compile(model, backend="aot_eager")
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.02, fused=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, max(args.steps, 1))
    for step in range(1, args.steps + 1):
        batch = screen.draw(args.batch)
        pred = fast(batch.expr, batch.bits)
        loss = nn.functional.mse_loss(pred, batch.y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 10 == 0:
            print(f"step {step} mse {loss.item():.4f} r {pearson(pred.detach(), batch.y).item():.3f}")
        if step % args.report == 0:
            print("  leading genes", top_genes(model, probe))


if __name__ == "__main__":
    main()
