"""PPO learner for a summarisation policy; rollouts arrive scored from the sampler fleet."""
import argparse
import copy
import time
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical

HP = SimpleNamespace(vocab=4000, width=64, depth=2, heads=4, prompt=24, response=32, minibatch=8,
                     rollouts=512, lr=1e-4, clip=0.2, vf_coef=0.1, ent_coef=0.0, kl_coef=0.05,
                     gamma=1.0, lam=0.95)


class DecoderLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ff = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.n1(x)).reshape(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, w))
        return x + self.ff(self.n2(x))


class PolicyWithValue(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.start = hp.prompt - 1
        self.embed = nn.Embedding(hp.vocab, hp.width)
        self.pos = nn.Parameter(torch.zeros(hp.prompt + hp.response, hp.width))
        self.layers = nn.Sequential(*[DecoderLayer(hp.width, hp.heads) for _ in range(hp.depth)])
        self.norm = nn.LayerNorm(hp.width)
        self.lm_head = nn.Linear(hp.width, hp.vocab, bias=False)
        self.value = nn.Linear(hp.width, 1)

    def forward(self, tokens):
        h = self.embed(tokens[:, :-1]) + self.pos[: tokens.size(1) - 1]
        h = self.norm(self.layers(h))[:, self.start:]
        return self.lm_head(h), self.value(h).squeeze(-1)


def token_logprobs(logits, actions):
    return F.log_softmax(logits, -1).gather(-1, actions[..., None]).squeeze(-1)


@torch.no_grad()
def receive_rollouts(policy, hp):
    """Stand-in for the sampler queue: tokens, behaviour log-probs, values, advantages."""
    tokens = torch.randint(hp.vocab, (hp.rollouts, hp.prompt + hp.response))
    tokens[:, hp.prompt:] = tokens[:, hp.prompt:] % 600
    reference = copy.deepcopy(policy)
    for p in reference.parameters():
        p.add_(torch.randn_like(p) * 0.01)
    old_lp, values, ref_lp = [], [], []
    for part in tokens.split(32):
        logits, v = policy(part)
        old_lp.append(token_logprobs(logits, part[:, hp.prompt:]))
        ref_lp.append(token_logprobs(reference(part)[0], part[:, hp.prompt:]))
        values.append(v)
    old_lp, values, ref_lp = torch.cat(old_lp), torch.cat(values), torch.cat(ref_lp)
    reward = -hp.kl_coef * (old_lp - ref_lp)
    reward[:, -1] += (tokens[:, hp.prompt:] < 200).float().mean(1) * 3
    adv, carry = torch.zeros_like(reward), torch.zeros(hp.rollouts)
    for t in reversed(range(hp.response)):
        following = values[:, t + 1] if t + 1 < hp.response else 0.0
        carry = reward[:, t] + hp.gamma * following - values[:, t] + hp.gamma * hp.lam * carry
        adv[:, t] = carry
    return tokens, old_lp, values, (adv - adv.mean()) / (adv.std() + 1e-8), adv + values


def ppo_loss(policy, batch, hp, lean):
    tokens, old_lp, old_v, adv, ret = batch
    logits, v = policy(tokens)
    dist = Categorical(logits=logits, validate_args=False)
    ratio = (dist.log_prob(tokens[:, hp.prompt:]) - old_lp).exp()
    pg = torch.max(-adv * ratio, -adv * ratio.clamp(1 - hp.clip, 1 + hp.clip)).mean()
    v_clipped = old_v + (v - old_v).clamp(-hp.clip, hp.clip)
    vf = 0.5 * torch.max((v - ret) ** 2, (v_clipped - ret) ** 2).mean()
    loss = pg + hp.vf_coef * vf
    if lean and hp.ent_coef == 0:
        return loss
    return loss - hp.ent_coef * dist.entropy().mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--fixed", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(21)
    policy = PolicyWithValue(HP)
    rollouts = receive_rollouts(policy, HP)
    opt = torch.optim.Adam(policy.parameters(), lr=HP.lr, eps=1e-5, fused=True)
    spent, step = [], 0
    while step < args.steps:
        for rows in torch.randperm(HP.rollouts).split(HP.minibatch)[: args.steps - step]:
            t0 = time.perf_counter()
            loss = ppo_loss(policy, [field[rows] for field in rollouts], HP, lean=args.fixed)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            opt.step()
            step += 1
            if step % 50 == 0:
                print(f"update {step} loss {loss.item():.5f}")
            spent.append(time.perf_counter() - t0)
    print(f"step_ms={1000 * sum(spent[10:]) / max(1, len(spent[10:])):.2f}")


if __name__ == "__main__":
    main()
