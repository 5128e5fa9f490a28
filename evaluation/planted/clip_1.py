"""Image/text contrastive training with symmetric cross-entropy."""
import argparse

import torch
from torch import nn
import torch.nn.functional as F


class ImageTower(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, 192), nn.GELU(), nn.LayerNorm(192), nn.Linear(192, dim))

    def forward(self, x):
        return self.net(x)


class TextTower(nn.Module):
    def __init__(self, dim, vocab=500):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab, 128, mode="mean")
        self.net = nn.Sequential(nn.Linear(128, 192), nn.GELU(), nn.Linear(192, dim))

    def forward(self, ids):
        return self.net(self.bag(ids))


class SymmetricNCE(nn.Module):
    def __init__(self, init_temp=0.07, dtype=torch.float64):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(1 / init_temp).log())
        self.dtype = dtype

    def forward(self, a, b):
        a = F.normalize(a, dim=-1).to(self.dtype)
        b = F.normalize(b, dim=-1).to(self.dtype)
        logits = self.log_scale.exp().clamp(max=100) * (a @ b.t())
        target = torch.arange(len(a))
        loss = 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target))
        return loss.float()


class Pairs:
    def __init__(self, n=3000):
        self.tokens = torch.randint(0, 500, (n, 12))
        code = torch.randn(500, 256) * 0.6
        self.images = code[self.tokens].mean(1) + 0.2 * torch.randn(n, 256)

    def batch(self, k):
        i = torch.randperm(len(self.tokens))[:k]
        return self.images[i], self.tokens[i]


def train(steps, loss_dtype):
    torch.manual_seed(37)
    pairs = Pairs()
    image, text = ImageTower(96), TextTower(96)
    nce = SymmetricNCE(dtype=loss_dtype)
    params = [p for m in (image, text, nce) for p in m.parameters()]
    opt = torch.optim.AdamW(params, lr=1e-3, weight_decay=0.02)
    for step in range(steps):
        imgs, toks = pairs.batch(640)
        loss = nce(image(imgs), text(toks))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        if step % 5 == 0 or step == steps - 1:
            print(f"step {step} nce {loss.item():.5f} scale {nce.log_scale.exp().item():.4f}")


def cli():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    return ap.parse_args()


if __name__ == "__main__":
    opts = cli()
    train(opts.steps, torch.float32 if opts.fixed else torch.float64)
