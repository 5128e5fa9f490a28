"""Train a hover/tracking controller by backpropagation through a planar quadrotor model."""
import argparse
import functools

import torch
import torch.nn as nn
import torch.nn.functional as F

compiled = functools.partial(torch.compile, backend="aot_eager", fullgraph=True)


class Airframe(nn.Module):
    """Rigid-body parameters, randomised per vehicle (domain randomisation)."""

    def __init__(self, n, gen):
        super().__init__()
        u = torch.rand(n, 5, generator=gen)
        self.register_buffer("mass", 0.6 + 0.4 * u[:, 0])
        self.register_buffer("inertia", 0.01 + 0.01 * u[:, 1])
        self.register_buffer("arm", 0.15 + 0.05 * u[:, 2])
        self.register_buffer("drag", 0.1 + 0.1 * u[:, 3])
        self.register_buffer("lag", 0.25 + 0.2 * u[:, 4])
        self.register_buffer("gravity", torch.tensor([0.0, 9.81]))


class Policy(nn.Module):
    def __init__(self, obs_dim, hidden):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(obs_dim, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.memory = nn.GRUCell(hidden, hidden)
        self.head = nn.Linear(hidden, 2)
        nn.init.zeros_(self.head.bias)
        self.head.weight.data.mul_(0.1)

    def forward(self, obs, h):
        h = self.memory(self.trunk(obs), h)
        return 2.0 * torch.sigmoid(self.head(h)), h


@compiled
def spool_up(motor, cmd, lag):
    return motor + lag.unsqueeze(-1) * (cmd - motor)


@compiled
def rotor_forces(motor, arm):
    return 4.9 * motor.sum(-1), 0.2 * arm * (motor[:, 1] - motor[:, 0])


@compiled
def air_drag(vel, gust, drag):
    air = vel[:, :2] - gust
    return -drag.unsqueeze(-1) * air * air.abs()


@compiled
def heading(theta):
    return torch.stack([-torch.sin(theta), torch.cos(theta)], -1)


def integrate(pose, vel, acc, dt):
    vel = (vel + dt * acc).clamp(-20, 20)
    return pose + dt * vel, vel


def dynamics(pose, vel, motor, cmd, gust, frame, dt):
    motor = spool_up(motor, cmd, frame.lag)
    thrust, torque = rotor_forces(motor, frame.arm)
    force = heading(pose[:, 2]) * thrust.unsqueeze(-1) + air_drag(vel, gust, frame.drag)
    lin = force / frame.mass.unsqueeze(-1) - frame.gravity
    rot = torque / frame.inertia - 0.5 * vel[:, 2]
    pose, vel = integrate(pose, vel, torch.cat([lin, rot.unsqueeze(-1)], -1), dt)
    return pose, vel, motor


@compiled
def observe(pose, vel, motor, goal):
    err = goal - pose[:, :2]
    ang = pose[:, 2:3]
    return torch.cat([err, torch.sin(ang), torch.cos(ang), vel * 0.2, motor], -1)


class ReferenceTracks:
    def __init__(self, n, horizon, dt, gen):
        self.n, self.gen = n, gen
        self.t = torch.arange(horizon) * dt

    def draw(self):
        amp = torch.rand(self.n, 2, 1, generator=self.gen)
        freq = 0.2 + 0.8 * torch.rand(self.n, 2, 1, generator=self.gen)
        phase = 6.28 * torch.rand(self.n, 2, 1, generator=self.gen)
        goal = (amp * torch.sin(6.28 * freq * self.t + phase)).permute(2, 0, 1).contiguous()
        white = torch.randn(len(self.t), self.n, 2, generator=self.gen)
        gust = F.avg_pool1d(white.permute(1, 2, 0), 9, 1, 4).permute(2, 0, 1).contiguous()
        return goal, gust


def episode(policy, frame, goal, gust, dt):
    n = goal.shape[1]
    pose = torch.cat([goal[0], torch.zeros(n, 1)], -1)
    vel = torch.zeros(n, 3)
    motor = torch.full((n, 2), 0.75)
    h = torch.zeros(n, policy.memory.hidden_size)
    cost = torch.zeros(())
    last = motor
    for target, wind in zip(goal, gust):
        cmd, h = policy(observe(pose, vel, motor, target), h)
        pose, vel, motor = dynamics(pose, vel, motor, cmd, wind, frame, dt)
        miss = F.huber_loss(pose[:, :2], target, reduction="sum") / n
        cost = cost + miss + 0.05 * vel[:, 2].square().mean() + 0.02 * (cmd - last).square().mean()
        last = cmd
    return cost / len(goal)


def main(argv=None):
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--vehicles", type=int, default=96)
    ap.add_argument("--horizon", type=int, default=50)
    ap.add_argument("--dt", type=float, default=0.02)
    ap.add_argument("--hidden", type=int, default=96)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=21)
    ap.add_argument("--print-every", type=int, default=5)
    args = ap.parse_args(argv)

    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)
    frame = Airframe(args.vehicles, gen)
    policy = Policy(9, args.hidden)
    tracks = ReferenceTracks(args.vehicles, args.horizon, args.dt, gen)
    opt = torch.optim.Adam(policy.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.995)

    best = float("inf")
    for it in range(args.steps):
        goal, gust = tracks.draw()
        cost = episode(policy, frame, goal, gust, args.dt)
        opt.zero_grad()
        cost.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        opt.step()
        sched.step()
        if (it + 1) % args.print_every == 0:
            value = cost.item()
            best = min(best, value)
            print(f"iter {it + 1:4d}  cost {value:.6f}  best {best:.6f}", flush=True)


if __name__ == "__main__":
    main()
