"""lone-rank: what one rank does alone while the others wait, by the samples of all steps of the run."""

from dataclasses import replace

import numpy as np
import pytest

from diagnose.model.capture import RunSteps
from diagnose.pipeline.run import analyze_captures

FILE = "/work/train.py"
MAIN = (FILE, 40, "<module>")
MINE = ((FILE, 12, "embed"), (FILE, 20, "refresh"), (FILE, 31, "main"), MAIN)
WAIT = ((FILE, 22, "refresh"), (FILE, 31, "main"), MAIN)
TRAIN = ((FILE, 33, "main"), MAIN)
MODEL = ((FILE, 12, "embed"), (FILE, 32, "main"), MAIN)  # which every rank runs in each step
LINES = {(FILE, 12): "return self.net(x)", (FILE, 20): "table = embed(items)", (FILE, 22): "dist.broadcast(table, 0)"}


def captures(recording, *seen, lines=LINES, took_us=()):
    """Return ranks that were seen so many times at each path, in a run of 16 steps."""
    made = []
    for number, counts in enumerate(seen):
        r = recording(devices=())
        for step in range(6):
            begin = 1000 * step
            r.step(step + 1, begin, begin + 1000)
            r.op("aten::mm", begin, begin + 800)
            r.annotation("gloo:all_reduce", begin + 850, begin + 1000, thread="gloo")
        paths, num = list(counts), sum(counts.values())
        took = np.array(took_us or [1000] * 16, np.int64) * 1000
        began = np.cumsum(took) - took
        r.run = RunSteps(
            began_ns=began,
            took_ns=took,
            state=np.zeros(16, np.int8),
            phases={},
            paths=tuple(paths),
            sampled_ns=np.linspace(0, int(took.sum()) - 1, num).astype(np.int64),
            path=np.repeat(np.arange(len(paths)), list(counts.values())).astype(np.int32),
        )
        capture = r.capture()
        made.append(replace(capture, trace=replace(capture.trace, rank=number, world_size=len(seen)), lines=lines))
    return made


def lone(found):
    return next((f for f in found.findings if f.rule == "lone-rank"), None)


def test_one_rank_mines_while_the_other_waits_in_the_broadcast(recording):
    found = analyze_captures(captures(recording, {TRAIN: 60, MODEL: 20, MINE: 20}, {TRAIN: 60, MODEL: 20, WAIT: 20}))
    finding = lone(found)
    # a fifth of the samples of rank 0 are in what it alone calls, a fifth of rank 1's are at the broadcast
    assert finding.title == "Rank 0 works while all others wait for it"
    assert finding.lost_ns == pytest.approx(200_000)
    assert [w.line for w in finding.where] == [20, 22]  # the outermost line that is rank 0's alone, and the wait
    assert finding.evidence == (
        "Lines that no other rank runs take 20 % of rank 0's time over all steps; each other rank spends 20 % more of "
        "it at a collective.",
    )
    assert [p.id for p in found.prescriptions if p.rule == "lone-rank"] == ["split-over-ranks"]


@pytest.mark.parametrize(
    ("first", "second", "third"),
    [
        ({TRAIN: 60, MINE: 20}, {TRAIN: 80}, {TRAIN: 80}),  # nobody waits: the backward is slower there
        ({TRAIN: 97, MINE: 3}, {TRAIN: 97, WAIT: 3}, {TRAIN: 97, WAIT: 3}),  # so few are chance
        ({TRAIN: 80, MINE: 20}, {TRAIN: 80, MINE: 20}, {TRAIN: 80, WAIT: 20}),  # two of them work
        ({TRAIN: 80, MINE: 20}, {TRAIN: 80, WAIT: 20}, {TRAIN: 100}),  # one of the others does not wait
    ],
)
def test_what_is_no_work_of_one_rank_alone(recording, first, second, third):
    assert lone(analyze_captures(captures(recording, first, second, third))) is None


def test_stages_that_each_run_lines_of_their_own_are_none(recording):
    other = ((FILE, 25, "upper"), (FILE, 31, "main"), MAIN)
    ranks = {TRAIN: 50, MINE: 25, WAIT: 25}, {TRAIN: 50, other: 25, WAIT: 25}
    assert lone(analyze_captures(captures(recording, *ranks))) is None


def test_saving_on_one_rank_goes_to_the_background(recording):
    lines = LINES | {(FILE, 20): "torch.save(net.state_dict(), path)", (FILE, 22): "dist.barrier()"}
    ranks = {TRAIN: 60, MINE: 20}, {TRAIN: 60, WAIT: 20}
    found = analyze_captures(captures(recording, *ranks, lines=lines))
    assert [p.id for p in found.prescriptions if p.rule == "lone-rank"] == ["save-in-background"]


def test_long_steps_of_this_work_are_its_cost(recording):
    """Every fourth step takes 5000 µs more than the others: all that steps take beyond 1000 is this work's."""
    took = (*([1000, 1000, 1000, 6000] * 4),)
    ranks = {TRAIN: 60, MINE: 40}, {TRAIN: 60, WAIT: 40}
    found = analyze_captures(captures(recording, *ranks, took_us=took))
    assert "periodic-stall" not in {f.rule for f in found.findings}
    assert lone(found).lost_ns == pytest.approx(found.step_ns - 1_000_000)
    assert not any(p.rule == "periodic-stall" for p in found.prescriptions)
