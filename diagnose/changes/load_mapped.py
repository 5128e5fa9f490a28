"""Load weights by mapping the file instead of reading it.

What it does
    Builds the model without initialising it and lets its weights be the file's own pages.

What to watch
    The file must stay as it is while the model uses it; on a device the weights are copied as they are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.changes.common.applies import own_place
from diagnose.changes.common.change import Advice, ByHand, Change, identical
from diagnose.changes.common.line_calls import LOADS, calls

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


def _advice(finding: Finding, _step_ns: float, _program: Program) -> Advice | None:
    if not calls(finding, LOADS):
        return None
    place = own_place(finding)
    return Advice(
        before=(place.code or "") if place else "model.load_state_dict(torch.load(path))",
        after="from diagnose.kernels.fast_load import fast_load, fill\n"
        "from diagnose.kernels.fast_save import save_files\n\n"
        "save_files(model.state_dict(), folder)        # where they are saved: a folder of files that are mapped\n"
        "report = fill(model, path)                    # into a model that exists\n"
        "report = fast_load(build_model, path)          # or one that was never initialised",
        least=0.5,
        needs="a checkpoint of weights (.pt, safetensors, or a distributed one)",
    )


CHANGE = Change(
    id="load-mapped",
    title="Load the weights by mapping their file",
    numerics=identical(),
    patch=ByHand("which model a file is for only the script's author knows"),
    edit=ByHand("which model a file is for only the script's author knows"),
    advice=_advice,
    remedy="diagnose.kernels.fast_load",
    modules=("diagnose.kernels.fast_save",),
)
