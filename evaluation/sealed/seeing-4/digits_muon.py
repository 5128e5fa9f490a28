"""MLP-Mixer on small grey images, trained with Muon for matrices and AdamW for the rest."""
import argparse
import dataclasses

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclasses.dataclass
class Config:
    steps: int = 60
    batch: int = 40
    dim: int = 112
    depth: int = 3
    patch: int = 4
    size: int = 32
    classes: int = 20
    lr_matrix: float = 0.02
    lr_other: float = 2e-3
    seed: int = 5


class Glyphs(torch.utils.data.Dataset):
    """Each class is a random stroke template; samples are shifted, scaled and noisy."""

    def __init__(self, n, cfg):
        rng = np.random.default_rng(cfg.seed)
        s = cfg.size
        templates = np.zeros((cfg.classes, s, s), np.float32)
        for c in range(cfg.classes):
            pts = rng.uniform(6, s - 6, (5, 2))
            for (y0, x0), (y1, x1) in zip(pts[:-1], pts[1:]):
                for a in np.linspace(0, 1, 40):
                    y, x = int(y0 + a * (y1 - y0)), int(x0 + a * (x1 - x0))
                    templates[c, y:y + 2, x:x + 2] = 1
        y = rng.integers(0, cfg.classes, n)
        shift = rng.integers(-3, 4, (n, 2))
        x = np.stack([np.roll(templates[k], tuple(d), (0, 1)) for k, d in zip(y, shift)])
        x += rng.normal(0, 0.25, x.shape).astype(np.float32)
        self.x, self.y = torch.from_numpy(x.astype(np.float32)).unsqueeze(1), torch.from_numpy(y)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class MixerBlock(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.tok_in, self.tok_out = nn.Linear(tokens, 2 * tokens), nn.Linear(2 * tokens, tokens)
        self.ch_in, self.ch_out = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        h = self.n1(x).transpose(1, 2)
        x = x + self.tok_out(F.gelu(self.tok_in(h))).transpose(1, 2)
        return x + self.ch_out(F.gelu(self.ch_in(self.n2(x))))


class Mixer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        tokens = (cfg.size // cfg.patch) ** 2
        self.embed = nn.Conv2d(1, cfg.dim, cfg.patch, cfg.patch)
        self.blocks = nn.Sequential(*[MixerBlock(tokens, cfg.dim) for _ in range(cfg.depth)])
        self.norm = nn.LayerNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, cfg.classes)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


def newton_schulz(g, iters=5, eps=1e-7):
    """Approximate orthogonal factor of g by the quintic iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm() + eps)
    for _ in range(iters):
        gram = x @ x.t()
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.95, nesterov=True, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            mu = group["momentum"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["buf"] = torch.zeros_like(p)
                buf = state["buf"]
                buf.mul_(mu).add_(p.grad)
                g = p.grad.add(buf, alpha=mu) if group["nesterov"] else buf
                update = newton_schulz(g)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


def split_params(model):
    matrices, others = [], []
    for name, p in model.named_parameters():
        (matrices if p.ndim == 2 and "head" not in name else others).append(p)
    return matrices, others


def main():
    ap = argparse.ArgumentParser()
    for f in dataclasses.fields(Config):
        ap.add_argument("--" + f.name.replace("_", "-"), type=type(f.default), default=f.default)
    cfg = Config(**vars(ap.parse_args()))
    torch.manual_seed(cfg.seed)

    loader = torch.utils.data.DataLoader(Glyphs(2000, cfg), batch_size=cfg.batch, shuffle=True, drop_last=True)
    model = Mixer(cfg)
    matrices, others = split_params(model)
    opts = [Muon(matrices, cfg.lr_matrix, weight_decay=0.01), torch.optim.AdamW(others, lr=cfg.lr_other)]

    step, running = 0, None
    while step < cfg.steps:
        for x, y in loader:
            loss = F.cross_entropy(model(x), y, label_smoothing=0.05)
            for o in opts:
                o.zero_grad()
            loss.backward()
            for o in opts:
                o.step()
            step += 1
            running = loss.item() if running is None else 0.9 * running + 0.1 * loss.item()
            if step % 10 == 0:
                print(f"{step:5d} loss {loss.item():.4f} smooth {running:.4f}")
            if step >= cfg.steps:
                break


if __name__ == "__main__":
    main()
