"""PPO on a batch of cart-pole simulations."""
import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

ENVS, HORIZON, EPOCHS, MINIBATCH = 64, 16, 3, 256
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2


class CartPoles:
    def __init__(self, count, seed):
        self.rng = np.random.default_rng(seed)
        self.state = self.rng.uniform(-0.05, 0.05, (count, 4)).astype(np.float32)

    def step(self, action):
        x, v, theta, omega = self.state.T
        force = np.where(action == 1, 10.0, -10.0)
        sin, cos = np.sin(theta), np.cos(theta)
        temp = (force + 0.05 * omega ** 2 * sin) / 1.1
        alpha = (9.8 * sin - cos * temp) / (0.5 * (4 / 3 - 0.1 * cos ** 2 / 1.1))
        accel = temp - 0.05 * alpha * cos / 1.1
        state = np.stack([x + 0.02 * v, v + 0.02 * accel, theta + 0.02 * omega, omega + 0.02 * alpha], 1)
        done = (np.abs(state[:, 0]) > 2.4) | (np.abs(state[:, 2]) > 0.21)
        fresh = self.rng.uniform(-0.05, 0.05, state.shape)
        self.state = np.where(done[:, None], fresh, state).astype(np.float32)
        return done


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
        self.heads = nn.Linear(128, 3)

    def forward(self, obs):
        out = self.heads(self.body(obs))
        return F.log_softmax(out[:, :2], -1), out[:, 2]


@torch.no_grad()
def collect(model, envs):
    obs = torch.empty(HORIZON, ENVS, 4)
    actions = torch.empty(HORIZON, ENVS, dtype=torch.long)
    logps, values, alive = (torch.empty(HORIZON, ENVS) for _ in range(3))
    for t in range(HORIZON):
        obs[t] = torch.from_numpy(envs.state)
        logp, values[t] = model(obs[t])
        actions[t] = (torch.rand(ENVS) < logp[:, 1].exp()).long()
        logps[t] = logp.gather(1, actions[t, :, None]).squeeze(1)
        alive[t] = torch.from_numpy(~envs.step(actions[t].numpy()))
    following = model(torch.from_numpy(envs.state))[1]
    advantages = torch.empty(HORIZON, ENVS)
    carry = torch.zeros(ENVS)
    for t in reversed(range(HORIZON)):
        delta = 1.0 + GAMMA * alive[t] * following - values[t]
        carry = delta + GAMMA * LAMBDA * alive[t] * carry
        advantages[t], following = carry, values[t]
    returns = advantages + values
    return [a.flatten(0, 1) for a in (obs, actions, logps, advantages, returns)]


def update(model, optimizer, rollout):
    for _ in range(EPOCHS):
        for pick in torch.randperm(ENVS * HORIZON).split(MINIBATCH):
            obs, action, old_logp, adv, ret = (a[pick] for a in rollout)
            logp, value = model(obs)
            ratio = (logp.gather(1, action[:, None]).squeeze(1) - old_logp).exp()
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            policy = -torch.min(ratio * adv, ratio.clamp(1 - CLIP, 1 + CLIP) * adv).mean()
            entropy = -(logp.exp() * logp).sum(1).mean()
            loss = policy + 0.5 * F.smooth_l1_loss(value, ret) - 0.01 * entropy
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    return loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(2)
    envs, model = CartPoles(ENVS, 9), ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=7e-4, eps=1e-5)
    mark = time.process_time()
    for step in range(1, args.steps + 1):
        loss = update(model, optimizer, collect(model, envs))
        if step % 50 == 0:
            print(f"update {step} loss {loss.item():.4f}")
        if step == 10:
            mark = time.process_time()
    print(f"step_ms={(time.process_time() - mark) * 1000 / max(1, args.steps - 10):.2f}")


if __name__ == "__main__":
    main()
