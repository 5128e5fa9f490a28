"""Physics-informed network for unsteady incompressible flow (Taylor-Green data, unknown viscosity)."""
import time

import numpy as np
import torch
import torch.nn as nn

N_DATA = 2000
N_COLLOC = 8000
BATCH_DATA = 256
BATCH_F = 512
LAYERS = [3, 48, 48, 48, 48, 3]
NU_TRUE = 0.05


def taylor_green(x, y, t, nu=NU_TRUE):
    decay = np.exp(-2 * nu * t)
    u = np.cos(x) * np.sin(y) * decay
    v = -np.sin(x) * np.cos(y) * decay
    p = -0.25 * (np.cos(2 * x) + np.cos(2 * y)) * decay ** 2
    return u, v, p


def sample_domain(rng, n):
    x = rng.uniform(0, 2 * np.pi, size=(n, 1))
    y = rng.uniform(0, 2 * np.pi, size=(n, 1))
    t = rng.uniform(0, 2.0, size=(n, 1))
    return x, y, t


def grad(out, wrt):
    return torch.autograd.grad(out, wrt, grad_outputs=torch.ones_like(out), create_graph=True)[0]


class FlowNet(nn.Module):
    def __init__(self, layers, lower, upper):
        super().__init__()
        self.register_buffer("lower", torch.as_tensor(lower, dtype=torch.float32))
        self.register_buffer("upper", torch.as_tensor(upper, dtype=torch.float32))
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in zip(layers[:-1], layers[1:]))
        for lin in self.linears:
            nn.init.xavier_normal_(lin.weight)
            nn.init.zeros_(lin.bias)

    def forward(self, x, y, t):
        h = torch.cat([x, y, t], dim=1)
        h = 2.0 * (h - self.lower) / (self.upper - self.lower) - 1.0
        for lin in self.linears[:-1]:
            h = torch.tanh(lin(h))
        out = self.linears[-1](h)
        return out[:, 0:1], out[:, 1:2], out[:, 2:3]


class PINN:
    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.rng = np.random.default_rng(seed)
        self.net = FlowNet(LAYERS, [0, 0, 0], [2 * np.pi, 2 * np.pi, 2.0])
        self.log_nu = nn.Parameter(torch.tensor(np.log(0.2), dtype=torch.float32))

        xd, yd, td = sample_domain(self.rng, N_DATA)
        ud, vd, _ = taylor_green(xd, yd, td)
        noise = 0.01 * self.rng.normal(size=(N_DATA, 2))
        self.data = torch.as_tensor(np.hstack([xd, yd, td, ud + noise[:, :1], vd + noise[:, 1:]]), dtype=torch.float32)
        self.colloc = torch.as_tensor(np.hstack(sample_domain(self.rng, N_COLLOC)), dtype=torch.float32)

        self.opt = torch.optim.Adam([
            {"params": self.net.parameters(), "lr": 1e-3},
            {"params": [self.log_nu], "lr": 5e-3},
        ], fused=True)
        self.sched = torch.optim.lr_scheduler.ExponentialLR(self.opt, gamma=0.9995)

    def residual(self, pts):
        x, y, t = (pts[:, i:i + 1].clone().requires_grad_(True) for i in range(3))
        u, v, p = self.net(x, y, t)
        nu = self.log_nu.exp()

        u_t = grad(u, t)
        u_x = grad(u, x)
        u_y = grad(u, y)
        v_t = grad(v, t)
        v_x = grad(v, x)
        v_y = grad(v, y)
        p_x = grad(p, x)
        p_y = grad(p, y)

        u_xx = grad(u_x, x)
        u_yy = grad(u_y, y)
        v_xx = grad(v_x, x)
        v_yy = grad(v_y, y)

        f_u = u_t + u * u_x + v * u_y + p_x - nu * (u_xx + u_yy)
        f_v = v_t + u * v_x + v * v_y + p_y - nu * (v_xx + v_yy)
        f_c = u_x + v_y
        return f_u, f_v, f_c

    def loss(self):
        d = self.data[torch.randint(len(self.data), (BATCH_DATA,))]
        u, v, _ = self.net(d[:, 0:1], d[:, 1:2], d[:, 2:3])
        fit = (u - d[:, 3:4]).pow(2).mean() + (v - d[:, 4:5]).pow(2).mean()
        f_u, f_v, f_c = self.residual(self.colloc[torch.randint(len(self.colloc), (BATCH_F,))])
        physics = f_u.pow(2).mean() + f_v.pow(2).mean() + f_c.pow(2).mean()
        return fit, physics

    @torch.no_grad()
    def velocity_error(self, n=4000):
        x, y, t = sample_domain(np.random.default_rng(99), n)
        u_ref, v_ref, _ = taylor_green(x, y, t)
        u, v, _ = self.net(*(torch.as_tensor(a, dtype=torch.float32) for a in (x, y, t)))
        err = np.hypot(u.numpy() - u_ref, v.numpy() - v_ref)
        return float(np.sqrt((err ** 2).mean() / (u_ref ** 2 + v_ref ** 2).mean()))

    def train(self, iterations):
        t0 = time.time()
        for it in range(1, iterations + 1):
            fit, physics = self.loss()
            loss = fit + physics
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.sched.step()
            if it % 20 == 0:
                print(f"it {it:5d} fit {fit.item():.3e} physics {physics.item():.3e} "
                      f"nu {self.log_nu.exp().item():.4f} {(time.time() - t0) / it * 1e3:.1f} ms/it", flush=True)
            if it % 500 == 0:
                print(f"  relative velocity error {self.velocity_error():.3e}", flush=True)


if __name__ == "__main__":
    PINN().train(5000)
