"""PPO on a batched one-legged hopper (spring-mass model). One update = one minibatch step;
rollouts are refreshed when their epochs are used up."""
import argparse
from collections import namedtuple

import torch
import torch.nn as nn

Rollout = namedtuple("Rollout", "obs act logp adv ret")


class SpringHopper:
    obs_dim, act_dim = 6, 2

    def __init__(self, n, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.n = n
        self.s = self._start(n)

    def _start(self, k):
        z = 1.1 + 0.1 * torch.rand(k, generator=self.g)
        vx = 0.2 * torch.randn(k, generator=self.g)
        zero = torch.zeros(k)
        return torch.stack([zero, z, vx, zero, zero, zero], 1)

    def obs(self):
        return torch.cat([self.s[:, 1:], (self.s[:, 1:2] < 1.0).float()], 1)

    def step(self, act):
        x, z, vx, vz, leg, spin = self.s.unbind(1)
        thrust, swing = act.clamp(-1, 1).unbind(1)
        for _ in range(5):
            contact = (z < 1.0).float()
            force = contact * (60 * (1.0 - z) - 1.5 * vz + 12 * (thrust + 1))
            spin = 0.9 * spin + 0.1 * swing
            leg = (leg + 0.02 * spin * 5).clamp(-0.6, 0.6)
            vx = vx + 0.02 * (contact * force * torch.sin(-leg) * 0.4 - 0.05 * vx)
            vz = vz + 0.02 * (force * torch.cos(leg) - 9.8)
            x, z = x + 0.02 * vx, z + 0.02 * vz
        self.s = torch.stack([x, z, vx, vz, leg, spin], 1)
        fallen = (z < 0.45) | (z > 3.0)
        reward = 0.1 * (vx.clamp(-2, 3) + 0.2) - 0.001 * act.square().sum(1) - fallen.float()
        if fallen.any():
            self.s[fallen] = self._start(int(fallen.sum()))
        return reward, fallen.float()


class GaussianPolicy(nn.Module):
    def __init__(self, obs, act, width=320):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(obs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                                nn.Linear(width, act))
        self.v = nn.Sequential(nn.Linear(obs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                               nn.Linear(width, 1))
        self.log_std = nn.Parameter(torch.full((act,), -0.5))

    def log_prob(self, mean, act):
        z = (act - mean) * torch.exp(-self.log_std)
        return (-0.5 * z.square() - self.log_std - 0.9189385).sum(-1)

    def forward(self, obs, act):
        return self.log_prob(self.pi(obs), act), self.v(obs).squeeze(-1)


@torch.no_grad()
def collect(env, net, horizon, gen, gamma=0.98, lam=0.95):
    obs, act, logp, rew, done, val = ([] for _ in range(6))
    for _ in range(horizon):
        o = env.obs()
        mean = net.pi(o)
        a = mean + net.log_std.exp() * torch.randn(mean.shape, generator=gen)
        r, d = env.step(a)
        for store, item in zip((obs, act, logp, rew, done, val),
                               (o, a, net.log_prob(mean, a), r, d, net.v(o).squeeze(-1))):
            store.append(item)
    nxt, run = net.v(env.obs()).squeeze(-1), torch.zeros(env.n)
    adv = []
    for t in reversed(range(horizon)):
        live = 1 - done[t]
        run = rew[t] + gamma * live * nxt - val[t] + gamma * lam * live * run
        adv.append(run)
        nxt = val[t]
    adv, val = torch.stack(adv[::-1]), torch.stack(val)
    ret = (adv + val).flatten()
    adv = adv.flatten()
    roll = Rollout(torch.cat(obs), torch.cat(act), torch.cat(logp), (adv - adv.mean()) / adv.std(), ret)
    return roll, torch.stack(rew).mean().item()


def minibatches(env, net, args, gen):
    while True:
        roll, mean_reward = collect(env, net, args.horizon, gen)
        for _ in range(args.epochs):
            for rows in torch.randperm(len(roll.obs), generator=gen).split(args.minibatch):
                yield Rollout(*(x[rows] for x in roll)), mean_reward


def ppo_loss(net, mb, clip):
    logp, value = net(mb.obs, mb.act)
    ratio = (logp - mb.logp).exp()
    gain = torch.min(ratio * mb.adv, ratio.clamp(1 - clip, 1 + clip) * mb.adv).mean()
    return -gain + 0.5 * (value - mb.ret).square().mean() - 0.002 * net.log_std.sum(), ratio


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--envs", type=int, default=256)
    ap.add_argument("--horizon", type=int, default=32)
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--minibatch", type=int, default=2048)
    args = ap.parse_args()
    torch.manual_seed(110)
    env, gen = SpringHopper(args.envs, 111), torch.Generator().manual_seed(112)
    net = GaussianPolicy(env.obs_dim, env.act_dim)
    opt = torch.optim.Adam(net.parameters(), lr=5e-4, eps=1e-5, fused=True)
    for step, (mb, reward) in zip(range(1, args.steps + 1), minibatches(env, net, args, gen)):
        loss, ratio = ppo_loss(net, mb, 0.2)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()
        if step % 10 == 0:
            print(f"update {step:4d} loss {loss.item():.5f} ratio {ratio.mean().item():.4f} "
                  f"rollout reward {reward:+.4f}")


if __name__ == "__main__":
    main()
