"""How much longer a step gets while diagnose records it: traces a script of even steps and prints JSON.

The step times without a profiler, in the light and in the attribution window come from the same run, as every capture
has them; this only chooses how long the steps are.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("even_steps.py")


def measure(step_ms: float, device: str) -> dict[str, object]:
    """Trace steps of about ``step_ms`` and return the medians (ms) and what the sampler says of itself."""
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder) / "capture"
        command = [
            sys.executable, "-m", "diagnose", "trace", "--quiet", "--json", "--capture", str(capture), str(SCRIPT),
            "--device", device, "--step-ms", str(step_ms),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        if done.returncode:
            raise SystemExit(f"overhead: the trace ended with {done.returncode}: {done.stderr[-800:]}")
        description = json.loads((capture / "capture.json").read_text("utf-8"))
    windows = {name: statistics.median(description[f"{name}_ms"]) for name in ("unprofiled", "light", "attribution")}
    bare = windows["unprofiled"]
    longer = {name: windows[name] / bare - 1 for name in ("light", "attribution")}
    launches = (json.loads(done.stdout)["queue"] or {}).get("launches_per_step")
    return {"asked_ms": step_ms, **windows, "longer": longer, "sampler": description["sampler"], "launches": launches}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    options = parser.parse_args()
    print(json.dumps(measure(options.step_ms, options.device)))
