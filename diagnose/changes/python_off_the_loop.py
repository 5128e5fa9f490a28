"""Make Python work cheaper, or move it off the training thread.

What it does
    What computes in Python: makes it cheaper, or does it in another process; a thread would only take turns with the
    training. What waits for files or sockets: a background thread. Work for each sample goes into the dataset, which
    DataLoader workers, processes of their own, run ahead of the step. The sampler shows which of them it is; without
    samples both are named.

    What a module's forward, the loss or the backward waits for stays: operators in the place of its loops, and once
    what is the same in every step. What passes in an optimizer's step is left where it is.

What to watch
    Work that reads what the step changes needs a copy of it. At least as much is gone as came true of the predicted
    saving in the two published pairs of recordings without and with workers: 86 and 87 % (evaluation/pages/pairs.md).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from diagnose.changes.common.applies import at_line, is_in_a_library, is_in_a_module, is_of_a_hook, own_place
from diagnose.changes.common.change import Advice, ByHand, Change, identical, rounding
from diagnose.changes.common.line_calls import LOADS, SAVES, calls
from diagnose.changes.common.loading import HIDDEN, hidden_behind_rest
from diagnose.changes.common.lookups import lookup_code, lookup_of

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding, Where
    from diagnose.tables.program import Program


_TORCHS_OWN = r"^(Optimizer\.|autograd::|DistributedDataParallel\.|Torch-Compiled Region)"

_PER_SAMPLE = """# per sample: into the dataset, which DataLoader workers run ahead of the step
class Prepared(Dataset):
    def __init__(self, raw):
        self.raw = raw
    def __len__(self):
        return len(self.raw)
    def __getitem__(self, i):
        return preprocess(self.raw[i])
"""
# `.cpu()` of a tensor on the CPU is the tensor itself: the next step would change what is being saved.
_FILES = """from concurrent.futures import ThreadPoolExecutor

# what waits for files or sockets: into a background thread, with copies that the next step does not change
background = ThreadPoolExecutor(1)
background.submit(save, {k: v.detach().to("cpu", copy=True) for k, v in model.state_dict().items()})"""
_UNKNOWN = """
# what computes in Python: cheaper, or in another process; a thread would only take turns with the training"""
_COMPUTES = """# it computes in Python: less of it, a dict in place of a search, tensor operators in place of loops,
# what stays the same once, before the loop
# else another process, which needs a core of its own; a thread would only take turns with the training
from concurrent.futures import ProcessPoolExecutor

pool = ProcessPoolExecutor(1)
pending = pool.submit(preprocess, next_inputs)   # one step ahead; arguments and result are pickled
inputs = pending.result()"""
MIN_IN_PASS = MIN_IN_OPTIMIZER = 0.5  # of the time
MIN_VECTORISED_SHARE, MAX_VECTORISED_SHARE = (
    0.25,
    0.95,
)  # what loops over rows leave to operators is little, others may be half
MIN_WAITING = 0.5  # of the samples there: what waits for files or sockets gives the interpreter free
_OWN_CALL = r"\.(zero_grad|backward)\(|^(self\.)?(optimi[sz]er|opt|scheduler|scaler)\w*\.(step|update)\("
_IN_A_LIBRARY = """from concurrent.futures import ThreadPoolExecutor

# a library computes it, and the script's own line calls it
background = ThreadPoolExecutor(1)
pending = background.submit(preprocess, next_inputs)   # one step ahead
inputs = pending.result()                              # waits if it is not ready"""
_IN_A_HOOK = """# only in the steps that need it
if step % 100 == 0:
    handle = model.register_forward_hook(hook)
...
handle.remove()"""
_IN_THE_PASS = """# operators in place of the loop; what stays the same is computed once, before the training loop
scale = torch.linspace(0.1, 1.0, x.shape[-1])      # once
loss = (scale * x).sum()                           # in place of a loop over rows, .tolist() and torch.tensor(…)
# what is only logged: behind the backward, and in few steps"""


_LOGS = r"(?i)^_?(?:log|logs|logging|print|report|plot|visuali[sz]e|summar\w*|debug)(?:_|$)"
_LOG_CALLS = (
    r"\b(?:print|np\.histogram|log(?:ger|ging)?\.\w+|wandb\.\w+|mlflow\.\w+"
    r"|add_(?:scalars?|histogram|images?|figure|text)|savefig)\("
)
_IN_FEWER_STEPS = """if step % 50 == 0:   # read now and then: only then
    ..."""
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
    if place is not None and re.search(_OWN_CALL, place.code or ""):
        return "the line calls torch's own Python, which cannot be moved"
    if place is not None and "next(iter(" in (place.code or ""):
        return "the line makes an iterator for each batch, which is made once instead"
    if calls(finding, SAVES) or calls(finding, LOADS):
        return "the line saves or loads a checkpoint, for which there is a module"
    if _share(finding, "in_optimizer") >= MIN_IN_OPTIMIZER:
        return "most of the time passes in the optimizer's step, which cannot be moved"
    if not any(w.file or w.library for w in finding.where):
        return "the recording does not show which Python runs there"
    inside = first is not None and re.match(_TORCHS_OWN, first.op or "")
    return "the time passes in torch's own Python, which cannot be moved" if inside else ""


def _advice(finding: Finding, step_ns: float, program: Program) -> Advice:
    place = own_place(finding)
    at = f" at {at_line(place)}" if place else ""
    code = (place.code or "") if place else ""
    special = _of_a_hook(finding, code, at) or _of_a_log(place, code, at) or _of_a_lookup(finding, code, at)
    if special is not None:
        return special
    if is_in_a_module(finding) or _share(finding, "in_pass") >= MIN_IN_PASS:
        return Advice(
            title=f"Vectorise the Python work{at}, or compute once what stays the same: the step needs it at once",
            before=code,
            after=_IN_THE_PASS,
            least=MIN_VECTORISED_SHARE,
            most=MAX_VECTORISED_SHARE,
            needs="work that tensor operators can do, or that does not change from step to step",
            numerics=rounding("sums may be taken in another order; compare the loss of the first steps"),
        )
    if is_in_a_library(finding):
        return Advice(
            title=_ahead(finding, at),
            before=code,
            after=_IN_A_LIBRARY,
            least=0.0,
            most=hidden_behind_rest(finding.lost_ns, step_ns),
            needs="a call that does not depend on this step, and a library that gives the interpreter free",
        )
    if _share(finding, "after_read") >= MIN_AFTER_READ:
        return Advice(
            title=f"Do the Python work{at} on the device, or while the next step runs",
            before=code,
            after=_AFTER_A_READ,
            least=HIDDEN,
            needs="no decision of this step that rests on the result",
            numerics=identical(", a step later where a process does it"),
        )
    return _elsewhere(finding, program, code, at)


def _ahead(finding: Finding, at: str) -> str:
    """Return what to run ahead: the function of a library that takes the time, where the place names it."""
    place = next((w for w in finding.where if w.library), None)
    file, _, function = (place.library or "").rpartition(" in ") if place is not None else ("", "", "")
    package = file.partition("/")[0]
    if function.isidentifier() and package != file:
        return f"Run {function} of {package} one step ahead, on a thread of its own"
    return f"Call the library{at} one step ahead, on a thread of its own"


def _elsewhere(finding: Finding, program: Program, code: str, at: str) -> Advice:
    """Return the advice for work that the step does not need at once: less of it, or not on its thread."""
    waiting = finding.facts.get("waiting_share")
    if isinstance(waiting, float) and waiting < MIN_WAITING:
        return Advice(
            title=f"Make the Python work{at} cheaper, or do it in another process",
            before=code,
            after=_COMPUTES,
            least=MIN_VECTORISED_SHARE,
            most=MAX_VECTORISED_SHARE,
            needs="work that can be made cheaper, or a free CPU core",
        )
    thread = "thread that runs the model" if program.trains is False else "training thread"
    unknown = "" if isinstance(waiting, float) else _UNKNOWN
    return Advice(
        title=f"Move the Python work{at} off the {thread}",
        before=code,
        after=_PER_SAMPLE + _FILES + unknown,
        least=HIDDEN,
    )


def _of_a_hook(finding: Finding, code: str, at: str) -> Advice | None:
    if not is_of_a_hook(finding):
        return None
    return Advice(
        title=f"Run the Python work of the hook{at} in fewer steps, or leave it out",
        before=code,
        after=_IN_A_HOOK,
        least=0.0,
        needs="a hook that is not wanted in every step",
    )


def _of_a_log(place: Where | None, code: str, at: str) -> Advice | None:
    """Return the advice for what writes or counts for people to look at, as the line or its function's name says."""
    if place is None or not (re.search(_LOG_CALLS, code) or re.search(_LOGS, place.function or "")):
        return None
    return Advice(
        title=f"Log in fewer steps{at}",
        before=code,
        after=_IN_FEWER_STEPS,
        least=0.9,
        most=0.98,
        needs="a log that is not wanted of every step",
        numerics=identical("of training; fewer steps are logged"),
    )


def _of_a_lookup(finding: Finding, code: str, at: str) -> Advice | None:
    """Return the advice for a list or a deque that the line goes through each time."""
    lookup = lookup_of(finding.facts)
    if not lookup:
        return None
    by = "a list or an array in place of the deque" if lookup.get("indexed") else "a set in place of the list"
    return Advice(
        title=f"Find values{at} in {by} {lookup['name']}",
        before=code,
        after=lookup_code(finding.facts),
        least=MIN_VECTORISED_SHARE,
        most=MAX_VECTORISED_SHARE,
        needs="memory for the set" if not lookup.get("indexed") else "",
        numerics=identical("where nothing needs the other's order or its ends"),
    )


def _share(finding: Finding, key: str) -> float:
    """Return a share of the finding's time, 0 where it is not known."""
    value = finding.facts.get(key)
    return value if isinstance(value, float) else 0.0


CHANGE = Change(
    id="python-off-the-loop",
    title="Make the Python work cheaper, or move it off the training thread",
    numerics=identical("where the work does not read what the step changes"),
    patch=ByHand("what the script's own Python does at that line cannot be moved from outside"),
    edit=ByHand("what the Python at that line is for only the script's author knows"),
    advice=_advice,
    applies=_applies,
    without_remedy="a line of the script's own Python",
)
