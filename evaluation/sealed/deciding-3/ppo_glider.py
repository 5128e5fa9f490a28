"""PPO for a vectorised glider in gusty air, recurrent-free, one file."""
import argparse

import torch
import torch.nn as nn
from torch.distributions import Normal

OBS, ACT = 12, 3


class GliderVec:
    """Batch of point-mass gliders; thermals drift and the wind is an OU process."""

    def __init__(self, n, gen):
        self.n, self.gen = n, gen
        self.pos, self.vel, self.wind = torch.zeros(n, 3), torch.zeros(n, 3), torch.zeros(n, 3)
        self.thermal = torch.zeros(n, 2)
        self.age = torch.randint(0, 200, (n,), generator=gen)
        self.reset(torch.ones(n, dtype=torch.bool))

    def reset(self, mask):
        k = int(mask.sum())
        if k:
            r = torch.randn(k, 8, generator=self.gen)
            self.pos[mask] = r[:, :3]
            self.vel[mask] = 0.1 * r[:, 3:6]
            self.thermal[mask] = 2 * r[:, 6:]
            self.age[mask] = 0

    def obs(self):
        rel = self.thermal - self.pos[:, :2]
        return torch.cat([self.pos, self.vel, self.wind, rel, (self.age / 200.0)[:, None]], 1)

    def step(self, a):
        self.wind = 0.95 * self.wind + 0.1 * torch.randn(self.n, 3, generator=self.gen)
        lift = torch.exp(-(self.thermal - self.pos[:, :2]).square().sum(1))
        acc = 0.5 * a.tanh() + 0.2 * self.wind
        acc[:, 2] += lift - 0.3
        self.vel = 0.95 * self.vel + 0.1 * acc
        self.pos = self.pos + 0.1 * self.vel
        self.age = self.age + 1
        reward = self.pos[:, 2] * 0.1 - 0.01 * a.square().sum(1) - 0.02 * self.pos[:, :2].norm(dim=1)
        done = (self.age >= 200) | (self.pos.abs().amax(1) > 8)
        self.reset(done)
        return self.obs(), reward, done.float()


class ActorCritic(nn.Module):
    def __init__(self, width=320):
        super().__init__()
        def mlp(out):
            return nn.Sequential(nn.Linear(OBS, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, out))
        self.pi, self.v = mlp(ACT), mlp(1)
        self.log_std = nn.Parameter(torch.full((ACT,), -0.5))

    def dist(self, o):
        return Normal(self.pi(o), self.log_std.exp(), validate_args=False)

    def value(self, o):
        return self.v(o).squeeze(-1)


class Rollout:
    def __init__(self, horizon, n):
        self.obs = torch.zeros(horizon, n, OBS)
        self.act = torch.zeros(horizon, n, ACT)
        self.logp, self.rew, self.done = (torch.zeros(horizon, n) for _ in range(3))
        self.val = torch.zeros(horizon + 1, n)

    def advantages(self, gamma, lam):
        adv = torch.zeros_like(self.rew)
        carry = torch.zeros(self.rew.shape[1])
        alive = 1 - self.done
        delta = self.rew + gamma * self.val[1:] * alive - self.val[:-1]
        for t in reversed(range(len(self.rew))):
            carry = delta[t] + gamma * lam * alive[t] * carry
            adv[t] = carry
        return adv, adv + self.val[:-1]


@torch.no_grad()
def collect(env, net, buf, obs):
    for t in range(len(buf.rew)):
        d = net.dist(obs)
        a = d.sample()
        buf.obs[t], buf.act[t], buf.val[t] = obs, a, net.value(obs)
        buf.logp[t] = d.log_prob(a).sum(-1)
        obs, buf.rew[t], buf.done[t] = env.step(a)
    buf.val[-1] = net.value(obs)
    return obs


def minibatches(buf, args, gen):
    adv, ret = buf.advantages(args.gamma, args.lam)
    flat = [x.flatten(0, 1) for x in (buf.obs, buf.act, buf.logp, adv, ret)]
    for _ in range(args.epochs):
        for idx in torch.randperm(len(flat[0]), generator=gen).split(args.minibatch):
            yield [x[idx] for x in flat]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--envs", type=int, default=256)
    ap.add_argument("--horizon", type=int, default=32)
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--minibatch", type=int, default=2048)
    ap.add_argument("--gamma", type=float, default=0.99)
    ap.add_argument("--lam", type=float, default=0.95)
    args = ap.parse_args()
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(0)
    env, net = GliderVec(args.envs, gen), ActorCritic()
    opt = torch.optim.Adam(net.parameters(), lr=3e-4, eps=1e-5, fused=True)
    buf, obs, step = Rollout(args.horizon, args.envs), env.obs(), 0
    while step < args.steps:
        obs = collect(env, net, buf, obs)
        for o, a, old, adv, ret in minibatches(buf, args, gen):
            d = net.dist(o)
            ratio = (d.log_prob(a).sum(-1) - old).exp()
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            surrogate = torch.minimum(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
            v_loss = 0.5 * (net.value(o) - ret).square().mean()
            entropy = net.log_std.sum()
            opt.zero_grad()
            (v_loss - surrogate - 1e-3 * entropy).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            opt.step()
            step += 1
            if step % 10 == 0:
                print(f"update {step} value {v_loss.item():.4f} surrogate {surrogate.item():.4f} "
                      f"reward {buf.rew.mean().item():.4f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
