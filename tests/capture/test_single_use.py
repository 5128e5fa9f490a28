"""Which expressions of a function have one use, by the text of its source."""

import ast

import pytest

from diagnose.capture.samples.instrument import place_of, used_once


def single(body):
    """Return the expressions of a function that have one use."""
    tree = ast.parse("def sample(self, a, b):\n" + "\n".join(f"    {line}" for line in body.splitlines()))
    found = used_once(tree)
    kinds = ast.BinOp | ast.Call | ast.Subscript
    return {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, kinds) and place_of(node) in found}


@pytest.mark.parametrize(
    "body",
    [
        "x = a + b\nreturn x[1:2], x[3], len(x), x.shape",
        "x = a + b\nx = f(x)\nreturn x[1:2]",
        "x = a + b\nfor i in a:\n    g(x[i])",
        "return (a + b)[1:2]",
        "return a + b",
        "x = a + b\nif a:\n    return x[1:]\nreturn x[:1]",
        "y = (a + b).clip(0)\nreturn y[1:]",
        "y = f(values=a + b)\nreturn y[1:]",
    ],
)
def test_it_is_cut_only_or_an_operand_once(body):
    assert "a + b" in single(body)


@pytest.mark.parametrize(
    "body",
    [
        "x = a + b\nreturn x[1:2], x",
        "x = a + b\nreturn x > 1",
        "x = a + b\nx += 1\nreturn x[1:2]",
        "x = a + b\nx[0] = 1\nreturn x[1:2]",
        "x = y = a + b\nreturn x[1:2]",
        "self.x = a + b\nreturn self.x[1:2]",
        "if a:\n    x = a + b\nelse:\n    x = b\nreturn x[1:2]",
        "x = a + b\nwhile a:\n    x = x[1:2]\nreturn x",
        "x = a + b\nreturn f(x, x[1:2])",
        "x = a + b\nreturn [x, 1]",
    ],
)
def test_it_may_be_used_again(body):
    assert "a + b" not in single(body)


def test_a_later_value_of_the_name_is_another():
    body = "x = a + b\ny = f(x)\nx = g(a, b)\nreturn x[1:2], x.mean()"
    assert "a + b" in single(body)
    assert "g(a, b)" not in single(body)
