"""Move Python work off the training thread.

What it does
    Puts work for each sample into the dataset, which workers run ahead of the step, and files and logs into a
    background thread.

What to watch
    Work that reads what the step changes needs a copy of it, which at least a fifth of its time is left for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.change import Advice, ByHand, Change, identical

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding


def _advice(finding: Finding, _step_ns: float) -> Advice:
    place = next((w for w in finding.where if w.file), None)
    at = f" at {place.file}:{place.line}" if place else ""
    return Advice(
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
        least=0.8,
    )


CHANGE = Change(
    id="python-off-the-loop",
    title="Move the Python work off the training thread",
    numerics=identical("where the work does not read what the step changes"),
    patch=ByHand("what the script's own Python does at that line cannot be moved from outside"),
    edit=ByHand("what the Python at that line is for only the script's author knows"),
    advice=_advice,
    without_remedy="a line of the script's own Python",
)
