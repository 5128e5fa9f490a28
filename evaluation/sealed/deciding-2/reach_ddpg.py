"""DDPG with a critic ensemble on a batched two-link reacher (simulator below)."""
import argparse
import copy
import math

import torch
import torch.nn as nn


class Reacher:
    obs_dim, act_dim = 10, 2

    def __init__(self, n, seed):
        self.n = n
        self.gen = torch.Generator().manual_seed(seed)
        self.q = torch.zeros(n, 2)
        self.dq = torch.zeros(n, 2)
        self.goal = torch.zeros(n, 2)
        self.t = torch.zeros(n)
        self._reset(torch.ones(n, dtype=torch.bool))

    def _reset(self, which):
        k = int(which.sum())
        self.q[which] = (torch.rand(k, 2, generator=self.gen) - 0.5) * 2 * math.pi
        self.dq[which] = 0
        r = 0.4 + 1.4 * torch.rand(k, 1, generator=self.gen)
        th = 2 * math.pi * torch.rand(k, 1, generator=self.gen)
        self.goal[which] = torch.cat([r * th.cos(), r * th.sin()], 1)
        self.t[which] = 0

    def tip(self):
        a, b = self.q[:, 0], self.q[:, 0] + self.q[:, 1]
        return torch.stack([a.cos() + b.cos(), a.sin() + b.sin()], 1)

    def observe(self):
        return torch.cat([self.q.sin(), self.q.cos(), self.dq, self.goal, self.tip() - self.goal], 1)

    def step(self, action):
        for _ in range(4):
            self.dq = 0.98 * self.dq + 0.05 * action.clamp(-1, 1) * 4
            self.q = self.q + 0.0125 * self.dq
        self.t += 1
        reward = -(self.tip() - self.goal).norm(dim=1) - 0.01 * action.square().sum(1)
        done = self.t >= 50
        nxt = self.observe()
        if done.any():
            self._reset(done)
        return nxt, reward, done.float()


class Replay:
    def __init__(self, cap, obs, act):
        self.s, self.s2 = torch.zeros(cap, obs), torch.zeros(cap, obs)
        self.a, self.r = torch.zeros(cap, act), torch.zeros(cap)
        self.cap, self.at, self.size = cap, 0, 0

    def add(self, s, a, r, s2):
        idx = (self.at + torch.arange(len(s))) % self.cap
        self.s[idx], self.a[idx], self.r[idx], self.s2[idx] = s, a, r, s2
        self.at = (self.at + len(s)) % self.cap
        self.size = min(self.cap, self.size + len(s))

    def sample(self, n, gen):
        i = torch.randint(self.size, (n,), generator=gen)
        return self.s[i], self.a[i], self.r[i], self.s2[i]


class Policy(nn.Sequential):
    def __init__(self, obs, act, width=96):
        super().__init__(nn.Linear(obs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                         nn.Linear(width, act), nn.Tanh())


class CriticEnsemble(nn.Module):
    def __init__(self, obs, act, members=4, width=256):
        super().__init__()
        self.members = nn.ModuleList(
            nn.Sequential(nn.Linear(obs + act, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                          nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
            for _ in range(members))

    def forward(self, s, a):
        x = torch.cat([s, a], 1)
        return torch.cat([m(x) for m in self.members], 1)


class Agent:
    def __init__(self, env, gamma=0.98, tau=0.01):
        self.pi, self.q = Policy(env.obs_dim, env.act_dim), CriticEnsemble(env.obs_dim, env.act_dim)
        self.pi_t, self.q_t = copy.deepcopy(self.pi), copy.deepcopy(self.q)
        self.q_opt = torch.optim.Adam(self.q.parameters(), lr=1e-3, fused=True)
        self.pi_opt = torch.optim.Adam(self.pi.parameters(), lr=3e-4, fused=True)
        self.gamma, self.tau = gamma, tau

    @torch.no_grad()
    def act(self, s, noise, gen):
        a = self.pi(s)
        return (a + noise * torch.randn(a.shape, generator=gen)).clamp(-1, 1)

    def update(self, batch):
        s, a, r, s2 = batch
        with torch.no_grad():
            target = r + self.gamma * self.q_t(s2, self.pi_t(s2)).amin(1)
        q_loss = (self.q(s, a) - target[:, None]).square().mean(0).sum()
        self.q_opt.zero_grad()
        q_loss.backward()
        self.q_opt.step()

        states = torch.cat([s, s2])
        pi_loss = -self.q(states, self.pi(states)).mean()
        self.pi_opt.zero_grad()
        pi_loss.backward()
        self.pi_opt.step()
        self.track()
        return q_loss.item(), pi_loss.item()

    @torch.no_grad()
    def track(self):
        for live, slow in ((self.pi, self.pi_t), (self.q, self.q_t)):
            torch._foreach_lerp_(list(slow.parameters()), list(live.parameters()), self.tau)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--envs", type=int, default=64)
    ap.add_argument("--batch", type=int, default=512)
    args = ap.parse_args()
    torch.manual_seed(0)
    env = Reacher(args.envs, seed=1)
    gen = torch.Generator().manual_seed(2)
    agent, memory = Agent(env), Replay(20000, env.obs_dim, env.act_dim)
    obs = env.observe()
    for it in range(args.steps + 10):
        action = agent.act(obs, 0.3, gen)
        nxt, reward, done = env.step(action)
        memory.add(obs, action, reward, nxt)
        obs = torch.where(done[:, None] > 0, env.observe(), nxt)
        if it < 10:
            continue
        ql, pl = agent.update(memory.sample(args.batch, gen))
        if (it - 9) % 15 == 0:
            print(f"update {it - 9:4d}  critic {ql:.5f}  actor {pl:.5f}  reward {reward.mean():.4f}")


if __name__ == "__main__":
    main()
