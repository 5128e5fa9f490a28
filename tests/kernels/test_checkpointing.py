import copy
import pickle

import pytest
import torch
import torch._functorch.config as functorch
from torch import nn

from diagnose.kernels.checkpointing import COSTLY_OPS, activation_budget, blocks_of, checkpoint_blocks, plan_checkpoints


class Block(nn.Module):
    def __init__(self, width=16, drop=0.5):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm, self.drop = nn.BatchNorm1d(width), nn.Dropout(drop)

    def forward(self, x, *, gain=1.0):
        return x + gain * self.drop(self.norm(self.down(torch.nn.functional.gelu(self.up(x)))))


class Net(nn.Module):
    def __init__(self, depth=4, width=16):
        super().__init__()
        self.stem = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, gain=0.5)
        return self.head(x)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


X = torch.randn(32, 16, generator=torch.Generator().manual_seed(3))


def trained(model, steps=2):
    """Return gradients and buffers after some steps with dropout."""
    torch.manual_seed(1)
    for _ in range(steps):
        model(X).square().sum().backward()
    return [p.grad for p in model.parameters()], list(model.buffers())


def assert_trains_alike(changed, plain):
    for mine, theirs in zip(trained(changed), trained(plain), strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert torch.equal(a, b)


def kept_bytes(model, x=X):
    """Return the bytes of storages that autograd holds after a forward pass, weights left out."""
    fixed = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    held = {}

    def pack(tensor):
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        output = model(x)
    assert output is not None
    return sum(size for key, size in held.items() if key not in fixed)


def test_repeated_blocks_are_found():
    assert list(blocks_of(Net(depth=2))) == ["blocks.0", "blocks.1"]
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2, enable_nested_tensor=False
    )
    assert list(blocks_of(encoder)) == ["layers.0", "layers.1"]
    stages = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(Block(), Block()))
    assert list(blocks_of(stages)) == ["1"]
    assert list(blocks_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)))) == ["0", "2"]
    assert blocks_of(nn.Linear(2, 2)) == {}


@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"every": 2},
        {"blocks": [Block]},
        {"blocks": ["blocks.1", "stem"]},
        {"save_ops": COSTLY_OPS},
        {"save_ops": [torch.ops.aten.addmm.default], "every": 2},
    ],
    ids=str,
)
def test_same_gradients_and_statistics(net, policy):
    plain = copy.deepcopy(net)
    checkpoint_blocks(net, **policy)
    assert_trains_alike(net, plain)
    assert net.blocks[0].norm.num_batches_tracked == 2


def test_policies_choose_what_they_say(net):
    assert checkpoint_blocks(copy.deepcopy(net)).names == tuple(f"blocks.{i}" for i in range(4))
    assert checkpoint_blocks(copy.deepcopy(net), every=2).names == ("blocks.0", "blocks.2")
    assert checkpoint_blocks(copy.deepcopy(net), blocks=[nn.Linear]).names[0] == "stem"
    assert checkpoint_blocks(copy.deepcopy(net), blocks=[Block, nn.Linear]).names == (
        "stem",
        *(f"blocks.{i}" for i in range(4)),
        "head",
    ), "what lies in a chosen block is part of it"


def test_less_is_kept_and_selective_lies_between(net):
    everything = kept_bytes(net)
    with checkpoint_blocks(net, save_ops=COSTLY_OPS):
        selective = kept_bytes(net)
    with checkpoint_blocks(net, every=2):
        half = kept_bytes(net)
    with checkpoint_blocks(net):
        least = kept_bytes(net)
    assert least < half < everything
    assert least <= selective < everything
    assert least <= 6 * X.nbytes, "only inputs are left"
    assert kept_bytes(net) == everything, "undone"


def test_undo_leaves_nothing_behind(net):
    done = checkpoint_blocks(net)
    done.undo()
    done.undo()
    assert not any("forward" in vars(block) for block in net.blocks)
    original = net.blocks[0].forward
    net.blocks[0].forward = lambda x, gain: original(x, gain=gain)
    mine = net.blocks[0].forward
    with checkpoint_blocks(net):
        assert net.blocks[0].forward is not mine
    assert net.blocks[0].forward is mine


def test_names_copies_and_files_stay_as_they_are(net):
    names = list(net.state_dict())
    checkpoint_blocks(net)
    assert list(net.state_dict()) == names
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        with torch.no_grad():
            other.blocks[0].up.weight.zero_()
        assert other.blocks[0].forward.args[0].__self__ is other.blocks[0], "a copy runs the original's weights"
        other(X).sum().backward()
        assert other.blocks[0].up.weight.grad is not None
    assert net.blocks[0].up.weight.any()


def test_autocast_is_as_in_the_forward_pass(net):
    plain = copy.deepcopy(net)
    checkpoint_blocks(net)
    for model in (net, plain):
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(X).sum()
        loss.backward()
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(net.parameters(), plain.parameters(), strict=True))


def test_inputs_without_gradients_still_train_the_first_block():
    """The reentrant form leaves the first block without gradients, and only warns."""
    model = nn.Sequential(Block(), Block())
    checkpoint_blocks(model)
    model(X).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("save_ops", [pytest.param(None, marks=pytest.mark.full), COSTLY_OPS], ids=["all", "selective"])
def test_under_compile(net, save_ops):
    plain = copy.deepcopy(net)
    checkpoint_blocks(net, save_ops=save_ops)
    net.compile(backend="aot_eager", fullgraph=True)
    for a, b in zip(*(trained(m, steps=1)[0] for m in (net, plain)), strict=True):
        torch.testing.assert_close(a, b)
    assert net.blocks[0].norm.num_batches_tracked == 1
    torch.testing.assert_close(net.blocks[0].norm.running_mean, plain.blocks[0].norm.running_mean)


@pytest.fixture
def one_rank(tmp_path):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("static", [False, True])
def test_under_ddp(net, one_rank, static):
    plain = copy.deepcopy(net)
    checkpoint_blocks(net)
    assert_trains_alike(nn.parallel.DistributedDataParallel(net, static_graph=static), plain)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # of the sharding itself
def test_before_fully_shard(net, one_rank):
    from torch.distributed.fsdp import fully_shard

    plain = copy.deepcopy(net)
    checkpoint_blocks(net)
    runs = []
    net.blocks[0].up.register_forward_hook(lambda *_: runs.append(1))
    for block in net.blocks:
        fully_shard(block)
    fully_shard(net)
    mine, theirs = trained(net), trained(plain)
    for a, b in zip(mine[0], theirs[0], strict=True):
        torch.testing.assert_close(a.full_tensor(), b)
    for a, b in zip(mine[1], theirs[1], strict=True):
        torch.testing.assert_close(a, b)
    assert len(runs) == 4, "twice a step: once again in the backward pass"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"blocks": ["blocks.9"]}, r"Net has no block 'blocks.9'; did you mean 'blocks.\d'"),
        ({"blocks": ["xyz"]}, r"has no block 'xyz'; see model.named_modules"),
        ({"blocks": [nn.Conv2d]}, "Net has no module of Conv2d"),
        ({"blocks": ["blocks.0", "blocks.0.up"]}, "'blocks.0.up' lies within another chosen block"),
        ({"every": 0}, "needs every >= 1, not 0"),
    ],
)
def test_wrong_choices_are_refused_and_change_nothing(net, arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        checkpoint_blocks(net, **arguments)
    assert not any("forward" in vars(m) for m in net.modules())


def test_twice_is_refused(net):
    checkpoint_blocks(net, blocks=["blocks.2"])
    with pytest.raises(ValueError, match=r"'blocks.2' is checkpointed already"):
        checkpoint_blocks(net)
    assert "forward" not in vars(net.blocks[0])
    with pytest.raises(ValueError, match="undo that before measuring"):
        plan_checkpoints(net, lambda: net(X).sum(), target_bytes=1)
    with pytest.raises(ValueError, match="holds no list of blocks"):
        checkpoint_blocks(nn.Linear(2, 2))


def test_measured_bytes_are_those_that_autograd_holds(net):
    plan = plan_checkpoints(net, lambda: net(X).sum(), target_bytes=10**9)
    assert plan.names == ()
    assert plan.bytes_before == plan.bytes_after == kept_bytes(net)
    up, gelu = X.nbytes * 4, X.nbytes * 4
    for cost in plan.costs:
        assert up + gelu < cost.num_bytes < up + gelu + 4 * X.nbytes
        assert cost.live_bytes == cost.num_bytes
        assert cost.seconds > 0


def test_plan_reaches_its_target(net):
    before = kept_bytes(net)
    state, buffers = torch.get_rng_state(), copy.deepcopy(dict(net.named_buffers()))
    plan = plan_checkpoints(net, lambda: net(X).sum(), target_bytes=int(before * 0.8))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(b, buffers[n]) for n, b in net.named_buffers())
    assert 0 < len(plan.names) < 4
    assert plan.bytes_after <= before * 0.8
    assert plan.extra_seconds == pytest.approx(sum(c.seconds for c in plan.costs if c.name in plan.names))
    checkpoint_blocks(net, blocks=plan.names)
    largest = max(c.live_bytes for c in plan.costs)
    assert kept_bytes(net) + largest == pytest.approx(plan.bytes_after, rel=0.05)
    assert "of 4 blocks again brings activations from" in str(plan)


def test_plan_for_a_larger_batch(net):
    small = plan_checkpoints(net, lambda: net(X[:8]).sum(), target_bytes=10**9, scale=4.0)
    large = plan_checkpoints(net, lambda: net(X).sum(), target_bytes=10**9)
    assert small.bytes_before == pytest.approx(large.bytes_before, rel=0.1)  # batch norm keeps some that has no batch
    with pytest.raises(ValueError, match="needs scale > 0"):
        plan_checkpoints(net, lambda: net(X).sum(), target_bytes=1, scale=0)


def test_plan_out_of_reach_says_what_can_be_reached(net):
    with pytest.raises(ValueError, match=r"brings them to 0\.\d MB at best, not 0\.0; choose smaller blocks"):
        plan_checkpoints(net, lambda: net(X).sum(), target_bytes=1)


def test_what_cannot_be_measured_is_refused(net):
    net.requires_grad_(False)
    with pytest.raises(ValueError, match="kept nothing for a backward pass"):
        plan_checkpoints(net, lambda: net(X).sum(), target_bytes=1)
    net.requires_grad_(True)
    with pytest.raises(ValueError, match=r"block 'blocks.0' did not run"):
        plan_checkpoints(net, lambda: net.stem(X).square().sum(), target_bytes=1)


def test_a_block_that_runs_twice_counts_twice():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Block(drop=0.0)])

        def forward(self, x):
            return self.blocks[0](self.blocks[0](x))

    model = Shared()
    (cost,) = plan_checkpoints(model, lambda: model(X).sum(), target_bytes=10**9).costs
    assert cost.num_bytes == pytest.approx(2 * cost.live_bytes, rel=0.1)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own decompositions
def test_budget_of_the_compiler(net):
    kept = []
    for share in (1.0, 0.5, 0.0):
        torch._dynamo.reset()
        with activation_budget(share):
            output = torch.compile(net.eval(), backend="aot_eager_decomp_partition")(X)
        fixed = {p.untyped_storage().data_ptr() for p in net.parameters()}
        saved = {t.untyped_storage().data_ptr(): t.nbytes for t in output.grad_fn.saved_tensors if t is not None}
        kept.append(sum(size for key, size in saved.items() if key not in fixed))
    assert kept[0] > kept[1] > kept[2]


def test_the_budget_holds_within_the_block_alone():
    before = functorch.activation_memory_budget
    with activation_budget(0.5):
        assert functorch.activation_memory_budget == 0.5
    assert functorch.activation_memory_budget == before
    with pytest.raises(ValueError, match="a share from 0 to 1, not 2"), activation_budget(2):
        pass
