"""The user's statements, rewritten with their own names, or not at all."""

from diagnose.analyzers.common import rewrite, rewrite_blocks
from diagnose.model.assignments import StoredSource
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


SCORED = """def main(model, opt, batches):
    for step, (x, y) in enumerate(batches):
        out = model(x)
        update(opt, out, y)
        with torch.no_grad():
            norm = out.norm().item()
        best = out.argmax(-1).tolist()
        rate = score(best,
                     y)
        wrong = [a != b for a, b in zip(best, y)]
        if step % 10 == 0:
            print(step, wrong)
            print(norm, rate)
"""


def moved(*lines, reader=13):
    whole = {"train.py": StoredSource(((20, SCORED),))}
    statements = [Frame("train.py", line + 19, "") for line in lines]
    return rewrite_blocks.moved(OwnSource(whole=whole), statements, Frame("train.py", reader + 18, ""))


def test_statements_move_above_the_line_that_reads_them():
    best, wrong = "best = out.argmax(-1).tolist()", "wrong = [a != b for a, b in zip(best, y)]"
    assert moved(10, 7) == (
        EditedStatement(26, best, ""),
        EditedStatement(29, wrong, ""),
        EditedStatement(31, "print(step, wrong)", f"{best}\n{wrong}\nprint(step, wrong)"),
    )


def test_nothing_moves_out_of_a_block_that_does_not_hold_the_reader_nor_from_another_function():
    assert moved(6) == ()  # without gradients
    assert moved(7, reader=30) == ()
    assert moved(8) == ()  # on two lines: how they stand is not known


def in_function(text, first=20):
    return OwnSource(whole={"train.py": StoredSource(((first, text),))}), lambda n: Frame("train.py", first + n - 1, "")


TASKS = """def update(self, raw):
    self.opt.zero_grad()
    for k, task in enumerate(raw):
        weighted = self.weight[k] * task
        weighted.backward(retain_graph=k + 1 < len(raw))
    self.opt.step()
"""


def test_losses_of_a_loop_are_added_up_and_go_back_once():
    known, at = in_function(TASKS)
    assert rewrite_blocks.one_backward(known, [at(5)]) == (
        EditedStatement(22, "for k, task in enumerate(raw):", "total = 0\nfor k, task in enumerate(raw):"),
        EditedStatement(24, "weighted.backward(retain_graph=k + 1 < len(raw))", "total = total + weighted"),
        EditedStatement(25, "self.opt.step()", "total.backward()\nself.opt.step()"),
    )


def test_two_backward_passes_that_follow_each_other_become_one():
    known, at = in_function("""def step(model, a, b):
    first = a.mean()
    first.backward(retain_graph=True)
    second = b.mean()
    second.backward()
""")
    assert rewrite_blocks.one_backward(known, [at(3), at(5)]) == (
        EditedStatement(22, "first.backward(retain_graph=True)", ""),
        EditedStatement(24, "second.backward()", "(first + second).backward()"),
    )


def test_backward_passes_stay_apart_where_something_else_happens_between_them():
    known, at = in_function("""def step(opt, a, b):
    a.backward(retain_graph=True)
    opt.step()
    b.backward()
""")
    assert rewrite_blocks.one_backward(known, [at(2), at(4)]) == ()
    known, at = in_function("def step(a, x):\n    for b in a:\n        b.backward(x)\n    print(x)\n")
    assert rewrite_blocks.one_backward(known, [at(3)]) == ()


ANEW = """def main(args, data):
    loader = DataLoader(data, args.batch)
    for epoch in range(3):
        for step in range(args.steps):
            losses.append(train_one(next(iter(loader)), opt))
"""


def test_an_iterator_of_the_loader_is_made_above_the_loops():
    known, at = in_function(ANEW)
    assert rewrite_blocks.kept_iterator(known, at(5)) == (
        EditedStatement(0, "", "import itertools"),
        EditedStatement(
            22,
            "for epoch in range(3):",
            "batches = (batch for _ in itertools.count() for batch in loader)\nfor epoch in range(3):",
        ),
        EditedStatement(
            24,
            "losses.append(train_one(next(iter(loader)), opt))",
            "losses.append(train_one(next(batches), opt))",
        ),
    )


def test_a_loader_that_the_loop_makes_keeps_its_line():
    known, at = in_function(ANEW.replace("        for step", "        loader = made(epoch)\n        for step"))
    assert rewrite_blocks.kept_iterator(known, at(6)) == ()


def test_a_convolution_goes_before_the_interpolation():
    known, at = source("""
def forward(self, x):
    return self.head(F.interpolate(self.body(x), scale_factor=4, mode="bilinear"))
    x = self.up(self.body(x))
    x = self.head(x)
    y = self.head(x)
""")
    names = "net.head", "net.up"
    assert after(rewrite.applied_first(known, at(2), at(2), names)) == (
        'return F.interpolate(self.head(self.body(x)), scale_factor=4, mode="bilinear")'
    )
    assert after(rewrite.applied_first(known, at(3), at(4), names)) == "x = self.head(self.body(x))\nx = self.up(x)"
    assert rewrite.applied_first(known, at(3), at(5), names) == ()  # x may be read again
    assert rewrite.applied_first(known, at(3), at(4), ("net.head", "net")) == ()  # what self.up is, is not known


def test_edits_of_several_places_are_printed_below_their_lines():
    made = EditedStatement(30, "", "self.total = self.p.cumsum()")
    drawn = EditedStatement(39, "k = self.rng.choice(n, p=self.p)", "k = self.total.searchsorted(self.rng.random())")
    assert shown([made, drawn]) == (drawn.before, f"# line 30\n{made.after}\n# line 39\n{drawn.after}")
    assert shown([drawn]) == (drawn.before, drawn.after)
    gone = EditedStatement(41, "mask = make()", "")
    assert shown([drawn, gone])[1].endswith("# line 41\n# mask = make()")
    assert shown([EditedStatement(0, "", "import math"), drawn])[1].startswith("# after the imports\nimport math\n")
