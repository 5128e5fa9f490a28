"""The flame graphs as a page carries them."""

import zlib
from base64 import b64decode

import numpy as np

from diagnose.model.charts import Flame, Frame
from diagnose.reports.timeline_data import flame_data, frame_text

OWN, LIBRARY = "/home/ada/train.py(42): main", "torch/nn/functional.py(10): linear"


def unpacked(data):
    num = sum(cause["count"] for cause in data["causes"])
    raw = np.frombuffer(zlib.decompress(b64decode(data["packed"])), np.uint8).reshape(3, 4, num)
    return np.ascontiguousarray(raw.transpose(0, 2, 1)).view("<u4").reshape(3, num).tolist()


def test_boxes_are_columns_and_each_name_stands_once():
    flames = (
        Flame("python-stall", 900, (Frame(OWN, "own", 0, 900), Frame(LIBRARY, "library", 1, 400))),
        Flame("host-sync", 100, (Frame(OWN, "own", 0, 100),), is_scaled=True),
    )
    data = flame_data(flames, {})
    assert unpacked(data) == [[0, 1, 0], [0, 1, 0], [900, 400, 100]]
    assert data["names"] == [["main train.py:42", 0, OWN], ["linear functional.py:10", 1, LIBRARY]]
    assert [(c["name"], c["time"], c["count"]) for c in data["causes"]] == [
        ("python-stall", 0.0009, 2), ("host-sync", 0.0001, 1),
    ]  # fmt: skip


def test_times_of_a_long_step_fit_into_their_columns():
    data = flame_data((Flame("data-stall", 10**10, (Frame(OWN, "own", 0, 10**10),)),), {})
    assert data["unit"] == 3
    assert unpacked(data)[2] == [10**10 // 3]


def test_where_frames_come_from_is_stated():
    def note(kind, *, is_scaled=False):
        return flame_data((Flame("x", 1, (Frame(OWN, kind, 0, 1),), is_scaled=is_scaled),), {})["causes"][0]["note"]

    assert note("own", is_scaled=True).startswith("Frames were recorded in separate steps")
    assert note("library") == ""
    assert note("own").endswith("the lines that the sampler saw.")
    assert note("operator").endswith("Python frames were not recorded.")


def test_frames_are_named_by_function_and_line():
    assert frame_text("/home/ada/train.py(42): main") == "main train.py:42"
    assert frame_text("<built-in function collect>") == "collect (built-in)"
    assert frame_text("<built-in method decode of Codec object>") == "Codec.decode"
    assert frame_text("<built-in method zeros of type object>") == "zeros (built-in)"
    assert frame_text("aten::mm") == "aten::mm"


def test_nothing_is_drawn_of_nothing():
    assert flame_data((), {}) is None
