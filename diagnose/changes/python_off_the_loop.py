"""Move Python work off the training thread.

What it does
    Puts work for each sample into the dataset, which workers run ahead of the step, and files and logs into a
    background thread.

What to watch
    Work that reads what the step changes needs a copy of it. At least as much is gone as came true of the predicted
    saving in the two published pairs of recordings without and with workers: 86 and 87 % (docs/savings.md).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from diagnose.changes.common.applies import at_line, is_in_a_library, is_in_the_model, own_place, script_of
from diagnose.changes.common.change import Advice, ByHand, Change, identical
from diagnose.changes.common.loading import HIDDEN
from diagnose.changes.common.places import LOADS, SAVES, calls

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding
    from diagnose.tables.program import Program


_TORCHS_OWN = re.compile(r"^(Optimizer\.|autograd::|DistributedDataParallel\.|Torch-Compiled Region)")

_PER_SAMPLE = """# per sample: into the dataset, which DataLoader workers run ahead of the step
class Prepared(Dataset):
    def __getitem__(self, i):
        return preprocess(self.raw[i])
"""
# `.cpu()` of a tensor on the CPU is the tensor itself: the next step would change what is being saved.
_FILES = """from concurrent.futures import ThreadPoolExecutor

# files and logs: into a background thread, with copies that the next step does not change
background = ThreadPoolExecutor(1)
background.submit(save, {k: v.detach().to("cpu", copy=True) for k, v in model.state_dict().items()})"""
# A thread would take turns with the training thread: only one of them runs Python at a time.
_COMPUTES = """# it computes in Python: less of it (NumPy or tensor operators for loops), or another process; no thread
from concurrent.futures import ProcessPoolExecutor

pool = ProcessPoolExecutor(1)
pending = pool.submit(preprocess, next_inputs)   # one step ahead; arguments and result are pickled
inputs = pending.result()"""
MIN_WAITING = 0.5  # of the samples there: what waits for files or sockets gives the interpreter free
_OWN_CALL = re.compile(r"\.(zero_grad|backward)\(|^(self\.)?(optimi[sz]er|opt|scheduler|scaler)\w*\.(step|update)\(")
_IN_A_LIBRARY = """from concurrent.futures import ThreadPoolExecutor

# a library computes it, and the script's own line calls it
background = ThreadPoolExecutor(1)
pending = background.submit(preprocess, next_inputs)   # one step ahead
inputs = pending.result()                              # ready by now"""
_NOT_RECORDED = """diagnose trace {script}   # samples what runs between operators, and names its line
# with torch.profiler: profile(with_stack=True)
# then: work for each sample into the dataset, files and logs into a background thread"""
_IN_THE_MODEL = """# a module calls it: a hook, or the model's own forward
if step % 100 == 0:
    handle = model.register_forward_hook(hook)   # only in the steps that need it
...
handle.remove()
# in a forward: tensor operators in place of Python loops, and nothing computed anew that stays the same"""


_AFTER_A_READ = """# it works on what the device computed: tensor operators there (sort, topk, argmax), and read less
order = scores.argsort(descending=True)          # in place of sorted(…, key=scores.__getitem__)
# or another process, while the next step runs
from concurrent.futures import ProcessPoolExecutor

pool = ProcessPoolExecutor(1)
pending = pool.submit(postprocess, outputs.cpu().numpy())
result = pending.result()                        # one step later"""
MIN_AFTER_READ = 0.5  # of the time: what follows a copy to the host works on the step's own results


def _applies(_program: Program, finding: Finding) -> str:
    first = finding.where[0] if finding.where else None
    place = own_place(finding)
    if place is not None and _OWN_CALL.search(place.code or ""):
        return "the line calls torch's own Python, which cannot be moved"
    if calls(finding, SAVES) or calls(finding, LOADS):
        return "the line saves or loads a checkpoint, for which there is a module"
    inside = first is not None and _TORCHS_OWN.match(first.op or "")
    return "the time passes in torch's own Python, which cannot be moved" if inside else ""


def _advice(finding: Finding, _step_ns: float, program: Program) -> Advice:
    place = own_place(finding)
    at = f" at {at_line(place)}" if place else ""
    code = (place.code or "") if place else ""
    if is_in_the_model(finding):
        return Advice(
            title=f"Run the Python work of hooks and modules{at} in fewer steps, or leave it out",
            before=code,
            after=_IN_THE_MODEL,
            least=0.0,
            needs="a hook or a check that is not wanted in every step",
        )
    if not any(w.file for w in finding.where):
        return Advice(
            title="Record which Python runs there, and move it off the thread that launches",
            after=_NOT_RECORDED.format(script=script_of(program)),
            least=HIDDEN,
            needs="a recording with Python frames or samples: this one does not show what runs there",
        )
    if is_in_a_library(finding):
        return Advice(
            title=f"Call the library{at} one step ahead, on a thread of its own",
            before=code,
            after=_IN_A_LIBRARY,
            least=0.0,
            needs="a call that does not depend on this step, and a library that gives the interpreter free",
        )
    after_read = finding.facts.get("after_read")
    if isinstance(after_read, float) and after_read >= MIN_AFTER_READ:
        return Advice(
            title=f"Do the Python work{at} on the device, or beside the next step",
            before=code,
            after=_AFTER_A_READ,
            least=HIDDEN,
            needs="no decision of this step that rests on the result",
            numerics=identical(", a step later where a process does it"),
        )
    waiting = finding.facts.get("waiting_share")
    computes = isinstance(waiting, float) and waiting < MIN_WAITING
    other = _COMPUTES if computes else _FILES
    thread = "thread that runs the model" if program.trains is False else "training thread"
    return Advice(
        title=f"Move the Python work{at} off the {thread}", before=code, after=_PER_SAMPLE + other, least=HIDDEN
    )


CHANGE = Change(
    id="python-off-the-loop",
    title="Move the Python work off the training thread",
    numerics=identical("where the work does not read what the step changes"),
    patch=ByHand("what the script's own Python does at that line cannot be moved from outside"),
    edit=ByHand("what the Python at that line is for only the script's author knows"),
    advice=_advice,
    applies=_applies,
    without_remedy="a line of the script's own Python",
)
