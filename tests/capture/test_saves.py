"""What torch.save is given: the bytes of its tensors, and of the storages that they lie in."""

import io

import pytest
import torch
from torch import nn

from diagnose.capture.steps.phases import watch_saves
from diagnose.capture.steps.saves import Saves


@pytest.fixture
def saved():
    saves = Saves()

    def save(state, times=1):
        undo = watch_saves(lambda _on: None, saves.saved)
        try:
            for _ in range(times):
                torch.save(state, io.BytesIO())
        finally:
            undo()
        (record,) = saves.records
        return record

    return save


def test_a_view_is_named_with_what_it_shows_and_what_is_written(saved):
    record = saved({"step": 3, "kept": {"tail": torch.zeros(1000, 10)[:5]}})
    assert (record.name, record.view_bytes, record.storage_bytes) == ("kept.tail", 200, 40_000)
    assert record.spare_bytes == 39_800
    assert 0 < record.spare_ns <= record.took_ns


def test_whole_tensors_leave_nothing(saved):
    assert saved(nn.LSTM(4, 5).state_dict()).spare_bytes == 0


def test_views_that_show_all_of_a_storage_together_leave_nothing(saved):
    whole = torch.zeros(12)
    assert saved([whole[:4], whole[4:], whole[4:]]).spare_bytes == 0


def test_a_tensor_that_shows_elements_several_times_leaves_nothing(saved):
    assert saved(torch.zeros(4, 1).expand(4, 9)).spare_bytes == 0


def test_a_module_is_saved_with_its_tensors(saved):
    layer = nn.Linear(3, 2)
    layer.register_buffer("seen", torch.zeros(100)[:2])
    assert saved(layer).name == "seen"


def test_times_are_sums(saved):
    assert saved(torch.zeros(9)[:1], times=3).num == 3


def test_what_is_no_tensor_is_no_fault(saved):
    cycle = {"text": "a"}
    cycle["self"] = cycle
    assert saved(cycle).num_bytes == 0


def test_numbers_that_are_drawn_stay_the_same(saved):
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    saved({"x": torch.zeros(3)})
    assert torch.equal(torch.rand(2), expected)
