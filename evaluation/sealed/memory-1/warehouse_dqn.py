"""Double DQN for order picking in a small warehouse grid (vectorised simulator)."""
import argparse
import copy
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

GRID = 16
PLANES = 4
MOVES = np.array([[-1, 0], [1, 0], [0, -1], [0, 1], [0, 0]])


class Warehouse:
    """Many independent grids stepped together; planes: shelf, robot, item, depot."""

    def __init__(self, n_envs, seed):
        self.n, self.rng = n_envs, np.random.default_rng(seed)
        self.shelf = self.rng.random((n_envs, GRID, GRID)) < 0.12
        self.robot = self.rng.integers(0, GRID, (n_envs, 2))
        self.item = self.rng.integers(0, GRID, (n_envs, 2))
        self.rows = np.arange(n_envs)

    def observe(self):
        obs = np.zeros((self.n, PLANES, GRID, GRID), dtype=np.uint8)
        obs[:, 0] = self.shelf
        obs[self.rows, 1, self.robot[:, 0], self.robot[:, 1]] = 1
        obs[self.rows, 2, self.item[:, 0], self.item[:, 1]] = 1
        obs[:, 3, 0, 0] = 1
        return obs

    def step(self, action):
        before = np.abs(self.robot - self.item).sum(1)
        goal = np.clip(self.robot + MOVES[action], 0, GRID - 1)
        blocked = self.shelf[self.rows, goal[:, 0], goal[:, 1]]
        self.robot = np.where(blocked[:, None], self.robot, goal)
        distance = np.abs(self.robot - self.item).sum(1)
        done = distance == 0
        reward = 0.1 * (before - distance) - 0.01 - 0.05 * blocked + 1.0 * done
        if done.any():
            self.item[done] = self.rng.integers(0, GRID, (int(done.sum()), 2))
        return self.observe(), reward.astype(np.float32), done


class Replay:
    def __init__(self, capacity, seed):
        shape = (capacity, PLANES, GRID, GRID)
        self.obs, self.nxt = np.empty(shape, np.uint8), np.empty(shape, np.uint8)
        self.act = np.empty(capacity, np.int64)
        self.rew, self.end = np.empty(capacity, np.float32), np.empty(capacity, np.float32)
        self.capacity, self.head, self.size = capacity, 0, 0
        self.rng = np.random.default_rng(seed)

    def add(self, obs, act, rew, nxt, end):
        slots = (self.head + np.arange(len(act))) % self.capacity
        self.obs[slots], self.nxt[slots] = obs, nxt
        self.act[slots], self.rew[slots], self.end[slots] = act, rew, end
        self.head = (self.head + len(act)) % self.capacity
        self.size = min(self.size + len(act), self.capacity)

    def sample(self, n):
        i = self.rng.integers(0, self.size, n)
        return tuple(torch.from_numpy(a[i]) for a in (self.obs, self.act, self.rew, self.nxt, self.end))


class DuelingNet(nn.Module):
    def __init__(self, width=32, hidden=192):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(PLANES, width, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride=2, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride=2, padding=1), nn.ReLU(inplace=True),
            nn.Flatten(), nn.Linear(width * 16, hidden), nn.ReLU(inplace=True))
        self.value, self.advantage = nn.Linear(hidden, 1), nn.Linear(hidden, len(MOVES))

    def forward(self, obs):
        h = self.body(obs.float())
        a = self.advantage(h)
        return self.value(h) + a - a.mean(1, keepdim=True)


def epsilon_at(step, total):
    return max(0.05, 1.0 - step / (0.6 * total))


@torch.no_grad()
def act(net, obs, eps, rng):
    greedy = net(torch.from_numpy(obs)).argmax(1).numpy()
    explore = rng.random(len(obs)) < eps
    return np.where(explore, rng.integers(0, len(MOVES), len(obs)), greedy)


def update(net, target, optimizer, batch, gamma):
    obs, action, reward, nxt, end = batch
    with torch.no_grad():
        best = net(nxt).argmax(1, keepdim=True)
        goal = reward + gamma * (1 - end) * target(nxt).gather(1, best).squeeze(1)
    q = net(obs).gather(1, action[:, None]).squeeze(1)
    loss = F.smooth_l1_loss(q, goal)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 10.0)
    optimizer.step()
    with torch.no_grad():
        for t, p in zip(target.parameters(), net.parameters()):
            t.lerp_(p, 0.01)
    return loss.item(), q.detach().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--envs", type=int, default=32)
    ap.add_argument("--batch-size", type=int, default=384)
    ap.add_argument("--capacity", type=int, default=40_000)
    ap.add_argument("--gamma", type=float, default=0.95)
    ap.add_argument("--lr", type=float, default=5e-4)
    ap.add_argument("--seed", type=int, default=2)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    world, replay = Warehouse(args.envs, args.seed), Replay(args.capacity, args.seed)
    net = DuelingNet()
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=args.lr)

    obs = world.observe()
    while replay.size < 4 * args.batch_size:
        a = rng.integers(0, len(MOVES), args.envs)
        nxt, reward, done = world.step(a)
        replay.add(obs, a, reward, nxt, done)
        obs = nxt

    start, returns = time.time(), 0.0
    for step in range(args.steps):
        a = act(net, obs, epsilon_at(step, args.steps), rng)
        nxt, reward, done = world.step(a)
        replay.add(obs, a, reward, nxt, done)
        obs = nxt
        returns = 0.95 * returns + 0.05 * float(reward.mean())
        loss, q = update(net, target, optimizer, replay.sample(args.batch_size), args.gamma)
        if (step + 1) % 10 == 0:
            print(f"update {step + 1} td {loss:.4f} q {q:.3f} reward {returns:.4f} "
                  f"stored {replay.size} {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
