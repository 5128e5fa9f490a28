"""DeepONet for steady diffusion with random conductivity on the unit square."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def random_fields(n, m, gen, length=0.25):
    k = torch.fft.fftfreq(m, 1 / m)
    k2 = k[:, None] ** 2 + k[None] ** 2
    amp = torch.exp(-0.5 * (length * torch.pi) ** 2 * k2)
    z = torch.complex(torch.randn(n, m, m, generator=gen), torch.randn(n, m, m, generator=gen))
    f = torch.fft.ifft2(amp * z).real
    f = f / f.std((1, 2), keepdim=True)
    return torch.exp(0.7 * f)


def solve_diffusion(kappa, sweeps=400):
    """Jacobi iterations for -div(kappa grad u) = 1, u = 0 on the boundary."""
    n, m, _ = kappa.shape
    h2 = 1.0 / (m - 1) ** 2
    u = torch.zeros_like(kappa)
    mid = lambda a, b: 2 * a * b / (a + b)
    c = kappa[:, 1:-1, 1:-1]
    e, w = mid(c, kappa[:, 1:-1, 2:]), mid(c, kappa[:, 1:-1, :-2])
    s, t = mid(c, kappa[:, 2:, 1:-1]), mid(c, kappa[:, :-2, 1:-1])
    diag = e + w + s + t
    for _ in range(sweeps):
        u[:, 1:-1, 1:-1] = (e * u[:, 1:-1, 2:] + w * u[:, 1:-1, :-2] + s * u[:, 2:, 1:-1] + t * u[:, :-2, 1:-1] + h2) / diag
    return u


def mlp(sizes, act):
    mods = []
    for i, o in zip(sizes[:-1], sizes[1:]):
        mods += [nn.Linear(i, o), act()]
    return nn.Sequential(*mods[:-1])


class Branch(nn.Module):
    def __init__(self, m, width, basis):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 24, 5, 2, 2), nn.GELU(), nn.Conv2d(24, 48, 5, 2, 2), nn.GELU(),
                                  nn.Conv2d(48, 48, 3, 2, 1), nn.GELU(), nn.Flatten())
        side = (m + 7) // 8
        self.fc = mlp([48 * side * side, width, basis], nn.GELU)

    def forward(self, kappa):
        return self.fc(self.conv(torch.log(kappa)[:, None]))


class Trunk(nn.Module):
    def __init__(self, width, basis, bands=4):
        super().__init__()
        self.register_buffer("freq", torch.pi * 2.0 ** torch.arange(bands))
        self.net = mlp([2 + 4 * bands, width, width, basis], nn.Tanh)

    def forward(self, xy):
        z = (xy[..., None] * self.freq).flatten(-2)
        return self.net(torch.cat([xy, z.sin(), z.cos()], -1))


class DeepONet(nn.Module):
    def __init__(self, m, width=64, basis=48):
        super().__init__()
        self.branch, self.trunk = Branch(m, width, basis), Trunk(width, basis)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, kappa, coords):
        """kappa: B x m x m, coords: B x P x 2 -> B x P"""
        b = self.branch(kappa)
        t = self.trunk(coords)
        hard = 16 * (coords * (1 - coords)).prod(-1)
        return hard * (torch.einsum("bk,bpk->bp", b, t) + self.bias)


def relative_l2(pred, target):
    return ((pred - target).norm(dim=1) / target.norm(dim=1)).mean()


class Problem:
    def __init__(self, n, m, seed):
        gen = torch.Generator().manual_seed(seed)
        self.kappa = random_fields(n, m, gen)
        u = solve_diffusion(self.kappa)
        self.scale = u.std()
        self.u = (u / self.scale).flatten(1)
        g = torch.linspace(0, 1, m)
        self.grid = torch.cartesian_prod(g, g)
        self.gen = gen

    def batch(self, size, n_query):
        i = torch.randint(len(self.kappa), (size,), generator=self.gen)
        j = torch.randint(len(self.grid), (n_query,), generator=self.gen)
        coords = self.grid[j].expand(size, n_query, 2)
        return self.kappa[i], coords, self.u[i][:, j]


def train(args):
    torch.manual_seed(args.seed)
    problem = Problem(120, args.resolution, args.seed)
    net = DeepONet(args.resolution)
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    decay = torch.optim.lr_scheduler.ExponentialLR(opt, 0.999)
    for it in range(1, args.steps + 1):
        kappa, coords, target = problem.batch(args.batch, args.queries)
        loss = relative_l2(net(kappa, coords), target)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        decay.step()
        if it % 10 == 0:
            print(f"iter {it:5d} rel-L2 {loss.item():.4f} lr {decay.get_last_lr()[0]:.2e}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=40)
    parser.add_argument("--queries", type=int, default=256)
    parser.add_argument("--resolution", type=int, default=52)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    train(parser.parse_args())
