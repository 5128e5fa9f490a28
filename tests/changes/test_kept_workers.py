"""What the promise of workers that are kept rests on: torch draws for later epochs otherwise, not for the first."""

import pytest
import torch
from torch.utils.data import DataLoader

from diagnose.changes import CHANGES


def epochs(**arguments):
    """Return the order of the samples in two epochs, and what the training thread draws after each."""
    torch.manual_seed(0)
    loader = DataLoader(range(16), batch_size=8, shuffle=True, **arguments)
    return [(torch.cat(list(loader)).tolist(), torch.rand(()).item()) for _ in range(2)]


def test_kept_workers_repeat_the_first_epoch_and_no_later_one():
    alone, started = epochs(), epochs(num_workers=1)
    kept = epochs(num_workers=1, persistent_workers=True)
    assert started == alone
    assert kept[0] == alone[0]
    assert kept[1][0] != alone[1][0]
    assert kept[1][1] != alone[1][1]


@pytest.mark.parametrize("name", ["load-in-workers", "more-workers", "keep-workers"])
def test_the_same_numbers_are_promised_for_the_first_epoch_alone(name):
    numerics = CHANGES[name].numerics
    assert numerics.first_epoch
    assert numerics.safety.startswith("same numbers in the first epoch")
    assert numerics.safety.endswith("with persistent_workers=True later epochs shuffle and draw differently")
