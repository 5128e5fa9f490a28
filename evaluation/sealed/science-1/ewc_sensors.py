"""Continual activity recognition under sensor drift, regularized by elastic weight consolidation.

Every session brings a new placement of the sensors; the classifier is fitted on it
for a short while and then consolidated before the next session arrives.
"""
import argparse
import logging

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

log = logging.getLogger("ewc")


class SensorSessions:
    def __init__(self, channels=12, window=64, classes=10, seed=0):
        self.channels, self.window, self.classes = channels, window, classes
        rng = np.random.default_rng(seed)
        self.freq = rng.uniform(0.5, 8.0, (classes, channels))
        self.phase = rng.uniform(0, 2 * np.pi, (classes, channels))
        self.gain = rng.gamma(2.0, 0.5, (classes, channels))

    def session(self, index):
        return Session(self, np.random.default_rng(1000 + index))


class Session:
    def __init__(self, source, rng):
        self.s, self.rng = source, rng
        n = source.channels
        drift = np.eye(n) + 0.35 * rng.normal(size=(n, n)) / np.sqrt(n)
        self.mix = drift[rng.permutation(n)]
        self.t = np.linspace(0, 1, source.window)

    def batch(self, size):
        s = self.s
        y = self.rng.integers(0, s.classes, size)
        jitter = self.rng.uniform(0, 0.5, (size, 1, 1))
        wave = np.sin(2 * np.pi * s.freq[y][..., None] * (self.t + jitter) + s.phase[y][..., None])
        x = np.einsum("cd,bdt->bct", self.mix, wave * s.gain[y][..., None], optimize=True)
        x = x + 0.3 * self.rng.normal(size=x.shape)
        return torch.tensor(x.reshape(size, -1), dtype=torch.float32), torch.from_numpy(y)


class ResidualMLP(nn.Module):
    def __init__(self, d_in, hidden, depth, classes):
        super().__init__()
        self.inp = nn.Linear(d_in, hidden)
        self.body = nn.ModuleList([nn.Linear(hidden, hidden) for _ in range(depth)])
        self.norms = nn.ModuleList([nn.LayerNorm(hidden) for _ in range(depth)])
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        h = F.gelu(self.inp(x))
        for lin, norm in zip(self.body, self.norms):
            h = h + F.gelu(lin(norm(h)))
        return self.head(h)


class Consolidation:
    """Quadratic anchors around the weights reached in every earlier session."""

    def __init__(self, model, strength):
        self.model, self.strength = model, strength
        self.anchors = []

    def fisher(self, batches):
        acc = {n: torch.zeros_like(p) for n, p in self.model.named_parameters()}
        for x, _ in batches:
            logits = self.model(x)
            y = torch.distributions.Categorical(logits=logits.detach()).sample()
            self.model.zero_grad()
            F.cross_entropy(logits, y).backward()
            for n, p in self.model.named_parameters():
                acc[n].addcmul_(p.grad, p.grad, value=len(x) / len(batches))
        self.model.zero_grad()
        return acc

    def consolidate(self, batches):
        center = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        self.anchors.append((self.fisher(batches), center))

    def penalty(self):
        total = torch.zeros(())
        for fisher, center in self.anchors:
            for n, p in self.model.named_parameters():
                total = total + (fisher[n] * (p - center[n]).square()).sum()
        return 0.5 * self.strength * total


def accuracy(model, batches):
    model.eval()
    with torch.no_grad():
        hits = [(model(x).argmax(1) == y).float().mean().item() for x, y in batches]
    model.train()
    return float(np.mean(hits))


def learn(args):
    source = SensorSessions(seed=args.seed)
    model = ResidualMLP(source.channels * source.window, args.hidden, args.depth, source.classes)
    keep = Consolidation(model, args.strength)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    first_test = [source.session(0).batch(256)]
    step, index = 0, 0

    def fit_session(session):
        nonlocal step
        for _ in range(args.session_steps):
            x, y = session.batch(args.batch)
            task = F.cross_entropy(model(x), y)
            reg = keep.penalty()
            loss = task + reg
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            step += 1
            if step % args.log_every == 0:
                log.info("step %d session %d task %.5f reg %.6f", step, index, task.item(), reg.item())
            if step == args.steps:
                return

    while step < args.steps:
        session = source.session(index)
        fit_session(session)
        if step < args.steps:
            keep.consolidate([session.batch(args.batch) for _ in range(args.fisher_batches)])
        index += 1
    log.info("sessions %d, accuracy on the first session %.4f", index, accuracy(model, first_test))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    cli = argparse.ArgumentParser()
    cli.add_argument("--steps", type=int, default=60)
    cli.add_argument("--session-steps", type=int, default=5)
    cli.add_argument("--fisher-batches", type=int, default=1)
    cli.add_argument("--batch", type=int, default=512)
    cli.add_argument("--hidden", type=int, default=448)
    cli.add_argument("--depth", type=int, default=3)
    cli.add_argument("--strength", type=float, default=4.0)
    cli.add_argument("--lr", type=float, default=0.01)
    cli.add_argument("--seed", type=int, default=0)
    cli.add_argument("--log-every", type=int, default=10)
    options = cli.parse_args()
    torch.manual_seed(options.seed)
    learn(options)
