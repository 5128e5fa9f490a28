"""How many backward passes add up before an optimizer's call. Times in µs."""

import pytest

from diagnose.reports.json_reading import from_json
from diagnose.reports.text import render

FUNCTION = "autograd::engine::evaluate_function: "
NODE = f"{FUNCTION}torch::autograd::AccumulateGrad"


def accumulating(recording, *steps):
    """Return a recording of steps; each is given by the gradients of its backward passes, as (2, 2) of two."""
    r = recording(devices=())
    for step, passes in enumerate(steps):
        begin = 1000 * step
        r.step(step, begin, begin + 1000)
        for number, num in enumerate(passes):
            at = begin + 200 * number
            r.op("aten::mm", at + 10, at + 60, sequence=number)
            for gradient in range(num):
                r.op(NODE, at + 100 + 20 * gradient, at + 110 + 20 * gradient)
        r.annotation("Optimizer.step#SGD.step", begin + 900, begin + 950)
    return r


@pytest.mark.parametrize(
    ("steps", "num"),
    [
        ([(3, 3, 3, 3)] * 4, 4),
        ([(3,)] * 4, 1),
        ([(3, 3), (3,), (3, 3)], None),  # the last micro-batches of an epoch
        ([(3, 2)] * 3, None),  # two losses, of which one does not reach all parameters
        ([()] * 3, None),
    ],
)
def test_passes_of_one_size_are_counted(recording, steps, num):
    d = accumulating(recording, *steps).diagnosis()
    assert d.passes_per_update == num
    assert from_json(d.to_json(), source="a").passes_per_update == num
    assert ("backward passes before each optimizer call" in " ".join(render(d).split())) is (num == 4)
