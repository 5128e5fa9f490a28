"""Physics-informed network for the viscous Burgers equation on [-1, 1] x [0, 1]."""
import argparse
import math
import time

import torch
from torch import nn

VISCOSITY = 0.01 / math.pi
INTERIOR = 512
EDGE = 64


class Field(nn.Module):
    def __init__(self, width=40, depth=4):
        super().__init__()
        sizes = [2] + [width] * depth
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.out = nn.Linear(width, 1)
        for layer in [*self.hidden, self.out]:
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x, t):
        h = torch.cat([x, t], dim=1)
        for layer in self.hidden:
            h = torch.tanh(layer(h))
        return self.out(h)


def grad(outputs, *inputs):
    found = torch.autograd.grad(outputs, inputs, torch.ones_like(outputs), create_graph=True)
    return found[0] if len(found) == 1 else found


class BurgersProblem:
    def __init__(self, field):
        self.u = field

    def u_t(self, x, t):
        return grad(self.u(x, t), t)

    def u_x(self, x, t):
        return grad(self.u(x, t), x)

    def u_xx(self, x, t):
        return grad(self.u_x(x, t), x)

    def residual(self, x, t):
        return self.u_t(x, t) + self.u(x, t) * self.u_x(x, t) - VISCOSITY * self.u_xx(x, t)

    def initial_error(self, x):
        return self.u(x, torch.zeros_like(x)) + torch.sin(math.pi * x)

    def wall_error(self, t):
        side = torch.cat([-torch.ones_like(t), torch.ones_like(t)])
        return self.u(side, torch.cat([t, t]))

    def loss(self, points):
        interior_x, interior_t, start_x, wall_t = points
        return (self.residual(interior_x, interior_t).square().mean()
                + self.initial_error(start_x).square().mean()
                + self.wall_error(wall_t).square().mean())


class SharedBurgersProblem(BurgersProblem):
    def residual(self, x, t):
        u = self.u(x, t)
        u_x, u_t = grad(u, x, t)
        return u_t + u * u_x - VISCOSITY * grad(u_x, x)


def draw_points(gen):
    interior_x = (2 * torch.rand(INTERIOR, 1, generator=gen) - 1).requires_grad_()
    interior_t = torch.rand(INTERIOR, 1, generator=gen).requires_grad_()
    start_x = 2 * torch.rand(EDGE, 1, generator=gen) - 1
    wall_t = torch.rand(EDGE, 1, generator=gen)
    return interior_x, interior_t, start_x, wall_t


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(20)
    gen = torch.Generator().manual_seed(4)
    field = Field()
    problem = SharedBurgersProblem(field) if args.fixed else BurgersProblem(field)
    optimizer = torch.optim.Adam(field.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9995)

    begin = time.process_time()
    for it in range(1, args.steps + 1):
        optimizer.zero_grad(set_to_none=True)
        loss = problem.loss(draw_points(gen))
        loss.backward()
        optimizer.step()
        schedule.step()
        if it % 50 == 0:
            print(f"it {it:4d}  loss {loss.item():.6f}")
        if it == 10:
            begin = time.process_time()
    print(f"step_ms={(time.process_time() - begin) * 1000 / max(1, args.steps - 10):.2f}")


if __name__ == "__main__":
    main()
