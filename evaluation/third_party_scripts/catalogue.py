"""The scripts of this folder and what is true about each: its step, its phases, what it wastes, and on which line.

The truths were written with the scripts, before any result of diagnose on them was seen; a truth that proved wrong is
corrected with a reason beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent
LOADING = ("data-stall",)
PYTHON = ("python-stall",)
NOTHING: tuple[str, ...] = ()


@dataclass(frozen=True)
class Script:
    """One script of an outsider, and the truth about it."""

    name: str
    waste: str  # in words; empty where nothing is wasted
    rules: tuple[str, ...]  # the dominant finding is one of these; none where nothing is wasted
    per_step: Mapping[str, int]  # events of the recording that one step has
    lines: tuple[tuple[str, str], ...] = ()  # file and text of the lines any of which is the place
    phases: tuple[str, ...] = ()  # of the run, beside training and loading
    wrong: tuple[str, ...] = ()  # changes that must not be prescribed
    target: str = ""  # the script or module, where it is not name.py
    folder: str = "."
    launcher: str = "plain"  # plain, module or torchrun
    prepare: str = ""  # a script of this folder that is run first
    needs: str = ""  # a package that may be missing
    args: tuple[str, ...] = field(default=())
    budget: str = "90s"  # of diagnose prove


def _optimizer(name: str, calls: int = 1, **events: int) -> dict[str, int]:
    counts = {f"Optimizer.step#{name}.step": calls}
    return counts | {f"aten::{event}": count for event, count in events.items()}


SCRIPTS = (
    Script("gan_two_optimizers", "", NOTHING, _optimizer("Adam", 2)),
    Script(
        "gradient_accumulation",
        "texts are cleaned by a regular expression word by word when they are read",
        LOADING,
        _optimizer("AdamW", embedding=4),
        (("gradient_accumulation.py", 'tokens = [hash(re.sub(r"[^a-z0-9]", "", word))'),),
    ),
    Script("lbfgs_closure", "", NOTHING, _optimizer("LBFGS")),
    Script(
        "reinforce_rollouts",
        "60 single-row forwards, each with a sample and its read-back, to one update",
        ("host-compute", "python-stall", "host-sync", "launch-bound", "rollout-bound"),
        _optimizer("Adam", multinomial=60),
        (
            ("reinforce_rollouts.py", "probs = policy(state)"),
            ("reinforce_rollouts.py", "m = Categorical(probs)"),
            ("reinforce_rollouts.py", "action = m.sample()"),
            ("reinforce_rollouts.py", "policy.saved_log_probs.append(m.log_prob(action))"),
            ("reinforce_rollouts.py", "action = select_action(state)"),
        ),
        ("rollout",),
    ),
    Script("evaluation_in_loop", "", NOTHING, _optimizer("SGD"), phases=("evaluation",)),
    Script(
        "iterable_shards",
        "JSON is parsed in the training process",
        LOADING,
        _optimizer("SGD"),
        (
            ("iterable_shards.py", "row = json.loads(line)"),
            ("iterable_shards.py", 'yield torch.tensor(row["features"])'),
        ),
    ),
    Script(
        "ddp_spawn",
        "rank 1 has eight times the rows of rank 0, which waits in the all-reduce",
        ("straggler", "exposed-communication", "host-collective"),
        _optimizer("SGD"),
        (("ddp_spawn.py", "loss_fn(outputs, labels).backward()"),),
    ),
    Script(
        "ddp_torchrun",
        "an all-reduce of the loss and the reduction of 12 MB of gradients in each step",
        ("exposed-communication", "host-collective"),
        _optimizer("SGD"),
        (("ddp_torchrun.py", "loss.backward()"), ("ddp_torchrun.py", "dist.all_reduce(loss)")),
        launcher="torchrun",
    ),
    Script("compiled_model", "", NOTHING, _optimizer("AdamW")),
    Script("fabric_mlp", "", NOTHING, _optimizer("SGD"), needs="lightning"),
    Script(
        "lightning_autoencoder",
        "each image is blurred row by row in Python",
        LOADING,
        _optimizer("Adam"),
        (("lightning_autoencoder.py", "out[row] += np.roll("),),
        needs="lightning",
    ),
    Script(
        "hf_trainer",
        "the collator masks token by token",
        LOADING,
        _optimizer("AdamW"),
        (
            ("hf_trainer.py", "if torch.rand(()) < 0.15:"),
            ("hf_trainer.py", "for position in range(len(ids)):"),
        ),
        needs="transformers",
        budget="5m",  # compiling its model takes longer than 90 s
    ),
    Script("accelerate_classifier", "", NOTHING, _optimizer("AdamW"), needs="accelerate"),
    Script(
        "package_layout",
        "pictures are drawn pixel by pixel in Python",
        LOADING,
        _optimizer("RMSprop"),
        (
            ("segmenter/data.py", "rows.append([1.0 if math.hypot("),
            # making a tensor of the nested lists takes as long as computing them (0.32 and 0.29 ms, timed apart):
            # accepted after the second score
            ("segmenter/data.py", "return torch.tensor(rows)"),
        ),
        target="segmenter.train",
        launcher="module",
    ),
    Script("notebook_cells", "", NOTHING, _optimizer("Adam")),
    Script("own_profiler", "", NOTHING, _optimizer("SGD")),
    Script(
        "data_beside",
        "text tables are parsed again for every batch",
        LOADING,
        _optimizer("AdamW"),
        (("train.py", "table = np.loadtxt("),),
        target="train.py",
        folder="data_beside/src",
        prepare="data_beside/make_data.py",
    ),
    Script("graph_scatter", "", NOTHING, _optimizer("Adam")),
    Script(
        "weighted_sampler",
        "a running median in Python for every sample",
        LOADING,
        _optimizer("Adam"),
        (("weighted_sampler.py", "out.append(np.median("),),
    ),
    Script(
        "char_lm",
        "characters are looked up one by one in a list",
        PYTHON,
        _optimizer("AdamW"),
        (
            ("char_lm.py", "return [i for i, ch in enumerate(chars)"),
            ("char_lm.py", "x = torch.tensor([[lookup(c)"),
            ("char_lm.py", "y = torch.tensor([[lookup(c)"),
        ),
        wrong=("load-in-workers",),
    ),
    Script(
        "many_items",
        "160 small reductions and as many reads of one number in each step",
        ("host-compute", "host-sync", "python-stall", "launch-bound"),
        _optimizer("SGD", item=160),
        (
            ("many_items.py", "self.hits[c] +="),
            ("many_items.py", "self.seen[c] +="),
            # what is to be vectorised is the loop: its head is named since recordings hold where it ends
            ("many_items.py", "for c in range(CLASSES):"),
        ),
        wrong=("compile-model", "fuse-kernels"),
    ),
    Script(
        "tensor_loop",
        "the loss goes through the batch row by row",
        ("host-compute", "python-stall", "launch-bound", "unfused-elementwise"),
        _optimizer("Adam", stack=1),
        (
            ("tensor_loop.py", "distance = ((embeddings - embeddings[i]) ** 2).sum(1)"),
            ("tensor_loop.py", "hardest_positive = distance[same].max()"),
            ("tensor_loop.py", "hardest_negative = distance[~same].min()"),
            ("tensor_loop.py", "same = labels == labels[i]"),
            ("tensor_loop.py", "for i in range(len(embeddings)):"),
            ("tensor_loop.py", "losses.append(F.relu("),
        ),
    ),
    Script(
        "slow_transform",
        "a histogram in Python, pixel by pixel",
        LOADING,
        _optimizer("Adadelta"),
        (
            ("slow_transform.py", "histogram[value] += 1"),
            ("slow_transform.py", "for value in img.ravel():"),
        ),
    ),
    Script(
        "periodic_checkpoint",
        "20 MB of state are written every third step",
        ("python-stall", "off-cpu", "periodic-stall"),  # periodic-stall came with the phases
        _optimizer("SGD"),
        (
            ("periodic_checkpoint.py", "torch.save("),
            ("periodic_checkpoint.py", "save_checkpoint("),
        ),
        ("checkpoint",),
    ),
    Script(
        "own_optimizer",
        "the author's Adam updates 120 tensors one by one",
        ("unfused-optimizer",),
        _optimizer("MyAdam"),
        (
            ("own_optimizer.py", "optimizer.step()"),
            # the lines of its own step() are nearer to the cause than its call: accepted after the first score
            ("own_optimizer.py", 'state["exp_avg'),
            ("own_optimizer.py", "grad = grad.add("),
            ("own_optimizer.py", "denom = ("),
            ("own_optimizer.py", "p.addcdiv_("),
        ),
    ),
    Script(
        "loop_adamw_groups",
        "foreach=False: 240 tensors are updated one by one",
        ("unfused-optimizer",),
        _optimizer("AdamW"),
        (("loop_adamw_groups.py", "optimizer.step()"), ("loop_adamw_groups.py", "return torch.optim.AdamW(")),
    ),
    Script(
        "tiny_items",
        "1024 rows are looked up one by one, where one index would do",
        # without diagnose too a full collection of 0.15 s comes every 0.3 s there; accepted after it was measured
        (*LOADING, "gc-pause", "periodic-stall"),
        _optimizer("Adam"),
        (
            ("tiny_items.py", "return self.features[i], self.labels[i]"),
            # stacking the rows is half of the cost and torch's own: the loop is its place. Accepted after the first score
            ("tiny_items.py", "for features, labels in batches:"),
        ),
    ),
)
