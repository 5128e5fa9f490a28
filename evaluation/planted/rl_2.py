"""Advantage actor-critic on a vectorised continuing control task."""
import argparse

import torch
from torch import nn

T, N_ENV, OBS, ACT = 256, 16, 8, 3


class PointMass:
    """N independent masses pushed towards the origin, never terminates."""

    def __init__(self):
        self.noise = 0.05
        self.a = 0.97 * torch.eye(OBS)
        self.b = 0.2 * torch.randn(ACT, OBS)

    def trajectory(self):
        obs = torch.randn(T + 1, N_ENV, OBS).mul_(0.3)
        act = torch.randn(T, N_ENV, ACT)
        nxt = obs[:-1] @ self.a + act @ self.b
        rew = -nxt.square().mean(-1) - 0.01 * act.square().mean(-1)
        return obs, act, rew


class ActorCritic(nn.Module):
    def __init__(self, hid=64):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(OBS, hid), nn.Tanh(), nn.Linear(hid, ACT))
        self.v = nn.Sequential(nn.Linear(OBS, hid), nn.Tanh(), nn.Linear(hid, 1))
        self.log_std = nn.Parameter(torch.zeros(ACT))

    def log_prob(self, obs, act):
        return torch.distributions.Normal(self.pi(obs), self.log_std.exp()).log_prob(act).sum(-1)


class Advantage:
    def __init__(self, gamma=0.98, lam=0.95, matrix=False):
        self.gamma, self.lam = gamma, lam
        steps = torch.arange(T)
        gap = (steps[None, :] - steps[:, None]).float()
        self.weights = torch.where(gap >= 0, (gamma * lam) ** gap.clamp(min=0), 0.0) if matrix else None

    @torch.no_grad()
    def __call__(self, rew, values):
        delta = rew + self.gamma * values[1:] - values[:-1]
        if self.weights is not None:
            return self.weights @ delta
        adv = torch.zeros_like(delta)
        running = torch.zeros(N_ENV)
        for t in reversed(range(T)):
            running = delta[t] + self.gamma * self.lam * running
            adv[t] = running
        return adv


def update(model, opt, env, advantage):
    obs, act, rew = env.trajectory()
    values = model.v(obs).squeeze(-1)
    adv = advantage(rew, values.detach())
    returns = adv + values[:-1].detach()
    norm = (adv - adv.mean()) / (adv.std() + 1e-6)
    pg = -(model.log_prob(obs[:-1], act) * norm).mean()
    vf = (values[:-1] - returns).square().mean()
    loss = pg + 0.5 * vf - 0.001 * model.log_std.sum()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    opt.step()
    return loss.detach(), vf.detach()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(13)
    env, model = PointMass(), ActorCritic()
    advantage = Advantage(matrix=args.fixed)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for k in range(args.steps):
        loss, vf = update(model, opt, env, advantage)
        if k % 5 == 0:
            print(f"update {k} loss {loss.item():.5f} value {vf.item():.5f}")


if __name__ == "__main__":
    main()
