"""Double DQN with prioritized replay on a batch of simulated docking tasks."""
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn


@dataclass
class Config:
    seed: int = 3
    num_envs: int = 64
    buffer_size: int = 200_000
    warmup: int = 180_000
    batch_size: int = 256
    hidden: int = 512
    gamma: float = 0.98
    lr: float = 3e-4
    alpha: float = 0.6
    beta0: float = 0.4
    total_updates: int = 6000
    target_sync: int = 250
    log_every: int = 25


class DockingEnvs:
    """Point mass in 3-D with drift; nine thrust actions; vectorized over environments."""

    OBS = 14
    ACTIONS = 9

    def __init__(self, n, rng):
        self.n, self.rng = n, rng
        dirs = np.concatenate([np.eye(3), -np.eye(3), np.zeros((1, 3)), [[1, 1, 0], [-1, -1, 0]]])
        self.thrust = dirs.astype(np.float32)
        self.pos = rng.normal(size=(n, 3)).astype(np.float32)
        self.vel = np.zeros((n, 3), dtype=np.float32)
        self.drift = rng.normal(scale=0.02, size=(n, 3)).astype(np.float32)
        self.t = np.zeros(n, dtype=np.int64)

    def observe(self):
        dist = np.linalg.norm(self.pos, axis=1, keepdims=True)
        speed = np.linalg.norm(self.vel, axis=1, keepdims=True)
        return np.concatenate([self.pos, self.vel, self.drift, self.pos * self.vel, dist, speed], axis=1)

    def step(self, actions):
        self.vel = 0.98 * self.vel + 0.05 * self.thrust[actions] + self.drift * 0.1
        self.pos = self.pos + 0.1 * self.vel
        self.t += 1
        dist = np.linalg.norm(self.pos, axis=1)
        reward = (-0.1 * dist - 0.01 * np.linalg.norm(self.vel, axis=1) + (dist < 0.1)).astype(np.float32)
        done = (self.t >= 200) | (dist > 6.0)
        obs = self.observe()
        if done.any():
            self.pos[done] = self.rng.normal(size=(int(done.sum()), 3))
            self.vel[done] = 0
            self.t[done] = 0
        return obs, reward, done


class PrioritizedReplay:
    def __init__(self, capacity, obs_dim, alpha, rng):
        self.capacity, self.alpha, self.rng = capacity, alpha, rng
        self.obs = np.zeros((capacity, obs_dim), dtype=np.float32)
        self.next_obs = np.zeros((capacity, obs_dim), dtype=np.float32)
        self.act = np.zeros(capacity, dtype=np.int64)
        self.rew = np.zeros(capacity, dtype=np.float32)
        self.done = np.zeros(capacity, dtype=np.float32)
        self.priorities = np.zeros(capacity, dtype=np.float64)
        self.max_priority = 1.0
        self.ptr, self.size = 0, 0

    def add(self, obs, act, rew, next_obs, done):
        idx = (self.ptr + np.arange(len(act))) % self.capacity
        self.obs[idx], self.next_obs[idx] = obs, next_obs
        self.act[idx], self.rew[idx], self.done[idx] = act, rew, done
        self.priorities[idx] = self.max_priority
        self.ptr = int((self.ptr + len(act)) % self.capacity)
        self.size = min(self.size + len(act), self.capacity)

    def sample(self, n, beta):
        scaled = self.priorities[:self.size] ** self.alpha
        probs = scaled / scaled.sum()
        idx = self.rng.choice(self.size, size=n, p=probs)
        weights = (self.size * probs[idx]) ** (-beta)
        weights = weights / weights.max()
        arrays = (self.obs[idx], self.act[idx], self.rew[idx], self.next_obs[idx], self.done[idx])
        return idx, [torch.from_numpy(a) for a in arrays], torch.from_numpy(weights.astype(np.float32))

    def update(self, idx, td_error):
        prio = np.abs(td_error) + 1e-5
        self.priorities[idx] = prio
        self.max_priority = max(self.max_priority, float(prio.max()))


class DuelingQ(nn.Module):
    def __init__(self, obs_dim, n_actions, hidden):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(obs_dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.value = nn.Linear(hidden, 1)
        self.adv = nn.Linear(hidden, n_actions)

    def forward(self, x):
        h = self.trunk(x)
        a = self.adv(h)
        return self.value(h) + a - a.mean(dim=1, keepdim=True)


def train(cfg: Config):
    torch.manual_seed(cfg.seed)
    rng = np.random.default_rng(cfg.seed)
    envs = DockingEnvs(cfg.num_envs, rng)
    replay = PrioritizedReplay(cfg.buffer_size, envs.OBS, cfg.alpha, rng)
    q = DuelingQ(envs.OBS, envs.ACTIONS, cfg.hidden)
    q_target = DuelingQ(envs.OBS, envs.ACTIONS, cfg.hidden)
    q_target.load_state_dict(q.state_dict())
    opt = torch.optim.Adam(q.parameters(), lr=cfg.lr, fused=True)

    obs = envs.observe()
    while replay.size < cfg.warmup:
        act = rng.integers(envs.ACTIONS, size=cfg.num_envs)
        next_obs, rew, done = envs.step(act)
        replay.add(obs, act, rew, next_obs, done)
        obs = envs.observe()
    print(f"replay warm with {replay.size} transitions", flush=True)

    t0, reward_avg = time.time(), 0.0
    for update in range(1, cfg.total_updates + 1):
        eps = max(0.05, 1.0 - update / 2000)
        with torch.no_grad():
            greedy = q(torch.from_numpy(obs)).argmax(dim=1).numpy()
        act = np.where(rng.random(cfg.num_envs) < eps, rng.integers(envs.ACTIONS, size=cfg.num_envs), greedy)
        next_obs, rew, done = envs.step(act)
        replay.add(obs, act, rew, next_obs, done)
        obs = envs.observe()
        reward_avg += 0.02 * (float(rew.mean()) - reward_avg)

        beta = min(1.0, cfg.beta0 + (1 - cfg.beta0) * update / cfg.total_updates)
        idx, (s, a, r, s2, d), w = replay.sample(cfg.batch_size, beta)
        with torch.no_grad():
            best = q(s2).argmax(dim=1, keepdim=True)
            target = r + cfg.gamma * (1 - d) * q_target(s2).gather(1, best).squeeze(1)
        td = q(s).gather(1, a[:, None]).squeeze(1) - target
        loss = (w * nn.functional.huber_loss(td, torch.zeros_like(td), reduction="none")).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(q.parameters(), 10.0)
        opt.step()
        replay.update(idx, td.detach().numpy())

        if update % cfg.target_sync == 0:
            q_target.load_state_dict(q.state_dict())
        if update % cfg.log_every == 0:
            print(f"update {update} loss {loss.item():.4f} reward {reward_avg:.3f} eps {eps:.2f} "
                  f"{update / (time.time() - t0):.1f} it/s", flush=True)


if __name__ == "__main__":
    train(Config())
