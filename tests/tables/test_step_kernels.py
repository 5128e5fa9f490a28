"""Steps that the order of the kernels shows where there are no marks at all."""

import pytest

from diagnose.tables.steps import repeated_kernels

LAYER = ["norm", "qkv", "attention", "out", "up", "down"]


def running(recording, num, *, layers=3, layer=LAYER, extra_in=-1):
    """Return steps of an embedding, layers and a head, kernels of 8 µs each; one of them has an extra kernel."""
    r, time = recording(), 0
    for i in range(num):
        for name in ["embed", *layer * layers, "head", *["log"] * (i == extra_in)]:
            r.kernel(name, time + 2, time + 10, launched=(time - 20, time - 15))
            time += 10
    return r.tables().steps


def test_kernels_that_repeat_in_one_order_part_steps(recording):
    found = running(recording, 5)
    assert (found.found_by, found.num) == ("kernels", 5)
    assert (found.end - found.start)[:-1].tolist() == [200_000] * 4
    assert [note.text for note in found.notes] == [
        "The trace has no step marks of the profiler: its steps are parted by 5 × embed."
    ]


def test_a_kernel_now_and_then_changes_nothing(recording):
    layer = [f"op{i}" for i in range(20)]
    assert running(recording, 8, layer=layer, layers=1, extra_in=2).num == 8


def test_kernels_of_a_device_that_is_not_known(recording):
    r = recording()
    for i in range(60):
        device = -1 if i < 20 else 0
        r.kernel(f"op{i % 20}", 10 * i + 2, 10 * i + 10, device=device, launched=(10 * i - 20, 10 * i - 15))
    assert len(repeated_kernels(r.trace)) == 0  # two steps of the device that is known
    assert not r.tables().steps.marked


@pytest.mark.parametrize(("num", "layers"), [(1, 24), (2, 24)])
def test_layers_are_no_steps(recording, num, layers):
    assert not running(recording, num, layers=layers).marked


def test_single_operators_that_are_measured_are_no_steps(recording):
    r = recording()
    for i in range(50):
        r.kernel("add", 10 * i, 10 * i + 8, launched=(10 * i - 20, 10 * i - 15))
    assert not r.tables().steps.marked
