"""Double dueling Q-learning with prioritized replay on a vectorized pursuit task."""
import argparse

import numpy as np
import torch
from torch import nn


class PursuitVec:
    """N independent planar pursuers with drag, chasing a target among drifting obstacles."""

    n_actions = 9

    def __init__(self, n, obstacles=6, horizon=120, seed=0):
        self.n, self.k, self.horizon = n, obstacles, horizon
        self.rng = np.random.default_rng(seed)
        ang = np.arange(8) * np.pi / 4
        self.thrust = np.concatenate([[[0.0, 0.0]], np.stack([np.cos(ang), np.sin(ang)], 1)]) * 0.05
        self.pos = np.zeros((n, 2))
        self.vel = np.zeros((n, 2))
        self.goal = np.zeros((n, 2))
        self.obs_pos = np.zeros((n, obstacles, 2))
        self.obs_vel = np.zeros((n, obstacles, 2))
        self.t = np.zeros(n, dtype=np.int64)
        self._respawn(np.ones(n, dtype=bool))

    @property
    def obs_dim(self):
        return 6 + 4 * self.k

    def _respawn(self, mask):
        m = int(mask.sum())
        if m == 0:
            return
        self.pos[mask] = self.rng.uniform(-1, 1, (m, 2))
        self.vel[mask] = 0.0
        self.goal[mask] = self.rng.uniform(-1, 1, (m, 2))
        self.obs_pos[mask] = self.rng.uniform(-1, 1, (m, self.k, 2))
        self.obs_vel[mask] = self.rng.normal(0, 0.02, (m, self.k, 2))
        self.t[mask] = self.rng.integers(0, 20, m)

    def observe(self):
        rel = self.obs_pos - self.pos[:, None]
        parts = [self.vel * 10, self.goal - self.pos, self.pos,
                 rel.reshape(self.n, -1), self.obs_vel.reshape(self.n, -1) * 10]
        return np.concatenate(parts, axis=1).astype(np.float32)

    def step(self, action):
        before = np.linalg.norm(self.goal - self.pos, axis=1)
        self.vel = 0.9 * self.vel + self.thrust[action]
        self.pos = np.clip(self.pos + self.vel, -1.5, 1.5)
        self.obs_pos += self.obs_vel
        after = np.linalg.norm(self.goal - self.pos, axis=1)
        hit = (np.linalg.norm(self.obs_pos - self.pos[:, None], axis=2) < 0.1).any(1)
        reached = after < 0.1
        self.t += 1
        reward = 5.0 * (before - after) + reached - hit
        final = self.observe()
        done = hit | reached
        self._respawn(done | (self.t >= self.horizon))
        return final, self.observe(), reward.astype(np.float32), done.astype(np.float32)


class PrioritizedReplay:
    def __init__(self, capacity, obs_dim, alpha=0.6, beta=0.4, seed=0):
        assert capacity & (capacity - 1) == 0
        self.cap, self.alpha, self.beta = capacity, alpha, beta
        self.obs = np.zeros((capacity, obs_dim), np.float32)
        self.nxt = np.zeros((capacity, obs_dim), np.float32)
        self.act = np.zeros(capacity, np.int64)
        self.rew = np.zeros(capacity, np.float32)
        self.done = np.zeros(capacity, np.float32)
        self.tree = np.zeros(2 * capacity)
        self.leaf = self.tree[capacity:]
        self.fresh = []
        self.head, self.size = 0, 0
        self.rng = np.random.default_rng(seed)

    def add(self, obs, act, rew, nxt, done):
        k = self.head
        self.obs[k], self.nxt[k] = obs, nxt
        self.act[k], self.rew[k], self.done[k] = act, rew, done
        self.leaf[k] = self.leaf.max() if self.size else 1.0
        self.fresh.append(k)
        self.head = (k + 1) % self.cap
        self.size = min(self.size + 1, self.cap)

    def _refresh(self, idx):
        node = np.unique((np.asarray(idx) + self.cap) // 2)
        while node[0] >= 1:
            self.tree[node] = self.tree[2 * node] + self.tree[2 * node + 1]
            node = np.unique(node // 2)

    def sample(self, batch):
        if self.fresh:
            self._refresh(self.fresh)
            self.fresh = []
        total = self.tree[1]
        mass = (np.arange(batch) + self.rng.random(batch)) * (total / batch)
        node = np.ones(batch, np.int64)
        while node[0] < self.cap:
            left = self.tree[2 * node]
            right = mass >= left
            mass = np.where(right, mass - left, mass)
            node = 2 * node + right
        idx = np.minimum(node - self.cap, self.size - 1)
        w = (self.size * np.maximum(self.leaf[idx], 1e-9) / total) ** -self.beta
        w = (w / w.max()).astype(np.float32)
        cols = (self.obs[idx], self.act[idx], self.rew[idx], self.nxt[idx], self.done[idx], w)
        return idx, [torch.from_numpy(c) for c in cols]

    def reprioritize(self, idx, td):
        self.leaf[idx] = (np.abs(td) + 1e-3) ** self.alpha
        self._refresh(idx)


class DuelingQ(nn.Module):
    def __init__(self, obs_dim, n_actions, hidden):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs_dim, hidden), nn.LayerNorm(hidden), nn.ReLU(),
                                  nn.Linear(hidden, hidden), nn.ReLU())
        self.value = nn.Sequential(nn.Linear(hidden, hidden // 2), nn.ReLU(), nn.Linear(hidden // 2, 1))
        self.adv = nn.Sequential(nn.Linear(hidden, hidden // 2), nn.ReLU(),
                                 nn.Linear(hidden // 2, n_actions))

    def forward(self, x):
        h = self.body(x)
        a = self.adv(h)
        return self.value(h) + a - a.mean(1, keepdim=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--envs", type=int, default=128)
    ap.add_argument("--capacity", type=int, default=1 << 20)
    ap.add_argument("--batch", type=int, default=640)
    ap.add_argument("--hidden", type=int, default=448)
    ap.add_argument("--warmup", type=int, default=40)
    ap.add_argument("--gamma", type=float, default=0.98)
    ap.add_argument("--lr", type=float, default=3e-4)
    ap.add_argument("--target-every", type=int, default=25)
    ap.add_argument("--log-every", type=int, default=10)
    args = ap.parse_args()

    torch.manual_seed(1)
    rng = np.random.default_rng(2)
    env = PursuitVec(args.envs, seed=3)
    buf = PrioritizedReplay(args.capacity, env.obs_dim, seed=4)
    online = DuelingQ(env.obs_dim, env.n_actions, args.hidden)
    target = DuelingQ(env.obs_dim, env.n_actions, args.hidden).requires_grad_(False)
    target.load_state_dict(online.state_dict())
    opt = torch.optim.Adam(online.parameters(), lr=args.lr, eps=1e-5, fused=True)

    def act(obs, eps):
        with torch.no_grad():
            greedy = online(torch.from_numpy(obs)).argmax(1).numpy()
        explore = rng.random(env.n) < eps
        return np.where(explore, rng.integers(0, env.n_actions, env.n), greedy)

    def interact(obs, eps):
        action = act(obs, eps)
        nxt, fresh_obs, reward, done = env.step(action)
        for i in range(env.n):
            buf.add(obs[i], action[i], reward[i], nxt[i], done[i])
        return fresh_obs, reward.mean()

    obs = env.observe()
    for _ in range(args.warmup):
        obs, _ = interact(obs, 1.0)

    for step in range(1, args.steps + 1):
        eps = max(0.05, 1.0 - step / 200)
        obs, mean_reward = interact(obs, eps)
        idx, (o, a, r, o2, d, w) = buf.sample(args.batch)
        with torch.no_grad():
            best = online(o2).argmax(1, keepdim=True)
            y = r + args.gamma * (1 - d) * target(o2).gather(1, best).squeeze(1)
        q = online(o).gather(1, a[:, None]).squeeze(1)
        td = q - y
        loss = (w * nn.functional.smooth_l1_loss(q, y, reduction="none")).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(online.parameters(), 10.0)
        opt.step()
        buf.reprioritize(idx, td.detach().numpy())
        if step % args.target_every == 0:
            target.load_state_dict(online.state_dict())
        if step % args.log_every == 0:
            print(f"{step:5d} loss={loss.item():.5f} q={q.mean().item():.4f} "
                  f"reward={mean_reward:.4f} eps={eps:.2f}")


if __name__ == "__main__":
    main()
