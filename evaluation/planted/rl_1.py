"""Ensemble Q-learning from a fixed transition set (REDQ-style minimum over a subset)."""
import argparse
import copy

import torch
from torch import nn
import torch.nn.functional as F

OBS, ACT, HID, MEMBERS = 17, 6, 64, 24


class LoopedQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.members = nn.ModuleList(
            nn.Sequential(nn.Linear(OBS + ACT, HID), nn.ReLU(), nn.Linear(HID, HID), nn.ReLU(), nn.Linear(HID, 1))
            for _ in range(MEMBERS)
        )

    def forward(self, obs, act):
        x = torch.cat([obs, act], -1)
        return torch.stack([m(x).squeeze(-1) for m in self.members])


class StackedQ(nn.Module):
    def __init__(self, looped):
        super().__init__()
        self.w, self.b = nn.ParameterList(), nn.ParameterList()
        for layer in (0, 2, 4):
            self.w.append(torch.stack([m[layer].weight.detach().t() for m in looped.members]))
            self.b.append(torch.stack([m[layer].bias.detach() for m in looped.members]).unsqueeze(1))

    def forward(self, obs, act):
        h = torch.cat([obs, act], -1).expand(MEMBERS, -1, -1)
        for i in range(3):
            h = torch.baddbmm(self.b[i], h, self.w[i])
            h = F.relu(h) if i < 2 else h
        return h.squeeze(-1)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(OBS, HID), nn.ReLU(), nn.Linear(HID, ACT), nn.Tanh())

    def forward(self, obs):
        return self.net(obs)


@torch.no_grad()
def polyak(target, online, tau=0.01):
    for t, o in zip(target.parameters(), online.parameters()):
        t.lerp_(o, tau)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(70)
    obs, act = torch.randn(4000, OBS), torch.rand(4000, ACT) * 2 - 1
    nxt = obs + 0.1 * torch.randn(4000, OBS)
    rew = -(obs[:, :3].square().sum(1)) + act[:, 0]
    critic, policy = LoopedQ(), Policy().requires_grad_(False)
    if args.fixed:
        critic = StackedQ(critic)
    target = copy.deepcopy(critic).requires_grad_(False)
    opt = torch.optim.SGD(critic.parameters(), lr=1e-2)
    for step in range(args.steps):
        i = torch.randint(0, 4000, (128,))
        with torch.no_grad():
            subset = torch.randperm(MEMBERS)[:2]
            boot = target(nxt[i], policy(nxt[i]))[subset].amin(0)
            y = rew[i] + 0.98 * boot
        q = critic(obs[i], act[i])
        loss = (q - y).square().mean(1).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        polyak(target, critic)
        if step % 5 == 0:
            print(f"step {step} td {loss.item():.5f} q {q.detach().mean().item():.4f}")


if __name__ == "__main__":
    main()
