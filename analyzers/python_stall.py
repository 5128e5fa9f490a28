"""User Python between operators keeps the device waiting.

What it looks for
    Idle in stretches of at least a millisecond (a tenth of the step in short steps) in which the training thread ran
    no operator and made no call: preprocessing, logging, checkpoints, evaluation code, files.

Why it costs
    Python runs while nothing is queued.

What to do
    Do it in the DataLoader's workers, in a thread or process of its own, less often, or vectorised on the device.

How sure
    High where the sampler or recorded frames name the line; medium where the trace only shows that no operator ran.
"""

from __future__ import annotations

from diagnose.analyzers.common.idle_findings import Idle, idle_finding, prescription
from diagnose.model.diagnosis import Finding, Prescription
from diagnose.model.events import Kind
from diagnose.model.intervals import EMPTY, Intervals, intersect, total
from diagnose.model.rules import Legend, RuleMeta
from diagnose.tables import Tables
from diagnose.tables.host_gaps import host_gaps, min_host_gap_ns, ready_share

META = RuleMeta(
    id="python-stall",
    kind="idle",
    order=120,
    host_order=80,
    legend=Legend("Python code ran between operators", "#2fa36b"),
    changes=("python-off-the-loop",),
    inflated=True,
)


def claim(t: Tables, left: Intervals) -> Intervals:
    """Claim idle in long stretches between operators, where something shows that the thread was in the loop.

    Where the thread stood ready without a core for as long as that, they may be nothing but that, and none is claimed.
    """
    seen = host_gaps(t)
    if t.capture.samples is None:
        seen = intersect(seen, t.covering(t.host_rows(Kind.PYTHON, Kind.ANNOTATION)))
    found = intersect(intersect(left, t.gaps.unlaunched()), seen)
    return EMPTY if total(found) <= ready_share(t) * (t.steps.window[1] - t.steps.window[0]) else found


def find(t: Tables) -> list[Finding]:
    """Name the idle time of Python between operators."""
    stretches = host_gaps(t)
    text = (
        f"{len(stretches.start)} stretches of over {min_host_gap_ns(t) / 1e6:.1f} ms without an operator, "
        f"{total(stretches) / t.steps.num / 1e6:.2f} ms a step."
    )
    title = "Python between operators holds the step up"
    return idle_finding(t, Idle(META.id, title, probe="middle", evidence=lambda _t, _o: [text]))


def prescribe(finding: Finding, step_ns: float) -> list[Prescription]:
    """Take the work out of the loop."""
    place = next((w for w in finding.where if w.file), None)
    at = f" at {place.file}:{place.line}" if place else ""
    return [
        prescription(
            finding,
            step_ns,
            id="python-off-the-loop",
            title=f"Move the Python work{at} off the training thread",
            before=(place.code or "") if place else "",
            after="from concurrent.futures import ThreadPoolExecutor\n\n"
            "# per sample: into the dataset, which DataLoader workers run ahead of the step\n"
            "class Prepared(Dataset):\n"
            "    def __getitem__(self, i):\n"
            "        return preprocess(self.raw[i])\n"
            "# files and logs: into a background thread\n"
            "background = ThreadPoolExecutor(1)\n"
            "background.submit(save, {k: v.detach().cpu() for k, v in model.state_dict().items()})",
            least=0.6,
            safety="same numbers where the work does not read what the step changes",
        )
    ]
