"""ANIL on wearable-sensor activity tasks: only the linear head moves in the inner loop."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn

WAYS, CHANNELS, WINDOW = 5, 6, 64


class ActivityTasks:
    """Each task is a new wearer: own gait frequency, sensor orientation and noise."""

    def __init__(self, seed, activities=24):
        self.g = torch.Generator().manual_seed(seed)
        self.freq = torch.rand(activities, CHANNELS, generator=self.g) * 6 + 1
        self.amp = torch.rand(activities, CHANNELS, generator=self.g)

    def rand(self, *s):
        return torch.rand(*s, generator=self.g)

    def task(self, shots, queries):
        acts = torch.randperm(len(self.freq), generator=self.g)[:WAYS]
        y = torch.arange(WAYS).repeat_interleave(shots + queries)
        t = torch.linspace(0, 1, WINDOW)
        pace = 0.8 + 0.4 * self.rand(1)
        phase = self.rand(len(y), CHANNELS, 1) * 6.283
        x = self.amp[acts[y]][..., None] * torch.sin(6.283 * pace * self.freq[acts[y]][..., None] * t + phase)
        rot = torch.linalg.qr(torch.randn(CHANNELS, CHANNELS, generator=self.g)).Q
        x = torch.einsum("ij,njt->nit", rot, x) + 0.2 * torch.randn(x.shape, generator=self.g)
        sup = (torch.arange(len(y)) % (shots + queries)) < shots
        return (x[sup], y[sup]), (x[~sup], y[~sup])


class Body(nn.Module):
    def __init__(self, width=64, out=96):
        super().__init__()
        layers, c = [], CHANNELS
        for _ in range(3):
            layers += [nn.Conv1d(c, width, 5, padding=2), nn.GroupNorm(8, width), nn.ReLU(), nn.MaxPool1d(2)]
            c = width
        self.conv = nn.Sequential(*layers)
        self.fc = nn.Linear(width * WINDOW // 8, out)

    def forward(self, x):
        return F.normalize(self.fc(self.conv(x).flatten(1)), dim=-1) * 4.0


class MetaLearner(nn.Module):
    def __init__(self, inner_lr, inner_steps):
        super().__init__()
        self.body = Body()
        self.w = nn.Parameter(torch.zeros(WAYS, 96))
        self.b = nn.Parameter(torch.zeros(WAYS))
        self.log_lr = nn.Parameter(torch.tensor(float(inner_lr)).log())
        self.inner_steps = inner_steps

    def loss(self, x, y, w, b):
        return F.cross_entropy(F.linear(self.body(x), w, b), y)

    def adapt(self, x, y, create_graph):
        w, b = self.w, self.b
        for _ in range(self.inner_steps):
            gw, gb = torch.autograd.grad(self.loss(x, y, w, b), (w, b), create_graph=create_graph)
            w, b = w - self.log_lr.exp() * gw, b - self.log_lr.exp() * gb
        return w, b

    def forward(self, support, query):
        w, b = self.adapt(*support, create_graph=True)
        logits = F.linear(self.body(query[0]), w, b)
        return F.cross_entropy(logits, query[1]), (logits.argmax(-1) == query[1]).float().mean()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--tasks", type=int, default=2)
    p.add_argument("--shots", type=int, default=5)
    p.add_argument("--queries", type=int, default=15)
    p.add_argument("--inner-steps", type=int, default=3)
    args = p.parse_args()
    torch.manual_seed(2)
    tasks = ActivityTasks(2)
    learner = MetaLearner(0.5, args.inner_steps)
    opt = torch.optim.Adam(learner.parameters(), lr=1e-3, fused=True)
    for step in range(1, args.steps + 1):
        opt.zero_grad()
        total, acc = 0.0, 0.0
        for _ in range(args.tasks):
            loss, a = learner(*tasks.task(args.shots, args.queries))
            (loss / args.tasks).backward()
            total += loss.item() / args.tasks
            acc += a.item() / args.tasks
        nn.utils.clip_grad_norm_(learner.parameters(), 5.0)
        opt.step()
        if step % 10 == 0:
            print(f"step {step} query loss {total:.4f} acc {acc:.3f} inner lr {learner.log_lr.exp().item():.4f}")


if __name__ == "__main__":
    main()
