"""A loader that was built anew draws what the given one drew, from the generator that it drew from."""

import pytest
import torch
from torch.utils.data import DataLoader

from diagnose.kernels._loader_bench import rebuilt
from diagnose.kernels.loader_tuning import Settings


def drawn_by(loader, generator):
    """Return where the global generator and the loader's own stand after two epochs."""
    torch.manual_seed(1)
    generator.manual_seed(2)
    for _ in range(2):
        list(loader)
    return torch.get_rng_state().tolist(), generator.get_state().tolist()


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loader_with_a_generator_of_its_own_leaves_the_global_one_alone(shuffle):
    generator = torch.Generator()
    given = DataLoader(range(8), batch_size=4, shuffle=shuffle, generator=generator)
    assert drawn_by(rebuilt(given, Settings(), pin=False), generator) == drawn_by(given, generator)


def test_what_is_measured_takes_no_draw_of_the_loaders_own():
    generator = torch.Generator().manual_seed(2)
    before = generator.get_state().tolist()
    list(rebuilt(DataLoader(range(8), generator=generator), Settings(), pin=False, entries=[[0], [1]]))
    assert generator.get_state().tolist() == before
