"""Physics-informed fit of a two-species advection-diffusion-reaction system in 2-D + time.

Unknown: diffusivities and the feed rate; observations: noisy point samples of both species.
"""
import argparse
import math

import torch
from torch import nn


class FourierFeatures(nn.Module):
    def __init__(self, n_in, n_freq, sigma, gen):
        super().__init__()
        self.register_buffer("B", sigma * torch.randn(n_in, n_freq, generator=gen))

    def forward(self, x):
        p = 2 * math.pi * x @ self.B
        return torch.cat([p.sin(), p.cos()], -1)


class ModifiedMLP(nn.Module):
    """Gated MLP (two encoders that modulate every hidden layer)."""

    def __init__(self, n_in, n_out, width, depth):
        super().__init__()
        self.enc_u = nn.Linear(n_in, width)
        self.enc_v = nn.Linear(n_in, width)
        self.first = nn.Linear(n_in, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth - 1))
        self.out = nn.Linear(width, n_out)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.xavier_normal_(m.weight)
                nn.init.zeros_(m.bias)

    def forward(self, z):
        u, v = torch.tanh(self.enc_u(z)), torch.tanh(self.enc_v(z))
        h = torch.tanh(self.first(z))
        for layer in self.hidden:
            g = torch.tanh(layer(h))
            h = g * u + (1 - g) * v
        return self.out(h)


class ReactionDiffusion(nn.Module):
    def __init__(self, width, depth, seed):
        super().__init__()
        gen = torch.Generator().manual_seed(seed)
        self.embed = FourierFeatures(3, 16, 0.6, gen)
        self.net = ModifiedMLP(32, 2, width, depth)
        self.raw = nn.Parameter(torch.tensor([-3.0, -3.5, -1.0]))
        self.register_buffer("velocity", torch.tensor([0.4, -0.2]))

    @property
    def coefficients(self):
        return nn.functional.softplus(self.raw)

    def fields(self, x, y, t):
        c = self.net(self.embed(torch.cat([x, y, t], 1)))
        return c[:, :1], c[:, 1:]

    def residuals(self, pts):
        x, y, t = (pts[:, i:i + 1].clone().requires_grad_(True) for i in range(3))
        a, b = self.fields(x, y, t)
        d_a, d_b, feed = self.coefficients
        adv_a, diff_a = self.transport(a, x, y, t)
        adv_b, diff_b = self.transport(b, x, y, t)
        react = a * b * b
        res_a = adv_a - d_a * diff_a + react - feed * (1 - a)
        res_b = adv_b - d_b * diff_b - react + (feed + 0.06) * b
        return res_a, res_b

    def transport(self, c, x, y, t):
        c_x = derivative(c, x)
        c_y = derivative(c, y)
        c_t = derivative(c, t)
        c_xx = derivative(c_x, x)
        c_yy = derivative(c_y, y)
        return c_t + self.velocity[0] * c_x + self.velocity[1] * c_y, c_xx + c_yy


def derivative(f, v):
    return torch.autograd.grad(f, v, grad_outputs=torch.ones_like(f), create_graph=True)[0]


class Collocation:
    def __init__(self, n, seed):
        self.sobol = torch.quasirandom.SobolEngine(3, scramble=True, seed=seed)
        self.n = n

    def __call__(self):
        return self.sobol.draw(self.n)


def observations(n, seed):
    g = torch.Generator().manual_seed(seed)
    p = torch.rand(n, 3, generator=g)
    r2 = (p[:, 0] - 0.3 - 0.4 * p[:, 2]) ** 2 + (p[:, 1] - 0.6 + 0.2 * p[:, 2]) ** 2
    b = torch.exp(-20 * r2)
    ab = torch.stack([1 - 0.5 * b, 0.4 * b], 1)
    return p, ab + 0.01 * torch.randn(n, 2, generator=g)


def initial_condition(n, gen):
    p = torch.rand(n, 3, generator=gen)
    p[:, 2] = 0
    b = torch.exp(-20 * ((p[:, 0] - 0.3) ** 2 + (p[:, 1] - 0.6) ** 2))
    return p, torch.stack([1 - 0.5 * b, 0.4 * b], 1)


def main(args):
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed + 1)
    model = ReactionDiffusion(args.width, args.depth, args.seed)
    interior = Collocation(args.points, args.seed)
    obs_x, obs_c = observations(600, args.seed)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.995)

    def supervised(p, target):
        pred = torch.cat(model.fields(*p.split(1, 1)), 1)
        return (pred - target).pow(2).mean()

    for step in range(1, args.steps + 1):
        res_a, res_b = model.residuals(interior())
        loss_pde = res_a.pow(2).mean() + res_b.pow(2).mean()
        loss_obs = supervised(obs_x, obs_c)
        loss_ic = supervised(*initial_condition(256, gen))
        loss = loss_pde + 20.0 * loss_obs + 10.0 * loss_ic
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if step % args.report == 0:
            coeffs = ", ".join(f"{c:.4f}" for c in model.coefficients.tolist())
            print(f"{step:5d} pde {loss_pde.item():.3e} obs {loss_obs.item():.3e} "
                  f"ic {loss_ic.item():.3e} coeffs [{coeffs}]", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--points", type=int, default=900)
    ap.add_argument("--width", type=int, default=72)
    ap.add_argument("--depth", type=int, default=4)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--report", type=int, default=10)
    ap.add_argument("--seed", type=int, default=8)
    main(ap.parse_args())
