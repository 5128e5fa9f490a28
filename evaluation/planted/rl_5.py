"""Deterministic policy gradient with tensor replay and delayed actor updates."""
import argparse
import copy

import torch
from torch import nn
import torch.nn.functional as F

OBS, ACT, HID = 20, 4, 192


def net(n_in, n_out, last=None):
    layers = [nn.Linear(n_in, HID), nn.ReLU(), nn.Linear(HID, HID), nn.ReLU(), nn.Linear(HID, n_out)]
    return nn.Sequential(*layers, *([last] if last else []))


class Replay:
    def __init__(self, capacity):
        self.buf = torch.zeros(capacity, 2 * OBS + ACT + 1)
        self.n = self.at = 0

    def add(self, rows):
        idx = (self.at + torch.arange(len(rows))) % len(self.buf)
        self.buf[idx] = rows
        self.at = (self.at + len(rows)) % len(self.buf)
        self.n = min(self.n + len(rows), len(self.buf))

    def sample(self, k):
        return self.buf[torch.randint(0, self.n, (k,))].split([OBS, ACT, OBS, 1], 1)


class LinearPlant:
    def __init__(self, n_env=16):
        self.a, self.b = 0.96 * torch.eye(OBS), 0.2 * torch.randn(ACT, OBS)
        self.obs = torch.randn(n_env, OBS)

    def step(self, act):
        nxt = self.obs @ self.a + act @ self.b + 0.02 * torch.randn_like(self.obs)
        row = torch.cat([self.obs, act, nxt, -nxt[:, :5].square().sum(1, keepdim=True)], 1)
        self.obs = nxt
        return row


@torch.no_grad()
def soft_update(target, source, tau):
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), tau)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(311)
    actor, critic = net(OBS, ACT, nn.Tanh()), net(OBS + ACT, 1)
    actor_t, critic_t = (copy.deepcopy(m).requires_grad_(False) for m in (actor, critic))
    opt_a = torch.optim.Adam(actor.parameters(), lr=3e-4, fused=True)
    opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3, fused=True)
    env, memory = LinearPlant(), Replay(8000)
    memory.add(torch.cat([env.step(torch.rand(16, ACT) * 2 - 1) for _ in range(100)]))
    for step in range(args.steps):
        with torch.no_grad():
            act = (actor(env.obs) + 0.2 * torch.randn(16, ACT)).clamp(-1, 1)
        memory.add(env.step(act))
        obs, act, nxt, rew = memory.sample(768)
        with torch.no_grad():
            y = rew + 0.97 * critic_t(torch.cat([nxt, actor_t(nxt)], 1))
        critic_loss = F.mse_loss(critic(torch.cat([obs, act], 1)), y)
        opt_c.zero_grad()
        critic_loss.backward()
        opt_c.step()
        if step % 2 == 1:
            critic.requires_grad_(False)
            actor_loss = -critic(torch.cat([obs, actor(obs)], 1)).mean()
            opt_a.zero_grad()
            actor_loss.backward()
            opt_a.step()
            critic.requires_grad_(True)
            soft_update(actor_t, actor, 0.01)
            soft_update(critic_t, critic, 0.01)
        if step % 5 == 4:
            print(f"step {step + 1} critic {critic_loss.item():.5f}")


if __name__ == "__main__":
    main()
