"""Two steps on a device that is not the CPU, as far as one can be had without a compiler."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

from tests.capture.flows import line_of

SCRIPT = Path(__file__).parent / "scripts" / "stub_device.py"


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch has no device that Python can define",
)
def test_operators_of_a_device_and_of_autograds_thread_for_it_are_recorded():
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["left_out"] == []
    assert (found["devices"], found["looked_at"]) == (["cpu", "stub:0"], ["cpu"])
    assert found["threads"] == 2
    product = next(n for n, line in enumerate(SCRIPT.read_text().splitlines(), 1) if "inputs @ weight" in line)
    assert found["backward"] == [product]
    back, forth, made = (line_of(text, SCRIPT) for text in ("back", "and forth", "made on the host"))
    assert sorted(found["found"]) == [["made-on-host", made, made], ["round-trip", back, forth]]
