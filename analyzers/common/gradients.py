"""What is known of how ranks exchange gradients, and the changes that follow from it."""

from __future__ import annotations

from collections.abc import Mapping

from diagnose.analyzers.common.idle_findings import prescription
from diagnose.model.diagnosis import Facts, Finding, Prescription
from diagnose.model.records import as_facts
from diagnose.tables import Tables
from diagnose.tables.collectives import DEFAULT_BUCKET_MB

__all__ = ["ddp_facts", "gradient_prescriptions", "in_buckets"]

SHOWN = ("bucket_cap_mb", "gradient_as_bucket_view", "static_graph")  # arguments that bear on the exchange
MANY = 8  # reductions a step that the script calls itself: from here on buckets are what it lacks
LARGE_BUCKET_MB = 2 * DEFAULT_BUCKET_MB  # beyond this little is left of the backward when the first bucket is full


def ddp_facts(t: Tables) -> Facts:
    """Return the arguments of DistributedDataParallel, where the capture has seen it being made."""
    ddp = as_facts(t.capture.info.flags.ddp) if t.capture.info else {}
    return {"ddp": ddp, "has_device": t.device_id >= 0}


def gradient_prescriptions(finding: Finding, step_ns: float) -> list[Prescription]:
    """Prescribe buckets that start during the backward, where they do not, and gradients in 16 bits.

    A script that reduces one tensor after the other itself has no DistributedDataParallel to tune: it lacks one.
    """
    by_hand = finding.facts.get("reductions_by_hand")
    if isinstance(by_hand, float) and by_hand >= MANY:
        return [in_buckets(finding, step_ns, least=0.7)]  # the host waits for each, and for one or two afterwards
    ddp = finding.facts.get("ddp")
    known = dict(ddp) if isinstance(ddp, Mapping) else {}
    bucket_mb = known.get("bucket_cap_mb")
    late = isinstance(bucket_mb, int | float) and bucket_mb > LARGE_BUCKET_MB
    return [*([_smaller_buckets(finding, step_ns, known)] if late else []), _sixteen_bits(finding, step_ns, known)]


def in_buckets(finding: Finding, step_ns: float, *, least: float = 0.3) -> Prescription:
    """Prescribe DistributedDataParallel in the place of reductions that the script calls itself."""
    device = "device_ids=[local_rank], " if finding.facts.get("has_device", True) else ""
    return prescription(
        finding,
        step_ns,
        id="bucket-gradients",
        title="Reduce gradients in buckets instead of one by one",
        before="for p in model.parameters():\n    dist.all_reduce(p.grad)",
        after=f"model = DistributedDataParallel(model, {device}bucket_cap_mb={DEFAULT_BUCKET_MB},\n"
        "                                gradient_as_bucket_view=True)",
        least=least,
        safety="same numbers up to the order of summation",
        remedy="diagnose.kernels.distributed.bucket_tuning",
    )


def _call(arguments: Mapping[str, object], *, has_device: bool) -> str:
    shown = {k: v for k, v in arguments.items() if k in SHOWN and v}
    devices = ["device_ids=[local_rank]"] if has_device else []
    given = [f"{k}={int(v) if isinstance(v, float) and v.is_integer() else v}" for k, v in shown.items()]
    return f"model = DistributedDataParallel({', '.join(['model', *devices, *given])})"


def _smaller_buckets(finding: Finding, step_ns: float, known: Mapping[str, object]) -> Prescription:
    on_device = bool(finding.facts.get("has_device"))
    better = {**known, "bucket_cap_mb": DEFAULT_BUCKET_MB, "gradient_as_bucket_view": True}
    return prescription(
        finding,
        step_ns,
        id="overlap-gradients",
        title=f"Let gradient buckets of {DEFAULT_BUCKET_MB} MB start during the backward",
        before=_call(known, has_device=on_device),
        after=_call(better, has_device=on_device),
        least=0.2 if on_device else 0.0,
        most=0.9 if on_device else 0.5,
        safety="same numbers",
        needs="a backward that is longer than the transfer; the last bucket stays visible"
        + ("" if on_device else "; and cores beside those that compute, since an exchange without a GPU takes some"),
        remedy="diagnose.kernels.distributed.bucket_tuning",
        arguments={"bucket_cap_mb": DEFAULT_BUCKET_MB},
    )


def _sixteen_bits(finding: Finding, step_ns: float, known: Mapping[str, object]) -> Prescription:
    on_device = bool(finding.facts.get("has_device"))
    call = _call(known, has_device=on_device)
    return prescription(
        finding,
        step_ns,
        id="compress-gradients",
        title="Send gradients in 16 bits",
        before=call,
        after="from diagnose.kernels.distributed.comm_hooks import install\n\n"
        f'{call}\ninstall(model, "bf16")   # before the first backward',
        least=0.2,
        most=0.5,
        safety="may change the numbers: 16-bit gradients round; compare the loss of the first hundred steps",
        needs="DistributedDataParallel; half of the bytes are saved, the latency is not",
        remedy="diagnose.kernels.distributed.comm_hooks",
    )
