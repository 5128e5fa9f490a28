"""From a diagnosis to what is run of it."""

from types import SimpleNamespace

import pytest

from diagnose.trials.prove import starts_own_ranks


@pytest.mark.parametrize(
    ("num_ranks", "launcher", "own"), [(2, (), True), (2, ("torchrun",), False), (0, (), False), (1, (), False)]
)
def test_ranks_without_a_launcher_are_the_script_s_own(num_ranks, launcher, own):
    assert starts_own_ranks(SimpleNamespace(ranks=(None,) * num_ranks), launcher) is own
