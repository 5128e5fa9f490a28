"""The store of the script's ranks, lent over a socket to the process that waits for the script."""

import os
import threading
from datetime import timedelta
from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch.distributed as dist

from diagnose.capture.process.rank_processes import MAX_VALUE_BYTES, KeptStore, StoreGone, StoreLink, serve_store


@pytest.fixture
def lent():
    """Return what lends a store: a link to it, which is served by a thread until the test ends."""
    serving = []

    def lend(store):
        own, other = Pipe()
        thread = threading.Thread(target=serve_store, args=(store, os.dup(other.fileno()), Path("capture"), "run7"))
        thread.start()
        other.close()
        serving.append((own, thread))
        link = StoreLink(own)
        assert link.accept()
        return link

    yield lend
    for own, thread in serving:
        own.close()
        thread.join()


def test_what_one_rank_puts_another_one_gets(lent):
    store = dist.HashStore()
    one, other = lent(store), lent(store)
    assert (one.folder, one.run_id) == (Path("capture"), "run7")
    one.put("summary/3", b"\0\xff" * 50_000)
    assert other.get("summary/3", 0) == b"\0\xff" * 50_000
    assert other.get("summary/4", 0.0005) is None  # torch takes less than a millisecond for no limit
    assert store.check(["diagnose/run7/summary/3"])


def test_a_value_that_comes_later_is_waited_for(lent):
    store = dist.HashStore()
    link = lent(store)
    timer = threading.Timer(0.05, lambda: store.set("diagnose/run7/wanted", b"x"))
    timer.start()
    assert link.get("wanted", 60) == b"x"
    timer.join()


def test_a_store_whose_server_is_gone_is_no_hang(lent):
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=1))
    link = lent(client)
    link.put("summary/0", b"a")
    del server
    with pytest.raises(StoreGone):
        link.get("summary/1", 60)


def test_a_value_that_is_too_large_is_a_fault_and_not_read(lent):
    store = dist.HashStore()
    store.set("diagnose/run7/big", bytes(MAX_VALUE_BYTES + 1))
    with pytest.raises(StoreGone, match="too large"):
        lent(store).get("big", 0)


def test_a_process_that_ends_without_lending_is_noticed():
    own, other = Pipe()
    other.close()
    assert not StoreLink(own).accept()
    own.close()


def test_the_store_outlives_the_group_and_not_the_next_one(tmp_path):
    kept = KeptStore()
    kept.install()
    try:
        for name in ("one", "two"):
            dist.init_process_group("gloo", init_method=f"file://{tmp_path / name}", rank=0, world_size=1)
            assert kept.store is None
            dist.destroy_process_group()
            assert kept.store is not None
    finally:
        kept.remove()
    kept.store.set("a", b"b")
    assert kept.store.get("a") == b"b"
