"""Next-item ranking from user event logs: causal transformer over items and event context."""
import argparse
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    n_items: int = 60_000
    n_users: int = 8_000
    length: int = 256
    batch: int = 256
    dim: int = 512
    layers: int = 6
    heads: int = 8
    negatives: int = 2048
    lr: float = 3e-4


SMALL = Config(n_items=500, n_users=40, length=16, batch=8, dim=32, layers=2, heads=2, negatives=32)
EVENTS = {"view": 0.60, "cart": 0.22, "favourite": 0.12, "purchase": 0.06}
SURFACES = {"search": 0.36, "home": 0.28, "category": 0.16, "mail": 0.10, "ads": 0.06, "other": 0.04}


class Table(nn.Module):
    """Learned vectors for one categorical field; also used to score candidates."""

    def __init__(self, rows, dim, fixed=False):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, dim) * dim ** -0.5)
        self.fixed = fixed

    def forward(self, ids):
        if self.fixed:
            return F.embedding(ids, self.weight)
        return self.weight[ids]


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = (z.view(n, t, self.heads, -1).transpose(1, 2)
                   for z in self.qkv(self.ln1(x)).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(n, t, d))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class Ranker(nn.Module):
    def __init__(self, cfg, fixed):
        super().__init__()
        self.items = Table(cfg.n_items, cfg.dim, fixed)
        self.event = Table(len(EVENTS), cfg.dim, fixed)
        self.surface = Table(len(SURFACES), cfg.dim, fixed)
        self.hour = Table(24, cfg.dim, fixed)
        self.position = nn.Parameter(torch.randn(cfg.length, cfg.dim) * 0.02)
        self.layers = nn.ModuleList(Layer(cfg.dim, cfg.heads) for _ in range(cfg.layers))
        self.norm = nn.LayerNorm(cfg.dim)

    def forward(self, item, event, surface, hour):
        x = self.items(item) + self.position
        x = (x + self.event(event) + self.surface(surface) + self.hour(hour)).bfloat16()
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)

    def loss(self, state, target, negatives):
        """Softmax over the true next item and negatives shared by the batch."""
        state = state.flatten(0, 1).bfloat16()
        positive = (state * self.items(target.flatten()).bfloat16()).float().sum(-1)
        others = (state @ self.items(negatives).t()).float().logsumexp(-1)
        return (torch.logaddexp(positive, others) - positive).mean()


class EventLog:
    """Histories of the training users, resident on the device."""

    def __init__(self, cfg, device):
        shape = (cfg.n_users, cfg.length + 1)
        self.item = (torch.rand(shape, device=device) ** 3 * cfg.n_items).long()
        self.event = self.draw(EVENTS, shape, device)
        self.surface = self.draw(SURFACES, shape, device)
        self.hour = (torch.randn(shape, device=device) * 4 + 17).long() % 24
        self.cfg, self.device = cfg, device

    @staticmethod
    def draw(shares, shape, device):
        edges = torch.tensor(list(shares.values()), device=device).cumsum(0)[:-1]
        return torch.bucketize(torch.rand(shape, device=device), edges)

    def batch(self):
        users = torch.randint(self.cfg.n_users, (self.cfg.batch,), device=self.device)
        item = self.item[users]
        context = [field[users, :-1] for field in (self.event, self.surface, self.hour)]
        negatives = torch.randint(self.cfg.n_items, (self.cfg.negatives,), device=self.device)
        return item[:, :-1], context, item[:, 1:], negatives


class Trainer:
    def __init__(self, cfg, device, fixed):
        self.device, self.log = device, EventLog(cfg, device)
        self.model = Ranker(cfg, fixed).to(device)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, weight_decay=0.01, fused=True)

    def step(self):
        item, context, target, negatives = self.log.batch()
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            state = self.model(item, *context)
            loss = self.model.loss(state, target, negatives)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        return loss.detach()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(29)
    trainer = Trainer(SMALL if args.small else Config(), torch.device(args.device), args.fixed)
    wait = torch.cuda.synchronize if args.device == "cuda" else (lambda: None)
    for step in range(args.steps):
        if step == 10:
            wait()
            t0 = time.perf_counter()
        loss = trainer.step()
        if step % 20 == 0 or step == args.steps - 1:
            print(f"{step:6d}  loss {loss.item():.6f}")
    wait()
    if args.steps > 10:
        print(f"step_ms={(time.perf_counter() - t0) * 1e3 / (args.steps - 10):.3f}")


if __name__ == "__main__":
    main()
