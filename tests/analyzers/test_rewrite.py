"""The user's statements, rewritten with their own names, or not at all."""

from diagnose.analyzers.common import rewrite
from diagnose.model.dataflow import Frame
from diagnose.model.own_source import OwnSource


def source(text, *, loops=(), functions=(), bound=None):
    """Return what a capture holds of a file with these lines, and the frame of each."""
    lines = {("train.py", n): line.strip() for n, line in enumerate(text.strip().splitlines(), 1)}
    bound = {("train.py", line): names for line, names in (bound or {}).items()}
    return OwnSource(lines, {"train.py": loops}, {"train.py": functions}, bound), lambda n: Frame("train.py", n, "step")


LAYERS = """
class Layer:
    def forward(self, xyz, h, idx=None):
        idx = knn(xyz, self.k)
        return self.mix(h, idx)
class Net:
    def forward(self, xyz):
        for layer in self.layers:
            h = layer(xyz, h)
"""


def layers(text=LAYERS, **bound):
    names = {"2": ("h", "idx", "self", "xyz"), "6": ("h", "layer", "self", "xyz"), "7": ("h", "layer"), **bound}
    binds = {int(line): each for line, each in names.items()}
    return source(text, loops=((7, 8),), functions=((2, 4), (6, 8)), bound=binds)


def test_a_statement_of_several_layers_is_made_once_and_handed_on():
    known, at = layers(LAYERS.replace("h, idx=None)", "h)"))
    assert rewrite.handed_on(known, at(3), at(8)).after.splitlines() == [
        "idx = knn(xyz, self.layers[0].k)   # once, before the loop",
        "for layer in self.layers:",
        "    h = layer(xyz, h, idx=idx)",
        "",
        "def forward(self, xyz, h, idx):   # without line 3",
        "    ...",
    ]


def test_an_argument_that_the_caller_passes_already_is_only_made_before_the_loop():
    known, at = layers(LAYERS.replace("layer(xyz, h)", "layer(xyz, h, idx)"))
    assert rewrite.handed_on(known, at(3), at(8)).after.splitlines() == [
        "idx = knn(xyz, self.layers[0].k)   # once, before the loop",
        "for layer in self.layers:",
        "    h = layer(xyz, h, idx)",
    ]


def test_nothing_is_handed_on_whose_names_the_caller_lacks():
    for text in (
        LAYERS.replace("knn(xyz,", "knn(h,"),  # which the loop changes
        LAYERS.replace("for layer in self.layers:", "while layer:"),
        LAYERS.replace("layer(xyz, h)", "layer(*parts)"),
    ):
        known, at = layers(text)
        assert rewrite.handed_on(known, at(3), at(8)) is None


def test_a_call_of_a_loop_moves_before_it_if_it_uses_nothing_that_the_loop_binds():
    text = "for rows in parts:\n    loss = criterion(model(x[rows]), teacher(x)[rows])"
    known, at = source(text, loops=((1, 2),), bound={1: ("loss", "rows")})
    assert rewrite.hoisted(known, at(2)).after.splitlines() == [
        "teacher_result = teacher(x)   # once, before the loop",
        "for rows in parts:",
        "    loss = criterion(model(x[rows]), teacher_result[rows])",
    ]
    known, at = source(text.replace("teacher(x)", "teacher(x[rows])"), loops=((1, 2),))
    assert rewrite.hoisted(known, at(2)) is None


def test_the_second_of_two_lines_uses_the_name_of_the_first():
    known, at = source("out = model(x)\nloss = criterion(model(x), y)")
    assert rewrite.kept(known, at(1), at(2), is_kept_first=True).after == "out = model(x)\nloss = criterion(out, y)"
    known, at = source("out = model(x)\nx = x + 1\nloss = criterion(model(x), y)")
    assert rewrite.kept(known, at(1), at(3), is_kept_first=True) is None


def test_a_result_without_gradients_is_taken_from_the_one_with_them():
    known, at = source("hits += (model(x).argmax(1) == y).sum()\nout = model(x)")
    assert rewrite.kept(known, at(1), at(2), is_kept_first=False).after == (
        "out = model(x)\nhits += (out.detach().argmax(1) == y).sum()"
    )


def test_parametrized_weights_are_cached_around_the_loop():
    known, at = source("for each in parts:\n    state = self.cell(each, state)", loops=((1, 2),))
    assert rewrite.cached(known, at(2), at(2)).after.splitlines() == [
        "with torch.nn.utils.parametrize.cached():",
        "    for each in parts:",
        "        state = self.cell(each, state)",
    ]


def test_gradients_end_at_the_name_that_another_line_made():
    known, at = source("sample = gen(noise)\nloss = f(critic(sample)) - sample_mean")
    assert rewrite.detached(known, at(1), at(2)).after == "loss = f(critic(sample.detach())) - sample_mean"
    assert rewrite.detached(known, at(2), at(1)) is None
    assert rewrite.without_gradients(known, at(1)).after == "with torch.no_grad():\n    sample = gen(noise)"
    assert rewrite.frozen_for(known, at(1)).after.splitlines()[::2] == [
        "gen.requires_grad_(False)", "gen.requires_grad_(True)"
    ]  # fmt: skip


def test_what_asks_for_a_gradient_is_left_out():
    known, at = source("x = images[rows].requires_grad_()\noutput.requires_grad_(True)")
    after = [rewrite.without_calls(known, at(line), "requires_grad_").after for line in (1, 2)]
    assert after == ["x = images[rows]", "# output.requires_grad_(True)"]
