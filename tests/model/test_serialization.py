"""Python's collector is held back for a while and is afterwards as it was."""

from __future__ import annotations

import gc

import pytest

from diagnose.model.serialization import without_collector


@pytest.fixture(autouse=True)
def _as_before():
    was_on = gc.isenabled()
    yield
    (gc.enable if was_on else gc.disable)()


@pytest.mark.parametrize("is_on", [True, False])
def test_it_is_as_it_was_afterwards_after_an_error_too(is_on):
    (gc.enable if is_on else gc.disable)()
    with pytest.raises(ZeroDivisionError):
        without_collector()(_fail_beside_no_collector)()
    assert gc.isenabled() == is_on


def _fail_beside_no_collector() -> None:
    assert not gc.isenabled()
    raise ZeroDivisionError
