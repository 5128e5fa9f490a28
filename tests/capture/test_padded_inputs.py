"""Which inputs of modules end in padding, as the capture sees them."""

import torch
from torch import nn

from diagnose.capture.record.padded_inputs import PaddedInputs
from diagnose.capture.record.repeated_calls import RepeatedCalls


class Tagger(nn.Module):
    def forward(self, input_ids, attention_mask=None, weights=None):
        return input_ids.sum()


def texts(*lengths, width=32):
    ids = torch.zeros(len(lengths), width, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.arange(1, length + 1)
    return ids


def lengths(*calls):
    return [each.lengths for each in records(*calls)]


def seen(*calls):
    return [(each.module, each.positions, each.used) for each in records(*calls)]


def records(*calls):
    watch = RepeatedCalls()
    watch.start()
    try:
        for call in calls:
            Tagger()(**call)
    finally:
        watch.stop()
    return watch.padded.records()


def test_rows_of_different_lengths_show_padding_in_one_call():
    assert lengths({"input_ids": texts(5, 9, 9)}, {"input_ids": texts(7, 7)}) == [(2, 1)]


def test_the_longest_row_of_each_batch_is_what_is_used():
    first, second = texts(5, 9), texts(20, 3)
    calls = [{"input_ids": ids, "attention_mask": (ids > 0).long()} for ids in (first, second)]
    assert seen(*calls) == [("Tagger", (32, 32), (9, 20))]


def test_full_rows_and_what_is_the_same_everywhere_are_no_padding():
    full = torch.arange(1, 65).view(2, 32)
    assert seen({"input_ids": full, "attention_mask": torch.ones_like(full)}) == []
    assert seen({"input_ids": torch.zeros(2, 32, dtype=torch.long)}) == []


def test_what_is_no_batch_of_texts_is_not_looked_at():
    for shape, dtype in (
        ((2, 15), torch.long),
        ((1, 32), torch.long),
        ((2, 32), torch.float32),
        ((2, 4, 32), torch.long),
    ):
        ids = torch.ones(shape, dtype=dtype)
        ids[..., 8:] = 0
        assert seen({"input_ids": ids}) == []


def test_what_is_kept_is_let_go():
    inputs = PaddedInputs()
    inputs.note(Tagger(), (texts(5, 9), {"labels": [texts(2, 3)]}), 1, 2)
    assert len(inputs.records()) == 1
    assert inputs.records() == ()
