"""unfused-optimizer: idle inside an optimizer's step that launches tensor by tensor."""

import pytest
import torch

from diagnose.changes.optimizer_implementations import OWN_STEP
from diagnose.reports.text import render

STEP = "Optimizer.step#AdamW.step"
STAYS = "   # in its constructor; the other arguments stay"


def looping(recording, *, launches=50, multi=0, name=STEP, kernel="elementwise"):
    """Return a step of 1000 µs whose optimizer takes 500 to 1000 and launches a kernel of 4 µs every 10."""
    r = recording()
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 500)
    r.kernel("gemm", 0, 500, launched=(-20, -15))
    r.annotation(name, 500, 1000)
    for i in range(launches):
        at = 500 + i * 500 / launches
        r.op("aten::add_", at, at + 5)
        r.kernel("multi_tensor_apply" if i < multi else kernel, at + 6, at + 10, launched=(at + 1, at + 5))
    return r


def test_idle_between_the_launches_of_a_for_loop(recording):
    r = looping(recording)
    # 50 times: 5 µs until the launch returns and 1 of latency before the kernel of 4
    assert r.booked() == {"unfused-optimizer": 300_000}
    finding = r.find("unfused-optimizer")
    assert finding.title == "AdamW updates parameters one by one"
    assert (finding.lost_ns, finding.count, finding.median_ns) == (300_000, 50, 6_000)
    assert finding.evidence[1] == "50 launches per call of its step, 0 of them for many tensors."
    assert finding.where[0].op == STEP
    assert finding.facts["name"] == "AdamW"


@pytest.mark.parametrize(("launches", "rule"), [(50, "unfused-optimizer"), (49, "launch-bound")])
def test_fifty_launches_make_a_loop(recording, launches, rule):
    assert next(iter(looping(recording, launches=launches).booked())) == rule


@pytest.mark.parametrize(("multi", "rule"), [(24, "unfused-optimizer"), (25, "launch-bound")])
def test_half_of_them_for_many_tensors_is_none(recording, multi, rule):
    assert looping(recording, multi=multi).booked() == {rule: 300_000}


def test_launches_outside_the_step_do_not_count(recording):
    assert looping(recording, name="backward").booked() == {"launch-bound": 300_000}


@pytest.mark.parametrize(
    ("name", "flag"), [("AdamW", "fused"), ("SGD", "fused"), ("Adagrad", "fused"), ("RMSprop", "foreach")]
)
def test_fused_is_prescribed_where_the_class_has_it(recording, name, flag):
    (p,) = looping(recording, name=f"Optimizer.step#{name}.step").prescribe("unfused-optimizer")
    assert p.id == f"{flag}-optimizer"
    assert p.title == f"Use the {flag} implementation of {name}"
    assert p.before == f"optimizer = torch.optim.{name}(params, lr=lr)"
    assert p.after == f"optimizer = torch.optim.{name}(params, lr=lr, {flag}=True){STAYS}"
    assert p.saves_ns == (150_000, 300_000)
    assert p.remedy == "diagnose.kernels.optimizers"
    assert p.safety.startswith("may change the numbers")


def on_host(recording, *, calls=50, name="aten::add_", step=STEP):
    """Return a step without a device: 500 µs of products, then an optimizer with operators of 10 µs."""
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 500)
    r.annotation(step, 500, 1000)
    for i in range(calls):
        r.op(name if i == 0 else "aten::mul_", 500 + i * 500 / calls, 500 + (i + 1) * 500 / calls)
    return r


@pytest.mark.parametrize(("calls", "booked"), [(50, 500_000), (49, 0)])
def test_without_a_device_the_whole_step_of_a_loop_is_claimed(recording, calls, booked):
    r = on_host(recording, calls=calls)
    assert r.booked().get("unfused-optimizer", 0) == booked
    assert sum(r.booked().values()) == 1_000_000


@pytest.mark.parametrize(("step", "stays"), [("Adam", 1 / 3), ("SGD", 1.0)])
def test_without_a_device_collecting_tensors_stays_and_the_passes_of_one_operator(recording, step, stays):
    r = recording(devices=())
    r.step(1, 0, 2000)
    r.annotation(f"Optimizer.step#{step}.step", 0, 1000)
    for i in range(50):  # after 200 µs of Python; 90 µs of Python come after
        r.op("aten::add_", 200 + 10 * i, 205 + 10 * i)
    r.op("aten::mul_", 800, 905)
    assert r.booked()["unfused-optimizer"] == 705_000 - int(100_000 * stays)  # a call takes 5 µs


def test_without_a_device_a_range_goes_of_what_one_operator_would_not_do(recording):
    (p,) = on_host(recording).prescribe("unfused-optimizer")
    assert p.saves_ns == (pytest.approx(300_000), pytest.approx(500_000))
    assert on_host(recording, step="Optimizer.step#RMSprop.step").prescribe("unfused-optimizer") == []  # none is fused


@pytest.mark.parametrize("name", ["aten::_foreach_add_", "aten::_fused_adamw_"])
def test_without_a_device_one_operator_for_many_tensors_is_enough(recording, name):
    assert "unfused-optimizer" not in on_host(recording, name=name).booked()


def test_without_a_device_operators_are_counted(recording):
    finding = on_host(recording).find("unfused-optimizer")
    assert finding.evidence[1] == "50 operators per call of its step, 0 of them for many tensors."
    assert on_host(recording).diagnosis().dominant == "unfused-optimizer"


def test_what_a_closure_computes_within_the_step_is_not_the_optimizers(recording):
    """Trainers that give forward and backward to optimizer.step as a closure: only what comes after is an update."""
    r = recording(devices=())
    r.step(1, 0, 10_000)
    r.annotation("Optimizer.step#Adam.step", 0, 10_000)
    for i in range(200):  # a forward and backward of many operators
        r.op("aten::mm", 40 * i, 40 * i + 30)
    r.op("autograd::engine::evaluate_function: AddmmBackward0", 4000, 8000)
    for i in range(10):  # an update of few operators
        r.op("aten::add_", 8000 + 100 * i, 8100 + 100 * i)
    assert r.find("unfused-optimizer") is None
    for i in range(60):
        r.op("aten::addcmul_", 9000 + 10 * i, 9010 + 10 * i)
    assert (
        r.booked()["unfused-optimizer"] == 1_300_000
    )  # from the last gradient, but for a third of what ten take beyond a call


def test_between_two_calls_of_a_closure_the_optimizer_computes(recording):
    """LBFGS calls the closure several times a step, and computes a direction in between."""
    r = recording(devices=())
    r.step(1, 0, 10_000)
    r.annotation("Optimizer.step#LBFGS.step", 0, 10_000)
    for call in (0, 5000):
        r.annotation("Optimizer.zero_grad#LBFGS.zero_grad", call + 100, call + 110)
        r.op("aten::mm", call + 200, call + 1000)
        r.op("autograd::engine::evaluate_function: AddmmBackward0", call + 1000, call + 2000)
        for i in range(150):
            r.op("aten::dot", call + 2000 + 20 * i, call + 2010 + 20 * i)
    assert r.booked()["unfused-optimizer"] == 2 * 2_990_000  # 2000 to 4990 and 7000 to 9990 µs


def queued(recording, *, name="AdamW", kernel="multi_tensor_apply_kernel", part=700):
    """Return a step in which 8 kernels of the optimizer, queued behind a product, take the last ``part`` of 1000 µs."""
    r = recording()
    r.step(1, 0, 1000)
    r.kernel("gemm", 8, 1000 - part, launched=(0, 5))
    r.annotation(f"Optimizer.step#{name}.step", 10, 100)
    for i in range(8):
        start = 1000 - part + part / 8 * i
        r.kernel(kernel, start, start + part / 8, launched=(10 + 10 * i, 15 + 10 * i))
    return r


def test_separate_passes_on_a_full_device_cost_two_thirds_of_their_time(recording):
    answer = queued(recording, part=600).diagnosis()
    (finding,) = answer.findings
    assert (answer.verdict, answer.dominant) == ("kernel-bound", "unfused-optimizer")
    assert finding.title == "AdamW passes over its tensors again and again"
    assert finding.lost_ns == pytest.approx(400_000)
    assert "fused-optimizer" in {p.id for p in answer.prescriptions}


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": "multi_tensor_apply_kernel<FusedAdamMathFunctor>"},
        {"name": "SGD"},  # how many tensors it passes over depends on its arguments
        {"part": 40},  # less than 5 % of the busy time
    ],
)
def test_when_passes_are_no_waste(recording, options):
    assert queued(recording, **options).find("unfused-optimizer") is None


def test_parameter_groups_are_kept(recording):
    r = looping(recording)
    r.with_info(optimizer={"class": "AdamW", "module": "torch.optim.adamw", "num_groups": 2})
    (p,) = r.prescribe("unfused-optimizer")
    assert p.after == f"optimizer = torch.optim.AdamW(params, lr=lr, fused=True){STAYS}"


@pytest.mark.parametrize(
    ("name", "module"), [("MyAdam", "__main__"), ("AdamW", "project.optim"), ("SparseAdam", "torch.optim.sparse_adam")]
)
def test_a_class_of_the_authors_own_takes_no_argument_of_torchs(recording, name, module):
    r = looping(recording, name=f"Optimizer.step#{name}.step")
    r.with_info(optimizer={"class": name, "module": module})
    found = r.prescribe("unfused-optimizer")
    assert [p.title for p in found] == [f"Use multi-tensor updates in {name}"] * (not module.startswith("torch"))
    assert not any("torch.optim." in p.after for p in found)


class OfTheAuthor(torch.optim.Optimizer):
    """An optimizer whose ``step`` is the sketch of the advice."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})
        for p in (p for group in self.param_groups for p in group["params"]):
            self.state[p] = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        self.updates = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.updates += 1
        for group in self.param_groups:
            known = {"group": group, "self": self, "torch": torch, "step": self.updates, "lr": group["lr"]}
            exec(OWN_STEP, known | {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8})  # as pasted


def test_the_sketch_of_a_step_computes_what_adam_does():
    def trained(make):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
        optimizer = make(net.parameters())
        for step in range(5):
            optimizer.zero_grad()
            net(torch.full((4, 7), step / 5)).square().sum().backward()
            optimizer.step()
        return torch.nn.utils.parameters_to_vector(net.parameters()).detach()

    expected = trained(lambda parameters: torch.optim.Adam(parameters, lr=0.01))
    torch.testing.assert_close(trained(OfTheAuthor), expected)


def test_a_step_that_calls_the_model_again_is_no_loop_over_parameters(recording):
    r = on_host(recording, step="Optimizer.step#LBFGS.step")
    r.op("autograd::engine::evaluate_function: MulBackward0", 601, 604)
    assert "unfused-optimizer" not in r.booked()


DIVIDE = "void at::native::vectorized_elementwise_kernel<4, at::native::addcdiv_cuda_kernel(...)::{lambda}>"
SQRT = "void at::native::vectorized_elementwise_kernel<4, at::native::sqrt_kernel_cuda(...)::{lambda}>"


def graphed(recording, names):
    """Return two steps of 1000 µs, each a graph: kernels of 10 µs by these names, and a product behind them."""
    r = recording()
    for i in range(2):
        at = 1000 * i
        r.step(i + 1, at, at + 1000)
        nodes = [r.kernel(name, at + 10 * j + 20, at + 10 * j + 30) for j, name in enumerate(names)]
        nodes.append(r.kernel("gemm", at + 10 * len(names) + 20, at + 1000))
        r.runtime("cudaGraphLaunch", at + 5, at + 15, launches=nodes)
    return r


def test_an_adam_in_a_graph_is_known_by_its_kernels(recording):
    r = graphed(recording, [DIVIDE, SQRT, SQRT] * 10)
    finding = r.find("unfused-optimizer")
    assert finding.title == "The graph holds an Adam that updates parameters by many kernels"
    # 28 kernels of 10 µs a step, of which a third stays
    assert (finding.lost_ns, finding.confidence) == (pytest.approx(280_000 * 14 / 21), "medium")
    (p,) = r.prescribe("unfused-optimizer")
    assert p.id == "fused-optimizer"
    assert "capturable=True, fused=True" in p.after


def test_a_fused_one_in_a_graph_is_none(recording):
    names = ["multi_tensor_apply_kernel<FusedAdamMathFunctor>"] * 30
    assert graphed(recording, names).find("unfused-optimizer") is None


def test_pauses_between_the_kernels_of_a_loop_are_its_own_on_a_full_queue_as_well(recording):
    def booked(name):
        r = recording()
        r.step(1, 0, 1000)
        r.annotation(name, 0, 300)
        r.kernel("gemm", 0, 400, launched=(-20, -15))
        for i in range(60):  # launched while the product runs: 60 times 4 µs, and 6 µs from one to the next
            r.kernel("elementwise", 406 + 10 * i, 410 + 10 * i, launched=(5 * i, 5 * i + 3))
        return r.booked()

    assert booked(STEP)["unfused-optimizer"] == 60 * 6_000
    assert booked("backward")["kernel-latency"] == 60 * 6_000


LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def seen_late(recording, *others):
    """Return two steps without a device, 300 µs of loading first: one sample in the optimizer is of the next batch."""
    r = recording(devices=())
    for at in (0, 1000):
        r.step(1 + at // 1000, at, at + 1000)
        r.annotation(LOADER, at, at + 300)
        r.op("aten::mm", at + 300, at + 500)
        r.annotation(STEP, at + 500, at + 1000)
        for i in range(50):
            r.op("aten::add_" if i == 0 else "aten::mul_", at + 500 + i * 10, at + 510 + i * 10)
        for i in range(3):
            r.sample(at + 50 + 80 * i, ("data.py", 29, "smoothed"))
    r.sample(900, ("data.py", 29, "smoothed"))
    for at, place in others:
        r.sample(at, place)
    return r


CALL = ("train.py", 69, "run")
MADE = {
    "name": "AdamW", "file": "train.py", "first": 63, "lines": ["model = M()", "  opt = AdamW(model.parameters())"],
    "begin": (64, 8), "end": (64, 33), "parameters": ("params",),
}  # fmt: skip


@pytest.mark.parametrize(("others", "lines"), [([], [64]), ([(600, CALL)], [69])])
def test_where_no_line_calls_it_the_one_that_makes_it_is_named(recording, others, lines):
    r = seen_late(recording, *others)
    r.with_info(optimizer={"class": "AdamW", "made": MADE})
    finding = r.find("unfused-optimizer")
    assert [(where.file, where.line) for where in finding.where if where.file] == [("train.py", line) for line in lines]
    assert finding.where[0].code == ("opt = AdamW(model.parameters())" if lines == [64] else None)
    assert "None" not in render(r.diagnosis())


@pytest.mark.parametrize(
    ("others", "lines"),
    [
        ([], []),
        ([(600, CALL)], [69]),
        ([(960, ("data.py", 19, "__getitem__"))], []),  # of a dataset, though seen nowhere else
        ([(640, ("data.py", 29, "smoothed"))], [29]),  # a second one: the optimizer calls it as well
        ([(100, CALL), (600, CALL)], [69]),  # the loop fetches a batch, once
    ],
)
def test_a_line_of_loading_that_was_seen_late_is_no_place_of_the_optimizer(recording, others, lines):
    finding = seen_late(recording, *others).find("unfused-optimizer")
    assert [where.line for where in finding.where if where.file] == lines
    assert finding.where[-1].op == STEP


@pytest.mark.parametrize(
    ("text", "lines"),
    [("for i, row in enumerate(loader):  # of it", []), ("for row in rows: train(row)", [66]), ("opt.step()", [66])],
)
def test_the_head_of_the_training_loop_is_no_place_of_the_optimizer(recording, text, lines):
    r = seen_late(recording, (960, ("train.py", 66, "train")))
    r.lines = {("train.py", 66): text}
    assert [where.line for where in r.find("unfused-optimizer").where if where.file] == lines
