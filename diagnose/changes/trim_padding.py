"""Pad each batch to its own longest row.

What it does
    Leaves out the positions that no row of a batch uses.

What to watch
    Lengths then differ from batch to batch: compiled models want `dynamic=True` or lengths rounded up, say to a
    multiple of 16, and graphs hold one length. Batches of like lengths save more (`group-lengths`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_kind
from diagnose.changes.common.change import Advice, ByHand, Change, rounding
from diagnose.text.numbers import percent

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program

MIN_SAVED_SHARE = 0.6  # of the positions' share: what does not depend on them stays
_BEFORE = 'batch = tokenizer(texts, padding="max_length", truncation=True, return_tensors="pt")'
_AFTER = """batch = tokenizer(texts, padding="longest", truncation=True, return_tensors="pt")   # of one batch
# a Trainer of Hugging Face's, or texts that are tokenized once: no padding= there, and each batch is padded by
# data_collator=DataCollatorWithPadding(tokenizer), or DataLoader(..., collate_fn=that)
# a collate function of your own: width = max(len(ids) for ids, _ in samples)
# batches that are padded already, before they go to the model:
width = int(batch["attention_mask"].any(0).sum())
batch = {name: each[:, :width].contiguous() if each.dim() > 1 else each for name, each in batch.items()}"""

_SIGNALS = """from functools import partial

# each batch is as long as its longest signal
pad = partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
DataLoader(dataset, batch_size=32, collate_fn=pad)"""


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice:
    padded = finding.facts.get("padded")
    share = percent(padded, 0) if isinstance(padded, float) else ""
    return Advice(
        title=f"Pad each batch to its own longest row ({share} of the positions are padding)" if share else "",
        before="" if finding.facts.get("of_signals") else _BEFORE,
        after=_SIGNALS if finding.facts.get("of_signals") else _AFTER,
        least=MIN_SAVED_SHARE,
        needs="a model that a mask or a loss keeps from using it; of padding in front, cut the first positions",
    )


CHANGE = Change(
    id="trim-padding",
    title="Pad each batch to its own longest row",
    numerics=rounding("sums over fewer positions are taken in another order"),
    applies=to_kind("padding"),
    advice=_advice,
    patch=ByHand("where batches are padded only the script's author knows"),
    edit=ByHand("where batches are padded only the script's author knows"),
    without_remedy="a line of the script's own",
)
