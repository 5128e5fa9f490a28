"""What a rule advises that nothing can apply: one entry of text each, and those that several rules give.

A rule's own entries are ``ADVICE`` of its file; ids in its META name them beside the changes that can be applied. Where
several entries have one id, the first that fits the finding is given.

``title``, ``before``, ``after`` and ``needs`` are templates. A finding's facts fill them in by name, those of a nested
record as ``{issuer.num:.0f}``, and besides: ``{line}``, the text of the user's own line; ``{at}``, " at train.py:40";
``{there}``, " (train.py:40)"; ``{script}``; ``{batch}`` and ``{twice}`` as many samples; ``{ranks}``;
``{half_as_often}`` twice as many steps as it comes after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from diagnose.analyzers.common.advice_models import Model, fused_attention, vectorised_loop, with_launches
from diagnose.model.diagnosis import Finding
from diagnose.model.limits import MAJORITY
from diagnose.model.line_calls import LOADS, SAVES, calls
from diagnose.model.locations import in_library
from diagnose.model.numerics import Numerics, identical, other_training, reduced, rounding
from diagnose.tables.issuers import MIN_IN_MODEL
from diagnose.tables.program import Program

__all__ = [
    "SHARED",
    "Advice",
    "When",
    "fits_graphs",
    "identical",
    "in_data_parallel",
    "in_training",
    "of_kind",
    "other_training",
    "reduced",
    "rounding",
]

When: TypeAlias = Callable[[Finding, Program], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing to do; ``least`` and ``most`` are shares of the finding's cost, 0 if nothing is predicted."""

    id: str
    title: str  # imperative
    numerics: Numerics
    after: str = ""  # code to paste; "": the title has it all
    before: str = "{line}"
    needs: str = ""
    watch: str = ""  # what to look out for: a sentence of its page
    when: When | None = None  # whether it fits, None for always
    min_share: float = 0.0  # of the step that the finding has to cost
    least: float = 0.0
    most: float = 1.0
    of: str = ""  # the fact with the share of the cost that both are parts of; "" for all of it
    effect: Model | None = None  # a model of its own, in a replay with a device
    is_ahead: bool = False  # it is done beside the step before: what that is too short for stays
    is_moved: bool = False  # what takes the time is done all the same, elsewhere
    frees: tuple[str, ...] = ()  # categories of device memory at the peak
    frees_share: float = 1.0
    records_again: bool = False  # it changes the recording, not the script
    records_more: bool = False  # so that it holds what this one lacks
    remedy: str = ""  # dotted name of the module that does it
    modules: tuple[str, ...] = ()  # of further ones that the code takes


def of_kind(*kinds: str) -> When:
    """Return a test for findings of these kinds; of a rule without kinds every one is."""
    return lambda f, _: f.facts.get("kind", kinds[0]) in kinds


def _that_checks(kind: str) -> When:
    """Return a test for guards of this kind."""
    return lambda f, _: f.facts.get("kind") == kind


def in_training(_finding: Finding, program: Program) -> bool:
    """Return whether the program may train."""
    return program.trains is not False


def in_data_parallel(_finding: Finding, program: Program) -> bool:
    """Return whether the program may train under DistributedDataParallel."""
    return program.trains is not False and program.is_ddp is not False


def fits_graphs(finding: Finding, program: Program) -> bool:
    """Return whether launches could be captured: none are yet, nothing grows, the host hardly waits between them."""
    share = finding.facts.get("graphable")
    return not (program.has_graphs or program.grows or (isinstance(share, float) and share < MAJORITY))


_EXCHANGED_PARTS = """from diagnose.kernels.accumulation import GradientAccumulation

accumulation = GradientAccumulation(model, optimizer, every=4)
for x, y in accumulation.over(loader):
    with accumulation.micro_batch(len(x)) as micro:
        micro.backward(criterion(model(x), y))   # exchanges and updates with the last part"""
_ACCUMULATED = Advice(
    id="accumulate-gradients",
    title="Cut the batch into 4 parts and accumulate their gradients",
    numerics=rounding("gradients equal the large batch's to 2e-7, but batch norm sees the parts"),
    before="",
    after=f"# the loader: batches of 1/4 of the size\n{_EXCHANGED_PARTS}",
    needs="more launches a step",
    watch="Batch norm sees the parts. Samples are weighed by their number, so a shorter last part is correct.",
    when=lambda f, p: "is_exchange" not in f.facts and in_training(f, p),
    frees=("activations",),
    frees_share=0.75,
    remedy="diagnose.kernels.accumulation",
)
_CAPTURED = Advice(
    id="capture-step",
    title="Capture the whole step as one CUDA graph, without compiling",
    numerics=identical("if nothing in the step depends on a value that the host reads"),
    before="",
    after="""from diagnose.kernels.step_graph import StepGraph

def whole_step(x, y):
    optimizer.zero_grad(set_to_none=True)
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()   # made with capturable=True
    return loss.detach()

step = StepGraph(whole_step, "cuda", optimizers=[optimizer])
loss = step(x, y)""",
    needs="inputs of one shape, no value read within the step, and memory for the graph",
    watch="A step that cannot be captured runs as it is, and the module names the reason.",
    when=lambda f, p: p.trains is not False and _can_capture(f, p),
    least=0.3,
    most=0.95,
    of="graphable",
    remedy="diagnose.kernels.step_graph",
)


def _can_capture(finding: Finding, program: Program) -> bool:
    without = finding.facts.get("has_device") is False or program.server or program.varying_sizes
    return not without and fits_graphs(finding, program)


_ATTENTION = Advice(
    id="fused-attention",
    title="Use scaled_dot_product_attention",
    numerics=rounding("the fused kernel adds in another order; compare the first losses"),
    before="scores = q @ k.transpose(-2, -1) * scale\ny = scores.softmax(-1) @ v",
    after="y = F.scaled_dot_product_attention(q, k, v, scale=scale)\n"
    '# for a model of transformers: from_pretrained(..., attn_implementation="sdpa")\n'
    "# of a mask: is_causal=True, or attn_mask=mask: True if a query may see a key",
    needs="no use of the attention weights themselves",
    watch="On a CPU only attention without dropout is fused.",
    when=of_kind("attention"),
    least=0.5,  # of what runs between the products: a mask or dropout may keep some of it
    effect=fused_attention,
)
_LOOP = Advice(
    id="vectorise-loop",
    title="Vectorise the loop{at} ({issuer.num:.0f} operators a step): let few operators work on all rows",
    numerics=rounding("sums are taken in another order; compare the loss of the first steps"),
    needs="memory for all rows at once",
    watch="Comparing all with all takes memory for every pair.",
    when=lambda f, _: _repeats(f),
    least=0.5,
    most=0.95,  # what operators over all rows need themselves is little, but not nothing
    of="issuer.share",
    effect=vectorised_loop,
)


MIN_REPEATS = 0.5  # of the operators: those of loops 0.8 to 1, of a loss written out in twenty lines 0.2 to 0.35


def _repeats(finding: Finding, num_reads: float = 0) -> bool:
    """Return whether a loop of the script's, and not of the model's layers, calls operators one by one.

    ``num_reads`` numbers or more it reads one by one in a step.
    """
    issuer = finding.facts.get("issuer")
    if not isinstance(issuer, dict) or issuer.get("repeats", 1.0) < MIN_REPEATS or issuer.get("reads", 0) < num_reads:
        return False
    return not issuer.get("in_model") or issuer.get("num", 0.0) >= MIN_IN_MODEL


SHARED: tuple[Advice, ...] = (
    replace(
        _ACCUMULATED,
        title="Exchange gradients once for 4 batches",
        numerics=other_training("updates come less often, each of more samples"),
        after=_EXCHANGED_PARTS,
        needs="a larger batch for each update, with the learning rate that goes with it",
        when=lambda f, p: "is_exchange" in f.facts and not f.facts["is_exchange"] and in_data_parallel(f, p),
        frees=(),
    ),
    _ACCUMULATED,
    Advice(
        id="batch-rollouts",
        title="Step many environments at once and call the model on all of them",
        numerics=other_training("what is collected comes from more environments"),
        after="""envs = gymnasium.make_vec(name, num_envs=64, vectorization_mode="async")   # in processes
observations, _ = envs.reset()
with torch.inference_mode():            # in each step: one call for all of them
    actions = policy(torch.as_tensor(observations, device=device))
observations, rewards, *_ = envs.step(actions.cpu().numpy())
# generation: several prompts in one call, use_cache=True""",
        needs="environments or requests that do not depend on each other",
        when=lambda f, _: f.facts.get("phase") == "rollout",
        least=0.2,
        most=63 / 64,  # all calls but one of those for 64 environments
    ),
    Advice(
        id="bound-work",
        title="Keep the work{at} from growing: use only what is new, or compute it only when it is shown",
        numerics=identical("if the step uses the same values"),
        needs="a step that need not read all of what is stored",
        watch="What reads the whole history on purpose, such as a statistic over it, needs a running total instead.",
        when=lambda f, _: f.facts.get("kind", "growing") == "growing" and not f.facts.get("idiom"),
        least=0.7,  # of what steps take longer than the first; what the place took there goes as well, or stays
    ),
    _CAPTURED,
    replace(
        _CAPTURED,
        after="""from diagnose.kernels.step_graph import StepGraph

def whole_step(x):
    with torch.no_grad():
        return model(x)

step = StepGraph(whole_step, "cuda")
step(x)""",
        when=lambda f, p: p.trains is False and _can_capture(f, p),
    ),
    Advice(
        id="find-batch-size",
        title="Measure which size of the batch fits and is fastest",
        numerics=other_training("a larger batch trains differently"),
        before="",
        after="""from diagnose.kernels.batch_size import find_batch_size

def run(size):   # one step of your own, of this many samples
    x, y = next(iter(DataLoader(dataset, batch_size=size)))
    criterion(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()

found = find_batch_size(run, state=(model, optimizer), start=8)
print(found)   # seconds and samples a second by size; found.fastest, found.largest""",
        needs="the step as a function of the size of its batch",
        watch="A larger batch trains differently; the learning rate goes with it.",
        when=lambda _, p: not p.server,  # whose scheduler makes the batches
        most=0.0,
        remedy="diagnose.kernels.batch_size",
    ),
    Advice(
        id="find-memory",
        title="List the lines that hold the memory at its peak",
        numerics=identical(),
        before="",
        after="""from diagnose.kernels.memory_snapshot import memory_watch, snapshot_on_oom

with memory_watch() as watch:
    train_step(batch)
print(watch, watch.alive())   # the peak by line, and what outlives the step
with snapshot_on_oom("out-of-memory"):   # around the whole run
    ...""",
        watch="It changes nothing by itself; recording the stacks slows that step.",
        most=0.0,
        remedy="diagnose.kernels.memory_snapshot",
    ),
    replace(
        _ATTENTION,
        title="Switch the library to scaled_dot_product_attention",
        before="model = AutoModel.from_pretrained(name)",
        after='model = AutoModel.from_pretrained(name, attn_implementation="sdpa")   # of transformers',
        needs="a release of the library whose model has it, and no use of the attention weights themselves",
        when=lambda f, _: f.facts.get("kind", "attention") == "attention" and in_library(f.where),
    ),
    _ATTENTION,
    Advice(
        id="load-mapped",
        title="Load the weights by mapping their file",
        numerics=identical(),
        after="""from diagnose.kernels.fast_load import fast_load, fill
from diagnose.kernels.fast_save import save_files

save_files(model.state_dict(), folder)        # instead of torch.save: a folder of files that are mapped
report = fill(model, path)                    # into a model that exists
report = fast_load(build_model, path)          # or one that was never initialised""",
        needs="a checkpoint of weights (.pt, safetensors, or a distributed one)",
        watch="The file must stay as it is while the model uses it.",
        when=lambda f, _: calls(f, LOADS),
        least=0.5,
        remedy="diagnose.kernels.fast_load",
        modules=("diagnose.kernels.fast_save",),
    ),
    Advice(
        id="local-sgd",
        title="Exchange parameters every few steps instead of gradients in each",
        numerics=other_training("ranks train apart between two exchanges"),
        before="",
        after="""from diagnose.kernels.distributed.local_sgd import LocalSGD

local = LocalSGD(ddp, optimizer, start=1000, every=8)
loss.backward()
local.step()   # in place of optimizer.step(); local.average() at the end""",
        needs="links so slow that fewer exchanges outweigh another course of training",
        watch="It trains differently: the loss was 3 % above that of DDP after a short training.",
        when=lambda f, p: not f.facts.get("is_exchange") and in_data_parallel(f, p),
        min_share=0.1,  # what trains differently has to save more than that
        most=0.8,
        remedy="diagnose.kernels.distributed.local_sgd",
    ),
    Advice(
        id="steady-guard",
        title="Make the number a tensor, which no guard looks into{there}",
        numerics=rounding("the number is rounded to the tensor's dtype"),
        after="# the guard that fails: {guard}\n{line}",
        when=_that_checks("number"),
    ),
    Advice(
        id="steady-guard",
        title="Make the object that the guard checks once, before the loop{there}",
        numerics=identical(),
        after="# the guard that fails: {guard}\n{line}",
        when=_that_checks("object"),
    ),
    Advice(
        id="steady-guard",
        title="Compile each layer instead of the whole model: a layer has few states, which its copies share{there}",
        numerics=rounding("less is fused between layers; compare the loss of the first steps"),
        after="# the guard that fails: {guard}\n"
        "for layer in model.layers:   # instead of model.compile() or torch.compile(model)\n"
        "    layer.compile()",
        needs="parameters whose requires_grad changes layer by layer",
        when=_that_checks("flag"),
    ),
    Advice(
        id="steady-guard",
        title="Stack the items of the list into one tensor, whose size can be dynamic{there}",
        numerics=rounding("other kernels are generated; compare the loss of the first steps"),
        after="# the guard that fails: {guard}\n"
        "batch = torch.stack(items)   # before the compiled function, which works on all of them at once\n"
        "torch._dynamo.mark_dynamic(batch, 0)",
        needs="items of one shape",
        when=_that_checks("length"),
    ),
    Advice(
        id="steady-guard",
        title="Keep what the guard checks the same in each step{there}",
        numerics=identical(),
        after="# the guard that fails: {guard}\n{line}",
        when=_that_checks("other"),
    ),
    Advice(
        id="save-less-often",
        title="Save checkpoints less often",
        numerics=identical(),
        after="if step % {half_as_often} == 0:   # half as often: half of the cost\n    torch.save(state, path)",
        needs="that up to twice as many steps may be lost when a run is interrupted",
        when=lambda f, _: f.facts.get("phase") == "checkpoint" or calls(f, SAVES),
        least=0.5,
        most=0.9,
    ),
    Advice(
        id="sparse-embeddings",
        title="Use sparse gradients for the embedding tables",
        numerics=other_training(
            "moments and weight decay of rows that are not looked up do not change; Adagrad without decay is the same"
        ),
        before="""model.table = nn.Embedding(num_rows, width)
optimizer = torch.optim.Adagrad(model.parameters(), lr=lr)""",
        after="""model.table = nn.Embedding(num_rows, width, sparse=True)
tables = [p for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()]
others = [p for p in model.parameters() if all(p is not table for table in tables)]
optimizers = [torch.optim.Adagrad(tables, lr=lr), torch.optim.AdamW(others, lr=lr, fused=True)]
# for tables under Adam: torch.optim.SparseAdam(tables, lr=lr)""",
        needs="an optimizer that takes sparse gradients",
        watch="DistributedDataParallel exchanges sparse gradients over gloo or by gathering.",
        when=of_kind("untouched rows"),
        least=0.3,
        most=0.95,
        effect=with_launches(0.3, 0.95, "what is read and written", launches=0.0),
    ),
    Advice(
        id="tune-buckets",
        title="Measure which size of gradient buckets makes the step shortest",
        numerics=rounding(
            "buckets of another size may be summed in another order; compare the loss of the first steps"
        ),
        before="",
        after="""from diagnose.kernels.distributed.bucket_tuning import tune_buckets

def make_step(ddp):
    def step(batch):   # the step of your own, with the model that is being tried
        x, y = batch
        criterion(ddp(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return step

choice = tune_buckets(model, make_step, loader, state=[optimizer])   # on every rank
print(choice)""",
        needs="the step as a function that is made from a DistributedDataParallel",
        watch="Some hundred steps at the start, after which model and optimizer are as they were.",
        when=lambda f, p: not f.facts.get("is_exchange") and in_data_parallel(f, p),
        remedy="diagnose.kernels.distributed.bucket_tuning",
    ),
    replace(
        _LOOP,
        title="Use torch.cumsum, cumprod or cummax in the place of the loop{at} ({issuer.num:.0f} operators a step)",
        needs="memory for all turns at once; a product with the powers of the factor if each turn scales the state",
        watch="Powers of numbers near zero or above one leave the range of float32 over long sequences.",
        when=lambda f, _: f.facts.get("form") == "scan",
        least=0.1,
    ),
    replace(
        _LOOP,
        title="Use nn.{form} in the place of the loop{at} ({issuer.num:.0f} operators a step)",
        needs="torch's order of the gates, if weights are copied",
        watch="Copied weights need the order of torch's gates.",
        when=lambda f, _: f.facts.get("kind") == "recurrent",
        least=0.1,  # what the layer itself calls for each turn stays
    ),
    replace(
        _LOOP,
        title="Take the line out of the loop and call it once for all turns{there}",
        after="# {moves} the loop, on the tensors of all turns\n{line}",
        needs="memory for all turns at once",
        when=lambda f, _: f.facts.get("kind") == "separable",
        least=0.1,
    ),
    replace(
        _LOOP,
        title="Vectorise the loop{at} ({issuer.num:.0f} operators a step): read {issuer.reads:.0f} numbers at once",
        when=lambda f, _: f.facts.get("has_device") is not False and _repeats(f, num_reads=8),
    ),
    _LOOP,
)
