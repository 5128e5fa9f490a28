"""The user's statements, rewritten with their own names, or not at all."""

from diagnose.analyzers.common import rewrite
from diagnose.model.dataflow import Frame
from diagnose.model.own_source import EditedStatement, OwnSource, shown


def after(edits):
    """Return what edits write."""
    return "\n".join(shown([each])[1] for each in edits if each.after)


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
    assert after(rewrite.handed_on(known, at(3), at(8))).splitlines() == [
        "idx = knn(xyz, self.layers[0].k)",
        "for layer in self.layers: ...",
        "h = layer(xyz, h, idx=idx)",
        "def forward(self, xyz, h, idx=None): ...",
        "idx = knn(xyz, self.k) if idx is None else idx",
    ]


def test_an_argument_that_the_caller_passes_already_is_only_made_before_the_loop():
    known, at = layers(LAYERS.replace("layer(xyz, h)", "layer(xyz, h, idx)"))
    assert after(rewrite.handed_on(known, at(3), at(8))).splitlines() == [
        "idx = knn(xyz, self.layers[0].k)",
        "for layer in self.layers: ...",
        "h = layer(xyz, h, idx)",
    ]


def test_nothing_is_handed_on_whose_names_the_caller_lacks():
    for text in (
        LAYERS.replace("knn(xyz,", "knn(h,"),  # which the loop changes
        LAYERS.replace("for layer in self.layers:", "while layer:"),
        LAYERS.replace("layer(xyz, h)", "layer(*parts)"),
    ):
        known, at = layers(text)
        assert rewrite.handed_on(known, at(3), at(8)) == ()


def test_a_call_of_a_loop_moves_before_it_if_it_uses_nothing_that_the_loop_binds():
    text = "for rows in parts:\n    loss = criterion(model(x[rows]), teacher(x)[rows])"
    known, at = source(text, loops=((1, 2),), bound={1: ("loss", "rows")})
    assert after(rewrite.hoisted(known, at(2))).splitlines() == [
        "teacher_result = teacher(x)",
        "for rows in parts: ...",
        "loss = criterion(model(x[rows]), teacher_result[rows])",
    ]
    known, at = source(text.replace("teacher(x)", "teacher(x[rows])"), loops=((1, 2),))
    assert rewrite.hoisted(known, at(2)) == ()


def test_the_second_of_two_lines_uses_the_name_of_the_first():
    known, at = source("out = model(x)\nloss = criterion(model(x), y)")
    assert after(rewrite.kept(known, at(1), at(2), is_kept_first=True)) == "out = model(x)\nloss = criterion(out, y)"
    known, at = source("out = model(x)\nx = x + 1\nloss = criterion(model(x), y)")
    assert rewrite.kept(known, at(1), at(3), is_kept_first=True) == ()


def test_a_result_without_gradients_is_taken_from_the_one_with_them():
    known, at = source("hits += (model(x).argmax(1) == y).sum()\nout = model(x)")
    assert after(rewrite.kept(known, at(1), at(2), is_kept_first=False)) == (
        "out = model(x)\nhits += (out.detach().argmax(1) == y).sum()"
    )


def test_parametrized_weights_are_cached_around_the_loop():
    known, at = source("for each in parts:\n    state = self.cell(each, state)", loops=((1, 2),))
    assert after(rewrite.cached(known, at(2))).splitlines() == [
        "with torch.nn.utils.parametrize.cached():",
        "    for each in parts: ...",
    ]


def test_gradients_end_at_the_name_that_another_line_made():
    known, at = source("sample = gen(noise)\nloss = f(critic(sample)) - sample_mean")
    assert after(rewrite.detached(known, at(1), at(2))) == "loss = f(critic(sample.detach())) - sample_mean"
    assert rewrite.detached(known, at(2), at(1)) == ()
    assert after(rewrite.without_gradients(known, at(1))) == "with torch.no_grad():\n    sample = gen(noise)"
    assert after(rewrite.frozen_for(known, at(1))).splitlines()[::2] == [
        "gen.requires_grad_(False)", "gen.requires_grad_(True)"
    ]  # fmt: skip


def test_what_asks_for_a_gradient_is_left_out():
    known, at = source("x = images[rows].requires_grad_()\noutput.requires_grad_(True)")
    lines = [rewrite.without_calls(known, at(line), "requires_grad_")[0].after for line in (1, 2)]
    assert lines == ["x = images[rows]", ""]


def test_a_statement_of_another_module_that_each_turn_calls_is_made_once():
    text = """
    def forward(self, query, memory, keys=None):
        keys = self.w_enc(memory)
    def run(self, memory, words):
        for t in range(9):
            context = self.attention(words[t], memory, keys)
    """
    known, at = source(text, loops=((4, 5),), functions=((1, 2), (3, 5)), bound={4: ("context", "t")})
    assert rewrite.handed_on(known, at(2), at(5)) == (
        EditedStatement(4, "for t in range(9):", "keys = self.attention.w_enc(memory)\nfor t in range(9):"),
        EditedStatement(5, *["context = self.attention(words[t], memory, keys)"] * 2),
    )
    known, at = source(text, loops=((4, 5),), functions=((1, 2), (3, 5)), bound={4: ("context", "t", "memory")})
    assert rewrite.handed_on(known, at(2), at(5)) == ()


def test_a_target_that_the_loop_gives_another_value_is_not_moved():
    known, at = source("for x in rows:\n    w = norm(weight)\n    w = w + x", loops=((1, 3),), bound={1: ("w", "x")})
    assert after(rewrite.hoisted(known, at(2))) == "norm_result = norm(weight)\nfor x in rows: ...\nw = norm_result"
    known, at = source("for x in rows:\n    w = norm(weight)\n    use(w)", loops=((1, 3),), bound={1: ("w", "x")})
    assert rewrite.hoisted(known, at(2)) == (
        EditedStatement(1, "for x in rows:", "w = norm(weight)\nfor x in rows:"),
        EditedStatement(2, "w = norm(weight)", ""),
    )


def test_a_term_is_left_out_while_its_coefficient_is_0():
    known, at = source(
        "return loss - hp.ent * dist.entropy().mean()\nloss += beta * f(x)\ny = a + b * c\nz = f(x) * g(y)"
    )
    assert [after(rewrite.skipped(known, at(line))) for line in (1, 2, 3, 4)] == [
        "return loss - hp.ent * dist.entropy().mean() if hp.ent != 0 else loss",
        "if beta != 0:\n    loss += beta * f(x)",
        "",
        "",
    ]


def test_edits_of_several_places_are_printed_below_their_lines():
    made = EditedStatement(30, "", "self.total = self.p.cumsum()")
    drawn = EditedStatement(39, "k = self.rng.choice(n, p=self.p)", "k = self.total.searchsorted(self.rng.random())")
    assert shown([made, drawn]) == (drawn.before, f"# line 30\n{made.after}\n# line 39\n{drawn.after}")
    assert shown([drawn]) == (drawn.before, drawn.after)
    gone = EditedStatement(41, "mask = make()", "")
    assert shown([drawn, gone])[1].endswith("# line 41\n# mask = make()")
    assert shown([EditedStatement(0, "", "import math"), drawn])[1].startswith("# after the imports\nimport math\n")
