"""What the fake device takes for ordered and for unordered."""

import pytest
import torch


def test_a_stream_reads_what_it_has_waited_for(device):
    x, side = device.made(4), device.Stream()
    with device.stream(side), pytest.raises(AssertionError, match=r"add on side 1 reads what fill_ on main may not be"):
        x + 1
    side.wait_stream(device.current_stream())
    with device.stream(side):
        x + 1
    event = device.Event()
    event.record(side)
    with pytest.raises(AssertionError, match="mul_ on main overwrites what add on side 1"):
        x.mul_(2)
    device.current_stream().wait_event(event)
    x.mul_(2)


def test_the_host_reads_what_it_has_waited_for(device):
    x, host, event = device.made(4), device.pinned(4), device.Event()
    host.copy_(x, non_blocking=True)
    event.record()
    assert not event.query()
    with pytest.raises(AssertionError, match="on host reads what copy_ on main"):
        host.sum()
    with pytest.raises(AssertionError, match="tolist on host reads what copy_ on main"):
        host.tolist()
    event.synchronize()
    host.sum()
    host.copy_(x)
    host.sum()
    torch.zeros(4).copy_(x, non_blocking=True).sum()  # ordinary memory is copied at once
    x.sum().item()


@pytest.mark.parametrize("is_recorded", [False, True])
def test_memory_is_given_out_again_on_its_stream(device, is_recorded):
    side = device.Stream()
    x = device.made(4)
    side.wait_stream(device.current_stream())
    with device.stream(side):
        x.sum()
    if is_recorded:
        x.record_stream(side)
    del x
    if is_recorded:
        device.made(4)
        return
    with pytest.raises(AssertionError, match="memory given out again on main is what sum on side 1"):
        device.made(4)


def test_replays_are_ordered_as_launches_are(device):
    x, graph, side = device.made(4), device.CUDAGraph(), device.Stream()
    with device.graph(graph, stream=side):
        y = x * 2
    graph.replay()
    y.sum()
    with device.stream(side), pytest.raises(AssertionError, match="mul on side 1 overwrites what mul on main"):
        graph.replay()
