"""Soft actor-critic on a vectorised planar arm (single file, in the manner of CleanRL)."""
import argparse
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

JOINTS = 6
OBS = 3 * JOINTS + 4


class PlanarArm:
    def __init__(self, n, gen):
        self.n, self.gen = n, gen
        self.reset()

    def reset(self):
        self.q = (torch.rand(self.n, JOINTS, generator=self.gen) - 0.5) * 2
        self.dq = torch.zeros(self.n, JOINTS)
        self.goal = torch.randn(self.n, 2, generator=self.gen)
        self.t = 0
        return self.obs()

    def tip(self):
        ang = self.q.cumsum(1)
        return torch.stack([ang.cos().sum(1), ang.sin().sum(1)], 1) / JOINTS * 3

    def obs(self):
        return torch.cat([self.q.cos(), self.q.sin(), self.dq, self.goal, self.goal - self.tip()], 1)

    def step(self, a):
        self.dq = 0.9 * self.dq + 0.2 * a
        self.q = self.q + 0.1 * self.dq
        self.t += 1
        r = -(self.goal - self.tip()).norm(dim=1) - 0.01 * a.square().sum(1)
        done = self.t % 100 == 0
        nxt = self.obs()
        return nxt, r, done


class Replay:
    def __init__(self, size):
        self.o, self.o2 = torch.zeros(size, OBS), torch.zeros(size, OBS)
        self.a, self.r = torch.zeros(size, JOINTS), torch.zeros(size)
        self.ptr, self.full, self.size = 0, 0, size

    def add(self, o, a, r, o2):
        i = (self.ptr + torch.arange(len(o))) % self.size
        self.o[i], self.a[i], self.r[i], self.o2[i] = o, a, r, o2
        self.ptr = (self.ptr + len(o)) % self.size
        self.full = min(self.full + len(o), self.size)

    def sample(self, n, gen):
        i = torch.randint(self.full, (n,), generator=gen)
        return self.o[i], self.a[i], self.r[i], self.o2[i]


class TwinQ(nn.Module):
    def __init__(self, width=384):
        super().__init__()
        def net():
            return nn.Sequential(nn.Linear(OBS + JOINTS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                                 nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
        self.q1, self.q2 = net(), net()

    def forward(self, o, a):
        x = torch.cat([o, a], 1)
        return self.q1(x).squeeze(1), self.q2(x).squeeze(1)


class Actor(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.mu, self.log_std = nn.Linear(width, JOINTS), nn.Linear(width, JOINTS)

    def forward(self, o):
        h = self.body(o)
        mu, log_std = self.mu(h), self.log_std(h).clamp(-5, 2)
        eps = torch.randn_like(mu)
        u = mu + log_std.exp() * eps
        logp = (-0.5 * eps.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(1)
        logp = logp - (2 * (math.log(2) - u - F.softplus(-2 * u))).sum(1)
        return u.tanh(), logp


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=512)
    ap.add_argument("--envs", type=int, default=16)
    ap.add_argument("--gamma", type=float, default=0.98)
    ap.add_argument("--tau", type=float, default=0.005)
    args = ap.parse_args()
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(0)
    env, buf = PlanarArm(args.envs, gen), Replay(50_000)
    actor, critic = Actor(), TwinQ()
    target = copy.deepcopy(critic).requires_grad_(False)
    log_alpha = torch.tensor(math.log(0.1), requires_grad=True)
    opt_q = torch.optim.Adam(critic.parameters(), lr=3e-4, fused=True)
    opt_pi = torch.optim.Adam(actor.parameters(), lr=3e-4, fused=True)
    opt_alpha = torch.optim.Adam([log_alpha], lr=3e-4)

    obs = env.reset()
    for _ in range(100):
        act = torch.rand(args.envs, JOINTS, generator=gen) * 2 - 1
        nxt, rew, done = env.step(act)
        buf.add(obs, act, rew, nxt)
        obs = env.reset() if done else nxt

    for step in range(1, args.steps + 1):
        with torch.no_grad():
            act, _ = actor(obs)
        nxt, rew, done = env.step(act)
        buf.add(obs, act, rew, nxt)
        obs = env.reset() if done else nxt

        o, a, r, o2 = buf.sample(args.batch, gen)
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            a2, logp2 = actor(o2)
            backup = r + args.gamma * (torch.minimum(*target(o2, a2)) - alpha * logp2)
        q1, q2 = critic(o, a)
        q_loss = F.mse_loss(q1, backup) + F.mse_loss(q2, backup)
        opt_q.zero_grad()
        q_loss.backward()
        opt_q.step()

        pi, logp = actor(o)
        pi_loss = (alpha * logp - torch.minimum(*critic(o, pi))).mean()
        opt_pi.zero_grad()
        pi_loss.backward()
        opt_pi.step()

        alpha_loss = -(log_alpha * (logp.detach() - JOINTS).mean())
        opt_alpha.zero_grad()
        alpha_loss.backward()
        opt_alpha.step()

        with torch.no_grad():
            torch._foreach_lerp_(list(target.parameters()), list(critic.parameters()), args.tau)
        if step % 10 == 0:
            print(f"{step} q {q_loss.item():.4f} pi {pi_loss.item():.4f} alpha {alpha.item():.4f} reward {rew.mean().item():.3f}")


if __name__ == "__main__":
    main()
