"""Groups of GPUs by their links, of a driver that answers as NVML would."""

import pytest

from diagnose.kernels.distributed._topology import link_groups, link_levels


class NotSupportedError(Exception):
    pass


class FakeDriver:
    """GPUs named 0, 1, …; pairs joined by NVLink, and sockets of four, in which every two share a PCIe switch."""

    def __init__(self, bridges=(), *, per_switch=2, per_socket=4, ancestors=True):
        self.bridges, self.sizes, self.ancestors = set(bridges), (per_switch, per_socket), ancestors

    def nvmlInit(self):
        pass

    def nvmlShutdown(self):
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if not (isinstance(uuid, str) and uuid.startswith("GPU-")):
            raise NotSupportedError
        return uuid.removeprefix("GPU-")

    def nvmlDeviceGetP2PStatus(self, a, b, index):
        if index != 2:  # NVLink
            return 0
        return 0 if frozenset((a, b)) in self.bridges else 5

    def nvmlDeviceGetTopologyCommonAncestor(self, a, b):
        if not self.ancestors:
            raise NotSupportedError
        switch, socket = self.sizes
        a, b = int(a), int(b)
        return 10 if a // switch == b // switch else 40 if a // socket == b // socket else 50


def grouped(num, driver):
    return link_groups(link_levels(driver, [str(i) for i in range(num)]))


def pairs(*names):
    return {frozenset(name) for name in names}


def test_levels_are_those_of_the_nearest_link():
    levels = link_levels(FakeDriver(pairs("02")), ["0", "1", "2", "4"])
    assert levels == [[0, 10, 0, 50], [10, 0, 40, 50], [0, 40, 0, 50], [50, 50, 50, 0]]


@pytest.mark.parametrize(
    ("num", "driver", "groups"),
    [
        (8, FakeDriver(), [[0, 1, 2, 3], [4, 5, 6, 7]]),  # two sockets
        (4, FakeDriver(), [[0, 1], [2, 3]]),  # two switches of a socket
        (2, FakeDriver(), [[0, 1]]),
        (1, FakeDriver(), [[0]]),
        (8, FakeDriver(pairs("01", "23", "45", "67")), [[0, 1], [2, 3], [4, 5], [6, 7]]),  # bridges
        (4, FakeDriver(pairs("01", "12", "23")), [[0, 1, 2, 3]]),  # a chain of links joins all
        (6, FakeDriver(pairs("01", "12", "34")), [[0, 1, 2, 3, 4, 5]]),  # three, two and one: no mesh
        (6, FakeDriver(), [[0, 1], [2, 3], [4, 5]]),  # sockets of four and two; switches are of one size
        (4, FakeDriver(ancestors=False), [[0, 1, 2, 3]]),  # the driver has no answer
    ],
)
def test_groups_have_the_fastest_links(num, driver, groups):
    assert grouped(num, driver) == groups


def test_a_gpu_that_the_driver_does_not_know():
    class Fewer(FakeDriver):
        def nvmlDeviceGetHandleByUUID(self, uuid):
            raise NotSupportedError

    assert grouped(4, Fewer()) == [[0, 1, 2, 3]]
