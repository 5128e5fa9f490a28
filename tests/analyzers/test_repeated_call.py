"""repeated-call: calls of a module that the capture found to be the same. Times in µs."""

import pytest

FUNCTION = "autograd::engine::evaluate_function: MmBackward0"
EPOCH_US = 1_700_000_000_000_000


def called(recording, *, backward=(), devices=(), steps=2):
    """Return steps of 1000 µs with calls of a module at 0 and 300, the second one longer; and the capture's record.

    A call leaves one function behind; those of the calls ``backward`` run at 700 and 800.
    """
    r = recording(devices=devices) if devices == () else recording()
    begins, ends = [], []
    for step in range(steps):
        at, number = 1000 * step, 10 * step
        r.step(step + 1, at, at + 1000)
        for call, took in ((0, 100), (1, 200)):
            begin = at + 300 * call
            r.frame("train.py(7): targets", begin, begin + took)
            r.op("aten::mm", begin + 10, begin + took - 10, sequence=number + call)
            if devices != ():
                r.kernel("gemm", begin + 20, begin + took, launched=(begin + 11, begin + 15))
            begins.append(1000 * (EPOCH_US + begin))
            ends.append(1000 * (EPOCH_US + begin + took))
        r.op("aten::sum", at + 600, at + 690, sequence=number + 2)
        for call in backward:
            begin = at + 700 + 100 * call
            r.op(FUNCTION, begin, begin + 90)
            r.op("MmBackward0", begin + 5, begin + 85, sequence=number + call)
    r.with_info(
        repeats=[
            {"module": "Critic", "began_ns": begins[i : i + 2], "ended_ns": ends[i : i + 2]}
            for i in range(0, 2 * steps, 2)
        ]
    )
    return r


def analysed(r):
    """Return the tables of a capture whose windows hold the same."""
    from diagnose.pipeline.find import build_tables

    capture = r.capture(attribution=r)
    return build_tables(capture, capture.trace)


def found_in(r):
    from diagnose.analyzers import repeated_call

    found = repeated_call.find(analysed(r))
    assert len(found) <= 1
    return found[0] if found else None


def test_of_calls_that_are_the_same_the_longest_is_needed(recording):
    finding = found_in(called(recording))
    assert finding.lost_ns == 80_000  # the operator of the first call
    assert finding.title == "Critic computes the same again: equal inputs, unchanged weights"
    assert finding.evidence[1].startswith(
        "Critic is called 2 times a step with inputs and weights that an earlier call had; 1 of the calls"
    )


def test_with_a_call_goes_what_the_backward_pass_computes_of_it(recording):
    finding = found_in(called(recording, backward=(0, 1)))
    assert finding.lost_ns == 80_000 + 80_000
    assert finding.facts["with_gradients"] is True


def test_of_calls_that_are_the_same_in_every_step_none_is_needed(recording):
    r = called(recording)
    records = r.info.repeats
    both = {"module": "Critic", "began_ns": [], "ended_ns": []}
    for each in records:
        both["began_ns"] += each.began_ns
        both["ended_ns"] += each.ended_ns
    r.with_info(repeats=[both])
    assert found_in(r).lost_ns == 80_000 + 180_000


def test_beside_a_device_it_is_their_kernels_and_the_answer_is_less_sure(recording):
    finding = found_in(called(recording, devices="one"))
    assert len(finding.tasks) == 2  # 80 µs of each step
    assert finding.confidence == "medium"
    assert finding.lost_ns >= 80_000


@pytest.mark.parametrize("repeats", [[], [{"module": "Critic", "began_ns": [1, 5], "ended_ns": [2, 6]}]])
def test_calls_that_the_capture_did_not_find_to_be_the_same(recording, repeats):
    r = called(recording)
    r.with_info(repeats=repeats)
    assert found_in(r) is None


def test_what_is_done_about_it(recording):
    from diagnose.changes.common.prescribe import prescribe
    from diagnose.tables.program import program_of

    t = analysed(called(recording, backward=(0, 1)))
    (change,) = prescribe(found_in(called(recording, backward=(0, 1))), t.steps.step_ns, program_of(t))
    assert change.id == "reuse-result"
    assert change.title == "Keep the result of Critic instead of computing it again (train.py:7)"
    assert change.safety.startswith("may change the numbers")
