"""What holds for every recording: of random events, and of every real trace at hand."""

import itertools
import math

import numpy as np
import pytest

from diagnose.analyzers import META
from diagnose.model.diagnosis import Diagnosis
from diagnose.model.intervals import total, union
from diagnose.model.rules import FREES_HOST
from diagnose.replay.effects import MAX_ERROR, MAX_GAIN
from diagnose.tables import Tables

KERNELS = ("gemm", "volta_sgemm_128x64_tn", "ncclDevKernel_AllReduce_Sum", "multi_tensor_apply_kernel")
COPIES = ("Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pageable)", "Memcpy DtoD (Device -> Device)")
CALLS = ("cudaStreamSynchronize", "cudaMalloc", "cuModuleLoadData", "cudaEventRecord", "cudaLaunchKernel")
OPS = ("aten::mm", "c10d::barrier", "aten::item")
MARKS = ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "Optimizer.step#SGD.step", "gloo:all_reduce")
FRAMES = ("train.py(3): main", "torch/_dynamo/convert_frame.py(700): _compile")


class Chance:
    """Draws times, threads and names; the same for the same seed."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.step = int(self.rng.choice([50, 1000, 20_000]))
        self.num_steps = int(self.rng.integers(0, 5))
        self.span = self.step * max(1, self.num_steps)

    def upto(self, most):
        return range(int(self.rng.integers(0, most + 1)))

    def of(self, *choices):
        return choices[int(self.rng.integers(len(choices)))]

    def times(self):
        start = int(self.rng.integers(-self.span // 5, self.span + self.span // 5))
        return start, start + self.of(0, 1, 5, self.span // 50, self.span // 5)

    def launched(self, start):
        """Return the times of a launch before ``start`` as a rule, and none for one task in five."""
        begin = start - int(self.rng.integers(-5, self.step))
        return (begin, max(begin, start - int(self.rng.integers(-5, 20)))) if self.rng.random() < 0.8 else None


def random_recording(recording, seed):
    """Write events of every kind at random: overlapping, without duration, unlinked, out of the window."""
    c, r = Chance(seed), recording()
    for i in range(c.num_steps):
        r.step(i, i * c.step, (i + 1) * c.step - c.of(0, 0, c.step // 10))
    for _ in range(c.of(0, 1, 30)):
        add_task(r, c)
    for add, names in ((r.runtime, CALLS), (r.op, OPS), (r.annotation, MARKS), (r.frame, FRAMES)):
        for _ in c.upto(12):
            add(c.of(*names), *c.times(), thread=c.of("main", "main", "autograd", "monitor"))
    for _ in c.upto(2):
        r.gc(*c.times())
        r.overhead("Buffer Flush", *c.times())
    for _ in range(c.of(0, 0, 50)):
        r.sample(c.times()[0], running=c.of(-1, 0, 1))
    r.op("aten::mm", 0, 10)
    return r


def add_task(r, c):
    start, end = c.times()
    common = {"stream": c.of(7, 20), "launched": c.launched(start)}
    if c.rng.random() < 0.2:
        r.copy(c.of(*COPIES), start, end, size=c.of(-1, 0, 99), **common)
    else:
        r.kernel(c.of(*KERNELS), start, end, device=c.of(0, 0, 0, 1), thread=c.of("main", "autograd"), **common)


def assert_tables_hold(t: Tables) -> None:
    start, end = t.steps.window
    assert end > start
    assert (np.diff(t.steps.start) >= 0).all()
    assert (t.steps.end[:-1] == t.steps.start[1:]).all(), "steps touch"
    causes, gaps = t.causes, t.gaps
    idle = t.occupancy.idle if t.device_id >= 0 else union((gaps.start, gaps.end))
    covered = union((causes.start, causes.end))
    assert (causes.end > causes.start).all()
    assert (causes.start[1:] >= causes.end[:-1]).all(), "pieces do not overlap"
    assert covered.start.tolist() == idle.start.tolist(), "pieces tile the idle time"
    assert covered.end.tolist() == idle.end.tolist()
    assert sum(causes.totals().values()) == total(idle)
    assert (gaps.start[causes.gap] <= causes.start).all()
    assert (gaps.end[causes.gap] >= causes.end).all()
    assert ((gaps.start <= gaps.launch_start) & (gaps.launch_start <= gaps.queued_at)).all()
    assert (gaps.queued_at <= gaps.end).all()
    if t.device_id >= 0:
        parts = t.occupancy
        busy = (parts.compute, parts.exposed_communication, parts.exposed_copy)
        assert total(parts.busy) == sum(map(total, busy))
        assert total(parts.idle) + total(parts.busy) == end - start
        p = t.partition
        assert math.isclose(p.compute + p.exposed_communication + p.exposed_copy + p.idle, 1, abs_tol=1e-9)


def assert_diagnosis_holds(d: Diagnosis) -> None:
    for finding in d.findings:
        is_state = META[finding.rule].kind == "state" and finding.lost_ns == 0
        listed_for = max(finding.lost_ns, finding.relief_ns or 0.0)  # a wait that drains the queue: for what follows
        assert is_state or 0.01 * d.step_ns <= listed_for, finding.rule
        assert finding.lost_ns <= d.step_ns * (1 + 1e-9), finding.rule
        assert finding.count > 0
        assert finding.evidence
        assert len(finding.examples) <= 3
    assert [note.text for note in d.trust if "failed on this trace" in note.text] == []
    # A finding may count half of its tasks' time as lost; where their shapes are known, more may be saved.
    # What is lost is a mean of a few steps.
    lost = {f.rule: min(max(f.lost_ns, f.total_ns / max(d.steps, 1)), d.step_ns) for f in d.findings}
    for p in d.prescriptions:
        rule = META[p.rule]  # without its copies or kernels the host, too, has less to do, and runs ahead
        frees_host = rule.cause in FREES_HOST | {"copy"} or rule.kind == "kernel"
        most = d.step_ns if frees_host else min((1 + MAX_ERROR + MAX_GAIN) * lost[p.rule], d.step_ns)
        assert 0 <= p.saves_ns[0] <= p.saves_ns[1] <= most * (1 + 1e-9), p.id
        if p.predicted_step_ns is not None:
            assert 0 <= p.predicted_step_ns <= d.step_ns
    assert len({p.id for p in d.prescriptions}) == len(d.prescriptions)
    assert d.dominant is None or d.dominant == d.findings[0].rule
    if d.partition:
        assert math.isclose(sum(d.idle_by_cause.values()), d.partition.idle, abs_tol=1e-9)
    else:
        assert (d.verdict, d.queue, dict(d.idle_by_cause)) == ("no-gpu", None, {})
    assert_numbers(d)
    assert_picture_holds(d)
    assert_replay_holds(d)


def assert_replay_holds(d: Diagnosis) -> None:
    if d.critical_path is not None:
        assert math.isclose(sum(d.critical_path.shares.values()), 1, abs_tol=1e-6)
        pieces = d.critical_path.pieces
        assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(pieces)), "a path is a chain"
        assert all(p.start_ns < p.end_ns for p in pieces)
    assert all(f.path_share is None or -1e-9 <= f.path_share <= 1 + 1e-6 for f in d.findings)
    if d.waterfall is None:
        return
    steps = d.waterfall.forecasts
    assert steps[0].step_ns == d.step_ns
    assert all(b.step_ns < a.step_ns for a, b in itertools.pairwise(steps)), "each change makes the step shorter"
    assert all(0 <= f.low_ns <= f.step_ns <= f.high_ns <= d.step_ns * (1 + 1e-9) for f in steps)
    assert all(b.ids[:-1] == a.ids for a, b in itertools.pairwise(steps))


def assert_numbers(d: Diagnosis) -> None:
    """Everything that is written out must be a number that JSON can hold."""
    q = d.queue
    shares = (q.busy_share, q.idle_share, q.empty_share, q.late_share) if q else ()
    assert all(0 <= share <= 1 + 1e-9 for share in shares)
    depths = (q.depth_p50, q.depth_p90, q.launches_per_step, q.delay_p50_ns) if q else ()
    assert all(math.isfinite(n) and n >= 0 for n in (*depths, d.step_ns, *d.step_times_ns))
    assert all(op.self_ns <= op.total_ns * (1 + 1e-9) for op in d.operators)


def assert_picture_holds(d: Diagnosis) -> None:
    picture = d.picture
    assert picture is not None
    assert all(0 <= s.start_ns <= s.end_ns <= picture.step_ns for s in picture.spans)
    gaps = picture.gaps
    assert all(0 <= g.start_ns < g.end_ns <= picture.step_ns for g in gaps)
    assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(gaps))
    times = [time for time, _ in picture.depth]
    assert times == sorted(times)
    assert all(0 <= time <= picture.step_ns for time in times)
    assert all(depth >= 0 for _, depth in picture.depth)


@pytest.mark.parametrize("seed", [*range(75), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(75, 150))])
def test_random_recordings(recording, seed):
    r = random_recording(recording, seed)
    assert_tables_hold(r.tables())
    assert_diagnosis_holds(r.diagnosis())


def test_the_corpus_is_whole(recorded):
    assert len(recorded.first) >= 49


def failing(check, by_name, names):
    """Return the traces for which a check fails, with why."""
    found = {}
    for name in names:
        error = _error(check, by_name[name])
        if error:
            found[name] = error
    return found


def _error(check, value):
    try:
        check(value)
    except AssertionError as error:
        return str(error)
    return ""


def test_every_prescription_of_every_recorded_trace_is_fit_to_be_shown(recorded, extent, presentable):
    for name in recorded.of(extent):
        for prescription in recorded.diagnoses[name].prescriptions:
            presentable(prescription)


def test_every_table_of_every_recorded_trace(recorded, extent):
    assert failing(assert_tables_hold, recorded.tables, recorded.of(extent)) == {}


def test_every_diagnosis_of_every_recorded_trace(recorded, extent):
    assert failing(assert_diagnosis_holds, recorded.diagnoses, recorded.of(extent)) == {}
