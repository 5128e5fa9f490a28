"""Next-word model for call-centre dialogue. Input words use frozen pretrained vectors
(large vocabulary); the output layer covers the frequent words only."""
import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


def pretrained_vectors(vocab, dim, seed):
    g = torch.Generator().manual_seed(seed)
    centre = torch.randn(256, dim, generator=g)
    return 0.5 * (centre[torch.arange(vocab) % 256] + torch.randn(vocab, dim, generator=g))


class DialogueStream:
    def __init__(self, vocab, out_vocab, batch, bptt, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.vocab, self.out_vocab, self.batch, self.bptt = vocab, out_vocab, batch, bptt
        self.cur = torch.randint(vocab, (batch,), generator=self.g)

    def __iter__(self):
        return self

    def __next__(self):
        cols = [self.cur]
        for _ in range(self.bptt):
            frequent = torch.rand(self.batch, generator=self.g) < 0.7
            follow = (cols[-1] * 7 + torch.randint(5, (self.batch,), generator=self.g)) % self.out_vocab
            rare = torch.randint(self.vocab, (self.batch,), generator=self.g)
            cols.append(torch.where(frequent, follow, rare))
        self.cur = cols[-1]
        block = torch.stack(cols, 1)
        target = block[:, 1:].clone()
        target[target >= self.out_vocab] = -100
        return block[:, :-1], target


class WordLM(nn.Module):
    def __init__(self, vectors, out_vocab, hidden=256):
        super().__init__()
        self.vectors = nn.Embedding.from_pretrained(vectors, freeze=True)
        self.adapt = nn.Linear(vectors.shape[1], hidden)
        self.rnn = nn.LSTM(hidden, hidden, batch_first=True)
        self.norm = nn.LayerNorm(hidden)
        self.out = nn.Linear(hidden, out_vocab)

    def forward(self, words, state=None):
        x = torch.tanh(self.adapt(self.vectors(words)))
        y, state = self.rnn(x, state)
        return self.out(self.norm(y)), state


class WeightAverage:
    """Exponential average of the weights, used for the reported perplexity."""

    def __init__(self, model, decay):
        self.decay = decay
        self.model = copy.deepcopy(model).eval()

    @torch.no_grad()
    def update(self, live):
        source = live.state_dict()
        for name, slot in self.model.state_dict().items():
            slot.lerp_(source[name], 1.0 - self.decay)

    @torch.no_grad()
    def perplexity(self, words, target):
        logits, _ = self.model(words)
        ce = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=-100)
        return ce.exp().item()


def detach(state):
    return tuple(s.detach() for s in state)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--vocab", type=int, default=170000)
    ap.add_argument("--out-vocab", type=int, default=1500)
    ap.add_argument("--dim", type=int, default=128)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--bptt", type=int, default=32)
    args = ap.parse_args()
    torch.manual_seed(2)
    model = WordLM(pretrained_vectors(args.vocab, args.dim, 2), args.out_vocab)
    average = WeightAverage(model, decay=0.98)
    trainable = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(trainable, lr=2e-3, fused=True)
    stream = DialogueStream(args.vocab, args.out_vocab, args.batch, args.bptt, 3)
    held_words, held_target = next(DialogueStream(args.vocab, args.out_vocab, 16, 32, 99))
    state = None
    for step, (words, target) in zip(range(1, args.steps + 1), stream):
        logits, state = model(words, state)
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=-100)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trainable, 0.5)
        opt.step()
        average.update(model)
        state = detach(state)
        if step % 20 == 0:
            ppl = average.perplexity(held_words, held_target)
            print(f"step {step} ce {loss.item():.5f} averaged ppl {ppl:.3f}")


if __name__ == "__main__":
    main()
