"""What findings and programs lead to every text that a change can print: facts by rule, in plain tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from diagnose import analyzers
from diagnose.changes.common.change import Promise
from diagnose.changes.common.prescribe import also_possible, prescribe
from diagnose.model.diagnosis import Finding, Prescription, Where
from diagnose.tables.program import Program
from tests.changes.test_load_once import LOADS_ONCE

RULES = {rule.META.id: rule for rule in analyzers.RULES}
STEP_NS, LOST_NS = 3e6, 1e6
WORKS = ("", "image", "loop", "parsing", "table", "text", "values")
LINE = {"file": "data.py", "line": 31, "share": 0.8}
DRAWS = {"file": "data.py", "line": 7}
SLOW = {"single_process": True, "slow_line": LINE}
IDENTITIES = "identities = [row.identity for row in rows]"
LOOKUP = {
    "name": "identities", "file": "data.py", "built": 12,
    "made": {
        "name": "", "file": "data.py", "first": 12, "lines": [IDENTITIES], "parameters": (), "spread": (),
        "begin": (12, 13), "end": (12, len(IDENTITIES)),
    },
}  # fmt: skip
BUILT_IN_A_CALL = {**LOOKUP, "made": {**LOOKUP["made"], "lines": ["identities = list(rows)"], "end": (12, 23)}}
SAMPLER = {"by_sampler": True, "order_share": 0.9, "batch_ns": 9e6, "sampler_at": " at train.py:3"}
DRAWN = {"weights": "weights", "num": "3", "source": "rng"}
MADE = {**LOADS_ONCE, **SLOW}
ISSUER = {"file": "train.py", "line": 3, "num": 640.0, "share": 0.9, "in_model": False}
LOOPS = ("train.py", "torch/optim/swa_utils.py", "torch/nn/utils/clip_grad.py")  # files that loop over tensors
WALK = {"call": "model.state_dict()", "name": "state_dict", "line": "sizes = len(state_dict)"}
NORM = {
    "operator": "F.layer_norm",
    "over": "dimension 1",
    "before": "",
    "after": "from torch.nn import functional as F\n\ny = F.layer_norm(x, x.shape[-1:])",
    "needs": "",
}
HALVES = ("aten::linalg_vector_norm",)
CHAINS = (
    ("silu", "mul"), ("tanh", "pow", "mul"), ("erf", "mul"), ("exp", "sub", "div"), ("add", "gelu"), ("rsqrt", "mul"),
)  # fmt: skip
TURNS = ("gc-pause", "python-stall", "off-cpu", "data-stall", "")

# What a finding says of the trace, by rule; a rule that is not here has a finding without facts.
FACTS: dict[str, tuple[Mapping[str, object], ...]] = {
    "data-stall": (
        {"single_process": True, "num_workers": 0, "batch_size": 2, "has_device": False},
        {"single_process": True, "num_workers": 0, "has_device": True},
        {"single_process": True, "num_workers": 0, "batch_size": 2, "sampler": "_InfiniteConstantSampler"},
        {"single_process": True, "num_workers": 0, "batch_size": 2, "iterable": True},
        {"single_process": False, "num_workers": 1, "batch_size": 2, "iterable": True},
        {"single_process": False, "num_workers": 1, "batch_size": 2},
        {"single_process": False}, {"single_process": True, "num_workers": 0, "restart_share": 0.8},
        {"num_workers": 2, "batch_size": 2, "keeps_up": True, "workers_busy": 1e-9, "counters": {}},
        {"num_workers": 2, "keeps_up": True, "workers_busy": 1e-9, "counters": {}},
        {"single_process": True, "num_workers": 0, "batch_size": 2, "waits": True, "waiting_share": 0.9},
        *(
            {"num_workers": 1, "batch_size": 2, "waits": True, **others}
            for others in (
                {"sampler": "DistributedSampler", "collate_fn": "pad", "draws": DRAWS},
                {"sampler": "SequentialSampler", "collate_fn": "functools.partial(pad)"},
            )
        ),
        {"single_process": True, "num_workers": 0, "batch_size": 2, "library": "transformers"},
        {"single_process": True, "num_workers": 0, "batch_size": 2, "draws": DRAWS},
        {"single_process": True, "num_workers": 0, "batch_size": 2, "cores": 8, "num_threads": 8, "batch_ns": 9e6},
        {"single_process": True, "num_workers": 0, "batch_size": 2, "ready_share": 0.5},
        {"single_process": True, "num_workers": 0, "batch_size": 2, "sampler": "Buckets", "collate_fn": "pad"},
        {"single_process": True, "num_workers": 0, "batch_size": 2, "collate_fn": "functools.partial(pad)",
         "drop_last": True},
        *({**SLOW, "sample_work": work} for work in WORKS),
        *({**SLOW, "list_work": work} for work in ("pop", "insert", "index")),
        {**SLOW, "is_array_call": True}, {**SLOW, "behind_draw": True, "draws": DRAWS},
        {**SLOW, "draws": DRAWS}, {**SLOW, "draws": DRAWS, "iterable": True}, {**SLOW, "iterable": True},
        {**SLOW, "lookup": LOOKUP}, {**SLOW, "lookup": BUILT_IN_A_CALL}, {**SLOW, "lookup": {**LOOKUP, "made": None}},
        LOADS_ONCE, MADE, {**MADE, "sampler": None}, SAMPLER,
        *({**SAMPLER, "draw": {**DRAWN, "work": work}} for work in ("choice", "multinomial", "choices")),
    ),
    "host-collective": ({}, {"of_host_backend": True}),
    "host-compute": ({"operator": "aten::unique", "on_host": 1.0},),
    "host-sync": ({}, {"to_device": 1.0}, {"waits_for": "synchronize"}, {"waits_for": "exchange"}),
    "full-precision-matmul": ({"has_tf32": False}, {"has_tf32": True}),
    "exposed-copy": (
        {"to_host": 1, "num": 1, "pageable": 1}, {"to_host": 0, "num": 1, "pageable": 1}, {"to_host": 0, "num": 1},
    ),
    "exposed-communication": (
        {"is_exchange": True}, {"has_device": True}, {"ddp": {"bucket_cap_mb": 500.0, "gradient_as_bucket_view": True}},
        {"reductions_by_hand": 10.0}, {"is_exchange": False, "world_size": 4, "num_devices": 2},
        {"ddp": {"find_unused_parameters": True}}, {"bus_gbps": 2.5, "world_size": 4},
    ),
    "small-collectives": ({}, {"one_by_one": True}),
    "launch-bound": (
        {"has_device": True}, {"has_device": False}, {"has_device": True, "before_graphs": 0.5},
        *({"has_device": False, "issuer": ISSUER | {"reads": reads}} for reads in (160.0, 0.0)),
        {"has_device": True, "issuer": ISSUER | {"reads": 160.0}},
        {"has_device": True, "issuer": ISSUER | {"reads": 160.0, "names": HALVES}},
        {"has_device": True, "issuer": ISSUER | {"reads": 0.0, "names": ("aten::mul", "aten::copy_")}},
    ),
    "layout-copy": (
        {"is_conversion": True}, {"is_conversion": False}, {"is_conversion": False, "cast_to": "half"},
        {"is_conversion": False, "around_graphs": True},
    ),
    "slow-kernel": (
        {"attention": True}, {"attention": False},
        {"attention": False, "kernel": "reduce_kernel", "kernel_pattern": "reduce"},
    ),
    "misaligned-matmul": ({"size": 50257, "padded_size": 50304},),
    "slow-fft-length": tuple(
        {"kind": kind, "length": 20479, "fast": 20480, "fast_product": "2^12 x 5", "lower": 20160, "added": 1}
        for kind in ("convolution", "periodic", "spectrum")
    ),
    "unfused-optimizer": (
        {"name": "AdamW"}, {"name": "RMSprop"}, {"name": "MyAdam", "class": "MyAdam", "module": "__main__"},
        {"name": "AdamW", "has_device": True}, {"name": "AdamW", "in_graph": True}, {"name": "AdamW", "foreach": True},
    ),
    "kernel-latency": ({}, {"in_graph": True}),
    "unfused-elementwise": (
        {}, {"in_graph": True}, *({"chains": [[f"aten::{op}" for op in chain]]} for chain in CHAINS),
    ),
    "unfused-attention": ({},),
    "unfused": (
        *({"kind": "attention", "on_host": True, "has_mask": each} for each in (False, True)),
        {"kind": "norm", "call": NORM},
    ),
    "scatter-atomics": ({"indexed": True},),
    "python-stall": (
        {}, {"waiting_share": 0.1}, {"waiting_share": 0.9}, {"in_pass": 1.0}, {"after_read": 1.0},
        {"lookup": LOOKUP}, {"lookup": {**LOOKUP, "indexed": True}},
    ),
    "periodic-stall": (
        {"phase": "checkpoint"}, {"phase": "evaluation", "period": 16}, {"phase": "evaluation"},
        {"phase": "inference"}, {"phase": "loading", "num_workers": 1}, {"phase": "rollout"},
    ),
    "straggler": (
        {}, {"kind": "slow-group"}, {"kind": "slow-group", "hosts": ("one",)}, {"begins_late_rank": 1},
        *({"kind": "turns", "cause": cause} for cause in TURNS),
        *({"kind": "late", "late_rank": 1, "cause": f"slower-{what}"} for what in ("device", "host", "rank")),
        {"kind": "late", "late_rank": 1, "cause": "more-work"}, {"late_rank": 1, "is_exchange": False},
        {"kind": "late", "late_rank": 1, "cause": "slower-host", "hosts": ("one",)},
    ),
    "wasted-sample": ({"kind": "cut", "single_process": True, "slow_line": LINE},),
    "dead-work": ({"kind": "gradient"}, {"kind": "result"}, {"kind": "gradient", "is_frozen": True}),
    "host-round-trip": ({"kind": "by-element", "issuer": ISSUER}, {"kind": "constant"}),
    "constant-work": ({"kind": "constant"},),
    "recurrence": tuple(
        {"issuer": ISSUER | {"reads": 0.0}, "kind": kind, "form": form, "moves": "before"}
        for kind, form in (("recurrent", "GRU"), ("recurrent", "scan"), ("separable", ""))
    ),
    "independent-loop": (
        {"kind": "independent", "num_calls": 640, "unchanging": WALK, "not_computing": 0.9},
        *(
            {"kind": "independent", "num_calls": 640, "issuer": ISSUER | {"reads": 0.0}, **more}
            for more in ({}, *({"of_model": True, "library": each} for each in LOOPS))
        ),
    ),
    "work-on-nothing": (
        {"kind": "one-hot"},
        {"kind": "padding", "padded": 0.4},
        {"kind": "padding", "padded": 0.4, "of_signals": True},
        {"kind": "ignored rows", "ignored": 0.85},
        {"kind": "subnormal"},
        {"kind": "sorted"},
        {"kind": "untouched rows"},
    ),
    "computed-again": ({}, {"with_gradients": True}),
    "growing-work": ({"kind": "growing"}, {"kind": "copied"}, {"kind": "copied", "in_rows": True}),
    "rollout-bound": ({"phase": "rollout"}, {"phase": "inference"}),
    "debug-mode": ({}, {"blocks_launches": True}),
    "memory-pressure": ({}, {"world_size": 4, "optimizer": "AdamW", "by_category": {"activations": 8 << 30}}),
}  # fmt: skip
LIBRARY = "transformers/models/vit/modeling_vit.py:252 in forward"
PLACES: dict[str, tuple[Where, ...]] = {
    "host-sync": (Where(op="aten::nonzero"), Where(op="aten::is_nonzero"), Where("train.py", 3, code="out.tolist()")),
    "python-stall": (
        Where("train.py", 3), Where("train.py", 3, caller="hook"), Where("transformers/image.py", 3),
        Where("train.py", 3, function="log_metrics"),
    ),
    "periodic-stall": (Where("train.py", 3, code="torch.load(path)"),),
    "allocator-stall": (Where("train.py", 3, code="torch.cuda.empty_cache()"),),
    "small-grid": (Where(op="aten::mm"),),
    "unfused-attention": (Where("serve.py", 3, library=LIBRARY),),
    "unfused-elementwise": (Where("model.py", 3, function="apply_rotary_emb"),),
}  # fmt: skip
PRODUCTS, SIZES = frozenset({"product"}), frozenset({197, 211})
TRAINS, INFERS = Program(trains=True), Program(trains=False, allocator="uncached")
PROGRAMS = (Program(trains=True, allocator="caching"), INFERS)
OTHER_PROGRAMS: dict[str, tuple[Program, ...]] = {
    "allocator-stall": (Program(trains=True, vendor="AMD"),),
    "launch-bound": (
        Program(server="vllm"), Program(server="sglang"), Program(trains=True, second_derivatives=True),
        Program(trains=True, is_compiled=True),
    ),
    "data-stall": (Program(trains=True, batch_size=8, varying_sizes=SIZES),),
    "exposed-communication": (Program(trains=True, is_ddp=True), Program(is_ddp=True)),
    "exposed-copy": (Program(trains=True, has_loader=False),),
    "kernel-latency": (Program(trains=True, has_graphs=True), Program(trains=False, has_graphs=True)),
    "memory-headroom": (Program(has_loader=False, batch_size=4),),
    "memory-pressure": (
        Program(trains=True, is_ddp=True, has_cross_entropy=True, heavy=PRODUCTS, batch_size=8),
    ),
    "periodic-stall": (Program(trains=True, batch_size=8),),
    "recompute": (Program(trains=True, heavy=frozenset({"convolution", "product"})),),
    "recompilation": (Program(trains=True, varying_sizes=SIZES), Program(trains=False, varying_sizes=SIZES)),
    "full-precision-matmul": (Program(), Program(trains=True, vendor="AMD")),
    "layout-copy": (Program(is_compiled=True, has_graphs=True),),
    "slow-kernel": (Program(trains=True, vendor="AMD"),),
    "small-collectives": (Program(is_ddp=True),),
    "device-contention": (Program(trains=True, vendor="AMD"), Program(trains=True, vendor="NVIDIA")),
    "straggler": (Program(trains=True, is_ddp=True), Program(trains=True, varying_sizes=SIZES)),
    "throttled": (Program(trains=True, vendor="AMD"),),
    "unfused-elementwise": (Program(trains=True, has_graphs=True),),
    "unfused-optimizer": (Program(trains=True, clips=True),),
}  # fmt: skip


@dataclass(frozen=True)
class Printed:
    """A change as a report prints it, for whom, and what it promises of the numbers."""

    prescription: Prescription
    promise: Promise | None
    finding: Finding
    program: Program

    @property
    def name(self) -> str:
        facts = "-".join(str(value) for value in self.finding.facts.values() if isinstance(value, bool | str | float))
        return f"{self.prescription.id}-{self.finding.rule}-{facts}"


def findings(rule: str) -> Iterator[Finding]:
    """Yield the findings of a rule: each of its facts, without a place and at each place."""
    for facts in FACTS.get(rule, ({},)):
        for place in ((), *((place,) for place in PLACES.get(rule, ()))):
            yield Finding(rule, "", LOST_NS, share=0.3, facts=dict(facts), where=place)


def printed() -> Iterator[Printed]:
    """Yield every change that a report can print, those under "also possible" too."""
    for rule in RULES:
        for finding in findings(rule):
            for program in (*PROGRAMS, *OTHER_PROGRAMS.get(rule, ())):
                for p in (*prescribe(finding, STEP_NS, program), *also_possible(finding, STEP_NS, program)):
                    yield Printed(p, None if p.promise in ("other", "") else p.promise, finding, program)


def distinct() -> list[Printed]:
    """Return each text once."""
    found = {(each.prescription.id, each.prescription.before, each.prescription.after): each for each in printed()}
    return list(found.values())
