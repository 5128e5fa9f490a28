"""keep-cached-memory: prescribed where a line empties the cache in the loop. Times in µs."""

import torch

from diagnose.changes.common.change import Log
from diagnose.changes.common.prescribe import prescribe
from diagnose.changes.patches.memory import keep_cached_memory
from diagnose.model.diagnosis import Finding
from diagnose.model.locations import Where


def stall(code):
    return Finding("allocator-stall", "", 4e6, where=(Where("train.py", 83, "main", code=code),))


def test_a_line_that_empties_the_cache_goes():
    (only,) = prescribe(stall("torch.cuda.empty_cache()"), 10e6)
    assert (only.id, only.title) == (
        "keep-cached-memory",
        "Remove the call of empty_cache from the loop (train.py:83)",
    )
    assert only.saves_ns == (0.7 * 4e6, 4e6)


def test_without_such_a_line_the_allocator_is_set_up_otherwise():
    assert next(p.id for p in prescribe(stall("y = model(x)"), 10e6)) == "expandable-segments"


def test_the_patch_lets_the_call_do_nothing_and_notes_it():
    log, real = Log(), torch.cuda.empty_cache
    undo = keep_cached_memory(log, {})
    torch.cuda.empty_cache()
    undo()
    assert log.done == ["torch.cuda.empty_cache() does nothing"]
    assert torch.cuda.empty_cache is real
