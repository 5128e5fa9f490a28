"""Conditional WGAN-GP for mixed tabular records (numeric + categorical columns)."""
import argparse
import os
import tempfile

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F

CATEGORIES = {"region": 9, "product": 14, "channel": 4, "status": 3}
NUMERIC = ["amount", "tenure", "age", "score", "balance", "visits"]


def write_records(path, rows, seed):
    rng = np.random.default_rng(seed)
    segment = rng.integers(0, 6, rows)
    frame = {c: (segment * 3 + rng.poisson(1.2, rows)) % k for c, k in CATEGORIES.items()}
    frame["amount"] = rng.lognormal(3 + 0.3 * segment, 0.5)
    frame["tenure"] = rng.gamma(1 + segment, 1.5)
    frame["age"] = np.clip(rng.normal(30 + 5 * segment, 8), 18, 90)
    frame["score"] = rng.beta(2 + segment, 4)
    frame["balance"] = frame["amount"] * rng.normal(2.0, 0.4, rows)
    frame["visits"] = rng.poisson(3 + segment)
    pd.DataFrame(frame).to_csv(path, index=False)


class Records:
    def __init__(self, path):
        df = pd.read_csv(path)
        num = df[NUMERIC].to_numpy(np.float64)
        num[:, 0] = np.log(num[:, 0])
        num = np.tanh((num - num.mean(0)) / (2 * num.std(0)))
        parts = [torch.tensor(num, dtype=torch.float32)]
        for c, k in CATEGORIES.items():
            parts.append(F.one_hot(torch.tensor(df[c].to_numpy()), k).float())
        self.x = torch.cat(parts, dim=1)
        self.cond = parts[2]

    def draw(self, n, gen):
        k = torch.randint(len(self.x), (n,), generator=gen)
        return self.x[k], self.cond[k]


class Residual(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc = nn.Linear(dim, dim)

    def forward(self, x):
        return x + F.relu(self.fc(self.norm(x)))


class Generator(nn.Module):
    def __init__(self, noise, cond, hidden):
        super().__init__()
        self.noise = noise
        self.body = nn.Sequential(nn.Linear(noise + cond, hidden), Residual(hidden), Residual(hidden))
        self.out = nn.Linear(hidden, len(NUMERIC) + sum(CATEGORIES.values()))
        self.sizes = [len(NUMERIC), *CATEGORIES.values()]

    def forward(self, c):
        z = torch.randn(len(c), self.noise)
        num, *cats = self.out(self.body(torch.cat([z, c], dim=1))).split(self.sizes, dim=1)
        return torch.cat([torch.tanh(num), *[F.gumbel_softmax(v, tau=0.5) for v in cats]], dim=1)


class Critic(nn.Module):
    def __init__(self, width, cond, hidden):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(width + cond, hidden), nn.LeakyReLU(0.2),
            nn.Linear(hidden, hidden), nn.LeakyReLU(0.2),
            nn.Linear(hidden, hidden), nn.LeakyReLU(0.2),
            nn.Linear(hidden, 1))

    def forward(self, x, c):
        return self.net(torch.cat([x, c], dim=1)).squeeze(1)


def gradient_penalty(critic, real, fake, c):
    mix = torch.rand(len(real), 1)
    x = torch.lerp(fake, real, mix).requires_grad_(True)
    grad, = torch.autograd.grad(critic(x, c).sum(), x, create_graph=True)
    return (grad.norm(dim=1) - 1.0).square().mean()


class Adversary:
    def __init__(self, records, args):
        self.records, self.args = records, args
        self.rng = torch.Generator().manual_seed(args.seed)
        cond, width = records.cond.shape[1], records.x.shape[1]
        self.gen = Generator(args.noise, cond, args.hidden)
        self.critic = Critic(width, cond, args.hidden)
        self.gen_opt = torch.optim.Adam(self.gen.parameters(), lr=args.lr, betas=(0.5, 0.9), fused=True)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=args.lr, betas=(0.5, 0.9), fused=True)

    def critic_step(self):
        real, c = self.records.draw(self.args.batch, self.rng)
        with torch.no_grad():
            fake = self.gen(c)
        s_real = self.critic(real, c)
        s_fake = self.critic(fake, c)
        gp = gradient_penalty(self.critic, real, fake, c)
        wdist = s_real.mean() - s_fake.mean()
        loss = self.args.gp * gp - wdist
        self.critic_opt.zero_grad()
        loss.backward()
        self.critic_opt.step()
        return wdist.detach(), gp.detach()

    def generator_step(self):
        _, c = self.records.draw(self.args.batch, self.rng)
        fake = self.gen(c)
        self.critic.requires_grad_(False)
        loss = -self.critic(fake, c).mean()
        self.gen_opt.zero_grad()
        loss.backward()
        self.critic.requires_grad_(True)
        self.gen_opt.step()
        return loss.detach()

    @torch.no_grad()
    def marginal_gap(self, n=2048):
        real, c = self.records.draw(n, self.rng)
        return (self.gen(c).mean(0) - real.mean(0)).abs().mean().item()

    def train(self):
        for step in range(1, self.args.steps + 1):
            for _ in range(self.args.critic_iters):
                wdist, gp = self.critic_step()
            g_loss = self.generator_step()
            if step % self.args.log_every == 0:
                print(f"{step:5d} w {wdist.item():.5f} gp {gp.item():.5f} g {g_loss.item():.5f}")
            if step % self.args.eval_every == 0:
                print(f"      marginal gap {self.marginal_gap():.4f}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--rows", type=int, default=20000)
    p.add_argument("--batch", type=int, default=384)
    p.add_argument("--hidden", type=int, default=256)
    p.add_argument("--noise", type=int, default=64)
    p.add_argument("--critic-iters", type=int, default=3)
    p.add_argument("--gp", type=float, default=10.0)
    p.add_argument("--lr", type=float, default=2e-4)
    p.add_argument("--seed", type=int, default=8)
    p.add_argument("--log-every", type=int, default=10)
    p.add_argument("--eval-every", type=int, default=100)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    path = os.path.join(tempfile.gettempdir(), f"records_{args.rows}.csv")
    if not os.path.exists(path):
        write_records(path, args.rows, args.seed)
    Adversary(Records(path), args).train()


if __name__ == "__main__":
    main()
