"""Soft actor-critic with an asymmetric (large) twin critic on a torque-driven arm."""
import argparse
import copy
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class ArmBatch:
    """Batch of planar n-link arms with damped joints reaching for random targets."""

    def __init__(self, n_envs, links=6, horizon=100, seed=0):
        self.n, self.links, self.horizon = n_envs, links, horizon
        self.rng = np.random.default_rng(seed)
        self.q = self.rng.uniform(-1, 1, (n_envs, links))
        self.dq = np.zeros((n_envs, links))
        self.goal = self.rng.uniform(-0.7, 0.7, (n_envs, 2))
        self.t = self.rng.integers(0, horizon, n_envs)
        self.obs_dim = 3 * links + 4
        self.act_dim = links

    def tip(self):
        a = np.cumsum(self.q, axis=1)
        return np.stack([np.cos(a).mean(1), np.sin(a).mean(1)], axis=1)

    def obs(self):
        return np.concatenate([np.cos(self.q), np.sin(self.q), self.dq, self.goal,
                               self.goal - self.tip()], axis=1).astype(np.float32)

    def step(self, action):
        coupling = 0.2 * np.roll(self.dq, 1, axis=1)
        self.dq += 0.05 * (8.0 * action - 1.5 * self.dq - coupling - 0.8 * np.sin(self.q))
        self.q += 0.05 * self.dq
        dist = np.linalg.norm(self.goal - self.tip(), axis=1)
        reward = (-dist + np.exp(-40 * dist ** 2) - 0.01 * (action ** 2).sum(1)).astype(np.float32)
        nxt = self.obs()
        self.t += 1
        over = self.t >= self.horizon
        m = int(over.sum())
        if m:
            self.q[over] = self.rng.uniform(-1, 1, (m, self.links))
            self.dq[over] = 0
            self.goal[over] = self.rng.uniform(-0.7, 0.7, (m, 2))
            self.t[over] = 0
        return nxt, reward


class Replay:
    def __init__(self, capacity, obs_dim, act_dim, gen):
        self.o = torch.zeros(capacity, obs_dim)
        self.a = torch.zeros(capacity, act_dim)
        self.r = torch.zeros(capacity, 1)
        self.o2 = torch.zeros(capacity, obs_dim)
        self.cap, self.head, self.size, self.gen = capacity, 0, 0, gen

    def extend(self, o, a, r, o2):
        n = len(o)
        k = torch.arange(self.head, self.head + n) % self.cap
        self.o[k], self.a[k], self.r[k], self.o2[k] = o, a, r[:, None], o2
        self.head = (self.head + n) % self.cap
        self.size = min(self.size + n, self.cap)

    def sample(self, n):
        k = torch.randint(self.size, (n,), generator=self.gen)
        return self.o[k], self.a[k], self.r[k], self.o2[k]


def mlp(sizes, norm=False):
    layers = []
    for a, b in zip(sizes[:-2], sizes[1:-1]):
        layers += [nn.Linear(a, b), nn.LayerNorm(b) if norm else nn.Identity(), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


class TwinCritic(nn.Module):
    def __init__(self, obs_dim, act_dim, hidden):
        super().__init__()
        sizes = [obs_dim + act_dim, hidden, hidden, hidden, 1]
        self.q1, self.q2 = mlp(sizes, norm=True), mlp(sizes, norm=True)

    def forward(self, o, a):
        x = torch.cat([o, a], dim=-1)
        return self.q1(x), self.q2(x)


class Actor(nn.Module):
    def __init__(self, obs_dim, act_dim, hidden):
        super().__init__()
        self.net = mlp([obs_dim, hidden, hidden, 2 * act_dim])

    def forward(self, o):
        mu, log_std = self.net(o).chunk(2, dim=-1)
        std = log_std.clamp(-5, 2).exp()
        eps = torch.randn_like(mu)
        pre = mu + std * eps
        logp = (-0.5 * eps ** 2 - std.log() - 0.5 * math.log(2 * math.pi)
                - 2 * (math.log(2) - pre - F.softplus(-2 * pre))).sum(-1, keepdim=True)
        return torch.tanh(pre), logp


class SAC:
    def __init__(self, obs_dim, act_dim, args):
        self.gamma, self.tau = args.gamma, args.tau
        self.actor = Actor(obs_dim, act_dim, args.actor_hidden)
        self.critic = TwinCritic(obs_dim, act_dim, args.critic_hidden)
        self.critic_target = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = torch.tensor(math.log(0.1), requires_grad=True)
        self.target_entropy = -float(act_dim)
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=args.lr, fused=True)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=args.lr, fused=True)
        self.alpha_opt = torch.optim.Adam([self.log_alpha], lr=args.lr)
        self.online_params = list(self.critic.parameters())
        self.target_params = list(self.critic_target.parameters())

    @torch.no_grad()
    def act(self, obs):
        return self.actor(torch.from_numpy(obs))[0]

    def update_critic(self, o, a, r, o2):
        with torch.no_grad():
            a2, logp2 = self.actor(o2)
            t1, t2 = self.critic_target(o2, a2)
            y = r + self.gamma * (torch.min(t1, t2) - self.log_alpha.exp() * logp2)
        q1, q2 = self.critic(o, a)
        loss = F.mse_loss(q1, y) + F.mse_loss(q2, y)
        self.critic_opt.zero_grad()
        loss.backward()
        self.critic_opt.step()
        return loss.detach()

    def update_actor(self, o):
        a, logp = self.actor(o)
        q1, q2 = self.critic(o, a)
        loss = (self.log_alpha.exp().detach() * logp - torch.min(q1, q2)).mean()
        self.actor_opt.zero_grad()
        loss.backward()
        self.actor_opt.step()
        return loss.detach(), logp.detach()

    def update_alpha(self, logp):
        loss = -(self.log_alpha.exp() * (logp + self.target_entropy)).mean()
        self.alpha_opt.zero_grad()
        loss.backward()
        self.alpha_opt.step()

    @torch.no_grad()
    def soft_update(self):
        torch._foreach_lerp_(self.target_params, self.online_params, self.tau)

    def update(self, batch):
        o, a, r, o2 = batch
        critic_loss = self.update_critic(o, a, r, o2)
        actor_loss, logp = self.update_actor(o)
        self.update_alpha(logp)
        self.soft_update()
        return critic_loss, actor_loss


def run(args):
    torch.manual_seed(args.seed)
    env = ArmBatch(args.envs, seed=args.seed)
    agent = SAC(env.obs_dim, env.act_dim, args)
    replay = Replay(args.capacity, env.obs_dim, env.act_dim, torch.Generator().manual_seed(args.seed + 1))

    def collect(obs, action):
        nxt, reward = env.step(action.numpy().astype(np.float64))
        replay.extend(torch.from_numpy(obs), action, torch.from_numpy(reward), torch.from_numpy(nxt))
        return env.obs(), float(reward.mean())

    obs = env.obs()
    for _ in range(args.random_steps):
        obs, _ = collect(obs, torch.rand(env.n, env.act_dim) * 2 - 1)

    for step in range(1, args.steps + 1):
        obs, reward = collect(obs, agent.act(obs))
        critic_loss, actor_loss = agent.update(replay.sample(args.batch))
        if step % args.log_every == 0:
            print(f"step {step} critic {critic_loss.item():.5f} actor {actor_loss.item():.5f} "
                  f"alpha {agent.log_alpha.exp().item():.5f} reward {reward:.4f}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--envs", type=int, default=32)
    p.add_argument("--capacity", type=int, default=50000)
    p.add_argument("--random-steps", type=int, default=40)
    p.add_argument("--batch", type=int, default=512)
    p.add_argument("--actor-hidden", type=int, default=256)
    p.add_argument("--critic-hidden", type=int, default=512)
    p.add_argument("--gamma", type=float, default=0.98)
    p.add_argument("--tau", type=float, default=0.005)
    p.add_argument("--lr", type=float, default=3e-4)
    p.add_argument("--seed", type=int, default=7)
    p.add_argument("--log-every", type=int, default=10)
    run(p.parse_args())
