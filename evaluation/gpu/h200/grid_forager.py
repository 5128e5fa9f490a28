"""Advantage actor-critic on a batch of simulated foraging worlds; simulation and learning share the device."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

NUM_TILES, FLOOR, WALL = 24, 0, 1
VIEW = 9
MOVES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))


class ForagingWorlds:
    """`count` torus-shaped maps, one agent each. Tiles above WALL are items; a visited cell regrows at once."""

    def __init__(self, count, size, device):
        self.count, self.size, self.device = count, size, device
        weights = torch.full((NUM_TILES,), 0.52 / (NUM_TILES - 2))
        weights[FLOOR], weights[WALL] = 0.38, 0.10
        self.cdf = weights.cumsum(0).to(device)
        self.value = torch.linspace(-0.5, 1.0, NUM_TILES, device=device)
        self.value[FLOOR], self.value[WALL] = -0.01, -0.1
        self.moves = torch.tensor(MOVES, device=device)
        self.env = torch.arange(count, device=device)
        self.window = torch.arange(VIEW, device=device) - VIEW // 2
        self.tiles = self.draw_tiles((count, size, size))
        self.pos = torch.randint(size, (count, 2), device=device)

    def draw_tiles(self, shape):
        u = torch.rand(shape, device=self.device)
        return torch.bucketize(u, self.cdf).clamp_(max=NUM_TILES - 1)

    def observe(self):
        rows = (self.pos[:, :1] + self.window) % self.size
        cols = (self.pos[:, 1:] + self.window) % self.size
        return self.tiles[self.env[:, None, None], rows[:, :, None], cols[:, None, :]]

    def step(self, action):
        target = (self.pos + self.moves[action]) % self.size
        tile = self.tiles[self.env, target[:, 0], target[:, 1]]
        self.pos = torch.where((tile == WALL)[:, None], self.pos, target)
        self.tiles[self.env, self.pos[:, 0], self.pos[:, 1]] = self.draw_tiles((self.count,))
        return self.value[tile]


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return x + self.conv2(F.relu(self.conv1(F.relu(x))))


class ActorCritic(nn.Module):
    def __init__(self, tile_dim, width, depth, hidden, row_lookup):
        super().__init__()
        self.row_lookup = row_lookup
        self.tile_codes = nn.Parameter(torch.randn(NUM_TILES, tile_dim) * 0.5)
        self.stem = nn.Conv2d(tile_dim, width, 3, padding=1)
        self.trunk = nn.Sequential(*[Residual(width) for _ in range(depth)])
        self.fc = nn.Linear(width * VIEW * VIEW, hidden)
        self.policy = nn.Linear(hidden, len(MOVES))
        self.critic = nn.Linear(hidden, 1)

    def forward(self, obs):
        x = F.embedding(obs, self.tile_codes) if self.row_lookup else self.tile_codes[obs]
        x = F.relu(self.trunk(self.stem(x.permute(0, 3, 1, 2))))
        h = F.relu(self.fc(x.permute(0, 2, 3, 1).flatten(1)))
        return self.policy(h).float(), self.critic(h).float().squeeze(-1)


class Agent:
    def __init__(self, args, device):
        size, num_envs, map_size = dict(tile_dim=64, width=256, depth=4, hidden=512), 512, 48
        if args.small:
            size, num_envs, map_size = dict(tile_dim=64, width=16, depth=1, hidden=32), 8, 16
        self.device, self.gamma, self.horizon = device, 0.98, 4
        self.worlds = ForagingWorlds(num_envs, map_size, device)
        self.net = ActorCritic(row_lookup=args.fixed, **size).to(device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=2e-4, fused=True)

    def evaluate(self, obs):
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.device.type == "cuda"):
            return self.net(obs)

    @torch.no_grad()
    def rollout(self):
        seen, actions, rewards = [], [], []
        for _ in range(self.horizon):
            obs = self.worlds.observe()
            logits, _ = self.evaluate(obs)
            clock = torch.empty_like(logits).exponential_()
            action = (logits.softmax(-1) / clock).argmax(-1)
            seen, actions = seen + [obs], actions + [action]
            rewards.append(self.worlds.step(action))
        ret = self.evaluate(self.worlds.observe())[1]
        returns = []
        for reward in reversed(rewards):
            ret = reward + self.gamma * ret
            returns.append(ret)
        return torch.cat(seen), torch.cat(actions), torch.cat(returns[::-1])

    def update(self):
        obs, action, returns = self.rollout()
        logits, value = self.evaluate(obs)
        logp = logits.log_softmax(-1)
        advantage = (returns - value).detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        chosen = logp.gather(1, action[:, None]).squeeze(1)
        entropy = -(logp.exp() * logp).sum(-1).mean()
        loss = -(chosen * advantage).mean() + 0.5 * F.mse_loss(value, returns) - 0.01 * entropy
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
        self.optimizer.step()
        return loss.detach()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--steps", type=int, default=60)
    for flag in ("--fixed", "--small"):
        parser.add_argument(flag, action="store_true")
    args = parser.parse_args()
    torch.manual_seed(17)
    torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = True
    device = torch.device(args.device)
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    agent, mark = Agent(args, device), None
    for step in range(1, args.steps + 1):
        if step == 11:
            wait()
            mark = time.perf_counter()
        loss = agent.update()
        if step % 20 == 0 or step == args.steps:
            print(f"update {step} loss {loss.item():.5f}", flush=True)
    wait()
    if mark is not None:
        print(f"step_ms={(time.perf_counter() - mark) * 1000 / (args.steps - 10):.3f}")


if __name__ == "__main__":
    main()
