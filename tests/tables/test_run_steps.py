"""All steps of a run: long ones that recur, phases, steps that vary by themselves. Times in ms."""

import pytest

from diagnose.tables.run_steps import phase_shares, stalls, variation

EVALUATE = [("train.py", 30, "evaluate"), ("train.py", 12, "main")]
TRAIN = [("train.py", 10, "main")]


@pytest.fixture
def ran(recording, run_steps):
    def make(took, **known):
        r = recording()
        r.step(1, 0, 1000)
        r.op("aten::mm", 0, 1000)
        r.run = run_steps(took, **known)
        return r

    return make


def one_in(period, num, long, usual=10.0):
    return [long if i % period == period - 1 else usual for i in range(num)]


def test_one_step_in_sixteen(ran):
    (stall,) = stalls(ran(one_in(16, 160, 400)).tables())
    assert (stall.period, len(stall.rows), stall.base_ns, stall.each_ns) == (16, 10, 10e6, 400e6)
    assert stall.lost_ns == pytest.approx(10 * 390e6 / 158)  # the first two steps warm up
    assert stall.share == pytest.approx(3900 / (3900 + 1580))


@pytest.mark.parametrize(
    "took",
    [
        [10.0] * 100,
        one_in(16, 160, 29),  # not three times as long
        [40.0 if i in (17, 31, 58, 60, 93) else 10.0 for i in range(100)],  # at any distance
        [40.0 if i in (17, 57) else 10.0 for i in range(100)],  # twice
        one_in(2, 100, 40),  # half of them: no stall
    ],
)
def test_what_is_no_stall(ran, took):
    assert stalls(ran(took).tables()) == ()


def test_two_kinds_of_long_steps_are_told_apart(ran):
    took = [1000 if i % 50 == 49 else 50 if i % 10 == 9 else 10 for i in range(200)]
    assert sorted((stall.period, len(stall.rows)) for stall in stalls(ran(took).tables())) == [(10, 16), (50, 4)]


def test_a_phase_explains_long_steps_that_do_not_recur_regularly(ran):
    took = [400.0 if i in (17, 57) else 10.0 for i in range(100)]
    (stall,) = stalls(ran(took, evaluation=[390 * (t > 10) for t in took], backwards=[1] * 100).tables())
    assert (stall.phase, stall.period, stall.every) == ("evaluation", 0, 49)
    assert stall.phase_share == 1


def test_a_checkpoint_is_seen_beside_steps_of_a_busy_machine(ran):
    """Every third step writes for 20 ms; the machine makes any step up to twice as long."""
    saves = [20.0 if i % 3 == 0 else 0.0 for i in range(90)]
    took = [16.0 + 16.0 * (i % 7 == 0) + save for i, save in enumerate(saves)]
    (stall,) = stalls(ran(took, checkpoint=saves, backwards=[1] * 90).tables())
    assert (stall.phase, stall.period, len(stall.rows)) == ("checkpoint", 3, 29)
    assert stall.lost_ns == pytest.approx(20e6 / 3, rel=0.25)


def test_a_phase_that_every_step_has_explains_nothing(ran):
    took = [30.0 if i in (17, 31, 57) else 10.0 for i in range(100)]
    assert stalls(ran(took, rollout=[0.9 * t for t in took], backwards=[1] * 100).tables()) == ()


@pytest.mark.parametrize(("period", "found"), [(8, False), (25, True)])
def test_a_late_batch_now_and_then_belongs_to_the_loader_s_rule(ran, period, found):
    took = one_in(period, 200, 100)
    assert bool(stalls(ran(took, loading=[t - 8 for t in took], backwards=[1] * 200).tables())) == found


def test_recorded_steps_are_set_against_recorded_ones(ran):
    state = [0] * 40 + [3] + [2] * 20 + [3] + [0] * 40  # an attribution window in the middle: four times as long
    took = [50 if s == 3 else 40 if s == 2 else 10 for s in state]
    assert stalls(ran(took, state=state).tables()) == ()


def test_the_line_that_long_steps_are_at(ran):
    took = one_in(20, 100, 210)
    begins = [sum(took[:i]) for i in range(100)]
    sampled = [(begin + 5, TRAIN) for begin in begins]
    sampled += [(begins[i] + at, EVALUATE) for i in range(19, 100, 20) for at in range(20, 210, 20)]
    (stall,) = stalls(ran(took, sampled=sampled).tables())
    assert stall.place == tuple(EVALUATE)
    assert stall.place_share == pytest.approx(50 / 52, abs=0.02)


def test_a_line_that_usual_steps_are_in_too_has_the_callers_of_long_ones(ran):
    took = one_in(20, 100, 210)
    begins = [sum(took[:i]) for i in range(100)]
    model = ("net.py", 3, "forward")
    sampled = [(begin + 5, [model, *TRAIN]) for begin in begins]
    sampled += [(begins[i] + at, [model, *EVALUATE]) for i in range(19, 100, 20) for at in range(20, 210, 20)]
    (stall,) = stalls(ran(took, sampled=sampled).tables())
    assert stall.place == (model, *EVALUATE)


def test_the_call_in_the_loop_where_the_lines_in_it_are_many(ran):
    took = one_in(20, 100, 210)
    begins = [sum(took[:i]) for i in range(100)]
    inner = [[("train.py", 40 + n, "evaluate"), ("train.py", 12, "main")] for n in range(4)]
    sampled = [(begins[i] + at, inner[at // 20 % 4]) for i in range(19, 100, 20) for at in range(20, 210, 20)]
    (stall,) = stalls(ran(took, sampled=sampled).tables())
    assert stall.place == (("train.py", 12, "main"),)


def test_a_call_that_all_steps_are_in_is_no_place_of_long_ones(ran):
    """Four ninths evaluate, the others write in three lines: none has most, and `train` is called once for all."""
    took = one_in(20, 100, 210)
    begins = [sum(took[:i]) for i in range(100)]
    outer = ("train.py", 90, "<module>")
    evaluates = [[("eval.py", 3 + n, "evaluate"), ("train.py", 14, "train"), outer] for n in range(3)]
    writes = [[("log.py", line, "write"), ("train.py", line, "train"), outer] for line in (11, 12, 13, 11, 12)]
    inside = [*evaluates, evaluates[0], *writes]
    sampled = [(begin + 5, [("train.py", 10, "train"), outer]) for begin in begins]
    sampled += [(begins[i] + at, inside[at // 20 % 9]) for i in range(19, 100, 20) for at in range(20, 200, 20)]
    (stall,) = stalls(ran(took, sampled=sampled).tables())
    assert stall.place == (("train.py", 14, "train"), outer)
    assert stall.place_share == pytest.approx(4 / 9, abs=0.03)
    assert not stall.in_function


@pytest.mark.parametrize(("at", "expected"), [([71, 71, 71, 71, 72], 71), ([71, 71, 71, 72, 72], 71), ([71, 72], 12)])
def test_the_line_of_a_function_that_has_most_of_its_samples(ran, at, expected):
    took = one_in(20, 100, 220)
    begins = [sum(took[:i]) for i in range(100)]
    inner = [[("train.py", line, "nearest"), ("train.py", 12, "main")] for line in at]
    if expected == 12:  # half of them elsewhere in what is called
        inner += [[("train.py", 80, "farthest"), ("train.py", 12, "main")]]
    sampled = [
        (begins[i] + when, inner[when // 10 % len(inner)]) for i in range(19, 100, 20) for when in range(0, 220, 10)
    ]
    (stall,) = stalls(ran(took, sampled=sampled).tables())
    assert stall.place[0][1] == expected
    assert stall.in_function == (at == [71, 71, 71, 72, 72])


def test_shares_of_the_phases(ran):
    r = ran([10.0] * 20, rollout=[6.0] * 20, loading=[1.0] * 20, backwards=[1] * 20)
    assert phase_shares(r.capture()) == {"rollout": 0.6, "training": 0.3, "loading": 0.1}


def test_without_a_backward_pass_all_is_inference(ran):
    r = ran([10.0] * 20, rollout=[6.0] * 20, loading=[1.0] * 20)
    assert phase_shares(r.capture()) == {"inference": 0.9, "loading": 0.1}


def test_steps_that_follow_what_they_work_on(ran):
    work = [8, 16, 32, 64] * 10
    varies = variation(ran([2 + w for w in work], work=work).capture())
    assert (varies.per_work_ns, varies.base_ns) == (pytest.approx(1e6), pytest.approx(2e6))


def test_steps_that_vary_for_no_known_reason(ran):
    varies = variation(ran([8, 16, 32, 64] * 10).capture())
    assert (varies.low_ns, varies.high_ns, varies.per_work_ns) == (8e6, 64e6, None)


def test_noise_is_no_variation(ran):
    assert variation(ran([9, 10, 11, 14] * 10).capture()) is None


def test_a_few_long_steps_show_their_phases(ran):
    shares = phase_shares(ran([10_000.0] * 5, rollout=[6_000.0] * 5, backwards=[1] * 5).tables().capture)
    assert shares == {"rollout": pytest.approx(0.6), "training": pytest.approx(0.4)}


@pytest.mark.filterwarnings("error")
def test_a_run_of_one_step_has_no_long_ones(ran):
    assert stalls(ran([4_000.0]).tables()) == ()
