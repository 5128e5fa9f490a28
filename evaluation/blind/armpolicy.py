"""Interactive imitation of a scripted reaching controller (DAgger, joint-space arm)."""
import argparse
import time

import numpy as np
import torch
from torch import nn

JOINTS, SENSORS = 6, 28
OBS_DIM = 2 * JOINTS + JOINTS + SENSORS


class ArmSim:
    def __init__(self, lanes, seed):
        self.rng = np.random.default_rng(seed)
        self.lanes = lanes
        self.lens = self.rng.normal(size=(JOINTS, SENSORS)).astype(np.float32)
        self.q = np.zeros((lanes, JOINTS), np.float32)
        self.dq = np.zeros((lanes, JOINTS), np.float32)
        self.goal = np.zeros((lanes, JOINTS), np.float32)
        self.clock = 0
        self.reset()

    def reset(self):
        self.q[:] = self.rng.uniform(-1, 1, self.q.shape)
        self.goal[:] = self.rng.uniform(-1, 1, self.q.shape)
        self.dq[:] = 0

    def observe(self):
        return np.concatenate([self.q, self.dq, self.goal, np.sin(self.q @ self.lens)], 1)

    def teacher(self):
        return np.tanh(4.0 * (self.goal - self.q) - 1.5 * self.dq)

    def advance(self, action):
        self.dq += 0.1 * (action - 0.3 * self.dq)
        self.q += 0.1 * self.dq
        self.clock += 1
        if self.clock % 40 == 0:
            self.reset()


class DemoStore:
    def __init__(self, capacity, fixed):
        self.capacity, self.fixed = capacity, fixed
        self.size = self.head = 0
        if fixed:
            self.obs = np.empty((capacity, OBS_DIM), np.float32)
            self.act = np.empty((capacity, JOINTS), np.float32)
        else:
            self.obs = np.empty((0, OBS_DIM), np.float32)
            self.act = np.empty((0, JOINTS), np.float32)

    def extend(self, obs, act):
        if self.fixed:
            slots = (self.head + np.arange(len(obs))) % self.capacity
            self.obs[slots], self.act[slots] = obs, act
            self.head = (self.head + len(obs)) % self.capacity
            self.size = min(self.size + len(obs), self.capacity)
        else:
            self.obs = np.concatenate([self.obs, obs])[-self.capacity:]
            self.act = np.concatenate([self.act, act])[-self.capacity:]
            self.size = len(self.obs)

    def draw(self, rng, n):
        pick = rng.integers(0, self.size, n)
        if self.fixed and self.size == self.capacity:
            pick = (self.head + pick) % self.capacity
        return torch.from_numpy(self.obs[pick]), torch.from_numpy(self.act[pick])


def record_teacher(sim, store, ticks):
    seen, done = [], []
    for _ in range(ticks):
        action = sim.teacher()
        seen.append(sim.observe())
        done.append(action)
        sim.advance(action + 0.1 * sim.rng.normal(size=action.shape).astype(np.float32))
    store.extend(np.concatenate(seen), np.concatenate(done))


def main(steps, fixed):
    torch.manual_seed(2)
    rng = np.random.default_rng(2)
    store = DemoStore(80_000, fixed)
    record_teacher(ArmSim(400, 1), store, 200)
    sim = ArmSim(32, 4)
    policy = nn.Sequential(nn.Linear(OBS_DIM, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 256), nn.GELU(),
                           nn.Linear(256, 128), nn.GELU(), nn.Linear(128, JOINTS), nn.Tanh())
    opt = torch.optim.Adam(policy.parameters(), lr=5e-4)
    for step in range(steps):
        if step == 10:
            t0 = time.process_time()
        obs = sim.observe()
        with torch.no_grad():
            action = policy(torch.from_numpy(obs)).numpy()
        store.extend(obs, sim.teacher())
        sim.advance(action)

        x, y = store.draw(rng, 384)
        loss = nn.functional.smooth_l1_loss(policy(x), y, beta=0.1)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 49:
            print(f"{step + 1}: imitation loss {loss.item():.6f}", flush=True)
    print(f"step_ms={(time.process_time() - t0) / (steps - 10) * 1000:.3f}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--fixed", action="store_true")
    main(**vars(p.parse_args()))
