"""Distributional Q-learning on a vectorised cart-pole with continuous observations."""
import argparse
import copy

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F


class CartPoles:
    """Many cart-poles advanced together with numpy."""

    def __init__(self, n, rng, limit=200):
        self.rng, self.limit = rng, limit
        self.state = rng.uniform(-0.05, 0.05, (n, 4)).astype(np.float32)
        self.age = np.zeros(n, dtype=np.int64)

    def step(self, action):
        x, xd, th, thd = self.state.T
        force = np.where(action == 1, 10.0, -10.0)
        c, s = np.cos(th), np.sin(th)
        tmp = (force + 0.05 * thd**2 * s) / 1.1
        tha = (9.8 * s - c * tmp) / (0.5 * (4.0 / 3.0 - 0.1 * c**2 / 1.1))
        xa = tmp - 0.05 * tha * c / 1.1
        before = self.state
        self.state = np.stack([x + 0.02 * xd, xd + 0.02 * xa, th + 0.02 * thd, thd + 0.02 * tha], 1).astype(np.float32)
        self.age += 1
        fell = (np.abs(self.state[:, 0]) > 2.4) | (np.abs(self.state[:, 2]) > 0.21)
        done = fell | (self.age >= self.limit)
        after = self.state.copy()
        self.state[done] = self.rng.uniform(-0.05, 0.05, (int(done.sum()), 4))
        self.age[done] = 0
        return before, after, np.ones(len(fell), np.float32), fell.astype(np.float32)


class Replay:
    def __init__(self, capacity, rng):
        self.obs = np.zeros((capacity, 4), np.float32)
        self.nxt = np.zeros((capacity, 4), np.float32)
        self.act = np.zeros(capacity, np.int64)
        self.rew = np.zeros(capacity, np.float32)
        self.end = np.zeros(capacity, np.float32)
        self.capacity, self.at, self.size, self.rng = capacity, 0, 0, rng

    def push(self, obs, act, nxt, rew, end):
        where = (self.at + np.arange(len(act))) % self.capacity
        self.obs[where], self.act[where], self.nxt[where] = obs, act, nxt
        self.rew[where], self.end[where] = rew, end
        self.at = int(where[-1]) + 1
        self.size = min(self.capacity, self.size + len(act))

    def draw(self, n):
        i = self.rng.integers(0, self.size, n)
        return tuple(torch.from_numpy(a[i]) for a in (self.obs, self.act, self.rew, self.nxt, self.end))


class QuantileNet(nn.Module):
    def __init__(self, hidden, actions, quantiles):
        super().__init__()
        self.actions, self.quantiles = actions, quantiles
        self.body = nn.Sequential(
            nn.Linear(4, hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, actions * quantiles))

    def forward(self, obs):
        return self.body(obs).view(-1, self.actions, self.quantiles)


class Learner:
    def __init__(self, cfg):
        self.cfg = cfg
        self.online = QuantileNet(cfg.hidden, 2, cfg.quantiles)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.taus = (torch.arange(cfg.quantiles) + 0.5) / cfg.quantiles
        self.opt = torch.optim.Adam(self.online.parameters(), lr=cfg.lr, eps=1e-5, fused=True)
        self.objective = torch.compile(self.td_loss, backend=cfg.backend, fullgraph=True)
        self.updates = 0

    def td_loss(self, obs, act, rew, nxt, end):
        rows = torch.arange(obs.shape[0])
        with torch.no_grad():
            ahead = self.target(nxt)
            best = self.online(nxt).mean(-1).argmax(-1)
            goal = rew[:, None] + self.cfg.gamma * (1 - end)[:, None] * ahead[rows, best]
        now = self.online(obs)[rows, act]
        diff = goal.unsqueeze(1) - now.unsqueeze(2)
        weight = (self.taus[None, :, None] - (diff.detach() < 0).float()).abs()
        huber = F.smooth_l1_loss(now.unsqueeze(2).expand_as(diff), goal.unsqueeze(1).expand_as(diff), reduction="none")
        return (weight * huber).mean(2).sum(1).mean()

    def update(self, batch):
        loss = self.objective(*batch)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        self.updates += 1
        if self.updates % self.cfg.sync_every == 0:
            self.target.load_state_dict(self.online.state_dict())
        return loss.detach()

    @torch.no_grad()
    def greedy(self, obs):
        return self.online(torch.from_numpy(obs)).mean(-1).argmax(-1).numpy()


def collect(env, learner, replay, rounds, eps, rng):
    for _ in range(rounds):
        act = learner.greedy(env.state)
        explore = rng.random(len(act)) < eps
        act = np.where(explore, rng.integers(0, 2, len(act)), act)
        obs, nxt, rew, end = env.step(act)
        replay.push(obs, act, nxt, rew, end)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--envs", type=int, default=16)
    ap.add_argument("--batch", type=int, default=512)
    ap.add_argument("--hidden", type=int, default=768)
    ap.add_argument("--quantiles", type=int, default=8)
    ap.add_argument("--gamma", type=float, default=0.99)
    ap.add_argument("--lr", type=float, default=2e-4)
    ap.add_argument("--sync-every", type=int, default=25)
    ap.add_argument("--backend", default="eager")
    ap.add_argument("--seed", type=int, default=4)
    cfg = ap.parse_args()

    torch.manual_seed(cfg.seed)
    rng = np.random.default_rng(cfg.seed)
    env, replay = CartPoles(cfg.envs, rng), Replay(50000, rng)
    learner = Learner(cfg)
    collect(env, learner, replay, 40, 1.0, rng)
    history = []
    for step in range(1, cfg.steps + 1):
        eps = max(0.05, 1.0 - step / 200)
        collect(env, learner, replay, 1, eps, rng)
        history.append(learner.update(replay.draw(cfg.batch)))
        if step % 10 == 0:
            print(f"update {step} loss {torch.stack(history[-10:]).mean().item():.5f} eps {eps:.2f} stored {replay.size}", flush=True)


if __name__ == "__main__":
    main()
