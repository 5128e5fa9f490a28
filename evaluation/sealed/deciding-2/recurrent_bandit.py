"""Recurrent actor-critic on batched foraging episodes (contextual patches that deplete)."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Foraging:
    obs_dim, n_actions = 12, 4

    def __init__(self, n, seed):
        self.n = n
        self.g = torch.Generator().manual_seed(seed)
        self.mix = torch.randn(4, self.obs_dim - 5, generator=self.g)
        self._fresh(torch.arange(n))

    def _fresh(self, rows):
        if not hasattr(self, "yield_"):
            self.yield_ = torch.zeros(self.n, 4)
            self.last = torch.zeros(self.n, 5)
        self.yield_[rows] = torch.rand(len(rows), 4, generator=self.g)
        self.last[rows] = 0

    def observe(self):
        hint = self.yield_ @ self.mix + 0.5 * torch.randn(self.n, self.obs_dim - 5, generator=self.g)
        return torch.cat([self.last, hint], 1)

    def step(self, action):
        gain = self.yield_.gather(1, action[:, None]).squeeze(1)
        reward = gain + 0.05 * torch.randn(self.n, generator=self.g)
        self.yield_.scatter_(1, action[:, None], (gain * 0.7)[:, None])
        self.last = torch.cat([F.one_hot(action, 4).float(), reward[:, None]], 1)
        done = torch.rand(self.n, generator=self.g) < 0.08
        rows = done.nonzero().squeeze(1)
        if len(rows):
            self._fresh(rows)
        return reward, done


class Core(nn.Module):
    def __init__(self, n_in, width):
        super().__init__()
        self.width = width
        self.gates = nn.Linear(n_in + width, 2 * width)
        self.cand = nn.Linear(n_in + width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x, h):
        r, z = torch.sigmoid(self.gates(torch.cat([x, h], -1))).chunk(2, -1)
        c = torch.tanh(self.norm(self.cand(torch.cat([x, r * h], -1))))
        return (1 - z) * c + z * h


class ActorCritic(nn.Module):
    def __init__(self, obs, actions, width=128):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(obs, width), nn.SiLU())
        self.core = Core(width, width)
        self.pi, self.v = nn.Linear(width, actions), nn.Linear(width, 1)

    def act(self, obs, h):
        h = self.core(self.embed(obs), h)
        return self.pi(h), self.v(h).squeeze(-1), h

    def forward(self, obs, done, h):
        x = self.embed(obs)
        states = []
        for t in range(x.shape[0]):
            h = self.core(x[t], h)
            states.append(h)
            if done[t].any():
                h = h.masked_fill(done[t].unsqueeze(-1), 0.0)
        y = torch.stack(states)
        return self.pi(y), self.v(y).squeeze(-1)


@torch.no_grad()
def rollout(env, net, h, horizon, gen):
    buf = {k: [] for k in ("obs", "act", "rew", "done")}
    for _ in range(horizon):
        obs = env.observe()
        logits, _, h = net.act(obs, h)
        action = torch.multinomial(logits.softmax(-1), 1, generator=gen).squeeze(1)
        reward, done = env.step(action)
        h = h.masked_fill(done.unsqueeze(-1), 0.0)
        for k, v in zip(buf, (obs, action, reward, done)):
            buf[k].append(v)
    tail = net.act(env.observe(), h)[1]
    return {k: torch.stack(v) for k, v in buf.items()}, tail, h


def returns(rew, done, tail, gamma):
    out, acc = torch.empty_like(rew), tail
    for t in range(len(rew) - 1, -1, -1):
        acc = rew[t] + gamma * acc.masked_fill(done[t], 0.0)
        out[t] = acc
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--envs", type=int, default=64)
    ap.add_argument("--horizon", type=int, default=20)
    args = ap.parse_args()
    torch.manual_seed(70)
    env, gen = Foraging(args.envs, 71), torch.Generator().manual_seed(72)
    net = ActorCritic(env.obs_dim, env.n_actions)
    unroll = torch.compile(net, backend="aot_eager")
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    h = torch.zeros(args.envs, net.core.width)
    for step in range(1, args.steps + 1):
        h0 = h
        data, tail, h = rollout(env, net, h, args.horizon, gen)
        target = returns(data["rew"], data["done"], tail, 0.95)
        logits, value = unroll(data["obs"], data["done"], h0)
        logp = logits.log_softmax(-1)
        chosen = logp.gather(-1, data["act"].unsqueeze(-1)).squeeze(-1)
        adv = target - value.detach()
        entropy = -(logp.exp() * logp).sum(-1).mean()
        loss = -(adv * chosen).mean() + 0.5 * F.mse_loss(value, target) - 0.01 * entropy
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        if step % 10 == 0:
            print(f"{step:4d} loss {loss.item():+.5f} reward {data['rew'].mean().item():.4f} "
                  f"entropy {entropy.item():.3f}")


if __name__ == "__main__":
    main()
