"""Double DQN on a synthetic grid-control problem with replay."""
import argparse
import copy
import random
from collections import deque

import torch
from torch import nn
import torch.nn.functional as F

OBS, ACTIONS = 24, 5


class TupleMemory:
    def __init__(self, capacity):
        self.items = deque(maxlen=capacity)

    def push(self, obs, act, rew, nxt, done):
        self.items.append((obs.tolist(), int(act), float(rew), nxt.tolist(), float(done)))

    def get(self, rows):
        picked = [self.items[r] for r in rows]
        obs, act, rew, nxt, done = zip(*picked)
        return (torch.tensor(obs), torch.tensor(act), torch.tensor(rew), torch.tensor(nxt), torch.tensor(done))


class TensorMemory:
    def __init__(self, capacity):
        self.obs, self.nxt = torch.zeros(capacity, OBS), torch.zeros(capacity, OBS)
        self.act = torch.zeros(capacity, dtype=torch.long)
        self.rew, self.done = torch.zeros(capacity), torch.zeros(capacity)
        self.size = 0

    def push(self, obs, act, rew, nxt, done):
        i = self.size
        self.obs[i], self.act[i], self.rew[i], self.nxt[i], self.done[i] = obs, act, rew, nxt, done
        self.size += 1

    def get(self, rows):
        r = torch.tensor(rows)
        return self.obs[r], self.act[r], self.rew[r], self.nxt[r], self.done[r]


class QNet(nn.Module):
    def __init__(self, hid=160):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(OBS, hid), nn.ReLU(), nn.Linear(hid, hid), nn.ReLU())
        self.adv, self.val = nn.Linear(hid, ACTIONS), nn.Linear(hid, 1)

    def forward(self, x):
        h = self.trunk(x)
        a = self.adv(h)
        return self.val(h) + a - a.mean(1, keepdim=True)


def interact(obs, act, drift):
    nxt = 0.9 * obs + 0.3 * drift[act] + 0.05 * torch.randn(OBS)
    return nxt, -nxt[:4].abs().sum(), torch.rand(()) < 0.03


def td_loss(q, q_target, batch, gamma=0.97):
    obs, act, rew, nxt, done = batch
    with torch.no_grad():
        best = q(nxt).argmax(1, keepdim=True)
        y = rew + gamma * (1 - done) * q_target(nxt).gather(1, best).squeeze(1)
    return F.smooth_l1_loss(q(obs).gather(1, act[:, None]).squeeze(1), y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(83)
    rng = random.Random(83)
    memory = (TensorMemory if args.fixed else TupleMemory)(4000)
    drift, obs = torch.randn(ACTIONS, OBS), torch.zeros(OBS)
    q = QNet()
    q_target = copy.deepcopy(q).requires_grad_(False)
    opt = torch.optim.Adam(q.parameters(), lr=1e-3, fused=True)
    count = 0
    for step in range(-1500, args.steps):
        act = rng.randrange(ACTIONS)
        nxt, rew, done = interact(obs, act, drift)
        memory.push(obs, act, rew, nxt, done)
        count, obs = count + 1, (torch.zeros(OBS) if done else nxt)
        if step < 0:
            continue
        loss = td_loss(q, q_target, memory.get([rng.randrange(count) for _ in range(512)]))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 9:
            q_target.load_state_dict(q.state_dict())
            print(f"step {step + 1} td {loss.item():.5f}")


if __name__ == "__main__":
    main()
