"""Blocks that change a setting put back what they found, also within each other and after an error."""

import pytest
import torch
import torch._functorch.config as compiler

from diagnose.kernels.checkpointing import activation_budget
from diagnose.kernels.matmul_precision import fp32_precision
from diagnose.kernels.ops._choice import chosen
from diagnose.kernels.ops.custom_op import using
from diagnose.kernels.precision import Precision

PRECISION = Precision("cpu", torch.bfloat16)
BLOCKS = {
    "switched_off": (lambda _: PRECISION.switched_off(), lambda: PRECISION.enabled, (None, None)),
    "fp32_precision": (fp32_precision, torch.get_float32_matmul_precision, ("tf32", "ieee")),
    "activation_budget": (activation_budget, lambda: compiler.activation_memory_budget, (0.5, 0.25)),
    "using": (using, lambda: chosen("diagnose::gelu", []), ("native", "eager")),
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("fails", [False, True])
def test_each_block_puts_back_what_it_found(name, fails):
    block, current, (outer, inner) = BLOCKS[name]
    first = current()
    with block(outer):
        within = current()
        assert within != first or name == "using"
        try:
            with block(inner):
                assert (current() != within) == (outer != inner)
                if fails:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        assert current() == within
    assert current() == first
