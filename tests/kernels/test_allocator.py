import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from diagnose.kernels.allocator import (
    CHECKS,
    VARIABLE,
    Usage,
    advise,
    apply_settings,
    parse_settings,
    settings_text,
    usage,
)

GB = 10**9
RIGHT = [
    "expandable_segments:True",
    "max_split_size_mb:20",
    "max_split_size_mb:512,garbage_collection_threshold:0.8",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[256:1,512:2,>:4],expandable_segments:False",
    "pinned_use_background_threads:True",
    "max_split_size_mb:200, expandable_segments:False",
]
WRONG = {
    "max_split_size_mb:19": "max_split_size_mb takes a whole number of MB, at least 20, not '19'",
    "max_split_size_mb": "max_split_size_mb takes a value after a colon",
    "garbage_collection_threshold:1.0": "takes a number above 0 and below 1, not '1.0'",
    "roundup_power2_divisions:3": "takes a power of two, or a list",
    "roundup_power2_divisions:[300:1,>:4]": "takes a power of two, or a list",
    "roundup_power2_divisions:[256:3]": "takes a power of two, or a list",
    "expandable_segments:true": "takes True or False, not 'true'",
}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_HIP_ALLOC_CONF", raising=False)


def torchs_parser():
    if (parse := getattr(torch._C, "_accelerator_setAllocatorSettings", None)) is None:
        pytest.skip("this torch parses settings on a device only")
    return parse


@pytest.mark.parametrize("text", RIGHT)
def test_what_torch_takes_is_taken(text):
    torchs_parser()(text)
    assert settings_text(parse_settings(text)).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("text", WRONG)
def test_what_torch_refuses_is_refused_with_the_reason(text):
    with pytest.raises((ValueError, RuntimeError)):
        torchs_parser()(text)
    with pytest.raises(ValueError, match=re.escape(WRONG[text])):
        parse_settings(text)


def test_what_torch_overlooks_is_refused():
    """A misspelt name is accepted silently by a build without devices, and by no other."""
    torchs_parser()("expandable_segment:True")
    with pytest.raises(ValueError, match="no setting 'expandable_segment'; did you mean expandable_segments"):
        parse_settings("expandable_segment:True")
    with pytest.raises(ValueError, match="no setting 'xyz'; there are expandable_segments, max_split"):
        parse_settings("xyz:1")
    with pytest.raises(ValueError, match="expandable_segments is given twice, as True and False"):
        parse_settings("expandable_segments:True,expandable_segments:False")
    with pytest.raises(ValueError, match="backend takes native or cudaMallocAsync, not 'fast'"):
        parse_settings("backend:fast")
    with pytest.raises(ValueError, match="takes a number above 0 and up to 1, not '3'"):
        parse_settings("per_process_memory_fraction:3")
    with pytest.raises(ValueError, match="takes a whole number of MB, at least 20, not '-1'"):
        parse_settings("max_split_size_mb:-1")
    with pytest.raises(ValueError, match="takes a number above 0 and below 1, not 'nan'"):
        parse_settings("garbage_collection_threshold:nan")
    with pytest.raises(ValueError, match="takes a power of two, not '3'"):
        parse_settings("pinned_num_register_threads:3")


def test_empty_is_nothing():
    assert parse_settings("") == parse_settings(" ") == {}


def test_applied_beside_what_is_set(monkeypatch):
    torchs_parser()
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
    everything = apply_settings("garbage_collection_threshold:0.8")
    assert everything == {"max_split_size_mb": "64", "garbage_collection_threshold": "0.8"}
    assert torch._C._accelerator_getAllocatorSettings() == "max_split_size_mb:64,garbage_collection_threshold:0.8"
    child = subprocess.run(
        [sys.executable, "-c", f"import os; print(os.environ[{VARIABLE!r}])"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert parse_settings(child.stdout.strip()) == everything
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(RuntimeError, match="call apply_settings first, or set PYTORCH_CUDA_ALLOC_CONF=expandable"):
        apply_settings("expandable_segments:True")


def stats(allocated, reserved, retries=0, ooms=0):
    return {
        "allocated_bytes.all.peak": allocated,
        "reserved_bytes.all.peak": reserved,
        "inactive_split_bytes.all.current": 1,
        "num_alloc_retries": retries,
        "num_ooms": ooms,
    }


def test_advice_takes_the_remedies_in_turn():
    fragmented = stats(50 * GB, 80 * GB, retries=3)
    first = advise(fragmented)
    assert first.settings == "expandable_segments:True"
    assert first.usage.wasted == pytest.approx(3 / 8)
    assert str(first) == (
        "80.00 GB reserved, 50.00 GB allocated at the peak, 3 retries; 38% is held in fragments: "
        "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    )
    second = advise(fragmented, current=first.settings)
    assert second.settings == "expandable_segments:True,garbage_collection_threshold:0.8"
    assert advise(fragmented, current=second.settings).settings is None
    third = advise(fragmented, current="backend:cudaMallocAsync,garbage_collection_threshold:0.8")
    assert parse_settings(third.settings)["max_split_size_mb"] == "512"


@pytest.mark.parametrize("name", [VARIABLE, "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_advice_goes_on_from_the_settings_of_the_run(monkeypatch, name):
    monkeypatch.setenv(name, "expandable_segments:True")
    after = "expandable_segments:True,garbage_collection_threshold:0.8"
    assert advise(stats(50 * GB, 80 * GB, retries=3)).settings == after
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync")
    if name != "PYTORCH_ALLOC_CONF":  # the older names win, as in torch
        assert advise(stats(50 * GB, 80 * GB, retries=3)).settings == after


def test_settings_are_no_remedy_for_a_full_device():
    full = advise(stats(79 * GB, 80 * GB, retries=2))
    assert full.settings is None
    assert "memory is full of tensors" in str(full)


def test_nothing_is_changed_without_need():
    assert advise(stats(10 * GB, 80 * GB)).settings is None, "a cache that nobody misses"
    assert "nothing is short" in str(advise({}))
    seen = Usage(10 * GB, 78 * GB, 0, 0, 0, capacity=80 * GB)
    assert advise(seen).settings == "expandable_segments:True", "the device is nearly full"


def test_without_a_device_there_is_no_allocator_to_read():
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    with pytest.raises(RuntimeError, match="no CUDA device to read an allocator from"):
        usage()


def test_the_largest_free_block_is_the_device_s_own(monkeypatch):
    def segment(device, *blocks):
        return {"device": device, "blocks": [{"size": size, "state": state} for size, state in blocks]}

    segments = [
        segment(0, (900, "active_allocated"), (30, "inactive"), (50, "inactive")),
        segment(0, (70, "active_awaiting_free")),
        segment(1, (800, "inactive")),
    ]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "_get_device_index", lambda *_args, **_options: 0)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda index: {"num_ooms": 1 + index})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(total_memory=1000 + index))
    seen = usage()
    assert (seen.largest_free, seen.capacity, seen.out_of_memory) == (50, 1000, 1)
    assert Usage(60, 80, 0, 0, 0).wasted == 0.25


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_usage_on_a_gpu():
    x = torch.ones(1 << 20, device="cuda")
    seen = usage()
    assert seen.allocated_peak >= x.nbytes
    assert seen.reserved_peak >= seen.allocated_peak
    assert seen.capacity > 0
    assert set(parse_settings("expandable_segments:True")) <= set(CHECKS)
