"""A fake device, for each test a new one."""

import pytest

from tests.kernels.ordering.fake_device import fake_device


@pytest.fixture
def device():
    with fake_device() as device:
        yield device
