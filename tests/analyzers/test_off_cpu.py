"""off-cpu: intervals between operators in which the sampler found the thread off the CPU."""

import pytest

PLACE = ("train.py", 30, "wait_for_file")


def sampled(r, waiting, running=10, start=300, end=690):
    """Sample the interval: first ``waiting`` samples off the CPU, then the rest of ``running`` on it."""
    for i in range(running):
        r.sample(start + (end - start) * (i + 0.5) / running, PLACE, running=0 if i < waiting else 1)
    return r


def test_an_interval_off_the_cpu(late):
    sampled(late, 10)
    assert late.booked() == {"off-cpu": 390_000, "launch-bound": 10_000}
    finding = late.find("off-cpu")
    assert (finding.lost_ns, finding.count) == (390_000, 1)
    where = finding.where[0]
    assert (where.file, where.line, where.function) == PLACE
    assert finding.examples[0].host == "between operators"


@pytest.mark.parametrize(("waiting", "rule"), [(8, "off-cpu"), (7, "python-stall")])
def test_three_quarters_of_the_samples_at_its_line_decide(late, waiting, rule):
    assert sampled(late, waiting).booked() == {rule: 390_000, "launch-bound": 10_000}


def test_without_a_sampler_it_says_nothing(late):
    assert late.booked() == {"python-stall": 390_000, "launch-bound": 10_000}


def test_samples_that_could_not_tell_are_not_counted(late):
    for i in range(10):
        late.sample(310 + 10 * i, PLACE, running=-1)
    assert "off-cpu" not in late.booked()


def test_an_interval_without_samples_is_not_claimed(late):
    sampled(late, 10, start=0, end=100)
    assert late.booked() == {"python-stall": 390_000, "launch-bound": 10_000}


@pytest.mark.parametrize(("until", "booked"), [(491, 0), (490, 200_000)])
def test_the_interval_is_at_least_200_us_in_a_short_step(late, until, booked):
    late.op("aten::mm", 200, until)
    assert sampled(late, 10, start=until).booked().get("off-cpu", 0) == booked


def test_waiting_inside_the_loader_is_the_loaders(late):
    late.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 300, 690)
    assert sampled(late, 10).booked() == {"data-stall": 390_000, "launch-bound": 10_000}


def test_a_trace_without_the_wall_clock_cannot_be_matched_with_samples(late):
    sampled(late, 10)
    late.epoch_ns = 0
    assert "off-cpu" not in late.booked()


def test_the_wait_is_moved_elsewhere(late):
    (p,) = sampled(late, 10).prescribe("off-cpu")
    assert p.id == "wait-elsewhere"
    assert p.title == "Move the wait out of the training thread"
    assert "ThreadPoolExecutor(8)" in p.after
    assert p.saves_ns == (pytest.approx(0.9 * 390_000), 390_000)


def test_without_a_device(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 600)
    sampled(r, 10, start=600, end=1000)
    assert r.booked() == {"operators": 600_000, "off-cpu": 400_000}


@pytest.mark.parametrize(("before", "rule"), [("aten::mm", "off-cpu"), ("aten::add", "python-stall")])
def test_an_interval_without_samples_is_as_those_before_the_same_operator(recording, before, rule):
    r = recording(devices=())
    for step in (1, 2):
        r.step(step, 1000 * step, 1000 * step + 1000)
    sampled(r, 10, start=1000, end=1400)
    r.op("aten::mm", 1400, 2000)
    r.op(before, 2400, 3000)
    expected = {"operators": 1_200_000, "off-cpu": 400_000}
    assert r.booked() == expected | {rule: expected.get(rule, 0) + 400_000}
