"""Double DQN on a batch of small planar landers, prioritised replay."""
import argparse
import copy
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

OBS, ACTIONS, GAMMA = 6, 4, 0.99


def advance(state, action, rng):
    s = state.copy()
    s[:, 2] += 0.05 * (action == 1) - 0.05 * (action == 3)
    s[:, 3] += 0.08 * (action == 2) - 0.03
    s[:, 5] += 0.04 * (action == 3) - 0.04 * (action == 1)
    s[:, :2] += 0.1 * s[:, 2:4]
    s[:, 4] += 0.1 * s[:, 5]
    done = (np.abs(s[:, :2]).max(1) > 2.5) | (rng.random(len(s)) < 0.01)
    row = (state, action, 0.3 - np.abs(s[:, 0]) - 0.5 * np.abs(s[:, 4]) - done, s.copy(), done)
    s[done] = rng.normal(0.0, 0.5, (int(done.sum()), OBS))
    return s, row


class Replay:
    def __init__(self, capacity, alpha, rng):
        self.capacity, self.alpha, self.rng = capacity, alpha, rng
        kinds = [((OBS,), "f4"), ((), "i8"), ((), "f4"), ((OBS,), "f4"), ((), "f4")]
        self.cols = [np.zeros((capacity, *shape), dtype) for shape, dtype in kinds]
        self.priority, self.pos, self.size, self.top = np.zeros(capacity), 0, 0, 1.0

    def set_priority(self, idx, prio):
        self.priority[idx] = prio

    def draw(self, batch):
        scaled = self.priority[:self.size] ** self.alpha
        prob = scaled / scaled.sum()
        idx = self.rng.choice(self.size, batch, p=prob)
        return idx, prob[idx]

    def push(self, row):
        idx = (self.pos + np.arange(len(row[0]))) % self.capacity
        for col, value in zip(self.cols, row):
            col[idx] = value
        self.pos, self.size = int(idx[-1] + 1) % self.capacity, min(self.size + len(idx), self.capacity)
        self.set_priority(idx, np.full(len(idx), self.top))

    def sample(self, batch, beta):
        idx, prob = self.draw(batch)
        w = (self.size * prob) ** -beta
        out = [torch.from_numpy(c[idx]) for c in self.cols]
        return idx, out + [torch.from_numpy((w / w.max()).astype("f4"))]

    def update(self, idx, td):
        prio = np.abs(td).astype("f8") + 1e-3
        self.top = max(self.top, float(prio.max()))
        self.set_priority(idx, prio)


class TreeReplay(Replay):
    def __init__(self, capacity, alpha, rng):
        super().__init__(capacity, alpha, rng)
        self.depth = (capacity - 1).bit_length()
        self.tree = np.zeros(2 << self.depth)

    def set_priority(self, idx, prio):
        node = idx + (1 << self.depth)
        self.tree[node] = prio ** self.alpha
        for _ in range(self.depth):
            node = node >> 1
            self.tree[node] = self.tree[2 * node] + self.tree[2 * node + 1]

    def draw(self, batch):
        u = self.rng.random(batch) * self.tree[1]
        node = np.ones(batch, np.int64)
        for _ in range(self.depth):
            right = u >= self.tree[2 * node]
            u -= self.tree[2 * node] * right
            node = 2 * node + right
        return node - (1 << self.depth), self.tree[node] / self.tree[1]


ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=300)
ap.add_argument("--fixed", action="store_true")
cli = ap.parse_args()
torch.manual_seed(3)
rng = np.random.default_rng(3)
memory = (TreeReplay if cli.fixed else Replay)(262144, 0.6, rng)
state = rng.normal(0.0, 0.5, (1000, OBS)).astype(np.float32)
for _ in range(240):
    state, row = advance(state, rng.integers(0, ACTIONS, len(state)), rng)
    memory.push(row)
state = state[:8]
online = nn.Sequential(nn.Linear(OBS, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, ACTIONS))
target = copy.deepcopy(online)
opt = torch.optim.Adam(online.parameters(), lr=3e-4)
for step in range(cli.steps):
    if step == 10:
        start = time.perf_counter()
    with torch.no_grad():
        greedy = online(torch.from_numpy(state)).argmax(1).numpy()
    state, row = advance(state, np.where(rng.random(8) < 0.1, rng.integers(0, ACTIONS, 8), greedy), rng)
    memory.push(row)
    idx, (s, act, r, s2, d, w) = memory.sample(256, min(1.0, 0.4 + step * 1e-3))
    with torch.no_grad():
        best = online(s2).argmax(1, keepdim=True)
        goal = r + GAMMA * (1 - d) * target(s2).gather(1, best).squeeze(1)
    q = online(s).gather(1, act[:, None]).squeeze(1)
    loss = (w * F.smooth_l1_loss(q, goal, reduction="none")).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    memory.update(idx, (goal - q.detach()).numpy())
    if (step + 1) % 100 == 0:
        target.load_state_dict(online.state_dict())
    if (step + 1) % 50 == 0:
        print(f"step {step + 1} loss {loss.item():.5f}")
print(f"step_ms={(time.perf_counter() - start) * 1e3 / (cli.steps - 10):.3f}")
