"""A loader that was built anew keeps what the given one was told, and draws from the generator that it drew from."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader

from diagnose.kernels import loader_tuning
from diagnose.kernels._loader_bench import Bench, rebuilt
from diagnose.kernels._loader_costs import Costs, Room, index_batches, same
from diagnose.kernels.loader_tuning import LoaderTrial, Settings


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


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_the_loader_was_told_is_kept(num_workers):
    told = {"pin_memory": True, "worker_init_fn": print, "drop_last": True, "collate_fn": list}
    of_workers = {"timeout": 30.0, "multiprocessing_context": "spawn"}
    given = DataLoader(range(9), batch_size=2, num_workers=1, **told, **of_workers)
    other = rebuilt(given, Settings(num_workers, 2 if num_workers else None), pin=False)
    assert {name: getattr(other, name) for name in told} == told
    assert other.timeout == (30.0 if num_workers else 0)
    assert (other.multiprocessing_context is not None) == bool(num_workers)
    assert len(other) == len(given) == 4


def test_batches_are_pinned_where_they_go_to_a_device():
    given = DataLoader(range(9))
    assert [rebuilt(given, Settings(), pin=pin).pin_memory for pin in (False, True)] == [False, True]


@pytest.mark.parametrize("batched", [False, True])
def test_the_first_entries_are_what_the_sampler_asks_for(batched):
    loader = DataLoader(range(9), batch_size=2 if batched else None)
    entries = [[0, 1], [2, 3], [4, 5], [6, 7], [8]] if batched else list(range(9))
    assert index_batches(loader, 3) == entries[:3]
    assert index_batches(loader, 20) == entries


class Held:
    """Compares by identity, as a class without ``__eq__`` does."""

    def __init__(self, value):
        self.value = value


def test_objects_of_a_batch_agree_where_what_they_hold_does():
    one = torch.ones(2)
    assert same([Held(one)], [Held(one.clone())])
    assert not same([Held(one)], [Held(one + 1)])
    assert same(object(), object())


def test_a_step_that_is_measured_gets_its_batches_on_the_device():
    seen = []
    for device in ("cpu", "meta"):
        bench = Bench(
            DataLoader(range(4)), [[0], [1]], (), lambda x: seen.append(x.device.type), torch.device(device), 1
        )
        assert bench.run(Settings())[0].error == ""
    assert seen == ["cpu", "cpu", "meta", "meta"]


@pytest.mark.parametrize(
    ("step", "room", "most", "tried"),
    [
        (1.0, 16, None, {0, 1, 4, 16}),  # three load what a step takes, and one more keeps ahead
        (1.0, 16, 2, {0, 1, 2}),
        (1.0, 3, None, {0, 1, 3}),
        (0.0, 16, None, {0, 1, 16}),  # nothing to load beside
        (1.0, 16, 0, {0}),
    ],
)
def test_as_many_workers_are_tried_as_the_costs_ask_for(monkeypatch, step, room, most, tried):
    seen = set()

    def run(settings):
        seen.add(settings.num_workers)
        return LoaderTrial(settings, 1.0), 0

    bench = SimpleNamespace(loader=DataLoader(range(8)), run=run, pin=False)
    monkeypatch.setattr(loader_tuning, "room_for_workers", lambda **_: Room(room, "room"))
    costs = Costs(samples=2.5, collate=0.5, transfer=0.0, step=step, batch_bytes=8)
    loader_tuning._tried(bench, Settings(), costs, {}, most, threads=1, any_order=False)
    assert seen == tried
