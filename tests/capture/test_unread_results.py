"""Results of a loop's turn that only a branch reads, or only what follows the loop: by the source, and counted."""

import ast
import sys
import textwrap

import numpy  # noqa: F401
import pytest
import torch  # noqa: F401

from diagnose.capture.host.turns import TurnCount
from diagnose.capture.host.unread import unread_results

HEAD = "import copy\nimport torch\nimport numpy as np\n"


def found(text: str) -> list[tuple[tuple[str, ...], str, list[str], bool]]:
    """Return names, the statement that asks for them, what reads them, and whether that follows the loop."""
    whole = HEAD + textwrap.dedent(text)
    lines = whole.split("\n")
    return [
        (
            one.names,
            lines[one.first[-1][1] - 1].strip(),
            [lines[line - 1].strip() for _, line in one.readers],
            one.after,
        )
        for one in unread_results({"train.py": ast.parse(whole)})
    ]


def in_loop(*body: str, then: str = "print(step)", before: str = "", after: str = "") -> str:
    """Return a training loop with some statements after the update, and a branch that few steps take."""
    turn = ["loss = model(x)", "loss.backward()", "opt.step()", *body, "if step % 10 == 0:", f"    {then}"]
    head = [f"    {before}", "    for step in range(100):", *(f"        {line}" for line in turn), f"    {after}"]
    return "\n".join(["def train(model, opt, x):", *(line for line in head if line.strip())])


def test_a_score_that_few_steps_print():
    text = in_loop("best = x.argmax(-1).tolist()", "score = sum(best) / len(best)", then="print(step, score)")
    assert found(text) == [(("best", "score"), "best = x.argmax(-1).tolist()", ["print(step, score)"], False)]


def test_an_early_end_of_the_turn_is_a_branch_as_well():
    text = """
    def train(opt, x):
        for step in range(100):
            opt.step()
            score = x.mean().item()
            if step % 10:
                continue
            print(score)
    """
    assert found(text) == [(("score",), "score = x.mean().item()", ["print(score)"], False)]


def test_an_attribute_that_another_method_prints_now_and_then():
    text = """
    class Trainer:
        def one(self, x):
            self.opt.step()
            path = decode(x)
            self.stats = {"path": path, "mean": x.mean().item()}

        def fit(self, x):
            for step in range(100):
                self.one(x)
                if step % 20 == 0:
                    print(self.stats)

    def decode(x):
        out = []
        for row in x.tolist():
            if row:
                out.append(max(row))
        return out
    """
    assert found(text) == [(("path", "self.stats"), "path = decode(x)", ["print(self.stats)"], False)]


def test_one_part_of_what_a_call_returns():
    text = """
    class Detector:
        def forward(self, x):
            scores = self.net(x)
            result = {"boxes": boxes_of(scores)}
            result["loss"] = scores.mean()
            return result

    def boxes_of(scores):
        found = [score for score in scores.tolist() if score > 0]
        return sorted(found)

    def train(opt, x):
        model = Detector()
        for step in range(100):
            loss = model(x)["loss"]
            loss.backward()
            opt.step()
    """
    assert found(text) == [(("result['boxes']",), 'result = {"boxes": boxes_of(scores)}', [], False)]


def test_the_last_turns_result_alone():
    text = """
    def evaluate(batches):
        seen = []
        for batch in batches:
            seen.append(batch.numpy())
            value = np.sort(np.concatenate(seen)).mean()
        return value
    """
    assert found(text) == [(("value",), "value = np.sort(np.concatenate(seen)).mean()", ["return value"], True)]


AVERAGED = """
    from torch.optim.swa_utils import AveragedModel, update_bn

    class Trainer:
        def __init__(self, model):
            self.model, self.swa = model, AveragedModel(model)

        def fit(self, steps):
            for step in range(steps):
                loss = self.model(self.x)
                loss.backward()
                self.opt.step()
                if step % 10 == 0:
                    self.swa.update_parameters(self.model)
                    update_bn(self.loader, self.swa)
            print(self.swa(self.x))
"""


def test_statistics_of_an_attribute_that_only_what_follows_the_loop_reads():
    assert found(AVERAGED) == [(("self.swa",), "update_bn(self.loader, self.swa)", ["print(self.swa(self.x))"], True)]


def test_an_attribute_that_another_method_reads_is_needed_in_each_turn():
    other = """
        def best(self):
            return self.swa.state_dict()
    """
    assert found(AVERAGED.rstrip() + "\n" + other) == []


def test_a_copy_that_is_loaded_in_each_step_and_used_in_few():
    text = """
    class Average:
        def __init__(self, model):
            self.weights = {}
            self.module = copy.deepcopy(model).eval()

        def update(self, model):
            for k, v in model.state_dict().items():
                self.weights[k] = 0.9 * self.weights[k] + 0.1 * v
            self.module.load_state_dict(self.weights)

    def train(model, opt, x):
        ema = Average(model)
        for step in range(100):
            opt.step()
            ema.update(model)
            if step % 40 == 0:
                print(ema.module(x))
    """
    line = "self.module.load_state_dict(self.weights)"
    assert found(text) == [(("self.module",), line, ["print(ema.module(x))"], False)]


def test_a_snapshot_for_what_is_known_before_the_update():
    text = """
    def train(net, opt, x):
        for step in range(100):
            norm = x.norm()
            saved = copy.deepcopy(net.state_dict())
            opt.step()
            if not torch.isfinite(norm):
                net.load_state_dict(saved)
    """
    line = "saved = copy.deepcopy(net.state_dict())"
    assert found(text) == [(("saved",), line, ["net.load_state_dict(saved)"], False)]
    (one,) = unread_results({"train.py": ast.parse(HEAD + textwrap.dedent(text))})
    assert one.early


@pytest.mark.parametrize(
    "text",
    [
        in_loop("total += x.sum().item()", then="print(total)", before="total = 0.0"),
        in_loop("seen.append(x.sum().item())", then="print(seen)", before="seen = []"),
        in_loop("score = x.sum().item()", "sampler.feed(score)", then="print(score)"),
        in_loop("score = x.sum().item()", "history.append(score)", then="print(score)", before="history = []"),
        in_loop("score = torch.randn(3).sum()", then="print(score)"),
        in_loop("score = next(x)", then="print(score)"),
        in_loop("mean = 0.9 * mean + 0.1 * x.sum()", then="print(mean)", before="mean = 0.0"),
        in_loop("score = x.sum().item()", "if score > 3:", "    break", then="print(score)"),
        in_loop("score = x.sum().item()", before="score = 0", then="print(score)", after="return lambda: score"),
        in_loop("score = x.sum().item()", then="print(score)", before="global score"),
        in_loop("np.save('x.npy', x.numpy())"),
        in_loop("log.x = x.sum().item()", then="print(log.x)"),
    ],
)
def test_what_is_used_in_each_turn_or_carried_on_to_the_next_is_no_result_of_a_branch(text):
    assert found(text) == []


def test_a_snapshot_is_needed_if_only_the_result_of_the_update_shows_whether():
    text = """
    def train(net, opt, x, y):
        for step in range(100):
            saved = copy.deepcopy(net.state_dict())
            opt.step()
            after = (net(x) - y).square().mean()
            if after > 1:
                net.load_state_dict(saved)
    """
    assert found(text) == []


def test_a_copy_that_each_step_runs_is_needed():
    text = """
    class Teacher:
        def __init__(self, net):
            self.shadow = copy.deepcopy(net)

        def update(self, net):
            self.shadow.load_state_dict(net.state_dict())

    def train(net, opt, x):
        teacher = Teacher(net)
        for step in range(100):
            loss = net(x) - teacher.shadow(x)
            loss.backward()
            opt.step()
            teacher.update(net)
    """
    assert found(text) == []


def test_a_librarys_step_is_not_taken_for_a_method_of_the_scripts():
    text = """
    class World:
        def step(self, action):
            return action.sum()

        def backward(self):
            pass

    def train(model, opt, x):
        for step in range(100):
            error = model(x)
            loss = error.mean()
            loss.backward()
            opt.step()
            if step % 10 == 0:
                print(error)
    """
    assert found(text) == []


SCRIPT = """
def decode(x):
    return [i * i for i in range(x)]

def train(steps, boundary):
    for step in range(steps):
        best = decode(5)
        score = sum(
            best
        )
        boundary()
        if step % 4 == 0:
            print(score)
"""


def test_turns_and_those_that_are_read_are_counted(capsys):
    tree = ast.parse(SCRIPT)
    turns = TurnCount(list(unread_results({"turns.py": tree})), {"turns.py": tree})
    scope: dict = {}
    exec(compile(SCRIPT, "turns.py", "exec"), scope)
    enough, records = [], []

    def boundary():
        if not enough:
            turns.start()
        enough.append(turns.end_step(8))
        if len(enough) == 10:
            records.extend(turns.stop())

    scope["train"](12, boundary)
    capsys.readouterr()
    (one,) = records
    assert (one.names, one.readers) == (("best", "score"), (("turns.py", 13),))
    assert (one.made, one.read, one.steps) == (9, 3, 10)
    assert enough[:10] == [False] * 7 + [True] * 3
    assert sys.gettrace() is None or "coverage" in str(sys.gettrace())


def test_a_thread_that_somebody_traces_is_left_alone():
    def tracer(*_):
        return None

    tree = ast.parse(SCRIPT)
    turns = TurnCount(list(unread_results({"turns.py": tree})), {"turns.py": tree})
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        turns.start()
        assert sys.gettrace() is tracer
        assert turns.end_step(8)
        assert turns.stop() == ()
    finally:
        sys.settrace(before)
