"""Second-order meta-learning over families of damped waves; adapts a small regressor per task."""
import argparse
import time

import torch
import torch.nn.functional as F

TASKS, SHOTS, QUERIES, WIDTH = 12, 20, 40, 80
INNER_STEPS, INNER_LR = 3, 0.02


def wave_tasks(gen):
    """Endless (support x, support y, query x, query y), all tasks of a meta-batch stacked."""
    while True:
        amp, phase, decay = torch.rand(3, TASKS, 1, 1, generator=gen).unbind(0)
        amp, phase, decay = 0.5 + 2 * amp, 3.14 * phase, 0.05 + 0.2 * decay
        x = 10 * torch.rand(TASKS, SHOTS + QUERIES, 1, generator=gen) - 5
        y = amp * torch.sin(x + phase) * torch.exp(-decay * x.abs())
        x = x / 5
        yield x[:, :SHOTS], y[:, :SHOTS], x[:, SHOTS:], y[:, SHOTS:]


def init_params(gen):
    sizes = [(1, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH, 1)]
    params = []
    for fan_in, fan_out in sizes:
        w = torch.randn(fan_in, fan_out, generator=gen) * (2.0 / fan_in) ** 0.5
        params += [w, torch.zeros(1, fan_out)]
    return [p.requires_grad_() for p in params]


def regress(params, x):
    """params carry a leading task axis; x is (tasks, points, 1)."""
    layers = list(zip(params[::2], params[1::2]))
    for w, b in layers[:-1]:
        x = torch.relu(torch.baddbmm(b, x, w))
    w, b = layers[-1]
    return torch.baddbmm(b, x, w)


def per_task_mse(pred, y):
    return F.mse_loss(pred, y, reduction="none").mean((1, 2))


def adapt(params, rates, x, y):
    fast = [p.expand(TASKS, *p.shape) for p in params]
    for k in range(INNER_STEPS):
        inner = per_task_mse(regress(fast, x), y).sum()
        grads = torch.autograd.grad(inner, fast, create_graph=True)
        fast = [p - rates[k] * g for p, g in zip(fast, grads)]
    return fast


def meta_loss(params, rates, batch):
    sx, sy, qx, qy = batch
    fast = adapt(params, rates, sx, sy)
    return per_task_mse(regress(fast, qx), qy).mean()


def run(steps):
    gen = torch.Generator().manual_seed(17)
    params = init_params(gen)
    rates = torch.full((INNER_STEPS,), INNER_LR, requires_grad=True)
    opt = torch.optim.Adam([{"params": params, "lr": 1e-3}, {"params": [rates], "lr": 1e-4}], fused=True)
    tasks = wave_tasks(gen)
    history = []
    for step in range(steps):
        if step == 10:
            began = time.perf_counter()
        loss = meta_loss(params, rates, next(tasks))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 10.0)
        opt.step()
        history.append(loss.detach())
        if (step + 1) % 50 == 0:
            recent = torch.stack(history).mean().item()
            history.clear()
            print(f"step {step + 1} loss {recent:.5f} rates {[round(r, 4) for r in rates.tolist()]}")
    print(f"step_ms={(time.perf_counter() - began) * 1e3 / (steps - 10):.3f}")


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--steps", type=int, default=300)
    cli.add_argument("--fixed", action="store_true")
    run(cli.parse_args().steps)
