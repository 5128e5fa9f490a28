"""What findings and programs lead to every text that a change can print: facts by rule, in plain tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from diagnose import analyzers
from diagnose.analyzers import costly_form
from diagnose.analyzers.common.rewrite import (
    Edits,
    cached,
    detached,
    frozen_for,
    hoisted,
    kept,
    skipped,
    without_gradients,
)
from diagnose.changes.common.change import Promise
from diagnose.changes.common.prescribe import also_possible, prescribe
from diagnose.model.dataflow import Frame
from diagnose.model.diagnosis import Finding, Prescription, Where
from diagnose.model.own_source import EditedStatement, OwnSource
from diagnose.tables.program import Program
from tests.changes.test_load_once import LOADS_ONCE

RULES = {rule.META.id: rule for rule in analyzers.RULES}
STEP_NS, LOST_NS = 3e6, 1e6
LINE = {"file": "data.py", "line": 31, "share": 0.8}
DRAWS = {"file": "data.py", "line": 7}
SLOW = {"single_process": True, "slow_line": LINE}
IDIOM = {
    "idiom": {
        "title": "Select the few items that are used instead of sorting all",
        "edits": (
            EditedStatement(0, "", "import heapq"),
            EditedStatement(31, "picked = sorted(scores)[:3]", "picked = heapq.nsmallest(3, scores)"),
        ),
        "condition": "", "promise": "identical",
        "needs": "3 well below the number of items", "least": 0.5, "sure_from_ns": 0, "file": "data.py", "line": 31,
        "share": 0.8, "share_around": 0.9, "samples": 40,
    }
}  # fmt: skip
REDRAWN = {
    "idiom": {**IDIOM["idiom"], "edits": (), "condition": "other draws", "promise": "other", "sure_from_ns": 10_000}
}
SAMPLER = {"by_sampler": True, "order_share": 0.9, "batch_ns": 9e6, "sampler_at": " at train.py:3"}
MADE = {**LOADS_ONCE, **SLOW}
ISSUER = {"file": "train.py", "line": 3, "num": 640.0, "share": 0.9, "in_model": False}
LOOPS = ("train.py", "torch/optim/swa_utils.py", "torch/nn/utils/clip_grad.py")  # files that loop over tensors
WALK = {
    "call": "model.state_dict()",
    "edits": (
        EditedStatement(2, "for _ in (0, 1):", "names = model.state_dict()\nfor _ in (0, 1):"),
        EditedStatement(3, "sizes = len(model.state_dict())", "sizes = len(names)"),
    ),
}
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

NOT_KNOWN: Edits = ()
MADE_WIDE = {"name": "", "file": "data.py", "first": 12, "begin": (12, 4), "parameters": (), "spread": ()}


def written(rewrite: Callable[..., Edits], first: str, second: str = "") -> Edits:
    """Return what two lines of a script become, the second of which a loop repeats if the first is its head."""
    lines = {("train.py", 3): first, ("train.py", 4): second}
    source, frames = OwnSource(lines, {"train.py": ((3, 4),)}), [Frame("train.py", line, "") for line in (3, 4)]
    in_loop = frames[1:]
    more = {"is_kept_first": True} if rewrite is kept else {}
    found = rewrite(source, *(in_loop if first.startswith("for ") else frames[: 1 + bool(second)]), **more)
    assert found
    return found


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
        SLOW, {**SLOW, "behind_draw": True, "draws": DRAWS},
        {**SLOW, "draws": DRAWS}, {**SLOW, "draws": DRAWS, "iterable": True}, {**SLOW, "iterable": True},
        {**SLOW, **IDIOM}, {**SAMPLER, **REDRAWN, "order_line": LINE},
        LOADS_ONCE, MADE, {**MADE, "sampler": None}, SAMPLER,
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
    "saved-view": ({"name": "x"},),
    "not-compiled": (
        {"kind": "skipped", "line": "y = model(x)", "function": "forward", "reason": "a break in a loop"},
        {
            **{"kind": "idle", "method": "forward", "call": "y = model(x)"},
            "statement": "model.forward = torch.compile(model.forward)",
        },
    ),
    "small-collectives": ({}, {"one_by_one": True}, {"sharded": True}),
    "reduced-again": ({"num": 4, "in_backward": True}, {"num": 4, "in_backward": False}),
    "stage-turns": ({"num_micro": 4}, {"num_micro": 1}),
    "graph-breaks": ({"reason": "Unsupported Tensor.item() call", "hint": "# Set an option.\n"},),
    "recompilation": ({}, *({"kind": kind, "guard": "n == 3"} for kind in ("size", "number", "object", "other"))),
    "equal-rows": ({"kind": "plain"}, {"kind": "spread"}, {"kind": "joined"}, {"kind": "interpolated"}),
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
        {"kind": "attention", "on_host": True},
        {"kind": "norm", "call": NORM}, {"kind": "pairs"}, {"kind": "matrix of distances"},
    ),
    "scatter-atomics": ({"indexed": True},),
    "python-stall": (
        {}, {"waiting_share": 0.1}, {"waiting_share": 0.9}, {"in_pass": 1.0}, {"after_read": 1.0},
        IDIOM,
    ),
    "periodic-stall": (
        {"phase": "checkpoint"}, {"phase": "evaluation", "period": 16}, {"phase": "evaluation"},
        {"phase": "inference"}, {"phase": "loading", "num_workers": 1}, {"phase": "rollout"},
    ),
    "straggler": (
        {}, {"kind": "slow-group"}, {"begins_late_rank": 1},
        *({"kind": "turns", "cause": cause} for cause in TURNS),
        *({"kind": "turns", "sizes": sizes} for sizes in ("drawn", "batches")),
        *({"kind": "late", "late_rank": 1, "cause": f"slower-{what}"} for what in ("device", "host", "rank")),
        {"kind": "late", "late_rank": 1, "cause": "more-work"}, {"late_rank": 1, "is_exchange": False},
        {"kind": "late", "late_rank": 1, "cause": "slower-host"},
    ),
    "wasted-sample": (
        {"kind": "cut", "single_process": True, "slow_line": LINE},
        {
            "kind": "cut", "single_process": True, "slow_line": LINE,
            "cut": {"place": "train.py:9", "text": "x[:1]", "lines": "line 7 computes"},
        },
        {"kind": "lists", "single_process": True, "slow_line": LINE},
    ),
    "dead-work": (
        {"kind": "unchanged", "edits": NOT_KNOWN},
        *({"kind": kind, "names": "`score`", "reader": 40} for kind in ("in branch", "early", "after", "unread")),
        {"kind": "zero factor"},
        {"kind": "zero factor", "edits": written(skipped, "loss = loss + coefficient * penalty(x)")},
        *(
            {"edits": NOT_KNOWN, "kind": "gradient", **more}
            for more in (
                {}, {"ends_early": True}, {"kind": "result"}, {"is_frozen": True, "modules": "layer"},
                {"is_frozen": True, "has_no_rate": True, "modules": "layer"},
                {"below": "layer"},
                {"is_unused": True, "modules": "layer", "edits": written(frozen_for, "loss = model(x).sum()")},
                {"below": "layer", "edits": written(without_gradients, "h = model(x)")},
                {"is_asked": True, "edits": (EditedStatement(3, "x.requires_grad_()", ""),)},
                {"edits": written(detached, "h = model(x)", "loss = criterion(discriminator(h), zeros)")},
            )
        ),
    ),
    "too-wide": (
        {}, {"kind": "float32"}, {"names": ["window", "mean", "scale", "shift"]},
        {"names": ["w"], "made": {**MADE_WIDE, "lines": ["h = weight * 2"], "end": (12, 14)}, "is_tensor": True},
        *(
            {"is_tensor": "torch" in made, "made": {**MADE_WIDE, "lines": [f"h = {made}"], "end": (12, 4 + len(made))}}
            for made in ("np.zeros((2, 4), dtype=float)", "np.random.rand(4)", "torch.from_numpy(array)")
        ),
    ),
    "host-round-trip": ({"kind": "by-element", "issuer": ISSUER}, {"kind": "constant"}),
    "constant-work": (
        {"kind": "constant"},
        {"kind": "constant", "is_part": True},
        {"kind": "constant", "cache": "masks", "edits": written(hoisted, "for each in (0, 1):", "h = model(x)")},
    ),
    "costly-form": tuple({"kind": form.kind} for form in costly_form.FORMS),
    "product-order": (
        {"kind": "first", "is_always": True, "edits": NOT_KNOWN},
        {"kind": "first", "has_bias": True},
        {"kind": "last"},
        {"kind": "summed", "is_always": True},
    ),
    "recurrence": tuple(
        {"issuer": ISSUER | {"reads": 0.0}, "kind": kind, "form": form, "moves": "before"}
        for kind, form in (("recurrent", "GRU"), ("recurrent", "scan"), ("separable", ""))
    ),
    "independent-loop": (
        {"kind": "independent", "num_calls": 640, "unchanging": WALK, "not_computing": 0.9},
        *(
            {"kind": "independent", "num_calls": 640, "issuer": ISSUER | {"reads": 0.0}, **more}
            for more in (
                {}, {"of_model": True, "with_gradients": True}, *({"of_model": True, "library": each} for each in LOOPS)
            )
        ),
    ),
    "work-on-nothing": (
        {"kind": "one-hot"},
        {"kind": "blocks"},
        {"kind": "diagonal"},
        {"kind": "searched"},
        {"kind": "normalized"},
        {"kind": "returned"},
        {"kind": "unread"},
        {"kind": "padding", "padded": 0.4},
        {"kind": "padding", "padded": 0.4, "of_signals": True},
        {"kind": "ignored rows", "ignored": 0.85},
        {"kind": "masked rows", "masked": 0.85},
        {"kind": "subnormal"},
        {"kind": "sorted"},
        {"kind": "untouched rows"},
    ),
    "computed-again": (
        {"kind": "backward"}, {"kind": "gradients"},
        *(
            {"edits": NOT_KNOWN, **more}
            for more in (
                {}, {"with_gradients": True}, {"is_parametrized": True},
                {"edits": written(hoisted, "for each in (0, 1):", "h = model(x)")},
                {"edits": written(hoisted, "for each in (0, 1):", "h = model(x)[each]")},
                {"with_gradients": True, "edits": written(kept, "h = model(x)", "loss = criterion(model(x), y)")},
                {
                    "with_gradients": True,
                    "edits": written(kept, "h = model(x).sum()", "loss = criterion(model(x), y)"),
                },
                {"is_parametrized": True, "edits": written(cached, "for each in (0, 1):", "h = model(x)")},
            )
        ),
    ),
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
    "too-wide": tuple(Where("train.py", 3, code=code) for code in ("x = torch.from_numpy(array)", "h = x.double()")),
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
    "unfused-optimizer": (Program(trains=True),),
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
