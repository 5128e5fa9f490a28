"""What tests of patches share."""

import pytest

from diagnose.changes import patch_of
from diagnose.changes.common.change import Log


@pytest.fixture
def patched():
    """Return a function that installs a patch and its log; undone at the end."""
    undo = []

    def install(name, **options):
        log = Log()
        undo.append(patch_of(name).install(log, options))
        return log

    yield install
    for one in reversed(undo):
        one()
