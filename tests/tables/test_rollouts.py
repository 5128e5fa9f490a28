"""What a rollout calls again and again is no loop. Times in µs; a step takes 4000."""

import pytest

from diagnose.tables.issuers import issuer_of

LOOP, HELPER, OUTER = "train.py(20): loop", "train.py(9): act", "nn.Module: Tagger_0"
CALLS = 40


def stepping(recording, *, around=(LOOP,), each=(), gradients=True, draws=False, reads=False, own=0):
    """Return a step in which ``around`` is open, and 40 times ``each`` in it, which calls a policy of two operators.

    ``own`` operators of ``each`` follow the call, the first of which may draw and the last may be read; ``gradients``
    are on or off in all.
    """
    r = recording(devices=())
    r.step(1, 0, 4000)
    for name in around:
        r.frame(name, 0, 4000)
    number = 0

    def op(name, at):
        nonlocal number
        number += gradients
        r.op(name, at, at + 5, sequence=number if gradients else -1)

    for i in range(CALLS):
        at = 95 * i
        for name in each:
            r.frame(name, at + 1, at + 94)
        r.frame("nn.Module: Policy_0", at + 2, at + 40)
        op("aten::linear", at + 5)
        op("aten::tanh", at + 20)
        for k in range(own):
            name = "aten::multinomial" if draws and not k else "aten::item" if reads and k == own - 1 else "aten::sub"
            op(name, at + 45 + 40 * k / own)
    r.op("aten::sum", 3900, 3990, sequence=1000)  # of the loss
    return r


@pytest.mark.parametrize(
    ("draws", "gradients", "reads", "stands_out"),
    [
        (True, False, False, False),
        (True, True, False, True),
        (False, False, False, True),
        (True, True, True, False),  # an environment is told what was drawn
        (False, True, True, True),
    ],
)
def test_what_a_policy_calls_for_each_action_is_no_loop_over_rows(recording, draws, gradients, reads, stands_out):
    t = stepping(recording, each=(HELPER,), draws=draws, gradients=gradients, reads=reads, own=4).tables()
    assert (issuer_of(t) is not None) is stands_out


@pytest.mark.parametrize("gradients", [True, False])
def test_a_rollout_has_no_loop_to_take_anything_out_of(recording, gradients):
    r = stepping(recording, each=(HELPER,), draws=True, gradients=gradients, own=1)
    assert [p.id for p in r.prescribe("launch-bound")] == ["compile-model"]
