"""Draws of samples: from state that is shared or that no seed set, and not from a generator that the call makes."""

import ast

import pytest

from diagnose.capture.record.source_lines import draw_lines


def lines_of(*body):
    """Return the lines that draw, and those that draw by a seed alone, of a method with this body; from 1."""
    lines = ["class Rows:", "    def __getitem__(self, i):", *(f"        {line}" for line in body)]
    drawn = draw_lines(ast.parse("\n".join(lines)), lines)
    return [sorted(number - 2 for number in part) for part in drawn]


@pytest.mark.parametrize(
    "line",
    [
        "return random.random()",
        "return np.random.rand(3)",
        "return torch.randint(9, (3,))",
        "return torch.rand(3)",
        "return torch.rand(3, generator=self.generator)",
        "return torch.rand_like(self.rows[i])",
        "return self.rng.normal(size=3)",
        "return rng.normal(size=3)",  # of the module
        "rng = np.random.default_rng()",
        "rng = np.random.default_rng(None)",
        "rng = np.random.default_rng(seed=None)",
        "rng = np.random.default_rng(self.rng)",
        "rng = np.random.default_rng(self.rng.integers(9))",
        "rng = np.random.default_rng(np.random.randint(9))",
        "rng = np.random.default_rng(torch.initial_seed())",
        "rng = np.random.default_rng(int(time.time()))",
        "rng = np.random.RandomState()",
        "rng = random.Random()",
        "generator = torch.Generator()",
        'generator = torch.Generator("cpu")',
        "rng = np.random.Generator(np.random.PCG64())",
    ],
)
def test_shared_or_unseeded_state(line):
    assert lines_of(line) == [[1], []]


@pytest.mark.parametrize(
    ("body", "seeded"),
    [
        (["rng = np.random.default_rng(self.seeds[i])", "return rng.standard_normal(3)"], [1, 2]),
        (["rng = default_rng(seed=i)", "return rng.normal()"], [1, 2]),
        (["rng = np.random.RandomState(i)", "return rng.rand(3)"], [1, 2]),
        (["rng = random.Random(i)", "return rng.randrange(3)"], [1, 2]),
        (["rng = np.random.Generator(np.random.PCG64(i))", "return rng.normal()"], [1, 2]),
        (["return np.random.default_rng((self.seed, i)).normal()"], [1]),
        (["g = torch.Generator().manual_seed(i)", "return torch.rand(3, generator=g)"], [1, 2]),
        (["g = torch.Generator()", "g.manual_seed(i)", "return x.normal_(generator=g)"], [1, 3]),
        (["return torch.rand(3, generator=torch.Generator().manual_seed(i))"], [1]),
        (["g = torch.Generator().manual_seed(i)", "return torch.rand(", "    3,", "    generator=g)"], [1, 2]),
        (["if (rng := np.random.default_rng(i)) is not None:", "    return [rng.normal() for _ in 'ä']"], [1, 2]),
    ],
)
def test_a_generator_that_the_call_makes_from_a_seed(body, seeded):
    assert lines_of(*body) == [[], seeded]


@pytest.mark.parametrize(
    ("body", "draws"),
    [
        (["rng = np.random.default_rng(i)", "if i:", "    rng = self.rng", "return rng.normal()"], [4]),
        (["rng = np.random.default_rng(i)", "for rng in self.rngs:", "    rng.normal()"], [3]),
        (["global rng", "rng = np.random.default_rng(i)", "return rng.normal()"], [3]),
        (["g = torch.Generator()", "return torch.rand(3, generator=g)"], [1, 2]),
        (["rng = np.random.default_rng(i)", "return rng.normal() + random.random()"], [2]),
        (["rng = np.random.default_rng(i)", "return self.cut(lambda rng: rng.normal())"], [2]),
    ],
)
def test_a_name_that_may_hold_another_generator_and_a_line_that_draws_both_ways(body, draws):
    assert lines_of(*body)[0] == draws


def test_a_generator_of_another_function_and_the_type_of_a_parameter():
    lines = [
        "def made(i): rng = np.random.default_rng(i)",
        "def used(",
        "    rng: np.random.Generator,",
        "): return rng.normal()",
    ]
    assert draw_lines(ast.parse("\n".join(lines)), lines) == ({4}, {1, 3})
