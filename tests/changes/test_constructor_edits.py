"""Edits that make another object in the place of one: optimizers, streams."""

import libcst as cst
import pytest

from diagnose.changes.edits import script_edits
from diagnose.changes.edits.source_edits import edited_source

ADAMW = "optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)  # as usual\n"


@pytest.mark.parametrize(
    ("function", "after"),
    [
        ("with_eight_bit_adamw", "optimizer = eight_bit_adamw(model, lr=0.1)  # as usual\n"),
        (
            "with_zero_optimizer",
            "optimizer = zero_optimizer(torch.optim.AdamW, model.parameters(), lr=0.1)  # as usual\n",
        ),
    ],
)
def test_another_optimizer(function, after):
    tree, why = getattr(script_edits, function)(cst.parse_module(ADAMW), "cuda")
    assert (tree.code, why) == (after, "")


@pytest.mark.parametrize(
    ("function", "source", "why"),
    [
        (
            "with_eight_bit_adamw",
            "o = AdamW(m.parameters(), *given)\n",
            "its arguments are in a list that is not known",
        ),
        ("with_eight_bit_adamw", "o = SGD(p)\n", "the script calls no AdamW itself"),
        ("with_eight_bit_adamw", "o = AdamW(groups)\n", "the optimizer is not made of all parameters of one model"),
        ("with_eight_bit_adamw", "o = AdamW(m.parameters(), foreach=True)\n", "eight_bit_adamw does not take foreach"),
        ("with_sharded_stream", "loader = DataLoader()\n", "the script calls no DataLoader with a dataset itself"),
        ("with_sharded_stream", "d = ShardedStream(s)\n", "the script uses ShardedStream itself"),
        (
            "with_length_batches",
            "l = DataLoader(d, 4, True, drop_last=True)\n",
            "its DataLoader has a sampler or drop_l",
        ),
        ("with_length_batches", "l = DataLoader(d, 4, True, *more)\n", "its DataLoader has a sampler or drop_last, or"),
        ("with_length_batches", "l = DataLoader(d, 4, True, None)\n", "its DataLoader has a sampler"),
        ("with_length_batches", "l = DataLoader(D(), 4, True)\n", "the dataset is made in the call"),
        ("with_length_batches", "l = DataLoader(d, 4)\n", "the script calls no DataLoader with batch_size and shuf"),
        ("with_length_batches", "l = LengthBatches(n, 4)\n", "the script uses LengthBatches itself"),
    ],
)
def test_what_is_left_to_its_author(function, source, why):
    tree, reason = getattr(script_edits, function)(cst.parse_module(source), "cpu")
    assert tree.code == source
    assert reason.startswith(why)


def test_a_stream_is_wrapped():
    tree, _ = script_edits.with_sharded_stream(cst.parse_module("loader = DataLoader(stream, 8)\n"), "cpu")
    assert tree.code == "loader = DataLoader(ShardedStream(stream), 8)\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("data, batch_size=4, shuffle=True", "data, batch_sampler=LengthBatches(lengths_of(data), max_samples=4)"),
        (
            "dataset=self.data, shuffle=True, num_workers=2, batch_size=args.size, collate_fn=pad",
            "dataset=self.data, batch_sampler=LengthBatches(lengths_of(self.data), max_samples=args.size), "
            "num_workers=2, collate_fn=pad",
        ),
        ("data, 4, True, collate_fn=pad", "data, batch_sampler=LengthBatches(lengths_of(data), max_samples=4), "
         "collate_fn=pad"),
    ],
)  # fmt: skip
def test_batches_of_like_lengths_are_as_large_as_before(before, after):
    tree, why = script_edits.with_length_batches(
        cst.parse_module(f"a = DataLoader({before})\nb = DataLoader(v, 8)\n"), ""
    )
    assert (tree.code, why) == (f"a = DataLoader({after})\nb = DataLoader(v, 8)\n", "")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("DataLoader(\n        data,\n        batch_size=4,  # small\n    )", ["num_workers=4", "# small"]),
        ("DataLoader(data, num_workers = 0)", ["num_workers = 4"]),
        ("DataLoader(x for x in data)", ["(x for x in data), num_workers=4"]),
    ],
)
def test_arguments_are_set_as_in_a_printed_diff(before, after):
    source = f"import torch\ndef main():\n    loader = {before}\n"
    text, why = edited_source(source, "train.py", "load-in-workers", {})
    assert why == ""
    assert all(part in text for part in after)
    compile(text, "train.py", "exec")
