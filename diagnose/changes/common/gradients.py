"""How ranks exchange gradients: the call to paste, and the size of a bucket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from diagnose.changes.common.applies import to_data_parallel_training
from diagnose.changes.common.change import SetArguments

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Facts, Finding
    from diagnose.tables.program import Program

BUCKET_MB = 25  # torch's own default; a single bucket of everything begins when backward is over
CONSTRUCTORS = ("DistributedDataParallel", "DDP")
# The arguments of DistributedDataParallel up to the first whose place differs between versions of torch.
_PARAMETERS = ("module", "device_ids", "output_device", "dim", "broadcast_buffers")


def _ddp(takes: Mapping[str, str] | None = None, **given: object) -> SetArguments:
    return SetArguments(CONSTRUCTORS, given, takes or {}, parameters=_PARAMETERS)


MODERATE_BUCKETS = _ddp({"bucket_cap_mb": "bucket_cap_mb"}, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True)
NO_BROADCAST = _ddp(broadcast_buffers=False)
NO_SEARCH = _ddp(find_unused_parameters=False)
MIN_BYTES = 1_000_000  # of gradients: half of them take 50 µs over a link of 10 GB/s, about one collective's latency
_OF_16_BITS = frozenset({"bfloat16", "half", "c10::bfloat16", "c10::half", "byte", "char"})
_SHOWN = ("bucket_cap_mb", "gradient_as_bucket_view", "static_graph")  # arguments that bear on the exchange


def is_reduced_by_hand(facts: Facts) -> bool:
    """Return whether the script reduces one tensor after the other itself: it has no arguments to tune."""
    by_hand = facts.get("reductions_by_hand")
    # Reductions a step that the script calls itself: from here on buckets are what it lacks.
    return isinstance(by_hand, float) and by_hand >= 8


def ddp_arguments(finding: Finding) -> dict[str, object]:
    """Return the recorded arguments of DistributedDataParallel, none where it was not seen being made."""
    ddp = finding.facts.get("ddp")
    return dict(ddp) if isinstance(ddp, Mapping) else {}


def ddp_call(arguments: Mapping[str, object], *, has_device: bool) -> str:
    """Return the line that makes the model's DistributedDataParallel with those arguments that bear on the exchange."""
    shown = {k: v for k, v in arguments.items() if k in _SHOWN and v}
    devices = ["device_ids=[local_rank]"] if has_device else []
    given = [f"{k}={int(v) if isinstance(v, float) and v.is_integer() else v}" for k, v in shown.items()]
    return f"model = DistributedDataParallel({', '.join(['model', *devices, *given])})"


def is_a_reduction(finding: Finding) -> bool:
    """Return whether DistributedDataParallel reduces the gradients, as far as the finding shows it."""
    return not finding.facts.get("is_exchange") and not is_reduced_by_hand(finding.facts)


def has_free_core(facts: Facts) -> bool:
    """Return whether an exchange without a device has a core to itself, as far as that is known.

    On two cores with a rank on each, 16-bit gradients made steps of 44 ms 3 % longer and smaller buckets 13 %.
    """
    return bool(facts.get("has_device")) or facts.get("free_cores") != 0


def to_large_gradients(program: Program, finding: Finding) -> bool:
    """Return whether fewer bytes may help: the ranks exchange many, in elements of more than 16 bits."""
    reduced, wide = finding.facts.get("reduced_bytes"), finding.facts.get("reduced_wide_bytes")
    is_narrow = bool(program.exchanged) and not program.exchanged - _OF_16_BITS
    if isinstance(reduced, int) and isinstance(wide, int):
        # Of the bytes that are reduced, in elements of more than 16 bits: a loss or a norm is always wide.
        is_narrow |= wide < 0.1 * reduced
    sent = (finding.facts.get("gradient_bytes"), wide)
    is_small = any(isinstance(each, int) and each < MIN_BYTES for each in sent)
    return not is_narrow and not is_small and to_data_parallel_training(program, finding)
